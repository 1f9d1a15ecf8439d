package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// expression is a CEL expression and its allowed result types. A variable has a name too.
type expression struct {
	name    string
	text    string
	returns []*cel.Type
}

func (e *expression) GetName() string          { return e.name }
func (e *expression) GetExpression() string    { return e.text }
func (e *expression) ReturnTypes() []*cel.Type { return e.returns }

func boolean(text string) *expression {
	return &expression{text: text, returns: []*cel.Type{cel.BoolType}}
}

// stateless compiles expressions without variables. It is slow to build and takes memory, so it is built for the first
// expression that needs it.
var stateless = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// composed compiles expressions that can use the variables compiled before them, so every policy needs a new one.
func composed() (*plugincel.CompositedCompiler, error) {
	return plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
}

// checker compiles the expressions of one object.
type checker struct {
	compiler plugincel.Compiler
	// stored are the object's stored expressions. They may use what an older server allowed.
	stored sets.Set[string]
	params bool
}

func (c *checker) check(e *expression, declarations plugincel.OptionalVariableDeclarations, path *field.Path) field.ErrorList {
	return failure(c.compiler.CompileCELExpression(e, declarations, c.mode(e)), e, path)
}

func (c *checker) mode(e *expression) environment.Type {
	if c.stored.Has(e.text) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

func failure(result plugincel.CompilationResult, e *expression, path *field.Path) field.ErrorList {
	if result.Error == nil {
		return nil
	}
	switch result.Error.Type {
	case apiservercel.ErrorTypeRequired:
		return field.ErrorList{field.Required(path, result.Error.Detail)}
	case apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(path, e.text, result.Error.Detail)}
	}
	return field.ErrorList{field.InternalError(path, result.Error)}
}

// validateVariables compiles the variables in order; each may use the ones before it.
func (c *checker) validateVariables(variables []admissionregistrationv1.Variable, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range variables {
		variable, path := &variables[i], path.Index(i)
		if strings.TrimSpace(variable.Name) == "" {
			errs = append(errs, field.Required(path.Child("name"), "name is not specified"))
		} else if !isIdentifier(variable.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), variable.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(variable.Expression) == "" {
			errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
			continue
		}
		composing, ok := c.compiler.(*plugincel.CompositedCompiler)
		if !ok {
			errs = append(errs, field.InternalError(path, fmt.Errorf("variable composition is not allowed")))
			continue
		}
		e := &expression{name: variable.Name, text: variable.Expression, returns: []*cel.Type{cel.AnyType, cel.DynType}}
		result := composing.CompileAndStoreVariable(e, plugincel.OptionalVariableDeclarations{HasParams: c.params, HasAuthorizer: true}, c.mode(e))
		errs = append(errs, failure(result, e, path.Child("expression"))...)
	}
	return errs
}

var identifier = regexp.MustCompile("^[_a-zA-Z][_a-zA-Z0-9]*$")

var reserved = []string{
	"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
	"loop", "package", "namespace", "return", "var", "void", "while",
}

func isIdentifier(name string) bool {
	return identifier.MatchString(name) && !slices.Contains(reserved, name)
}

const maxMatchConditions = 64

// validateMatchConditions: match conditions are evaluated before variables exist, so they compile without them.
func validateMatchConditions(conditions []admissionregistrationv1.MatchCondition, stored sets.Set[string], params bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxMatchConditions {
		errs = append(errs, field.TooMany(path, len(conditions), maxMatchConditions))
	}
	names := sets.New[string]()
	for i := range conditions {
		condition, path := &conditions[i], path.Index(i)
		if text := strings.TrimSpace(condition.Expression); text == "" {
			errs = append(errs, field.Required(path.Child("expression"), ""))
		} else {
			c := checker{compiler: stateless(), stored: stored}
			errs = append(errs, c.check(boolean(text), plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, path.Child("expression"))...)
		}
		if condition.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
			continue
		}
		for _, message := range utilvalidation.IsQualifiedName(condition.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), condition.Name, message))
		}
		if names.Has(condition.Name) {
			errs = append(errs, field.Duplicate(path.Child("name"), condition.Name))
		}
		names.Insert(condition.Name)
	}
	return errs
}

// sameConditions reports that there is nothing new to compile.
func sameConditions(kind, oldKind *admissionregistrationv1.ParamKind, conditions, old []admissionregistrationv1.MatchCondition) bool {
	return equality.Semantic.DeepEqual(kind, oldKind) && equality.Semantic.DeepEqual(conditions, old)
}
