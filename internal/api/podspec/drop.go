package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// feature enumerates the fields of a specification that belong to a disabled feature. It calls each once for every such
// field with whether it is set and how to clear it.
type feature func(spec *corev1.PodSpec, each func(set bool, clear func()))

// disabled are upstream's features that are off by default. skiff has no way to enable them.
var disabled = []feature{
	atomicWriteUsers, schedulingGroup, evictionResponders, emptyDirMode, bindMountOptions, stopSignals, probeProtocol, grpcProbeMode,
}

// DropDisabled clears the fields of disabled features. Features that old, which may be nil, uses are kept: an upstream
// server may have stored them.
func DropDisabled(spec, old *corev1.PodSpec) {
	for _, fields := range disabled {
		used := false
		if old != nil {
			fields(old, func(set bool, _ func()) { used = used || set })
		}
		if used {
			continue
		}
		fields(spec, func(set bool, clear func()) {
			if set {
				clear()
			}
		})
	}
}

// DropDisabledTemplate is DropDisabled for a template, including its annotations. Either may be nil.
func DropDisabledTemplate(t, old *corev1.PodTemplateSpec) {
	if t == nil {
		return
	}
	var oldSpec *corev1.PodSpec
	if old != nil {
		oldSpec = &old.Spec
	}
	DropDisabled(&t.Spec, oldSpec)
	DropLegacyAnnotations(t.Annotations)
}

// DropLegacyAnnotations removes the annotations that once contained init containers, so that no old kubelet reads them.
func DropLegacyAnnotations(annotations map[string]string) {
	for _, stage := range []string{"alpha", "beta"} {
		delete(annotations, "pod."+stage+".kubernetes.io/init-containers")
		delete(annotations, "pod."+stage+".kubernetes.io/init-container-statuses")
	}
}

func pointer[T any](each func(bool, func()), p **T) { each(*p != nil, func() { *p = nil }) }

func atomicWriteUsers(spec *corev1.PodSpec, each func(bool, func())) {
	items := func(list []corev1.KeyToPath) {
		for i := range list {
			pointer(each, &list[i].User)
		}
	}
	files := func(list []corev1.DownwardAPIVolumeFile) {
		for i := range list {
			pointer(each, &list[i].User)
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.Secret != nil {
			pointer(each, &v.Secret.DefaultUser)
			items(v.Secret.Items)
		}
		if v.ConfigMap != nil {
			pointer(each, &v.ConfigMap.DefaultUser)
			items(v.ConfigMap.Items)
		}
		if v.DownwardAPI != nil {
			pointer(each, &v.DownwardAPI.DefaultUser)
			files(v.DownwardAPI.Items)
		}
		if v.Projected != nil {
			pointer(each, &v.Projected.DefaultUser)
		}
	}
	eachProjection(spec, func(p *corev1.VolumeProjection) {
		if p.Secret != nil {
			items(p.Secret.Items)
		}
		if p.ConfigMap != nil {
			items(p.ConfigMap.Items)
		}
		if p.DownwardAPI != nil {
			files(p.DownwardAPI.Items)
		}
		if p.ServiceAccountToken != nil {
			pointer(each, &p.ServiceAccountToken.User)
		}
		if p.ClusterTrustBundle != nil {
			pointer(each, &p.ClusterTrustBundle.User)
		}
		if p.PodCertificate != nil {
			pointer(each, &p.PodCertificate.User)
		}
	})
}

func schedulingGroup(spec *corev1.PodSpec, each func(bool, func())) {
	pointer(each, &spec.SchedulingGroup)
}

func evictionResponders(spec *corev1.PodSpec, each func(bool, func())) {
	each(len(spec.EvictionResponders) > 0, func() { spec.EvictionResponders = nil })
}

func emptyDirMode(spec *corev1.PodSpec, each func(bool, func())) {
	for i := range spec.Volumes {
		if dir := spec.Volumes[i].EmptyDir; dir != nil {
			pointer(each, &dir.Mode)
		}
	}
}

func bindMountOptions(spec *corev1.PodSpec, each func(bool, func())) {
	VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) {
		for i := range c.VolumeMounts {
			mount := &c.VolumeMounts[i]
			each(len(mount.BindMountOptions) > 0, func() { mount.BindMountOptions = nil })
		}
	})
}

func stopSignals(spec *corev1.PodSpec, each func(bool, func())) {
	VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) {
		if c.Lifecycle == nil {
			return
		}
		each(c.Lifecycle.StopSignal != nil, func() {
			c.Lifecycle.StopSignal = nil
			if *c.Lifecycle == (corev1.Lifecycle{}) {
				c.Lifecycle = nil
			}
		})
	})
}

func probeProtocol(spec *corev1.PodSpec, each func(bool, func())) {
	get := func(action *corev1.HTTPGetAction) {
		if action != nil {
			pointer(each, &action.Protocol)
		}
	}
	VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) {
		eachProbe(c, func(p *corev1.Probe) { get(p.HTTPGet) })
		if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
			get(c.Lifecycle.PostStart.HTTPGet)
		}
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			get(c.Lifecycle.PreStop.HTTPGet)
		}
	})
}

func grpcProbeMode(spec *corev1.PodSpec, each func(bool, func())) {
	VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) {
		eachProbe(c, func(p *corev1.Probe) {
			if p.GRPC != nil {
				pointer(each, &p.GRPC.Mode)
			}
		})
	})
}

func eachProbe(c *corev1.Container, visit func(p *corev1.Probe)) {
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			visit(probe)
		}
	}
}
