package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExpand(t *testing.T) {
	has := func(size string) change[*corev1.PersistentVolumeClaim] {
		return func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = room(size) }
	}
	for _, test := range []struct {
		what   string
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		told   string
	}{
		{"as large as wanted", aClaim(has("1Gi")), aVolume("v", csi), ""},
		{"larger than wanted", aClaim(has("2Gi")), aVolume("v", csi), ""},
		{"a driver will do it", aClaim(has("500Mi")), aVolume("v", csi), "Normal"},
		{"nobody is known who could", aClaim(has("500Mi")), aVolume("v"), "Normal"},
		{"as large as wanted, but a resize is not over", aClaim(has("1Gi")), aVolume("v", marked(preResizeCapacity, "500Mi")), "Normal"},
	} {
		plan := expand{}.Reconcile(expandView{claim: test.claim, volume: test.volume})
		told := ""
		for _, e := range plan.Events {
			if told = e.Type; e.Reason != "ExternalExpanding" {
				t.Errorf("%s: told %s", test.what, e.Reason)
			}
		}
		if told != test.told || len(plan.Steps) > 0 {
			t.Errorf("%s: %q, want %q; %+v", test.what, told, test.told, plan.Steps)
		}
	}
}

func TestEnded(t *testing.T) {
	pod := func(changes ...change[*corev1.Pod]) *corev1.Pod {
		return with(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, changes...)
	}
	phase := func(phase corev1.PodPhase) change[*corev1.Pod] { return func(p *corev1.Pod) { p.Status.Phase = phase } }
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"pending", pod(phase(corev1.PodPending)), false},
		{"running", pod(phase(corev1.PodRunning)), false},
		{"succeeded", pod(phase(corev1.PodSucceeded)), true},
		{"failed", pod(phase(corev1.PodFailed)), true},
	} {
		if got := ended(test.pod); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}
