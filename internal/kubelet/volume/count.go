package volume

import (
	corev1 "k8s.io/api/core/v1"
)

// Count counts volumes by plugin: those that pods use, and those that are set up. A claim that is not set up yet is not
// counted, because its plugin is not known.
func (v *Volumes) Count(pods []*corev1.Pod) (desired, mounted map[string]int) {
	desired, mounted = map[string]int{}, map[string]int{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, state := range v.pods {
		for _, m := range state.byName {
			mounted[m.plugin]++
		}
	}
	for _, pod := range pods {
		used := usedVolumes(pod)
		for i := range pod.Spec.Volumes {
			volume := &pod.Spec.Volumes[i]
			plugin := pluginOf(volume)
			if state := v.pods[pod.UID]; state != nil && state.byName[volume.Name] != nil {
				plugin = state.byName[volume.Name].plugin
			}
			if used[volume.Name] && plugin != "" {
				desired[plugin]++
			}
		}
	}
	return desired, mounted
}

// pluginOf returns the plugin of a volume, empty if its spec does not determine it.
func pluginOf(volume *corev1.Volume) string {
	switch {
	case fromAPIObjects(volume):
		plugin, _ := apiVolumePlugin(volume)
		return plugin
	case volume.HostPath != nil:
		return hostPathPlugin
	case volume.Image != nil:
		return imagePlugin
	case volume.CSI != nil:
		return csiPlugin
	case volume.NFS != nil:
		return nfsPlugin
	case volume.EmptyDir != nil, volume.VolumeSource == corev1.VolumeSource{}:
		return emptyDirPlugin
	}
	return ""
}
