package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"skiff/internal/apiserver/admission/cel"
)

// validator is a compiled ValidatingAdmissionPolicy.
type validator struct {
	ignoreErrors bool
	conditions   *cel.Conditions
	variables    *cel.Variables
	validations  []compiledValidation
	annotations  []compiledAnnotation
	// messages: a validation has a messageExpression.
	messages bool
}

type compiledValidation struct {
	expression *cel.Expression
	message    *cel.Expression // nil: none
	text       string          // the fixed message, may be empty
	reason     metav1.StatusReason
}

type compiledAnnotation struct {
	key   string
	value *cel.Expression
}

func compileValidator(p *validatingPolicy, metrics *cel.Metrics) *validator {
	hasParams := p.Spec.ParamKind != nil
	scope := cel.Scope{Params: hasParams, Authorizer: true}
	compiler := cel.NewCompiler(p.Spec.Variables, scope)
	v := &validator{
		ignoreErrors: failurePolicyOf(p.Spec.FailurePolicy) == admissionregistrationv1.Ignore,
		conditions:   cel.CompileConditions(p.Spec.MatchConditions, hasParams, cel.Owner{Name: p.Name, Kind: "policy", Type: "validate"}, metrics),
		variables:    compiler.Variables(),
	}
	for i := range p.Spec.Validations {
		spec := &p.Spec.Validations[i]
		compiled := compiledValidation{
			expression: compiler.Compile(spec.Expression, scope, celgo.BoolType), text: strings.TrimSpace(spec.Message), reason: metav1.StatusReasonInvalid,
		}
		if spec.Reason != nil {
			compiled.reason = *spec.Reason
		}
		if spec.MessageExpression != "" {
			compiled.message = compiler.Compile(spec.MessageExpression, cel.Scope{Params: hasParams}, celgo.StringType)
			v.messages = true
		}
		v.validations = append(v.validations, compiled)
	}
	for i := range p.Spec.AuditAnnotations {
		spec := &p.Spec.AuditAnnotations[i]
		v.annotations = append(v.annotations, compiledAnnotation{spec.Key, compiler.Compile(spec.ValueExpression, scope, celgo.StringType, celgo.NullType)})
	}
	return v
}

// validateResult is the result of a policy with one binding and one of its params.
type validateResult struct {
	decisions   []decision // by the index of the validation
	annotations []annotation
}

// decision is the result of one validation.
type decision struct {
	admit bool
	// failed: the expression could not be evaluated; the failure policy has decided.
	failed  bool
	message string
	reason  metav1.StatusReason
	elapsed time.Duration
}

// annotation is an audit annotation. Without value and error there is none.
type annotation struct {
	key, value, err string
	elapsed         time.Duration
}

// errorType is the label of a decision's metrics.
func (d *decision) errorType() string {
	if d.admit && !d.failed {
		return errorTypeNone
	}
	return errorTypeOf(d.message)
}

// failure is the decision for an error.
func (v *validator) failure(err error) decision {
	return decision{admit: v.ignoreErrors, failed: true, message: err.Error()}
}

func (v *validator) failures(err error) validateResult {
	return validateResult{decisions: []decision{v.failure(err)}}
}

// validate evaluates the policy. The argument has the version and the params.
func (v *validator) validate(ctx context.Context, in *cel.Evaluation) validateResult {
	matches, err := v.conditions.Match(ctx, in.Version, in.Params)
	if err != nil {
		if v.ignoreErrors {
			return validateResult{}
		}
		return v.failures(err)
	}
	if !matches {
		return validateResult{}
	}
	in.Budget, in.Variables = celconfig.RuntimeCELCostBudget, v.variables
	decisions, err := v.evaluateValidations(ctx, in)
	if err != nil {
		return v.failures(err)
	}
	annotations, err := v.evaluateAnnotations(ctx, in)
	if err != nil {
		return v.failures(err)
	}
	return validateResult{decisions, annotations}
}

