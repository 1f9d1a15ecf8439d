package network

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/trafficdist"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// sliceManager is the managed-by label of the slices of this controller.
const sliceManager = "endpointslice-controller.k8s.io"

// DefaultEndpointsPerSlice is the default maximum number of endpoints per slice.
const DefaultEndpointsPerSlice = 100

var serviceKind = corev1.SchemeGroupVersion.WithKind("Service")

// EndpointSlice publishes the pods of every service with a selector as EndpointSlices of at most endpointsPerSlice endpoints.
func EndpointSlice(endpointsPerSlice int) controller.Definition {
	return controller.Definition{
		Name: "endpointslice-controller", Aliases: []string{"endpointslice"}, Component: "endpoint-slice-controller", Queue: "endpoint_slice", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &endpointSlices{
				setup: s, maxEndpoints: endpointsPerSlice,
				services:     client.InformerFor[*corev1.Service](s.Informers),
				pods:         client.InformerFor[*corev1.Pod](s.Informers),
				nodes:        client.InformerFor[*corev1.Node](s.Informers),
				slices:       client.InformerFor[*discoveryv1.EndpointSlice](s.Informers),
				triggerTimes: endpointsliceutil.NewTriggerTimeTracker(),
				topology:     topologycache.NewTopologyCache(),
				zoneCPUs:     newZoneCPUs(),
				metrics:      newSliceMetrics(),
			}
			if err := s.Register(c.metrics); err != nil {
				return nil, err
			}
			c.syncService = controller.NewSyncer(s, c)
			nodesCounted, err := c.watch()
			return controller.AfterInitialEvents(s, nodesCounted, c), err
		},
	}
}

type endpointSlices struct {
	setup        *controller.Setup
	maxEndpoints int
	services     client.Informer[*corev1.Service]
	pods         client.Informer[*corev1.Pod]
	nodes        client.Informer[*corev1.Node]
	slices       client.Informer[*discoveryv1.EndpointSlice]
	triggerTimes *endpointsliceutil.TriggerTimeTracker
	// topology tracks the CPUs and endpoints of zones for topology aware hints. It is stateful: hints change only when the
	// imbalance is large.
	topology *topologycache.TopologyCache
	zoneCPUs *zoneCPUs
	// selectors finds the services of a pod.
	selectors   client.Selectors[*corev1.Service]
	syncService controller.Syncer
	metrics     *sliceMetrics
}

// watch returns whether zoneCPUs has observed all nodes of the initial list.
func (c *endpointSlices) watch() (nodesCounted func() bool, err error) {
	if err := controller.WatchPrimary[*corev1.Service](c.setup); err != nil {
		return nil, err
	}
	if c.selectors, err = watchPods(c.setup); err != nil {
		return nil, err
	}
	if err := controller.IndexPodsByNode(c.pods); err != nil {
		return nil, err
	}
	if err := indexSlices(c.slices); err != nil {
		return nil, err
	}
	if err := controller.Watch(c.setup, func(slice *discoveryv1.EndpointSlice) []controller.Key {
		return serviceKeyOf(slice, sliceManager)
	}); err != nil {
		return nil, err
	}
	if nodesCounted, err = c.watchNodes(); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	return nodesCounted, nil
}

func (c *endpointSlices) watchNodes() (hasSynced func() bool, err error) {
	onChange := func(node *corev1.Node) {
		if c.zoneCPUs.observe(node) {
			c.setup.EnqueueAfter(topologyKey, topologyDelay)
		}
	}
	onAdd := func(node *corev1.Node) { onChange(node); c.enqueueForNode(node) }
	onUpdate := func(old, node *corev1.Node) {
		onChange(node)
		if zoneOf(old) != zoneOf(node) {
			c.enqueueForNode(node)
		}
	}
	onDelete := func(node *corev1.Node) {
		if c.zoneCPUs.remove(node) {
			c.setup.EnqueueAfter(topologyKey, topologyDelay)
		}
		c.enqueueForNode(node)
	}
	return c.nodes.AddEventHandlerWithSync(onAdd, onUpdate, onDelete)
}

