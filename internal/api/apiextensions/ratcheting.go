package apiextensions

import (
	"iter"
	"reflect"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"

	"skiff/internal/api/webhookconfig"
)

// allowances are the validations that a stored definition may violate (ratcheting), because it could not be updated otherwise.
type allowances struct {
	noSchema              bool             // versions without a schema
	nonStructural         bool             // schemas that are not structural
	unknownTypes          bool             // types that OpenAPI v3 does not have
	unprunedDefaults      bool             // defaults with fields that the schema does not have
	nonAtomicSets         bool             // sets of lists or maps that are not atomic
	invalidListKeys       bool             // keys of list items that may be absent or null
	unknownReviewVersions bool             // conversion reviews only in versions that are not known
	invalidCABundle       bool             // of the conversion webhook
	manySelectableFields  sets.Set[string] // versions with more than maxSelectableFields; "" is all versions
	unchangedSchemas      sets.Set[string] // versions whose schema has not changed: a rule of theirs may cost more than is allowed now
	stored                expressions      // may use what is only kept for stored expressions
}

// allowancesFor returns what the stored definition already violates.
func allowancesFor(crd, old *apiextensions.CustomResourceDefinition) allowances {
	spec := &old.Spec
	return allowances{
		noSchema:              !haveSchemas(spec),
		nonStructural:         anySchema(spec, isNonStructural),
		unknownTypes:          specContains(spec, hasUnknownType),
		unprunedDefaults:      anySchema(spec, hasUnprunedDefaults),
		nonAtomicSets:         specContains(spec, hasNonAtomicSet),
		invalidListKeys:       specContains(spec, func(s *apiextensions.JSONSchemaProps) bool { return len(validateListKeys(s, nil)) > 0 }),
		unknownReviewVersions: spec.Conversion != nil && len(spec.Conversion.ConversionReviewVersions) > 0 && !hasReviewVersion(spec.Conversion.ConversionReviewVersions),
		invalidCABundle:       mayHaveInvalidCABundle(old),
		manySelectableFields:  manySelectableFields(crd, old),
		unchangedSchemas:      unchangedSchemas(crd, old),
		stored:                expressionsOf(spec),
	}
}

func haveSchemas(spec *apiextensions.CustomResourceDefinitionSpec) bool {
	if spec.Validation != nil && spec.Validation.OpenAPIV3Schema != nil {
		return true
	}
	for _, version := range spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			return false
		}
	}
	return true
}

func isNonStructural(schema *apiextensions.JSONSchemaProps) bool {
	structural, err := structuralschema.NewStructural(schema)
	return err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0
}

func hasUnprunedDefaults(schema *apiextensions.JSONSchemaProps) bool {
	if !contains(schema, hasDefault) {
		return false
	}
	structural, err := structuralschema.NewStructural(schema)
	if err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0 {
		return false
	}
	pruned := structural.DeepCopy()
	return defaulting.PruneDefaults(pruned) == nil && !reflect.DeepEqual(structural, pruned)
}

// mayHaveInvalidCABundle: the bundle is not used before the definition is established, and one that was stored invalid is kept.
func mayHaveInvalidCABundle(old *apiextensions.CustomResourceDefinition) bool {
	if !apiextensions.IsCRDConditionTrue(old, apiextensions.Established) {
		return true
	}
	conversion := old.Spec.Conversion
	return conversion != nil && conversion.WebhookClientConfig != nil && len(conversion.WebhookClientConfig.CABundle) > 0 &&
		len(webhookconfig.ValidateCABundle(conversion.WebhookClientConfig.CABundle, field.NewPath("caBundle"))) > 0
}

func manySelectableFields(crd, old *apiextensions.CustomResourceDefinition) sets.Set[string] {
	found := sets.New[string]()
	add := func(version string, fields, oldFields []apiextensions.SelectableField) {
		if len(oldFields) > maxSelectableFields && equality.Semantic.DeepEqual(fields, oldFields) {
			found.Insert(version)
		}
	}
	add("", crd.Spec.SelectableFields, old.Spec.SelectableFields)
	for _, version := range crd.Spec.Versions {
		for _, oldVersion := range old.Spec.Versions {
			if version.Name == oldVersion.Name {
				add(version.Name, version.SelectableFields, oldVersion.SelectableFields)
			}
		}
	}
	return found
}

func unchangedSchemas(crd, old *apiextensions.CustomResourceDefinition) sets.Set[string] {
	found := sets.New[string]()
	for _, version := range crd.Spec.Versions {
		schema, err := apiextensions.GetSchemaForVersion(crd, version.Name)
		oldSchema, oldErr := apiextensions.GetSchemaForVersion(old, version.Name)
		if err == nil && oldErr == nil && equality.Semantic.DeepEqual(schema, oldSchema) {
			found.Insert(version.Name)
		}
	}
	return found
}

