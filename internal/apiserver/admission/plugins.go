package admission

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// Options are the dependencies and the configuration of the plugins.
type Options struct {
	// Client returns the client that plugins read other objects with. It is called on use, because the server is made after the
	// plugins.
	Client func() kind.Client
	// Authorizer is used by plugins that require additional permissions.
	Authorizer authz.Authorizer
	// Resources returns the resource of a kind, for owner references.
	Resources func(schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool)

	// Extensions are the plugins that evaluate policies and call webhooks, by name. They are made by packages that import this one.
	// A plugin that is not among them does not run.
	Extensions map[string]Plugin

	// Enable and Disable are the names of plugins to enable or disable, in addition to the defaults.
	Enable, Disable []string
	// ConfigFile is the path of an AdmissionConfiguration, or "".
	ConfigFile string

	// DefaultNotReadyTolerationSeconds and DefaultUnreachableTolerationSeconds are the default toleration seconds of pods for
	// nodes that are not ready or unreachable. nil means five minutes.
	DefaultNotReadyTolerationSeconds, DefaultUnreachableTolerationSeconds *int64
}

// entry is a plugin of the list.
type entry struct {
	name    string
	enabled bool // by default
	make    func(o *Options, c *config) (Plugin, error)
}

// all plugins in the order in which they run. Webhooks and policies, which can change anything, must run before ResourceQuota,
// which must charge the final object.
var all = []entry{
	{"NamespaceLifecycle", true, func(o *Options, _ *config) (Plugin, error) { return &namespaceLifecycle{o.Client}, nil }},
	{"LimitRanger", true, func(o *Options, _ *config) (Plugin, error) { return &limitRanger{o.Client}, nil }},
	{"ServiceAccount", true, func(o *Options, _ *config) (Plugin, error) { return &serviceAccount{o.Client}, nil }},
	{"NodeRestriction", true, func(o *Options, _ *config) (Plugin, error) { return &nodeRestriction{o.Client, o.Authorizer}, nil }},
	{"TaintNodesByCondition", true, func(*Options, *config) (Plugin, error) { return taintNodesByCondition{}, nil }},
	{"AlwaysPullImages", false, func(*Options, *config) (Plugin, error) { return alwaysPullImages{}, nil }},
	{"PodSecurity", true, func(o *Options, c *config) (Plugin, error) { return newPodSecurity(o.Client, c.podSecurity) }},
	{"PodNodeSelector", false, func(o *Options, c *config) (Plugin, error) {
		return &podNodeSelector{o.Client, c.nodeSelector.Selectors}, nil
	}},
	{"Priority", true, func(o *Options, _ *config) (Plugin, error) { return &priority{o.Client}, nil }},
	{"DefaultTolerationSeconds", true, func(o *Options, _ *config) (Plugin, error) {
		return &defaultTolerationSeconds{defaultFiveMinutes(o.DefaultNotReadyTolerationSeconds), defaultFiveMinutes(o.DefaultUnreachableTolerationSeconds)}, nil
	}},
	{"EventRateLimit", false, func(_ *Options, c *config) (Plugin, error) { return newEventRateLimit(&c.eventLimits) }},
	{"ExtendedResourceToleration", false, func(*Options, *config) (Plugin, error) { return extendedResourceToleration{}, nil }},
	{"DefaultStorageClass", true, func(o *Options, _ *config) (Plugin, error) { return &defaultStorageClass{o.Client}, nil }},
	{"StorageObjectInUseProtection", true, func(*Options, *config) (Plugin, error) { return storageObjectInUseProtection{}, nil }},
	{"OwnerReferencesPermissionEnforcement", false, newOwnerReferences},
	{"PersistentVolumeClaimResize", true, func(o *Options, _ *config) (Plugin, error) { return &persistentVolumeClaimResize{o.Client}, nil }},
	{"RuntimeClass", true, func(o *Options, _ *config) (Plugin, error) { return &runtimeClass{o.Client}, nil }},
	{"CertificateApproval", true, func(o *Options, _ *config) (Plugin, error) { return certificateApproval{signers{o.Authorizer}}, nil }},
	{"CertificateSigning", true, func(o *Options, _ *config) (Plugin, error) { return certificateSigning{signers{o.Authorizer}}, nil }},
	{"ClusterTrustBundleAttest", true, func(o *Options, _ *config) (Plugin, error) {
		return clusterTrustBundleAttest{signers{o.Authorizer}}, nil
	}},
	{"CertificateSubjectRestriction", true, func(*Options, *config) (Plugin, error) { return certificateSubjectRestriction{}, nil }},
	{"DefaultIngressClass", true, func(o *Options, _ *config) (Plugin, error) { return &defaultIngressClass{o.Client}, nil }},
	{"DenyServiceExternalIPs", true, func(*Options, *config) (Plugin, error) { return denyServiceExternalIPs{}, nil }},
	{"PodTopologyLabels", true, func(o *Options, _ *config) (Plugin, error) { return &podTopologyLabels{o.Client}, nil }},
	{"NodeDeclaredFeatureValidator", true, func(o *Options, _ *config) (Plugin, error) { return newNodeDeclaredFeatureValidator(o.Client) }},
	{"PodResizeValidator", true, func(o *Options, _ *config) (Plugin, error) { return &podResizeValidator{o.Client}, nil }},
	extension("MutatingAdmissionPolicy"),
	extension("MutatingAdmissionWebhook"),
	extension("ValidatingAdmissionPolicy"),
	extension("ValidatingAdmissionWebhook"),
	{"ResourceQuota", true, func(o *Options, c *config) (Plugin, error) {
		return newResourceQuota(o.Client, c.quota.LimitedResources), nil
	}},
}

