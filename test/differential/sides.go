package differential

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// answer is what one side says about a pod.
type answer struct {
	// refused says why, by node: "Rule: reason, reason".
	refused map[string]string
	// scores are weighted totals, by node; written tells how they came about.
	scores  map[string]int64
	written map[string]string
	failed  string
	// victims by node that could be made free, and the measures of the way that was chosen.
	victims map[string]string
	// helpless says why a node could not be made free.
	helpless map[string]string
	chosen   []int64
	// resolvable nodes might be made free.
	resolvable []string
}

// feasible are the nodes that can take the pod.
func (a *answer) feasible(w *world) (names []string) {
	if a.failed != "" {
		return nil
	}
	for _, n := range w.nodes {
		if a.refused[n.Name] == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// measures are what ways of making room are compared by.
func measures(violations int, victims []*corev1.Pod) []int64 {
	highest, sum, earliest := int64(-1), int64(0), int64(0)
	for _, v := range victims {
		priority := int64(*v.Spec.Priority)
		start := v.Status.StartTime.Unix()
		sum += priority
		switch {
		case priority > highest:
			highest, earliest = priority, start
		case priority == highest:
			earliest = min(earliest, start)
		}
	}
	return []int64{int64(violations), highest, sum, int64(len(victims)), earliest}
}

func namesOf(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// theirs is upstream's scheduler on a world.
type theirs struct {
	ctx        context.Context
	framework  framework.Framework
	snapshot   *cache.Snapshot
	preemption *defaultpreemption.DefaultPreemption
	budgets    []*policyv1.PodDisruptionBudget
}

func newTheirs(ctx context.Context, w *world, pods []*corev1.Pod) (*theirs, error) {
	ctx = klog.NewContext(ctx, logr.Discard())
	var objects []runtime.Object
	for _, o := range w.nodes {
		objects = append(objects, o)
	}
	for _, list := range [][]*corev1.Pod{w.pods, w.waiting, pods} {
		for _, o := range list {
			objects = append(objects, o)
		}
	}
	for _, o := range w.budgets {
		objects = append(objects, o)
	}
	objects = append(objects, w.others...)
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	t := &theirs{ctx: ctx, snapshot: cache.NewSnapshot(w.pods, w.nodes), budgets: w.budgets}
	recorder := events.NewFakeRecorder(1)
	s, err := upstream.New(ctx, client, factory, nil, profile.RecorderFactory(func(string) events.EventRecorderLogger { return recorder }), upstream.WithNodeInfoSnapshot(t.snapshot))
	if err != nil {
		return nil, err
	}
	t.framework = s.Profiles[corev1.DefaultSchedulerName]
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return nil, err
	}
	// The same preemption as the profile's, but one whose dry run can be asked.
	t.preemption, err = defaultpreemption.New(ctx, &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}, t.framework, feature.Features{})
	return t, err
}

// refusalText puts reasons in order: upstream's come from a map.
func refusalText(rule string, reasons []string) string {
	return rule + ": " + strings.Join(slices.Sorted(slices.Values(reasons)), ", ")
}

func (t *theirs) decide(pod *corev1.Pod) (*answer, error) {
	a := &answer{refused: map[string]string{}, scores: map[string]int64{}, written: map[string]string{}, victims: map[string]string{}, helpless: map[string]string{}}
	nodes, err := t.snapshot.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	statuses := framework.NewDefaultNodeToStatus()
	narrowed, status, _ := t.framework.RunPreFilterPlugins(t.ctx, state, pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			a.failed = "error"
			return a, nil
		}
		for _, n := range nodes {
			a.refused[n.Node().Name] = refusalText(status.Plugin(), status.Reasons())
		}
		return a, t.makeRoom(state, pod, statuses, nil, a)
	}
	var fits, potential []fwk.NodeInfo
	for _, n := range nodes {
		name := n.Node().Name
		if !narrowed.AllNodes() && !narrowed.NodeNames.Has(name) {
			a.refused[name] = "NodeAffinity: node(s) didn't satisfy plugin(s) [NodeAffinity]"
			continue
		}
		status := t.framework.RunFilterPluginsWithNominatedPods(t.ctx, state, pod, n)
		switch {
		case status.IsSuccess():
			fits = append(fits, n)
			continue
		case !status.IsRejected():
			a.failed = "error"
			return a, nil
		case status.Code() == fwk.Unschedulable:
			a.resolvable = append(a.resolvable, name)
			potential = append(potential, n)
		}
		a.refused[name] = refusalText(status.Plugin(), status.Reasons())
		statuses.Set(name, status)
	}
	if len(fits) == 0 {
		return a, t.makeRoom(state, pod, statuses, potential, a)
	}
	if status := t.framework.RunPreScorePlugins(t.ctx, state, pod, fits); !status.IsSuccess() {
		// Upstream's scheduler compares nodes only where there is a choice: not for a pod that fits on the node kept for it.
		nominated := slices.ContainsFunc(fits, func(n fwk.NodeInfo) bool { return n.Node().Name == pod.Status.NominatedNodeName })
		if len(fits) > 1 && !nominated {
			a.failed = "error"
		}
		return a, nil
	}
	scores, status := t.framework.RunScorePlugins(t.ctx, state, pod, fits)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	for _, s := range scores {
		a.scores[s.Name] = s.TotalScore
		var texts []string
		for _, x := range s.Scores {
			if x.Score != 0 {
				texts = append(texts, fmt.Sprintf("%s=%d", x.Name, x.Score))
			}
		}
		sort.Strings(texts)
		a.written[s.Name] = strings.Join(texts, " ")
	}
	return a, nil
}

