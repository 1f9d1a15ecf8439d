package system

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/audit"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authn/impersonation"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/config"
	"skiff/internal/kind"
)

// gatekeeper is the name under which the authorizers read the server's own cache.
var gatekeeper = authn.User{Username: "system:apiserver", Groups: []string{authn.GroupMasters}}

// gate decides who comes in and what they may do.
type gate struct {
	authenticator *authn.Authenticators
	objects       *authn.DeferredObjects // what the authenticators look up
	issuer        *authn.Issuer
	discovery     *authn.Discovery
	impersonation *impersonation.Impersonation
	providers     *authn.IdentityProviders // nil without providersFile
	providersFile string
	authorizer    *authz.Authorizers
	escalation    *authz.Escalation
	fieldAccess   *authz.FieldAuthorizer
	admission     admission.Chain
	fairness      *fairness.Fairness // nil: requests are only counted
	auditor       *audit.Auditor     // nil: nothing is recorded
	policy        *policy
	graph         *authz.NodeGraph
	log           *slog.Logger

	// Set by attach, before the first request.
	env       kind.Client
	resources resources
}

func newGate(c config.Server, certs *certificates, log *slog.Logger) (*gate, error) {
	g := &gate{policy: &policy{}, graph: authz.NewNodeGraph(), resources: resources{}, fairness: newFairness(c.Limits), log: log.With("part", "authorization")}
	if err := g.authentication(c, certs); err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	settings := authz.DefaultConfig()
	settings.PolicyFile, settings.WebhookConfigFile = c.Authorization.PolicyFile, c.Authorization.WebhookConfigFile
	if settings.File = c.Authorization.File; settings.File == "" {
		settings.Modes = c.Authorization.Modes
	}
	var err error
	if g.authorizer, err = authz.New(settings, g.policy, g.graph, g.log); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	g.impersonation = impersonation.New(g.authorizer, apiserver.RequestAttributes)
	// What users hold by roles is asked also where RBAC does not decide.
	rbac := g.authorizer.RBAC()
	if rbac == nil {
		rbac = authz.NewRBAC(g.policy)
	}
	g.escalation = &authz.Escalation{RBAC: rbac, Authorizer: g.authorizer}
	g.fieldAccess = &authz.FieldAuthorizer{
		Authorizer: g.authorizer, Forbidden: apiserver.Refusal,
		Objects: func(ctx context.Context, resource schema.GroupResource, name string) (kind.Object, error) {
			return g.env.Get(ctx, resource, "", name)
		},
		Resource: func(gvk schema.GroupVersionKind) (string, bool) {
			resource, _, ok := g.resources.find(gvk)
			return resource.Resource, ok
		},
	}
	g.admission, err = admission.List(admission.Options{
		Client: func() kind.Client { return g.env }, Authorizer: g.authorizer, Resources: g.resources.find,
		Enable: c.Admission.Enable, Disable: c.Admission.Disable, ConfigFile: c.Admission.ConfigFile,
		DefaultNotReadyTolerationSeconds: &c.Admission.NotReadySeconds, DefaultUnreachableTolerationSeconds: &c.Admission.UnreachableSeconds,
	})
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	if g.auditor, err = newAuditor(c.Audit, log.With("part", "audit")); err != nil {
		return nil, err
	}
	return g, nil
}

// authentication puts together everybody who can tell who sends a request.
func (g *gate) authentication(c config.Server, certs *certificates) error {
	a := &c.Authentication
	audiences := a.Audiences
	if len(audiences) == 0 {
		audiences = []string{a.Issuer}
	}
	keys, err := authn.NewKeys(certs.signingKey.Public())
	if err != nil {
		return err
	}
	if g.issuer, err = authn.NewIssuer(authn.IssuerConfig{
		Issuer: a.Issuer, Key: certs.signingKey, Audiences: audiences, MaxExpiration: a.MaxTokenExpiration, KeepExpiration: !a.ExtendTokens,
	}); err != nil {
		return err
	}
	if g.discovery, err = authn.NewDiscovery(a.Issuer, "", net.JoinHostPort(advertised(c).String(), strconv.Itoa(c.SecurePort)), keys); err != nil {
		return err
	}
	g.objects = &authn.DeferredObjects{}
	settings := authn.Config{
		Audiences:    audiences,
		FrontProxy:   &authn.FrontProxyConfig{CAs: certs.frontProxy.Pool, AllowedNames: []string{frontProxyName}},
		ClientCAs:    certs.authority.Pool,
		TokenFile:    a.TokenFile,
		PasswordFile: a.PasswordFile,
	}
	if settings.ServiceAccounts, err = authn.NewServiceAccounts(authn.ServiceAccountsConfig{
		Issuers: []string{a.Issuer}, Keys: keys, Audiences: audiences, Objects: g.objects, Log: g.log,
	}); err != nil {
		return err
	}
	if a.BootstrapTokens {
		settings.BootstrapTokens = authn.NewBootstrapTokens(g.objects)
	}
	if c.Token != "" {
		settings.Tokens = authn.NewTokens(map[string]authn.User{c.Token: {Username: "admin", Groups: []string{authn.GroupMasters}}})
	}
	if a.WebhookConfigFile != "" {
		settings.Webhook = &authn.WebhookConfig{Kubeconfig: a.WebhookConfigFile, Audiences: audiences}
	}
	var configured *authn.Configuration
	if a.File != "" {
		if configured, err = authn.ReadConfiguration(a.File); err != nil {
			return err
		}
		if g.providers, err = authn.NewIdentityProviders(configured, authn.IdentityProvidersOptions{ServiceAccountIssuers: []string{a.Issuer}}); err != nil {
			return err
		}
		g.providersFile, settings.IdentityProviders = a.File, g.providers
	}
	settings.Anonymous = authn.AnonymousFrom(configured, a.Anonymous)
	g.authenticator, err = authn.New(settings)
	return err
}

// attach gives the gate the server it stands before.
func (g *gate) attach(server *apiserver.Server, kinds []*kind.Kind) {
	g.env = server.Env()
	g.objects.Set(g.env)
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
	if g.providers != nil {
		group.Go(func() error { return g.providers.WatchFile(ctx, g.providersFile, g.log) })
	}
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
