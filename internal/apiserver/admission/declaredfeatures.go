package admission

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// nodeDeclaredFeatureValidator refuses the update of a pod that needs something its node does not say it can do.
type nodeDeclaredFeatureValidator struct {
	env     access
	version *version.Version
}

// declaredFeaturesOf is the version of Kubernetes whose features skiff serves.
const declaredFeaturesOf = "1.37.0"

func newNodeDeclaredFeatureValidator(env access) (*nodeDeclaredFeatureValidator, error) {
	v, err := version.Parse(declaredFeaturesOf)
	if err != nil {
		return nil, err
	}
	return &nodeDeclaredFeatureValidator{env, v}, nil
}

func (*nodeDeclaredFeatureValidator) Name() string { return "NodeDeclaredFeatureValidator" }

func (*nodeDeclaredFeatureValidator) Handles(a *Attributes) bool {
	return a.Operation == Update && a.is(pods) && (a.Subresource == "" || a.Subresource == "resize")
}

func (r *nodeDeclaredFeatureValidator) Validate(ctx context.Context, a *Attributes) error {
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
	needs, err := framework.InferForPodUpdate(
		&nodedeclaredfeatures.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, r.version)
	if err != nil {
		return forbid(a, "failed to infer pod capability requirements: %w", err)
	}
	if needs.IsEmpty() {
		return nil
	}
	node, err := nodeOf(ctx, r.env, a, pod)
	if err != nil {
		return err
	}
	result, err := framework.MatchNode(needs, node)
	if err != nil {
		return forbid(a, "failed to match pod requirements against node %q: %w", node.Name, err)
	}
	if !result.IsMatch {
		return forbid(a, "pod update requires features %s which are not available on node %q", strings.Join(result.UnsatisfiedRequirements, ", "), node.Name)
	}
	return nil
}
