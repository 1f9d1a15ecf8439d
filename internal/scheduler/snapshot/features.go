package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	versionutil "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"

	"skiff/internal/version"
)

var kubernetesVersion = versionutil.MustParse(version.Kubernetes)

// RequiredFeatures returns the declared node features that a pod needs.
func RequiredFeatures(pod *corev1.Pod) (nodedeclaredfeatures.FeatureSet, error) {
	return nodedeclaredfeatures.DefaultFramework.InferForPodScheduling(&featuretypes.PodInfo{Spec: &pod.Spec}, kubernetesVersion)
}
