package network

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	balancerFinalizer = "service.kubernetes.io/load-balancer-cleanup"
	// BalancerClass is the loadBalancerClass of this controller. It also handles services without a class.
	BalancerClass = "skiff.io/node-address"
)

// DefaultReservedPorts are ports used by nodes: API server, kubelet, proxy health checks, etcd. No service may take them over.
var DefaultReservedPorts = []int32{2379, 2380, 6443, 10250, 10256}

// LoadBalancer assigns node addresses to services of type LoadBalancer. The proxy on every node accepts traffic to them at the
// service's ports, so no other hosts are needed. Each port can be used by one service: the oldest one. Services with another
// loadBalancerClass are ignored.
func LoadBalancer(reservedPorts []int32) controller.Definition {
	return controller.Definition{
		Name: "service-lb-controller", Aliases: []string{"service"}, Component: "service-controller", Queue: "service", Workers: 1,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &loadBalancers{
				reserved: reservedPorts,
				services: client.InformerFor[*corev1.Service](s.Informers),
				nodes:    client.InformerFor[*corev1.Node](s.Informers),
				slices:   client.InformerFor[*discoveryv1.EndpointSlice](s.Informers),
			}
			c.setup, c.syncService = s, controller.NewSyncer(s, c)
			return c, c.watch()
		},
	}
}

type loadBalancers struct {
	setup       *controller.Setup
	reserved    []int32
	services    client.Informer[*corev1.Service]
	nodes       client.Informer[*corev1.Node]
	slices      client.Informer[*discoveryv1.EndpointSlice]
	syncService controller.Syncer

	mu sync.Mutex
	// eligible are the nodes that accept external traffic, sorted by name, as of the last change of nodes that was processed; nil at first.
	eligible []*corev1.Node
}

const (
	// balancedByPort is the index of balanced services by their ports. All of them also have the value anyPort.
	balancedByPort = "balanced port"
	anyPort        = "any"
	// nodesDelay batches changes of nodes, each of which affects the addresses of all services.
	nodesDelay = time.Second
)

// allServices is the key under which all balanced services are enqueued. Keys of services have a namespace.
var allServices = controller.Key{Name: "services"}

func portValue(port corev1.ServicePort) string { return fmt.Sprintf("%d/%s", port.Port, port.Protocol) }

// withPort returns the balanced services that have a port, or all.
func (c *loadBalancers) withPort(value string) []*corev1.Service {
	// The index exists: watch added it.
	services, _ := c.services.ByIndex(balancedByPort, value)
	return services
}

func (c *loadBalancers) watch() error {
	err := c.services.EnsureIndex(balancedByPort, func(service *corev1.Service) []string {
		if !isBalanced(service) {
			return nil
		}
		values := []string{anyPort}
		for _, port := range service.Spec.Ports {
			values = append(values, portValue(port))
		}
		return values
	})
	if err != nil {
		return fmt.Errorf("index services by port: %w", err)
	}
	if err := indexSlices(c.slices); err != nil {
		return err
	}
	enqueue := func(service *corev1.Service) { c.setup.Enqueue(controller.KeyOf(service)) }
	portsReleased := func(service *corev1.Service) {
		for _, port := range service.Spec.Ports {
			for _, other := range c.withPort(portValue(port)) {
				enqueue(other)
			}
		}
	}
	onUpdate := func(old, service *corev1.Service) {
		enqueue(service)
		if isBalanced(old) && (!isBalanced(service) || service.DeletionTimestamp != nil || !apiequality.Semantic.DeepEqual(old.Spec.Ports, service.Spec.Ports)) {
			portsReleased(old)
		}
	}
	onDelete := func(service *corev1.Service) {
		if isBalanced(service) {
			portsReleased(service)
		}
	}
	if err := c.services.AddEventHandler(enqueue, onUpdate, onDelete); err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	nodesChanged := func(*corev1.Node) { c.setup.EnqueueAfter(allServices, nodesDelay) }
	onNodeUpdate := func(old, node *corev1.Node) {
		if isEligible(old) != isEligible(node) || !apiequality.Semantic.DeepEqual(old.Status.Addresses, node.Status.Addresses) {
			nodesChanged(node)
		}
	}
	if err := c.nodes.AddEventHandler(nodesChanged, onNodeUpdate, nodesChanged); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	// With externalTrafficPolicy Local, the addresses depend on the nodes of the endpoints.
	return controller.Watch(c.setup, func(slice *discoveryv1.EndpointSlice) []controller.Key {
		key := controller.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		if service, ok := c.services.Get(key.Namespace, key.Name); ok && isBalanced(service) && hasLocalPolicy(service) {
			return []controller.Key{key}
		}
		return nil
	})
}

