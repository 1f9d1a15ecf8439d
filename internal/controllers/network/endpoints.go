package network

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	endpointsliceutil "k8s.io/endpointslice/util"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// endpointsManagedBy is the label of the Endpoints of this controller.
const (
	endpointsManagedBy = "endpoints.kubernetes.io/managed-by"
	endpointsManager   = "endpoint-controller"
)

// Endpoints publishes the pods of every service with a selector as Endpoints, the older API: one object with all addresses.
var Endpoints = controller.Definition{
	Name: "endpoints-controller", Aliases: []string{"endpoint"}, Component: endpointsManager, Queue: "endpoint", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &endpoints{
			setup:        s,
			services:     client.InformerFor[*corev1.Service](s.Informers),
			pods:         client.InformerFor[*corev1.Pod](s.Informers),
			endpoints:    client.InformerFor[*corev1.Endpoints](s.Informers),
			triggerTimes: endpointsliceutil.NewTriggerTimeTracker(),
		}
		if err := controller.WatchPrimary[*corev1.Service](s); err != nil {
			return nil, err
		}
		if _, err := watchPods(s); err != nil {
			return nil, err
		}
		// Only deletions matter: Endpoints may be created before their service, and those of services without a selector are
		// managed by users.
		onDelete := func(e *corev1.Endpoints) {
			if _, ok := c.services.Get(e.Namespace, e.Name); ok {
				s.Enqueue(controller.KeyOf(e))
			}
		}
		if err := c.endpoints.AddEventHandler(nil, nil, onDelete); err != nil {
			return nil, fmt.Errorf("watch endpoints: %w", err)
		}
		return endpointsSyncer{controller.NewSyncer(s, c), c}, nil
	},
}

type endpoints struct {
	setup        *controller.Setup
	services     client.Informer[*corev1.Service]
	pods         client.Informer[*corev1.Pod]
	endpoints    client.Informer[*corev1.Endpoints]
	triggerTimes *endpointsliceutil.TriggerTimeTracker
}

// endpointsSyncer also enqueues all Endpoints once at the start, to delete those whose service was deleted meanwhile.
type endpointsSyncer struct {
	controller.Syncer
	endpoints *endpoints
}

func (s endpointsSyncer) Run(ctx context.Context) error {
	for _, e := range s.endpoints.endpoints.List("", nil) {
		if _, lock := e.Annotations[leaderElectionAnnotation]; !lock {
			s.endpoints.setup.Enqueue(controller.KeyOf(e))
		}
	}
	<-ctx.Done()
	return nil
}

// endpointsView is the observed state for the Endpoints of one service.
type endpointsView struct {
	service     *corev1.Service // nil if deleted
	pods        []*corev1.Pod
	current     *corev1.Endpoints // nil if missing
	triggerTime time.Time
}

// Size counts the pods.
func (v endpointsView) Size() int { return len(v.pods) }

// Observe gathers a service, its pods and its Endpoints.
func (c *endpoints) Observe(key controller.Key) (v endpointsView, ok bool) {
	v.current, _ = c.endpoints.Get(key.Namespace, key.Name)
	if v.service, ok = c.services.Get(key.Namespace, key.Name); !ok {
		c.triggerTimes.DeleteService(key.Namespace, key.Name)
		return endpointsView{current: v.current}, v.current != nil
	}
	if !hasManagedEndpoints(v.service) {
		return endpointsView{}, false
	}
	v.pods = podsOf(c.pods, v.service)
	v.triggerTime = c.triggerTimes.ComputeEndpointLastChangeTriggerTime(key.Namespace, v.service, v.pods)
	return v, true
}

// Reconcile decides the content of the Endpoints.
func (c *endpoints) Reconcile(v endpointsView) controller.Plan { return v.reconcile() }

