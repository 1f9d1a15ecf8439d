package apiextensions

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The limits of the estimated cost of CEL rules, in units of CEL's cost model.
const (
	maxRuleCost  = 10_000_000  // of one expression
	maxTotalCost = 100_000_000 // of all expressions of a schema
	// notedCost is the cost from which a rule is named when the total is exceeded, and maxNoted is how many are.
	notedCost = maxTotalCost / 100
	maxNoted  = 4
)

var ruleReasons = []string{
	string(apiextensions.FieldValueDuplicate), string(apiextensions.FieldValueForbidden), string(apiextensions.FieldValueInvalid), string(apiextensions.FieldValueRequired),
}

// validateRules validates the rules of a schema without compiling them.
func (v *validator) validateRules(s *apiextensions.JSONSchemaProps, n node) field.ErrorList {
	var errs field.ErrorList
	var structural *structuralschema.Structural
	if slices.ContainsFunc(s.XValidations, func(rule apiextensions.ValidationRule) bool { return rule.FieldPath != "" }) {
		structural = v.structuralOf(s, n)
	}
	for i := range s.XValidations {
		errs = append(errs, validateRule(&s.XValidations[i], structural, n.path.Child("x-kubernetes-validations").Index(i))...)
	}
	return errs
}

// validateRule validates a rule without compiling it. structural is the schema with the rule, nil if it is not known.
func validateRule(rule *apiextensions.ValidationRule, structural *structuralschema.Structural, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	expression, message := strings.TrimSpace(rule.Rule), strings.TrimSpace(rule.Message)
	switch {
	case expression == "":
		errs = append(errs, field.Required(path.Child("rule"), "rule is not specified"))
	case rule.Message != "" && message == "":
		errs = append(errs, field.Invalid(path.Child("message"), rule.Message, "must be non-empty if specified"))
	case hasLineBreak(message):
		errs = append(errs, field.Invalid(path.Child("message"), rule.Message, "must not contain line breaks"))
	case hasLineBreak(expression) && message == "":
		errs = append(errs, field.Required(path.Child("message"), "message must be specified if rule contains line breaks"))
	}
	if rule.MessageExpression != "" && strings.TrimSpace(rule.MessageExpression) == "" {
		errs = append(errs, field.Required(path.Child("messageExpression"), "messageExpression must be non-empty if specified"))
	}
	if rule.Reason != nil && !slices.Contains(ruleReasons, string(*rule.Reason)) {
		errs = append(errs, field.NotSupported(path.Child("reason"), *rule.Reason, ruleReasons))
	}
	if rule.FieldPath == "" {
		return errs
	}
	if strings.TrimSpace(rule.FieldPath) == "" {
		errs = append(errs, field.Invalid(path.Child("fieldPath"), rule.FieldPath, "must be non-empty if specified"))
	}
	if hasLineBreak(rule.FieldPath) {
		errs = append(errs, field.Invalid(path.Child("fieldPath"), rule.FieldPath, "must not contain line breaks"))
	}
	if structural != nil {
		if _, _, err := resolvePath(rule.FieldPath, structural); err != nil {
			errs = append(errs, field.Invalid(path.Child("fieldPath"), rule.FieldPath, "must be a valid path"))
		}
	}
	return errs
}

// maxConversions bounds how many schemas are converted for themselves, because each conversion costs as much as everything inside.
const maxConversions = 100

// structuralOf returns the structural form of a schema, nil if it has none. It is a part of the root's, if the root has one and the schema is
// not in a condition (allOf, not and so on). Otherwise the definition is refused in any case: field paths are then checked as far as
// maxConversions allows.
func (v *validator) structuralOf(s *apiextensions.JSONSchemaProps, n node) *structuralschema.Structural {
	if n.structural != nil {
		return n.structural
	}
	if v.conversions++; v.conversions > maxConversions {
		return nil
	}
	structural, err := structuralschema.NewStructural(s)
	if err != nil {
		return nil
	}
	return structural
}

// resolvePath returns the schema that a path leads to. The library panics at a path into a map whose values have no schema.
func resolvePath(text string, schema *structuralschema.Structural, options ...cel.ValidFieldPathOption) (path *field.Path, found *structuralschema.Structural, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("does not refer to a valid field")
		}
	}()
	return cel.ValidFieldPath(text, schema, options...)
}

func hasLineBreak(text string) bool { return strings.ContainsAny(text, "\n\r") }