// Sync reconciles a service, or enqueues all of them.
func (c *loadBalancers) Sync(ctx context.Context, key controller.Key) error {
	if key != allServices {
		return c.syncService.Sync(ctx, key)
	}
	c.mu.Lock()
	c.eligible = nil
	c.mu.Unlock()
	for _, service := range c.withPort(anyPort) {
		c.setup.Enqueue(controller.KeyOf(service))
	}
	return nil
}

// eligibleNodes returns the nodes that accept external traffic. They are the same for all services until nodes change.
func (c *loadBalancers) eligibleNodes() []*corev1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.eligible == nil {
		c.eligible = eligibleOf(c.nodes.List("", nil))
	}
	return c.eligible
}

// eligibleOf returns those of the nodes that accept external traffic, sorted by name. It reuses the slice.
func eligibleOf(nodes []*corev1.Node) []*corev1.Node {
	nodes = slices.DeleteFunc(nodes, func(node *corev1.Node) bool { return !isEligible(node) })
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// isBalanced reports whether this controller handles the service.
func isBalanced(service *corev1.Service) bool {
	class := service.Spec.LoadBalancerClass
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == BalancerClass)
}

func hasLocalPolicy(service *corev1.Service) bool {
	return service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// isEligible reports whether a node accepts external traffic.
func isEligible(node *corev1.Node) bool {
	if _, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]; excluded || node.DeletionTimestamp != nil {
		return false
	}
	return nodeReady(node)
}

// loadBalancerView is the observed state for the addresses of one service.
type loadBalancerView struct {
	service  *corev1.Service
	others   []*corev1.Service // other balanced services with one of its ports, the oldest first
	nodes    []*corev1.Node    // that accept external traffic, sorted by name
	serving  map[string]bool   // nodes with an endpoint that is used; nil: all nodes
	reserved []int32
}

// Size counts the nodes.
func (v loadBalancerView) Size() int { return len(v.nodes) }

// Observe gathers a service, other services that may use its ports, and the nodes.
func (c *loadBalancers) Observe(key controller.Key) (loadBalancerView, bool) {
	service, ok := c.services.Get(key.Namespace, key.Name)
	if !ok || !isBalanced(service) && !slices.Contains(service.Finalizers, balancerFinalizer) {
		return loadBalancerView{}, false
	}
	if class := service.Spec.LoadBalancerClass; class != nil && *class != BalancerClass {
		return loadBalancerView{}, false // the finalizer of another controller
	}
	v := loadBalancerView{service: service, nodes: c.eligibleNodes(), reserved: c.reserved}
	for _, port := range service.Spec.Ports {
		for _, other := range c.withPort(portValue(port)) {
			if other.UID != service.UID && other.DeletionTimestamp == nil && !slices.Contains(v.others, other) {
				v.others = append(v.others, other)
			}
		}
	}
	sortByAge(v.others)
	if hasLocalPolicy(service) {
		v.serving = map[string]bool{}
		for _, slice := range allSlicesOf(c.slices, key.Namespace, key.Name) {
			for _, e := range slice.Endpoints {
				if e.NodeName != nil && isUsed(e.Conditions) {
					v.serving[*e.NodeName] = true
				}
			}
		}
	}
	return v, true
}

// isUsed reports whether a proxy may send packets to an endpoint of its node: to ready ones, and as long as there are none, to those that still serve while
// they terminate. The node's address stays as long, so that clients that know it are not refused during a rolling update.
func isUsed(c discoveryv1.EndpointConditions) bool {
	return ptr.Deref(c.Ready, true) || ptr.Deref(c.Serving, false) && ptr.Deref(c.Terminating, false)
}

// Reconcile decides the addresses of a service.
func (c *loadBalancers) Reconcile(v loadBalancerView) controller.Plan { return v.reconcile() }

