package system

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api/core"
	"skiff/internal/api/scheduling"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authz"
	"skiff/internal/config"
	"skiff/internal/kind"
	"skiff/internal/kubelet/bootstrap"
)

// steps are what must have happened before the server is ready. Each shows as a check of its own.
type steps struct {
	names []string
	open  map[string]chan struct{}
}

func newSteps(names ...string) *steps {
	s := &steps{names: names, open: make(map[string]chan struct{}, len(names))}
	for _, name := range names {
		s.open[name] = make(chan struct{})
	}
	return s
}

// done marks a step as taken; to be called once for each.
func (s *steps) done(name string) { close(s.open[name]) }

// wait returns when all steps are taken, or false when ctx ends before.
func (s *steps) wait(ctx context.Context) bool {
	for _, name := range s.names {
		select {
		case <-s.open[name]:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (s *steps) checks() []apiserver.HealthCheck {
	var checks []apiserver.HealthCheck
	for _, name := range s.names {
		checks = append(checks, apiserver.HealthCheck{Name: "poststarthook/" + name, ReadinessOnly: true, Check: func(context.Context) error {
			select {
			case <-s.open[name]:
				return nil
			default:
				return errors.New("not finished")
			}
		}})
	}
	return checks
}

// prepareCluster makes everything a cluster has from its first moment.
func prepareCluster(ctx context.Context, env kind.Client, c config.Server, started *steps) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := ensureSystem(ctx, env, c); err != nil {
			return err
		}
		started.done("start-system-namespaces-controller")
		return nil
	})
	group.Go(func() error {
		if err := authz.Reconcile(ctx, env, authz.BootstrapPolicy()); err != nil {
			return fmt.Errorf("RBAC policy: %w", err)
		}
		started.done("rbac/bootstrap-roles")
		return nil
	})
	return group.Wait()
}

// wanted is one object the system needs.
type wanted struct {
	resource schema.GroupResource
	object   kind.Object
}

// ensureSystem creates what every cluster has from its first moment, and puts the server's own address where pods look for it.
// Objects that are there are left as they are: they may have been changed on purpose.
func ensureSystem(ctx context.Context, env kind.Client, c config.Server) error {
	var objects []wanted
	for _, n := range core.SystemNamespaces() {
		objects = append(objects, wanted{schema.GroupResource{Resource: "namespaces"}, n})
	}
	for _, p := range scheduling.SystemPriorityClasses() {
		objects = append(objects, wanted{schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}, p})
	}
	objects = append(objects, wanted{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, metricsReader()})
	for _, b := range nodeBindings() {
		objects = append(objects, wanted{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, b})
	}
	for _, o := range objects {
		if err := ensure(ctx, env, o); err != nil {
			return err
		}
	}
	return ensureOwnService(ctx, env, c)
}

// metricsReader lets everybody who may look at pods see what they use. Upstream's metrics server brings a role of this name.
func metricsReader() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-view":  "true",
			"rbac.authorization.k8s.io/aggregate-to-edit":  "true",
			"rbac.authorization.k8s.io/aggregate-to-admin": "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
	}
}

// nodeBindings let machines with a bootstrap token of the right group become nodes, and nodes renew their certificates, without a person who
// approves. The roles are upstream's own; kubeadm binds them likewise.
func nodeBindings() []*rbacv1.ClusterRoleBinding {
	var bindings []*rbacv1.ClusterRoleBinding
	for _, b := range []struct{ name, role, group string }{
		{"skiff:node-bootstrapper", "system:node-bootstrapper", bootstrap.NodeGroup},
		{"skiff:node-autoapprove", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", bootstrap.NodeGroup},
		{"skiff:node-autoapprove-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
	} {
		bindings = append(bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: b.group}},
		})
	}
	return bindings
}

