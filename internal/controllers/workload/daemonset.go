package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/flowcontrol"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"skiff/internal/client"
	"skiff/internal/controller"
)

var daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// DaemonSet runs one pod on every eligible node.
var DaemonSet = controller.Definition{
	Name: "daemonset-controller", Aliases: []string{"daemonset"}, Queue: "daemonset", Workers: 2,
	New: newDaemonSets,
}

// The backoff for replacing failed daemon pods.
const (
	minDaemonBackoff = time.Second
	maxDaemonBackoff = 15 * time.Minute
)

type daemonSets struct {
	sets      client.Informer[*appsv1.DaemonSet]
	nodes     client.Informer[*corev1.Node]
	pods      controller.Dependents[*corev1.Pod]
	revisions controller.Dependents[*appsv1.ControllerRevision]
	// failures tracks the backoff of failed pods by set, generation and node. It is not stored in the API.
	failures *flowcontrol.Backoff
}

func newDaemonSets(s *controller.Setup) (controller.Syncer, error) {
	c := &daemonSets{
		sets: client.InformerFor[*appsv1.DaemonSet](s.Informers), nodes: client.InformerFor[*corev1.Node](s.Informers),
		failures: flowcontrol.NewBackOff(minDaemonBackoff, maxDaemonBackoff),
	}
	var err error
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	if c.revisions, err = controller.DependentsOf[*appsv1.ControllerRevision](s); err != nil {
		return nil, err
	}
	if err := controller.WatchPrimary[*appsv1.DaemonSet](s); err != nil {
		return nil, err
	}
	selector := func(set *appsv1.DaemonSet) (labels.Selector, error) {
		return metav1.LabelSelectorAsSelector(set.Spec.Selector)
	}
	if err := controller.WatchDependents[*corev1.Pod](s, daemonSetKind, selector); err != nil {
		return nil, err
	}
	if err := controller.WatchRevisions(s, daemonSetKind, selector); err != nil {
		return nil, err
	}
	if err := c.watchNodes(s); err != nil {
		return nil, err
	}
	return controller.NewSyncer(s, c), nil
}

// watchNodes enqueues the sets affected by a change of a node. Nodes update their status often, labels and taints rarely.
func (c *daemonSets) watchNodes(s *controller.Setup) error {
	enqueueSets := func(differs func(*appsv1.DaemonSet) bool) {
		for _, set := range c.sets.List("", nil) {
			if differs(set) {
				s.Enqueue(controller.KeyOf(set))
			}
		}
	}
	onAdd := func(node *corev1.Node) {
		enqueueSets(func(set *appsv1.DaemonSet) bool { run, _ := placementOf(set).shouldRun(node); return run })
	}
	onUpdate := func(old, node *corev1.Node) {
		if apiequality.Semantic.DeepEqual(old.Labels, node.Labels) && apiequality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
			return
		}
		enqueueSets(func(set *appsv1.DaemonSet) bool {
			placement := placementOf(set)
			oldRun, oldKeep := placement.shouldRun(old)
			run, keep := placement.shouldRun(node)
			return run != oldRun || keep != oldKeep
		})
	}
	onDelete := func(*corev1.Node) { enqueueSets(func(*appsv1.DaemonSet) bool { return true }) }
	if err := c.nodes.AddEventHandler(onAdd, onUpdate, onDelete); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

// daemonSetView is the observed state of one set.
type daemonSetView struct {
	set       *appsv1.DaemonSet
	nodes     []*corev1.Node
	pods      []*corev1.Pod                // those it controls and the orphans of its namespace
	revisions []*appsv1.ControllerRevision // likewise
	// revisionOfSameName is an existing revision, of any owner, with the name of the next revision.
	revisionOfSameName *appsv1.ControllerRevision
	// backoff returns the remaining backoff of failed pods on a node; nil: no backoff.
	backoff func(node string) time.Duration
	now     time.Time
}

// Size counts the nodes and pods.
func (v daemonSetView) Size() int { return len(v.nodes) + len(v.pods) }

