package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
	"skiff/test/cluster"
)

// TestSchedulerAgreesWithUpstream lets upstream's kube-scheduler, unmodified, schedule random pods on random nodes, and runs skiff's
// plugins on the same cluster: the node upstream selects must be one of those with the highest score, and upstream's message about
// an unschedulable pod must equal skiff's.
func TestSchedulerAgreesWithUpstream(t *testing.T) {
	t.Parallel()
	const nodes, pods = 24, 300
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	// Without batching every pod is scheduled separately, as in skiff.
	if err := c.Scheduler("--feature-gates=OpportunisticBatching=false"); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(config, scheme.Scheme, api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	d := &differential{t: t, ctx: ctx, random: rand.New(rand.NewPCG(42, 37)), client: cl, nodes: client.For[*corev1.Node](cl), pods: client.For[*corev1.Pod](cl)}
	d.prepare(nodes)
	placed, refused := 0, 0
	for i := range pods {
		if d.comparePod(d.pod(i)) {
			placed++
		} else {
			refused++
		}
	}
	t.Logf("upstream scheduled %d pods and left %d unschedulable", placed, refused)
	if placed < pods/4 || refused < pods/20 {
		t.Error("too few pods were scheduled or too few were unschedulable")
	}
}

type differential struct {
	t      *testing.T
	ctx    context.Context
	random *rand.Rand
	client *client.Client
	nodes  client.Resource[*corev1.Node]
	pods   client.Resource[*corev1.Pod]
}

func (d *differential) oneIn(n int) bool { return d.random.IntN(n) == 0 }

func (d *differential) pick(all ...string) string { return all[d.random.IntN(len(all))] }

// prepare creates the nodes, a service and the objects that pods need.
func (d *differential) prepare(nodes int) {
	d.t.Helper()
	must := func(err error) {
		d.t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			d.t.Fatal(err)
		}
	}
	for i := range nodes {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%02d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprintf("n%02d", i)}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(d.pick("2", "4", "8")), corev1.ResourceMemory: resource.MustParse(d.pick("4Gi", "16Gi")),
					corev1.ResourcePods: resource.MustParse(d.pick("8", "30")), corev1.ResourceEphemeralStorage: resource.MustParse("50Gi"),
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		if !d.oneIn(6) {
			n.Labels[corev1.LabelTopologyZone] = d.pick("z1", "z2", "z3")
		}
		n.Labels["disk"] = d.pick("ssd", "hdd")
		n.Labels["size"] = d.pick("1", "5", "9")
		if d.oneIn(5) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: d.pick("x", "y"), Effect: corev1.TaintEffect(d.pick("NoSchedule", "PreferNoSchedule"))})
		}
		if d.oneIn(4) {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{"example.com/big:1"}, SizeBytes: 800 << 20}}
		}
		if d.oneIn(4) {
			n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4")
		}
		n.Status.Capacity = n.Status.Allocatable
		n.Spec.Unschedulable = d.oneIn(12)
		_, err := d.nodes.Create(d.ctx, n, client.WriteOptions{})
		must(err)
		// A new node is tainted as not ready; no controller removes the taint here.
		made, err := d.nodes.Get(d.ctx, "", n.Name)
		must(err)
		made = made.DeepCopy()
		made.Spec.Taints = n.Spec.Taints
		made, err = d.nodes.Update(d.ctx, made, client.WriteOptions{})
		must(err)
		made = made.DeepCopy()
		made.Status = n.Status
		_, err = d.nodes.UpdateStatus(d.ctx, made)
		must(err)
	}
	_, err := client.For[*corev1.ServiceAccount](d.client).Create(d.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}, client.WriteOptions{})
	must(err)
	_, err = client.For[*corev1.Service](d.client).Create(d.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"color": "blue"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, client.WriteOptions{})
	must(err)
	// Upstream's informers have all objects when it has scheduled a pod that needs them.
	time.Sleep(2 * time.Second)
}

// pod returns a random pod.
func (d *differential) pod(i int) *corev1.Pod {
	color := d.pick("green", "blue", "red", "grey")
	container := corev1.Container{Name: "c", Image: d.pick("example.com/big:1", "example.com/small:1"), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	request := func(n int, name corev1.ResourceName, quantities ...string) {
		if !d.oneIn(n) {
			container.Resources.Requests[name] = resource.MustParse(d.pick(quantities...))
		}
	}
	request(4, corev1.ResourceCPU, "50m", "200m", "500m", "1")
	request(3, corev1.ResourceMemory, "64Mi", "500Mi", "2Gi")
	if d.oneIn(10) {
		q := resource.MustParse(d.pick("1", "2"))
		container.Resources.Requests["example.com/gpu"] = q
		container.Resources.Limits = corev1.ResourceList{"example.com/gpu": q}
	}
	if d.oneIn(10) {
		container.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: int32(8000 + d.random.IntN(2))}}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%03d", i), Labels: map[string]string{"color": color}},
		Spec:       corev1.PodSpec{AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{container}},
	}
	if d.oneIn(8) {
		p.Spec.NodeSelector = map[string]string{"disk": d.pick("ssd", "hdd", "tape")}
	}
	if d.oneIn(6) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	if d.oneIn(12) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "example.com/small:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("700m")}}}}
	}
	d.addAffinity(p, color)
	d.addSpreading(p, color)
	return p
}

