package admission

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// Options are what plugins need to know of the server and of its configuration.
type Options struct {
	// Env gives access to other objects. It is called when a plugin needs one, because the server is made after the plugins.
	Env func() kind.Client
	// Authorizer answers the plugins that ask whether a user may do something else, too.
	Authorizer authz.Authorizer
	// Resources finds the resource that serves a kind, for owners of objects.
	Resources func(schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool)

	// Enable and Disable name plugins to add to, or take from, those that are on by default.
	Enable, Disable []string
	// ConfigFile is the path of an AdmissionConfiguration; "" is none.
	ConfigFile string

	// DefaultNotReadyTolerationSeconds and DefaultUnreachableTolerationSeconds are how long pods stay on a node that is
	// not ready, or cannot be reached. nil means five minutes.
	DefaultNotReadyTolerationSeconds, DefaultUnreachableTolerationSeconds *int64
}

// entry is a line of the list of plugins.
type entry struct {
	name string
	on   bool // by default
	make func(o *Options, c *config) (Plugin, error)
}

// all is every plugin there is, in the order in which they run. Webhooks and policies, which can change anything, have their
// place before ResourceQuota, which must charge what is stored in the end.
var all = []entry{
	{"NamespaceLifecycle", true, func(o *Options, _ *config) (Plugin, error) { return &namespaceLifecycle{o.Env}, nil }},
	{"LimitRanger", true, func(o *Options, _ *config) (Plugin, error) { return &limitRanger{o.Env}, nil }},
	{"ServiceAccount", true, func(o *Options, _ *config) (Plugin, error) { return &serviceAccount{o.Env}, nil }},
	{"NodeRestriction", true, func(o *Options, _ *config) (Plugin, error) { return &nodeRestriction{o.Env, o.Authorizer}, nil }},
	{"TaintNodesByCondition", true, func(*Options, *config) (Plugin, error) { return taintNodesByCondition{}, nil }},
	{"AlwaysPullImages", false, func(*Options, *config) (Plugin, error) { return alwaysPullImages{}, nil }},
	{"PodSecurity", true, func(o *Options, c *config) (Plugin, error) { return newPodSecurity(o.Env, c.podSecurity) }},
	{"PodNodeSelector", false, func(o *Options, c *config) (Plugin, error) {
		return &podNodeSelector{o.Env, c.nodeSelector.Selectors}, nil
	}},
	{"Priority", true, func(o *Options, _ *config) (Plugin, error) { return &priority{o.Env}, nil }},
	{"DefaultTolerationSeconds", true, func(o *Options, _ *config) (Plugin, error) {
		return &defaultTolerationSeconds{orFiveMinutes(o.DefaultNotReadyTolerationSeconds), orFiveMinutes(o.DefaultUnreachableTolerationSeconds)}, nil
	}},
	{"EventRateLimit", false, func(_ *Options, c *config) (Plugin, error) { return newEventRateLimit(&c.eventLimits) }},
	{"ExtendedResourceToleration", false, func(*Options, *config) (Plugin, error) { return extendedResourceToleration{}, nil }},
	{"DefaultStorageClass", true, func(o *Options, _ *config) (Plugin, error) { return &defaultStorageClass{o.Env}, nil }},
	{"StorageObjectInUseProtection", true, func(*Options, *config) (Plugin, error) { return storageObjectInUseProtection{}, nil }},
	{"OwnerReferencesPermissionEnforcement", false, newOwnerReferences},
	{"PersistentVolumeClaimResize", true, func(o *Options, _ *config) (Plugin, error) { return &persistentVolumeClaimResize{o.Env}, nil }},
	{"RuntimeClass", true, func(o *Options, _ *config) (Plugin, error) { return &runtimeClass{o.Env}, nil }},
	{"CertificateApproval", true, func(o *Options, _ *config) (Plugin, error) { return certificateApproval{signers{o.Authorizer}}, nil }},
	{"CertificateSigning", true, func(o *Options, _ *config) (Plugin, error) { return certificateSigning{signers{o.Authorizer}}, nil }},
	{"ClusterTrustBundleAttest", true, func(o *Options, _ *config) (Plugin, error) {
		return clusterTrustBundleAttest{signers{o.Authorizer}}, nil
	}},
	{"CertificateSubjectRestriction", true, func(*Options, *config) (Plugin, error) { return certificateSubjectRestriction{}, nil }},
	{"DefaultIngressClass", true, func(o *Options, _ *config) (Plugin, error) { return &defaultIngressClass{o.Env}, nil }},
	{"DenyServiceExternalIPs", true, func(*Options, *config) (Plugin, error) { return denyServiceExternalIPs{}, nil }},
	{"PodTopologyLabels", true, func(o *Options, _ *config) (Plugin, error) { return &podTopologyLabels{o.Env}, nil }},
	{"NodeDeclaredFeatureValidator", true, func(o *Options, _ *config) (Plugin, error) { return newNodeDeclaredFeatureValidator(o.Env) }},
	{"PodResizeValidator", true, func(o *Options, _ *config) (Plugin, error) { return &podResizeValidator{o.Env}, nil }},
	{"ResourceQuota", true, func(o *Options, c *config) (Plugin, error) {
		return newResourceQuota(o.Env, c.quota.LimitedResources), nil
	}},
}

func newOwnerReferences(o *Options, _ *config) (Plugin, error) {
	if o.Resources == nil {
		return nil, errors.New("it must be told which resource serves a kind")
	}
	return &ownerReferencesPermissionEnforcement{o.Authorizer, o.Resources}, nil
}

// Names are the names of all plugins, in the order in which they run, and whether each is on by default.
func Names() (names []string, on []bool) {
	for _, e := range all {
		names, on = append(names, e.name), append(on, e.on)
	}
	return names, on
}

// List makes the plugins that are to run, in their order.
func List(o Options) (Chain, error) {
	if o.Env == nil || o.Authorizer == nil {
		return nil, errors.New("admission plugins need access to objects and an authorizer")
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
		if !slices.Contains(o.Enable, e.name) && (!e.on || slices.Contains(o.Disable, e.name)) {
			continue
		}
		plugin, err := e.make(&o, c)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", e.name, err)
		}
		chain = append(chain, plugin)
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
