package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func profile(kind corev1.AppArmorProfileType, local ...string) *corev1.AppArmorProfile {
	p := &corev1.AppArmorProfile{Type: kind}
	if len(local) > 0 {
		p.LocalhostProfile = &local[0]
	}
	return p
}

func confined(p *corev1.AppArmorProfile) podOption {
	return func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: p} }
}

func confinedOnly(p *corev1.AppArmorProfile) containerOption {
	return func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: p} }
}

func annotated(container, value string) podOption {
	return func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + container: value}
	}
}

func TestAppArmor(t *testing.T) {
	const off = "Cannot enforce AppArmor: AppArmor is not enabled on the host"
	standard, none := profile(corev1.AppArmorProfileTypeRuntimeDefault), profile(corev1.AppArmorProfileTypeUnconfined)
	for _, row := range []struct {
		name    string
		pod     *corev1.Pod
		without string // on a host without AppArmor
		with    string
	}{
		{"no profile", planned(regular("a")), "", ""},
		{"a pod that is not confined", planned(confined(none), regular("a")), "", ""},
		{"the runtime's profile", planned(confined(standard), regular("a")), off, ""},
		{"a profile of the host", planned(confined(profile(corev1.AppArmorProfileTypeLocalhost, "mine")), regular("a")), off, ""},
		{"one container", planned(regular("a"), regular("b", confinedOnly(standard))), off, ""},
		{"one container that is not confined", planned(regular("a", confinedOnly(none))), "", ""},
		{"an init container", planned(initial("i", confinedOnly(standard)), regular("a")), off, ""},
		{"a confined pod with a container that is not", planned(confined(standard), regular("a", confinedOnly(none))), off, ""},
		{"annotated with the runtime's", planned(annotated("a", "runtime/default"), regular("a")), off, ""},
		{"annotated with one of the host", planned(annotated("a", "localhost/mine"), regular("a")), off, ""},
		{"annotated as not confined", planned(annotated("a", "unconfined"), regular("a")), "", ""},
		{
			"annotated with a profile that has no name", planned(annotated("a", "localhost/"), regular("a")), off,
			`Cannot enforce AppArmor: invalid empty AppArmor profile name: "&AppArmorProfile{Type:Localhost,LocalhostProfile:*,}"`,
		},
		{
			"a profile of spaces", planned(regular("a", confinedOnly(profile(corev1.AppArmorProfileTypeLocalhost, " ")))), off,
			`Cannot enforce AppArmor: invalid empty AppArmor profile name: "&AppArmorProfile{Type:Localhost,LocalhostProfile:* ,}"`,
		},
	} {
		for enabled, want := range map[bool]string{false: row.without, true: row.with} {
			got := appArmorRejection(row.pod, enabled)
			switch {
			case want == "" && got != nil, want != "" && (got == nil || got.Reason.Reason != "AppArmor" || got.Message != want):
				t.Errorf("%s, AppArmor %t: refused with %+v, want %q", row.name, enabled, got, want)
			}
		}
	}
}

// TestAppArmorAdmission rejects a pod on a host without AppArmor.
func TestAppArmorAdmission(t *testing.T) {
	b := newTestKubelet(t)
	pod := b.until(b.create(confined(profile(corev1.AppArmorProfileTypeRuntimeDefault)), regular("a")), "refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if want := "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host"; pod.Status.Reason != "AppArmor" || pod.Status.Message != want {
		t.Errorf("%s: %s", pod.Status.Reason, pod.Status.Message)
	}
}
