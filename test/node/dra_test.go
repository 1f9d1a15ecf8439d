package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"skiff/test/cluster"
	"skiff/test/dradriver"
)

const draDriverName = "gpu.example.com"

const draObjects = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpus}
spec:
  selectors: [{cel: {expression: 'device.driver == "gpu.example.com"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec:
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpus}}]}}
`

const claimUser = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Always
  resourceClaims: [{name: mine, resourceClaimTemplateName: one}]
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'echo has $DEVICE_gpu; exec sleep 1000']
    resources: {claims: [{name: mine}]}
  - name: without
    image: IMAGE
    command: [sh, -c, 'echo has $DEVICE_gpu; exec sleep 1000']
`

// TestDynamicResources gives the devices of a real DRA driver to real containers: claims from templates, allocation by the scheduler,
// preparation by the kubelet, injection by the container runtime, health, and the release of everything.
func TestDynamicResources(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,resourceclaims,resourceslices,events", "-o", "yaml")
			t.Logf("%s\n%s", out, c.Server[0].Log(40))
		}
	}()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(c.Dir, "data/kubelet")
	driver := &dradriver.Driver{Name: draDriverName, NodeName: nodeName(t, c), Root: root, Config: config, Devices: []string{"gpu0"}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if err := driver.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() { driver.Stop() }()
	kubectl(t, c, draObjects, "apply", "-f", "-")
	named := func(name string) string {
		return strings.NewReplacer("NAME", name, "IMAGE", busybox).Replace(claimUser)
	}
	kubectl(t, c, named("first"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/first", "--timeout=120s")
	eventually(t, "the container that uses the claim has the device", func() bool {
		return kubectl(t, c, "", "logs", "first", "-c", "c") == "has gpu0\n" && kubectl(t, c, "", "logs", "first", "-c", "without") == "has\n"
	})
	first := podNow(t, c, "first")
	claim := *first.Status.ResourceClaimStatuses[0].ResourceClaimName
	if got := fmt.Sprint(driver.Prepared()); got != "["+claim+"]" {
		t.Errorf("prepared %s, want %s", got, claim)
	}
	checkPodResources(t, root, claim)

	// There is one device: the second pod waits for it. A container that restarts keeps it.
	kubectl(t, c, named("second"), "apply", "-f", "-")
	eventually(t, "the second pod is unschedulable", func() bool {
		return strings.Contains(kubectl(t, c, "", "get", "pod", "second", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`), "cannot allocate all claims")
	})
	kubectl(t, c, "", "exec", "first", "-c", "c", "--", "kill", "-9", "1")
	reportUnhealthy(t, ctx, driver)
	eventually(t, "the pod's status has the health of its device", func() bool {
		for _, s := range podNow(t, c, "first").Status.ContainerStatuses {
			if r := s.AllocatedResourcesStatus; s.Name == "c" && len(r) == 1 && r[0].Name == "claim:mine" && r[0].Resources[0].Health == corev1.ResourceHealthStatusUnhealthy && *r[0].Resources[0].Message == "too hot" {
				return true
			}
		}
		return false
	})

	// The first pod ends: its claim is unprepared, released and deleted, and the second pod gets the device.
	kubectl(t, c, "", "delete", "pod", "first", "--timeout=60s")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/second", "--timeout=120s")
	eventually(t, "the second pod has the device", func() bool { return kubectl(t, c, "", "logs", "second", "-c", "c") == "has gpu0\n" })
	second := *podNow(t, c, "second").Status.ResourceClaimStatuses[0].ResourceClaimName
	if got := fmt.Sprint(driver.Prepared()); got != "["+second+"]" {
		t.Errorf("prepared %s, want %s", got, second)
	}
	eventually(t, "only the second pod's claim is left", func() bool {
		return kubectl(t, c, "", "get", "resourceclaims", "-o", "name") == "resourceclaim.resource.k8s.io/"+second+"\n"
	})

	// Without the driver a pod that terminates waits for it, and the devices are no longer advertised.
	driver.Stop()
	kubectl(t, c, "", "wait", "--for=delete", "resourceslices", "--all", "--timeout=180s")
	kubectl(t, c, "", "delete", "pod", "second", "--wait=false")
	if err := driver.Start(ctx); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "", "wait", "--for=delete", "pod/second", "--timeout=120s")
	if got := fmt.Sprint(driver.Prepared()); got != "[]" {
		t.Errorf("prepared %s at the end", got)
	}
	if err := driver.Err(); err != nil {
		t.Error(err)
	}
}

// checkPodResources checks that the pod resources API shows the device of a claim.
func checkPodResources(t *testing.T, root, claim string) {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+filepath.Join(root, "pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answer, err := podresourcesapi.NewPodResourcesListerClient(connection).Get(t.Context(), &podresourcesapi.GetPodResourcesRequest{PodNamespace: "default", PodName: "first"})
	if err != nil {
		t.Fatal(err)
	}
	used := answer.GetPodResources().GetContainers()[0].DynamicResources
	if len(used) != 1 || used[0].ClaimName != claim || len(used[0].ClaimResources) != 1 || used[0].ClaimResources[0].DriverName != draDriverName || used[0].ClaimResources[0].DeviceName != "gpu0" {
		t.Errorf("the pod's resources are %v", answer)
	}
}

func reportUnhealthy(t *testing.T, ctx context.Context, driver *dradriver.Driver) {
	t.Helper()
	err := driver.Report(ctx, kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{{
		PoolName: driver.NodeName, DeviceName: "gpu0", Health: kubeletplugin.HealthStatusUnhealthy, Message: "too hot", HealthCheckTimeout: 10 * time.Minute,
	}}})
	if err != nil {
		t.Fatal(err)
	}
}
