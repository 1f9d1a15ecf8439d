package kubelet

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/cri"
	memorymanager "skiff/internal/kubelet/memory"
	"skiff/internal/kubelet/topology"
)

// assignCPUsAndMemory makes the kubelet assign the CPUs 1 to 3 and the memory of two NUMA nodes, with the CPUs 0 and 1 and 2 and 3. CPU 0 is reserved.
func (b *testKubelet) assignCPUsAndMemory() {
	b.Helper()
	b.stop()
	nodes := []topology.NUMANode{{ID: 0, Memory: 2 << 30}, {ID: 1, Memory: 2 << 30}}
	host := topology.New(map[int]topology.CPU{0: {Core: 0}, 1: {Core: 1}, 2: {Core: 2, NUMANode: 1, Socket: 1}, 3: {Core: 3, NUMANode: 1, Socket: 1}}, nodes)
	log := slog.New(slog.DiscardHandler)
	active := func() ([]*corev1.Pod, bool) { return b.kubelet.ActiveOrPending() }
	exclusive, err := cpus.New(cpus.Options{
		Policy: cpus.Static, Topology: host, Reserved: cpuset.New(0), ReservedAmount: resource.MustParse("1"), Dir: b.root, ReconcilePeriod: time.Hour, ActivePods: active, Log: log,
		Running: func(ctx context.Context) (running []cpus.Container, err error) {
			list, err := b.config.Runtime.ListContainers(ctx, "")
			for _, c := range list {
				if c.State == cri.Running || c.State == cri.Created {
					running = append(running, cpus.Container{UID: types.UID(c.Labels[cri.LabelPodUID]), Name: c.Name, ID: c.ID})
				}
			}
			return running, err
		},
		Update: func(ctx context.Context, id string, set cpuset.CPUSet) error {
			return b.config.Runtime.UpdateContainerResources(ctx, id, cri.CPUResources(set))
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	reserved := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	ofNodes, err := memorymanager.New(memorymanager.Options{
		Policy: memorymanager.Static, NUMANodes: nodes, Reserved: []kubeletconfig.MemoryReservation{{Limits: reserved}}, NodeReserved: reserved, Dir: b.root, ActivePods: active, Log: log,
	})
	if err != nil {
		b.Fatal(err)
	}
	policy, err := alignment.NewPolicy(alignment.SingleNUMANode, alignment.Options{MaxNUMANodes: 8}, nodes)
	if err != nil {
		b.Fatal(err)
	}
	b.config.CPUs, b.config.Memory, b.config.StaticCPUs, b.config.StaticMemory = exclusive, ofNodes, true, true
	b.config.Allocator = &alignment.Admission{Policy: policy, Scope: alignment.PodScope, Providers: []alignment.Provider{exclusive, ofNodes}}
	b.config.Host.CPUQuota, b.config.Host.CPUPeriod = true, 100000
	b.start()
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- exclusive.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
}

// withEqualResources makes a container with equal requests and limits.
func withEqualResources(cpu, memory string) podOption {
	return regular("c", equalResources(cpu, memory))
}

func equalResources(cpu, memory string) containerOption {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	return func(c *corev1.Container) {
		c.Resources = corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	}
}

// assigned returns the CPUs and the NUMA nodes of a pod's container in the runtime, and its CPU quota.
func (b *testKubelet) assigned(pod *corev1.Pod) (cpus, numaNodes string, quota int64) {
	b.Helper()
	status, err := b.runtime.ContainerStatus(b.ctx, b.id(pod, "c"), false)
	if err != nil {
		b.Fatal(err)
	}
	r := status.Status.Resources.Linux
	return r.CpusetCpus, r.CpusetMems, r.CpuQuota
}

func isRunning(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }

// TestExclusiveCPUs: containers have the CPUs and the memory they are assigned, others leave them, and pods that cannot be aligned are rejected.
func TestExclusiveCPUs(t *testing.T) {
	b := newTestKubelet(t)
	b.assignCPUsAndMemory()
	shared := b.until(b.create(withEqualResources("100m", "1Gi")), "running", isRunning)
	if cpus, nodes, quota := b.assigned(shared); cpus != "0-3" || nodes != "0" || quota != 10000 {
		t.Errorf("CPUs %s, NUMA nodes %s, quota %d of a container without exclusive CPUs", cpus, nodes, quota)
	}
	exclusive := b.until(b.create(withEqualResources("2", "1Gi")), "running", isRunning)
	if cpus, nodes, quota := b.assigned(exclusive); cpus != "2-3" || nodes != "1" || quota != -1 {
		t.Errorf("CPUs %s, NUMA nodes %s, quota %d of a container with exclusive CPUs", cpus, nodes, quota)
	}
	b.eventually("the other container has left the exclusive CPUs", func() bool {
		cpus, _, _ := b.assigned(shared)
		return cpus == "0-1"
	})
	rejected := b.until(b.create(withEqualResources("2", "1Mi")), "rejected", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if rejected.Status.Reason != "TopologyAffinityError" || rejected.Status.Message != "Pod was rejected: Resources cannot be allocated with Topology locality" {
		t.Errorf("rejected for %s: %s", rejected.Status.Reason, rejected.Status.Message)
	}

	// When the pod is deleted, another gets its CPUs.
	b.delete(exclusive, 1)
	b.gone(exclusive)
	next := b.until(b.create(withEqualResources("2", "1Gi")), "running", isRunning)
	if cpus, _, _ := b.assigned(next); cpus != "2-3" {
		t.Errorf("CPUs %s of the next pod", cpus)
	}
}

// TestAssignedAfterRestart: containers that run get CPUs and memory again when the checkpoints are lost, and the others leave these.
func TestAssignedAfterRestart(t *testing.T) {
	b := newTestKubelet(t)
	b.assignCPUsAndMemory()
	shared := b.until(b.create(withEqualResources("100m", "1Gi")), "running", isRunning)
	exclusive := b.until(b.create(withEqualResources("2", "1Gi")), "running", isRunning)
	b.stop()
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if err := os.Remove(filepath.Join(b.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.assignCPUsAndMemory()
	b.eventually("the containers have their CPUs", func() bool {
		return b.config.CPUs.Exclusive(exclusive.UID, "c").String() == "2-3" && b.config.Memory.NUMANodes(exclusive.UID, "c").String() == "1" &&
			b.config.CPUs.Of(shared.UID, "c").String() == "0-1"
	})
	b.eventually("they use no others", func() bool {
		ofShared, _, _ := b.assigned(shared)
		ofExclusive, _, _ := b.assigned(exclusive)
		return ofShared == "0-1" && ofExclusive == "2-3"
	})
}

// TestEndedInitContainersAfterRestart: an init container that has ended gets no memory again when the kubelet starts again.
func TestEndedInitContainersAfterRestart(t *testing.T) {
	b := newTestKubelet(t)
	b.assignCPUsAndMemory()
	pod := b.until(b.create(initial("i", command("exit 0"), equalResources("1", "1Gi")), withEqualResources("1", "512Mi")), "running", isRunning)
	if nodes := b.config.Memory.NUMANodes(pod.UID, "i"); nodes != 0 {
		t.Fatalf("the init container has memory of the NUMA nodes %s while the container runs", nodes)
	}
	b.stop()
	if err := os.Remove(filepath.Join(b.root, "cpu_manager_state")); err != nil {
		t.Fatal(err)
	}
	b.assignCPUsAndMemory()
	b.eventually("the pod is admitted again", func() bool { return b.config.CPUs.Exclusive(pod.UID, "c").Size() == 1 })
	if nodes := b.config.Memory.NUMANodes(pod.UID, "i"); nodes != 0 {
		t.Errorf("the init container has memory of the NUMA nodes %s", nodes)
	}
	if nodes := b.config.Memory.NUMANodes(pod.UID, "c"); nodes.Count() != 1 {
		t.Errorf("the container has memory of the NUMA nodes %s", nodes)
	}
}

// TestResizeOfAssigned: the requests of guaranteed pods cannot be changed while CPUs and memory are assigned.
func TestResizeOfAssigned(t *testing.T) {
	both := &Kubelet{Config: Config{StaticCPUs: true, StaticMemory: true}}
	for _, row := range []struct {
		name        string
		kubelet     *Kubelet
		cpu, memory string
		burstable   bool
		want        string
	}{
		{name: "unchanged", kubelet: both, cpu: "1", memory: "1Mi"},
		{name: "CPU", kubelet: both, cpu: "2", memory: "1Mi", want: `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`},
		{name: "memory", kubelet: both, cpu: "1", memory: "2Mi", want: `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`},
		{name: "memory with only CPUs assigned", kubelet: &Kubelet{Config: Config{StaticCPUs: true}}, cpu: "1", memory: "2Mi"},
		{name: "nothing assigned", kubelet: &Kubelet{}, cpu: "2", memory: "2Mi"},
		{name: "burstable", kubelet: both, cpu: "2", memory: "2Mi", burstable: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			old, changed := planned(withEqualResources("1", "1Mi")), planned(withEqualResources(row.cpu, row.memory))
			if row.burstable {
				for _, p := range []*corev1.Pod{old, changed} {
					p.Spec.Containers[0].Resources.Limits = nil
				}
			}
			if got := row.kubelet.infeasible(changed, old); got != row.want {
				t.Errorf("infeasible because %q, want %q", got, row.want)
			}
		})
	}
}
