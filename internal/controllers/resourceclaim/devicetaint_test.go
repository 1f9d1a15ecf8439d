package resourceclaim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/podstate"
	"skiff/test/world"
)

func newRule(name string, effect resourceapi.DeviceTaintEffect, device string) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To("gpu.example.com"), Device: &device}, Taint: resourceapi.DeviceTaint{Key: "example.com/broken", Effect: effect},
	}}
}

func newSlice(name string, generation int64, taints ...resourceapi.DeviceTaint) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: ptr.To("n0"), Pool: resourceapi.ResourcePool{Name: "n0", Generation: generation, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu0", Taints: taints}, {Name: "gpu1"}},
	}}
}

func hot(effect resourceapi.DeviceTaintEffect) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: "example.com/hot", Effect: effect}
}

func tolerating(key string, effect resourceapi.DeviceTaintEffect, seconds *int64) resourceapi.DeviceToleration {
	return resourceapi.DeviceToleration{Key: key, Operator: resourceapi.DeviceTolerationOpExists, Effect: effect, TolerationSeconds: seconds}
}

// TestTolerationTime: how long a taint is tolerated.
func TestTolerationTime(t *testing.T) {
	noExecute := resourceapi.DeviceTaintEffectNoExecute
	for _, test := range []struct {
		what        string
		tolerations []resourceapi.DeviceToleration
		want        string
	}{
		{"none", nil, "0s false"},
		{"another key", []resourceapi.DeviceToleration{tolerating("x", noExecute, nil)}, "0s false"},
		{"another effect", []resourceapi.DeviceToleration{tolerating("example.com/hot", resourceapi.DeviceTaintEffectNoSchedule, nil)}, "0s false"},
		{"without an effect", []resourceapi.DeviceToleration{tolerating("example.com/hot", "", nil)}, "0s false"},
		{"forever", []resourceapi.DeviceToleration{tolerating("example.com/hot", noExecute, ptr.To[int64](5)), tolerating("", noExecute, nil)}, "0s true"},
		{"the shortest counts", []resourceapi.DeviceToleration{tolerating("example.com/hot", noExecute, ptr.To[int64](5)), tolerating("", noExecute, ptr.To[int64](3))}, "3s false"},
		{"a negative time", []resourceapi.DeviceToleration{tolerating("example.com/hot", noExecute, ptr.To[int64](-5))}, "0s false"},
		{"a very long time", []resourceapi.DeviceToleration{tolerating("example.com/hot", noExecute, ptr.To[int64](1<<62))}, fmt.Sprint(maxToleration, " false")},
	} {
		patience, forever := tolerationTime(resourceapi.DeviceRequestAllocationResult{Tolerations: test.tolerations}, hot(noExecute))
		if got := fmt.Sprint(patience, " ", forever); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

// TestRuleCondition: what the status of a rule says.
func TestRuleCondition(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, test := range []struct {
		effect resourceapi.DeviceTaintEffect
		v      ruleView
		want   string
	}{
		{resourceapi.DeviceTaintEffectNoExecute, ruleView{}, "False NotStarted "},
		{resourceapi.DeviceTaintEffectNoExecute, ruleView{pods: 1, namespaces: 1}, "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace."},
		{resourceapi.DeviceTaintEffectNoExecute, ruleView{pods: 3, namespaces: 2, evicted: 1}, "True PodsPendingEviction 3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller."},
		{resourceapi.DeviceTaintEffectNoExecute, ruleView{evicted: 2}, "False Completed 2 pods evicted since starting the controller."},
		{resourceapi.DeviceTaintEffectNoSchedule, ruleView{}, "False OtherEffect Eviction only happens for the NoExecute effect."},
		{resourceapi.DeviceTaintEffectNone, ruleView{publishedDevices: 1, allocatedDevices: 2, pods: 1, namespaces: 1}, "False NoEffect 1 published device selected. 2 allocated devices selected. 1 pod would be evicted in 1 namespace " +
			"if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."},
	} {
		v := test.v
		v.rule, v.now = newRule("r", test.effect, "gpu0"), now
		v.rule.Generation = 3
		c := v.condition()
		if got := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); got != test.want || c.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(now) || c.Type != "EvictionInProgress" {
			t.Errorf("%s: %+v, want %s", test.effect, c, test.want)
		}
		v.rule.Status.Conditions = []metav1.Condition{*c}
		if again := v.condition(); again != nil {
			t.Errorf("%s: changed again to %+v", test.effect, again)
		}
		for after, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 4 * time.Second: 6 * time.Second, time.Minute: 0} {
			if got := untilNextStatus(v.rule, now.Add(after)); got != want {
				t.Errorf("next status after %s in %s, want %s", after, got, want)
			}
		}
		if v.rule.Generation++; untilNextStatus(v.rule, now) != 0 {
			t.Error("the status of a changed rule is not updated at once")
		}
	}
}

