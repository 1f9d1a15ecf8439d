package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"skiff/internal/openapi"
)

// maxTypes bounds the types that the expressions are checked against, for each rule.
const maxTypes = 10

// typeChecker checks expressions against the schemas of built-in kinds, which skiff has, and of others, which it reads from the API server.
type typeChecker struct {
	discovery discovery.DiscoveryInterface
	log       *slog.Logger
}

// checkedType is a kind whose schema is known.
type checkedType struct {
	gvk      schema.GroupVersionKind
	declared *apiservercel.DeclType
}

// check returns a warning for each expression that does not compile with the type of one of the policy's resources.
func (c *typeChecker) check(policy *admissionregistrationv1.ValidatingAdmissionPolicy) ([]admissionregistrationv1.ExpressionWarning, error) {
	types, err := c.typesOf(policy)
	if err != nil {
		return nil, err
	}
	var envs []*typedEnv
	params, hasParams := c.paramsType(policy)
	for _, gvk := range types {
		declared, err := c.declType(gvk, "object")
		if err != nil || declared == nil {
			c.logMissing(gvk, err)
			continue
		}
		env, err := newTypedEnv(checkedType{gvk, declared}, params, hasParams, policy.Spec.Variables)
		if err != nil {
			c.log.Error("failed to make environment for type checking", "policy", policy.Name, "kind", gvk.String(), "error", err)
			continue
		}
		envs = append(envs, env)
	}
	var warnings []admissionregistrationv1.ExpressionWarning
	path := field.NewPath("spec", "validations")
	add := func(fldPath *field.Path, expression string) {
		if text := warningFor(envs, expression); text != "" {
			warnings = append(warnings, admissionregistrationv1.ExpressionWarning{FieldRef: fldPath.String(), Warning: text})
		}
	}
	for i := range policy.Spec.Validations {
		validation := &policy.Spec.Validations[i]
		add(path.Index(i).Child("expression"), validation.Expression)
		if validation.MessageExpression != "" {
			add(path.Index(i).Child("messageExpression"), validation.MessageExpression)
		}
	}
	return warnings, nil
}

// warningFor is the text of an expression's errors, one for each type; "" if there are none.
func warningFor(envs []*typedEnv, expression string) string {
	var texts []string
	for _, env := range envs {
		if issues := env.check(expression); issues != "" {
			texts = append(texts, fmt.Sprintf("%v: %s\n", env.gvk, issues))
		}
	}
	return strings.Join(texts, "\n")
}

// paramsType returns the type of the policy's params; nil if it is unknown.
func (c *typeChecker) paramsType(policy *admissionregistrationv1.ValidatingAdmissionPolicy) (declared *apiservercel.DeclType, hasParams bool) {
	kind := policy.Spec.ParamKind
	if kind == nil {
		return nil, false
	}
	gvk := schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind)
	declared, err := c.declType(gvk, "params")
	if err != nil {
		c.logMissing(gvk, err)
	}
	return declared, true
}

// logMissing logs why a type is not checked, unless it does not exist.
func (c *typeChecker) logMissing(gvk schema.GroupVersionKind, err error) {
	if err != nil && !errors.Is(err, resolver.ErrSchemaNotFound) {
		c.log.Warn("failed to read schema for type checking", "kind", gvk.String(), "error", err)
	}
}

// typesOf returns the kinds of the resources that the policy names, sorted. Wildcards and subresources are not checked.
func (c *typeChecker) typesOf(policy *admissionregistrationv1.ValidatingAdmissionPolicy) (_ []schema.GroupVersionKind, err error) {
	if policy.Spec.MatchConstraints == nil {
		return nil, nil
	}
	var found []schema.GroupVersionKind
	served := map[schema.GroupVersion]map[string]string{}
	for i := range policy.Spec.MatchConstraints.ResourceRules {
		rule := &policy.Spec.MatchConstraints.ResourceRules[i].Rule
		if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.APIVersions, "*") {
			continue
		}
		count := 0
		for _, group := range slices.Sorted(slices.Values(rule.APIGroups)) {
			for _, version := range slices.Sorted(slices.Values(rule.APIVersions)) {
				gv := schema.GroupVersion{Group: group, Version: version}
				if _, known := served[gv]; !known {
					if served[gv], err = c.kindsOf(gv); err != nil {
						return nil, err
					}
				}
				for _, resource := range slices.Sorted(slices.Values(rule.Resources)) {
					if kind := served[gv][resource]; kind != "" && count < maxTypes {
						found = append(found, gv.WithKind(kind))
						count++
					}
				}
			}
		}
	}
	slices.SortFunc(found, compareKinds)
	return slices.Compact(found), nil
}

func compareKinds(a, b schema.GroupVersionKind) int {
	if c := strings.Compare(a.Group, b.Group); c != 0 {
		return c
	}
	if c := strings.Compare(a.Version, b.Version); c != 0 {
		return c
	}
	return strings.Compare(a.Kind, b.Kind)
}

