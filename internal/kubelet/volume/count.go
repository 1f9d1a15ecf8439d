package volume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Count counts volumes by the name of their plugin: those that pods want, and those that are set up. Of a claim that is not set up yet it
// is not known which plugin it needs, so it is not counted.
func (v *Volumes) Count(pods []*corev1.Pod) (wanted, there map[string]int) {
	wanted, there = map[string]int{}, map[string]int{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, state := range v.pods {
		for _, m := range state.byName {
			there[m.kind]++
		}
	}
	for _, pod := range pods {
		used := usedVolumes(pod)
		for i := range pod.Spec.Volumes {
			volume := &pod.Spec.Volumes[i]
			kind := kindOf(volume)
			if state := v.pods[pod.UID]; state != nil && state.byName[volume.Name] != nil {
				kind = state.byName[volume.Name].kind
			}
			if used[volume.Name] && kind != "" {
				wanted[kind]++
			}
		}
	}
	return wanted, there
}

// kindOf is the plugin of a volume, as far as the volume says.
func kindOf(volume *corev1.Volume) string {
	switch {
	case isLive(volume):
		kind, _ := filesPlugin(volume)
		return kind
	case volume.HostPath != nil:
		return hostPathPlugin
	case volume.Image != nil:
		return imagePlugin
	case volume.CSI != nil:
		return csiPlugin
	case volume.EmptyDir != nil, volume.VolumeSource == corev1.VolumeSource{}:
		return emptyDirPlugin
	}
	return ""
}

// Claims are the claims of pods whose volumes have file systems of their own, and where those are.
func (v *Volumes) Claims(pods []*corev1.Pod) map[types.NamespacedName]string {
	claims := map[types.NamespacedName]string{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			volume := &pod.Spec.Volumes[i]
			name := ""
			switch {
			case volume.PersistentVolumeClaim != nil:
				name = volume.PersistentVolumeClaim.ClaimName
			case volume.Ephemeral != nil:
				name = pod.Name + "-" + volume.Name
			}
			state := v.pods[pod.UID]
			if name == "" || state == nil || state.byName[volume.Name] == nil {
				continue
			}
			if m := state.byName[volume.Name]; !m.block && (m.kind == csiPlugin || m.kind == localPlugin) {
				claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}] = m.path
			}
		}
	}
	return claims
}
