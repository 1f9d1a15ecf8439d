package admission

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// nodeDeclaredFeatureValidator rejects updates of pods that require features which their node does not declare.
type nodeDeclaredFeatureValidator struct {
	client  lazyClient
	version *version.Version
}

// kubernetesVersion is the version of Kubernetes whose features skiff implements.
const kubernetesVersion = "1.37.0"

func newNodeDeclaredFeatureValidator(client lazyClient) (*nodeDeclaredFeatureValidator, error) {
	v, err := version.Parse(kubernetesVersion)
	if err != nil {
		return nil, err
	}
	return &nodeDeclaredFeatureValidator{client, v}, nil
}

func (*nodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

func (*nodeDeclaredFeatureValidator) Handles(a *Attributes) bool {
	return a.Operation == Update && a.is(pods) && (a.Subresource == "" || a.Subresource == "resize")
}

func (p *nodeDeclaredFeatureValidator) Validate(ctx context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	old, err := oldOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	framework := nodedeclaredfeatures.DefaultFramework
	requirements, err := framework.InferForPodUpdate(
		&nodedeclaredfeatures.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, p.version)
	if err != nil {
		return forbid(a, "failed to infer pod capability requirements: %w", err)
	}
	if requirements.IsEmpty() {
		return nil
	}
	node, err := nodeOf(ctx, p.client, a, pod)
	if err != nil {
		return err
	}
	result, err := framework.MatchNode(requirements, node)
	if err != nil {
		return forbid(a, "failed to match pod requirements against node %q: %w", node.Name, err)
	}
	if !result.IsMatch {
		return forbid(a, "pod update requires features %s which are not available on node %q", strings.Join(result.UnsatisfiedRequirements, ", "), node.Name)
	}
	return nil
}
