package system

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api/core"
	"skiff/internal/api/flowcontrol"
	"skiff/internal/api/scheduling"
	"skiff/internal/apiserver"
	"skiff/internal/config"
	"skiff/internal/kind"
)

// bootstrapped says whether the system's own objects are there.
type bootstrapped struct {
	done atomic.Bool
}

func (b *bootstrapped) check() apiserver.HealthCheck {
	return apiserver.HealthCheck{Name: "poststarthook/start-system-namespaces-controller", OnlyReady: true, Check: func(context.Context) error {
		if !b.done.Load() {
			return errors.New("the system's own objects are being created")
		}
		return nil
	}}
}

// wanted is one object the system needs.
type wanted struct {
	resource schema.GroupResource
	object   kind.Object
}

// bootstrap creates what every cluster has from its first moment, and puts the server's own address where pods look for it.
// Objects that are there are left as they are: they may have been changed on purpose.
func bootstrap(ctx context.Context, env kind.Env, c config.Server) error {
	var objects []wanted
	for _, n := range core.SystemNamespaces() {
		objects = append(objects, wanted{schema.GroupResource{Resource: "namespaces"}, n})
	}
	for _, p := range scheduling.SystemPriorityClasses() {
		objects = append(objects, wanted{schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}, p})
	}
	for _, f := range []flowcontrol.Configuration{flowcontrol.Mandatory(), flowcontrol.Suggested()} {
		for _, l := range f.PriorityLevels {
			objects = append(objects, wanted{schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}, l})
		}
		for _, s := range f.FlowSchemas {
			objects = append(objects, wanted{schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}, s})
		}
	}
	for _, o := range objects {
		if err := ensure(ctx, env, o); err != nil {
			return err
		}
	}
	return ensureOwnService(ctx, env, c)
}

// ensure creates an object unless it is there.
func ensure(ctx context.Context, env kind.Env, w wanted) error {
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
func ensureOwnService(ctx context.Context, env kind.Env, c config.Server) error {
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
func ensureEqual(ctx context.Context, env kind.Env, w wanted, assign func(to, from kind.Object)) error {
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
