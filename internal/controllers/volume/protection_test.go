package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestProtect(t *testing.T) {
	claim := func(held, leaving bool) *corev1.PersistentVolumeClaim {
		return aClaim(func(c *corev1.PersistentVolumeClaim) {
			if held {
				c.Finalizers = []string{claimFinalizer}
			}
			if leaving {
				c.DeletionTimestamp = new(ago(0))
			}
		})
	}
	for _, test := range []struct {
		held, leaving, used bool
		want                string
	}{
		{false, false, false, "patch PVC data"}, {true, false, false, ""}, {true, true, true, ""}, {true, true, false, "patch PVC data"}, {false, true, false, ""},
	} {
		if got := words(protect(claim(test.held, test.leaving), claimFinalizer, func() bool { return test.used })); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	pod := func(changes ...change[*corev1.Pod]) *corev1.Pod {
		return with(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"}, Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}, changes...)
	}
	own := aClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.OwnerReferences = "p-v", []metav1.OwnerReference{{UID: "uid-p", Controller: new(true)}}
	})
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	}
	shutDown := func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(ago(0)), new(int64(0)) }
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		{"a pod that uses it", pod(), aClaim(), true},
		{"also when it is over", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), aClaim(), true},
		{"a pod without a node", pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), aClaim(), false},
		{"a pod of another claim", pod(), own, false},
		{"a pod and its own claim", pod(ephemeral), own, true},
		{"that is shut down", pod(ephemeral, shutDown), own, false},
		{"a claim of the name that is not its own", pod(ephemeral), aClaim(func(c *corev1.PersistentVolumeClaim) { c.Name = "p-v" }), false},
	} {
		if got := holds(test.pod, test.claim); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}
