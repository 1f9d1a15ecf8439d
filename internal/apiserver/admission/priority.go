package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// priority sets the priority of a new pod from its PriorityClass, and rejects a second default PriorityClass.
type priority struct{ client lazyClient }

func (*priority) Name() string { return "Priority" }

func (*priority) Handles(a *Attributes) bool {
	return a.changes() && (a.isPlain(pods) || a.isPlain(priorityClasses))
}

func (p *priority) Mutate(ctx context.Context, a *Attributes) error {
	if !a.is(pods) {
		return nil
	}
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	if a.Operation == Update {
		old, err := oldOf[*corev1.Pod](a)
		if err != nil {
			return err
		}
		// Clients that omit the fields do not mean to remove them.
		if pod.Spec.Priority == nil {
			pod.Spec.Priority = old.Spec.Priority
		}
		if pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
		return nil
	}
	class, err := p.classOf(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.PriorityClassName = class.Name
	if given := pod.Spec.Priority; given != nil && *given != class.Value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *given, class.Value)
	}
	value := class.Value
	pod.Spec.Priority = &value
	if class.PreemptionPolicy == nil {
		return nil
	}
	policy := *class.PreemptionPolicy
	if given := pod.Spec.PreemptionPolicy; given != nil && *given != policy {
		return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *given, policy)
	}
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// classOf is the PriorityClass of a pod, or the default one. Without either it has no name and the value zero.
func (p *priority) classOf(ctx context.Context, a *Attributes, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	name := pod.Spec.PriorityClassName
	if name != "" {
		class, err := get[*schedulingv1.PriorityClass](ctx, p.client, priorityClasses, "", name)
		if apierrors.IsNotFound(err) {
			return nil, forbid(a, "no PriorityClass with name %v was found", name)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
		}
		return class, nil
	}
	class, err := p.defaultClass(ctx)
	if err != nil {
		return nil, fmt.Errorf("error occurred while retrieving default priority class: %w", err)
	}
	if class == nil {
		policy := corev1.PreemptLowerPriority
		class = &schedulingv1.PriorityClass{PreemptionPolicy: &policy}
	}
	return class, nil
}

// defaultClass is the global default, nil without one. Of several, which are possible by a race, it is the one with the lowest
// value.
func (p *priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	classes, err := list[*schedulingv1.PriorityClass](ctx, p.client, priorityClasses, "")
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, class := range classes {
		if class.GlobalDefault && (found == nil || found.Value > class.Value) {
			found = class
		}
	}
	return found, nil
}

func (p *priority) Validate(ctx context.Context, a *Attributes) error {
	if !a.is(priorityClasses) {
		return nil
	}
	class, err := objectOf[*schedulingv1.PriorityClass](a)
	if err != nil || !class.GlobalDefault {
		return err
	}
	other, err := p.defaultClass(ctx)
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if other != nil && (a.Operation == Create || other.Name != class.Name) {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", other.Name)
	}
	return nil
}
