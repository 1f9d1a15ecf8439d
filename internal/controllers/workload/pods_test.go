package workload

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSortForDeletion(t *testing.T) {
	sidecar := func(n int32) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always}, {Name: "i"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "s", RestartCount: n}, {Name: "i", RestartCount: 99}}
		}
	}
	readyWithoutTime := func(p *corev1.Pod) {
		readyFor(0)(p)
		p.Status.Conditions[0].LastTransitionTime = metav1.Time{}
	}
	for _, test := range []struct {
		what string
		pods []*corev1.Pod // in the order they should have
	}{
		{"without a node first", []*corev1.Pod{
			aPod("a", readyFor(time.Hour)), aPod("b", onNode("n"))}},
		{"pending before unknown before running", []*corev1.Pod{
			aPod("c", onNode("n")), aPod("b", onNode("n"), inPhase(corev1.PodUnknown)), aPod("a", onNode("n"), inPhase(corev1.PodRunning))}},
		{"not ready before ready", []*corev1.Pod{
			aPod("b", onNode("n"), inPhase(corev1.PodRunning)), aPod("a", onNode("n"), readyFor(time.Second))}},
		{"by cost, malformed ones as zero", []*corev1.Pod{
			aPod("z", onNode("n"), readyFor(time.Hour), annotated(corev1.PodDeletionCost, "-5")),
			aPod("a", onNode("n"), readyFor(time.Hour), annotated(corev1.PodDeletionCost, "+9")),
			aPod("b", onNode("n"), readyFor(time.Hour+time.Second), annotated(corev1.PodDeletionCost, "007")),
			aPod("c", onNode("n"), readyFor(time.Hour), annotated(corev1.PodDeletionCost, "10"))}},
		{"crowded nodes first", []*corev1.Pod{
			aPod("a", onNode("full"), readyFor(time.Hour)), aPod("b", onNode("full"), readyFor(time.Hour+time.Second)), aPod("c", onNode("n"), readyFor(time.Second))}},
		{"ready for a shorter time first, no time before all", []*corev1.Pod{
			aPod("c", onNode("n"), readyWithoutTime), aPod("b", onNode("n"), readyFor(time.Minute)), aPod("a", onNode("n"), readyFor(time.Hour))}},
		{"about as long: by uid", []*corev1.Pod{
			aPod("a", onNode("n"), readyFor(100*time.Minute)), aPod("b", onNode("n"), readyFor(101*time.Minute)), aPod("c", onNode("n"), readyFor(99*time.Minute))}},
		{"more restarts first", []*corev1.Pod{
			aPod("b", onNode("n"), inPhase(corev1.PodRunning), restarted(7)), aPod("a", onNode("n"), inPhase(corev1.PodRunning), restarted(3))}},
		{"then sidecars' restarts", []*corev1.Pod{
			aPod("b", onNode("n"), inPhase(corev1.PodRunning), restarted(3), sidecar(2)), aPod("a", onNode("n"), inPhase(corev1.PodRunning), restarted(3), sidecar(1))}},
		{"younger first", []*corev1.Pod{
			aPod("b", created(time.Minute)), aPod("a", created(time.Hour))}},
		{"born in the future", []*corev1.Pod{
			aPod("b", created(-time.Minute)), aPod("a", created(time.Minute))}},
	} {
		doubled := func(p *corev1.Pod) int { return strings.Count(p.Spec.NodeName, "full") * 2 }
		for range 10 {
			pods := slices.Clone(test.pods)
			rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			sortForDeletion(pods, doubled, now)
			if names(pods) != names(test.pods) {
				t.Errorf("%s: %s, want %s", test.what, names(pods), names(test.pods))
				break
			}
		}
	}
}

func TestAvailability(t *testing.T) {
	for _, test := range []struct {
		what      string
		pod       *corev1.Pod
		seconds   int32
		available bool
		until     time.Duration
	}{
		{"not ready", aPod("a"), 0, false, 0},
		{"ready, no wait asked", aPod("a", readyFor(0)), 0, true, 0},
		{"ready, too short", aPod("a", readyFor(4*time.Second)), 10, false, 6 * time.Second},
		{"ready, just long enough", aPod("a", readyFor(10*time.Second)), 10, true, 0},
		{"ready, since nobody knows when", aPod("a", readyFor(0), func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }), 10, false, 0},
	} {
		if got := available(test.pod, test.seconds, now); got != test.available {
			t.Errorf("%s: available %v", test.what, got)
		}
		if got := untilAvailable(test.pod, test.seconds, now); got != test.until {
			t.Errorf("%s: available in %v, want %v", test.what, got, test.until)
		}
	}
	pods := []*corev1.Pod{aPod("a", readyFor(time.Second)), aPod("b"), aPod("c", readyFor(7*time.Second)), aPod("d", readyFor(time.Hour))}
	if got := nextAvailable(pods, 10, now); got != 3*time.Second {
		t.Errorf("the next is available in %v", got)
	}
}

func TestPodFromTemplate(t *testing.T) {
	owner := aPod("owner")
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}, Annotations: map[string]string{"b": "2"}, Finalizers: []string{"f/f"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
	}
	pod := newPodFromTemplate(template, owner, replicaSetKind)
	ref := metav1.GetControllerOf(pod)
	if pod.GenerateName != "owner-" || pod.Namespace != "default" || pod.Labels["a"] != "1" || pod.Annotations["b"] != "2" || pod.Finalizers[0] != "f/f" ||
		pod.Spec.Containers[0].Name != "c" || ref == nil || ref.UID != owner.UID || ref.Kind != "ReplicaSet" || !*ref.BlockOwnerDeletion {
		t.Errorf("%+v", pod)
	}
	pod.Labels["a"] = "changed"
	if template.Labels["a"] != "1" {
		t.Error("the pod shares its labels with the template")
	}
	if long := strings.Repeat("x", 254); podNamePrefix(long) != long || podNamePrefix(long[1:]) != long[1:]+"-" {
		t.Error("a name that leaves no room for the dash must do without")
	}
}
