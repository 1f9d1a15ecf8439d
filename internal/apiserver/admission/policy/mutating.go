package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

type (
	mutatingPolicy  = admissionregistrationv1.MutatingAdmissionPolicy
	mutatingBinding = admissionregistrationv1.MutatingAdmissionPolicyBinding
	boundMutating   = bound[*mutatingPolicy, *mutatingBinding, *mutator]
)

// Mutating is the plugin MutatingAdmissionPolicy.
type Mutating struct {
	source     source[*mutatingPolicy, *mutatingBinding, *mutator]
	client     func() kind.Client
	params     func() *paramReader
	schemas    schemas
	authorizer authz.Authorizer
	metrics    *checkMetrics
	log        *slog.Logger
}

// NewMutating makes the plugin.
func NewMutating(o Options) (*Mutating, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m := &Mutating{
		client: o.Client, params: func() *paramReader { return &paramReader{o.Client(), o.Kinds} }, authorizer: o.Authorizer,
		schemas: schemas{kinds: o.Kinds, builtIn: o.TypeConverter}, metrics: newMutatingMetrics(), log: o.Log,
	}
	m.source = source[*mutatingPolicy, *mutatingBinding, *mutator]{
		objects:            o.Objects,
		policyResource:     admissionregistrationv1.Resource("mutatingadmissionpolicies"),
		bindingResource:    admissionregistrationv1.Resource("mutatingadmissionpolicybindings"),
		constraints:        func(p *mutatingPolicy) *admissionregistrationv1.MatchResources { return p.Spec.MatchConstraints },
		policyName:         func(b *mutatingBinding) string { return b.Spec.PolicyName },
		bindingConstraints: func(b *mutatingBinding) *admissionregistrationv1.MatchResources { return b.Spec.MatchResources },
		paramKind:          func(p *mutatingPolicy) *admissionregistrationv1.ParamKind { return p.Spec.ParamKind },
		compile:            func(p *mutatingPolicy) *mutator { return compileMutator(p, o.Conditions) },
	}
	m.source.prepare()
	return m, nil
}

// Name implements admission.Plugin.
func (m *Mutating) Name() string { return MutatingName }

// Handles implements admission.Plugin. A deletion has no object to mutate.
func (m *Mutating) Handles(a *admission.Attributes) bool {
	return a.Operation != admission.Delete && m.source.handles(a)
}

// Describe implements prometheus.Collector.
func (m *Mutating) Describe(out chan<- *prometheus.Desc) { m.metrics.Describe(out) }

// Collect implements prometheus.Collector.
func (m *Mutating) Collect(out chan<- prometheus.Metric) { m.metrics.Collect(out) }

// Mutate implements admission.Mutator.
func (m *Mutating) Mutate(ctx context.Context, a *admission.Attributes) error {
	candidates, err := m.source.candidates(ctx, a)
	if err != nil {
		m.log.Error("failed to read policies", "error", err)
		return admission.Forbidden(a, errors.New("not yet ready to handle request"))
	}
	w := &mutation{plugin: m, attributes: a, params: m.params(), request: cel.NewRequest(a, m.authorizer)}
	invocations := w.collect(ctx, candidates)
	if len(invocations) > 0 {
		if err := w.invokeAll(ctx, invocations); err != nil {
			return err
		}
	}
	return w.rejection()
}

// mutation is the evaluation of all policies for one write.
type mutation struct {
	plugin     *Mutating
	attributes *admission.Attributes
	params     *paramReader
	request    *cel.Request
	errors     []policyError
}

// invocation is a policy with one binding and one of its params.
type invocation struct {
	policy  *boundMutating
	binding *mutatingBinding
	param   *cel.Params
	as      admission.Equivalent
}

// invocationKey identifies an invocation in both rounds.
type invocationKey struct{ policy, binding, paramNamespace, paramName string }

func (i *invocation) key() (invocationKey, error) {
	key := invocationKey{policy: i.policy.policy.Name, binding: i.binding.Name}
	if i.param != nil {
		accessor, err := meta.Accessor(i.param.Object)
		if err != nil {
			return key, err
		}
		key.paramNamespace, key.paramName = accessor.GetNamespace(), accessor.GetName()
	}
	return key, nil
}

// policyError is an error of a policy. The failure policy decides whether it rejects the write.
type policyError struct {
	policy  *mutatingPolicy
	binding *mutatingBinding // nil: the policy itself is wrong
	err     error
	reason  metav1.StatusReason
}

func (e *policyError) text() string {
	if e.binding != nil {
		return fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", e.policy.Name, e.binding.Name, e.err)
	}
	return fmt.Sprintf("policy %q denied request: %s", e.policy.Name, e.err)
}

func (w *mutation) misconfigured(p *boundMutating, binding *mutatingBinding, err error) {
	what := "policy"
	if binding != nil {
		what = "binding"
	}
	w.errors = append(w.errors, policyError{policy: p.policy, binding: binding, err: fmt.Errorf("failed to configure %s: %w", what, err)})
}

