package cel

import (
	"context"
	"fmt"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/lazy"
)

// Evaluation evaluates the expressions of one policy or webhook against one Version. The expressions share a budget: the sum of their
// costs must not exceed it. It is not safe for concurrent use.
type Evaluation struct {
	Version *Version
	// Resource is the one that the rule matched; expressions see it as request.resource.
	Resource schema.GroupVersionResource
	Params   *Params // nil for null
	// Budget is the cost that is left.
	Budget int64
	// WithoutAuthorizer and WithoutNamespace hide what the expressions may not use.
	WithoutAuthorizer, WithoutNamespace bool
	// Copied makes object and oldObject plain maps. Mutations need it, because parts of the object become parts of the result.
	Copied    bool
	Variables *Variables

	context   context.Context
	variables ref.Val
	// variablesCost is the cost of the variables that the current expression was the first to read.
	variablesCost int64
}

// Result is the result of one expression.
type Result struct {
	Value   ref.Val
	Elapsed time.Duration
	// Err is the expression's own error. Others can still be evaluated.
	Err error
}

// Evaluate evaluates an expression. An error means that no other expression can be evaluated: the budget is exhausted.
func (e *Evaluation) Evaluate(ctx context.Context, x *Expression) (Result, error) {
	var result Result
	if x.err != nil {
		result.Err = &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: "compilation error: " + x.err.Error(), Cause: x.err}
		return result, nil
	}
	e.context = ctx
	began := time.Now()
	value, details, err := x.program.ContextEval(ctx, e)
	result.Elapsed = time.Since(began)
	cost := e.variablesCost
	e.variablesCost = 0
	if cost > e.Budget {
		return result, e.exhausted()
	}
	e.Budget -= cost
	if details == nil || details.ActualCost() == nil {
		kind, cause := apiservercel.ErrorTypeInternal, error(nil)
		if details != nil {
			kind, cause = apiservercel.ErrorTypeInvalid, apiservercel.ErrOutOfBudget
		}
		e.Budget = -1
		return result, &apiservercel.Error{
			Type: kind, Cause: cause,
			Detail: fmt.Sprintf("runtime cost could not be calculated for expression: %v, no further expression will be run", x.Text),
		}
	}
	if cost = clampCost(*details.ActualCost()); cost > e.Budget {
		return result, e.exhausted()
	}
	e.Budget -= cost
	if err != nil {
		result.Err = &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: fmt.Sprintf("expression '%v' resulted in error: %v", x.Text, err)}
		return result, nil
	}
	result.Value = value
	return result, nil
}

func (e *Evaluation) exhausted() error {
	e.Budget = -1
	return &apiservercel.Error{
		Type: apiservercel.ErrorTypeInvalid, Cause: apiservercel.ErrOutOfBudget,
		Detail: "validation failed due to running out of cost budget, no further validation rules will be run",
	}
}

// ResolveName implements interpreter.Activation.
func (e *Evaluation) ResolveName(name string) (any, bool) {
	v := e.Version
	switch name {
	case plugincel.ObjectVarName:
		if e.Copied {
			return objectCopy(v.Object, &v.objectCopy), true
		}
		return objectValue(v.Object, &v.object), true
	case plugincel.OldObjectVarName:
		if e.Copied {
			return objectCopy(v.Old, &v.oldCopy), true
		}
		return objectValue(v.Old, &v.old), true
	case plugincel.ParamsVarName:
		return e.Params.get(e.Copied), true
	case plugincel.RequestVarName:
		return v.requestValue(e.Resource), true
	case plugincel.NamespaceVarName:
		if e.WithoutNamespace {
			return types.NullValue, true
		}
		return v.request.namespace, true
	case plugincel.AuthorizerVarName:
		if e.WithoutAuthorizer {
			return nil, false
		}
		return v.authorizerValue(), true
	case plugincel.RequestResourceAuthorizerVarName:
		if e.WithoutAuthorizer {
			return nil, false
		}
		return v.ownAccessValue(), true
	case plugincel.VariableVarName:
		return e.variablesValue(), true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (e *Evaluation) Parent() interpreter.Activation { return nil }

// variablesValue returns the policy's variables, each of which is evaluated when it is first read.
func (e *Evaluation) variablesValue() ref.Val {
	if e.variables != nil {
		return e.variables
	}
	if e.Variables == nil || e.Variables.declared == nil {
		return types.NullValue
	}
	values := lazy.NewMapValue(e.Variables.declared)
	for _, name := range e.Variables.names {
		values.Append(name, func(*lazy.MapValue) ref.Val { return e.variable(name) })
	}
	e.variables = values
	return values
}

func (e *Evaluation) variable(name string) ref.Val {
	x := e.Variables.expressions[name]
	if x.err != nil {
		return types.NewErr("composited variable %q fails to compile: %v", name, x.err)
	}
	value, details, err := x.program.ContextEval(e.context, e)
	if details == nil {
		return types.NewErr("unable to get evaluation details of variable %q", name)
	}
	cost := details.ActualCost()
	if cost == nil {
		return types.NewErr("unable to calculate cost of variable %q", name)
	}
	if e.variablesCost += clampCost(*cost); e.variablesCost < 0 {
		e.variablesCost = clampCost(^uint64(0))
	}
	if err != nil {
		return types.NewErr("composited variable %q fails to evaluate: %v", name, err)
	}
	return value
}