// extension is the entry of a plugin of Options.Extensions. The plugin is nil if it is not among them.
func extension(name string) entry {
	return entry{name, true, func(o *Options, c *config) (Plugin, error) {
		plugin := o.Extensions[name]
		if configurable, ok := plugin.(WebhookConfigurer); ok {
			return plugin, configurable.Configure(c.webhooks[name])
		}
		return plugin, nil
	}}
}

func newOwnerReferences(o *Options, _ *config) (Plugin, error) {
	if o.Resources == nil {
		return nil, errors.New("no resources to look up owners in")
	}
	return &ownerReferencesPermissionEnforcement{o.Authorizer, o.Resources}, nil
}

// Names are the names of all plugins in the order in which they run, and whether each is enabled by default.
func Names() (names []string, enabled []bool) {
	for _, e := range all {
		names, enabled = append(names, e.name), append(enabled, e.enabled)
	}
	return names, enabled
}

// List makes the enabled plugins in the order in which they run.
func List(o Options) (Chain, error) {
	if o.Client == nil || o.Authorizer == nil {
		return nil, errors.New("admission plugins need a client and an authorizer")
	}
	if err := checkNames(o.Enable, o.Disable); err != nil {
		return nil, err
	}
	c, err := readConfig(o.ConfigFile)
	if err != nil {
		return nil, err
	}
	var chain Chain
	for _, e := range all {
		if !slices.Contains(o.Enable, e.name) && (!e.enabled || slices.Contains(o.Disable, e.name)) {
			if slices.Contains(c.configured, e.name) {
				return nil, fmt.Errorf("admission configuration %s: %q is configured but not enabled: name it in --enable-admission-plugins, or remove its configuration", o.ConfigFile, e.name)
			}
			continue
		}
		plugin, err := e.make(&o, c)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", e.name, err)
		}
		if plugin != nil {
			chain = append(chain, plugin)
		}
	}
	return chain, nil
}

func checkNames(enable, disable []string) error {
	known, _ := Names()
	for _, name := range enable {
		if !slices.Contains(known, name) {
			return fmt.Errorf("enable-admission-plugins plugin %q is unknown", name)
		}
		if slices.Contains(disable, name) {
			return fmt.Errorf("[%s] in enable-admission-plugins and disable-admission-plugins overlapped", name)
		}
	}
	for _, name := range disable {
		if !slices.Contains(known, name) {
			return fmt.Errorf("disable-admission-plugins plugin %q is unknown", name)
		}
	}
	return nil
}
