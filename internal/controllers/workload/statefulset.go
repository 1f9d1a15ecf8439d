package workload

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
)

var statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// StatefulSet manages pods with stable names and storage, and updates them in order.
var StatefulSet = controller.Definition{
	Name: "statefulset-controller", Aliases: []string{"statefulset"}, Queue: "statefulset", Workers: 5,
	New: newStatefulSets,
}

type statefulSets struct {
	sets      client.Informer[*appsv1.StatefulSet]
	pods      controller.Dependents[*corev1.Pod]
	revisions controller.Dependents[*appsv1.ControllerRevision]
	claims    client.Informer[*corev1.PersistentVolumeClaim]
}

func newStatefulSets(s *controller.Setup) (controller.Syncer, error) {
	c := &statefulSets{sets: client.InformerFor[*appsv1.StatefulSet](s.Informers), claims: client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers)}
	var err error
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	if c.revisions, err = controller.DependentsOf[*appsv1.ControllerRevision](s); err != nil {
		return nil, err
	}
	if err := controller.WatchPrimary[*appsv1.StatefulSet](s); err != nil {
		return nil, err
	}
	selector := func(set *appsv1.StatefulSet) (labels.Selector, error) {
		return metav1.LabelSelectorAsSelector(set.Spec.Selector)
	}
	if err := controller.WatchDependents[*corev1.Pod](s, statefulSetKind, selector); err != nil {
		return nil, err
	}
	if err := controller.WatchRevisions(s, statefulSetKind, selector); err != nil {
		return nil, err
	}
	return controller.NewSyncer(s, c), nil
}

// statefulSetView is the observed state of one set.
type statefulSetView struct {
	set       *appsv1.StatefulSet
	pods      []*corev1.Pod                // those it controls and the orphans of its namespace
	revisions []*appsv1.ControllerRevision // likewise
	// claims are the existing PersistentVolumeClaims of the set's pods, by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// revisionByName returns the revision of that name, whatever its owner, or nil. The function may be nil.
	revisionByName func(name string) *appsv1.ControllerRevision
	now            time.Time
}

// Size counts the pods.
func (v statefulSetView) Size() int { return len(v.pods) }

// Observe gathers the set, its pods, their claims and the set's history.
func (c *statefulSets) Observe(key controller.Key) (statefulSetView, bool) {
	set, ok := c.sets.Get(key.Namespace, key.Name)
	if !ok {
		return statefulSetView{}, false
	}
	selector := selectorOf(set.Spec.Selector)
	v := statefulSetView{
		set: set, pods: c.pods.Claimable(set, selector), revisions: c.revisions.Claimable(set, selector), now: time.Now(),
		claims: map[string]*corev1.PersistentVolumeClaim{},
		revisionByName: func(name string) *appsv1.ControllerRevision {
			r, _ := c.revisions.Get(key.Namespace, name)
			return r
		},
	}
	addClaims := func(ordinal int) {
		for i := range set.Spec.VolumeClaimTemplates {
			name := claimName(set, &set.Spec.VolumeClaimTemplates[i], ordinal)
			if claim, ok := c.claims.Get(key.Namespace, name); ok {
				v.claims[name] = claim
			}
		}
	}
	for ordinal := startOrdinal(set); ordinal < endOrdinal(set); ordinal++ {
		addClaims(ordinal)
	}
	for _, pod := range v.pods {
		if _, ordinal := parentAndOrdinal(pod); ordinal >= endOrdinal(set) || ordinal >= 0 && ordinal < startOrdinal(set) {
			addClaims(ordinal)
		}
	}
	return v, true
}

// Reconcile decides the next change of a set.
func (c *statefulSets) Reconcile(v statefulSetView) controller.Plan { return v.reconcile() }

// parentAndOrdinal splits a pod's name, "web-2"; the ordinal is -1 if there is none.
func parentAndOrdinal(pod *corev1.Pod) (string, int) {
	cut := strings.LastIndexByte(pod.Name, '-')
	if cut < 0 {
		return "", -1
	}
	digits := pod.Name[cut+1:]
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", -1
	}
	ordinal, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return pod.Name[:cut], -1 // out of the range of ordinals
	}
	return pod.Name[:cut], int(ordinal)
}

func ordinalOf(pod *corev1.Pod) int { _, ordinal := parentAndOrdinal(pod); return ordinal }

func startOrdinal(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals != nil {
		return int(set.Spec.Ordinals.Start)
	}
	return 0
}

// endOrdinal is the first ordinal after the set's range.
func endOrdinal(set *appsv1.StatefulSet) int {
	return startOrdinal(set) + int(ptr.Deref(set.Spec.Replicas, 1))
}

func inRange(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	ordinal := ordinalOf(pod)
	return ordinal >= startOrdinal(set) && ordinal < endOrdinal(set)
}

func claimName(set *appsv1.StatefulSet, claim *corev1.PersistentVolumeClaim, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", claim.Name, set.Name, ordinal)
}
