package network

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// mirrorManager is the managed-by label of the slices of this controller.
const mirrorManager = "endpointslicemirroring-controller.k8s.io"

// DefaultMirroredPerSubset is the default maximum number of addresses mirrored per subset.
const DefaultMirroredPerSubset = 1000

var endpointsKind = corev1.SchemeGroupVersion.WithKind("Endpoints")

// EndpointSliceMirroring creates slices for the Endpoints that users create for services without a selector: proxies read slices
// only. At most perSubset addresses of a subset are mirrored.
func EndpointSliceMirroring(perSubset int) controller.Definition {
	return controller.Definition{
		Name: "endpointslice-mirroring-controller", Aliases: []string{"endpointslicemirroring"}, Queue: "endpoint_slice_mirroring", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &mirroring{
				maxPerSubset: perSubset,
				services:     client.InformerFor[*corev1.Service](s.Informers),
				endpoints:    client.InformerFor[*corev1.Endpoints](s.Informers),
				slices:       client.InformerFor[*discoveryv1.EndpointSlice](s.Informers),
			}
			if err := indexSlices(c.slices); err != nil {
				return nil, err
			}
			if err := controller.WatchPrimary[*corev1.Endpoints](s); err != nil {
				return nil, err
			}
			enqueue := func(service *corev1.Service) { s.Enqueue(controller.KeyOf(service)) }
			onUpdate := func(old, service *corev1.Service) {
				if (old.Spec.Selector == nil) != (service.Spec.Selector == nil) {
					enqueue(service)
				}
			}
			if err := c.services.AddEventHandler(enqueue, onUpdate, enqueue); err != nil {
				return nil, fmt.Errorf("watch services: %w", err)
			}
			if err := controller.Watch(s, func(slice *discoveryv1.EndpointSlice) []controller.Key {
				return serviceKeyOf(slice, mirrorManager)
			}); err != nil {
				return nil, err
			}
			return controller.NewSyncer(s, c), nil
		},
	}
}

type mirroring struct {
	maxPerSubset int
	services     client.Informer[*corev1.Service]
	endpoints    client.Informer[*corev1.Endpoints]
	slices       client.Informer[*discoveryv1.EndpointSlice]
}

// mirrorView is the observed state for the mirror of one Endpoints object.
type mirrorView struct {
	endpoints    *corev1.Endpoints // nil if deleted or not to be mirrored
	slices       []*discoveryv1.EndpointSlice
	maxPerSubset int
}

// Observe gathers Endpoints and their slices.
func (c *mirroring) Observe(key controller.Key) (mirrorView, bool) {
	v := mirrorView{slices: slicesOf(c.slices, key.Namespace, key.Name, mirrorManager), maxPerSubset: c.maxPerSubset}
	service, found := c.services.Get(key.Namespace, key.Name)
	if e, ok := c.endpoints.Get(key.Namespace, key.Name); ok && found && service.Spec.Selector == nil && shouldMirror(e) {
		v.endpoints = e
	}
	return v, v.endpoints != nil || len(v.slices) > 0
}