// ensure creates an object unless it is there.
func ensure(ctx context.Context, env kind.Client, w wanted) error {
	_, err := env.Get(ctx, w.resource, w.object.GetNamespace(), w.object.GetName())
	if apierrors.IsNotFound(err) {
		_, err = env.Create(ctx, w.resource, w.object)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s %s: %w", w.resource, w.object.GetName(), err)
	}
	return nil
}

// ensureOwnService makes the ServiceCIDR, the service `kubernetes` and the addresses behind it.
func ensureOwnService(ctx context.Context, env kind.Client, c config.Server) error {
	prefixes, err := c.ServiceCIDRs()
	if err != nil {
		return err
	}
	var cidrs []string
	for _, p := range prefixes {
		cidrs = append(cidrs, p.String())
	}
	ranges := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	now := metav1.NewTime(time.Now())
	if err := ensure(ctx, env, wanted{ranges, core.NewDefaultServiceCIDR(cidrs, now)}); err != nil {
		return err
	}
	if _, err := env.Update(ctx, ranges, "", core.DefaultServiceCIDR, func(obj kind.Object) error {
		cidr := obj.(*networkingv1.ServiceCIDR)
		if len(cidr.Status.Conditions) == 0 {
			cidr.Status.Conditions = []metav1.Condition{core.DefaultServiceCIDRReady(now)}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("mark the service CIDR ready: %w", err)
	}
	first, err := core.FirstServiceIP(cidrs[0])
	if err != nil {
		return err
	}
	port := int32(c.SecurePort)
	if err := ensure(ctx, env, wanted{schema.GroupResource{Resource: "services"}, core.NewKubernetesService(first, port)}); err != nil {
		return err
	}
	own, ok := netip.AddrFromSlice(advertised(c))
	if !ok {
		return fmt.Errorf("advertised address %v is no address", advertised(c))
	}
	servers := []netip.Addr{own.Unmap()}
	// Endpoints may not be loopback addresses: a server that only listens there has none to offer.
	if own.Unmap().IsLoopback() {
		return nil
	}
	if err := ensureEqual(ctx, env, wanted{schema.GroupResource{Resource: "endpoints"}, core.NewKubernetesEndpoints(servers, port)}, func(to, from kind.Object) {
		to.(*corev1.Endpoints).Subsets = from.(*corev1.Endpoints).Subsets
	}); err != nil {
		return err
	}
	slices := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	return ensureEqual(ctx, env, wanted{slices, core.NewKubernetesEndpointSlice(servers, port)}, func(to, from kind.Object) {
		t, f := to.(*discoveryv1.EndpointSlice), from.(*discoveryv1.EndpointSlice)
		t.Endpoints, t.Ports, t.AddressType = f.Endpoints, f.Ports, f.AddressType
	})
}

// ensureEqual creates an object, or makes the one that is there say the same.
func ensureEqual(ctx context.Context, env kind.Client, w wanted, assign func(to, from kind.Object)) error {
	fresh := w.object.DeepCopyObject().(kind.Object)
	if err := ensure(ctx, env, w); err != nil {
		return err
	}
	_, err := env.Update(ctx, w.resource, fresh.GetNamespace(), fresh.GetName(), func(obj kind.Object) error {
		assign(obj, fresh)
		return nil
	})
	if err != nil {
		return fmt.Errorf("update %s %s: %w", w.resource, fresh.GetName(), err)
	}
	return nil
}

// repairInterval is how often allocations are compared with the services that should have them.
const repairInterval = 3 * time.Minute

// repairServices gives back addresses and ports that crashes have left allocated, now and again until ctx ends.
func repairServices(ctx context.Context, env kind.Client, c config.Server, log *slog.Logger) {
	var repair core.Repair
	ticker := time.NewTicker(repairInterval)
	defer ticker.Stop()
	for {
		if err := repair.Run(ctx, env, c.NodePortRange, time.Now()); err != nil && ctx.Err() == nil {
			log.Warn("repairing the allocations of services failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
