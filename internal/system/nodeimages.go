package system

import (
	"context"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/internal/kubelet/images"
	"skiff/internal/kubelet/images/credentials"
)

// buildImages makes what pulls the node's images and what removes unused ones.
func (n *nodeComponents) buildImages() (err error) {
	log := n.log.With("component", "images")
	var plugins *credentials.Plugins
	if n.ImageCredentialProviderConfig != "" {
		if plugins, err = credentials.LoadPlugins(n.ImageCredentialProviderConfig, n.ImageCredentialProviderBinDir, accounts{n.client}, log); err != nil {
			return err
		}
	}
	s := n.settings
	parallel := 1
	if !*s.SerializeImagePulls {
		parallel = 0
		if s.MaxParallelImagePulls != nil {
			parallel = int(*s.MaxParallelImagePulls)
		}
	}
	if n.puller, err = images.New(images.Options{
		Runtime: n.runtime, Events: n.recorder, Secret: n.objects.Secret, Plugins: plugins, ConfigFiles: images.ConfigFiles(n.root),
		Records:  filepath.Join(n.root, "images.json"),
		Verify:   images.Verify{Policy: string(s.ImagePullCredentialsVerificationPolicy), Allowed: s.PreloadedImagesVerificationAllowlist},
		Parallel: parallel, PullsPerSecond: float32(*s.RegistryPullQPS), Burst: int(s.RegistryBurst), Log: log,
	}); err != nil {
		return err
	}
	policy := images.Policy{
		HighPercent: int(*s.ImageGCHighThresholdPercent), LowPercent: int(*s.ImageGCLowThresholdPercent),
		MinAge: s.ImageMinimumGCAge.Duration, MaxAge: s.ImageMaximumGCAge.Duration,
	}
	n.collector = &images.Collector{
		Store: n.runtime, Policy: policy, Images: n.puller, Events: n.recorder, Node: func() kind.Object { return n.node.Node() }, Log: log,
	}
	n.runs["image garbage collection"] = n.collector.Run
	return policy.Validate()
}

// accounts reads service accounts and requests their tokens, for credential provider plugins.
type accounts struct{ client *client.Client }

func (a accounts) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return client.For[*corev1.ServiceAccount](a.client).Get(ctx, namespace, name)
}

func (a accounts) Token(ctx context.Context, namespace, name string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	response := &authenticationv1.TokenRequest{}
	err := client.For[*corev1.ServiceAccount](a.client).CreateSubresource(ctx, types.NamespacedName{Namespace: namespace, Name: name}, "token", request, response)
	return response, err
}
