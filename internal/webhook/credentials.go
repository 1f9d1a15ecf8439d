package webhook

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Credentials are the credentials of the API server for webhooks, by the address of the webhook: the users of a kubeconfig file.
type Credentials struct{ kubeconfig clientcmdapi.Config }

// ReadCredentials reads a kubeconfig file. The name of a user is the host and port of a webhook ("hooks.example.com:8443"), the name of a
// Service ("name.namespace.svc"), the domain of several ("*.example.com"), or "*".
func ReadCredentials(path string) (*Credentials, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the credentials for webhooks: %w", err)
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("read the credentials for webhooks: %w", err)
	}
	return &Credentials{kubeconfig: *config}, nil
}

// forTarget returns the configuration with the credentials for host:port.
func (c *Credentials) forTarget(target string) (*rest.Config, error) {
	if c == nil {
		return &rest.Config{}, nil
	}
	user := c.find(target)
	if user == nil {
		return &rest.Config{}, nil
	}
	if user.AuthProvider != nil {
		return nil, errors.New("auth provider not supported")
	}
	config := &rest.Config{
		BearerToken: user.Token, BearerTokenFile: user.TokenFile, Username: user.Username, Password: user.Password,
		Impersonate: rest.ImpersonationConfig{
			UserName: user.Impersonate, UID: user.ImpersonateUID, Groups: user.ImpersonateGroups, Extra: user.ImpersonateUserExtra,
		},
	}
	if user.Token == "" && user.TokenFile != "" {
		token, err := os.ReadFile(user.TokenFile)
		if err != nil {
			return nil, err
		}
		config.BearerToken = string(token)
	}
	config.TLSClientConfig.CertFile, config.TLSClientConfig.CertData = user.ClientCertificate, user.ClientCertificateData
	config.TLSClientConfig.KeyFile, config.TLSClientConfig.KeyData = user.ClientKey, user.ClientKeyData
	if user.Exec != nil {
		config.ExecProvider = user.Exec.DeepCopy()
	}
	return config, nil
}

// find returns the user for host:port: the most specific one, else "*", else that of the current context.
func (c *Credentials) find(target string) *clientcmdapi.AuthInfo {
	users := c.kubeconfig.AuthInfos
	targets := []string{target}
	if host, port, err := net.SplitHostPort(target); err == nil && port == "443" {
		targets = append(targets, host)
	}
	for _, name := range targets {
		if user, ok := users[name]; ok {
			return user
		}
		for rest := name; ; {
			_, below, ok := strings.Cut(rest, ".")
			if !ok {
				break
			}
			if user, ok := users["*."+below]; ok {
				return user
			}
			rest = below
		}
	}
	if user, ok := users["*"]; ok {
		return user
	}
	if current, ok := c.kubeconfig.Contexts[c.kubeconfig.CurrentContext]; ok {
		return users[current.AuthInfo]
	}
	return nil
}
