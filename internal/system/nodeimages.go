package system

import (
	"context"
	"log/slog"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/images"
	"skiff/internal/kubelet/images/credentials"
	"skiff/internal/kubelet/objects"
)

// newImages makes what pulls a node's images and what removes them again.
func newImages(c *client.Client, s nodeSettings, settings *kubeletconfig.KubeletConfiguration, r *cri.Runtime, named *objects.Objects, recorder client.EventRecorder, node func() *corev1.Node, log *slog.Logger) (*images.Images, *images.Collector, error) {
	log = log.With("part", "images")
	var plugins *credentials.Plugins
	if s.ImageCredentialProviderConfig != "" {
		var err error
		if plugins, err = credentials.LoadPlugins(s.ImageCredentialProviderConfig, s.ImageCredentialProviderBinDir, accounts{c}, log); err != nil {
			return nil, nil, err
		}
	}
	parallel := 1
	if !*settings.SerializeImagePulls {
		parallel = 0
		if settings.MaxParallelImagePulls != nil {
			parallel = int(*settings.MaxParallelImagePulls)
		}
	}
	pulled, err := images.New(images.Options{
		Runtime: r, Events: recorder, Secret: named.Secret, Plugins: plugins, ConfigFiles: images.ConfigFiles(s.root), Records: filepath.Join(s.root, "images.json"),
		Verify:   images.Verify{Policy: string(settings.ImagePullCredentialsVerificationPolicy), Allowed: settings.PreloadedImagesVerificationAllowlist},
		Parallel: parallel, PullsPerSecond: float32(*settings.RegistryPullQPS), Burst: int(settings.RegistryBurst), Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	policy := images.Policy{
		HighPercent: int(*settings.ImageGCHighThresholdPercent), LowPercent: int(*settings.ImageGCLowThresholdPercent),
		MinAge: settings.ImageMinimumGCAge.Duration, MaxAge: settings.ImageMaximumGCAge.Duration,
	}
	return pulled, &images.Collector{
		Store: r, Policy: policy, Images: pulled, Events: recorder, Node: func() kind.Object { return node() }, Log: log,
	}, policy.Validate()
}

// accounts reads service accounts and asks for their tokens, for credential plugins.
type accounts struct{ client *client.Client }

func (a accounts) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return client.For[*corev1.ServiceAccount](a.client).Get(ctx, namespace, name)
}

func (a accounts) Token(ctx context.Context, namespace, name string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	answer := &authenticationv1.TokenRequest{}
	err := client.For[*corev1.ServiceAccount](a.client).CreateSubresource(ctx, types.NamespacedName{Namespace: namespace, Name: name}, "token", request, answer)
	return answer, err
}
