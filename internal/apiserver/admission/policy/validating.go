package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

type (
	validatingPolicy  = admissionregistrationv1.ValidatingAdmissionPolicy
	validatingBinding = admissionregistrationv1.ValidatingAdmissionPolicyBinding
	boundValidating   = bound[*validatingPolicy, *validatingBinding, *validator]
)

// Validating is the plugin ValidatingAdmissionPolicy.
type Validating struct {
	source     source[*validatingPolicy, *validatingBinding, *validator]
	client     func() kind.Client
	params     func() *paramReader
	authorizer authz.Authorizer
	metrics    *checkMetrics
	log        *slog.Logger
}

// NewValidating makes the plugin.
func NewValidating(o Options) (*Validating, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	v := &Validating{
		client: o.Client, params: func() *paramReader { return &paramReader{o.Client(), o.Kinds} }, authorizer: o.Authorizer,
		metrics: newValidatingMetrics(), log: o.Log,
	}
	v.source = source[*validatingPolicy, *validatingBinding, *validator]{
		objects:         o.Objects,
		policyResource:  admissionregistrationv1.Resource("validatingadmissionpolicies"),
		bindingResource: admissionregistrationv1.Resource("validatingadmissionpolicybindings"),
		constraints:     func(p *validatingPolicy) *admissionregistrationv1.MatchResources { return p.Spec.MatchConstraints },
		policyName:      func(b *validatingBinding) string { return b.Spec.PolicyName },
		bindingConstraints: func(b *validatingBinding) *admissionregistrationv1.MatchResources {
			return b.Spec.MatchResources
		},
		paramKind: func(p *validatingPolicy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		compile:   func(p *validatingPolicy) *validator { return compileValidator(p, o.Conditions) },
	}
	v.source.prepare()
	return v, nil
}

// Name implements admission.Plugin.
func (v *Validating) Name() string { return ValidatingName }

// Handles implements admission.Plugin.
func (v *Validating) Handles(a *admission.Attributes) bool { return v.source.handles(a) }

// Describe implements prometheus.Collector.
func (v *Validating) Describe(out chan<- *prometheus.Desc) { v.metrics.Describe(out) }

// Collect implements prometheus.Collector.
func (v *Validating) Collect(out chan<- prometheus.Metric) { v.metrics.Collect(out) }

// Validate implements admission.Validator.
func (v *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	candidates, err := v.source.candidates(ctx, a)
	if err != nil {
		v.log.Error("failed to read policies", "error", err)
		return admission.Forbidden(a, errors.New("not yet ready to handle request"))
	}
	w := &validation{
		plugin: v, attributes: a, params: v.params(),
		matching: match.NewRequest(a, v.client()), request: cel.NewRequest(a, v.authorizer),
	}
	for _, p := range candidates {
		if err := w.evaluate(ctx, p); err != nil {
			return err
		}
	}
	w.publishFailures()
	return w.rejection()
}

// validation is the evaluation of all policies for one write.
type validation struct {
	plugin     *Validating
	attributes *admission.Attributes
	params     *paramReader
	matching   *match.Request
	request    *cel.Request
	// hasNamespace: the request has its namespace.
	hasNamespace bool

	denied   []denial
	failures []validationFailure
}

// denial is a reason to reject the write.
type denial struct {
	policy, binding string // no binding: the policy itself is wrong
	message         string
	reason          metav1.StatusReason
}

// validationFailure is an element of the audit annotation with the failures of bindings that audit.
type validationFailure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

// misconfigured applies the failure policy to an error of the policy's or the binding's configuration.
func (w *validation) misconfigured(p *boundValidating, binding *validatingBinding, err error) {
	d := denial{policy: p.policy.Name, message: fmt.Sprintf("failed to configure policy: %v", err)}
	if binding != nil {
		d.binding, d.message = binding.Name, fmt.Sprintf("failed to configure binding: %v", err)
	}
	switch policy := failurePolicyOf(p.policy.Spec.FailurePolicy); policy {
	case admissionregistrationv1.Ignore:
		return
	case admissionregistrationv1.Fail:
	default:
		d.message = fmt.Sprintf("unrecognized failure policy: '%v'", policy)
	}
	w.denied = append(w.denied, d)
}

// evaluate evaluates a policy for all of its bindings. An error rejects the write at once.
func (w *validation) evaluate(ctx context.Context, p *boundValidating) error {
	as, ok, err := p.match(ctx, w.matching)
	if ok && err == nil {
		err = w.params.check(p.paramKind)
	}
	if err != nil {
		w.misconfigured(p, nil, err)
		return nil
	}
	if !ok {
		return nil
	}
	var annotations annotations
	for i := range p.bindings {
		b := &p.bindings[i]
		ok, err := b.match(ctx, w.matching)
		if err != nil {
			w.misconfigured(p, b.object, err)
			continue
		}
		if !ok {
			continue
		}
		params, err := w.params.read(ctx, p.paramKind, b.object.Spec.ParamRef, w.attributes.Namespace)
		if err != nil {
			w.misconfigured(p, b.object, err)
			continue
		}
		if len(params) == 0 {
			continue
		}
		version, err := w.request.Version(as.Kind)
		if err != nil {
			w.misconfigured(p, b.object, fmt.Errorf("failed to convert object version: %w", err))
			continue
		}
		if err := w.setNamespace(ctx); err != nil {
			return err
		}
		for _, param := range params {
			result := p.compiled().validate(ctx, &cel.Evaluation{Version: version, Resource: as.Resource, Params: param})
			w.enforce(p, b.object, result)
			annotations.add(result)
		}
	}
	annotations.publish(p.policy.Name, w.attributes)
	return nil
}

// setNamespace reads the namespace once, for the first policy that is evaluated.
func (w *validation) setNamespace(ctx context.Context) error {
	if w.hasNamespace {
		return nil
	}
	namespace, err := namespaceOf(ctx, w.plugin.client(), w.attributes)
	if err != nil {
		return err
	}
	w.request.SetNamespace(namespace)
	w.hasNamespace = true
	return nil
}

// enforce carries out the binding's actions for each validation that failed.
func (w *validation) enforce(p *boundValidating, binding *validatingBinding, result validateResult) {
	labels := checkLabels{policy: p.policy.Name, binding: binding.Name}
	for i := range result.decisions {
		d := &result.decisions[i]
		if d.admit {
			if d.failed {
				w.plugin.metrics.observe(labels.with("allow", d.errorType()), d.elapsed)
			}
			continue
		}
		for _, action := range binding.Spec.ValidationActions {
			switch action {
			case admissionregistrationv1.Deny:
				w.denied = append(w.denied, denial{p.policy.Name, binding.Name, d.message, d.reason})
				w.plugin.metrics.observe(labels.with("deny", d.errorType()), d.elapsed)
			case admissionregistrationv1.Audit:
				w.failures = append(w.failures, validationFailure{
					Message: d.message, Policy: binding.Spec.PolicyName, Binding: binding.Name,
					ExpressionIndex: i, ValidationActions: binding.Spec.ValidationActions,
				})
				w.plugin.metrics.observe(labels.with("audit", d.errorType()), d.elapsed)
			case admissionregistrationv1.Warn:
				if w.attributes.Warn != nil {
					w.attributes.Warn(fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.policy.Name, binding.Name, d.message))
				}
				w.plugin.metrics.observe(labels.with("warn", d.errorType()), d.elapsed)
			}
		}
	}
	for i := range result.annotations {
		if a := &result.annotations[i]; a.err != "" {
			d := decision{failed: true, message: a.err}
			w.denied = append(w.denied, denial{policy: p.policy.Name, binding: binding.Name, message: a.err})
			w.plugin.metrics.observe(labels.with("deny", d.errorType()), a.elapsed)
		}
	}
}

