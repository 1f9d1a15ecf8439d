package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// TestEtcdQuota fills the database of a server. Writes get status 507, reads and watches are served, and the server is ready. After a
// deletion writes are accepted again, without waiting for the next compaction.
func TestEtcdQuota(t *testing.T) {
	t.Parallel()
	server, err := cluster.Skiff(t.TempDir(), "--etcd-quota-backend-bytes=16777216", "--etcd-compaction-interval=1h")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	maps := clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	create := func(name string) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": strings.Repeat("v", 500<<10)},
		}, metav1.CreateOptions{})
		return err
	}
	var full error
	count := 0
	for ; full == nil; count++ {
		if full = create(fmt.Sprint("fill-", count)); count > 100 {
			t.Fatal("50 MB were stored within a quota of 16 MiB")
		}
	}
	var status *apierrors.StatusError
	if !errors.As(full, &status) || status.ErrStatus.Code != http.StatusInsufficientStorage || status.ErrStatus.Reason != "InsufficientStorage" ||
		!strings.Contains(status.ErrStatus.Message, "its quota is 16777216 bytes: delete objects that are not needed, or raise --etcd-quota-backend-bytes") {
		t.Fatalf("write to a full database: %v", full)
	}

	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) < count-1 {
		t.Errorf("list: %d objects, %v", len(list.Items), err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/readyz": "ok", "/livez": "ok", "/metrics": "etcd_server_quota_backend_bytes 1.6777216e+07",
	} {
		response, err := client.Get(config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s of a full server: %s, error %v", path, response.Status, err)
		}
	}

	events, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for i := range count - 1 {
		if err := maps.Delete(ctx, fmt.Sprint("fill-", i), metav1.DeleteOptions{}); err != nil {
			t.Fatalf("a full server refuses deletions: %v", err)
		}
		if event := <-events.ResultChan(); event.Type != watch.Deleted {
			t.Fatalf("watch: %v", event)
		}
	}
	for err := create("after"); err != nil; err = create("after") {
		if ctx.Err() != nil {
			t.Fatalf("writes are not accepted after deletions: %v; the log ends:\n%s", err, server.Server[0].Log(20))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
