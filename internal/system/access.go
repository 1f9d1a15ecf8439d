package system

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/policy"
	"skiff/internal/apiserver/audit"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authn/impersonation"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/config"
	"skiff/internal/configfile"
	"skiff/internal/egress"
	"skiff/internal/kind"
	"skiff/internal/openapi"
)

// apiServerUser is the user as which the API server reads and writes its own objects.
var apiServerUser = authn.User{Username: "system:apiserver", Groups: []string{authn.GroupMasters}}

// accessControl is what a request passes before it is served: authentication, flow control, authorization, admission and audit.
type accessControl struct {
	authenticator *authn.Authenticators
	issuer        *authn.Issuer
	discovery     *authn.Discovery
	impersonation *impersonation.Impersonation
	// identityProviders are those of the file authenticationConfig or of the --oidc flags; nil without either.
	identityProviders    *authn.IdentityProviders
	authenticationConfig string
	authorizer           *authz.Authorizers
	escalation           *authz.Escalation
	fieldAccess          *authz.FieldAuthorizer
	admission            admission.Chain
	webhooks             *webhooks
	matchConditions      *cel.Metrics
	// typeConverter returns the schemas of built-in kinds, which are made on first use.
	typeConverter func() (managedfields.TypeConverter, error)
	fairness      *fairness.Fairness // nil: the number of requests is limited, but they are not queued
	auditor       *audit.Auditor     // nil: nothing is audited
	// egress selects the networks of webhooks, identity providers, nodes and pods.
	egress *egress.Selector
	// metrics are those of authentication and authorization.
	metrics   []prometheus.Collector
	nodeGraph *authz.NodeGraph
	log       *slog.Logger

	// Authenticators, authorizers and admission read objects of the server, which is made after them. attach sets these before the first
	// request.
	objects *authn.DeferredObjects
	policy  *authz.CachedPolicy
	local   *apiserver.Local
	client  kind.Client
	kinds   func(schema.GroupVersionKind) (*kind.Kind, *kind.Version)
}

