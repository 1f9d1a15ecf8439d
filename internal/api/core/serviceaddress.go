package core

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/kind"
)

// DefaultServiceCIDR is the name of the ServiceCIDR that the cluster starts with. Its ranges determine the IP families of
// services, and the first of them the default family.
const DefaultServiceCIDR = "kubernetes"

// ipAllocator is the label value of the IPAddress objects of services.
const ipAllocator = "ipallocator.k8s.io"

var (
	serviceCIDRs = networkingv1.SchemeGroupVersion.WithResource("servicecidrs").GroupResource()
	ipAddresses  = networkingv1.SchemeGroupVersion.WithResource("ipaddresses").GroupResource()
	services     = corev1.SchemeGroupVersion.WithResource("services").GroupResource()
)

var (
	errRangeFull   = errors.New("range is full")
	errIPAllocated = errors.New("provided IP is already allocated")
	errIPForeign   = errors.New("the provided network does not match the current range")
)

// serviceNetwork is the content of the ServiceCIDR objects.
type serviceNetwork struct {
	families []corev1.IPFamily // configured in this cluster, the default one first
	ranges   []addressRange    // to allocate addresses from
}

func readServiceNetwork(ctx context.Context, client kind.Client) (*serviceNetwork, error) {
	objs, err := client.List(ctx, serviceCIDRs, "")
	if err != nil {
		return nil, fmt.Errorf("list service CIDRs: %w", err)
	}
	network := &serviceNetwork{}
	for _, obj := range objs {
		cidr := obj.(*networkingv1.ServiceCIDR)
		for _, text := range cidr.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			if cidr.Name == DefaultServiceCIDR {
				network.families = append(network.families, familyOf(prefix.Addr()))
			}
			if r := newAddressRange(prefix); r.usable() && isReady(cidr) && !slices.Contains(network.ranges, r) {
				network.ranges = append(network.ranges, r)
			}
		}
	}
	if len(network.families) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the default ServiceCIDR %q does not exist yet", DefaultServiceCIDR))
	}
	return network, nil
}

func isReady(cidr *networkingv1.ServiceCIDR) bool {
	if !cidr.DeletionTimestamp.IsZero() {
		return false
	}
	for _, condition := range cidr.Status.Conditions {
		if condition.Type == networkingv1.ServiceCIDRConditionReady {
			return condition.Status == metav1.ConditionTrue
		}
	}
	return true
}

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// parseIP parses an address in any form that was ever stored. The zero Addr means none.
func parseIP(text string) netip.Addr {
	ip, _ := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return ip.Unmap()
}

// addressRange is one CIDR. Its first address, and in IPv4 its last, are not allocated.
type addressRange struct {
	prefix netip.Prefix
	first  netip.Addr
	size   uint64 // number of usable addresses
	static uint64 // of these, the lower ones, used for dynamic allocation only when the others are exhausted
}

func newAddressRange(prefix netip.Prefix) addressRange {
	prefix = prefix.Masked()
	r := addressRange{prefix: prefix, first: prefix.Addr().Next()}
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	all := uint64(math.MaxUint64)
	if hostBits < 64 {
		all = 1 << hostBits
		r.size = all - 1
		if prefix.Addr().Is4() && r.size > 0 {
			r.size--
		}
	} else {
		r.size = math.MaxUint64
	}
	if all > 16 {
		r.static = min(max(16, all/16), 256)
	}
	return r
}

// usable excludes ranges without a usable address and IPv6 ranges whose size overflows.
func (r addressRange) usable() bool {
	return r.size > 0 && (r.prefix.Addr().Is4() || r.prefix.Bits() >= 64)
}

func (r addressRange) contains(ip netip.Addr) bool {
	return r.prefix.Contains(ip) && ip.Compare(r.first) >= 0 && ip.Compare(r.at(r.size-1)) <= 0
}

// at is the nth usable address.
func (r addressRange) at(n uint64) netip.Addr {
	if r.first.Is4() {
		ip := r.first.As4()
		binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(ip[:])+uint32(n))
		return netip.AddrFrom4(ip)
	}
	ip := r.first.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(ip[8:]), n, 0)
	binary.BigEndian.PutUint64(ip[8:], low)
	binary.BigEndian.PutUint64(ip[:8], binary.BigEndian.Uint64(ip[:8])+carry)
	return netip.AddrFrom16(ip)
}

// candidates yields every address once: those above the static band from a random start, then the static band.
func (r addressRange) candidates(yield func(netip.Addr) bool) {
	for _, band := range []struct{ from, count uint64 }{{r.static, r.size - r.static}, {0, r.static}} {
		if band.count == 0 {
			continue
		}
		start := rand.Uint64N(band.count)
		for i := range band.count {
			// The index wraps around without overflow.
			n := start + i
			if n < start || n >= band.count {
				n -= band.count
			}
			if !yield(r.at(band.from + n)) {
				return
			}
		}
	}
}

