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

// TestEtcdFullDisk fills the disk of a server, first a part of etcd's reserve and then all of it. It refuses writes, deletes and serves reads,
// also after a restart, and accepts writes again when there is space.
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
	server, client := startOnDisk(t, dir)
	maps, pods := client.ConfigMaps("default"), client.Pods("default")
	defer func() { server.Stop() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	create := func(name string) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"a", "b", "d", "e"} {
		if err := create(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"graceful", "late"} {
		createBoundPod(ctx, t, pods, name)
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
	const reserve = 128 << 20
	fill(t, filler, reserve-16<<20)
	expectFull()
	// A deletion with a grace period begins with an update.
	if err := pods.Delete(ctx, "graceful", metav1.DeleteOptions{}); err != nil {
		t.Errorf("graceful deletion on a full disk: %v", err)
	}
	if marked, err := pods.Get(ctx, "graceful", metav1.GetOptions{}); err != nil || marked.DeletionTimestamp == nil {
		t.Errorf("the pod that is being deleted: %+v, %v", marked.ObjectMeta, err)
	}
	// To the last byte: what is allocated in advance is enough for deletions, but not for updates.
	fill(t, filler, 0)
	expectFull()
	for _, name := range []string{"b", "d"} {
		if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deletion on a disk without a free byte: %v", err)
		}
	}
	var status *apierrors.StatusError
	if err := pods.Delete(ctx, "late", metav1.DeleteOptions{}); !errors.As(err, &status) || status.ErrStatus.Code != http.StatusInsufficientStorage {
		t.Errorf("graceful deletion on a disk without a free byte: %v", err)
	}
	if code := server.Server[0].Terminate(); code != 0 {
		t.Errorf("exit code %d after SIGTERM; the log ends:\n%s", code, server.Server[0].Log(20))
	}
	fill(t, filler, 0) // what the server has freed
	server, client = startOnDisk(t, dir)
	maps = client.ConfigMaps("default")
	expectFull()
	if err := maps.Delete(ctx, "e", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deletion after a start on a disk without a free byte: %v", err)
	}
	if log := server.Server[0].Log(100); !strings.Contains(log, "no space in etcd, rejecting writes") || strings.Contains(log, "failed to preallocate") {
		t.Errorf("the log does not say that writes are rejected, or etcd has no log segment:\n%s", log)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := create("c"); err != nil {
		t.Errorf("write with space on the disk: %v", err)
	}
	if code := server.Server[0].Terminate(); code != 0 {
		t.Errorf("exit code %d after SIGTERM; the log ends:\n%s", code, server.Server[0].Log(20))
	}
}

// startOnDisk starts a server and waits until it is ready.
func startOnDisk(t *testing.T, dir string) (*cluster.Cluster, typedcorev1.CoreV1Interface) {
	t.Helper()
	server, err := cluster.Skiff(dir, "--disable-admission-plugins=ServiceAccount")
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	return server, clientset.NewForConfigOrDie(config).CoreV1()
}

// createBoundPod creates a pod of a node: its deletion has a grace period.
func createBoundPod(ctx context.Context, t *testing.T, pods typedcorev1.PodInterface, name string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "elsewhere", Containers: []corev1.Container{{Name: "c", Image: "image"}},
	}}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// fill appends to a file until so many bytes are free on its disk.
func fill(t *testing.T, path string, free int64) {
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
		left := int64(stat.Bavail)*stat.Bsize - free
		if left <= 0 {
			return
		}
		if _, err := file.Write(make([]byte, min(left, 64<<10))); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}