// enqueueForNode enqueues the services with pods on a node, since their endpoints depend on its existence and zone.
func (c *endpointSlices) enqueueForNode(node *corev1.Node) {
	for _, pod := range controller.PodsOnNode(c.pods, node.Name) {
		for _, service := range c.selectors.Matching(pod) {
			c.setup.Enqueue(controller.KeyOf(service))
		}
	}
}

// Sync reconciles the slices of a service, or compares the zones with the hints of all services.
func (c *endpointSlices) Sync(ctx context.Context, key controller.Key) error {
	c.zoneCPUs.update(c.topology)
	if key == topologyKey {
		c.enqueueOverloaded()
		return nil
	}
	return c.syncService.Sync(ctx, key)
}

// enqueueOverloaded enqueues the services whose hints no longer fit the zones.
func (c *endpointSlices) enqueueOverloaded() {
	for _, key := range c.topology.GetOverloadedServices() {
		namespace, name, _ := strings.Cut(key, "/")
		c.setup.Enqueue(controller.Key{Namespace: namespace, Name: name})
	}
}

// serviceKeyOf returns the key of the service of a slice, if the slice is managed by manager.
func serviceKeyOf(slice *discoveryv1.EndpointSlice, manager string) []controller.Key {
	name := slice.Labels[discoveryv1.LabelServiceName]
	if slice.Labels[discoveryv1.LabelManagedBy] != manager || name == "" {
		return nil
	}
	return []controller.Key{{Namespace: slice.Namespace, Name: name}}
}

// slicesView is the observed state for the slices of one service.
type slicesView struct {
	service      *corev1.Service
	pods         []*corev1.Pod
	nodes        map[string]*corev1.Node // the nodes of the pods
	slices       []*discoveryv1.EndpointSlice
	maxEndpoints int
	triggerTime  time.Time
	topology     *topologycache.TopologyCache
}

// Size counts the pods.
func (v slicesView) Size() int { return len(v.pods) }

// Observe gathers a service, its pods and its slices.
func (c *endpointSlices) Observe(key controller.Key) (slicesView, bool) {
	service, ok := c.services.Get(key.Namespace, key.Name)
	if !ok {
		c.triggerTimes.DeleteService(key.Namespace, key.Name)
		c.metrics.forget(key)
		return slicesView{}, false // the garbage collector deletes the slices
	}
	if !hasManagedEndpoints(service) {
		c.metrics.forget(key)
		return slicesView{}, false
	}
	v := slicesView{service: service, pods: podsOf(c.pods, service), nodes: map[string]*corev1.Node{}, maxEndpoints: c.maxEndpoints, topology: c.topology}
	for _, pod := range v.pods {
		if node, ok := c.nodes.Get("", pod.Spec.NodeName); ok {
			v.nodes[node.Name] = node
		}
	}
	v.slices = slicesOf(c.slices, service.Namespace, service.Name, sliceManager)
	v.triggerTime = c.triggerTimes.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, v.pods)
	return v, true
}

