package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

var podResource = schema.GroupResource{Resource: "pods"}

// Binding binds a pod to a node. It is the older form of pods/binding.
var Binding = kind.Of(kind.Definition[*corev1.Binding]{
	GVK: corev1.SchemeGroupVersion.WithKind("Binding"), Plural: "bindings", Namespaced: true,
	Action: bindPod,
})

func bindNamedPod(ctx context.Context, client kind.Client, req *kind.Request, parent types.NamespacedName, body kind.Object) (runtime.Object, error) {
	binding := body.(*corev1.Binding)
	if binding.Name != parent.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	return bind(ctx, client, req, parent.Namespace, binding)
}

func bindPod(ctx context.Context, client kind.Client, req *kind.Request, binding *corev1.Binding) (runtime.Object, error) {
	return bind(ctx, client, req, binding.Namespace, binding)
}

func bind(ctx context.Context, client kind.Client, req *kind.Request, namespace string, binding *corev1.Binding) (runtime.Object, error) {
	if errs := validateBinding(binding); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	pod := types.NamespacedName{Namespace: namespace, Name: binding.Name}
	err := changePod(ctx, client, req.DryRun, pod, func(pod *corev1.Pod) error { return assign(pod, binding, req.Now) })
	if err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			err = apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, binding.Name, err)
		}
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func validateBinding(binding *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	target, path := binding.Target, field.NewPath("target")
	isNode := target.Kind == "" || target.Kind == "Node"
	if !isNode {
		errs = append(errs, field.NotSupported(path.Child("kind"), target.Kind, []string{"Node", "<empty>"}))
	}
	if target.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if isNode {
		for _, msg := range apivalidation.NameIsDNSSubdomain(target.Name, false) {
			errs = append(errs, field.Invalid(path.Child("name"), target.Name, msg))
		}
	}
	return errs
}

// changePod updates a pod, or only validates the change on a dry run.
func changePod(ctx context.Context, client kind.Client, dryRun bool, key types.NamespacedName, change func(pod *corev1.Pod) error) error {
	if dryRun {
		obj, err := client.Get(ctx, podResource, key.Namespace, key.Name)
		if err != nil {
			return err
		}
		return change(obj.(*corev1.Pod).DeepCopy())
	}
	_, err := client.Update(ctx, podResource, key.Namespace, key.Name, func(obj kind.Object) error { return change(obj.(*corev1.Pod)) })
	return err
}

// assign binds the pod to the node. If the binding has a UID or resourceVersion, the pod must still match.
func assign(pod *corev1.Pod, binding *corev1.Binding, now metav1.Time) error {
	precondition := func(name, wanted, found string) error {
		if wanted == "" || wanted == found {
			return nil
		}
		return apierrors.NewConflict(podResource, pod.Name, preconditionFailed(name, wanted, found))
	}
	if err := precondition("UID", string(binding.UID), string(pod.UID)); err != nil {
		return err
	}
	if err := precondition("ResourceVersion", binding.ResourceVersion, pod.ResourceVersion); err != nil {
		return err
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = binding.Target.Name
	pod.Status.NominatedNodeName = ""
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for key, value := range binding.Annotations {
		pod.Annotations[key] = value
	}
	podspec.DropLegacyAnnotations(pod.Annotations)
	for key, value := range binding.Labels { // the topology labels of the node, set by admission
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels[key] = value
	}
	setPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, now)
	return nil
}

// preconditionFailed is upstream's error for an object that is not the one the client meant.
func preconditionFailed(name, wanted, found string) error {
	return fmt.Errorf("Precondition failed: %s in precondition: %v, %s in object meta: %v", name, wanted, name, found)
}
