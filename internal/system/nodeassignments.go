package system

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"skiff/internal/config"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/memory"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/topology"
)

// readTopology reads the topology of the host. The node can do without if nothing is assigned to containers by it.
func (n *nodeComponents) readTopology() (err error) {
	s := n.settings
	if n.topology, err = topology.Read(topology.Dir); err != nil {
		if s.CPUManagerPolicy == cpus.Static || s.MemoryManagerPolicy == memory.Static || s.TopologyManagerPolicy != alignment.None || s.ReservedSystemCPUs != "" {
			return err
		}
		n.log.Info("the CPU topology of the host is unknown", "error", err)
		n.topology = topology.New(nil, nil)
	}
	return n.reserveSystemCPUs()
}

// reserveSystemCPUs makes the number of reserved CPUs the CPU reservation of the node.
func (n *nodeComponents) reserveSystemCPUs() error {
	reserved, err := cpuset.Parse(n.settings.ReservedSystemCPUs)
	if err != nil {
		return fmt.Errorf("reservedSystemCPUs: %w", err)
	}
	if online := n.topology.AllCPUs(); !reserved.IsSubsetOf(online) {
		return fmt.Errorf("reservedSystemCPUs: %s is not a subset of online-cpus: %s", n.settings.ReservedSystemCPUs, online)
	}
	if reserved.IsEmpty() {
		return nil
	}
	delete(n.settings.KubeReserved, "cpu")
	if n.settings.SystemReserved == nil {
		n.settings.SystemReserved = map[string]string{}
	}
	n.settings.SystemReserved["cpu"] = strconv.Itoa(reserved.Size())
	n.log.Info("reservedSystemCPUs replaces the CPUs in kubeReserved and systemReserved", "cpus", reserved.String())
	return nil
}

// reservedOfNode is the amount of a resource that is not allocatable.
func (n *nodeComponents) reservedOfNode(name corev1.ResourceName) resource.Quantity {
	sum := resource.Quantity{}
	for _, list := range []corev1.ResourceList{reserved(n.settings.SystemReserved), reserved(n.settings.KubeReserved), n.evictionReserved} {
		sum.Add(list[name])
	}
	return sum
}

// buildCPUsAndMemory makes what assigns exclusive CPUs and memory of NUMA nodes to containers.
func (n *nodeComponents) buildCPUsAndMemory() error {
	s := n.settings
	if err := n.buildCPUs(); err != nil {
		return fmt.Errorf("start CPU manager: %w", err)
	}
	if s.MemoryManagerPolicy != memory.Static && len(s.ReservedMemory) > 0 {
		n.log.Warn("ignored a field of the KubeletConfiguration", "warning", "reservedMemory has no effect unless memoryManagerPolicy is Static")
	}
	notAllocatable := corev1.ResourceList{}
	for _, node := range n.topology.NUMANodes {
		names := []corev1.ResourceName{corev1.ResourceMemory}
		for _, pages := range node.HugePages {
			names = append(names, corev1.ResourceName(corev1.ResourceHugePagesPrefix+resource.NewQuantity(int64(pages.PageSize), resource.BinarySI).String()))
		}
		for _, name := range names {
			if amount := n.reservedOfNode(name); !amount.IsZero() {
				notAllocatable[name] = amount
			}
		}
	}
	var err error
	n.memory, err = memory.New(memory.Options{
		Policy: s.MemoryManagerPolicy, NUMANodes: n.topology.NUMANodes, Reserved: s.ReservedMemory, NodeReserved: notAllocatable, Dir: n.root,
		ActivePods: n.activeOrPending, Metrics: n.metrics, Log: n.log.With("component", "memory manager"),
	})
	if err != nil {
		return fmt.Errorf("start memory manager: %w", err)
	}
	return nil
}

func (n *nodeComponents) activeOrPending() ([]*corev1.Pod, bool) { return n.kubelet.ActiveOrPending() }

