package system

import (
	"testing"

	"github.com/moby/sys/mountinfo"
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
