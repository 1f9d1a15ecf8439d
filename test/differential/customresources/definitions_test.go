package customresources

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	skiff "skiff/internal/api/apiextensions"
)

// fragments are schemas with one property each that validation looks at, valid or not.
var fragments = []string{
	"{type: string}", "{type: integer, default: 1}", "{type: integer, default: x}", "{type: text}", "{}", "{type: 'null'}", "{type: object}",
	"{type: object, default: {a: 1}}", "{type: object, properties: {a: {type: string}}, default: {a: x}}", "{type: object, nullable: true}",
	"{type: object, additionalProperties: {type: string, maxLength: 3}}", "{type: object, additionalProperties: true}", "{type: object, additionalProperties: {type: string}, properties: {a: {type: string}}}",
	"{type: array}", "{type: array, items: {type: string}}", "{type: array, items: [{type: string}]}", "{type: array, uniqueItems: true, items: {type: string}}",
	"{type: array, x-kubernetes-list-type: set, items: {type: string, nullable: true}}", "{type: array, x-kubernetes-list-type: set, items: {type: object}}",
	"{type: array, x-kubernetes-list-type: set, items: {type: array, x-kubernetes-list-type: set, items: {type: string}}}", "{type: string, x-kubernetes-list-type: bag}", "{x-kubernetes-list-type: map}",
	"{type: array, x-kubernetes-list-type: map, items: {type: object}}", "{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a, a, b], items: {type: object, properties: {a: {type: object}}}}",
	"{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, required: [a], properties: {a: {type: string, nullable: true}}}}",
	"{type: array, x-kubernetes-list-map-keys: [a], items: {type: object, properties: {a: {type: string}}}}", "{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: string}}",
	"{type: object, x-kubernetes-map-type: atomic}", "{type: string, x-kubernetes-map-type: x}", "{x-kubernetes-map-type: granular}",
	"{x-kubernetes-int-or-string: true}", "{type: string, x-kubernetes-int-or-string: true}", "{x-kubernetes-preserve-unknown-fields: true}", "{x-kubernetes-preserve-unknown-fields: false}",
	"{type: object, x-kubernetes-embedded-resource: true}", "{type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}",
	"{type: object, x-kubernetes-embedded-resource: true, properties: {metadata: {type: object, x-kubernetes-embedded-resource: true, default: {}}}}",
	"{type: string, not: {type: string}}", "{type: string, allOf: [{maxLength: 3}, {default: x}], anyOf: [{pattern: x}], oneOf: [{enum: [x]}]}", "{type: object, anyOf: [{properties: {a: {minimum: 1}}}]}",
	"{type: string, pattern: '('}", "{type: string, format: color}", "{id: x, type: string}", "{$ref: x}", "{type: object, patternProperties: {x: {type: string}}}", "{type: object, dependencies: {x: [a]}}", "{type: object, definitions: {x: {type: string}}}",
	"{type: string, maxLength: 5, x-kubernetes-validations: [{rule: 'self == oldSelf'}]}", "{type: string, x-kubernetes-validations: [{rule: 'self.x'}]}", "{type: string, x-kubernetes-validations: [{rule: ' '}]}",
	"{type: string, maxLength: 5, x-kubernetes-validations: [{rule: 'true', message: ' ', messageExpression: ' ', reason: Nope, fieldPath: .x}]}",
	"{type: string, maxLength: 5, x-kubernetes-validations: [{rule: 'true', optionalOldSelf: true, messageExpression: '1'}]}",
	"{type: array, items: {type: string, maxLength: 5, x-kubernetes-validations: [{rule: 'self == oldSelf'}]}}",
	"{type: array, items: {type: array, items: {type: string}, x-kubernetes-validations: [{rule: 'self.all(a, self.all(b, a == b))'}]}}",
	"{type: array, maxItems: 100, items: {type: array, maxItems: 100, items: {type: string, maxLength: 50, x-kubernetes-validations: [{rule: 'self.contains(self)'}]}}}",
	"{type: object, required: [a], properties: {a: {type: string, maxLength: 5}, b: {type: integer}}, x-kubernetes-validations: [{rule: 'self.a.size() < 3 && has(self.b)', fieldPath: .a, reason: FieldValueInvalid}]}",
}

// nested puts a fragment somewhere into the schema of an object.
func nested(r *rand.Rand, depth int) string {
	fragment := fragments[r.IntN(len(fragments))]
	for range r.IntN(depth + 1) {
		switch r.IntN(3) {
		case 0:
			fragment = "{type: object, properties: {p: " + fragment + ", q: " + fragments[r.IntN(len(fragments))] + "}}"
		case 1:
			fragment = "{type: array, maxItems: 5, items: " + fragment + "}"
		default:
			fragment = "{type: object, maxProperties: 5, additionalProperties: " + fragment + "}"
		}
	}
	return fragment
}

