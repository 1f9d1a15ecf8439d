package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// podTopologyLabels copies the zone and region labels of a node to the pods that are bound to it.
type podTopologyLabels struct{ client lazyClient }

var topologyLabels = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion}

func (*podTopologyLabels) Name() string { return "PodTopologyLabels" }

func (*podTopologyLabels) Handles(a *Attributes) bool {
	return a.Operation == Create && a.is(pods) && (a.Subresource == "" || a.Subresource == "binding")
}

func (p *podTopologyLabels) Mutate(ctx context.Context, a *Attributes) error {
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		return p.copyLabels(ctx, obj.Spec.NodeName, &obj.Labels)
	case *corev1.Binding:
		// The labels of the binding are copied to the pod when it is bound.
		if obj.Target.Kind == "Node" {
			return p.copyLabels(ctx, obj.Target.Name, &obj.Labels)
		}
	}
	return nil
}

func (p *podTopologyLabels) copyLabels(ctx context.Context, name string, to *map[string]string) error {
	if name == "" {
		return nil
	}
	node, err := get[*corev1.Node](ctx, p.client, nodes, "", name)
	if err != nil {
		// A pod may be created for a node that does not exist yet.
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	for _, key := range topologyLabels {
		if value, ok := node.Labels[key]; ok {
			if *to == nil {
				*to = map[string]string{}
			}
			(*to)[key] = value
		}
	}
	return nil
}
