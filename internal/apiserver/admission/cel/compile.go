// Package cel evaluates the CEL expressions of admission: match conditions of webhooks, and match conditions, variables,
// validations and mutations of policies. Expressions mean what they mean upstream: the environment, its libraries and the cost of
// each operation are those of k8s.io/apiserver/pkg/cel.
//
// Expressions are compiled once (Compiler, Expression) and evaluated against a Version: the written object in one API version, with
// the request it belongs to. A Version makes each value when an expression first reads it. Typed objects are not converted: an
// expression walks the Go struct.
package cel

import (
	"fmt"
	"math"
	"sync"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/traits"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/utils/lru"
)

// Scope is what an expression can use besides object, oldObject, request and namespaceObject.
type Scope struct {
	Params     bool // params, which can be null
	Authorizer bool // authorizer and authorizer.requestResource
	Patches    bool // the types of mutations: Object and JSONPatch
}

// Expression is a compiled expression. It is safe for concurrent use. An expression that does not compile is an Expression too: its
// evaluation fails, and the failure policy decides what that means.
type Expression struct {
	Text    string
	program celgo.Program
	err     *apiservercel.Error
	output  *celgo.Type
}

// Err is the error of the compilation.
func (e *Expression) Err() error {
	if e.err == nil {
		return nil
	}
	return e.err
}

// Compiler compiles the expressions of one policy.
type Compiler struct {
	variables *Variables
	envs      map[Scope]*celgo.Env // with the variables; the environments without are shared
}

// Variables are the compiled variables of a policy. The zero value has none.
type Variables struct {
	declared    *apiservercel.DeclType
	expressions map[string]*Expression
	names       []string
}

// variablesType is the name of the type of the variable "variables" in error messages.
const variablesType = "kubernetes.variables"

// NewCompiler compiles variables, each of which can use those before it, and returns the compiler of the expressions that use them.
func NewCompiler(variables []admissionregistrationv1.Variable, scope Scope) *Compiler {
	c := &Compiler{variables: &Variables{}}
	if len(variables) == 0 {
		return c
	}
	c.envs = map[Scope]*celgo.Env{}
	c.variables.declared = apiservercel.NewObjectType(variablesType, map[string]*apiservercel.DeclField{})
	c.variables.expressions = make(map[string]*Expression, len(variables))
	for i := range variables {
		name := variables[i].Name
		compiled := c.Compile(variables[i].Expression, scope, celgo.AnyType)
		c.variables.declared.Fields[name] = apiservercel.NewDeclField(name, declType(compiled.output), true, nil, nil)
		if c.variables.expressions[name] == nil {
			c.variables.names = append(c.variables.names, name)
		}
		c.variables.expressions[name] = compiled
	}
	return c
}

// Variables returns the policy's variables.
func (c *Compiler) Variables() *Variables { return c.variables }

// maxCompiled bounds the expressions without variables that are kept compiled. Policies and webhooks keep their own; the cache serves
// those that are compiled again because another part of their object has changed.
const maxCompiled = 1024

var expressionCache = lru.New(maxCompiled)

type compiledKey struct {
	text    string
	scope   Scope
	returns string
}

// Compile compiles an expression that evaluates to one of the types.
func (c *Compiler) Compile(text string, scope Scope, returns ...*celgo.Type) *Expression {
	if c.envs != nil {
		env, err := c.env(scope)
		return compile(text, env, err, returns)
	}
	key := compiledKey{text, scope, fmt.Sprint(returns)}
	if known, ok := expressionCache.Get(key); ok {
		return known.(*Expression)
	}
	env, err := sharedEnv(scope)
	e := compile(text, env, err, returns)
	expressionCache.Add(key, e)
	return e
}

func (c *Compiler) env(scope Scope) (*celgo.Env, error) {
	if env := c.envs[scope]; env != nil {
		return env, nil
	}
	env, err := newEnv(scope, c.variables.declared)
	if err == nil {
		c.envs[scope] = env
	}
	return env, err
}

func compile(text string, env *celgo.Env, err error, returns []*celgo.Type) *Expression {
	e := &Expression{Text: text}
	fail := func(kind apiservercel.ErrorType, cause error, format string, args ...any) *Expression {
		e.err = &apiservercel.Error{Type: kind, Detail: fmt.Sprintf(format, args...), Cause: cause}
		return e
	}
	if err != nil {
		return fail(apiservercel.ErrorTypeInternal, nil, "unexpected error loading CEL environment: %v", err)
	}
	ast, issues := env.Compile(text)
	if issues != nil {
		return fail(apiservercel.ErrorTypeInvalid, apiservercel.NewCompilationError(issues), "compilation failed: %s", issues)
	}
	if !returnsOneOf(ast.OutputType(), returns) {
		if len(returns) == 1 {
			return fail(apiservercel.ErrorTypeInvalid, nil, "must evaluate to %v but got %v", returns[0], ast.OutputType())
		}
		return fail(apiservercel.ErrorTypeInvalid, nil, "must evaluate to one of %v but got %v", returns, ast.OutputType())
	}
	if e.program, err = env.Program(ast, celgo.InterruptCheckFrequency(celconfig.CheckFrequency)); err != nil {
		return fail(apiservercel.ErrorTypeInternal, nil, "program instantiation failed: %v", err)
	}
	e.output = ast.OutputType()
	return e
}

