package admission

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
)

// defaultIngressClass gives an ingress that asks for no class the default one.
type defaultIngressClass struct{ env access }

// ingressClassAnnotation is the older way to name a class.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

func (*defaultIngressClass) Name() string { return "DefaultIngressClass" }

func (*defaultIngressClass) Handles(a *Attributes) bool {
	return a.Operation == Create && a.isPlain(ingresses)
}

func (r *defaultIngressClass) Mutate(ctx context.Context, a *Attributes) error {
	ingress, err := objectOf[*networkingv1.Ingress](a)
	if err != nil {
		return err
	}
	if _, annotated := ingress.Annotations[ingressClassAnnotation]; annotated || ingress.Spec.IngressClassName != nil {
		return nil
	}
	classes, err := list[*networkingv1.IngressClass](ctx, r.env, ingressClasses, "")
	if err != nil {
		return forbidden(a, err)
	}
	class, ok := newestDefault(classes, func(annotations map[string]string) bool {
		return annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
	})
	if ok {
		name := class.Name
		ingress.Spec.IngressClassName = &name
	}
	return nil
}