// addresses allocates the service's cluster IPs, or its second one.
func (a *allocation) addresses(old *corev1.Service) error {
	obj := a.service
	if !needsClusterIP(obj) || isSettled(obj, old) {
		return nil
	}
	network, err := readServiceNetwork(a.ctx, a.client)
	if err != nil {
		return err
	}
	if err := network.settleFamilies(obj, old); err != nil {
		return err
	}
	if isHeadless(obj) {
		return nil
	}
	from := 0
	if old != nil && needsClusterIP(old) {
		if isHeadless(old) || len(old.Spec.IPFamilies) != 1 || len(obj.Spec.IPFamilies) != 2 {
			return nil
		}
		from = 1
	}
	for len(obj.Spec.ClusterIPs) < len(obj.Spec.IPFamilies) {
		obj.Spec.ClusterIPs = append(obj.Spec.ClusterIPs, "")
	}
	for i := from; i < len(obj.Spec.IPFamilies); i++ {
		ip, err := a.address(network, obj.Spec.IPFamilies[i], obj.Spec.ClusterIPs[i])
		if err != nil {
			return err
		}
		obj.Spec.ClusterIPs[i] = ip
	}
	if from == 0 && len(obj.Spec.ClusterIPs) > 0 {
		obj.Spec.ClusterIP = obj.Spec.ClusterIPs[0]
	}
	return nil
}

// isSettled: a service that prefers two families, and whose addresses and families do not change, keeps those it has, even
// if the cluster could allocate more now.
func isSettled(obj, old *corev1.Service) bool {
	prefers := func(policy *corev1.IPFamilyPolicy) bool {
		return policy == nil || *policy == corev1.IPFamilyPolicyPreferDualStack
	}
	return old != nil && obj.Spec.IPFamilyPolicy != nil && prefers(obj.Spec.IPFamilyPolicy) && prefers(old.Spec.IPFamilyPolicy) &&
		old.Spec.Type == obj.Spec.Type && slices.Equal(obj.Spec.ClusterIPs, old.Spec.ClusterIPs) && slices.Equal(obj.Spec.IPFamilies, old.Spec.IPFamilies)
}

// address allocates the requested address, or any if none is requested.
func (a *allocation) address(network *serviceNetwork, family corev1.IPFamily, wanted string) (string, error) {
	path, ips := field.NewPath("spec", "clusterIPs"), a.service.Spec.ClusterIPs
	if wanted != "" {
		if err := a.takeIP(network, wanted); err != nil {
			return "", invalidService(a.service, field.Invalid(path, ips, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err)))
		}
		return wanted, nil
	}
	ip, err := a.takeNextIP(network, family)
	if errors.Is(err, errRangeFull) {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", a.service.Name, err))
	}
	if err != nil {
		return "", invalidService(a.service, field.Invalid(path, ips, fmt.Sprintf("failed to allocate IP: %v", err)))
	}
	return ip.String(), nil
}

func (a *allocation) takeIP(network *serviceNetwork, text string) error {
	ip := parseIP(text)
	if !slices.ContainsFunc(network.ranges, func(r addressRange) bool { return r.contains(ip) }) {
		return errIPForeign
	}
	return a.reserveIP(ip)
}

func (a *allocation) takeNextIP(network *serviceNetwork, family corev1.IPFamily) (netip.Addr, error) {
	for _, r := range network.ranges {
		if familyOf(r.first) != family {
			continue
		}
		for ip := range r.candidates {
			// The read is cheap; the create decides.
			if _, err := a.client.Get(a.ctx, ipAddresses, "", ip.String()); !apierrors.IsNotFound(err) {
				if err != nil {
					return ip, err
				}
				continue
			}
			if err := a.reserveIP(ip); !errors.Is(err, errIPAllocated) {
				return ip, err
			}
		}
	}
	return netip.Addr{}, errRangeFull
}

// reserveIP creates the object that records the owner of the address.
func (a *allocation) reserveIP(ip netip.Addr) error {
	if a.dryRun {
		_, err := a.client.Get(a.ctx, ipAddresses, "", ip.String())
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errIPAllocated
		}
		return err
	}
	_, err := a.client.Create(a.ctx, ipAddresses, newIPAddress(ip, a.service))
	if apierrors.IsAlreadyExists(err) {
		return errIPAllocated
	}
	if err == nil {
		a.takenIPs = append(a.takenIPs, ip.String())
	}
	return err
}

func newIPAddress(ip netip.Addr, owner *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
				networkingv1.LabelManagedBy:       ipAllocator,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: owner.Namespace, Name: owner.Name}},
	}
}

// releaseIP deletes the IPAddress if it belongs to this service: the address may have been allocated again meanwhile.
func releaseIP(ctx context.Context, client kind.Client, owner *corev1.Service, text string) error {
	name := parseIP(text).String()
	obj, err := client.Get(ctx, ipAddresses, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get IP address: %w", err)
	}
	if !belongsTo(obj.(*networkingv1.IPAddress), owner) {
		return nil
	}
	uid := obj.GetUID()
	err = client.Delete(ctx, ipAddresses, "", name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