func returnsOneOf(output *celgo.Type, returns []*celgo.Type) bool {
	for _, want := range returns {
		if output.IsExactType(want) || celgo.AnyType.IsExactType(want) {
			return true
		}
	}
	return false
}

var (
	requestType   = sync.OnceValue(plugincel.BuildRequestType)
	namespaceType = sync.OnceValue(plugincel.BuildNamespaceType)
	// shared are the environments without variables. There are eight at most.
	shared   = map[Scope]*celgo.Env{}
	sharedMu sync.Mutex // guards shared
)

// sharedEnv returns an environment without variables. It is made on first use: it is slow to make.
func sharedEnv(scope Scope) (*celgo.Env, error) {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if env := shared[scope]; env != nil {
		return env, nil
	}
	env, err := newEnv(scope, nil)
	if err == nil {
		shared[scope] = env
	}
	return env, err
}

// newEnv extends upstream's environment for stored expressions, which has all libraries.
func newEnv(scope Scope, variables *apiservercel.DeclType) (*celgo.Env, error) {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv()
	options := []celgo.EnvOption{
		celgo.Variable(plugincel.ObjectVarName, celgo.DynType),
		celgo.Variable(plugincel.OldObjectVarName, celgo.DynType),
		celgo.Variable(plugincel.NamespaceVarName, namespaceType().CelType()),
		celgo.Variable(plugincel.RequestVarName, requestType().CelType()),
	}
	declared := []*apiservercel.DeclType{namespaceType(), requestType()}
	if scope.Params {
		options = append(options, celgo.Variable(plugincel.ParamsVarName, celgo.DynType))
	}
	if scope.Authorizer {
		options = append(options, celgo.Variable(plugincel.AuthorizerVarName, library.AuthorizerType),
			celgo.Variable(plugincel.RequestResourceAuthorizerVarName, library.ResourceCheckType))
	}
	if variables != nil {
		options = append(options, celgo.Variable(plugincel.VariableVarName, variables.CelType()))
		declared = append(declared, variables)
	}
	provider := apiservercel.NewDeclTypeProvider(declared...)
	provider.SetRecognizeKeywordAsFieldName(true)
	providerOptions, err := provider.EnvOptions(base.CELTypeProvider())
	if err != nil {
		return nil, err
	}
	env, err := base.Extend(append(options, providerOptions...)...)
	if err != nil || !scope.Patches {
		return env, err
	}
	// The resolver of the types of mutations wraps the type provider of the environment it extends.
	return env.Extend(common.ResolverEnvOption(&mutation.DynamicTypeResolver{}), environment.UnversionedLib(library.JSONPatch))
}

// declType is the type of a variable for the expressions that use it. Lists and maps keep the types of their elements.
func declType(t *celgo.Type) *apiservercel.DeclType {
	if t == nil {
		return apiservercel.DynType
	}
	if scalar, ok := scalarTypes[t]; ok {
		return scalar
	}
	if t.HasTrait(traits.ContainerType) && t.HasTrait(traits.IndexerType) {
		switch parameters := t.Parameters(); len(parameters) {
		case 1:
			return apiservercel.NewListType(declType(parameters[0]), -1)
		case 2:
			return apiservercel.NewMapType(declType(parameters[0]), declType(parameters[1]), -1)
		}
	}
	return apiservercel.DynType
}

var scalarTypes = map[*celgo.Type]*apiservercel.DeclType{
	celgo.AnyType: apiservercel.AnyType, celgo.BoolType: apiservercel.BoolType, celgo.BytesType: apiservercel.BytesType,
	celgo.DoubleType: apiservercel.DoubleType, celgo.DurationType: apiservercel.DurationType, celgo.IntType: apiservercel.IntType,
	celgo.NullType: apiservercel.NullType, celgo.StringType: apiservercel.StringType, celgo.TimestampType: apiservercel.TimestampType,
	celgo.UintType: apiservercel.UintType,
}

// clampCost converts a cost of the interpreter to that of budgets.
func clampCost(cost uint64) int64 {
	if cost > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(cost)
}
