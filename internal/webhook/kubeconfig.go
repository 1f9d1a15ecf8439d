package webhook

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/egress"
)

// KubeconfigClient calls a webhook whose address, CA and credentials are in a kubeconfig file.
type KubeconfigClient struct {
	url         string
	client      *http.Client
	maxResponse int64
}

// NewKubeconfigClient makes a client from the current context of a kubeconfig file. A response may have at most maxResponse bytes. dial
// connects to the webhook; nil: the network of the host is used.
func NewKubeconfigClient(path string, timeout time.Duration, maxResponse int64, dial egress.DialFunc) (*KubeconfigClient, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the webhook's kubeconfig %s: %w", path, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("read the webhook's kubeconfig %s: %w", path, err)
	}
	if config.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fmt.Errorf("kubeconfig %s has no http or https server URL", path)
	}
	config.Timeout, config.Dial = timeout, dial
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the webhook: %w", err)
	}
	client.CheckRedirect = rejectRedirects
	return &KubeconfigClient{url: base.String(), client: client, maxResponse: maxResponse}, nil
}

// Post sends JSON. A response of any status is not an error.
func (c *KubeconfigClient) Post(ctx context.Context, body []byte) (*Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return post(c.client, request, c.maxResponse)
}
