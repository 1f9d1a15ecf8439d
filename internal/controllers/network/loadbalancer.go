package network

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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
			return controller.NewSyncer(s, c), c.watch(s)
		},
	}
}

type loadBalancers struct {
	reserved []int32
	services client.Informer[*corev1.Service]
	nodes    client.Informer[*corev1.Node]
	slices   client.Informer[*discoveryv1.EndpointSlice]
}

func (c *loadBalancers) watch(s *controller.Setup) error {
	enqueueAll := func() {
		for _, service := range c.services.List("", nil) {
			if isBalanced(service) {
				s.Enqueue(controller.KeyOf(service))
			}
		}
	}
	onAdd := func(service *corev1.Service) { s.Enqueue(controller.KeyOf(service)) }
	onUpdate := func(old, service *corev1.Service) {
		s.Enqueue(controller.KeyOf(service))
		if isBalanced(old) && (!isBalanced(service) || service.DeletionTimestamp != nil || !apiequality.Semantic.DeepEqual(old.Spec.Ports, service.Spec.Ports)) {
			enqueueAll() // a port may have become free
		}
	}
	onDelete := func(service *corev1.Service) {
		if isBalanced(service) {
			enqueueAll()
		}
	}
	if err := c.services.AddEventHandler(onAdd, onUpdate, onDelete); err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	onNodeUpdate := func(old, node *corev1.Node) {
		if isEligible(old) != isEligible(node) || !apiequality.Semantic.DeepEqual(old.Status.Addresses, node.Status.Addresses) {
			enqueueAll()
		}
	}
	if err := c.nodes.AddEventHandler(func(*corev1.Node) { enqueueAll() }, onNodeUpdate, func(*corev1.Node) { enqueueAll() }); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	// With externalTrafficPolicy Local, the addresses depend on the nodes of the endpoints.
	return controller.Watch(s, func(slice *discoveryv1.EndpointSlice) []controller.Key {
		key := controller.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		if service, ok := c.services.Get(key.Namespace, key.Name); ok && isBalanced(service) && hasLocalPolicy(service) {
			return []controller.Key{key}
		}
		return nil
	})
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
	others   []*corev1.Service // other balanced services, the oldest first
	nodes    []*corev1.Node
	serving  map[string]bool // nodes with a ready endpoint; nil: all nodes
	reserved []int32
}

// Observe gathers a service, other services that may use its ports, and the nodes.
func (c *loadBalancers) Observe(key controller.Key) (loadBalancerView, bool) {
	service, ok := c.services.Get(key.Namespace, key.Name)
	if !ok || !isBalanced(service) && !slices.Contains(service.Finalizers, balancerFinalizer) {
		return loadBalancerView{}, false
	}
	if class := service.Spec.LoadBalancerClass; class != nil && *class != BalancerClass {
		return loadBalancerView{}, false // the finalizer of another controller
	}
	v := loadBalancerView{service: service, nodes: c.nodes.List("", nil), reserved: c.reserved}
	for _, other := range c.services.List("", nil) {
		if isBalanced(other) && other.UID != service.UID && other.DeletionTimestamp == nil {
			v.others = append(v.others, other)
		}
	}
	sortByAge(v.others)
	if hasLocalPolicy(service) {
		v.serving = map[string]bool{}
		for _, slice := range c.slices.List(key.Namespace, labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: key.Name})) {
			for _, e := range slice.Endpoints {
				if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					v.serving[*e.NodeName] = true
				}
			}
		}
	}
	return v, true
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
	nodes := slices.Clone(v.nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, node := range nodes {
		if !isEligible(node) || v.serving != nil && !v.serving[node.Name] {
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
