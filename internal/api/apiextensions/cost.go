package apiextensions

import (
	"fmt"
	"math"
	"regexp/syntax"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Schemas are bounded before anything is made of them. Upstream bounds only what an evaluation of all rules may cost, not their compilation: a
// definition of 3 MB can have a hundred thousand rules, and the library compiles the rules below a default once more for each default around
// them.
const (
	// maxCompileCost bounds the estimated work of compiling all schemas of a definition; a unit allocates about 4 KiB. HTTPRoute of the
	// Gateway API, which has many rules, needs 18,000.
	maxCompileCost = 500_000
	// scopeCost is that of a schema with rules, expressionCost that of an expression besides its length, and expressionBytes is how many of its
	// characters cost a unit.
	scopeCost, expressionCost, expressionBytes = 50, 12, 4
	// patternInstructions is how many instructions of a compiled pattern cost a unit: compiled patterns are kept.
	patternInstructions = 2
	// maxPathBytes bounds the length of the paths of all schemas of a definition: each error has a path.
	maxPathBytes = 32 << 20
)

// compileCost is the work of compiling a schema and those inside.
type compileCost struct {
	schemas uint64 // the number of schemas
	rules   uint64 // of compiling their rules
	total   uint64 // of everything, with the rules and schemas below defaults as often as they are compiled
	paths   uint64 // the length of their paths
}

func (c *compileCost) add(other compileCost) {
	c.schemas, c.rules = add(c.schemas, other.schemas), add(c.rules, other.rules)
	c.total, c.paths = add(c.total, other.total), add(c.paths, other.paths)
}

// compileCostOf estimates the cost of a schema whose path has a length.
func compileCostOf(s *apiextensions.JSONSchemaProps, path int) compileCost {
	cost := compileCost{schemas: 1, paths: uint64(path)}
	for name, inner := range schemasInside(s) {
		cost.add(compileCostOf(inner, path+len(name)))
	}
	own := uint64(1)
	if s.Pattern != "" {
		own = add(own, patternCost(s.Pattern))
	}
	if n := len(s.XValidations); n > 0 {
		rules := add(scopeCost, cost.schemas) // the types of all schemas inside are declared
		for i := range s.XValidations {
			rule := &s.XValidations[i]
			rules += expressionCost + uint64(len(rule.Rule)/expressionBytes)
			if rule.MessageExpression != "" {
				rules += expressionCost + uint64(len(rule.MessageExpression)/expressionBytes)
			}
		}
		cost.rules, own = add(cost.rules, rules), add(own, rules)
	}
	if s.Default != nil {
		own = add(own, add(cost.schemas, cost.rules))
	}
	cost.total = add(cost.total, own)
	return cost
}

// patternCost estimates the cost of a compiled regular expression. An invalid one is not compiled.
func patternCost(pattern string) uint64 {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return instructions(parsed) / patternInstructions
}

// instructions estimates the number of instructions of a regular expression, in which repetitions are written out.
func instructions(re *syntax.Regexp) uint64 {
	const rangesPerInstruction = 10
	count := uint64(1 + len(re.Rune)/rangesPerInstruction)
	if re.Op == syntax.OpLiteral {
		count = uint64(len(re.Rune))
	}
	for _, inner := range re.Sub {
		count = add(count, instructions(inner))
	}
	if re.Op == syntax.OpRepeat {
		count = multiply(count, uint64(max(re.Min, re.Max, 1)))
	}
	return count
}

// add returns the largest number on overflow.
func add(a, b uint64) uint64 {
	if math.MaxUint64-a < b {
		return math.MaxUint64
	}
	return a + b
}

// compileCost validates that all schemas can be compiled at a bounded cost. Schemas that have not changed are not counted.
func (v *validator) compileCost(spec *apiextensions.CustomResourceDefinitionSpec, path *field.Path) field.ErrorList {
	var sum compileCost
	check := func(schema *apiextensions.CustomResourceValidation, version string, path *field.Path) field.ErrorList {
		if schema == nil || schema.OpenAPIV3Schema == nil || v.allow.unchangedSchemas.Has(version) {
			return nil
		}
		path = path.Child("openAPIV3Schema")
		sum.add(compileCostOf(schema.OpenAPIV3Schema, len(path.String())))
		switch {
		case sum.total > maxCompileCost:
			return field.ErrorList{field.Forbidden(path, fmt.Sprintf("estimated cost of compiling the schemas of all versions is %d and exceeds the limit of %d "+
				"(try fewer x-kubernetes-validations, fewer defaults inside of defaults, or smaller patterns)", sum.total, maxCompileCost))}
		case sum.paths > maxPathBytes:
			return field.ErrorList{field.Forbidden(path, fmt.Sprintf("the paths of all fields have %d characters in total, more than %d", sum.paths, maxPathBytes))}
		}
		return nil
	}
	if errs := check(spec.Validation, spec.Version, path.Child("validation")); len(errs) > 0 {
		return errs
	}
	for i := range spec.Versions {
		version := &spec.Versions[i]
		if errs := check(version.Schema, version.Name, path.Child("versions").Index(i).Child("schema")); len(errs) > 0 {
			return errs
		}
	}
	return nil
}