// collect returns the invocations for the write as it is now, before the first of them changes it.
func (w *mutation) collect(ctx context.Context, candidates []*boundMutating) []invocation {
	matching := match.NewRequest(w.attributes, w.plugin.client())
	var invocations []invocation
	for _, p := range candidates {
		as, ok, err := p.match(ctx, matching)
		if ok && err == nil {
			err = w.params.check(p.paramKind)
		}
		if err != nil {
			w.misconfigured(p, nil, err)
			continue
		}
		if !ok {
			continue
		}
		for i := range p.bindings {
			b := &p.bindings[i]
			if ok, err = b.match(ctx, matching); err != nil {
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
			for _, param := range params {
				invocations = append(invocations, invocation{p, b.object, param, as})
			}
		}
	}
	return invocations
}

// reinvocations is what the plugin keeps from the first round to the second.
type reinvocations struct {
	// output is the object that the plugin has left.
	output runtime.Object
	// invoked are the invocations of policies that may be reinvoked, since the last change of the object.
	invoked map[invocationKey]bool
	// due are those that a later change concerns.
	due map[invocationKey]bool
}

// require makes the invocations so far due for the second round.
func (r *reinvocations) require() {
	for key := range r.invoked {
		r.due[key] = true
	}
	clear(r.invoked)
}

func (w *mutation) reinvocations() *reinvocations {
	if known, ok := w.attributes.PluginState(MutatingName).(*reinvocations); ok {
		return known
	}
	made := &reinvocations{invoked: map[invocationKey]bool{}, due: map[invocationKey]bool{}}
	w.attributes.SetPluginState(MutatingName, made)
	return made
}

// invokeAll runs the invocations in order. An error rejects the write whatever the failure policy.
func (w *mutation) invokeAll(ctx context.Context, invocations []invocation) error {
	a, state := w.attributes, w.reinvocations()
	if a.IsReinvocation() && !equality.Semantic.DeepEqual(state.output, a.Object) {
		// Other plugins have changed the object since.
		state.require()
	}
	namespace, err := namespaceOf(ctx, w.plugin.client(), a)
	if err != nil {
		return err
	}
	w.request.SetNamespace(namespace)
	patched := false
	for i := range invocations {
		key, err := invocations[i].key()
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if a.IsReinvocation() && !state.due[key] {
			continue
		}
		before := a.Object
		invoked, changed, err := w.invoke(ctx, &invocations[i])
		if err != nil {
			return err
		}
		if !invoked {
			continue
		}
		patched = patched || changed
		if changed && !equality.Semantic.DeepEqual(before, a.Object) {
			state.require()
		}
		if invocations[i].policy.policy.Spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
			state.invoked[key] = true
		}
	}
	if patched {
		state.require()
		a.RequestReinvocation()
	}
	state.output = nil
	if a.Object != nil {
		state.output = a.Object.DeepCopyObject()
	}
	return nil
}

// invoke runs the mutations of one invocation in order. invoked is false if the match conditions exclude the write; patched is true if a
// mutation was applied.
func (w *mutation) invoke(ctx context.Context, i *invocation) (invoked, patched bool, err error) {
	compiled := i.policy.compiled()
	version, err := w.request.Version(i.as.Kind)
	if err != nil {
		w.misconfigured(i.policy, nil, err)
		return false, false, nil
	}
	matches, err := compiled.conditions.Match(ctx, version, i.param)
	if err != nil {
		w.errors = append(w.errors, policyError{i.policy.policy, i.binding, err, metav1.StatusReasonInvalid})
		return false, false, nil
	}
	if !matches {
		return false, false, nil
	}
	if w.attributes.Object == nil {
		return true, false, nil
	}
	for _, patch := range compiled.patches {
		began := time.Now()
		err := w.apply(ctx, i, compiled, patch)
		labels := checkLabels{policy: i.policy.policy.Name, binding: i.binding.Name, errorType: errorTypeNone}
		if err != nil {
			labels.errorType = errorTypeOf(err.Error())
		}
		w.plugin.metrics.observe(labels, time.Since(began))
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return true, patched, status
		}
		if err != nil {
			w.errors = append(w.errors, policyError{i.policy.policy, i.binding, err, metav1.StatusReasonInvalid})
			continue
		}
		patched = true
	}
	return true, patched, nil
}

// rejection is the error of the write, with all errors of policies whose failure policy is not Ignore.
func (w *mutation) rejection() error {
	var rejected *apierrors.StatusError
	for i := range w.errors {
		e := &w.errors[i]
		if failurePolicyOf(e.policy.Spec.FailurePolicy) == admissionregistrationv1.Ignore {
			continue
		}
		text := e.text()
		if rejected == nil {
			err := admission.Forbidden(w.attributes, errors.New("admission request denied by policy"))
			if !errors.As(err, &rejected) {
				return err
			}
			rejected.ErrStatus.Message = text
			if e.reason != "" {
				rejected.ErrStatus.Reason = e.reason
			}
		}
		rejected.ErrStatus.Details.Causes = append(rejected.ErrStatus.Details.Causes, metav1.StatusCause{Message: text})
	}
	if rejected == nil {
		return nil
	}
	return rejected
}
