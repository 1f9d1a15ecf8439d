package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/mounthelper"
)

const (
	nfsPlugin = "kubernetes.io/nfs"
	// nfsTimeout bounds a mount. The helper itself retries for two minutes if the server does not respond.
	nfsTimeout = 3 * time.Minute
)

// nfsVolume is an NFS volume to mount.
type nfsVolume struct {
	name     string // of the volume's directory
	source   *corev1.NFSVolumeSource
	options  []string
	readOnly bool
}

// setUpNFS mounts an export into the pod's volume directory. Its files belong to the users the server has for them, so fsGroup is not applied.
func (v *Volumes) setUpNFS(ctx context.Context, pod *corev1.Pod, volume nfsVolume) (*mounted, error) {
	m := &mounted{plugin: nfsPlugin, path: v.dir(pod.UID, nfsPlugin, volume.name), readOnly: volume.readOnly}
	if done, err := isMounted(m.path); err != nil || done {
		return m, err
	}
	helper, err := mounthelper.Find("nfs", v.helperDirs)
	if err != nil {
		return nil, fmt.Errorf("%w: install its NFS client (package nfs-common or nfs-utils)", err)
	}
	if err := v.makeDir(m.path, 0o750); err != nil {
		return nil, err
	}
	server := volume.source.Server
	if address, err := netip.ParseAddr(server); err == nil && address.Is6() {
		server = "[" + server + "]"
	}
	options := volume.options
	if volume.readOnly {
		options = append([]string{"ro"}, options...)
	}
	ctx, cancel := context.WithTimeout(ctx, nfsTimeout)
	defer cancel()
	if err := helper.Mount(ctx, server+":"+volume.source.Path, m.path, options); err != nil {
		return nil, errors.Join(err, unmountBelow(m.path), os.Remove(m.path))
	}
	return m, nil
}
