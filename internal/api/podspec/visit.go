// Package podspec holds what is true of every pod specification, whether it stands in a pod or in the template of a
// workload: its defaults, the fields that are switched off, its validation and its warnings. The rows of pods and of
// the workloads call it; what is true of pods alone (what an update may change, the status, binding, eviction) stands
// with the row of pods.
//
// There are three kinds of containers and every rule must see all of them. Rules therefore walk containers with
// VisitContainers and nothing else.
package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ContainerKind says in which list of the pod a container stands.
type ContainerKind int

// The kinds, in the order in which a visitor meets them.
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
// ephemeral ones, which appear as the container they have in common with the others. path is that of spec; when it is
// nil no paths are made and visit gets nil.
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

// asContainer views an ephemeral container as a container. Both have the same fields; the view shares memory.
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

// Restartable reports whether an init container keeps running beside the regular ones (a sidecar).
func Restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