// slicesOf returns the slices of a service with the managed-by label, sorted by name, without those being deleted.
func slicesOf(all client.Informer[*discoveryv1.EndpointSlice], namespace, service, manager string) []*discoveryv1.EndpointSlice {
	found := slices.DeleteFunc(allSlicesOf(all, namespace, service), func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelManagedBy] != manager || s.DeletionTimestamp != nil
	})
	slices.SortFunc(found, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// Reconcile decides which slices to create, update and delete.
func (c *endpointSlices) Reconcile(v slicesView) controller.Plan {
	plan := v.reconcile()
	c.metrics.reconciled(v, plan)
	return plan
}

func (v slicesView) reconcile() controller.Plan {
	var all sliceChanges
	var plan controller.Plan
	families := addressTypes(v.service)
	for _, slice := range v.slices {
		if !slices.Contains(families, slice.AddressType) {
			v.topology.RemoveHints(v.key(), slice.AddressType)
			all.remove = append(all.remove, slice)
		}
	}
	for _, family := range families {
		changes, events := v.reconcileFamily(family)
		changes.recycle(func(slice *discoveryv1.EndpointSlice) bool { return ownedBy(slice, v.service) })
		all.create = append(all.create, changes.create...)
		all.update = append(all.update, changes.update...)
		all.remove = append(all.remove, changes.remove...)
		plan.Events = append(plan.Events, events...)
	}
	if v.service.DeletionTimestamp != nil {
		all.create = nil // the garbage collector would delete them
	}
	for _, slice := range slices.Concat(all.create, all.update) {
		slice.Annotations = setOrDelete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime, triggerTimeAnnotation(v.triggerTime))
	}
	if err := v.missingNodeErrors(); err != nil {
		plan.Events = append(plan.Events, v.failureEvent(err.Error()))
	}
	addSteps(&plan, all, func(what string) controller.Event {
		return v.failureEvent(fmt.Sprintf("failed to %s for Service %s: %%s", what, v.key()))
	})
	return plan
}

func (v slicesView) failureEvent(message string) controller.Event {
	return controller.Event{Object: v.service, Type: corev1.EventTypeWarning, Reason: "FailedToUpdateEndpointSlices",
		Message: fmt.Sprintf("Error updating Endpoint Slices for Service %s: %s", v.key(), message)}
}

// missingNodeErrors returns an error for the pods that are skipped because their nodes do not exist, or nil.
func (v slicesView) missingNodeErrors() error {
	var missing []error
	for _, pod := range v.pods {
		if isReachable(pod) && v.isOnUnknownNode(pod) {
			missing = append(missing, fmt.Errorf("skipping Pod %s for Service %s: Node %s Not Found", pod.Name, v.key(), pod.Spec.NodeName))
		}
	}
	return utilerrors.NewAggregate(missing)
}

// isOnUnknownNode reports whether a pod is skipped because its node does not exist. Services with publishNotReadyAddresses include
// it.
func (v slicesView) isOnUnknownNode(pod *corev1.Pod) bool {
	return v.nodes[pod.Spec.NodeName] == nil && !v.service.Spec.PublishNotReadyAddresses
}

// addSteps plans creates first and deletes last, so that no address is missing in between. failureEvent returns the event of a
// failed write; nil: no events.
func addSteps(plan *controller.Plan, changes sliceChanges, failureEvent func(what string) controller.Event) {
	withEvent := func(w controller.Write, what string) controller.Write {
		if failureEvent == nil {
			return w
		}
		return w.OnFailure(failureEvent(what))
	}
	var create, update, remove []controller.Write
	for _, slice := range changes.create {
		create = append(create, withEvent(controller.NewCreate(slice), "create EndpointSlice"))
	}
	for _, slice := range changes.update {
		update = append(update, withEvent(controller.NewUpdate(slice), "update "+slice.Name+" EndpointSlice"))
	}
	for _, slice := range changes.remove {
		remove = append(remove, withEvent(controller.NewDelete(slice), "delete "+slice.Name+" EndpointSlice"))
	}
	plan.AddStep(create...)
	plan.AddStep(update...)
	plan.AddStep(remove...)
}

func (v slicesView) key() string { return v.service.Namespace + "/" + v.service.Name }