// randomVersion is a version with a random schema.
func randomVersion(r *rand.Rand, name string) string {
	pick := func(options ...string) string { return options[r.IntN(len(options))] }
	root := pick("{type: object, properties: {spec: "+nested(r, 2)+"}}", "{type: object, properties: {spec: "+nested(r, 2)+", status: "+nested(r, 1)+", metadata: "+pick("{type: object}", nested(r, 1))+"}}", nested(r, 0),
		"{type: object, nullable: true}", "{type: object, minProperties: 1}")
	return "{name: " + name + ", served: " + pick("true", "false") + ", storage: " + pick("true", "false") + pick("", ", deprecated: true", ", deprecationWarning: old", `, deprecated: true, deprecationWarning: "a\nb"`) +
		pick("", ", schema: {openAPIV3Schema: "+root+"}", ", schema: {openAPIV3Schema: "+root+"}", ", schema: {openAPIV3Schema: "+root+"}") +
		pick("", ", subresources: {status: {}}", ", subresources: {scale: {specReplicasPath: .spec.r, statusReplicasPath: x}}", ", subresources: {scale: {specReplicasPath: .status.r, statusReplicasPath: .status.r, labelSelectorPath: .x}}") +
		pick("", ", additionalPrinterColumns: [{name: col, type: string, jsonPath: .spec}]", ", additionalPrinterColumns: [{type: x, format: f, jsonPath: z}]") +
		pick("", ", selectableFields: [{jsonPath: .spec.p}, {jsonPath: .spec}, {}]", ", selectableFields: [{jsonPath: .metadata.name}, {jsonPath: '.spec[0]'}]") + "}"
}

// randomDefinition is a definition that is wrong in some places.
func randomDefinition(t *testing.T, r *rand.Rand) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	pick := func(options ...string) string { return options[r.IntN(len(options))] }
	versions := randomVersion(r, pick("v1", "v1", "V1"))
	if r.IntN(2) == 0 {
		versions += ", " + randomVersion(r, pick("v2", "v3"))
	}
	// Some definitions can only be wrong in their schema.
	text := "{metadata: {name: crontabs.stable.example.com}, spec: {group: stable.example.com, scope: Namespaced, names: {plural: crontabs, kind: CronTab}, versions: [" +
		"{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: " + nested(r, 2) + "}}}}]}}"
	if r.IntN(3) > 0 {
		text = "{metadata: {name: " + pick("crontabs.stable.example.com", "other") + pick("", ", annotations: {api-approved.kubernetes.io: unapproved}") + "}, spec: {group: " + pick("stable.example.com", "stable.example.com", "example", "stable.k8s.io") +
			", scope: " + pick("Namespaced", "Cluster", "X", `""`) + pick("", ", preserveUnknownFields: true") + ", names: {plural: " + pick("crontabs", "crontabs", "A", `""`) + ", kind: " + pick("CronTab", "CronTab", "Cron_", `""`) +
			pick("", ", listKind: CronTab", ", shortNames: [ct, A], categories: [all, A]") + "}" +
			pick("", ", conversion: {strategy: Webhook}", ", conversion: {strategy: X}", ", conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1, v1, x_], clientConfig: {url: 'http://a?b#c', caBundle: eA==}}}",
				", conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v7], clientConfig: {service: {name: svc, namespace: ns, path: a//b, port: 0}}}}", ", conversion: {strategy: None, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'https://a'}}}") +
			", versions: [" + versions + "]}}"
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	return crd
}

// errorTexts are the errors outside metadata that the server itself reports, each once, in order.
func errorTexts(errs field.ErrorList) []string {
	all := sets.New[string]()
	for _, err := range errs {
		text := err.Error()
		if slices.Contains([]string{"metadata.generation", "metadata.resourceVersion"}, err.Field) {
			continue
		}
		all.Insert(text)
	}
	return sets.List(all)
}

func internal(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	t.Helper()
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), out, nil); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDefinitionErrors compares the errors of random definitions and of their changes with upstream's.
func TestDefinitionErrors(t *testing.T) {
	k := skiff.CustomResourceDefinition
	valid, compared := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		old, crd := randomDefinition(t, r), randomDefinition(t, r)
		crd.ResourceVersion, old.ResourceVersion = "2", "1"
		created := crd.DeepCopy()
		created.ResourceVersion = ""
		got := k.Validate(nil, created, nil)
		want, ok := errorsOf(func() field.ErrorList {
			return validation.ValidateCustomResourceDefinition(context.Background(), internal(t, created))
		})
		if ok {
			compare(t, seed, "create", created, got, want)
		}
		if ok && len(want) == 0 {
			valid++
		}
		crd.Name, crd.Status = old.Name, old.Status
		if r.IntN(2) == 0 {
			old.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
		}
		if r.IntN(2) == 0 {
			crd.Spec.Versions = old.Spec.Versions
		}
		got = k.Validate(nil, crd, old)
		want, ok = errorsOf(func() field.ErrorList {
			return validation.ValidateCustomResourceDefinitionUpdate(context.Background(), internal(t, crd), internal(t, old))
		})
		if ok {
			compare(t, seed, "update", crd, got, want)
			compared += len(want)
		}
		if t.Failed() && seed > 200 {
			break
		}
	}
	if valid == 0 || compared < 1000 {
		t.Errorf("%d definitions are valid, %d errors were compared", valid, compared)
	}
}

// errorsOf returns upstream's errors. It panics at selectable fields of a schema that is not structural: ok is false.
func errorsOf(validate func() field.ErrorList) (errs field.ErrorList, ok bool) {
	defer func() { ok = recover() == nil }()
	return validate(), true
}

func compare(t *testing.T, seed uint64, what string, crd *apiextensionsv1.CustomResourceDefinition, got, want field.ErrorList) {
	t.Helper()
	g, w := errorTexts(got), errorTexts(want)
	if slices.Equal(g, w) {
		return
	}
	text, _ := json.Marshal(crd.Spec)
	t.Errorf("seed %d, %s of %s %s:", seed, what, crd.Name, text)
	for _, line := range g {
		if !slices.Contains(w, line) {
			t.Errorf("  only skiff:    %s", line)
		}
	}
	for _, line := range w {
		if !slices.Contains(g, line) {
			t.Errorf("  only upstream: %s", line)
		}
	}
}
