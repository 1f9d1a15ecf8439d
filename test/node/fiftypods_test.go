package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
)

const (
	fifty      = 50
	pauseImage = "registry.k8s.io/pause:3.10.2"
)

// BenchmarkFiftyPods compares fifty pods created at once through the API with the same sandboxes and containers driven through
// containerd directly, on the same containerd, one after the other.
func BenchmarkFiftyPods(b *testing.B) {
	c, err := cluster.SkiffNode(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Stop()
	endpoint, err := runtime.Endpoint(filepath.Join(c.Dir, "data"))
	if err != nil {
		b.Fatal(err)
	}
	containerd, err := cri.Dial(endpoint)
	if err != nil {
		b.Fatal(err)
	}
	defer containerd.Close()
	config, err := c.Config()
	if err != nil {
		b.Fatal(err)
	}
	remote, err := client.New(config, api.Scheme(), api.Named())
	if err != nil {
		b.Fatal(err)
	}
	pods := client.For[*corev1.Pod](remote)
	var direct, through, processor time.Duration
	for b.Loop() {
		direct += fiftyDirectly(b, containerd, filepath.Join(c.Dir, "data/containerd/sandbox.json"))
		used, err := c.CPU()
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		fiftyThrough(b, pods)
		through += time.Since(began)
		now, err := c.CPU()
		if err != nil {
			b.Fatal(err)
		}
		processor += now - used
		removeAll(b, pods)
	}
	n := time.Duration(b.N)
	b.ReportMetric((direct / n).Seconds(), "containerd-s")
	b.ReportMetric((through / n).Seconds(), "skiff-s")
	b.ReportMetric(through.Seconds()/direct.Seconds(), "ratio")
	b.ReportMetric((processor / n).Seconds(), "skiff-cpu-s")
}

// fiftyThrough creates fifty pods through the API and returns when all of them are running.
func fiftyThrough(b *testing.B, pods client.Resource[*corev1.Pod]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, revision, err := pods.List(ctx, "default", client.Selector{})
	if err != nil {
		b.Fatal(err)
	}
	changes, err := pods.Watch(ctx, "default", client.Selector{}, revision)
	if err != nil {
		b.Fatal(err)
	}
	defer changes.Stop()
	errs := make([]error, fifty)
	var creating sync.WaitGroup
	for i := range fifty {
		creating.Go(func() {
			_, errs[i] = pods.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: pauseImage}}},
			}, client.WriteOptions{})
		})
	}
	creating.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	running := map[string]bool{}
	for event := range changes.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			running[pod.Name] = true
		}
		if len(running) == fifty {
			return
		}
	}
	b.Fatalf("only %d pods run", len(running))
}

// removeAll deletes all pods and waits until they are removed.
func removeAll(b *testing.B, pods client.Resource[*corev1.Pod]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for first := true; ; first = false {
		list, _, err := pods.List(ctx, "default", client.Selector{})
		if err != nil {
			b.Fatal(err)
		}
		if len(list) == 0 {
			return
		}
		for _, pod := range list {
			if first {
				_ = pods.Delete(ctx, "default", pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// fiftyDirectly starts fifty pods through the runtime and removes them again. It returns how long they took to run.
func fiftyDirectly(b *testing.B, containerd *cri.Client, profile string) time.Duration {
	b.Helper()
	ctx := context.Background()
	sandboxes := make([]string, fifty)
	errs := make([]error, fifty)
	var starting sync.WaitGroup
	began := time.Now()
	for i := range fifty {
		starting.Go(func() {
			config := &runtimeapi.PodSandboxConfig{
				Metadata:     &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("direct", i), Namespace: "bench", Uid: fmt.Sprint("direct", i, began.UnixNano())},
				LogDirectory: b.TempDir(),
				// As the kubelet does: in the BestEffort cgroup, which has minimal CPU weight, and with the same seccomp
				// profile.
				Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/besteffort/direct", SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
					Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: profile},
				}},
			}
			if sandboxes[i], errs[i] = containerd.RunPodSandbox(ctx, config, ""); errs[i] != nil {
				return
			}
			var id string
			id, errs[i] = containerd.CreateContainer(ctx, sandboxes[i], &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: pauseImage}, LogPath: "c.log",
				Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
				}},
			}, config)
			if errs[i] == nil {
				errs[i] = containerd.StartContainer(ctx, id)
			}
		})
	}
	starting.Wait()
	took := time.Since(began)
	for i, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
		if err := containerd.StopPodSandbox(ctx, sandboxes[i]); err != nil {
			b.Fatal(err)
		}
		if err := containerd.RemovePodSandbox(ctx, sandboxes[i]); err != nil {
			b.Fatal(err)
		}
	}
	return took
}
