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

// apiServerUser is the user as which the API server reads and writes its own objects.
var apiServerUser = authn.User{Username: "system:apiserver", Groups: []string{authn.GroupMasters}}

// accessControl is what a request passes before it is served: authentication, flow control, authorization, admission and audit.
type accessControl struct {
	authenticator *authn.Authenticators
	issuer        *authn.Issuer
	discovery     *authn.Discovery
	impersonation *impersonation.Impersonation
	// identityProviders are those of the file authenticationConfig; nil without one.
	identityProviders    *authn.IdentityProviders
	authenticationConfig string
	authorizer           *authz.Authorizers
	escalation           *authz.Escalation
	fieldAccess          *authz.FieldAuthorizer
	admission            admission.Chain
	fairness             *fairness.Fairness // nil: the number of requests is limited, but they are not queued
	auditor              *audit.Auditor     // nil: nothing is audited
	nodeGraph            *authz.NodeGraph
	log                  *slog.Logger

	// Authenticators, authorizers and admission read objects of the server, which is made after them. attach sets these before the first
	// request.
	objects   *authn.DeferredObjects
	policy    *authz.CachedPolicy
	client    kind.Client
	resources servedResources
}

func newAccessControl(c config.APIServer, certs *certificates, log *slog.Logger) (*accessControl, error) {
	a := &accessControl{
		objects: &authn.DeferredObjects{}, policy: &authz.CachedPolicy{}, resources: servedResources{}, nodeGraph: authz.NewNodeGraph(),
		log: log.With("component", "access-control"),
	}
	if c.Limits.PriorityAndFairness {
		a.fairness = fairness.New(c.Limits.MaxRequestsInflight + c.Limits.MaxMutatingRequestsInflight)
	}
	if err := a.setAuthentication(c, certs); err != nil {
		return nil, fmt.Errorf("authentication: %w", err)
	}
	if err := a.setAuthorization(c.Authorization); err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	var err error
	a.admission, err = admission.List(admission.Options{
		Client: func() kind.Client { return a.client }, Authorizer: a.authorizer, Resources: a.resources.find,
		Enable: c.Admission.Enable, Disable: c.Admission.Disable, ConfigFile: c.Admission.ConfigFile,
		DefaultNotReadyTolerationSeconds: &c.Admission.NotReadySeconds, DefaultUnreachableTolerationSeconds: &c.Admission.UnreachableSeconds,
	})
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	if a.auditor, err = newAuditor(c.Audit, log.With("component", "audit")); err != nil {
		return nil, err
	}
	return a, nil
}

// setAuthentication makes the authenticators and the issuer of service account tokens.
func (a *accessControl) setAuthentication(c config.APIServer, certs *certificates) error {
	options := &c.Authentication
	audiences := options.Audiences
	if len(audiences) == 0 {
		audiences = []string{options.Issuer}
	}
	keys, err := authn.NewKeys(certs.signingKey.Public())
	if err != nil {
		return err
	}
	if a.issuer, err = authn.NewIssuer(authn.IssuerConfig{
		Issuer: options.Issuer, Key: certs.signingKey, Audiences: audiences, MaxExpiration: options.MaxTokenExpiration, KeepExpiration: !options.ExtendTokens,
	}); err != nil {
		return err
	}
	server := net.JoinHostPort(advertisedAddress(c).String(), strconv.Itoa(c.SecurePort))
	if a.discovery, err = authn.NewDiscovery(options.Issuer, "", server, keys); err != nil {
		return err
	}
	settings := authn.Config{
		Audiences:    audiences,
		FrontProxy:   &authn.FrontProxyConfig{CAs: certs.frontProxyCA.Pool, AllowedNames: []string{frontProxyName}},
		ClientCAs:    certs.ca.Pool,
		TokenFile:    options.TokenFile,
		PasswordFile: options.PasswordFile,
	}
	if settings.ServiceAccounts, err = authn.NewServiceAccounts(authn.ServiceAccountsConfig{
		Issuers: []string{options.Issuer}, Keys: keys, Audiences: audiences, Objects: a.objects, Log: a.log,
	}); err != nil {
		return err
	}
	if options.BootstrapTokens {
		settings.BootstrapTokens = authn.NewBootstrapTokens(a.objects)
	}
	if c.Token != "" {
		settings.Tokens = authn.NewTokens(map[string]authn.User{c.Token: {Username: "admin", Groups: []string{authn.GroupMasters}}})
	}
	if options.WebhookConfigFile != "" {
		settings.Webhook = &authn.WebhookConfig{Kubeconfig: options.WebhookConfigFile, Audiences: audiences}
	}
	var file *authn.Configuration
	if options.File != "" {
		if file, err = authn.ReadConfiguration(options.File); err != nil {
			return err
		}
		if a.identityProviders, err = authn.NewIdentityProviders(file, authn.IdentityProvidersOptions{ServiceAccountIssuers: []string{options.Issuer}}); err != nil {
			return err
		}
		a.authenticationConfig, settings.IdentityProviders = options.File, a.identityProviders
	}
	settings.Anonymous = authn.AnonymousFrom(file, options.Anonymous)
	a.authenticator, err = authn.New(settings)
	return err
}