// expressions are the CEL expressions of a stored definition.
type expressions struct{ rules, messages sets.Set[string] }

func expressionsOf(spec *apiextensions.CustomResourceDefinitionSpec) expressions {
	found := expressions{rules: sets.New[string](), messages: sets.New[string]()}
	specContains(spec, func(s *apiextensions.JSONSchemaProps) bool {
		for _, rule := range s.XValidations {
			found.rules.Insert(rule.Rule)
			if rule.MessageExpression != "" {
				found.messages.Insert(rule.MessageExpression)
			}
		}
		return false
	})
	return found
}

// RuleEnv implements cel.EnvLoader.
func (e expressions) RuleEnv(envs *environment.EnvSet, expression string) *celgo.Env {
	return environmentFor(envs, e.rules.Has(expression))
}

// MessageExpressionEnv implements cel.EnvLoader.
func (e expressions) MessageExpressionEnv(envs *environment.EnvSet, expression string) *celgo.Env {
	return environmentFor(envs, e.messages.Has(expression))
}

func environmentFor(envs *environment.EnvSet, stored bool) *celgo.Env {
	if stored {
		return envs.StoredExpressionsEnv()
	}
	return envs.NewExpressionsEnv()
}

// anySchema reports whether a schema of the specification satisfies the predicate as a whole.
func anySchema(spec *apiextensions.CustomResourceDefinitionSpec, is func(*apiextensions.JSONSchemaProps) bool) bool {
	if spec.Validation != nil && spec.Validation.OpenAPIV3Schema != nil && is(spec.Validation.OpenAPIV3Schema) {
		return true
	}
	for _, version := range spec.Versions {
		if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil && is(version.Schema.OpenAPIV3Schema) {
			return true
		}
	}
	return false
}

// specContains reports whether a schema of the specification, or one inside, satisfies the predicate.
func specContains(spec *apiextensions.CustomResourceDefinitionSpec, is func(*apiextensions.JSONSchemaProps) bool) bool {
	return anySchema(spec, func(s *apiextensions.JSONSchemaProps) bool { return contains(s, is) })
}

// contains reports whether a schema, or one inside, satisfies the predicate, which must not keep its argument.
func contains(s *apiextensions.JSONSchemaProps, is func(*apiextensions.JSONSchemaProps) bool) bool {
	if is(s) {
		return true
	}
	for _, inner := range schemasInside(s) {
		if contains(inner, is) {
			return true
		}
	}
	return false
}

// schemasInside are the schemas that a schema contains, with what a path to them has besides the path to the schema. They must not be kept.
func schemasInside(s *apiextensions.JSONSchemaProps) iter.Seq2[string, *apiextensions.JSONSchemaProps] {
	return func(yield func(string, *apiextensions.JSONSchemaProps) bool) {
		ok := func(name string, inner *apiextensions.JSONSchemaProps) bool {
			return inner == nil || yield(name, inner)
		}
		all := func(name string, list []apiextensions.JSONSchemaProps) bool {
			for i := range list {
				if !ok(name, &list[i]) {
					return false
				}
			}
			return true
		}
		named := func(prefix string, schemas map[string]apiextensions.JSONSchemaProps) bool {
			for name := range schemas {
				if inner := schemas[name]; !ok(prefix+name, &inner) {
					return false
				}
			}
			return true
		}
		items := func() bool {
			return s.Items == nil || ok(".items", s.Items.Schema) && all(".items[]", s.Items.JSONSchemas)
		}
		values := func(name string, values *apiextensions.JSONSchemaPropsOrBool) bool {
			return values == nil || ok(name, values.Schema)
		}
		dependencies := func() bool {
			for name, dependency := range s.Dependencies {
				if !ok(".dependencies[]"+name, dependency.Schema) {
					return false
				}
			}
			return true
		}
		_ = ok(".not", s.Not) && all(".allOf[]", s.AllOf) && all(".anyOf[]", s.AnyOf) && all(".oneOf[]", s.OneOf) && items() &&
			values(".additionalProperties", s.AdditionalProperties) && values(".additionalItems", s.AdditionalItems) &&
			named(".properties[]", s.Properties) && named(".patternProperties[]", s.PatternProperties) && named(".definitions[]", s.Definitions) && dependencies()
	}
}

func hasDefault(s *apiextensions.JSONSchemaProps) bool { return s.Default != nil }

func hasExtension(s *apiextensions.JSONSchemaProps) bool {
	return s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString || len(s.XListMapKeys) > 0 || s.XListType != nil || len(s.XValidations) > 0
}
