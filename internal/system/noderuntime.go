package system

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
	"skiff/internal/network/cni"
)

const (
	// The directories of CNI plugins and their configuration of a container runtime that does not report them.
	defaultCNIBinDir, defaultCNIConfDir = "/opt/cni/bin", "/etc/cni/net.d"
	// The bounds of the time until a container runtime that does not answer is asked again.
	runtimeRetryMin, runtimeRetryMax = time.Second, 30 * time.Second
)

// containerRuntime is the container runtime of a node.
type containerRuntime struct {
	endpoint string
	// run runs the runtime until its context is done; nil: it is run by something else.
	run func(context.Context) error
	// ready is closed when the runtime serves and has the images in the data directory.
	ready <-chan struct{}
	// cniBinDir and cniConfDir are where the runtime finds CNI plugins and their configuration.
	cniBinDir, cniConfDir string
}

// containerRuntime is the configured runtime, or skiff's own containerd.
func (n *nodeComponents) containerRuntime() (*containerRuntime, error) {
	if endpoint := n.settings.ContainerRuntimeEndpoint; endpoint != "" {
		ready := make(chan struct{})
		close(ready)
		return &containerRuntime{endpoint: endpoint, ready: ready}, nil
	}
	own, err := newContainerd(n.dataDir, n.settings, n.log)
	if err != nil {
		return nil, err
	}
	n.settings.CgroupDriver = ownCgroupDriver(n.settings)
	n.sandboxProfile, n.runtimeProblem = own.SandboxProfile(), own.Problem
	bin, conf := ownCNIDirs(n.dataDir)
	return &containerRuntime{endpoint: own.Endpoint(), run: own.Run, ready: own.Ready(), cniBinDir: bin, cniConfDir: conf}, nil
}

// newContainerd is the containerd in the directory of this program.
func newContainerd(dataDir string, settings *kubeletconfig.KubeletConfiguration, log *slog.Logger) (*runtime.Containerd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return runtime.New(runtime.Options{
		DataDir: dataDir, Programs: filepath.Dir(program), SystemdCgroup: ownCgroupDriver(settings) == cgroup.Systemd, Log: log.With("component", "containerd"),
	})
}

// ownCgroupDriver is the cgroup driver with skiff's own containerd.
func ownCgroupDriver(settings *kubeletconfig.KubeletConfiguration) string {
	return cmp.Or(settings.CgroupDriver, cgroup.DefaultDriver())
}

// ownCNIDirs are the directories of CNI plugins and their configuration of skiff's own containerd.
func ownCNIDirs(dataDir string) (bin, conf string) {
	return filepath.Join(dataDir, "cni/bin"), filepath.Join(dataDir, "cni/net.d")
}

// foreignCNIDirs are the directories of CNI plugins and their configuration of another container runtime.
func foreignCNIDirs(c cri.Configuration) (bin, conf string) {
	bin = defaultCNIBinDir
	if len(c.CNIBinDirs) > 0 {
		bin = c.CNIBinDirs[0]
	}
	return bin, cmp.Or(c.CNIConfDir, defaultCNIConfDir)
}

// adaptToRuntime adapts the node to how another container runtime is configured. It waits until the runtime answers: pods with another cgroup
// driver than the runtime's cannot start.
func (n *nodeComponents) adaptToRuntime(ctx context.Context, r *containerRuntime) error {
	for retry := runtimeRetryMin; ; retry = min(2*retry, runtimeRetryMax) {
		c, err := n.runtime.Configuration(ctx)
		if err == nil {
			n.settings.CgroupDriver = cmp.Or(c.CgroupDriver, n.settings.CgroupDriver, cgroup.Cgroupfs)
			n.cniVersion = cni.CompatibleVersion
			r.cniBinDir, r.cniConfDir = foreignCNIDirs(c)
			n.log.Info("configuration of the container runtime", "endpoint", r.endpoint, "cgroupDriver", n.settings.CgroupDriver, "cniBinDir", r.cniBinDir, "cniConfDir", r.cniConfDir)
			return nil
		}
		n.log.Warn("failed to read the configuration of the container runtime", "endpoint", r.endpoint, "error", err, "retry", retry.String())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
	}
}