// reconcileFamily reconciles the slices of one IP family.
func (v slicesView) reconcileFamily(family discoveryv1.AddressType) (changes sliceChanges, events []controller.Event) {
	var existing []*discoveryv1.EndpointSlice
	byPorts := map[string][]*discoveryv1.EndpointSlice{}
	for _, slice := range v.slices {
		if slice.AddressType != family {
			continue
		}
		existing = append(existing, slice)
		if ownedBy(slice, v.service) {
			key := portsKey(slice.Ports)
			byPorts[key] = append(byPorts[key], slice)
		} else {
			changes.remove = append(changes.remove, slice) // of a former service of that name
		}
	}
	groups := v.desiredEndpoints(family)
	for _, group := range groups {
		p := slicePacker{maxEndpoints: v.maxEndpoints, relabel: v.labels, newSlice: func() *discoveryv1.EndpointSlice { return v.newSlice(group.ports, family) }}
		packed := p.pack(byPorts[group.key], &group.endpoints)
		changes.create = append(changes.create, packed.create...)
		changes.update = append(changes.update, packed.update...)
		changes.remove = append(changes.remove, packed.remove...)
	}
	for _, slice := range existing {
		wanted := slices.ContainsFunc(groups, func(g *portGroup) bool { return g.key == portsKey(slice.Ports) })
		if !wanted && ownedBy(slice, v.service) {
			changes.remove = append(changes.remove, slice)
		}
	}
	// A service without endpoints has one empty slice, so that watchers can tell "no endpoints" from "not yet known".
	if len(existing) == len(changes.remove) && len(changes.create) == 0 {
		placeholder := v.newSlice([]discoveryv1.EndpointPort{}, family)
		if len(changes.remove) == 1 && isPlaceholder(changes.remove[0], placeholder) {
			changes.remove = nil
		} else {
			changes.create = append(changes.create, placeholder)
		}
	}
	return v.addHints(family, existing, changes)
}

// portGroup is a group of endpoints with the same ports.
type portGroup struct {
	key       string
	ports     []discoveryv1.EndpointPort
	endpoints endpointSet
}

// desiredEndpoints returns the desired endpoints of a family, grouped by ports.
func (v slicesView) desiredEndpoints(family discoveryv1.AddressType) (groups []*portGroup) {
	for _, pod := range v.pods {
		if !isReachable(pod) {
			continue
		}
		ports := v.ports(pod)
		key := portsKey(ports)
		i := slices.IndexFunc(groups, func(g *portGroup) bool { return g.key == key })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &portGroup{key: key, ports: ports})
		}
		if v.isOnUnknownNode(pod) {
			continue
		}
		if endpoint := v.endpoint(pod, v.nodes[pod.Spec.NodeName], family); len(endpoint.Addresses) > 0 {
			groups[i].endpoints.add(endpoint)
		}
	}
	return groups
}

// ports resolves the service's ports on a pod. Named ports may differ between pods.
func (v slicesView) ports(pod *corev1.Pod) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for i := range v.service.Spec.Ports {
		p := &v.service.Spec.Ports[i]
		if number, ok := targetPort(pod, p); ok {
			ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &number, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
		}
	}
	return ports
}

