// Package container iterates over the containers of a pod: init, regular and ephemeral ones. Code that handles containers
// uses All and decides per kind, because a loop over one of the three lists easily forgets the other two.
package container

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind is the list of the pod's spec a container is in.
type Kind int

// The kinds, in the order of iteration, which is the order in which they start.
const (
	Init Kind = iota
	Regular
	Ephemeral
)

// String returns the kind as text for messages.
func (k Kind) String() string {
	switch k {
	case Init:
		return "init container"
	case Ephemeral:
		return "ephemeral container"
	}
	return "container"
}

// All yields every container of a pod. Ephemeral containers are converted to Container, whose fields they share. The
// containers may be modified.
func All(spec *corev1.PodSpec) iter.Seq2[Kind, *corev1.Container] {
	return func(yield func(Kind, *corev1.Container) bool) {
		for i := range spec.InitContainers {
			if !yield(Init, &spec.InitContainers[i]) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(Regular, &spec.Containers[i]) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			if !yield(Ephemeral, (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// listFields are the fields of a pod's spec that hold containers, by kind.
var listFields = [3]string{"initContainers", "containers", "ephemeralContainers"}

// Location is the position of a container in a pod.
type Location struct {
	Kind Kind
	Path *field.Path
}

// Locations yields every container with its location below path, which is that of the pod's spec.
func Locations(spec *corev1.PodSpec, path *field.Path) iter.Seq2[Location, *corev1.Container] {
	return func(yield func(Location, *corev1.Container) bool) {
		index := [3]int{}
		for kind, c := range All(spec) {
			if !yield(Location{kind, path.Child(listFields[kind]).Index(index[kind])}, c) {
				return
			}
			index[kind]++
		}
	}
}