func newAccessControl(c config.APIServer, certs *certificates, selector *egress.Selector, log *slog.Logger) (*accessControl, error) {
	a := &accessControl{
		egress:  selector,
		objects: &authn.DeferredObjects{}, policy: &authz.CachedPolicy{}, nodeGraph: authz.NewNodeGraph(),
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
	if err := a.setAdmission(c.Admission); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	var err error
	if a.auditor, err = newAuditor(c.Audit, selector.Dialer(egress.ControlPlane), log.With("component", "audit")); err != nil {
		return nil, err
	}
	return a, nil
}

// setAuthentication makes the authenticators and the issuer of service account tokens.
func (a *accessControl) setAuthentication(c config.APIServer, certs *certificates) error {
	options := &c.Authentication
	audiences := options.Audiences
	if len(audiences) == 0 {
		audiences = options.ServiceAccounts.Issuers
	}
	settings := authn.Config{
		Audiences:    audiences,
		FrontProxy:   frontProxyConfig(options.RequestHeader, certs),
		ClientCAs:    certs.clientCAs.Pool,
		TokenFile:    options.TokenFile,
		PasswordFile: options.PasswordFile,
	}
	var err error
	if settings.ServiceAccounts, err = a.newServiceAccounts(c, certs, audiences); err != nil {
		return err
	}
	a.metrics = append(a.metrics, settings.ServiceAccounts)
	if options.BootstrapTokens {
		settings.BootstrapTokens = authn.NewBootstrapTokens(a.objects)
	}
	if c.Token != "" {
		settings.Tokens = authn.NewTokens(map[string]authn.User{c.Token: {Username: "admin", Groups: []string{authn.GroupMasters}}})
	}
	if options.WebhookConfigFile != "" {
		settings.Webhook = &authn.WebhookConfig{
			Kubeconfig: options.WebhookConfigFile, Version: options.WebhookVersion, CacheTTL: options.WebhookCacheTTL, Audiences: audiences,
			Dial: a.egress.Dialer(egress.ControlPlane),
		}
	}
	configuration, err := a.setIdentityProviders(options)
	if err != nil {
		return err
	}
	settings.IdentityProviders = a.identityProviders
	settings.Anonymous = authn.AnonymousFrom(configuration, options.Anonymous)
	a.authenticator, err = authn.New(settings)
	return err
}

// frontProxyConfig is the authentication of users that front proxies send.
func frontProxyConfig(c config.RequestHeader, certs *certificates) *authn.FrontProxyConfig {
	return &authn.FrontProxyConfig{
		CAs: certs.frontProxyCAs.Pool, AllowedNames: certs.frontProxyNames,
		Headers: authn.ProxyHeaders{User: c.UsernameHeaders, UID: c.UIDHeaders, Group: c.GroupHeaders, ExtraPrefix: c.ExtraHeaderPrefixes},
	}
}

// newServiceAccounts makes the issuer of service account tokens, its discovery documents and the authenticator of the tokens.
func (a *accessControl) newServiceAccounts(c config.APIServer, certs *certificates, audiences []string) (*authn.ServiceAccounts, error) {
	options := &c.Authentication.ServiceAccounts
	keys, err := authn.NewKeys(certs.verifyingKeys...)
	if err != nil {
		return nil, err
	}
	if a.issuer, err = authn.NewIssuer(authn.IssuerConfig{
		Issuer: options.Issuers[0], Key: certs.signingKey, Audiences: audiences, MaxExpiration: options.MaxExpiration, KeepExpiration: !options.Extend,
	}); err != nil {
		return nil, err
	}
	host := c.HTTP.ExternalHostname
	if host == "" {
		host = advertisedAddress(c).String()
	}
	address := net.JoinHostPort(host, strconv.Itoa(c.SecurePort))
	if a.discovery, err = authn.NewDiscovery(options.Issuers[0], options.JWKSURI, address, keys); err != nil {
		return nil, err
	}
	return authn.NewServiceAccounts(authn.ServiceAccountsConfig{
		Issuers: options.Issuers, Keys: keys, Audiences: audiences, Objects: a.objects, SkipLookup: !options.Lookup, Log: a.log,
	})
}

// setIdentityProviders makes the authenticators of OpenID tokens: those of the AuthenticationConfiguration file, which is returned, or the
// one of the --oidc flags.
func (a *accessControl) setIdentityProviders(options *config.Authentication) (file *authn.Configuration, err error) {
	settings := authn.IdentityProvidersOptions{
		ServiceAccountIssuers: options.ServiceAccounts.Issuers, Egress: a.egress, Reloads: configfile.NewReloads("authentication", serverID()),
	}
	a.metrics = append(a.metrics, settings.Reloads)
	configuration := &authn.Configuration{}
	switch {
	case options.File != "":
		if file, err = authn.ReadConfiguration(options.File); err != nil {
			return nil, err
		}
		if file.Anonymous != nil && options.AnonymousGiven {
			return nil, field.Forbidden(field.NewPath("anonymous"), "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
		}
		a.authenticationConfig, configuration = options.File, file
	case options.OIDC.IssuerURL != "":
		o := &options.OIDC
		if configuration, err = (authn.OIDCFlags{
			IssuerURL: o.IssuerURL, ClientID: o.ClientID, CAFile: o.CAFile, UsernameClaim: o.UsernameClaim, UsernamePrefix: o.UsernamePrefix,
			GroupsClaim: o.GroupsClaim, GroupsPrefix: o.GroupsPrefix, RequiredClaims: o.RequiredClaims,
		}).Configuration(); err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		settings.Algorithms = o.SigningAlgs
	default:
		return nil, nil
	}
	a.identityProviders, err = authn.NewIdentityProviders(configuration, settings)
	return file, err
}

// serverID identifies the API server of this host in metrics.
func serverID() string {
	// Without a name all hosts are the same.
	host, _ := os.Hostname()
	return "apiserver-" + host
}

// setAuthorization makes the authorizers, and what checks the rights of users beyond single requests.
func (a *accessControl) setAuthorization(c config.Authorization) error {
	settings := authz.DefaultConfig()
	settings.Dial, settings.Reloads = a.egress.Dialer(egress.ControlPlane), configfile.NewReloads("authorization", serverID())
	a.metrics = append(a.metrics, settings.Reloads)
	settings.PolicyFile, settings.WebhookConfigFile, settings.WebhookVersion = c.PolicyFile, c.WebhookConfigFile, c.WebhookVersion
	settings.WebhookAuthorizedTTL, settings.WebhookUnauthorizedTTL = c.WebhookAuthorizedTTL, c.WebhookUnauthorizedTTL
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
			resource, _, ok := a.resourceOf(gvk)
			return resource.Resource, ok
		},
	}
	return nil
}

