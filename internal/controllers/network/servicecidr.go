package network

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	cidrFinalizer = "networking.k8s.io/service-cidr-finalizer"
	// addressManager is the managed-by label of IPAddresses of the API server.
	addressManager = "ipallocator.k8s.io"
	// cidrDeletionDelay is the time a ServiceCIDR is kept after its deletion, until all API servers have stopped allocating from
	// it.
	cidrDeletionDelay = 10 * time.Second
)

// ServiceCIDR maintains the Ready condition of ServiceCIDRs and keeps a finalizer on them while IPAddresses depend on them.
var ServiceCIDR = controller.Definition{
	Name: "service-cidr-controller", Queue: "ipaddresses", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &serviceCIDRs{
			cidrs:     client.InformerFor[*networkingv1.ServiceCIDR](s.Informers),
			addresses: client.InformerFor[*networkingv1.IPAddress](s.Informers),
		}
		// A change of a ServiceCIDR affects whether overlapping ones can be deleted.
		if err := controller.Watch(s, func(cidr *networkingv1.ServiceCIDR) (keys []controller.Key) {
			for _, other := range c.cidrs.List("", nil) {
				if overlap(cidr, other) {
					keys = append(keys, controller.KeyOf(other))
				}
			}
			return append(keys, controller.KeyOf(cidr))
		}); err != nil {
			return nil, err
		}
		// So do creations and deletions of addresses.
		enqueue := func(address *networkingv1.IPAddress) {
			for _, cidr := range containing(c.cidrs.List("", nil), address) {
				s.Enqueue(controller.KeyOf(cidr))
			}
		}
		if err := c.addresses.AddEventHandler(enqueue, nil, enqueue); err != nil {
			return nil, fmt.Errorf("watch addresses: %w", err)
		}
		return controller.NewSyncer(s, c), nil
	},
}

type serviceCIDRs struct {
	cidrs     client.Informer[*networkingv1.ServiceCIDR]
	addresses client.Informer[*networkingv1.IPAddress]
}

// cidrView is the observed state of one range.
type cidrView struct {
	cidr      *networkingv1.ServiceCIDR
	all       []*networkingv1.ServiceCIDR
	addresses []*networkingv1.IPAddress // only if it is being deleted
	now       time.Time
}

// Observe gathers a ServiceCIDR; if it is being deleted, also all others and all addresses.
func (c *serviceCIDRs) Observe(key controller.Key) (cidrView, bool) {
	cidr, ok := c.cidrs.Get("", key.Name)
	if !ok {
		return cidrView{}, false
	}
	v := cidrView{cidr: cidr, now: time.Now()}
	if cidr.DeletionTimestamp != nil {
		v.all, v.addresses = c.cidrs.List("", nil), c.addresses.List("", nil)
	}
	return v, true
}

// Reconcile decides whether a ServiceCIDR is ready or can be deleted.
func (c *serviceCIDRs) Reconcile(v cidrView) controller.Plan { return v.reconcile() }

func (v cidrView) reconcile() (plan controller.Plan) {
	hasFinalizer := slices.Contains(v.cidr.Finalizers, cidrFinalizer)
	if v.cidr.DeletionTimestamp == nil {
		if !hasFinalizer {
			plan.AddStep(controller.NewPatch(v.cidr, client.StrategicPatch, []byte(`{"metadata":{"finalizers":["`+cidrFinalizer+`"]}}`)).
				Ignoring(metav1.StatusReasonNotFound))
		}
		plan.Status = v.readyCondition(metav1.ConditionTrue, "", "Kubernetes Service CIDR is ready")
		return plan
	}
	if !v.canDelete() {
		plan.Status = v.readyCondition(metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating,
			"There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR")
		return plan
	}
	if delay := cidrDeletionDelay - v.now.Sub(v.cidr.DeletionTimestamp.Time); delay > 0 {
		plan.Requeue(delay)
		return plan
	}
	if hasFinalizer {
		plan.AddStep(controller.NewPatch(v.cidr, client.StrategicPatch, []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["`+cidrFinalizer+`"]}}`)).
			Ignoring(metav1.StatusReasonNotFound))
	}
	return plan
}

// readyCondition returns the status update for the Ready condition, if it differs. After other writes it is left to the next sync.
func (v cidrView) readyCondition(status metav1.ConditionStatus, reason, message string) func(controller.ApplyResult) kind.Object {
	return func(result controller.ApplyResult) kind.Object {
		current := meta.FindStatusCondition(v.cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		if result.Err != nil || len(result.Written) > 0 ||
			current != nil && current.Status == status && current.Reason == reason && current.Message == message {
			return nil
		}
		changed := v.cidr.DeepCopy()
		meta.SetStatusCondition(&changed.Status.Conditions, metav1.Condition{
			Type: networkingv1.ServiceCIDRConditionReady, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(v.now)})
		return changed
	}
}

// canDelete reports whether every address would still be covered by another ServiceCIDR.
func (v cidrView) canDelete() bool {
	covered := true
	for _, prefix := range prefixes(v.cidr.Spec.CIDRs) {
		if !slices.ContainsFunc(v.all, func(other *networkingv1.ServiceCIDR) bool {
			return other.Name != v.cidr.Name && slices.ContainsFunc(prefixes(other.Spec.CIDRs), func(p netip.Prefix) bool {
				return p.Bits() <= prefix.Bits() && p.Contains(prefix.Addr())
			})
		}) {
			covered = false
		}
	}
	if covered {
		return true
	}
	return !slices.ContainsFunc(v.addresses, func(address *networkingv1.IPAddress) bool {
		ranges := containing(v.all, address)
		return len(ranges) == 1 && ranges[0].Name == v.cidr.Name && v.hasFamily(address.Labels[networkingv1.LabelIPAddressFamily])
	})
}

// hasFamily reports whether the ServiceCIDR contains the family of an IPAddress label.
func (v cidrView) hasFamily(label string) bool {
	return slices.ContainsFunc(prefixes(v.cidr.Spec.CIDRs), func(p netip.Prefix) bool {
		if p.Addr().Is4() {
			return label == string(corev1.IPv4Protocol)
		}
		return label == string(corev1.IPv6Protocol)
	})
}

// containing returns the ServiceCIDRs that contain an address allocated by the API server.
func containing(all []*networkingv1.ServiceCIDR, address *networkingv1.IPAddress) (ranges []*networkingv1.ServiceCIDR) {
	ip, err := netip.ParseAddr(address.Name)
	if err != nil || address.Labels[networkingv1.LabelManagedBy] != addressManager {
		return nil
	}
	for _, cidr := range all {
		if slices.ContainsFunc(prefixes(cidr.Spec.CIDRs), func(p netip.Prefix) bool { return isAllocatable(p, ip) }) {
			ranges = append(ranges, cidr)
		}
	}
	return ranges
}

// isAllocatable reports whether an address can be allocated from a prefix: not the network address, nor the IPv4 broadcast
// address.
func isAllocatable(p netip.Prefix, ip netip.Addr) bool {
	return p.Contains(ip) && ip != p.Masked().Addr() && !(ip.Is4() && !p.Contains(ip.Next()))
}

func overlap(a, b *networkingv1.ServiceCIDR) bool {
	for _, p := range prefixes(a.Spec.CIDRs) {
		if slices.ContainsFunc(prefixes(b.Spec.CIDRs), p.Overlaps) {
			return true
		}
	}
	return false
}
