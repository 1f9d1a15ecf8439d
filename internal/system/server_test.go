package system

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/config"
)

// get requests a path of the API server as administrator.
func get(t *testing.T, dataDir, path string) (status int, err error) {
	t.Helper()
	status, _, err = getText(t, dataDir, path)
	return status, err
}

// getText is get that also returns the response.
func getText(t *testing.T, dataDir, path string) (status int, text string, err error) {
	t.Helper()
	connection, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, adminKubeconfig))
	if err != nil {
		return 0, "", err
	}
	client, err := rest.HTTPClientFor(connection)
	if err != nil {
		return 0, "", err
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(connection.Host + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// TestRunAPIServer runs an API server on an embedded etcd until it is ready, and stops it.
func TestRunAPIServer(t *testing.T) {
	c := config.DefaultAPIServer()
	c.DataDir, c.BindAddress, c.SecurePort, c.LogLevel = t.TempDir(), "127.0.0.1", 0, "error"
	c.Etcd.Prefix = "/clusters/a"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- RunAPIServer(ctx, c) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, err := get(t, c.DataDir, "/readyz")
		if status == http.StatusOK {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("the server has stopped: %v", err)
		default:
		}
		if time.Now().After(end) {
			_, text, _ := getText(t, c.DataDir, "/readyz?verbose")
			t.Fatalf("not ready: status %d, error %v, checks:\n%s", status, err, text)
		}
	}
	// A second server must not use the same data directory.
	if err := RunAPIServer(ctx, c); err == nil || !strings.Contains(err.Error(), "used by another skiff") {
		t.Errorf("second server: error %v", err)
	}
	for path, want := range map[string]string{
		"/statusz": "apiserver statusz", "/flagz": "token", "/metrics/slis": `kubernetes_healthcheck{name="ping",type="readyz"} 1`,
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication": "requestheader-allowed-names",
	} {
		if status, text, err := getText(t, c.DataDir, path); err != nil || status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: status %d, error %v, %s", path, status, err, text)
		}
	}
	if status, err := get(t, c.DataDir, "/apis/apps/v1/deployments"); err != nil || status != http.StatusOK {
		t.Errorf("list of deployments: status %d, error %v", status, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Everything in the data directory is known, so that it can be removed.
	var out strings.Builder
	if err := (&installer{out: &out}).removeData(c.DataDir); err != nil || !strings.HasPrefix(out.String(), "removed ") {
		t.Errorf("remove data directory: %v, %s", err, &out)
	}
}

// Queries to the scheduler fail until it has started.
func TestDeferredHandler(t *testing.T) {
	var h deferredHandler
	serve := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code
	}
	if code := serve(); code != http.StatusServiceUnavailable {
		t.Errorf("status %d before the start", code)
	}
	h.set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	if code := serve(); code != http.StatusNoContent {
		t.Errorf("status %d after the start", code)
	}
}