func (d *differential) addAffinity(p *corev1.Pod, color string) {
	term := func(color string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: d.pick(corev1.LabelHostname, corev1.LabelTopologyZone), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": color}}}
	}
	a := &corev1.Affinity{}
	if d.oneIn(8) {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpGt, Values: []string{d.pick("3", "7")}}}},
			{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n03"}}}},
		}}}
	}
	if d.oneIn(20) {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{d.pick("n01", "n02", "n99")}}}},
		}}}
	}
	if d.oneIn(8) {
		if a.NodeAffinity == nil {
			a.NodeAffinity = &corev1.NodeAffinity{}
		}
		a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 30, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}}}}},
			{Weight: 7, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "size", Operator: corev1.NodeSelectorOpLt, Values: []string{"6"}}}}},
		}
	}
	if d.oneIn(10) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(d.pick("green", "red"))}}
	}
	if d.oneIn(10) {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(color)}}
	}
	if d.oneIn(10) {
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + d.random.IntN(50)), PodAffinityTerm: term("grey")}}
	}
	p.Spec.Affinity = a
}

func (d *differential) addSpreading(p *corev1.Pod, color string) {
	for range 2 {
		if !d.oneIn(6) {
			continue
		}
		key := d.pick(corev1.LabelHostname, corev1.LabelTopologyZone)
		if slices.ContainsFunc(p.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool { return c.TopologyKey == key }) {
			continue
		}
		c := corev1.TopologySpreadConstraint{
			TopologyKey: key, MaxSkew: int32(1 + d.random.IntN(2)), WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(d.pick("DoNotSchedule", "ScheduleAnyway")),
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": color}},
		}
		if d.oneIn(3) {
			c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
		}
		if d.oneIn(3) {
			c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

// snapshot is the cluster without one pod.
func (d *differential) snapshot(without string) *snapshot.Snapshot {
	d.t.Helper()
	s := snapshot.NewSnapshot()
	nodes, _, err := d.nodes.List(d.ctx, "", client.Selector{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, n := range nodes {
		s.SetNode(n)
	}
	services, _, err := client.For[*corev1.Service](d.client).List(d.ctx, "", client.Selector{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, service := range services {
		s.SetService(service)
	}
	pods, _, err := d.pods.List(d.ctx, "", client.Selector{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range pods {
		if p.Name == without || p.Spec.NodeName == "" {
			continue
		}
		info, err := snapshot.NewPodInfo(p)
		if err != nil {
			d.t.Fatal(err)
		}
		s.SetPod(info)
	}
	return s
}

// comparePod compares the decisions about one pod, and reports whether upstream scheduled it.
func (d *differential) comparePod(pod *corev1.Pod) bool {
	d.t.Helper()
	made, err := d.pods.Create(d.ctx, pod, client.WriteOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	node, message := d.waitForDecision(pod.Name)
	info, err := snapshot.NewPodInfo(made)
	if err != nil {
		d.t.Fatal(err)
	}
	found, err := decision.Schedule(d.snapshot(pod.Name), info, plugins.DefaultProfile())
	if node == "" {
		if got := d.message(found, err); got != message {
			d.t.Errorf("%s: upstream says\n%s\nskiff says\n%s", pod.Name, message, got)
		}
		if err := d.pods.Delete(d.ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{}); err != nil {
			d.t.Fatal(err)
		}
		return false
	}
	verdicts, _ := found.Explain()
	i := slices.IndexFunc(verdicts, func(v decision.Verdict) bool { return v.Node == node })
	switch {
	case err != nil:
		d.t.Errorf("%s: upstream takes %s, skiff none: %v", pod.Name, node, err)
	case verdicts[i].Refusal != nil:
		d.t.Errorf("%s: upstream takes %s, which skiff refuses: %v", pod.Name, node, verdicts[i].Refusal.Reasons)
	case verdicts[i].Total != verdicts[0].Total:
		d.t.Errorf("%s: upstream takes %s, which has %v, sum %d, but %s has %v, sum %d", pod.Name, node, verdicts[i].Scores, verdicts[i].Total, verdicts[0].Node, verdicts[0].Scores, verdicts[0].Total)
	}
	return true
}

// waitForDecision waits until upstream has scheduled a pod or marked it unschedulable.
func (d *differential) waitForDecision(name string) (node, message string) {
	d.t.Helper()
	err := wait.PollUntilContextTimeout(d.ctx, 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		p, err := d.pods.Get(ctx, "default", name)
		if err != nil {
			return false, err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				message = c.Message
			}
		}
		node = p.Spec.NodeName
		return node != "" || message != "", nil
	})
	if err != nil {
		d.t.Fatalf("%s: upstream made no decision: %v", name, err)
	}
	return node, message
}

// message is skiff's message about an unschedulable pod.
func (d *differential) message(found *decision.Decision, err error) string {
	var fit *decision.FitError
	if !errors.As(err, &fit) {
		return fmt.Sprintf("(placed on %q, %v)", found.Node, err)
	}
	_, message, _ := decision.Preempt(found, nil, nil)
	fit.Preemption = "preemption: " + message
	return fit.Error()
}
