package node

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"skiff/test/cluster"
)

// TestEtcdFullDisk fills the disk of a server up to a part of etcd's reserve. It refuses writes and serves reads, also after a restart, and accepts
// writes again when there is space.
func TestEtcdFullDisk(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "data")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=700,size=384m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	server, maps := startOnDisk(t, dir)
	defer func() { server.Stop() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	create := func(name string) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := create(name); err != nil {
			t.Fatal(err)
		}
	}
	expectFull := func() {
		t.Helper()
		var status *apierrors.StatusError
		if err := create("c"); !errors.As(err, &status) || status.ErrStatus.Code != http.StatusInsufficientStorage ||
			!strings.Contains(status.ErrStatus.Message, "the disk of etcd's data directory has ") {
			t.Fatalf("write on a full disk: %v", err)
		}
		if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); err != nil {
			t.Fatalf("read on a full disk: %v; the log ends:\n%s", err, server.Server[0].Log(20))
		}
	}
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	expectFull()
	if code := server.Server[0].Terminate(); code != 0 {
		t.Errorf("exit code %d after SIGTERM; the log ends:\n%s", code, server.Server[0].Log(20))
	}
	fill(t, filler) // what the server has freed
	server, maps = startOnDisk(t, dir)
	expectFull()
	if log := server.Server[0].Log(100); !strings.Contains(log, "no space in etcd, rejecting writes") || strings.Contains(log, "failed to preallocate") {
		t.Errorf("the log does not say that writes are rejected, or etcd has no log segment:\n%s", log)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := create("c"); err != nil {
		t.Errorf("write with space on the disk: %v", err)
	}
	if err := maps.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if code := server.Server[0].Terminate(); code != 0 {
		t.Errorf("exit code %d after SIGTERM; the log ends:\n%s", code, server.Server[0].Log(20))
	}
}

// startOnDisk starts a server and waits until it is ready.
func startOnDisk(t *testing.T, dir string) (*cluster.Cluster, typedcorev1.ConfigMapInterface) {
	t.Helper()
	server, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	return server, clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
}

// fill appends to a file until 8 MiB are free on its disk. etcd needs some of it for a restart.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for {
		var stat unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(path), &stat); err != nil {
			t.Fatal(err)
		}
		if int64(stat.Bavail)*stat.Bsize <= 8<<20 {
			return
		}
		if _, err := file.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
}