// setAuthorization makes the authorizers, and what checks the rights of users beyond single requests.
func (a *accessControl) setAuthorization(c config.Authorization) error {
	settings := authz.DefaultConfig()
	settings.PolicyFile, settings.WebhookConfigFile = c.PolicyFile, c.WebhookConfigFile
	if settings.File = c.File; settings.File == "" {
		settings.Modes = c.Modes
	}
	var err error
	if a.authorizer, err = authz.New(settings, a.policy, a.nodeGraph, a.log); err != nil {
		return err
	}
	a.impersonation = impersonation.New(a.authorizer, apiserver.RequestAttributes)
	// Escalation is checked against the roles of users also where RBAC is not an authorizer.
	rbac := a.authorizer.RBAC()
	if rbac == nil {
		rbac = authz.NewRBAC(a.policy)
	}
	a.escalation = &authz.Escalation{RBAC: rbac, Authorizer: a.authorizer}
	a.fieldAccess = &authz.FieldAuthorizer{
		Authorizer: a.authorizer, Forbidden: apiserver.ForbiddenError,
		Objects: func(ctx context.Context, resource schema.GroupResource, name string) (kind.Object, error) {
			return a.client.Get(ctx, resource, "", name)
		},
		Resource: func(gvk schema.GroupVersionKind) (string, bool) {
			resource, _, ok := a.resources.find(gvk)
			return resource.Resource, ok
		},
	}
	return nil
}

// attach sets the server whose objects are read.
func (a *accessControl) attach(server *apiserver.Server, kinds []*kind.Kind) {
	a.client = server.KindClient()
	a.objects.Set(a.client)
	a.policy.Cache = server.Local(apiServerUser)
	for _, k := range kinds {
		for i := range k.Versions {
			gvk := k.Versions[i].GVK
			a.resources[gvk] = servedResource{gvk.GroupVersion().WithResource(k.Plural), k.Namespaced}
		}
	}
}

// servedResources are the resources of the API by kind.
type servedResources map[schema.GroupVersionKind]servedResource

type servedResource struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

func (r servedResources) find(gvk schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool) {
	s, ok := r[gvk]
	return s.resource, s.namespaced, ok
}

// run reloads the configuration files of authorizers and authenticators until ctx is done.
func (a *accessControl) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.authorizer.Run(ctx) })
	if a.identityProviders != nil {
		group.Go(func() error { return a.identityProviders.WatchFile(ctx, a.authenticationConfig, a.log) })
	}
	return group.Wait()
}

// syncNodeGraph keeps the Node authorizer up to date until ctx is done. The cache must be ready.
func (a *accessControl) syncNodeGraph(ctx context.Context, synced func()) error {
	return authz.SyncNodeGraph(ctx, a.policy.Cache, a.nodeGraph, a.log, synced)
}