// maxValidationFailures bounds the failures in the audit annotation.
const maxValidationFailures = 50

const validationFailureKey = "validation.policy.admission.k8s.io/validation_failure"

// publishFailures adds the audit annotation with the failures of bindings that audit.
func (w *validation) publishFailures() {
	if len(w.failures) == 0 || w.attributes.Annotate == nil {
		return
	}
	if len(w.failures) > maxValidationFailures {
		w.plugin.log.Warn("audit annotation has not all validation failures", "failures", len(w.failures), "limit", maxValidationFailures)
		w.failures = w.failures[:maxValidationFailures]
	}
	value, err := json.Marshal(w.failures)
	if err != nil {
		w.plugin.log.Warn("failed to encode validation failures", "error", err)
		return
	}
	w.attributes.Annotate(validationFailureKey, string(value))
}

// rejection is the error of the write: that of the first denial.
func (w *validation) rejection() error {
	if len(w.denied) == 0 {
		return nil
	}
	first := w.denied[0]
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", first.policy, first.message)
	if first.binding != "" {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", first.policy, first.binding, first.message)
	}
	err := admission.Forbidden(w.attributes, errors.New(message))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		if first.reason == "" {
			first.reason = metav1.StatusReasonInvalid
		}
		status.ErrStatus.Reason, status.ErrStatus.Code = first.reason, codeOf(first.reason)
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	}
	return err
}

// codeOf is the HTTP code of a reason that a validation may give.
func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}

// annotations are the audit annotations of one policy. Bindings with different params can give a key several values.
type annotations struct {
	keys   []string
	values map[string][]string
}

func (a *annotations) add(result validateResult) {
	for i := range result.annotations {
		made := &result.annotations[i]
		if made.value == "" {
			continue
		}
		if a.values == nil {
			a.values = map[string][]string{}
		}
		known := a.values[made.key]
		if known == nil {
			a.keys = append(a.keys, made.key)
		}
		if !slices.Contains(known, made.value) {
			a.values[made.key] = append(known, made.value)
		}
	}
}

func (a *annotations) publish(policy string, attributes *admission.Attributes) {
	if attributes.Annotate == nil {
		return
	}
	for _, key := range a.keys {
		attributes.Annotate(policy+"/"+key, strings.Join(a.values[key], ", "))
	}
}
