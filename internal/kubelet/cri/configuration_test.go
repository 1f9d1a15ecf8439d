package cri_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// configured is a runtime that reports a configuration.
type configured struct {
	*critest.Fake
	info   string
	driver *runtimeapi.RuntimeConfigResponse
	err    error
}

func (c configured) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Info: map[string]string{"config": c.info}}, nil
}

func (c configured) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return c.driver, c.err
}

func driver(d runtimeapi.CgroupDriver) *runtimeapi.RuntimeConfigResponse {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: d}}
}

func TestConfiguration(t *testing.T) {
	unimplemented := status.Error(codes.Unimplemented, "unknown method RuntimeConfig")
	for name, test := range map[string]struct {
		runtime configured
		want    cri.Configuration
	}{
		"containerd 1.6 of Debian": {
			configured{err: unimplemented, info: `{"containerd":{"snapshotter":"overlayfs","defaultRuntimeName":"runc","runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2","options":{"BinaryName":"","SystemdCgroup":false}}}},"cni":{"binDir":"/usr/lib/cni","confDir":"/etc/cni/net.d","maxConfNum":1}}`},
			cri.Configuration{CgroupDriver: "cgroupfs", CNIBinDirs: []string{"/usr/lib/cni"}, CNIConfDir: "/etc/cni/net.d"},
		},
		"containerd 1.7 with systemd": {
			configured{err: unimplemented, info: `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"crun":{"options":{}},"runc":{"options":{"SystemdCgroup":true}}}},"cni":{"binDir":"/opt/cni/bin","confDir":"/etc/cni/net.d"}}`},
			cri.Configuration{CgroupDriver: "systemd", CNIBinDirs: []string{"/opt/cni/bin"}, CNIConfDir: "/etc/cni/net.d"},
		},
		"containerd 2.1": {
			configured{driver: driver(runtimeapi.CgroupDriver_SYSTEMD), info: `{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":null}}},"cni":{"binDir":"","binDirs":["/a","/b"],"confDir":"/c"}}`},
			cri.Configuration{CgroupDriver: "systemd", CNIBinDirs: []string{"/a", "/b"}, CNIConfDir: "/c"},
		},
		"CRI-O": {
			configured{driver: driver(runtimeapi.CgroupDriver_CGROUPFS), info: `{"sandboxImage":"registry.k8s.io/pause:3.10"}`},
			cri.Configuration{CgroupDriver: "cgroupfs"},
		},
		"one that reports nothing":      {configured{err: unimplemented}, cri.Configuration{}},
		"one without Linux":             {configured{driver: &runtimeapi.RuntimeConfigResponse{}}, cri.Configuration{}},
		"one with another kind of info": {configured{err: unimplemented, info: `{"cni":"x"}`}, cri.Configuration{}},
	} {
		test.runtime.Fake = critest.NewFake()
		got, err := cri.New(test.runtime).Configuration(t.Context())
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func TestConfigurationErrors(t *testing.T) {
	for want, runtime := range map[string]configured{
		"connection refused":      {err: errors.New("connection refused")},
		"unknown cgroup driver 7": {driver: driver(7)},
	} {
		runtime.Fake = critest.NewFake()
		if _, err := cri.New(runtime).Configuration(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
