package webhook

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// Validating is the plugin ValidatingAdmissionWebhook.
type Validating struct{ plugin }

// NewValidating makes the plugin.
func NewValidating(o Options) *Validating {
	return &Validating{newPlugin(o, "validatingwebhookconfigurations", stepValidating, func(obj kind.Object) []definition {
		return fromValidating(obj.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks)
	})}
}

// fromValidating converts validating webhooks, which lack one field of mutating ones.
func fromValidating(hooks []admissionregistrationv1.ValidatingWebhook) []definition {
	definitions := make([]definition, len(hooks))
	for i := range hooks {
		h := &hooks[i]
		definitions[i] = definition{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects,
			TimeoutSeconds: h.TimeoutSeconds, AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		}
	}
	return definitions
}

const validatingName = "ValidatingAdmissionWebhook"

// Name implements admission.Plugin.
func (*Validating) Name() string { return validatingName }

// validation is a call of a validating webhook.
type validation struct {
	*invocation
	review   *review
	response *admissionv1.AdmissionResponse
	err      error
	elapsed  time.Duration
}

// Validate implements admission.Validator. All webhooks are called at the same time. The error is that of the first that rejects the
// write, in the order of the configurations.
func (p *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	state, err := p.loader.Load(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	request := p.newRequest(a)
	var calls []*validation
	for _, h := range state.candidates(a) {
		invocation, err := p.applies(ctx, h, request)
		if err != nil {
			return err
		}
		if invocation != nil {
			c := &validation{invocation: invocation}
			c.review, c.err = prepare(request.encoder, invocation)
			calls = append(calls, c)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return errTimeout()
	}
	a.Wait(func() { p.callAll(ctx, calls) })
	return p.results(a, calls)
}

func (p *Validating) callAll(ctx context.Context, calls []*validation) {
	var running sync.WaitGroup
	for _, c := range calls {
		if c.err == nil {
			running.Go(func() { p.callOne(ctx, c) })
		}
	}
	running.Wait()
}

func (p *Validating) callOne(ctx context.Context, c *validation) {
	started := time.Now()
	defer func() {
		c.elapsed = time.Since(started)
		if cause := recover(); cause != nil {
			p.Log.Error("call of a webhook panicked", "webhook", c.name, "cause", cause, "stack", string(debug.Stack()))
			c.err = apierrors.NewInternalError(fmt.Errorf("ValidatingAdmissionWebhook/%v has panicked: %v", c.name, cause))
		}
	}()
	c.response, c.err = p.call(ctx, c.invocation, c.review)
}

// results evaluates the responses in order.
func (p *Validating) results(a *admission.Attributes, calls []*validation) (first error) {
	for i, c := range calls {
		if c.err == nil {
			c.err = accept(a, c.invocation, c.response)
		}
		failedOpen, err := p.finish(c.invocation, a.Operation, c.elapsed, c.err)
		if failedOpen && a.Annotate != nil {
			a.Annotate(fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", i), c.name)
		}
		if first == nil {
			first = err
		}
	}
	return first
}
