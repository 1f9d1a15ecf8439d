package admission

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
)

// defaultIngressClass sets the default IngressClass of ingresses without a class.
type defaultIngressClass struct{ client lazyClient }

// ingressClassAnnotation is the deprecated way to set a class.
const ingressClassAnnotation = "kubernetes.io/ingress.class"

func (*defaultIngressClass) Name() string { return "DefaultIngressClass" }

func (*defaultIngressClass) Handles(a *Attributes) bool {
	return a.Operation == Create && a.isPlain(ingresses)
}

func (p *defaultIngressClass) Mutate(ctx context.Context, a *Attributes) error {
	ingress, err := objectOf[*networkingv1.Ingress](a)
	if err != nil {
		return err
	}
	if _, annotated := ingress.Annotations[ingressClassAnnotation]; annotated || ingress.Spec.IngressClassName != nil {
		return nil
	}
	classes, err := list[*networkingv1.IngressClass](ctx, p.client, ingressClasses, "")
	if err != nil {
		return Forbidden(a, err)
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