func (v loadBalancerView) reconcile() (plan controller.Plan) {
	hasFinalizer := slices.Contains(v.service.Finalizers, balancerFinalizer)
	recordEvent := func(eventType, reason, message string) {
		plan.Events = append(plan.Events, controller.Event{Object: v.service, Type: eventType, Reason: reason, Message: message})
	}
	if v.service.DeletionTimestamp != nil || !isBalanced(v.service) {
		if hasFinalizer {
			if v.service.DeletionTimestamp == nil && len(v.service.Status.LoadBalancer.Ingress) > 0 {
				plan.AddStep(v.patchStatus(nil))
			}
			plan.AddStep(controller.NewPatch(v.service, client.StrategicPatch, []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["`+balancerFinalizer+`"]}}`)).
				Ignoring(metav1.StatusReasonNotFound))
			recordEvent(corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
			recordEvent(corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
		}
		return plan
	}
	if !hasFinalizer {
		plan.AddStep(controller.NewPatch(v.service, client.StrategicPatch, []byte(`{"metadata":{"finalizers":["`+balancerFinalizer+`"]}}`)))
	}
	conflict := v.portConflict()
	var desired []corev1.LoadBalancerIngress
	if conflict == "" {
		desired = v.ingress()
	}
	if apiequality.Semantic.DeepEqual(desired, v.service.Status.LoadBalancer.Ingress) {
		if conflict != "" && !hasFinalizer {
			recordEvent(corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: "+conflict)
		}
		return plan
	}
	plan.AddStep(v.patchStatus(desired))
	switch {
	case conflict != "":
		recordEvent(corev1.EventTypeWarning, "SyncLoadBalancerFailed", "Error syncing load balancer: "+conflict)
	case len(desired) == 0:
		recordEvent(corev1.EventTypeWarning, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
	case len(v.service.Status.LoadBalancer.Ingress) == 0:
		recordEvent(corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
		recordEvent(corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	default:
		recordEvent(corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
	}
	return plan
}

// patchStatus replaces the ingress addresses of the status.
func (v loadBalancerView) patchStatus(ingress []corev1.LoadBalancerIngress) controller.Write {
	// Marshalling strings and numbers cannot fail.
	list, _ := json.Marshal(ingress)
	w := controller.NewPatch(v.service, client.MergePatch, []byte(`{"status":{"loadBalancer":{"ingress":`+string(list)+`}}}`))
	w.Verb = controller.PatchStatus
	return w
}

// portConflict returns why the service cannot use its ports, "" if it can.
func (v loadBalancerView) portConflict() string {
	for _, p := range v.service.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP && slices.Contains(v.reserved, p.Port) {
			return fmt.Sprintf("port %d/%s is reserved on nodes", p.Port, p.Protocol)
		}
		for _, other := range v.others {
			if !v.isOlder(other) {
				continue
			}
			if slices.ContainsFunc(other.Spec.Ports, func(o corev1.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol }) {
				return fmt.Sprintf("port %d/%s is in use by service %s/%s", p.Port, p.Protocol, other.Namespace, other.Name)
			}
		}
	}
	return ""
}

func (v loadBalancerView) isOlder(other *corev1.Service) bool {
	both := []kind.Object{v.service, other}
	sortByAge(both)
	return both[0] == kind.Object(other)
}

// ingress returns the addresses of the nodes in the service's families: external addresses, or internal ones if there are none.
func (v loadBalancerView) ingress() (list []corev1.LoadBalancerIngress) {
	families := addressTypes(v.service)
	for _, node := range v.nodes {
		if v.serving != nil && !v.serving[node.Name] {
			continue
		}
		for _, family := range families {
			if ip, ok := nodeAddress(node, family); ok {
				list = append(list, corev1.LoadBalancerIngress{IP: ip, IPMode: new(corev1.LoadBalancerIPModeVIP)})
			}
		}
	}
	return list
}

func nodeAddress(node *corev1.Node, family discoveryv1.AddressType) (string, bool) {
	for _, t := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range node.Status.Addresses {
			if ip, of, ok := canonicalIP(a.Address); ok && a.Type == t && of == family {
				return ip, true
			}
		}
	}
	return "", false
}
