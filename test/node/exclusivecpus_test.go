package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"skiff/test/cluster"
)

const cpuUser = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sleep, "1000"]
    resources: {limits: {LIMITS}}
`

// TestExclusiveCPUs assigns CPU 1 of the host to one real container. Others leave it while they run, and get it back.
func TestExclusiveCPUs(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\ncpuManagerReconcilePeriod: 1s\nreservedSystemCPUs: \"0\"\n" +
		"topologyManagerPolicy: single-numa-node\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(t.TempDir(), "--kubelet-config="+config)
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
	allowed := func(name string) string {
		list := kubectl(t, c, "", "exec", name, "--", "sh", "-c", "grep Cpus_allowed_list /proc/1/status")
		return strings.TrimSpace(strings.TrimPrefix(list, "Cpus_allowed_list:"))
	}
	apply := func(name, limits string) {
		kubectl(t, c, strings.NewReplacer("NAME", name, "IMAGE", busybox, "LIMITS", limits).Replace(cpuUser), "apply", "-f", "-")
	}
	apply("shared", "")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/shared", "--timeout=60s")
	all := allowed("shared")
	apply("exclusive", `cpu: "1", memory: 16Mi`)
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/exclusive", "--timeout=60s")
	own := allowed("exclusive")
	if own == "0" || strings.ContainsAny(own, ",-") {
		t.Errorf("the container with an exclusive CPU may use %q", own)
	}
	eventually(t, "the other container has left the CPU", func() bool { return allowed("shared") != all && !strings.Contains(allowed("shared"), own) })

	connection, err := grpc.NewClient("unix://"+filepath.Join(c.Dir, "data/kubelet/pod-resources/kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	response, err := podresourcesapi.NewPodResourcesListerClient(connection).Get(context.Background(), &podresourcesapi.GetPodResourcesRequest{PodNamespace: "default", PodName: "exclusive"})
	if containers := response.GetPodResources().GetContainers(); err != nil || len(containers) != 1 || len(containers[0].CpuIds) != 1 {
		t.Errorf("the pod's resources are %v, %v", response, err)
	}

	// It requests more CPUs than can be exclusive. The scheduler would not bind it to this node.
	pod := strings.NewReplacer("NAME", "rejected", "IMAGE", busybox, "LIMITS", `cpu: "512", memory: 16Mi`, "spec:\n", "spec:\n  nodeName: "+nodeName(t, c)+"\n").Replace(cpuUser)
	kubectl(t, c, pod, "apply", "-f", "-")
	eventually(t, "a pod whose CPUs cannot be aligned is rejected", func() bool {
		pod := podNow(t, c, "rejected")
		return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "TopologyAffinityError" && pod.Status.Message == "Pod was rejected: Resources cannot be allocated with Topology locality"
	})

	kubectl(t, c, "", "delete", "pod", "exclusive", "--timeout=60s")
	eventually(t, "the other container has the CPU again", func() bool { return allowed("shared") == all })
}
