// Package podspec implements pod specifications, in pods and in the templates of workloads: defaults, fields of disabled
// features, validation and warnings. What applies only to pods (allowed updates, status, binding, eviction) is in
// package core.
//
// A pod has three lists of containers and every validation must cover all of them, so all code iterates with
// VisitContainers.
package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ContainerKind says in which list of the pod a container is.
type ContainerKind int

// The kinds, in the order of visits.
const (
	InitContainer ContainerKind = iota
	RegularContainer
	EphemeralContainer
)

// list is the name of the field that holds containers of the kind.
func (k ContainerKind) list() string {
	return [...]string{"initContainers", "containers", "ephemeralContainers"}[k]
}

// VisitContainers calls visit for each container of spec: init containers first, then the regular ones, then the
// ephemeral ones, as the Container with the same fields. path is that of spec; if it is nil, visit gets nil paths.
func VisitContainers(spec *corev1.PodSpec, path *field.Path, visit func(c *corev1.Container, kind ContainerKind, path *field.Path)) {
	at := func(kind ContainerKind, i int) *field.Path {
		if path == nil {
			return nil
		}
		return path.Child(kind.list()).Index(i)
	}
	for i := range spec.InitContainers {
		visit(&spec.InitContainers[i], InitContainer, at(InitContainer, i))
	}
	for i := range spec.Containers {
		visit(&spec.Containers[i], RegularContainer, at(RegularContainer, i))
	}
	for i := range spec.EphemeralContainers {
		visit(asContainer(&spec.EphemeralContainers[i]), EphemeralContainer, at(EphemeralContainer, i))
	}
}

// asContainer converts an ephemeral container to a container. Both have the same fields; they share memory.
func asContainer(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// anyContainer reports whether one of the containers of spec satisfies the predicate. spec may be nil.
func anyContainer(spec *corev1.PodSpec, predicate func(c *corev1.Container) bool) bool {
	found := false
	if spec != nil {
		VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) { found = found || predicate(c) })
	}
	return found
}

// Restartable reports whether an init container keeps running with the regular ones (a sidecar).
func Restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
