package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestWarnTemplate makes templates of the specifications in testdata/warn.txt. The warnings there are upstream's.
func TestWarnTemplate(t *testing.T) {
	checkStories(t, "testdata/warn.txt", "warnings", func(s *story) []string {
		pod := s.pod(t)
		return WarnTemplate(field.NewPath("template"), &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, nil)
	})
	if texts := WarnTemplate(nil, nil, nil); texts != nil {
		t.Errorf("no template, but %q", texts)
	}
}

func TestWarnPod(t *testing.T) {
	const key = "container.apparmor.security.beta.kubernetes.io/web"
	const want = `metadata.annotations[` + key + `]: deprecated since v1.30; use the "appArmorProfile" field instead`
	unconfined := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	for _, c := range []struct {
		name           string
		pod, container *corev1.AppArmorProfile
		want           int
	}{
		{"annotation alone", nil, nil, 1},
		{"annotation that was adopted", nil, unconfined, 1},
		{"annotation with another field value", nil, &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}, 0},
		{"annotation that repeats the pod's", unconfined, nil, 0},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{AppArmorProfile: c.pod},
			Containers:      []corev1.Container{{Name: "web", SecurityContext: &corev1.SecurityContext{AppArmorProfile: c.container}}},
		}}
		pod.Annotations = map[string]string{key: "unconfined"}
		got := WarnPod(pod)
		if len(got) != c.want || c.want == 1 && got[0] != want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