// kindsOf returns the kinds that the API server serves in a group and version, by resource. A version that is not served has none.
func (c *typeChecker) kindsOf(gv schema.GroupVersion) (map[string]string, error) {
	kinds := map[string]string{}
	list, err := c.discovery.ServerResourcesForGroupVersion(gv.String())
	if apierrors.IsNotFound(err) {
		return kinds, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover resources of %s: %w", gv, err)
	}
	for i := range list.APIResources {
		if resource := &list.APIResources[i]; !strings.Contains(resource.Name, "/") {
			kinds[resource.Name] = resource.Kind
		}
	}
	return kinds, nil
}

// declType returns the CEL type of a kind. The variable makes its name unique: object and params can be of the same kind.
func (c *typeChecker) declType(gvk schema.GroupVersionKind, variable string) (*apiservercel.DeclType, error) {
	found, err := c.schemaOf(gvk)
	if err != nil {
		return nil, err
	}
	declared := common.SchemaDeclType(&celopenapi.Schema{Schema: found}, true)
	if declared == nil {
		return nil, nil
	}
	return declared.MaybeAssignTypeName(variable + gvk.Kind), nil
}

// schemaOf returns the schema of a kind, without references.
func (c *typeChecker) schemaOf(gvk schema.GroupVersionKind) (*spec.Schema, error) {
	name := openapi.Name(gvk)
	definitions, err := openapi.Definitions(name)
	if err != nil { // not built in
		return (&resolver.ClientDiscoveryResolver{Discovery: c.discovery}).ResolveSchema(gvk)
	}
	const prefix = "#/components/schemas/"
	return resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
		found, ok := definitions[strings.TrimPrefix(ref, prefix)]
		return found, ok
	}, prefix+name)
}

// typedEnv is an environment in which object, oldObject and params have types.
type typedEnv struct {
	gvk      schema.GroupVersionKind
	compiler *plugincel.CompositedCompiler
}

func newTypedEnv(object checkedType, params *apiservercel.DeclType, hasParams bool, variables []admissionregistrationv1.Variable) (*typedEnv, error) {
	request, namespace := plugincel.BuildRequestType(), plugincel.BuildNamespaceType()
	declared := []*apiservercel.DeclType{namespace, request, object.declared}
	options := []celgo.EnvOption{
		celgo.Variable(plugincel.NamespaceVarName, namespace.CelType()), celgo.Variable(plugincel.RequestVarName, request.CelType()),
		celgo.Variable(plugincel.ObjectVarName, object.declared.CelType()), celgo.Variable(plugincel.OldObjectVarName, object.declared.CelType()),
		celgo.Variable(plugincel.AuthorizerVarName, library.AuthorizerType),
		celgo.Variable(plugincel.RequestResourceAuthorizerVarName, library.ResourceCheckType),
	}
	if hasParams {
		paramsType := celgo.DynType
		if params != nil {
			paramsType = params.CelType()
			declared = append(declared, params)
		}
		options = append(options, celgo.Variable(plugincel.ParamsVarName, paramsType))
	}
	envs, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: options, DeclTypes: declared,
	})
	if err != nil {
		return nil, err
	}
	env := &typedEnv{gvk: object.gvk}
	if env.compiler, err = plugincel.NewCompositedCompilerForTypeChecking(envs); err != nil {
		return nil, err
	}
	env.compiler.Compiler = env
	for i := range variables {
		env.compiler.CompileAndStoreVariable(&variable{&variables[i]}, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	}
	return env, nil
}

// check returns the errors of an expression, "" if there are none.
func (e *typedEnv) check(expression string) string {
	env, err := e.compiler.Env(environment.StoredExpressions)
	if err != nil {
		return fmt.Sprintf("type checking error: fail to build env: %v", err)
	}
	if _, issues := env.Compile(expression); issues != nil {
		return issues.String()
	}
	return ""
}

// CompileCELExpression implements plugincel.Compiler for variables: their types are those of their expressions.
func (e *typedEnv) CompileCELExpression(x plugincel.ExpressionAccessor, _ plugincel.OptionalVariableDeclarations, mode environment.Type) plugincel.CompilationResult {
	env, err := e.compiler.Env(mode)
	if err != nil {
		return plugincel.CompilationResult{Error: &apiservercel.Error{Type: apiservercel.ErrorTypeInternal, Detail: err.Error()}}
	}
	ast, issues := env.Compile(x.GetExpression())
	if issues != nil {
		return plugincel.CompilationResult{Error: &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: issues.String()}}
	}
	return plugincel.CompilationResult{OutputType: ast.OutputType()}
}

// variable is a variable of a policy for package plugincel.
type variable struct {
	*admissionregistrationv1.Variable
}

func (v *variable) GetName() string            { return v.Name }
func (v *variable) GetExpression() string      { return v.Expression }
func (v *variable) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType, celgo.DynType} }
