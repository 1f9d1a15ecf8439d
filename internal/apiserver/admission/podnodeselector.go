package admission

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

// podNodeSelector adds the node selector of a namespace to its pods, and rejects pods whose own conflicts with it. Off by default.
type podNodeSelector struct {
	client lazyClient
	// selectors by namespace: the labels its pods may select. clusterDefaultSelector is for namespaces without annotation.
	selectors map[string]string
}

// nodeSelectorConfig has no kind; it is a plain map.
type nodeSelectorConfig struct {
	Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
}

const (
	clusterDefaultSelector = "clusterDefaultNodeSelector"
	nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"
)

func (*podNodeSelector) Name() string { return "PodNodeSelector" }

func (*podNodeSelector) Handles(a *Attributes) bool { return a.Operation == Create && a.isPlain(pods) }

func (p *podNodeSelector) Mutate(ctx context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	wanted, err := p.selectorOf(ctx, a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(wanted, pod.Spec.NodeSelector) {
		return errSelector(pod, "pod node label selector conflicts with its namespace node label selector")
	}
	if len(wanted) > 0 {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(pod.Spec.NodeSelector, wanted)
	}
	return p.Validate(ctx, a)
}

func (p *podNodeSelector) Validate(ctx context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	wanted, err := p.selectorOf(ctx, a.Namespace)
	if err != nil {
		return err
	}
	if labels.Conflicts(wanted, pod.Spec.NodeSelector) {
		return errSelector(pod, "pod node label selector conflicts with its namespace node label selector")
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(p.selectors[a.Namespace])
	if err != nil || len(allowed) == 0 {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if want, ok := allowed[key]; !ok || want != value {
			return errSelector(pod, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

func errSelector(pod *corev1.Pod, text string) error {
	return apierrors.NewForbidden(pods, pod.Name, fmt.Errorf("%s", text))
}

func (p *podNodeSelector) selectorOf(ctx context.Context, name string) (labels.Set, error) {
	namespace, err := get[*corev1.Namespace](ctx, p.client, namespaces, "", name)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("namespace %s does not exist", name))
	}
	text, ok := namespace.Annotations[nodeSelectorAnnotation]
	if !ok {
		text = p.selectors[clusterDefaultSelector]
	}
	return labels.ConvertSelectorToLabelsMap(text)
}