// setAdmission makes the admission plugins.
func (a *accessControl) setAdmission(c config.Admission) error {
	a.matchConditions = cel.NewMetrics()
	a.typeConverter = sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() })
	policies := policy.Options{
		Client:  func() kind.Client { return a.client },
		Objects: func() policy.Objects { return a.policy.Objects },
		Kinds: func(gvk schema.GroupVersionKind) (*kind.Kind, *kind.Version) {
			return a.kinds(gvk)
		},
		Authorizer: a.authorizer, TypeConverter: a.typeConverter, Conditions: a.matchConditions, Log: a.log,
	}
	mutating, err := policy.NewMutating(policies)
	if err != nil {
		return err
	}
	validating, err := policy.NewValidating(policies)
	if err != nil {
		return err
	}
	a.webhooks = newWebhooks(a)
	a.admission, err = admission.List(admission.Options{
		Client: func() kind.Client { return a.client }, Authorizer: a.authorizer, Resources: a.resourceOf,
		Extensions: map[string]admission.Plugin{
			policy.MutatingName: mutating, a.webhooks.mutating.Name(): a.webhooks.mutating,
			policy.ValidatingName: validating, a.webhooks.validating.Name(): a.webhooks.validating,
		},
		Enable: c.Enable, Disable: c.Disable, ConfigFile: c.ConfigFile,
		DefaultNotReadyTolerationSeconds: &c.NotReadySeconds, DefaultUnreachableTolerationSeconds: &c.UnreachableSeconds,
	})
	return err
}

// attach sets the server whose objects are read.
func (a *accessControl) attach(server *apiserver.Server) {
	a.client = server.KindClient()
	a.objects.Set(a.client)
	a.policy.Objects, a.local = server.Cached(), server.Local(apiServerUser)
	a.nodeGraph.Objects = a.policy.Objects
	a.kinds = server.KindOf
}

// resourceOf returns the resource of a served kind.
func (a *accessControl) resourceOf(gvk schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool) {
	k, _ := a.kinds(gvk)
	if k == nil {
		return schema.GroupVersionResource{}, false, false
	}
	return gvk.GroupVersion().WithResource(k.Plural), k.Namespaced, true
}

// run reloads the configuration files of authorizers and authenticators until ctx is done.
func (a *accessControl) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.authorizer.Run(ctx) })
	group.Go(func() error { return a.webhooks.run(ctx) })
	if a.authenticationConfig != "" {
		group.Go(func() error { return a.identityProviders.WatchFile(ctx, a.authenticationConfig, a.log) })
	}
	return group.Wait()
}

// syncNodeGraph keeps the Node authorizer up to date until ctx is done. The cache must be ready.
func (a *accessControl) syncNodeGraph(ctx context.Context, synced func()) error {
	return authz.SyncNodeGraph(ctx, a.local, a.nodeGraph, a.log, synced)
}

// followObjects keeps the indexes of admission plugins up to date until ctx is done. The cache must be ready.
func (a *accessControl) followObjects(ctx context.Context) error {
	return a.admission.Follow(ctx, a.local)
}
