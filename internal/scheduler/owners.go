package scheduler

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ownerSelectors knows which pods belong together: those of one service, and those of one controller.
type ownerSelectors struct {
	services map[string]map[string]map[string]string // by namespace, name: the selector
	sets     map[ownerKey]labels.Set                 // of replication controllers
	// controllers are those with a selector of several kinds of demands.
	controllers map[ownerKey]labels.Selector
}

type ownerKey struct{ apiVersion, kind, namespace, name string }

func newOwnerSelectors() ownerSelectors {
	return ownerSelectors{services: map[string]map[string]map[string]string{}, sets: map[ownerKey]labels.Set{}, controllers: map[ownerKey]labels.Selector{}}
}

// SetService takes over the selector of a service.
func (s *Snapshot) SetService(service *corev1.Service) {
	space := s.owners.services[service.Namespace]
	if space == nil {
		space = map[string]map[string]string{}
		s.owners.services[service.Namespace] = space
	}
	if old, known := space[service.Name]; !known || !sameLabels(old, service.Spec.Selector) {
		s.neighbourVersion++
	}
	space[service.Name] = service.Spec.Selector
}

// DeleteService forgets a service.
func (s *Snapshot) DeleteService(namespace, name string) {
	delete(s.owners.services[namespace], name)
	s.neighbourVersion++
}

// SetReplicationController takes over the selector of a replication controller.
func (s *Snapshot) SetReplicationController(rc *corev1.ReplicationController) {
	key := ownerKey{"v1", "ReplicationController", rc.Namespace, rc.Name}
	if old, known := s.owners.sets[key]; !known || !sameLabels(old, rc.Spec.Selector) {
		s.neighbourVersion++
	}
	s.owners.sets[key] = rc.Spec.Selector
}

// SetReplicaSet takes over the selector of a replica set.
func (s *Snapshot) SetReplicaSet(rs *appsv1.ReplicaSet) {
	s.setLabelSelector("ReplicaSet", rs.Namespace, rs.Name, rs.Spec.Selector)
}

// SetStatefulSet takes over the selector of a stateful set.
func (s *Snapshot) SetStatefulSet(ss *appsv1.StatefulSet) {
	s.setLabelSelector("StatefulSet", ss.Namespace, ss.Name, ss.Spec.Selector)
}

func (s *Snapshot) setLabelSelector(kind, namespace, name string, selector *metav1.LabelSelector) {
	read, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		// A selector that cannot be read adds nothing.
		read = labels.Nothing()
	}
	s.setController(ownerKey{appsv1.SchemeGroupVersion.String(), kind, namespace, name}, read)
}

func (s *Snapshot) setController(key ownerKey, selector labels.Selector) {
	if old := s.owners.controllers[key]; old == nil || old.String() != selector.String() {
		s.neighbourVersion++
	}
	s.owners.controllers[key] = selector
}

// DeleteController forgets a controller of pods.
func (s *Snapshot) DeleteController(apiVersion, kind, namespace, name string) {
	s.deleteController(ownerKey{apiVersion, kind, namespace, name})
}

func (s *Snapshot) deleteController(key ownerKey) {
	delete(s.owners.sets, key)
	delete(s.owners.controllers, key)
	s.neighbourVersion++
}

// ownerSelector selects the pods that belong with a pod. It is empty for a pod that stands alone.
func (s *Snapshot) ownerSelector(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	for _, selector := range s.owners.services[pod.Namespace] {
		if selector != nil && labels.SelectorFromValidatedSet(selector).Matches(labels.Set(pod.Labels)) {
			set = labels.Merge(set, selector)
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return set.AsSelector()
	}
	key := ownerKey{owner.APIVersion, owner.Kind, pod.Namespace, owner.Name}
	// A replication controller has the last word on a label that services name too; other controllers add to what services demand.
	selector := labels.Merge(set, s.owners.sets[key]).AsSelector()
	if own := s.owners.controllers[key]; own != nil {
		if requirements, selectable := own.Requirements(); selectable {
			selector = selector.Add(requirements...)
		}
	}
	return selector
}
