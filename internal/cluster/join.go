package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kubelet/bootstrap"
)

const (
	// joinRetryInterval is the pause between two attempts, joinTimeout bounds one.
	joinRetryInterval = time.Second
	joinTimeout       = 30 * time.Second
	// maxResponseBytes bounds a response.
	maxResponseBytes = 1 << 20
)

// Join joins the cluster of running servers.
type Join struct {
	// Servers are the URLs of API servers of the cluster. The first that can be reached is used.
	Servers []string
	// Token is the text of a token of 'skiff token create --server'.
	Token string
	Log   *slog.Logger
}

// Send verifies a server by the token, sends it the request and returns the response. It repeats that while no server can be reached, or they
// cannot change the members of etcd because another server is joining.
func (j Join) Send(ctx context.Context, request JoinRequest) (*JoinResponse, error) {
	token, err := bootstrap.ParseToken(j.Token)
	if err != nil {
		return nil, fmt.Errorf("--join-token: %w", err)
	}
	request.TypeMeta = typeMeta("JoinRequest")
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	for {
		var response *JoinResponse
		err := bootstrap.TryServers(ctx, j.Servers, func(server string) (err error) {
			response, err = attempt(ctx, server, token, body)
			return err
		})
		if !bootstrap.IsUnreachable(err) {
			return response, explain(err)
		}
		j.Log.Warn("failed to join the cluster, retrying", "servers", j.Servers, "error", err)
		select {
		case <-time.After(joinRetryInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func explain(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the server does not accept the token: it has expired or was deleted; create a new one with 'skiff token create --server' (%w)", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token is not one of 'skiff token create --server', or the server was not started with --cluster-init (%w)", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the server has an etcd that others cannot join: start it with --cluster-init (%w)", err)
	}
	return err
}

// attempt discovers the CA and sends the request to a server that has a certificate of it.
func attempt(ctx context.Context, server string, token bootstrap.Token, body []byte) (*JoinResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	ca, err := bootstrap.DiscoverCA(ctx, server, token.CAHash)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true},
		// The token must not reach another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(server, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token.Bearer())
	request.Header.Set("Content-Type", "application/json")
	result, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer result.Body.Close()
	data, err := io.ReadAll(io.LimitReader(result.Body, maxResponseBytes))
	if err != nil {
		return nil, err
	}
	if result.StatusCode != http.StatusOK {
		return nil, responseError(result.StatusCode, data)
	}
	response := &JoinResponse{}
	if err := json.Unmarshal(data, response); err != nil {
		return nil, fmt.Errorf("decode the response: %w", err)
	}
	return response, response.Keys.verify(token)
}

// responseError is the error of a response that is not OK.
func responseError(code int, data []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(data, &status); err != nil || status.Kind != "Status" {
		status = metav1.Status{Code: int32(code), Message: fmt.Sprintf("%d %s", code, http.StatusText(code))}
		if code == http.StatusNotFound {
			status.Reason = metav1.StatusReasonNotFound
		}
	}
	return apierrors.FromObject(&status)
}