// shouldMirror reports whether Endpoints are mirrored: not if they are leader election locks or have the skip-mirror label.
func shouldMirror(e *corev1.Endpoints) bool {
	_, lock := e.Annotations[leaderElectionAnnotation]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

// Reconcile decides which slices to create, update and delete.
func (c *mirroring) Reconcile(v mirrorView) controller.Plan { return v.reconcile() }

func (v mirrorView) reconcile() (plan controller.Plan) {
	if v.endpoints == nil {
		addSteps(&plan, sliceChanges{remove: v.slices}, nil)
		return plan
	}
	groups, invalid, skipped := v.desiredGroups()
	var changes sliceChanges
	for _, slice := range v.slices {
		if !slices.ContainsFunc(groups, func(g *mirrorGroup) bool { return g.matches(slice) }) {
			changes.remove = append(changes.remove, slice)
		}
	}
	for _, group := range groups {
		v.reconcileGroup(group, &changes)
	}
	changes.recycle(func(*discoveryv1.EndpointSlice) bool { return true })
	if v.endpoints.DeletionTimestamp != nil {
		changes.create = nil
	}
	if invalid > 0 {
		plan.Events = append(plan.Events, controller.Event{Object: v.endpoints, Type: corev1.EventTypeWarning, Reason: "InvalidIPAddress",
			Message: fmt.Sprintf("Skipped %d invalid IP addresses when mirroring to EndpointSlices", invalid)})
	}
	if skipped > 0 {
		plan.Events = append(plan.Events, controller.Event{Object: v.endpoints, Type: corev1.EventTypeWarning, Reason: "TooManyAddressesToMirror",
			Message: fmt.Sprintf("A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", v.maxPerSubset, invalid+skipped)})
	}
	addSteps(&plan, changes, nil)
	return plan
}

// mirrorGroup is the group of endpoints of one slice: same family, same ports.
type mirrorGroup struct {
	family    discoveryv1.AddressType
	key       string
	ports     []discoveryv1.EndpointPort
	endpoints endpointSet
}

func (g *mirrorGroup) matches(slice *discoveryv1.EndpointSlice) bool {
	return slice.AddressType == g.family && portsKey(slice.Ports) == g.key
}

// desiredGroups returns the desired content of the slices, and the number of invalid and of skipped addresses.
func (v mirrorView) desiredGroups() (groups []*mirrorGroup, invalid, skipped int) {
	for _, subset := range repack(v.endpoints.Subsets) {
		ports := []discoveryv1.EndpointPort{}
		for i := range subset.Ports {
			p := &subset.Ports[i]
			ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
		}
		group := func(family discoveryv1.AddressType) *mirrorGroup {
			desired := &mirrorGroup{family: family, key: portsKey(ports), ports: ports}
			i := slices.IndexFunc(groups, func(g *mirrorGroup) bool { return g.family == family && g.key == desired.key })
			if i < 0 {
				groups = append(groups, desired)
				return desired
			}
			return groups[i]
		}
		added := 0
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for i := range addresses {
				endpoint, family, ok := mirrorAddress(&addresses[i], ready)
				switch {
				case added >= v.maxPerSubset:
					skipped++
				case !ok:
					invalid++
				default:
					group(family).endpoints.add(endpoint)
					added++
				}
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
	}
	return groups, invalid, skipped
}

func mirrorAddress(a *corev1.EndpointAddress, ready bool) (*discoveryv1.Endpoint, discoveryv1.AddressType, bool) {
	address, family, ok := canonicalIP(a.IP)
	if !ok {
		return nil, "", false
	}
	e := &discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e, family, true
}

// reconcileGroup reduces the slices of a group to one with the desired endpoints.
func (v mirrorView) reconcileGroup(group *mirrorGroup, changes *sliceChanges) {
	var existing []*discoveryv1.EndpointSlice
	for _, slice := range v.slices {
		if group.matches(slice) {
			existing = append(existing, slice)
		}
	}
	desired := v.newSlice(group)
	if len(existing) == 0 {
		changes.create = append(changes.create, desired)
		return
	}
	changes.remove = append(changes.remove, existing[1:]...)
	if v.upToDate(existing[0], desired) {
		return
	}
	changed := existing[0].DeepCopy()
	changed.Labels, changed.Annotations, changed.OwnerReferences = desired.Labels, desired.Annotations, desired.OwnerReferences
	changed.Ports, changed.Endpoints = desired.Ports, desired.Endpoints
	changes.update = append(changes.update, changed)
}

func (v mirrorView) upToDate(slice, want *discoveryv1.EndpointSlice) bool {
	if len(slice.Endpoints) != len(want.Endpoints) || !maps.Equal(slice.Labels, want.Labels) || !maps.Equal(slice.Annotations, want.Annotations) ||
		!ownedBy(slice, v.endpoints) {
		return false
	}
	var set endpointSet
	for i := range want.Endpoints {
		set.add(&want.Endpoints[i])
	}
	for i := range slice.Endpoints {
		if wanted := set.take(&slice.Endpoints[i]); wanted == nil || !sameEndpoint(wanted, &slice.Endpoints[i]) {
			return false
		}
	}
	return true
}

// newSlice returns the slice of a group, with the labels and annotations of the Endpoints.
func (v mirrorView) newSlice(group *mirrorGroup) *discoveryv1.EndpointSlice {
	e := v.endpoints
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, GenerateName: namePrefix(e.Name),
			Labels:          withoutKeys(e.Labels, discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy),
			Annotations:     withoutKeys(e.Annotations, corev1.EndpointsLastChangeTriggerTime, corev1.LastAppliedConfigAnnotation),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, endpointsKind)},
		},
		AddressType: group.family, Ports: group.ports,
	}
	slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = e.Name, mirrorManager
	group.endpoints.fill(slice, v.maxPerSubset)
	return slice
}