func (v slicesView) endpoint(pod *corev1.Pod, node *corev1.Node, family discoveryv1.AddressType) *discoveryv1.Endpoint {
	serving, terminating := podstate.IsReady(pod), pod.DeletionTimestamp != nil
	ready := v.service.Spec.PublishNotReadyAddresses || serving && !terminating
	e := &discoveryv1.Endpoint{
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	for _, ip := range pod.Status.PodIPs {
		if address, of, ok := canonicalIP(ip.IP); ok && of == family {
			e.Addresses = append(e.Addresses, address)
		}
	}
	if pod.Spec.NodeName != "" {
		e.NodeName = &pod.Spec.NodeName
	}
	if node != nil && zoneOf(node) != "" {
		e.Zone = new(zoneOf(node))
	}
	if name := hostname(pod, v.service); name != "" {
		e.Hostname = &name
	}
	return e
}

// addHints adds topology hints if the service requests them, and removes them otherwise.
func (v slicesView) addHints(family discoveryv1.AddressType, existing []*discoveryv1.EndpointSlice, changes sliceChanges) (sliceChanges, []controller.Event) {
	var events []controller.Event
	annotated := topologyAnnotation(v.service)
	distribution := v.service.Spec.TrafficDistribution
	if annotated || !isKnownTrafficDistribution(distribution) {
		distribution = nil
	}
	info := &topologycache.SliceInfo{
		ServiceKey: v.key(), AddressType: family, ToCreate: changes.create, ToUpdate: changes.update, Unchanged: changes.unchanged(existing),
	}
	if annotated {
		var builders []*topologycache.EventBuilder
		changes.create, changes.update, builders = v.topology.AddHints(klog.Background(), info)
		for _, e := range builders {
			events = append(events, controller.Event{Object: v.service, Type: e.EventType, Reason: e.Reason, Message: e.Message})
		}
		return changes, events
	}
	if v.topology.HasPopulatedHints(v.key()) {
		events = append(events, controller.Event{Object: v.service, Type: corev1.EventTypeWarning, Reason: "TopologyAwareHintsDisabled",
			Message: topologycache.FormatWithAddressType(topologycache.TopologyAwareHintsDisabled, family)})
	}
	v.topology.RemoveHints(v.key(), family)
	if distribution == nil {
		changes.create, changes.update = topologycache.RemoveHintsFromSlices(info)
	} else {
		changes.create, changes.update, _ = trafficdist.ReconcileHints(distribution, changes.create, changes.update, changes.unchanged(existing))
	}
	return changes, events
}

func isKnownTrafficDistribution(distribution *string) bool {
	return distribution != nil && slices.Contains([]string{corev1.ServiceTrafficDistributionPreferClose,
		corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}, *distribution)
}

// topologyAnnotation reports whether a service requests hints by annotation. The deprecated annotation takes precedence.
func topologyAnnotation(service *corev1.Service) bool {
	value, ok := service.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		value = service.Annotations[corev1.AnnotationTopologyMode]
	}
	return value == "Auto" || value == "auto"
}

// newSlice returns a slice without endpoints.
func (v slicesView) newSlice(ports []discoveryv1.EndpointPort, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.service.Namespace, GenerateName: namePrefix(v.service.Name),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(v.service, serviceKind)},
		},
		AddressType: family, Ports: ports, Endpoints: []discoveryv1.Endpoint{},
	}
	slice.Labels, _ = v.labels(slice)
	return slice
}

// reservedLabels are set by the controller; all other labels are copied from the service.
var reservedLabels = []string{discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService}

func (v slicesView) labels(slice *discoveryv1.EndpointSlice) (map[string]string, bool) {
	desired := withoutKeys(v.service.Labels, reservedLabels...)
	changed := !maps.Equal(desired, withoutKeys(slice.Labels, reservedLabels...))
	if isHeadless(v.service) {
		desired[corev1.IsHeadlessService] = ""
	}
	desired[discoveryv1.LabelServiceName], desired[discoveryv1.LabelManagedBy] = v.service.Name, sliceManager
	return desired, changed
}

// isPlaceholder reports whether a slice is the empty slice of a service without endpoints.
func isPlaceholder(slice, placeholder *discoveryv1.EndpointSlice) bool {
	return len(slice.Endpoints) == 0 && len(slice.Ports) == 0 && maps.Equal(slice.Labels, placeholder.Labels) &&
		apiequality.Semantic.DeepEqual(slice.OwnerReferences, placeholder.OwnerReferences)
}

// addressTypes returns the IP families of a service. Without spec.ipFamilies it is derived from the cluster IP; headless services
// may have both.
func addressTypes(service *corev1.Service) []discoveryv1.AddressType {
	var types []discoveryv1.AddressType
	for _, family := range service.Spec.IPFamilies {
		types = append(types, discoveryv1.AddressType(family))
	}
	if len(types) > 0 {
		return types
	}
	if _, family, ok := canonicalIP(service.Spec.ClusterIP); ok {
		return []discoveryv1.AddressType{family}
	}
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}
