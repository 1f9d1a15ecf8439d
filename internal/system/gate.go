package system

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/config"
	"skiff/internal/kind"
)

// gatekeeper is the name under which the authorizers read the server's own cache.
var gatekeeper = authn.User{Username: "system:apiserver", Groups: []string{authn.GroupMasters}}

// gate decides who comes in and what they may do.
type gate struct {
	authenticator authn.Chain
	tokens        tokenReviews
	authorizer    *authz.Configured
	escalation    *authz.Escalation
	admission     admission.Chain
	policy        *policy
	graph         *authz.NodeGraph
	log           *slog.Logger

	// Set by attach, before the first request.
	env       kind.Env
	resources resources
}

func newGate(c config.Server, log *slog.Logger) (*gate, error) {
	g := &gate{policy: &policy{}, graph: authz.NewNodeGraph(), resources: resources{}, log: log.With("part", "authorization")}
	g.authenticator = authn.Chain{authn.InProcess{}, authn.Certificate{}}
	if c.Token != "" {
		g.authenticator = append(g.authenticator, authn.NewTokens(map[string]authn.User{
			c.Token: {Username: "admin", Groups: []string{authn.GroupMasters}},
		}))
	}
	g.tokens = tokenReviews{g.authenticator}
	g.authenticator = append(g.authenticator, authn.AnonymousUser{})

	settings := authz.DefaultConfig()
	settings.PolicyFile, settings.WebhookConfigFile = c.Authorization.PolicyFile, c.Authorization.WebhookConfigFile
	if settings.File = c.Authorization.File; settings.File == "" {
		settings.Modes = c.Authorization.Modes
	}
	var err error
	if g.authorizer, err = authz.New(settings, g.policy, g.graph, g.log); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	// What users hold by roles is asked also where RBAC does not decide.
	rbac := g.authorizer.RBAC()
	if rbac == nil {
		rbac = authz.NewRBAC(g.policy)
	}
	g.escalation = &authz.Escalation{RBAC: rbac, Authorizer: g.authorizer}
	g.admission, err = admission.List(admission.Options{
		Env: func() kind.Env { return g.env }, Authorizer: g.authorizer, Resources: g.resources.find,
		Enable: c.Admission.Enable, Disable: c.Admission.Disable, ConfigFile: c.Admission.ConfigFile,
	})
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return g, nil
}

// attach gives the gate the server it stands before.
func (g *gate) attach(server *apiserver.Server, kinds []*kind.Kind) {
	g.env = server.Env()
	g.policy.local = server.Local(gatekeeper)
	for _, k := range kinds {
		for i := range k.Versions {
			gvk := k.Versions[i].GVK
			g.resources[gvk] = served{gvk.GroupVersion().WithResource(k.Plural), k.Namespaced}
		}
	}
}

// resources are what is served, by kind.
type resources map[schema.GroupVersionKind]served

type served struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

func (r resources) find(gvk schema.GroupVersionKind) (schema.GroupVersionResource, bool, bool) {
	s, ok := r[gvk]
	return s.resource, s.namespaced, ok
}

// run keeps what the authorizers know up to date until ctx ends.
func (g *gate) run(ctx context.Context, ready <-chan struct{}, started *steps) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.authorizer.Run(ctx) })
	group.Go(func() error {
		select {
		case <-ready:
		case <-ctx.Done():
			return nil
		}
		return feedNodeGraph(ctx, g.policy.local, g.graph, g.log, func() { started.done("node-authorizer") })
	})
	return group.Wait()
}
