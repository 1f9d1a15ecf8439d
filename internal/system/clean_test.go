package system

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"skiff/internal/config"
)

// What the node has mounted is unmounted; a file system that an administrator has mounted for the data directory is not.
func TestIsNodeMount(t *testing.T) {
	for _, test := range []struct {
		mount mountinfo.Info
		want  bool
	}{
		{mountinfo.Info{Mountpoint: "/data/kubelet/pods/1/volumes/x", Root: "/"}, true},
		{mountinfo.Info{Mountpoint: "/data/containerd/state/rootfs", Root: "/"}, true},
		{mountinfo.Info{Mountpoint: "/data/kubelet", Root: "/data/kubelet"}, true},
		{mountinfo.Info{Mountpoint: "/data/kubelet", Root: "/"}, false},
		{mountinfo.Info{Mountpoint: "/data/containerd", Root: "/"}, false},
		{mountinfo.Info{Mountpoint: "/data/etcd", Root: "/"}, false},
		{mountinfo.Info{Mountpoint: "/data/volumes/claim", Root: "/"}, false},
		{mountinfo.Info{Mountpoint: "/data", Root: "/"}, false},
	} {
		if got := isNodeMount(&test.mount, nodeDirs{data: "/data", kubelet: "/data/kubelet"}); got != test.want {
			t.Errorf("mount of %s at %s: %t, want %t", test.mount.Root, test.mount.Mountpoint, got, test.want)
		}
	}
}

// The kubelet's directory may be elsewhere.
func TestIsNodeMountOfOtherDirectory(t *testing.T) {
	dirs := nodeDirs{data: "/data", kubelet: "/var/lib/kubelet"}
	for mount, want := range map[string]bool{
		"/var/lib/kubelet/pods/1/volumes/x": true, "/var/lib/kubelet": true, "/data/containerd/state/rootfs": true, "/data/kubelet/pki": false, "/var/lib/kubelet2/x": false,
	} {
		if got := isNodeMount(&mountinfo.Info{Mountpoint: mount, Root: mount}, dirs); got != want {
			t.Errorf("mount at %s: %t, want %t", mount, got, want)
		}
	}
}

// Network and cgroups of all nodes have the same names. A directory with which no node has run, such as that of a server without one or of a start that
// failed because of another node, has none of them.
func TestCleanWithoutNode(t *testing.T) {
	dir := t.TempDir()
	if err := createDataDir(dir); err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{"etcd", "images", "kubelet/pki"} {
		if err := os.MkdirAll(filepath.Join(dir, entry), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	before := readTree(t, dir)
	var out bytes.Buffer
	if err := Clean(t.Context(), config.Clean{DataDir: dir}, &out); err != nil || !strings.Contains(out.String(), "no node has run with "+dir) {
		t.Errorf("%v: %s", err, &out)
	}
	if after := readTree(t, dir); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("files %q, want %q", after, before)
	}
	dirs := nodeDirs{data: dir, kubelet: filepath.Join(dir, "kubelet")}
	unlock, err := openKubeletDir(dirs.kubelet, dir, "root-dir")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	expect := func(what string, want bool) {
		t.Helper()
		if has, err := dirs.hasNode(); err != nil || has != want {
			t.Errorf("%s: a node has run: %v, %v", what, has, err)
		}
	}
	expect("with the kubelet's directory", true)
	dirs.kubelet = ""
	expect("without it", false)
	if err := os.Mkdir(filepath.Join(dir, "containerd"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect("with that of containerd", true)
	dirs.data = filepath.Join(dir, markerFile) // a file
	if _, err := dirs.hasNode(); err == nil {
		t.Error("a directory that cannot be read is taken for one without a node")
	}
}

// This test has the port of a kubelet, and the name of a skiff.
func TestFindOtherNode(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := (&config.Node{}).KubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	settings.Address, settings.Port = "127.0.0.1", int32(listener.Addr().(*net.TCPAddr).Port)
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile("/proc/self/comm", name, 0); err != nil {
			t.Error(err)
		}
	})
	for comm, want := range map[string]string{"skiff": "another skiff runs a node on this host", "kubelet": ""} {
		if err := os.WriteFile("/proc/self/comm", []byte(comm), 0); err != nil {
			t.Fatal(err)
		}
		isShared, err := findOtherNode(settings)
		if !isShared || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("beside a process %s: %v, %v", comm, isShared, err)
		}
	}
	listener.Close()
	if isShared, err := findOtherNode(settings); isShared || err != nil {
		t.Errorf("alone: %v, %v", isShared, err)
	}
}