func (n *nodeComponents) buildCPUs() (err error) {
	s, gates := n.settings, config.FeatureGates(n.settings.FeatureGates)
	options := cpus.StaticOptions{}
	if s.CPUManagerPolicy == cpus.Static {
		options, err = cpus.ParseOptions(s.CPUManagerPolicyOptions, cpus.Gates{
			AlphaOptions: gates.Enabled(config.GateCPUManagerAlphaOptions), BetaOptions: gates.Enabled(config.GateCPUManagerBetaOptions),
		})
	} else if len(s.CPUManagerPolicyOptions) > 0 {
		err = fmt.Errorf("None policy: received unsupported options=%v", s.CPUManagerPolicyOptions)
	}
	if err != nil {
		return fmt.Errorf("cpuManagerPolicyOptions: %w", err)
	}
	reserved, err := cpuset.Parse(s.ReservedSystemCPUs)
	if err != nil {
		return err
	}
	n.cpus, err = cpus.New(cpus.Options{
		Policy: s.CPUManagerPolicy, StaticOptions: options, Topology: n.topology, Alignment: s.TopologyManagerPolicy, Reserved: reserved,
		ReservedAmount: n.reservedOfNode(corev1.ResourceCPU), Dir: n.root, ReconcilePeriod: s.CPUManagerReconcilePeriod.Duration,
		ActivePods: n.activeOrPending, Running: n.containersWithCPUs,
		Update: func(ctx context.Context, id string, set cpuset.CPUSet) error {
			return n.runtime.UpdateContainerResources(ctx, id, cri.CPUResources(set))
		},
		Metrics: n.metrics, Log: n.log.With("component", "CPU manager"),
	})
	return err
}

// containersWithCPUs lists the containers that run, or are about to.
func (n *nodeComponents) containersWithCPUs(ctx context.Context) ([]cpus.Container, error) {
	list, err := n.runtime.ListContainers(ctx, "")
	if err != nil {
		return nil, err
	}
	var running []cpus.Container
	for _, c := range list {
		if uid := types.UID(c.Labels[cri.LabelPodUID]); uid != "" && (c.State == cri.Running || c.State == cri.Created) {
			running = append(running, cpus.Container{UID: uid, Name: c.Name, ID: c.ID})
		}
	}
	return running, nil
}

// buildAdmission makes what allocates devices, CPUs and memory to pods that are admitted, aligned with NUMA nodes.
func (n *nodeComponents) buildAdmission() error {
	s := n.settings
	options := alignment.Options{}
	var err error
	if s.TopologyManagerPolicy == alignment.None {
		if len(s.TopologyManagerPolicyOptions) > 0 {
			n.log.Warn("ignored a field of the KubeletConfiguration", "warning", "topologyManagerPolicyOptions has no effect while topologyManagerPolicy is none")
		}
	} else if options, err = alignment.ParseOptions(s.TopologyManagerPolicyOptions); err != nil {
		return fmt.Errorf("topologyManagerPolicyOptions: %w", err)
	}
	policy, err := alignment.NewPolicy(s.TopologyManagerPolicy, options, n.topology.NUMANodes)
	if err != nil {
		return fmt.Errorf("start topology manager: %w", err)
	}
	if policy.Name != alignment.None {
		for _, scope := range []string{alignment.ContainerScope, alignment.PodScope} {
			n.metrics.InitAligned(scope, metrics.NUMANode)
		}
		n.log.Info("topology manager started", "policy", policy.Name, "scope", s.TopologyManagerScope, "numaNodes", len(n.topology.NUMANodes))
	}
	n.admission = &alignment.Admission{
		Policy: policy, Scope: s.TopologyManagerScope, Providers: []alignment.Provider{n.devices, n.cpus, n.memory}, Metrics: n.metrics,
	}
	return nil
}

// runCPUs keeps the CPUs of containers up to date when the container runtime is ready.
func (n *nodeComponents) runCPUs(ctx context.Context, runtime *containerRuntime) error {
	select {
	case <-runtime.ready:
	case <-ctx.Done():
		return nil
	}
	return n.cpus.Run(ctx)
}
