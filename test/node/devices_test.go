package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"skiff/test/cluster"
	"skiff/test/deviceplugin"
)

const deviceUser = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Always
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'test -c /dev/sink-$SINKS && echo gone > /dev/sink-$SINKS && cat /brought/word && echo $(SINKS) && exec sleep 1000']
    resources: {limits: {example.com/sink: "1"}}
`

// TestDevicePlugin assigns real devices, the host's /dev/null under other names, to real containers.
func TestDevicePlugin(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,events,nodes", "-o", "yaml")
			t.Logf("%s\n%s", out, c.Server[0].Log(40))
		}
	}()
	root := filepath.Join(c.Dir, "data/kubelet")
	brought := t.TempDir()
	if err := os.WriteFile(filepath.Join(brought, "word"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	plugin := &deviceplugin.Plugin{
		Resource: "example.com/sink", Options: pluginapi.DevicePluginOptions{PreStartRequired: true},
		Give: func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
			return &pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"SINKS": ids[0]}, Annotations: map[string]string{"example.com/given": ids[0]},
				Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/sink-" + ids[0], HostPath: "/dev/null", Permissions: "rw"}},
				Mounts:  []*pluginapi.Mount{{ContainerPath: "/brought", HostPath: brought, ReadOnly: true}},
			}, nil
		},
	}
	device := func(id, health string) *pluginapi.Device { return &pluginapi.Device{ID: id, Health: health} }
	if err := plugin.Start(t.Context(), filepath.Join(root, "device-plugins"), "sink.sock", device("one", pluginapi.Healthy), device("two", pluginapi.Unhealthy)); err != nil {
		t.Fatal(err)
	}
	defer plugin.Stop()
	counts := func() string {
		return kubectl(t, c, "", "get", "nodes", "-o", `jsonpath={.items[0].status.capacity.example\.com/sink} {.items[0].status.allocatable.example\.com/sink}`)
	}
	eventually(t, "the node shows the devices", func() bool { return counts() == "2 1" })
	named := func(name string) string {
		return strings.NewReplacer("NAME", name, "IMAGE", busybox).Replace(deviceUser)
	}
	kubectl(t, c, named("first"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
	eventually(t, "the container has what the plugin brings", func() bool { return kubectl(t, c, "", "logs", "first") == "hello\none\n" })
	if got := fmt.Sprint(plugin.Asked()); got != "[give [one] ready [one]]" {
		t.Errorf("the plugin was asked for %s", got)
	}
	health := func() string {
		return kubectl(t, c, "", "get", "pod", "first", "-o", "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus}")
	}
	if want := `[{"name":"example.com/sink","resources":[{"health":"Healthy","resourceID":"one"}]}]`; health() != want {
		t.Errorf("the container's devices are %s, want %s", health(), want)
	}

	// The scheduler would not bind it to this node. If it is bound anyway, it gets upstream's message.
	kubectl(t, c, strings.Replace(named("second"), "spec:\n", "spec:\n  nodeName: "+nodeName(t, c)+"\n", 1), "apply", "-f", "-")
	eventually(t, "a pod for which there is no device is refused", func() bool {
		pod := podNow(t, c, "second")
		return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "UnexpectedAdmissionError" && pod.Status.Message ==
			"Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/sink. Requested: 1, Available: 0, which is unexpected"
	})

	connection, err := grpc.NewClient("unix://"+filepath.Join(root, "pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answer, err := podresourcesapi.NewPodResourcesListerClient(connection).Get(context.Background(), &podresourcesapi.GetPodResourcesRequest{PodNamespace: "default", PodName: "first"})
	if held := answer.GetPodResources().GetContainers(); err != nil || len(held) != 1 || len(held[0].Devices) != 1 || held[0].Devices[0].ResourceName != "example.com/sink" || held[0].Devices[0].DeviceIds[0] != "one" {
		t.Errorf("the pod's resources are %v, %v", answer, err)
	}

	plugin.Set(device("one", pluginapi.Unhealthy), device("two", pluginapi.Healthy))
	eventually(t, "the pod tells that its device is broken", func() bool { return strings.Contains(health(), `"health":"Unhealthy"`) })
	kubectl(t, c, "", "delete", "pod", "first", "second", "--timeout=60s")
	kubectl(t, c, named("third"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/third", "--timeout=60s")
	eventually(t, "the next pod has the device that works", func() bool { return kubectl(t, c, "", "logs", "third") == "hello\ntwo\n" })
	plugin.Stop()
	eventually(t, "devices without their plugin cannot be used", func() bool { return counts() == "2 0" })
	if pod := podNow(t, c, "third"); pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod that has its device is %s", pod.Status.Phase)
	}
}