// Observe gathers the set, all nodes, its pods and its history.
func (c *daemonSets) Observe(key controller.Key) (daemonSetView, bool) {
	set, ok := c.sets.Get(key.Namespace, key.Name)
	if !ok || set.DeletionTimestamp != nil {
		return daemonSetView{}, false
	}
	selector := selectorOf(set.Spec.Selector)
	v := daemonSetView{set: set, nodes: c.nodes.List("", nil), pods: c.pods.Claimable(set, selector), revisions: c.revisions.Claimable(set, selector), now: time.Now()}
	v.revisionOfSameName, _ = c.revisions.Get(key.Namespace, set.Name+"-"+templateHash(&set.Spec.Template, set.Status.CollisionCount))
	v.backoff = func(node string) time.Duration {
		if c.failures.IsInBackOffSinceUpdate(failureKey(set, node), v.now) {
			return c.failures.Get(failureKey(set, node))
		}
		return 0
	}
	return v, true
}

// Reconcile reconciles and updates the backoff of the failed pods it deletes.
func (c *daemonSets) Reconcile(v daemonSetView) controller.Plan {
	plan := v.reconcile()
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			if pod, ok := w.Object.(*corev1.Pod); ok && w.Verb == controller.Delete && pod.Status.Phase == corev1.PodFailed {
				c.failures.Next(failureKey(v.set, targetNode(pod)), v.now)
			}
		}
	}
	c.failures.GC()
	return plan
}

func failureKey(set *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
}

// placement decides on which nodes the pods of a set should run, as the scheduler would.
type placement struct {
	nodeName    string
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

func placementOf(set *appsv1.DaemonSet) placement {
	spec := &set.Spec.Template.Spec
	return placement{
		nodeName: spec.NodeName, affinity: nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity),
		tolerations: daemonTolerations(spec),
	}
}

// shouldRun reports whether a pod should be created on the node, and whether an existing one should keep running.
func (p placement) shouldRun(node *corev1.Node) (run, keep bool) {
	if p.nodeName != "" && p.nodeName != node.Name {
		return false, false
	}
	if fits, _ := p.affinity.Match(node); !fits {
		return false, false
	}
	tolerates := func(effects ...corev1.TaintEffect) bool {
		_, untolerated := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.tolerations,
			func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, false)
		return !untolerated
	}
	keep = tolerates(corev1.TaintEffectNoExecute)
	return keep && tolerates(corev1.TaintEffectNoSchedule), keep
}

// daemonTolerations are the tolerations of the template and those every daemon pod gets.
func daemonTolerations(spec *corev1.PodSpec) []corev1.Toleration {
	type taint struct {
		key    string
		effect corev1.TaintEffect
	}
	builtIn := []taint{
		{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute}, {corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule}, {corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule}, {corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule},
	}
	if spec.HostNetwork {
		builtIn = append(builtIn, taint{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule})
	}
	tolerations := slices.Clone(spec.Tolerations)
	for _, t := range builtIn {
		toleration := corev1.Toleration{Key: t.key, Operator: corev1.TolerationOpExists, Effect: t.effect}
		exists := false
		for i := range tolerations {
			if toleration.MatchToleration(&tolerations[i]) {
				tolerations[i] = toleration // replaces one limited by tolerationSeconds
				exists = true
			}
		}
		if !exists {
			tolerations = append(tolerations, toleration)
		}
	}
	return tolerations
}

// targetNode is the node a pod runs on or is pinned to.
func targetNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// withRequiredNode returns the affinity with the required node affinity replaced by the node's name.
func withRequiredNode(affinity *corev1.Affinity, node string) *corev1.Affinity {
	a := affinity.DeepCopy()
	if a == nil {
		a = &corev1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}
	return a
}

// templateGeneration is the deprecated generation of the template; false if there is none.
func templateGeneration(set *appsv1.DaemonSet) (string, bool) {
	generation, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return strconv.FormatInt(generation, 10), err == nil
}

// daemonPod returns the pod of a set for a node.
func daemonPod(set *appsv1.DaemonSet, node, hash string) *corev1.Pod {
	pod := newPodFromTemplate(&set.Spec.Template, set, daemonSetKind)
	pod.Labels = maps.Clone(pod.Labels)
	if generation, ok := templateGeneration(set); ok {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, "pod-template-generation", generation)
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, hash)
	pod.Spec.Tolerations = daemonTolerations(&set.Spec.Template.Spec)
	pod.Spec.Affinity = withRequiredNode(set.Spec.Template.Spec.Affinity, node)
	return pod
}