// rules compiles the rules of a schema and estimates their cost.
func (v *validator) rules(s *apiextensions.JSONSchemaProps, n node) field.ErrorList {
	list := n.path.Child("x-kubernetes-validations")
	info, err := n.rules.typeInfo()
	if err != nil {
		return field.ErrorList{field.InternalError(list, fmt.Errorf("internal error: failed to construct type information for x-kubernetes-validations rules: %s", err))}
	}
	if info == nil {
		return field.ErrorList{field.InternalError(list, errors.New("internal error: failed to retrieve type information for x-kubernetes-validations"))}
	}
	envs := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	results, err := cel.Compile(info.schema, info.declared, celconfig.PerCallLimit, envs, v.allow.stored)
	if err != nil {
		return field.ErrorList{field.InternalError(list, err)}
	}
	var errs field.ErrorList
	for i := range results {
		errs = append(errs, compiledRule{rule: &s.XValidations[i], result: &results[i], path: list.Index(i), node: n}.validate()...)
	}
	return errs
}

// compiledRule is a rule with the result of its compilation.
type compiledRule struct {
	rule   *apiextensions.ValidationRule
	result *cel.CompilationResult
	path   *field.Path
	node   node
}

func (c compiledRule) validate() field.ErrorList {
	var errs field.ErrorList
	path := c.path.Child("rule")
	cost := c.node.rules.cost(c.result)
	if !c.node.unchanged && cost > maxRuleCost {
		errs = append(errs, field.Forbidden(path, costMessage("estimated rule cost", cost, maxRuleCost)))
	}
	c.node.rules.total.add(path, cost)
	switch err := c.result.Error; {
	case err == nil:
	case err.Type == apiservercel.ErrorTypeRequired:
		errs = append(errs, field.Required(path, err.Detail))
	default:
		errs = append(errs, field.Invalid(path, *c.rule, err.Detail))
	}
	errs = append(errs, c.validateMessage()...)
	switch {
	case c.result.UsesOldSelf && c.node.uncorrelatable != nil:
		errs = append(errs, field.Invalid(path, c.rule.Rule, fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v", c.node.uncorrelatable)))
	case !c.result.UsesOldSelf && c.rule.OptionalOldSelf != nil:
		errs = append(errs, field.Invalid(c.path.Child("optionalOldSelf"), *c.rule.OptionalOldSelf, "may not be set if oldSelf is not used in rule"))
	}
	return errs
}

// validateMessage validates the expression of the rule's message.
func (c compiledRule) validateMessage() field.ErrorList {
	path := c.path.Child("messageExpression")
	if err := c.result.MessageExpressionError; err != nil {
		return field.ErrorList{field.Invalid(path, *c.rule, err.Detail)}
	}
	if c.result.MessageExpression == nil {
		return nil
	}
	cost := c.result.MessageExpressionMaxCost
	c.node.rules.total.add(path, cost)
	if !c.node.unchanged && cost > maxRuleCost {
		return field.ErrorList{field.Forbidden(path, costMessage("estimated messageExpression cost", cost, maxRuleCost))}
	}
	return nil
}

func costMessage(what string, cost, limit uint64) string {
	factor := float64(cost) / float64(limit)
	text := "more than 100x"
	switch {
	case factor > 100:
	case factor < 1.5:
		text = fmt.Sprintf("%fx", factor)
	default:
		text = fmt.Sprintf("%.1fx", factor)
	}
	return fmt.Sprintf("%s exceeds budget by factor of %s (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)", what, text)
}

// ruleScope is what the rules of a schema depend on: the types of its values, and how many there can be in an object.
type ruleScope struct {
	parent *ruleScope
	schema *apiextensions.JSONSchemaProps // nil where the parent has none
	// select returns the type of this schema from that of the parent, nil if it has none.
	fromParent func(*typeInfo) *typeInfo
	// within: this schema or one around it has rules. Types are needed nowhere else.
	within bool
	// cardinality bounds the number of values, by the limits of all lists and maps around them; nil: there is no bound.
	cardinality *uint64
	total       *totalCost

	info *typeInfo
	err  error
}

// typeInfo is the type of a schema's values.
type typeInfo struct {
	schema   *structuralschema.Structural
	declared *apiservercel.DeclType
}

func newRuleScope(schema *apiextensions.JSONSchemaProps) *ruleScope {
	one := uint64(1)
	return &ruleScope{schema: schema, within: len(schema.XValidations) > 0, cardinality: &one, total: &totalCost{}}
}

// typeInfo returns the type of the values. It is taken from the parent's if possible, because making it of a schema is expensive.
func (r *ruleScope) typeInfo() (*typeInfo, error) {
	if r == nil || !r.within || r.info != nil || r.err != nil {
		if r == nil {
			return nil, nil
		}
		return r.info, r.err
	}
	if r.parent != nil {
		outer, err := r.parent.typeInfo()
		if err != nil {
			r.err = err
			return nil, err
		}
		if outer != nil {
			if r.info = r.fromParent(outer); r.info != nil {
				return r.info, nil
			}
		}
	}
	r.info, r.err = newTypeInfo(r.schema, r.parent == nil || r.schema.XEmbeddedResource)
	return r.info, r.err
}

func newTypeInfo(schema *apiextensions.JSONSchemaProps, isResource bool) (*typeInfo, error) {
	structural, err := structuralschema.NewStructural(schema)
	if err != nil {
		return nil, err
	}
	declared := model.SchemaDeclType(structural, isResource)
	if declared == nil {
		return nil, errors.New("unable to convert structural schema to CEL declarations")
	}
	return &typeInfo{schema: structural, declared: declared}, nil
}

// property is the scope of a property. Properties whose names CEL cannot express have no type there.
func (r *ruleScope) property(schema *apiextensions.JSONSchemaProps, name string) *ruleScope {
	return r.inside(schema, func(outer *typeInfo) *typeInfo {
		escaped, ok := apiservercel.Escape(name)
		if !ok || outer.schema.Properties == nil {
			return nil
		}
		declared, ok := outer.declared.Fields[escaped]
		if !ok {
			return nil
		}
		property := outer.schema.Properties[name]
		return &typeInfo{schema: &property, declared: declared.Type}
	})
}

func (r *ruleScope) additionalProperties(schema *apiextensions.JSONSchemaProps) *ruleScope {
	return r.inside(schema, func(outer *typeInfo) *typeInfo {
		if outer.schema.AdditionalProperties == nil {
			return nil
		}
		return &typeInfo{schema: outer.schema.AdditionalProperties.Structural, declared: outer.declared.ElemType}
	})
}

func (r *ruleScope) items(schema *apiextensions.JSONSchemaProps) *ruleScope {
	return r.inside(schema, func(outer *typeInfo) *typeInfo {
		if outer.schema.Items == nil {
			return nil
		}
		return &typeInfo{schema: outer.schema.Items, declared: outer.declared.ElemType}
	})
}

// inside is the scope of a schema inside this one; nil where rules are not validated.
func (r *ruleScope) inside(schema *apiextensions.JSONSchemaProps, fromParent func(*typeInfo) *typeInfo) *ruleScope {
	if r == nil || schema == nil {
		return nil
	}
	inner := &ruleScope{parent: r, schema: schema, fromParent: fromParent, within: r.within || len(schema.XValidations) > 0, total: r.total}
	if limit := maxElements(r.schema); r.cardinality != nil && limit != nil {
		product := multiply(*r.cardinality, *limit)
		inner.cardinality = &product
	}
	return inner
}

// maxElements is how many values of an inner schema a value of this schema has at most; nil: there is no limit.
func maxElements(s *apiextensions.JSONSchemaProps) *uint64 {
	limit, one := s.MaxItems, uint64(1)
	switch {
	case s.Type == "object" && s.AdditionalProperties != nil:
		limit = s.MaxProperties
	case s.Type != "array":
		return &one
	}
	if limit == nil {
		return nil
	}
	count := uint64(max(*limit, 0))
	return &count
}

// multiply returns the largest number on overflow.
func multiply(a, b uint64) uint64 {
	if a != 0 && math.MaxUint/a < b {
		return math.MaxUint
	}
	return a * b
}

// cost is the estimated cost of a rule for a whole object.
func (r *ruleScope) cost(result *cel.CompilationResult) uint64 {
	if r.cardinality != nil {
		return multiply(result.MaxCost, *r.cardinality)
	}
	return multiply(result.MaxCost, result.MaxCardinality)
}

// totalCost is the cost of all rules of a schema.
type totalCost struct {
	sum   uint64
	noted []ruleCost // the most expensive ones, the first most
}

type ruleCost struct {
	path *field.Path
	cost uint64
}

func (t *totalCost) add(path *field.Path, cost uint64) {
	t.sum = add(t.sum, cost)
	if cost < notedCost {
		return
	}
	t.noted = append(t.noted, ruleCost{path, cost})
	slices.SortStableFunc(t.noted, func(a, b ruleCost) int { return cmp.Compare(b.cost, a.cost) })
	t.noted = t.noted[:min(len(t.noted), maxNoted)]
}

// validateTotal validates the cost of all rules of a schema.
func (r *ruleScope) validateTotal(path *field.Path) field.ErrorList {
	if r == nil || r.total.sum <= maxTotalCost {
		return nil
	}
	var errs field.ErrorList
	for _, rule := range r.total.noted {
		errs = append(errs, field.Forbidden(rule.path, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"))
	}
	return append(errs, field.Forbidden(path, costMessage("x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", r.total.sum, maxTotalCost)))
}
