package apiextensions

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind/kindtest"
)

// crontab is a valid definition with one version.
func crontab(t testing.TB) *definition {
	t.Helper()
	return parse(t, `
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, kind: CronTab, shortNames: [ct]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    selectableFields: [{jsonPath: .spec.cronSpec}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              cronSpec: {type: string, default: "* * * * *", maxLength: 100}
              replicas: {type: integer, minimum: 0}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                maxItems: 10
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string, maxLength: 10}, port: {type: integer}}
            x-kubernetes-validations:
            - {rule: "self.replicas <= 10", message: too many, fieldPath: .replicas, reason: FieldValueInvalid}
          status: {type: object, properties: {replicas: {type: integer}, selector: {type: string}}}
`)
}

func parse(t testing.TB, text string) *definition {
	t.Helper()
	crd := &definition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// schemaOf parses a schema.
func schemaOf(t testing.TB, text string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	schema := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict([]byte(text), schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

func TestCreate(t *testing.T) {
	type change = func(*definition)
	spec := func(text string) change {
		return func(crd *definition) {
			crd.Spec.Versions[0].SelectableFields = nil
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema = schemaOf(t, "{type: object, properties: {spec: "+text+"}}")
		}
	}
	root := func(text string) change {
		return func(crd *definition) {
			crd.Spec.Versions[0].SelectableFields = nil
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema = schemaOf(t, text)
		}
	}
	secondVersion := func(change func(*apiextensionsv1.CustomResourceDefinitionVersion)) change {
		return func(crd *definition) {
			version := crd.Spec.Versions[0].DeepCopy()
			version.Name, version.Storage = "v2", false
			change(version)
			crd.Spec.Versions = append(crd.Spec.Versions, *version)
		}
	}
	conversion := func(text string) change {
		return func(crd *definition) {
			crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{}
			if err := yaml.UnmarshalStrict([]byte(text), crd.Spec.Conversion); err != nil {
				t.Fatal(err)
			}
		}
	}
	const schema = "spec.validation.openAPIV3Schema"
	for _, test := range []struct {
		name   string
		change change
		want   []string
	}{
		{name: "valid"},
		{name: "name", change: func(crd *definition) { crd.Name = "other.stable.example.com" }, want: []string{`metadata.name: Invalid value: must be spec.names.plural+"."+spec.group`}},
		{name: "group", change: func(crd *definition) { crd.Spec.Group, crd.Name = "example", "crontabs.example" }, want: []string{"spec.group: Invalid value: should be a domain with at least one dot"}},
		{name: "scope", change: func(crd *definition) { crd.Spec.Scope = "Everywhere" }, want: []string{"spec.scope: Unsupported value"}},
		{name: "names", change: func(crd *definition) {
			crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "crontabs", Singular: "A", Kind: "K_", ListKind: "K_", ShortNames: []string{"B"}, Categories: []string{"C"}}
		}, want: []string{
			"spec.names.singular: Invalid value", "spec.names.kind: Invalid value: may have mixed case", "spec.names.listKind: Invalid value: may have mixed case",
			"spec.names.shortNames[0]: Invalid value", "spec.names.listKind: Invalid value: kind and listKind may not be the same", "spec.names.categories[0]: Invalid value"}},
		{name: "missing kind", change: func(crd *definition) { crd.Spec.Names.Kind = "" }, want: []string{
			"spec.names.singular: Required value", "spec.names.kind: Required value", "spec.names.listKind: Required value"}},
		{name: "two storage versions", change: secondVersion(func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.Storage = true }), want: []string{
			"spec.versions: Invalid value: must have exactly one version marked as storage version", "status.storedVersions: Invalid value: must have the storage version v2"}},
		{name: "same version twice", change: secondVersion(func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.Name = "v1" }), want: []string{"spec.versions: Invalid value: must contain unique version names"}},
		{name: "version name", change: secondVersion(func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.Name = "2" }), want: []string{"spec.versions[1].name: Invalid value"}},
		{name: "deprecation", change: secondVersion(func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.DeprecationWarning = ptr.To("old") }), want: []string{
			"spec.versions[1].deprecationWarning: Invalid value: can only be set for deprecated versions"}},
		{name: "error of a version", change: secondVersion(func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
			v.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schemaOf(t, "{type: object, properties: {spec: {type: array}}}")}
			v.SelectableFields = nil
		}), want: []string{"spec.versions[1].schema.openAPIV3Schema.properties[spec].items: Required value"}},
		{name: "no schema", change: func(crd *definition) { crd.Spec.Versions[0].Schema, crd.Spec.Versions[0].SelectableFields = nil, nil }, want: []string{"spec.versions[0].schema.openAPIV3Schema: Required value"}},
		{name: "preserve unknown fields", change: func(crd *definition) { crd.Spec.PreserveUnknownFields = true }, want: []string{
			"spec.preserveUnknownFields: Invalid value: must be false in order to use defaults", "spec.preserveUnknownFields: Invalid value: cannot set to true"}},
		{name: "approval", change: func(crd *definition) { crd.Spec.Group, crd.Name = "stable.k8s.io", "crontabs.stable.k8s.io" }, want: []string{
			"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation"}},
		{name: "invalid approval", change: func(crd *definition) {
			crd.Spec.Group, crd.Name = "stable.k8s.io", "crontabs.stable.k8s.io"
			crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "yes"}
		}, want: []string{"metadata.annotations[api-approved.kubernetes.io]: Invalid value"}},
		{name: "columns", change: func(crd *definition) {
			crd.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Type: "x", Format: "y", JSONPath: "z"}, {Name: "n"}}
		}, want: []string{
			"spec.additionalPrinterColumns[0].name: Required value", "spec.additionalPrinterColumns[0].type: Invalid value: must be one of boolean,date,integer,number,string",
			"spec.additionalPrinterColumns[0].format: Invalid value: must be one of byte,date,date-time,double,float,int32,int64,password",
			"spec.additionalPrinterColumns[0].JSONPath: Invalid value: must be a simple json path starting with .",
			"spec.additionalPrinterColumns[1].type: Required value", "spec.additionalPrinterColumns[1].JSONPath: Required value"}},
		{name: "scale", change: func(crd *definition) {
			crd.Spec.Versions[0].Subresources.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".status.x", LabelSelectorPath: ptr.To("x")}
		}, want: []string{
			"spec.subresources.scale.specReplicasPath: Invalid value: should be a json path under .spec", "spec.subresources.scale.statusReplicasPath: Required value",
			"spec.subresources.scale.labelSelectorPath: Invalid value: must be a simple json path starting with ."}},
		{name: "selectable fields", change: func(crd *definition) {
			crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.ports"}, {JSONPath: ".spec.unknown"}, {JSONPath: ".metadata.name"}, {JSONPath: ".spec.cronSpec"}, {JSONPath: ".spec.cronSpec"}, {}}
		}, want: []string{
			"spec.selectableFields[0].jsonPath: Invalid value: must point to a field of type string, boolean or integer", "spec.selectableFields[1].jsonPath: Invalid value: is an invalid path",
			"spec.selectableFields[2].jsonPath: Invalid value", "spec.selectableFields[4].jsonPath: Duplicate value", "spec.selectableFields[5].jsonPath: Required value"}},
		{name: "selectable field of a schema that is not structural", change: func(crd *definition) {
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema = schemaOf(t, "{type: object, properties: {spec: {type: array, items: [{type: string}]}}}")
		}, want: []string{
			schema + ".properties[spec].items: Forbidden: items must be a schema object and not an array", "spec.schema.openAPIV3Schema: Invalid value"}},
		{name: "path into a map without schema", change: func(crd *definition) {
			spec("{type: object, additionalProperties: true, x-kubernetes-validations: [{rule: 'true', fieldPath: .a.b}]}")(crd)
			crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.a.b"}}
		}, want: []string{
			schema + ".properties[spec].x-kubernetes-validations[0].fieldPath: Invalid value: must be a valid path", "spec.selectableFields[0].jsonPath: Invalid value: is an invalid path: does not refer to a valid field"}},
		{name: "too many selectable fields", change: func(crd *definition) {
			var fields, list []string
			for i := range 9 {
				fields = append(fields, fmt.Sprintf("f%d: {type: string}", i))
				list = append(list, fmt.Sprintf(".spec.f%d", i))
			}
			spec("{type: object, properties: {" + strings.Join(fields, ", ") + "}}")(crd)
			for _, path := range list {
				crd.Spec.Versions[0].SelectableFields = append(crd.Spec.Versions[0].SelectableFields, apiextensionsv1.SelectableField{JSONPath: path})
			}
		}, want: []string{"spec.selectableFields: Too many: must have at most 8 items"}},

		{name: "no webhook", change: conversion("{strategy: Webhook}"), want: []string{
			"spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook", "spec.conversion.conversionReviewVersions: Required value"}},
		{name: "webhook", change: conversion("{strategy: Webhook, webhook: {conversionReviewVersions: [v1, v1, v3_], clientConfig: {url: 'http://u:p@h/?q#f'}}}"), want: []string{
			"spec.conversion.webhookClientConfig.url: Invalid value: 'https' is the only allowed URL scheme", "spec.conversion.webhookClientConfig.url: Invalid value: user information",
			"spec.conversion.webhookClientConfig.url: Invalid value: fragments", "spec.conversion.webhookClientConfig.url: Invalid value: query",
			"spec.conversion.conversionReviewVersions[1]: Invalid value: duplicate version", "spec.conversion.conversionReviewVersions[2]: Invalid value"}},
		{name: "webhook service", change: conversion("{strategy: Webhook, webhook: {conversionReviewVersions: [v9], clientConfig: {service: {name: s, namespace: n, path: x, port: 0}}}}"), want: []string{
			"spec.conversion.webhookClientConfig.service.port: Invalid value", "spec.conversion.webhookClientConfig.service.path: Invalid value: must start with a '/'",
			"spec.conversion.webhookClientConfig.service.path: Invalid value: segment[0] may not be empty", "spec.conversion.conversionReviewVersions: Invalid value: must include at least one of v1, v1beta1"}},
		{name: "invalid CA before it is used", change: conversion("{strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://h', caBundle: aW52YWxpZA==}}}")},
		{name: "needless webhook", change: conversion("{strategy: None, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://h'}}}"), want: []string{
			"spec.conversion.webhookClientConfig: Forbidden", "spec.conversion.conversionReviewVersions: Forbidden"}},
		{name: "strategy", change: conversion("{strategy: Magic}"), want: []string{"spec.conversion.strategy: Unsupported value"}},

		{name: "not structural", change: spec("{properties: {a: {type: string}}}"), want: []string{schema + ".properties[spec].type: Required value: must not be empty for specified object fields"}},
		{name: "unknown type", change: spec("{type: text}"), want: []string{schema + ".properties[spec].type: Unsupported value"}},
		{name: "default of another type", change: spec("{type: object, properties: {a: {type: integer, default: x}}}"), want: []string{schema + ".properties[spec].properties[a].default: Invalid value: must be of type integer"}},
		{name: "default with unknown fields", change: spec("{type: object, properties: {a: {type: object, default: {b: 1}}}}"), want: []string{schema + ".properties[spec].properties[a].default: Invalid value: must not have unknown fields"}},
		{name: "unsupported", change: spec("{type: object, uniqueItems: true, patternProperties: {x: {type: string}}}"), want: []string{
			schema + ".properties[spec].uniqueItems: Forbidden", schema + ".properties[spec].patternProperties: Forbidden: patternProperties is not supported"}},
		{name: "both kinds of properties", change: spec("{type: object, properties: {a: {type: string}}, additionalProperties: {type: string}}"), want: []string{
			schema + ".properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"}},
		{name: "field at the root", change: root("{type: object, minProperties: 1}"), want: []string{schema + `: Invalid value: only [Description Type`}},
		{name: "nullable root", change: func(crd *definition) {
			crd.Spec.Versions[0].Subresources = nil
			root("{type: object, nullable: true}")(crd)
		}, want: []string{schema + ".nullable: Forbidden: nullable cannot be true at the root"}},
		{name: "list type", change: spec("{type: string, x-kubernetes-list-type: bag}"), want: []string{
			schema + ".properties[spec].type: Invalid value: must be array if x-kubernetes-list-type is specified", schema + ".properties[spec].x-kubernetes-list-type: Unsupported value"}},
		{name: "map type", change: spec("{type: array, items: {type: string}, x-kubernetes-map-type: x}"), want: []string{
			schema + ".properties[spec].type: Invalid value: must be object if x-kubernetes-map-type is specified", schema + ".properties[spec].x-kubernetes-map-type: Unsupported value"}},
		{name: "set of objects", change: spec("{type: array, x-kubernetes-list-type: set, items: {type: object}}"), want: []string{schema + ".properties[spec].items.x-kubernetes-map-type: Invalid value: must be atomic"}},
		{name: "nullable items", change: spec("{type: array, x-kubernetes-list-type: set, items: {type: string, nullable: true}}"), want: []string{schema + ".properties[spec].items.nullable: Forbidden: cannot be nullable"}},
		{name: "list keys", change: spec("{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, a, b, c], items: {type: object, properties: {a: {type: string}, b: {type: object}}}}"), want: []string{
			schema + ".properties[spec].x-kubernetes-list-map-keys: Invalid value: must not contain duplicate entries", schema + ".properties[spec].items.properties[b].type: Invalid value: must be a scalar type",
			schema + ".properties[spec].x-kubernetes-list-map-keys: Invalid value: entries must all be names of item properties",
			schema + ".properties[spec].items.properties[a].default: Required value", schema + ".properties[spec].items.properties[a].default: Required value", schema + ".properties[spec].items.properties[b].default: Required value"}},
		{name: "keys without map", change: spec("{type: array, x-kubernetes-list-map-keys: [a], items: {type: object, properties: {a: {type: string}}}}"), want: []string{
			schema + ".properties[spec].x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty"}},

		{name: "rule that does not compile", change: spec("{type: object, x-kubernetes-validations: [{rule: self.unknown}]}"), want: []string{schema + ".properties[spec].x-kubernetes-validations[0].rule: Invalid value: compilation failed"}},
		{name: "rule of another type", change: spec("{type: object, x-kubernetes-validations: [{rule: '1'}]}"), want: []string{schema + ".properties[spec].x-kubernetes-validations[0].rule: Invalid value: cel expression must evaluate to a bool"}},
		{name: "rule fields", change: spec(`{type: object, x-kubernetes-validations: [{rule: " "}, {rule: "true", message: " "}, {rule: "true", message: "a\nb"}, {rule: "true\n"}, {rule: "true", reason: No, fieldPath: .x}]}`), want: []string{
			schema + ".properties[spec].x-kubernetes-validations[0].rule: Required value: rule is not specified", schema + ".properties[spec].x-kubernetes-validations[1].message: Invalid value: must be non-empty",
			schema + ".properties[spec].x-kubernetes-validations[2].message: Invalid value: must not contain line breaks",
			schema + ".properties[spec].x-kubernetes-validations[4].reason: Unsupported value", schema + ".properties[spec].x-kubernetes-validations[4].fieldPath: Invalid value: must be a valid path"}},
		{name: "expensive rule", change: spec("{type: array, items: {type: array, items: {type: string}, x-kubernetes-validations: [{rule: 'self.all(a, self.all(b, a == b))'}]}}"), want: []string{
			schema + ".properties[spec].items.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
			schema + ".properties[spec].items.x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total",
			schema + ": Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x"}},
		{name: "old item of a list", change: spec("{type: array, maxItems: 3, items: {type: string, maxLength: 3, x-kubernetes-validations: [{rule: self == oldSelf}]}}"), want: []string{
			schema + ".properties[spec].items.x-kubernetes-validations[0].rule: Invalid value: oldSelf cannot be used on the uncorrelatable portion of the schema within " + schema + ".properties[spec]"}},
		{name: "optional old self", change: spec("{type: string, maxLength: 3, x-kubernetes-validations: [{rule: 'true', optionalOldSelf: true}]}"), want: []string{
			schema + ".properties[spec].x-kubernetes-validations[0].optionalOldSelf: Invalid value: may not be set if oldSelf is not used in rule"}},
		{name: "message expression", change: spec("{type: string, maxLength: 3, x-kubernetes-validations: [{rule: 'true', messageExpression: '1'}]}"), want: []string{
			schema + ".properties[spec].x-kubernetes-validations[0].messageExpression: Invalid value: messageExpression must evaluate to a string"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			crd := crontab(t)
			if test.change != nil {
				test.change(crd)
			}
			_, errs := kindtest.Create(CustomResourceDefinition, nil, crd)
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

// established returns a definition as it is stored when it is established.
func established(t testing.TB, crd *definition) *definition {
	t.Helper()
	stored, errs := kindtest.Create(CustomResourceDefinition, nil, crd)
	kindtest.Errors(t, errs)
	stored.Status.AcceptedNames = stored.Spec.Names
	stored.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue}, {Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	return stored
}

func TestDefaults(t *testing.T) {
	got, errs := kindtest.Create(CustomResourceDefinition, nil, crontab(t))
	kindtest.Errors(t, errs)
	if got.Spec.Names.Singular != "crontab" || got.Spec.Names.ListKind != "CronTabList" || got.Spec.Conversion.Strategy != apiextensionsv1.NoneConverter {
		t.Errorf("defaults: %+v %+v", got.Spec.Names, got.Spec.Conversion)
	}
	if !reflect.DeepEqual(got.Status, apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}}) {
		t.Errorf("status %+v", got.Status)
	}
}