func (v endpointsView) reconcile() (plan controller.Plan) {
	if v.service == nil {
		plan.AddStep(controller.NewDelete(v.current))
		return plan
	}
	subsets := v.subsets()
	labels := v.labels()
	if v.current != nil && v.upToDate(subsets, labels) {
		return plan
	}
	desired := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: v.service.Namespace, Name: v.service.Name}}
	if v.current != nil {
		desired = v.current.DeepCopy()
	}
	overCapacity := ""
	if truncate(subsets) {
		overCapacity = "truncated"
	}
	desired.Subsets, desired.Labels = subsets, labels
	desired.Annotations = setOrDelete(desired.Annotations, corev1.EndpointsLastChangeTriggerTime, triggerTimeAnnotation(v.triggerTime))
	desired.Annotations = setOrDelete(desired.Annotations, corev1.EndpointsOverCapacity, overCapacity)
	name := v.service.Namespace + "/" + v.service.Name
	if v.current == nil {
		plan.AddStep(controller.NewCreate(desired).OnFailure(controller.Event{Object: desired, Type: corev1.EventTypeWarning,
			Reason: "FailedToCreateEndpoint", Message: "Failed to create endpoint for service " + name + ": %s"}))
	} else {
		plan.AddStep(controller.NewUpdate(desired).OnFailure(controller.Event{Object: desired, Type: corev1.EventTypeWarning,
			Reason: "FailedToUpdateEndpoint", Message: "Failed to update endpoint " + name + ": %s"}))
	}
	return plan
}

func (v endpointsView) labels() map[string]string {
	labels := withoutKeys(v.service.Labels, corev1.IsHeadlessService)
	if isHeadless(v.service) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[endpointsManagedBy] = endpointsManager
	return labels
}

func (v endpointsView) upToDate(subsets []corev1.EndpointSubset, labels map[string]string) bool {
	addresses := 0
	for _, s := range v.current.Subsets {
		addresses += len(s.Addresses) + len(s.NotReadyAddresses)
	}
	_, truncated := v.current.Annotations[corev1.EndpointsOverCapacity]
	ignored := corev1.IsHeadlessService // does not cause an update on its own
	return addresses <= maxAddresses && !truncated && maps.Equal(withoutKeys(v.current.Labels, ignored), withoutKeys(labels, ignored)) &&
		apiequality.Semantic.DeepEqual(clearResourceVersions(repack(v.current.Subsets)), subsets)
}

// clearResourceVersions clears the resource versions of the target references.
func clearResourceVersions(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	for i := range subsets {
		for _, list := range [][]corev1.EndpointAddress{subsets[i].Addresses, subsets[i].NotReadyAddresses} {
			for j := range list {
				if ref := list[j].TargetRef; ref != nil && ref.ResourceVersion != "" {
					plain := *ref
					plain.ResourceVersion = ""
					list[j].TargetRef = &plain
				}
			}
		}
	}
	return subsets
}

// subsets returns the desired addresses of the service.
func (v endpointsView) subsets() []corev1.EndpointSubset {
	var subsets []corev1.EndpointSubset
	for _, pod := range v.pods {
		if !isReachable(pod) || pod.DeletionTimestamp != nil && !v.service.Spec.PublishNotReadyAddresses {
			continue
		}
		address, ok := v.address(pod)
		if !ok {
			continue
		}
		add := func(ports []corev1.EndpointPort) {
			subset := corev1.EndpointSubset{Ports: ports}
			if v.service.Spec.PublishNotReadyAddresses || podstate.IsReady(pod) {
				subset.Addresses = []corev1.EndpointAddress{address}
			} else {
				subset.NotReadyAddresses = []corev1.EndpointAddress{address}
			}
			subsets = append(subsets, subset)
		}
		if len(v.service.Spec.Ports) == 0 && v.service.Spec.ClusterIP == corev1.ClusterIPNone {
			add(nil)
		}
		for i := range v.service.Spec.Ports {
			p := &v.service.Spec.Ports[i]
			if number, ok := targetPort(pod, p); ok {
				add([]corev1.EndpointPort{{Name: p.Name, Port: number, Protocol: p.Protocol, AppProtocol: p.AppProtocol}})
			}
		}
	}
	return repack(subsets)
}

// address returns the address of a pod in the service's primary IP family.
func (v endpointsView) address(pod *corev1.Pod) (corev1.EndpointAddress, bool) {
	family := discoveryv1.AddressTypeIPv4
	if len(v.service.Spec.IPFamilies) > 0 {
		family = discoveryv1.AddressType(v.service.Spec.IPFamilies[0])
	} else if _, of, ok := canonicalIP(v.service.Spec.ClusterIP); ok {
		family = of
	} else if _, of, ok := canonicalIP(pod.Status.PodIP); ok {
		family = of
	}
	for _, ip := range pod.Status.PodIPs {
		if address, of, ok := canonicalIP(ip.IP); ok && of == family {
			return corev1.EndpointAddress{
				IP: address, Hostname: hostname(pod, v.service), NodeName: &pod.Spec.NodeName,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			}, true
		}
	}
	return corev1.EndpointAddress{}, false
}
