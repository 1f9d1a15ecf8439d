// Package webhook has the admission plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook, which call the webhooks of
// MutatingWebhookConfigurations and ValidatingWebhookConfigurations.
//
// The configurations are read from the server's cache and compiled when one has changed (configurations.go). A review is sent for each
// matching webhook (review.go, call.go): by mutating webhooks one after the other, each of which sees the changes of those before it
// (mutating.go), by validating webhooks at the same time (validating.go).
package webhook

import (
	"context"
	"log/slog"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/webhook"
)

// Options are the dependencies of a plugin.
type Options struct {
	// Clients makes the clients of webhooks.
	Clients *webhook.Clients
	// Client and Objects are functions because the server is made after its plugins. Client reads namespaces.
	Client func() kind.Client
	// Objects reads configurations.
	Objects func() Objects
	// Kind is the kind of the configurations, for those in files.
	Kind *kind.Kind
	// Authorizer is what match conditions can ask.
	Authorizer authz.Authorizer
	Metrics    *Metrics
	// ConditionMetrics are the metrics of match conditions.
	ConditionMetrics *cel.Metrics
	Log              *slog.Logger
}

// Objects is the API server's own cache. Reads do not wait for the store: writes wait for them.
type Objects interface {
	List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error)
	// LastChange is the revision of the last change of a resource. It is called for every write and must be cheap.
	LastChange(resource schema.GroupResource) int64
}

// plugin is what both plugins have in common.
type plugin struct {
	*Options
	*configurations
	// step is the plugin's type in metrics.
	step string
}

func newPlugin(o Options, resource, step string, parse func(kind.Object) []definition) plugin {
	return plugin{Options: &o, step: step, configurations: newConfigurations(&o, step, admissionregistrationv1.Resource(resource), parse)}
}

// name is the plugin's name.
func (p *plugin) name() string {
	if p.step == stepValidating {
		return validatingName
	}
	return mutatingName
}

// Configure implements admission.WebhookConfigurer.
func (p *plugin) Configure(c *admission.WebhookConfig) error {
	if c == nil {
		return nil
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if c.KubeConfigFile != "" {
		credentials, err := webhook.ReadCredentials(c.KubeConfigFile)
		if err != nil {
			return err
		}
		p.Clients = p.Clients.WithCredentials(credentials)
	}
	if c.StaticManifestsDir != "" {
		read, err := p.readManifests(c.StaticManifestsDir)
		if err != nil {
			return err
		}
		p.manifestsDir = c.StaticManifestsDir
		p.static.Store(read)
		p.Metrics.reload("success", p.name())
	}
	return nil
}

// Handles implements admission.Plugin.
func (p *plugin) Handles(a *admission.Attributes) bool {
	if match.IsReview(a) || match.IsConfiguration(a) && p.manifestsDir == "" {
		return false
	}
	compiled, upToDate := p.loader.Current()
	return !upToDate || len(compiled.candidates(a)) > 0
}

// invocation is a webhook that is called for a write.
type invocation struct {
	*hook
	// position is that of the webhook among all.
	position int
	// equivalent is the resource and kind that the webhook gets.
	equivalent admission.Equivalent
}

// request is a write as the plugin's webhooks see it.
type request struct {
	*encoder
	matching   *match.Request
	conditions *cel.Request
}

func (p *plugin) newRequest(a *admission.Attributes) *request {
	return &request{encoder: newEncoder(a), matching: match.NewRequest(a, p.Client()), conditions: cel.NewRequest(a, p.Authorizer)}
}

// changed must be called after the written object was replaced.
func (r *request) changed() {
	r.encoder.changed()
	r.conditions.Changed()
}

// applies decides whether a webhook is called.
func (p *plugin) applies(ctx context.Context, h *candidate, r *request) (*invocation, error) {
	equivalent, ok, err := h.matcher.Match(ctx, r.matching)
	if err != nil || !ok {
		return nil, err
	}
	if h.conditions != nil {
		if ok, err = h.matchesConditions(ctx, equivalent, r); err != nil {
			p.Log.Warn("failed to evaluate the match conditions of a webhook, request rejected", "webhook", h.name, "error", err)
		}
		if err != nil || !ok {
			return nil, err
		}
	}
	return &invocation{hook: h.hook, position: h.position, equivalent: equivalent}, nil
}

// matchesConditions evaluates the match conditions. A webhook whose failures are ignored is not called if they cannot be evaluated.
func (h *hook) matchesConditions(ctx context.Context, equivalent admission.Equivalent, r *request) (bool, error) {
	version, err := r.conditions.Version(equivalent.Kind)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	matches, err := h.conditions.Match(ctx, version, nil)
	if err == nil || h.failOpen {
		return matches && err == nil, nil
	}
	return false, apierrors.NewForbidden(r.attributes.Resource.GroupResource(), r.attributes.Name, err)
}
