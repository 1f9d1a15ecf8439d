package kubelet

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/status"
)

// appArmorRejection returns why a pod's AppArmor profiles cannot be enforced, or nil. enabled reports whether AppArmor is enabled on the host.
func appArmorRejection(pod *corev1.Pod, enabled bool) *rejection {
	if err := checkAppArmor(pod, enabled); err != nil {
		return &rejection{Reason: status.Reason{Reason: "AppArmor", Message: fmt.Sprintf("Cannot enforce AppArmor: %v", err)}}
	}
	return nil
}

func checkAppArmor(pod *corev1.Pod, enabled bool) error {
	if !wantsAppArmor(pod) {
		return nil
	}
	if !enabled {
		return errors.New("AppArmor is not enabled on the host")
	}
	for _, c := range container.All(&pod.Spec) {
		p := cri.AppArmorProfile(pod, c)
		if p != nil && p.Type == corev1.AppArmorProfileTypeLocalhost && (p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "") {
			return fmt.Errorf("invalid empty AppArmor profile name: %q", p)
		}
	}
	return nil
}

// wantsAppArmor reports whether a pod has a profile other than Unconfined, in a field or in a deprecated annotation.
func wantsAppArmor(pod *corev1.Pod) bool {
	confines := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if s := pod.Spec.SecurityContext; s != nil && confines(s.AppArmorProfile) {
		return true
	}
	for _, c := range container.All(&pod.Spec) {
		if c.SecurityContext != nil && confines(c.SecurityContext.AppArmorProfile) {
			return true
		}
	}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}
