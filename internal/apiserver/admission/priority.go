package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// priority writes the number that a pod's priority class stands for into the pod, once, when it is created, and keeps
// there from being two default classes.
type priority struct{ env access }

func (*priority) Name() string { return "Priority" }

func (*priority) Handles(a *Attributes) bool {
	return a.changes() && (a.isPlain(pods) || a.isPlain(priorityClasses))
}

func (r *priority) Mutate(ctx context.Context, a *Attributes) error {
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
		// Who leaves them out does not mean to remove them.
		if pod.Spec.Priority == nil {
			pod.Spec.Priority = old.Spec.Priority
		}
		if pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
		return nil
	}
	class, err := r.classOf(ctx, a, pod)
	if err != nil {
		return err
	}
	pod.Spec.PriorityClassName = class.Name
	if p := pod.Spec.Priority; p != nil && *p != class.Value {
		return forbid(a, "the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *p, class.Value)
	}
	value := class.Value
	pod.Spec.Priority = &value
	if class.PreemptionPolicy == nil {
		return nil
	}
	policy := *class.PreemptionPolicy
	if p := pod.Spec.PreemptionPolicy; p != nil && *p != policy {
		return forbid(a, "the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *p, policy)
	}
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// classOf is the class a pod names, or the default one; without either it is a class of no name and priority zero.
func (r *priority) classOf(ctx context.Context, a *Attributes, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	name := pod.Spec.PriorityClassName
	if name != "" {
		class, err := get[*schedulingv1.PriorityClass](ctx, r.env, priorityClasses, "", name)
		if apierrors.IsNotFound(err) {
			return nil, forbid(a, "no PriorityClass with name %v was found", name)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to resolve PriorityClass with name %s: %w", name, err)
		}
		return class, nil
	}
	class, err := r.defaultClass(ctx)
	if err != nil {
		return nil, fmt.Errorf("error occurred while retrieving default priority class: %w", err)
	}
	if class == nil {
		policy := corev1.PreemptLowerPriority
		class = &schedulingv1.PriorityClass{PreemptionPolicy: &policy}
	}
	return class, nil
}

// defaultClass is the class of pods that name none. Of several, which only a race can make, the lowest counts.
func (r *priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	classes, err := list[*schedulingv1.PriorityClass](ctx, r.env, priorityClasses, "")
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

func (r *priority) Validate(ctx context.Context, a *Attributes) error {
	if !a.is(priorityClasses) {
		return nil
	}
	class, err := objectOf[*schedulingv1.PriorityClass](a)
	if err != nil || !class.GlobalDefault {
		return err
	}
	other, err := r.defaultClass(ctx)
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if other != nil && (a.Operation == Create || other.Name != class.Name) {
		return forbid(a, "PriorityClass %v is already marked as default. Only one default can exist", other.Name)
	}
	return nil
}
