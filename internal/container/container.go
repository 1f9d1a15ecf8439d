// Package container walks the containers of a pod: init containers, the regular ones and ephemeral ones, told apart by
// their kind. Whoever has a rule for containers goes through All and says what the rule means for each kind; a loop over
// one of the three lists is how a rule forgets the other two.
package container

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind is which of a pod's lists a container stands in.
type Kind int

// The kinds, in the order in which they are walked and in which they start.
const (
	Init Kind = iota
	Regular
	Ephemeral
)

// String is the kind in messages for people.
func (k Kind) String() string {
	switch k {
	case Init:
		return "init container"
	case Ephemeral:
		return "ephemeral container"
	}
	return "container"
}

// All yields every container of a pod, also ephemeral ones, which share the fields of the others but are another type.
// The containers may be changed.
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

// lists are the fields of a pod's spec that hold containers, by kind.
var lists = [3]string{"initContainers", "containers", "ephemeralContainers"}

// Place is where a container stands in a pod.
type Place struct {
	Kind Kind
	Path *field.Path
}

// Places yields every container with its place below path, which is that of the pod's spec.
func Places(spec *corev1.PodSpec, path *field.Path) iter.Seq2[Place, *corev1.Container] {
	return func(yield func(Place, *corev1.Container) bool) {
		index := [3]int{}
		for kind, c := range All(spec) {
			if !yield(Place{kind, path.Child(lists[kind]).Index(index[kind])}, c) {
				return
			}
			index[kind]++
		}
	}
}
