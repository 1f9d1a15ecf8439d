// Package alignment is the topology manager: it aligns the CPUs, the memory and the devices of a container, or of a pod, with NUMA nodes.
//
// Each provider of a resource gives hints: the sets of NUMA nodes from which it could satisfy a request. A pure function merges them to the best
// set that all providers can satisfy (merge.go). When a pod is admitted, Admission collects the hints, rejects the pod if its Policy does not
// admit the result, and lets the providers allocate from the NUMA nodes of the result.
package alignment

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/metrics"
)

// Provider allocates a kind of resource to containers.
type Provider interface {
	// Hints returns where the request of a container, PodHints where that of all containers of a pod could be satisfied.
	Hints(pod *corev1.Pod, c *corev1.Container) Hints
	PodHints(pod *corev1.Pod) Hints
	// Allocate satisfies the request of a container, if possible from the NUMA nodes of the hint. A container that has its resources keeps
	// them. It is called for all containers of a pod, in the order in which they start, before it is called for another pod.
	Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, hint Hint) error
}

// Admission allocates the resources of pods that are admitted.
type Admission struct {
	Policy *Policy
	// Scope is ContainerScope or PodScope.
	Scope     string
	Providers []Provider
	Metrics   *metrics.Metrics
}

// errAffinity is why a pod is rejected whose resources cannot be aligned as the policy requires.
var errAffinity = admissionError{reason: "TopologyAffinityError", message: "Resources cannot be allocated with Topology locality"}

type admissionError struct{ reason, message string }

func (e admissionError) Error() string  { return e.message }
func (e admissionError) Reason() string { return e.reason }

// AdmissionFailure returns the reason and message for a pod whose resources could not be allocated. Errors with a method Reason have their own
// reason.
func AdmissionFailure(err error) (reason, message string) {
	var expected interface {
		error
		Reason() string
	}
	if errors.As(err, &expected) {
		return expected.Reason(), expected.Error()
	}
	return "UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)
}

// Allocate allocates the resources of a pod that is being admitted. Calls must not overlap.
func (a *Admission) Allocate(ctx context.Context, pod *corev1.Pod) error {
	start := time.Now()
	err := a.allocate(ctx, pod)
	a.Metrics.TopologyAdmission(time.Since(start), err != nil && a.Policy.Name != None)
	return err
}

func (a *Admission) allocate(ctx context.Context, pod *corev1.Pod) error {
	hint := Hint{}
	if a.Scope == PodScope && a.Policy.Name != None {
		var admit bool
		if hint, admit = a.merge(func(p Provider) Hints { return p.PodHints(pod) }); !admit {
			return errAffinity
		}
	}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue
		}
		if a.Scope == ContainerScope && a.Policy.Name != None {
			var admit bool
			if hint, admit = a.merge(func(p Provider) Hints { return p.Hints(pod, c) }); !admit {
				return errAffinity
			}
		}
		for _, p := range a.Providers {
			if err := p.Allocate(ctx, pod, c, hint); err != nil {
				return err
			}
		}
		if a.Scope == ContainerScope {
			a.countAligned(true)
		}
	}
	if a.Scope == PodScope {
		a.countAligned(true)
	}
	return nil
}

// merge merges the hints of all providers. admit reports whether the policy admits a pod with the result.
func (a *Admission) merge(hints func(Provider) Hints) (best Hint, admit bool) {
	all := make([]Hints, 0, len(a.Providers))
	for _, p := range a.Providers {
		all = append(all, hints(p))
	}
	if best, admit = a.Policy.merge(all); !admit {
		a.countAligned(false)
	}
	return best, admit
}

// countAligned counts resources that were, or could not be, aligned with one NUMA node. Only one policy guarantees that.
func (a *Admission) countAligned(aligned bool) {
	if a.Policy.Name == SingleNUMANode {
		a.Metrics.Aligned(a.Scope, metrics.NUMANode, aligned)
	}
}