// makeRoom asks upstream's preemption for all ways there are, and for the one it would choose.
func (t *theirs) makeRoom(state fwk.CycleState, pod *corev1.Pod, statuses *framework.NodeToStatus, potential []fwk.NodeInfo, a *answer) error {
	if ok, _ := t.preemption.PodEligibleToPreemptOthers(t.ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); !ok || len(potential) == 0 {
		return nil
	}
	// An error means that a rule could not decide about some node. Upstream takes the other nodes all the same.
	candidates, why, _ := t.preemption.Evaluator.DryRunPreemption(t.ctx, state, pod, potential, t.budgets, 0, int32(len(potential)))
	for _, n := range potential {
		if status := why.Get(n.Node().Name); status != nil {
			a.helpless[n.Node().Name] = refusalText(status.Plugin(), status.Reasons())
		}
	}
	for _, c := range candidates {
		a.victims[c.Name()] = namesOf(c.Victims().Pods)
	}
	if best := t.preemption.Evaluator.SelectCandidate(t.ctx, candidates); best != nil {
		a.chosen = measures(int(best.Victims().NumPDBViolations), best.Victims().Pods)
	}
	return nil
}

var _ preemption.Interface = &defaultpreemption.DefaultPreemption{}

// ours is skiff's scheduler on a world.
func newOurs(w *world, pods []*corev1.Pod) (*snapshot.Snapshot, error) {
	s := snapshot.NewSnapshot()
	for _, n := range w.nodes {
		s.SetNode(n)
	}
	for _, o := range w.others {
		switch o := o.(type) {
		case *corev1.Namespace:
			s.SetNamespace(o)
		case *corev1.Service:
			s.SetService(o)
		case *appsv1.ReplicaSet:
			s.SetReplicaSet(o)
		case *appsv1.StatefulSet:
			s.SetStatefulSet(o)
		case *corev1.ReplicationController:
			s.SetReplicationController(o)
		default:
			s.SetObject(o.(metav1.Object))
		}
	}
	for _, p := range w.pods {
		info, err := snapshot.NewPodInfo(p)
		if err != nil {
			return nil, err
		}
		s.SetPod(info)
	}
	// Upstream's queue learns from the pods themselves where they are nominated.
	for _, p := range append(slices.Clone(w.waiting), pods...) {
		info, err := snapshot.NewPodInfo(p)
		if err != nil {
			return nil, err
		}
		s.Nominate(info, p.UID, p.Status.NominatedNodeName)
	}
	return s, nil
}

func decideOurs(s *snapshot.Snapshot, w *world, pod *corev1.Pod) (*answer, string, error) {
	a := &answer{refused: map[string]string{}, scores: map[string]int64{}, written: map[string]string{}, victims: map[string]string{}, helpless: map[string]string{}}
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		return nil, "", err
	}
	d, err := decision.Schedule(s, info, plugins.DefaultProfile())
	var fit *decision.FitError
	if err != nil && !errors.As(err, &fit) {
		a.failed = "error"
		return a, "", nil
	}
	// A decision that takes the nominated node has looked at no other, so the table is asked for.
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		if v.Refusal != nil {
			a.refused[v.Node] = refusalText(v.Refusal.Plugin, v.Refusal.Reasons)
			if !v.Refusal.Unresolvable {
				a.resolvable = append(a.resolvable, v.Node)
			}
			continue
		}
		a.scores[v.Node] = v.Total
		var texts []string
		for rule, score := range v.Scores {
			if score != 0 {
				texts = append(texts, fmt.Sprintf("%s=%d", rule, score))
			}
		}
		sort.Strings(texts)
		a.written[v.Node] = strings.Join(texts, " ")
	}
	if fit != nil {
		way, _, err := decision.Preempt(d, w.budgets, func(all []plugins.Preemption) ([]plugins.Preemption, error) {
			for _, p := range all {
				a.victims[p.Node] = namesOf(p.Victims)
			}
			return all, nil
		})
		if err == nil {
			a.chosen = measures(way.Violations, way.Victims)
		}
	}
	return a, d.Node, nil
}
