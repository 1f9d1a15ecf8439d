// Package network contains the controllers of Services: EndpointSlice, Endpoints and EndpointSlice mirroring, the ServiceCIDR
// controller, and a load balancer that uses node addresses.
//
// Labels, owners, annotations, conditions and events are those of upstream's controllers, so that either implementation can take
// over from the other in a running cluster.
package network

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// leaderElectionAnnotation marks Endpoints that are leader election locks.
const leaderElectionAnnotation = "control-plane.alpha.kubernetes.io/leader"

// slicesByService is the index of EndpointSlices by the key of their service.
const slicesByService = "service"

// indexSlices adds the index of slices by service.
func indexSlices(all client.Informer[*discoveryv1.EndpointSlice]) error {
	err := all.EnsureIndex(slicesByService, func(slice *discoveryv1.EndpointSlice) []string {
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("index slices by service: %w", err)
	}
	return nil
}

// allSlicesOf returns the slices of a service, whoever manages them.
func allSlicesOf(all client.Informer[*discoveryv1.EndpointSlice], namespace, service string) []*discoveryv1.EndpointSlice {
	// The index exists: indexSlices added it.
	found, _ := all.ByIndex(slicesByService, namespace+"/"+service)
	return found
}

// hasManagedEndpoints reports whether a service has a selector and is not an ExternalName.
func hasManagedEndpoints(service *corev1.Service) bool {
	return service.Spec.Selector != nil && service.Spec.Type != corev1.ServiceTypeExternalName
}

// podsOf returns the pods a service selects, sorted by name.
func podsOf(pods client.Informer[*corev1.Pod], service *corev1.Service) []*corev1.Pod {
	selected := pods.List(service.Namespace, labels.Set(service.Spec.Selector).AsSelectorPreValidated())
	slices.SortFunc(selected, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return selected
}

// errNoEndpoints: a service has no endpoints that controllers manage.
var errNoEndpoints = errors.New("the service has no selector or is an ExternalName")

// selectorOf returns the selector of a service.
func selectorOf(service *corev1.Service) (labels.Selector, error) {
	if !hasManagedEndpoints(service) {
		return nil, errNoEndpoints
	}
	return labels.SelectorFromSet(service.Spec.Selector), nil
}

// watchPods enqueues the services that select a pod when it changes in a way that affects endpoints. It returns the selectors of services.
func watchPods(s *controller.Setup) (client.Selectors[*corev1.Service], error) {
	services, err := client.SelectorsOf(s.Informers, selectorOf)
	if err != nil {
		return services, err
	}
	enqueue := func(pod *corev1.Pod) {
		for _, service := range services.Matching(pod) {
			s.Enqueue(controller.KeyOf(service))
		}
	}
	onUpdate := func(old, pod *corev1.Pod) {
		if !endpointsDiffer(old, pod) {
			return
		}
		if !maps.Equal(old.Labels, pod.Labels) {
			enqueue(old)
		}
		enqueue(pod)
	}
	pods := client.InformerFor[*corev1.Pod](s.Informers)
	if err := pods.EnsureLabelIndex(); err != nil {
		return services, fmt.Errorf("index pods by label: %w", err)
	}
	if err := pods.AddEventHandler(enqueue, onUpdate, enqueue); err != nil {
		return services, fmt.Errorf("watch pods: %w", err)
	}
	return services, nil
}

// endpointsDiffer reports whether a change of a pod affects endpoints.
func endpointsDiffer(old, pod *corev1.Pod) bool {
	return !maps.Equal(old.Labels, pod.Labels) || old.Spec.Hostname != pod.Spec.Hostname || old.Spec.Subdomain != pod.Spec.Subdomain ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) || podstate.IsReady(old) != podstate.IsReady(pod) || podstate.IsTerminal(old) != podstate.IsTerminal(pod) ||
		old.Spec.NodeName != pod.Spec.NodeName || old.Status.PodIP != pod.Status.PodIP || !slices.Equal(old.Status.PodIPs, pod.Status.PodIPs)
}

// isReachable reports whether a pod can be an endpoint: it has an address and is not terminal.
func isReachable(pod *corev1.Pod) bool {
	return !podstate.IsTerminal(pod) && (pod.Status.PodIP != "" || len(pod.Status.PodIPs) > 0)
}

// hostname is the DNS hostname of a pod in a service, "" if it has none.
func hostname(pod *corev1.Pod, service *corev1.Service) string {
	if pod.Spec.Subdomain == service.Name && pod.Namespace == service.Namespace {
		return pod.Spec.Hostname
	}
	return ""
}

// targetPort resolves a service port on a pod. Ports of sidecars count, those of other init containers do not.
func targetPort(pod *corev1.Pod, port *corev1.ServicePort) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		return port.TargetPort.IntVal, true
	}
	find := func(c *corev1.Container) (int32, bool) {
		for _, p := range c.Ports {
			if p.Name == port.TargetPort.StrVal && p.Protocol == port.Protocol {
				return p.ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range pod.Spec.Containers {
		if n, ok := find(&pod.Spec.Containers[i]); ok {
			return n, true
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if n, ok := find(c); ok {
			return n, true
		}
	}
	return 0, false
}

// isHeadless reports whether a service has no cluster IP.
func isHeadless(service *corev1.Service) bool {
	return service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == ""
}

// canonicalIP parses an address, which in old objects may have leading zeros, and returns its canonical form.
func canonicalIP(address string) (text string, family discoveryv1.AddressType, ok bool) {
	ip := netutils.ParseIPSloppy(address)
	if ip == nil {
		return "", "", false
	}
	if ip.To4() == nil {
		return ip.String(), discoveryv1.AddressTypeIPv6, true
	}
	return ip.String(), discoveryv1.AddressTypeIPv4, true
}

// namePrefix is the name and a dash, unless that is not a valid prefix.
func namePrefix(name string) string {
	if prefix := name + "-"; len(validation.NameIsDNSSubdomain(prefix, true)) == 0 {
		return prefix
	}
	return name
}

// triggerTimeAnnotation is the value of the last-change-trigger-time annotation; "" if unknown.
func triggerTimeAnnotation(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// setOrDelete sets a key of an annotation map, or deletes it when the value is empty. The map may be nil.
func setOrDelete(annotations map[string]string, key, value string) map[string]string {
	if value == "" {
		delete(annotations, key)
		return annotations
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	return annotations
}

// withoutKeys copies a map except for some keys.
func withoutKeys(m map[string]string, keys ...string) map[string]string {
	rest := make(map[string]string, len(m))
	for key, value := range m {
		if !slices.Contains(keys, key) {
			rest[key] = value
		}
	}
	return rest
}

// sortByAge sorts objects, the oldest first.
func sortByAge[T kind.Object](objs []T) {
	slices.SortFunc(objs, func(a, b T) int {
		at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(at.Compare(bt.Time), strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
}

// prefixes parses the CIDRs of a ServiceCIDR and skips invalid ones.
func prefixes(cidrs []string) (parsed []netip.Prefix) {
	for _, cidr := range cidrs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			parsed = append(parsed, p)
		}
	}
	return parsed
}

// ownedBy reports whether owner is one of the owners of obj.
func ownedBy(obj, owner kind.Object) bool {
	return slices.ContainsFunc(obj.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
}
