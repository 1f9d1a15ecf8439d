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
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// result is the result of one scheduler for a pod.
type result struct {
	// rejected has the reasons by node: "Plugin: reason, reason".
	rejected map[string]string
	// scores are weighted totals by node; scoreDetails has the scores of each plugin.
	scores       map[string]int64
	scoreDetails map[string]string
	failed       string
	// victims are the preemption victims by candidate node; chosen has the measures of the selected candidate.
	victims map[string]string
	// preemptionErrors has the reasons why preemption does not help, by node.
	preemptionErrors map[string]string
	chosen           []int64
	// resolvable are the nodes where preemption might help.
	resolvable []string
}

// feasible returns the nodes that passed all filters.
func (a *result) feasible(w *randomCluster) (names []string) {
	if a.failed != "" {
		return nil
	}
	for _, n := range w.nodes {
		if a.rejected[n.Name] == "" {
			names = append(names, n.Name)
		}
	}
	return names
}

// measures returns the values by which preemption candidates are compared.
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

// upstreamScheduler is upstream's scheduler on a random cluster.
type upstreamScheduler struct {
	ctx        context.Context
	framework  framework.Framework
	snapshot   *cache.Snapshot
	preemption *defaultpreemption.DefaultPreemption
	budgets    []*policyv1.PodDisruptionBudget
}

func newUpstreamScheduler(ctx context.Context, w *randomCluster, pods []*corev1.Pod) (*upstreamScheduler, error) {
	ctx = klog.NewContext(ctx, logr.Discard())
	var objects []runtime.Object
	for _, o := range w.nodes {
		objects = append(objects, o)
	}
	for _, list := range [][]*corev1.Pod{w.pods, w.nominated, pods} {
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
	t := &upstreamScheduler{ctx: ctx, snapshot: cache.NewSnapshot(w.pods, w.nodes), budgets: w.budgets}
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
	// The same preemption as the profile's, but with access to its dry run.
	t.preemption, err = defaultpreemption.New(ctx, &config.DefaultPreemptionArgs{MinCandidateNodesPercentage: 10, MinCandidateNodesAbsolute: 100}, t.framework, feature.Features{})
	return t, err
}

// rejectionText sorts the reasons: upstream's come from a map.
func rejectionText(plugin string, reasons []string) string {
	return plugin + ": " + strings.Join(slices.Sorted(slices.Values(reasons)), ", ")
}

func (t *upstreamScheduler) decide(pod *corev1.Pod) (*result, error) {
	a := &result{rejected: map[string]string{}, scores: map[string]int64{}, scoreDetails: map[string]string{}, victims: map[string]string{}, preemptionErrors: map[string]string{}}
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
			a.rejected[n.Node().Name] = rejectionText(status.Plugin(), status.Reasons())
		}
		return a, t.dryRunPreemption(state, pod, statuses, nil, a)
	}
	var fits, potential []fwk.NodeInfo
	for _, n := range nodes {
		name := n.Node().Name
		if !narrowed.AllNodes() && !narrowed.NodeNames.Has(name) {
			a.rejected[name] = "NodeAffinity: node(s) didn't satisfy plugin(s) [NodeAffinity]"
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
		a.rejected[name] = rejectionText(status.Plugin(), status.Reasons())
		statuses.Set(name, status)
	}
	if len(fits) == 0 {
		return a, t.dryRunPreemption(state, pod, statuses, potential, a)
	}
	if status := t.framework.RunPreScorePlugins(t.ctx, state, pod, fits); !status.IsSuccess() {
		// Upstream's scheduler scores nodes only if there are several, and not for a pod that fits on its nominated node.
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
		a.scoreDetails[s.Name] = strings.Join(texts, " ")
	}
	return a, nil
}

// dryRunPreemption records all candidates of upstream's preemption, and the one it would select.
func (t *upstreamScheduler) dryRunPreemption(state fwk.CycleState, pod *corev1.Pod, statuses *framework.NodeToStatus, potential []fwk.NodeInfo, a *result) error {
	if ok, _ := t.preemption.PodEligibleToPreemptOthers(t.ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); !ok || len(potential) == 0 {
		return nil
	}
	// An error means that a plugin failed for some node. Upstream still uses the other nodes.
	candidates, why, _ := t.preemption.Evaluator.DryRunPreemption(t.ctx, state, pod, potential, t.budgets, 0, int32(len(potential)))
	for _, n := range potential {
		if status := why.Get(n.Node().Name); status != nil {
			a.preemptionErrors[n.Node().Name] = rejectionText(status.Plugin(), status.Reasons())
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

// newSkiffSnapshot returns skiff's snapshot of a random cluster.
func newSkiffSnapshot(w *randomCluster, pods []*corev1.Pod) (*snapshot.Snapshot, error) {
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
	// Upstream's queue reads nominated nodes from the pods themselves.
	for _, p := range append(slices.Clone(w.nominated), pods...) {
		info, err := snapshot.NewPodInfo(p)
		if err != nil {
			return nil, err
		}
		s.Nominate(info, p.UID, p.Status.NominatedNodeName)
	}
	return s, nil
}

func decideWithSkiff(s *snapshot.Snapshot, w *randomCluster, pod *corev1.Pod) (*result, string, error) {
	a := &result{rejected: map[string]string{}, scores: map[string]int64{}, scoreDetails: map[string]string{}, victims: map[string]string{}, preemptionErrors: map[string]string{}}
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
	// A decision for the nominated node has not filtered other nodes, so Explain computes all of them.
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		if v.Refusal != nil {
			a.rejected[v.Node] = rejectionText(v.Refusal.Plugin, v.Refusal.Reasons)
			if !v.Refusal.Unresolvable {
				a.resolvable = append(a.resolvable, v.Node)
			}
			continue
		}
		a.scores[v.Node] = v.Total
		var texts []string
		for plugin, score := range v.Scores {
			if score != 0 {
				texts = append(texts, fmt.Sprintf("%s=%d", plugin, score))
			}
		}
		sort.Strings(texts)
		a.scoreDetails[v.Node] = strings.Join(texts, " ")
	}
	if fit != nil {
		candidate, _, err := decision.Preempt(d, schedulertest.BudgetsOf(w.budgets), func(all []plugins.Preemption) ([]plugins.Preemption, error) {
			for _, p := range all {
				a.victims[p.Node] = namesOf(p.Victims)
			}
			return all, nil
		})
		if err == nil {
			a.chosen = measures(candidate.Violations, candidate.Victims)
		}
	}
	return a, d.Node, nil
}
