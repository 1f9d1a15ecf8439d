package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/jsonpatch"
	"skiff/internal/kind"
)

// Mutating is the plugin MutatingAdmissionWebhook.
type Mutating struct{ plugin }

// NewMutating makes the plugin.
func NewMutating(o Options) *Mutating {
	return &Mutating{newPlugin(o, "mutatingwebhookconfigurations", stepMutating, func(obj kind.Object) []definition {
		return obj.(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks
	})}
}

const mutatingName = "MutatingAdmissionWebhook"

// Name implements admission.Plugin.
func (*Mutating) Name() string { return mutatingName }

// reinvocation is what the plugin keeps for its second run.
type reinvocation struct {
	// lastOutput is the object after the last run.
	lastOutput runtime.Object
	// invoked are webhooks that want to be called again after a later change; due are those that are called in the second run.
	invoked, due sets.Set[string]
}

// changed: the webhooks that were called before a change are called again.
func (r *reinvocation) changed() {
	r.due = r.due.Union(r.invoked)
	r.invoked = sets.New[string]()
}

// Mutate implements admission.Mutator.
func (p *Mutating) Mutate(ctx context.Context, a *admission.Attributes) error {
	state, err := p.loader.Load(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	again, _ := a.PluginState(mutatingName).(*reinvocation)
	if again == nil {
		again = &reinvocation{invoked: sets.New[string](), due: sets.New[string]()}
		a.SetPluginState(mutatingName, again)
	}
	if a.IsReinvocation() && again.invoked.Len() > 0 && !apiequality.Semantic.DeepEqual(again.lastOutput, a.Object) {
		again.changed() // by the other plugins, in this second run
	}
	request := p.newRequest(a)
	for _, h := range state.candidates(a) {
		invocation, err := p.applies(ctx, h, request)
		if err != nil {
			return err
		}
		// A webhook that did not match in the first run is not called in the second.
		if invocation == nil || a.IsReinvocation() && !again.due.Has(h.uid) {
			continue
		}
		changed, err := p.mutateOnce(ctx, invocation, request)
		if changed {
			again.changed()
			a.RequestReinvocation()
		}
		if h.reinvoke {
			again.invoked.Insert(h.uid)
		}
		if err != nil {
			return err
		}
	}
	if again.invoked.Len() > 0 && a.Object != nil && !a.IsReinvocation() {
		again.lastOutput = a.Object.DeepCopyObject()
	}
	return nil
}

// mutateOnce calls a webhook and applies its patch.
func (p *Mutating) mutateOnce(ctx context.Context, v *invocation, r *request) (changed bool, err error) {
	a, started := r.attributes, time.Now()
	annotations := newAnnotations(v, a)
	changed, err = p.patched(ctx, v, r, annotations)
	annotations.mutation(changed)
	failedOpen, err := p.finish(v, a.Operation, time.Since(started), err)
	if failedOpen {
		annotations.failedOpen()
	}
	if err == nil && ctx.Err() != nil {
		return changed, errTimeout()
	}
	return changed, err
}

func (p *Mutating) patched(ctx context.Context, v *invocation, r *request, annotations *annotations) (changed bool, err error) {
	review, err := prepare(r.encoder, v)
	if err != nil {
		return false, err
	}
	var response *admissionv1.AdmissionResponse
	r.attributes.Wait(func() { response, err = p.call(ctx, v, review) })
	if err != nil {
		return false, err
	}
	if err := accept(r.attributes, v, response); err != nil {
		return false, err
	}
	if len(response.Patch) == 0 {
		return false, nil
	}
	patch, err := jsonpatch.Decode(response.Patch)
	if err != nil {
		return false, &callError{fmt.Errorf("received undecodable patch in webhook response: %w", err), apierrors.NewServiceUnavailable("error decoding patch in webhook response")}
	}
	if len(patch) == 0 {
		return false, nil
	}
	if patchType := ptr.Deref(response.PatchType, ""); patchType != admissionv1.PatchTypeJSONPatch {
		return false, &callError{fmt.Errorf("unsupported patch type %q", patchType), denied(v.name, response.Result)}
	}
	if changed, err = p.apply(v, r, patch); err != nil {
		return false, err
	}
	annotations.patch(patch)
	return changed, nil
}

// apply applies a patch to the object in the webhook's version.
func (p *Mutating) apply(v *invocation, r *request, patch jsonpatch.Patch) (changed bool, err error) {
	a := r.attributes
	if a.Object == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", v.name))
	}
	before, err := r.object(v.equivalent.Kind)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	after, err := jsonpatch.Apply(patch, before)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	next, err := a.Versions.Decode(after, v.equivalent.Kind)
	if apierrors.IsRequestEntityTooLargeError(err) {
		return false, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("admission webhook %q made the object too large: %v", v.name, err))
	}
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	changed = !apiequality.Semantic.DeepEqual(a.Object, next)
	a.Object = next
	r.changed()
	return changed, nil
}

// annotations are the audit annotations of one call.
type annotations struct {
	attributes *admission.Attributes
	hook       *hook
	// suffix identifies the call in a request.
	suffix string
}

func newAnnotations(v *invocation, a *admission.Attributes) *annotations {
	round := 0
	if a.IsReinvocation() {
		round = 1
	}
	return &annotations{a, v.hook, fmt.Sprintf("round_%d_index_%d", round, v.position)}
}

const mutationPrefix = "mutation.webhook.admission.k8s.io/"

// mutation records whether the webhook changed the object.
func (n *annotations) mutation(changed bool) {
	if n.attributes.Annotate == nil {
		return
	}
	value, err := json.Marshal(struct {
		Configuration string `json:"configuration"`
		Webhook       string `json:"webhook"`
		Mutated       bool   `json:"mutated"`
	}{n.hook.configuration, n.hook.name, changed})
	if err == nil {
		n.attributes.Annotate(mutationPrefix+n.suffix, string(value))
	}
}

// failedOpen records that the failure of the webhook was ignored.
func (n *annotations) failedOpen() {
	if n.attributes.Annotate != nil {
		n.attributes.Annotate("failed-open."+mutationPrefix+n.suffix, n.hook.name)
	}
}

// patch records the patch, in audit events that have the request object.
func (n *annotations) patch(patch jsonpatch.Patch) {
	if n.attributes.AnnotateRequest == nil {
		return
	}
	value, err := json.Marshal(struct {
		Configuration string          `json:"configuration"`
		Webhook       string          `json:"webhook"`
		Patch         jsonpatch.Patch `json:"patch,omitempty"`
		PatchType     string          `json:"patchType,omitempty"`
	}{n.hook.configuration, n.hook.name, patch, string(admissionv1.PatchTypeJSONPatch)})
	if err == nil {
		n.attributes.AnnotateRequest("patch.webhook.admission.k8s.io/"+n.suffix, string(value))
	}
}
