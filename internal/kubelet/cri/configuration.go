package cri

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cgroup"
)

// Configuration is how a runtime is configured, as far as the kubelet and the pod network have to agree with it. Fields are empty if the
// runtime does not report them.
type Configuration struct {
	// CgroupDriver is cgroup.Cgroupfs or cgroup.Systemd.
	CgroupDriver string
	// CNIBinDirs are where the runtime finds CNI plugins, CNIConfDir where it finds their configuration.
	CNIBinDirs []string
	CNIConfDir string
}

// containerdInfo is the configuration that containerd reports in its status.
type containerdInfo struct {
	CNI struct {
		BinDir  string   `json:"binDir"`  // up to containerd 2.0
		BinDirs []string `json:"binDirs"` // from containerd 2.1
		ConfDir string   `json:"confDir"`
	} `json:"cni"`
	Containerd struct {
		DefaultRuntimeName string `json:"defaultRuntimeName"`
		Runtimes           map[string]struct {
			Options struct {
				SystemdCgroup bool
			} `json:"options"`
		} `json:"runtimes"`
	} `json:"containerd"`
}

// Configuration returns the runtime's configuration. The cgroup driver is part of the CRI, but not of runtimes before containerd 2.0; the rest
// is read from what containerd reports about itself.
func (r *Runtime) Configuration(ctx context.Context) (Configuration, error) {
	response, err := r.api.Status(ctx, true)
	if err != nil {
		return Configuration{}, fmt.Errorf("read the status of the container runtime: %w", err)
	}
	c := parseInfo(response.GetInfo()["config"])
	driver, err := r.cgroupDriver(ctx)
	if err != nil {
		return Configuration{}, err
	}
	if driver != "" {
		c.CgroupDriver = driver
	}
	return c, nil
}

// cgroupDriver returns the cgroup driver, or an empty string if the runtime does not implement the request.
func (r *Runtime) cgroupDriver(ctx context.Context) (string, error) {
	response, err := r.api.RuntimeConfig(ctx)
	if status.Code(err) == codes.Unimplemented {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the cgroup driver of the container runtime: %w", err)
	}
	if response.GetLinux() == nil {
		return "", nil
	}
	switch driver := response.GetLinux().GetCgroupDriver(); driver {
	case runtimeapi.CgroupDriver_SYSTEMD:
		return cgroup.Systemd, nil
	case runtimeapi.CgroupDriver_CGROUPFS:
		return cgroup.Cgroupfs, nil
	default:
		return "", fmt.Errorf("the container runtime has the unknown cgroup driver %d", driver)
	}
}

// parseInfo reads the configuration that containerd reports. Other runtimes report none, or one of another form.
func parseInfo(text string) (c Configuration) {
	var info containerdInfo
	if json.Unmarshal([]byte(text), &info) != nil {
		return c
	}
	c.CNIBinDirs, c.CNIConfDir = info.CNI.BinDirs, info.CNI.ConfDir
	if len(c.CNIBinDirs) == 0 && info.CNI.BinDir != "" {
		c.CNIBinDirs = []string{info.CNI.BinDir}
	}
	if handler, ok := info.Containerd.Runtimes[info.Containerd.DefaultRuntimeName]; ok {
		c.CgroupDriver = cgroup.Cgroupfs
		if handler.Options.SystemdCgroup {
			c.CgroupDriver = cgroup.Systemd
		}
	}
	return c
}
