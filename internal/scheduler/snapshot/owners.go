package snapshot

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ownerSelectors holds the selectors of Services and controllers, from which default topology spread constraints are derived.
type ownerSelectors struct {
	services               map[string]map[string]map[string]string // by namespace, name: the selector
	replicationControllers map[OwnerKey]labels.Set                 // selectors of ReplicationControllers
	// Controllers holds the label selectors of ReplicaSets and StatefulSets.
	Controllers map[OwnerKey]labels.Selector
}

type OwnerKey struct{ APIVersion, Kind, Namespace, Name string }

func newOwnerSelectors() ownerSelectors {
	return ownerSelectors{services: map[string]map[string]map[string]string{}, replicationControllers: map[OwnerKey]labels.Set{}, Controllers: map[OwnerKey]labels.Selector{}}
}

// SetService adds or updates the selector of a Service.
func (s *Snapshot) SetService(service *corev1.Service) {
	inNamespace := s.Owners.services[service.Namespace]
	if inNamespace == nil {
		inNamespace = map[string]map[string]string{}
		s.Owners.services[service.Namespace] = inNamespace
	}
	if old, known := inNamespace[service.Name]; !known || !SameLabels(old, service.Spec.Selector) {
		s.TopologyVersion++
	}
	inNamespace[service.Name] = service.Spec.Selector
}

// DeleteService removes a Service.
func (s *Snapshot) DeleteService(namespace, name string) {
	delete(s.Owners.services[namespace], name)
	s.TopologyVersion++
}

// SetReplicationController adds or updates the selector of a ReplicationController.
func (s *Snapshot) SetReplicationController(rc *corev1.ReplicationController) {
	key := OwnerKey{"v1", "ReplicationController", rc.Namespace, rc.Name}
	if old, known := s.Owners.replicationControllers[key]; !known || !SameLabels(old, rc.Spec.Selector) {
		s.TopologyVersion++
	}
	s.Owners.replicationControllers[key] = rc.Spec.Selector
}

// SetReplicaSet adds or updates the selector of a ReplicaSet.
func (s *Snapshot) SetReplicaSet(rs *appsv1.ReplicaSet) {
	s.setLabelSelector("ReplicaSet", rs.Namespace, rs.Name, rs.Spec.Selector)
}

// SetStatefulSet adds or updates the selector of a StatefulSet.
func (s *Snapshot) SetStatefulSet(ss *appsv1.StatefulSet) {
	s.setLabelSelector("StatefulSet", ss.Namespace, ss.Name, ss.Spec.Selector)
}

func (s *Snapshot) setLabelSelector(kind, namespace, name string, selector *metav1.LabelSelector) {
	read, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		// An invalid selector selects no pods.
		read = labels.Nothing()
	}
	s.SetOwner(OwnerKey{appsv1.SchemeGroupVersion.String(), kind, namespace, name}, read)
}

// SetOwner adds or updates the selector of a controller.
func (s *Snapshot) SetOwner(key OwnerKey, selector labels.Selector) {
	if old := s.Owners.Controllers[key]; old == nil || old.String() != selector.String() {
		s.TopologyVersion++
	}
	s.Owners.Controllers[key] = selector
}

// DeleteController removes a controller.
func (s *Snapshot) DeleteController(apiVersion, kind, namespace, name string) {
	s.DeleteOwner(OwnerKey{apiVersion, kind, namespace, name})
}

// DeleteOwner removes a controller.
func (s *Snapshot) DeleteOwner(key OwnerKey) {
	delete(s.Owners.replicationControllers, key)
	delete(s.Owners.Controllers, key)
	s.TopologyVersion++
}

// OwnerSelector returns a selector for the pods of the same Services and controller. It is empty for a pod without either.
func (s *Snapshot) OwnerSelector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	for _, selector := range s.Owners.services[pod.Namespace] {
		if selector != nil && labels.SelectorFromValidatedSet(selector).Matches(labels.Set(pod.Labels)) {
			set = labels.Merge(set, selector)
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return set.AsSelector()
	}
	key := OwnerKey{owner.APIVersion, owner.Kind, pod.Namespace, owner.Name}
	// A ReplicationController's labels override those of Services; other controllers add requirements.
	selector := labels.Merge(set, s.Owners.replicationControllers[key]).AsSelector()
	if own := s.Owners.Controllers[key]; own != nil {
		if requirements, selectable := own.Requirements(); selectable {
			selector = selector.Add(requirements...)
		}
	}
	return selector
}