// allocatePod creates a pod on a node with an allocated claim of its name, which has tolerations.
func allocatePod(w *world.World, name, device string, tolerations ...resourceapi.DeviceToleration) *corev1.Pod {
	claim := newTestClaim(name)
	claim.Spec.Devices.Requests[0].Exactly.Tolerations = tolerations
	world.Create(w, claim)
	pod := newPod(byName("gpu", name), onNode)
	pod.Name, pod.UID = name, ""
	pod = world.Create(w, pod)
	world.EditStatus(w, "default", name, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.example.com", Pool: "n0", Device: device, Tolerations: tolerations}}}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	})
	return pod
}

func podsIn(w *world.World) string {
	var names []string
	for _, p := range world.List[*corev1.Pod](w) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestDeviceTaintsOfSlices: pods are evicted because of taints of drivers, at once or when their toleration ends.
func TestDeviceTaintsOfSlices(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(DeviceTaintEviction)()
		noExecute := resourceapi.DeviceTaintEffectNoExecute
		allocatePod(w, "evicted", "gpu0")
		allocatePod(w, "patient", "gpu0", tolerating("example.com/hot", noExecute, ptr.To[int64](60)))
		allocatePod(w, "tolerant", "gpu0", tolerating("", noExecute, nil))
		allocatePod(w, "other", "gpu1")
		world.Create(w, newSlice("old", 1, hot(noExecute)))
		w.Pass(time.Second)
		if got := podsIn(w); got != "other patient tolerant" {
			t.Errorf("pods %s", got)
		}
		if events := w.Events("evicted"); !slices.Contains(events, "DeviceTaintManagerEviction: Marking for deletion") {
			t.Errorf("events %q", events)
		}
		// A new generation of the pool without the taint cancels the eviction.
		slice := world.Create(w, newSlice("new", 2))
		w.Pass(2 * time.Minute)
		if got := podsIn(w); got != "other patient tolerant" {
			t.Errorf("after the taint was removed: %s", got)
		}
		if events := w.Events("patient"); !slices.Contains(events, "DeviceTaintManagerEviction: Cancelling deletion") {
			t.Errorf("events %q", events)
		}
		world.Edit(w, "", slice.Name, func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{hot(noExecute)}
		})
		w.Pass(59 * time.Second)
		if got := podsIn(w); got != "other patient tolerant" {
			t.Errorf("before the toleration ends: %s", got)
		}
		w.Pass(2 * time.Second)
		if got := podsIn(w); got != "other tolerant" {
			t.Errorf("after the toleration ended: %s", got)
		}
	})
}

// TestDeviceTaintRules: pods are evicted because of rules, and the status of a rule follows.
func TestDeviceTaintRules(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(DeviceTaintEviction)()
		condition := func() string {
			c := world.Get[*resourceapi.DeviceTaintRule](w, "", "rule").Status.Conditions[0]
			return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
		}
		world.Create(w, newSlice("slice", 1))
		noExecute := resourceapi.DeviceTaintEffectNoExecute
		held := allocatePod(w, "held", "gpu0")
		world.Edit(w, "default", "held", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/held"} })
		allocatePod(w, "patient", "gpu0", tolerating("", noExecute, ptr.To[int64](60)))
		allocatePod(w, "other", "gpu1")
		w.Pass(time.Second)
		world.Create(w, newRule("rule", resourceapi.DeviceTaintEffectNone, "gpu0"))
		w.Pass(time.Second)
		if got, want := condition(), "False NoEffect 1 published device selected. 2 allocated devices selected. 2 pods would be evicted in 1 namespace if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."; got != want {
			t.Errorf("what would be evicted: %s", got)
		}
		world.Edit(w, "", "rule", func(r *resourceapi.DeviceTaintRule) { r.Spec.Taint.Effect = noExecute })
		w.Pass(time.Second)
		pod := world.Get[*corev1.Pod](w, "default", "held")
		c := podstate.Condition(pod, corev1.DisruptionTarget)
		if pod.UID != held.UID || pod.DeletionTimestamp == nil || c == nil || c.Status != corev1.ConditionTrue || c.Reason != "DeletionByDeviceTaintManager" || c.Message != "Device Taint manager: deleting due to NoExecute taint" {
			t.Errorf("evicted pod %+v, condition %+v", pod.ObjectMeta, c)
		}
		w.Pass(15 * time.Second)
		if got := condition(); got != "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace. 1 pod evicted since starting the controller." {
			t.Errorf("while a pod waits: %s", got)
		}
		w.Pass(2 * time.Minute)
		if got := condition(); got != "False Completed 2 pods evicted since starting the controller." {
			t.Errorf("at the end: %s", got)
		}
		if got := podsIn(w); got != "held other" {
			t.Errorf("pods %s", got)
		}
	})
}