func TestUpdate(t *testing.T) {
	expensive := "{type: array, items: {type: array, items: {type: string}, x-kubernetes-validations: [{rule: 'self.all(a, self.all(b, a == b))'}]}}"
	for _, test := range []struct {
		name     string
		old, new func(*definition)
		want     []string
	}{
		{name: "unchanged"},
		{name: "immutable", new: func(crd *definition) {
			crd.Spec.Scope, crd.Spec.Names.Kind, crd.Spec.Group = apiextensionsv1.ClusterScoped, "Other", "other.example.com"
		}, want: []string{"spec.scope: Invalid value: field is immutable", "spec.names.kind: Invalid value: field is immutable", "spec.group: Invalid value: field is immutable"}},
		{name: "kind of a definition that was never established", old: func(crd *definition) { crd.Status.Conditions = nil }, new: func(crd *definition) { crd.Spec.Names.Kind = "Other" }},
		{name: "stored version removed", old: func(crd *definition) { crd.Status.StoredVersions = []string{"v0", "v1"} }, want: []string{
			"status.storedVersions[0]: Invalid value: missing from spec.versions; v0 was previously a storage version"}},
		{name: "invalid CA", new: func(crd *definition) {
			crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: "Webhook", Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"}, ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To("https://h"), CABundle: []byte("x")}}}
		}, want: []string{"spec.conversion.webhookClientConfig.caBundle: Invalid value: unable to load root certificates"}},
		{name: "approval kept missing", old: func(crd *definition) { crd.Spec.Group = "stable.k8s.io" }, new: func(crd *definition) { crd.Spec.Group = "stable.k8s.io" }},
		{name: "preserve unknown fields kept", old: func(crd *definition) {
			crd.Spec.PreserveUnknownFields = true
			crd.Spec.Versions[0].Schema, crd.Spec.Versions[0].SelectableFields = nil, nil
		}, new: func(crd *definition) {
			crd.Spec.PreserveUnknownFields = true
			crd.Spec.Versions[0].Schema, crd.Spec.Versions[0].SelectableFields = nil, nil
		}},
		{name: "expensive rule kept, but not the total", old: func(crd *definition) {
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = *schemaOf(t, expensive)
			crd.Spec.Versions[0].SelectableFields = nil
		}, new: func(crd *definition) {
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = *schemaOf(t, expensive)
			crd.Spec.Versions[0].SelectableFields = nil
		}, want: []string{
			"spec.validation.openAPIV3Schema.properties[spec].items.x-kubernetes-validations[0].rule: Forbidden: contributed to estimated",
			"spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total"}},
		{name: "unknown type kept", old: func(crd *definition) {
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = *schemaOf(t, "{type: text}")
		}, new: func(crd *definition) {
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = *schemaOf(t, "{type: text}")
		}, want: []string{"spec.validation: Invalid value: error building validator"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			old := established(t, crontab(t))
			crd := old.DeepCopy()
			if test.old != nil {
				test.old(old)
			}
			if test.new != nil {
				test.new(crd)
			}
			_, errs := kindtest.Update(CustomResourceDefinition, nil, crd, old)
			if test.name == "unknown type kept" {
				// The library decides whether it can build a validator; the type itself must not be an error.
				for _, err := range errs {
					if err.Type == field.ErrorTypeNotSupported {
						t.Errorf("%v", err)
					}
				}
				return
			}
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

// A new storage version is added to the status, and the generation follows the specification.
func TestNewStorageVersion(t *testing.T) {
	old := established(t, crontab(t))
	crd := old.DeepCopy()
	crd.Spec.Versions[0].Storage = false
	crd.Spec.Versions = append(crd.Spec.Versions, *crd.Spec.Versions[0].DeepCopy())
	crd.Spec.Versions[1].Name, crd.Spec.Versions[1].Storage = "v2", true
	crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	got, errs := kindtest.Update(CustomResourceDefinition, nil, crd, old)
	kindtest.Errors(t, errs)
	if !reflect.DeepEqual(got.Status.StoredVersions, []string{"v1", "v2"}) || len(got.Status.Conditions) != 2 {
		t.Errorf("status %+v", got.Status)
	}
	if len(old.Status.StoredVersions) != 1 {
		t.Error("the stored object was changed")
	}
	if !CustomResourceDefinition.SpecChanged(got, old) || CustomResourceDefinition.SpecChanged(old.DeepCopy(), old) {
		t.Error("the generation does not follow the specification")
	}
}

// TestStoredByUpstream: what upstream stores once for all versions is in each version.
func TestStoredByUpstream(t *testing.T) {
	stored := storedByUpstream.New()
	if err := yaml.Unmarshal([]byte(`
metadata: {name: crontabs.stable.example.com, uid: u}
spec:
  group: stable.example.com
  version: v2
  names: {plural: crontabs, singular: crontab, kind: CronTab, listKind: CronTabList}
  scope: Namespaced
  validation: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-validations: [{rule: "true"}]}}
  subresources: {status: {}}
  additionalPrinterColumns: [{name: Spec, type: string, JSONPath: .spec.cronSpec}]
  selectableFields: [{jsonPath: .spec.color}]
  versions: [{name: v2, served: true, storage: false}, {name: v1, served: true, storage: true, deprecated: true}]
  conversion: {strategy: Webhook, webhookClientConfig: {url: "https://example.com"}, conversionReviewVersions: [v1]}
  preserveUnknownFields: false
status:
  conditions: [{type: Established, status: "True"}]
  acceptedNames: {plural: crontabs, kind: CronTab}
  storedVersions: [v1]
`), stored); err != nil {
		t.Fatal(err)
	}
	got, err := storedByUpstream.ToStorageVersion(stored)
	if err != nil {
		t.Fatal(err)
	}
	const version = `
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-validations: [{rule: "true"}]}}
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Spec, type: string, jsonPath: .spec.cronSpec}]
    selectableFields: [{jsonPath: .spec.color}]
`
	want := parse(t, `
metadata: {name: crontabs.stable.example.com, uid: u}
spec:
  group: stable.example.com
  names: {plural: crontabs, singular: crontab, kind: CronTab, listKind: CronTabList}
  scope: Namespaced
  versions:
  - name: v2
    served: true
    storage: false`+version+`
  - name: v1
    served: true
    storage: true
    deprecated: true`+version+`
  conversion: {strategy: Webhook, webhook: {clientConfig: {url: "https://example.com"}, conversionReviewVersions: [v1]}}
status:
  conditions: [{type: Established, status: "True"}]
  acceptedNames: {plural: crontabs, kind: CronTab}
  storedVersions: [v1]
`)
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
}

func TestWarnings(t *testing.T) {
	crd := crontab(t)
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = *schemaOf(t, `{type: object, properties: {
		a: {type: string, format: color}, b: {type: array, x-kubernetes-list-type: set, items: {type: object, x-kubernetes-map-type: atomic}}}}`)
	want := []string{`unrecognized format "color"`, `x-kubernetes-list-type: set for items of type "object" is not supported by server-side apply or CEL validation rules`}
	if got := CustomResourceDefinition.Warn(crd, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("warnings %q", got)
	}
	if got := CustomResourceDefinition.Warn(crd, crontab(t)); !reflect.DeepEqual(got, want) {
		t.Errorf("warnings of a change %q", got)
	}
	if got := CustomResourceDefinition.Warn(crd, crd); len(got) != 0 {
		t.Errorf("warnings without a change %q", got)
	}
}

func TestDeletion(t *testing.T) {
	crd := established(t, crontab(t))
	at := metav1.NewTime(kindtest.Now)
	crd.DeletionTimestamp = &at
	CustomResourceDefinition.Delete.MarkTerminating(crd)
	last := crd.Status.Conditions[len(crd.Status.Conditions)-1]
	if last.Type != apiextensionsv1.Terminating || last.Reason != "InstanceDeletionPending" || !last.LastTransitionTime.Equal(&at) || len(crd.Finalizers) != 1 {
		t.Errorf("%+v %v", last, crd.Finalizers)
	}
	crd.Finalizers = nil
	CustomResourceDefinition.Delete.MarkTerminating(crd)
	if len(crd.Finalizers) != 0 || len(crd.Status.Conditions) != 3 {
		t.Errorf("a second deletion began again: %v %v", crd.Finalizers, crd.Status.Conditions)
	}
}

func TestRow(t *testing.T) {
	crd := established(t, crontab(t))
	crd.CreationTimestamp = metav1.NewTime(kindtest.Now)
	crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1beta1", Served: true}, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v0"})
	want := []any{"crontabs.stable.example.com", "Namespaced", "v1(storage),v1beta1", "2026-08-01T12:00:00Z", "stable.example.com", "CronTab", "ct", true}
	if got := CustomResourceDefinition.Row(crd, kindtest.Now); !reflect.DeepEqual(got, want) {
		t.Errorf("row %v", got)
	}
}

func TestStatus(t *testing.T) {
	old := established(t, crontab(t))
	crd := old.DeepCopy()
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
	crd.Status.AcceptedNames.Plural = "A"
	got, errs := kindtest.UpdateSubresource(CustomResourceDefinition, "status", nil, crd, old)
	kindtest.Errors(t, errs, "status.acceptedNames.plural: Invalid value")
	if got.Spec.Scope != apiextensionsv1.NamespaceScoped {
		t.Error("a status write changed the specification")
	}
}