// evaluateValidations evaluates all validations, and if one is false, the messages.
func (v *validator) evaluateValidations(ctx context.Context, in *cel.Evaluation) ([]decision, error) {
	decisions := make([]decision, len(v.validations))
	rejected := false
	for i := range v.validations {
		result, err := in.Evaluate(ctx, v.validations[i].expression)
		if err != nil {
			return nil, err
		}
		d := &decisions[i]
		switch {
		case result.Err != nil:
			*d = v.failure(result.Err)
		case result.Value == types.True:
			d.admit = true
		default:
			d.reason = v.validations[i].reason
			rejected = true
		}
		d.elapsed = result.Elapsed
	}
	if !rejected {
		return decisions, nil
	}
	messages, err := v.evaluateMessages(ctx, in)
	for i := range decisions {
		d := &decisions[i]
		switch {
		case d.failed:
		case errors.Is(err, apiservercel.ErrInternal) || errors.Is(err, apiservercel.ErrOutOfBudget):
			elapsed := d.elapsed
			*d = v.failure(fmt.Errorf("failed messageExpression: %w", err))
			d.elapsed = elapsed
		case !d.admit:
			d.message = v.validations[i].messageFor(messages[i])
		}
	}
	return decisions, nil
}

// evaluateMessages evaluates the message expressions with what the validations have left of the budget. They cannot ask the authorizer.
func (v *validator) evaluateMessages(ctx context.Context, in *cel.Evaluation) ([]string, error) {
	messages := make([]string, len(v.validations))
	if !v.messages {
		return messages, nil
	}
	evaluation := &cel.Evaluation{
		Version: in.Version, Resource: in.Resource, Params: in.Params, Budget: in.Budget, Variables: v.variables, WithoutAuthorizer: true,
	}
	for i := range v.validations {
		if v.validations[i].message == nil {
			continue
		}
		result, err := evaluation.Evaluate(ctx, v.validations[i].message)
		if err != nil {
			return messages, err
		}
		if result.Err == nil {
			messages[i], _ = result.Value.Value().(string)
		}
	}
	return messages, nil
}

// messageFor is the message of a validation that is false: that of the message expression if it is one line and not too long, else the
// fixed one, else the expression.
func (c *compiledValidation) messageFor(evaluated string) string {
	if text := strings.TrimSpace(evaluated); text != "" && len(text) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes && !strings.Contains(text, "\n") {
		return text
	}
	if c.text != "" {
		return c.text
	}
	return "failed expression: " + strings.TrimSpace(c.expression.Text)
}

// maxAnnotationValue bounds the value of an audit annotation.
const maxAnnotationValue = 10 << 10

// evaluateAnnotations evaluates the audit annotations, with a budget of their own. They cannot ask the authorizer.
func (v *validator) evaluateAnnotations(ctx context.Context, in *cel.Evaluation) ([]annotation, error) {
	if len(v.annotations) == 0 {
		return nil, nil
	}
	evaluation := &cel.Evaluation{
		Version: in.Version, Resource: in.Resource, Params: in.Params, Budget: celconfig.RuntimeCELCostBudget, Variables: v.variables, WithoutAuthorizer: true,
	}
	annotations := make([]annotation, len(v.annotations))
	for i := range v.annotations {
		result, err := evaluation.Evaluate(ctx, v.annotations[i].value)
		if err != nil {
			return nil, err
		}
		annotations[i] = v.annotations[i].made(result, v.ignoreErrors)
	}
	return annotations, nil
}

func (c *compiledAnnotation) made(result cel.Result, ignoreErrors bool) annotation {
	a := annotation{key: c.key, elapsed: result.Elapsed}
	switch {
	case result.Err != nil:
		if !ignoreErrors {
			a.err = result.Err.Error()
		}
	case result.Value.Type() == types.StringType:
		a.value = strings.TrimSpace(result.Value.Value().(string))
		if len(a.value) > maxAnnotationValue {
			a.value = a.value[:maxAnnotationValue]
		}
	case result.Value.Type() != types.NullType:
		a.err = fmt.Sprintf("valueExpression '%v' resulted in unsupported return type: %v. Return type must be either string or null.",
			c.value.Text, result.Value.Type())
	}
	return a
}
