// Package hollow simulates nodes: thousands of them in one small process.
//
// To the API server they are nodes with a kubelet. They register, renew their leases, and move the pods that are bound to them from Pending
// to Running to their termination, without running containers. That is enough to test and measure a control plane. All nodes share one
// watch, and a pure function, plan, decides what is written about a pod.
package hollow

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"skiff/internal/client"
	"skiff/internal/version"
)

const (
	leaseNamespace = "kube-node-lease"
	leaseSeconds   = 40
	// writers is the number of concurrent writes to the API server.
	writers = 32
)

// Config describes the nodes.
type Config struct {
	Client *client.Client
	// Nodes is the number of nodes. Their names are NamePrefix and a number, starting with First.
	Nodes      int
	First      int
	NamePrefix string
	// CPU, Memory, Storage and Pods are the allocatable resources of each node.
	CPU, Memory, Storage, Pods string
	Labels                     map[string]string
	// Zones is the number of topology zones of the nodes; 0 sets no zone label.
	Zones  int
	Taints []corev1.Taint
	// LeasePeriod and StatusPeriod are the periods of renewing a node's lease and status.
	LeasePeriod, StatusPeriod time.Duration
	// StartDelay is how long a pod takes to start, FinishDelay how long the pods of Jobs run, StopDelay how long pods take to terminate.
	StartDelay, FinishDelay, StopDelay time.Duration
	Log                                *slog.Logger
}

// withDefaults sets defaults.
func (c Config) withDefaults() Config {
	text := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	text(&c.NamePrefix, "hollow-")
	text(&c.CPU, "32")
	text(&c.Memory, "256Gi")
	text(&c.Storage, "100Gi")
	text(&c.Pods, "110")
	duration := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	duration(&c.LeasePeriod, 10*time.Second)
	duration(&c.StatusPeriod, 5*time.Minute)
	duration(&c.FinishDelay, time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// fleet is all nodes of one process.
type fleet struct {
	Config
	nodes  client.Resource[*corev1.Node]
	leases client.Resource[*coordinationv1.Lease]
	pods   client.Resource[*corev1.Pod]
	// number is the index of a node by name.
	number   map[string]int
	informer client.Informer[*corev1.Pod]
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu   sync.Mutex
	next uint32 // the number of allocated addresses
}

// Run simulates the nodes until ctx is done.
func Run(ctx context.Context, config Config) error {
	config = config.withDefaults()
	informers := client.NewInformers(config.Client)
	f := &fleet{
		Config: config, number: map[string]int{},
		nodes: client.For[*corev1.Node](config.Client), leases: client.For[*coordinationv1.Lease](config.Client), pods: client.For[*corev1.Pod](config.Client),
		informer: client.InformerFor[*corev1.Pod](informers),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](20*time.Millisecond, 10*time.Second)),
	}
	for i := range config.Nodes {
		f.number[f.name(i)] = i
	}
	if err := f.watchPods(); err != nil {
		return err
	}
	if err := f.register(ctx); err != nil {
		return err
	}
	config.Log.Info("hollow nodes are registered", "nodes", config.Nodes)

	var running sync.WaitGroup
	defer running.Wait()
	defer f.queue.ShutDown()
	running.Go(func() { _ = informers.Run(ctx) })
	running.Go(func() { f.each(ctx, config.LeasePeriod, f.renewLease) })
	running.Go(func() { f.each(ctx, config.StatusPeriod, f.renewStatus) })
	for range writers {
		running.Go(func() {
			for f.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

func (f *fleet) name(i int) string { return fmt.Sprintf("%s%d", f.NamePrefix, f.First+i) }

// nodeAddress is a node's address. Nothing listens there.
func nodeAddress(i int) string { return fmt.Sprintf("10.%d.%d.%d", 128+i>>16&31, i>>8&255, i&255) }

// podAddress allocates an address for a pod. Nothing listens there.
func (f *fleet) podAddress() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return fmt.Sprintf("10.%d.%d.%d", f.next>>16&127, f.next>>8&255, f.next&255)
}

// inParallel calls do for 0 to n-1 with bounded concurrency and returns the first error.
func inParallel(ctx context.Context, n int, do func(i int) error) error {
	var group sync.WaitGroup
	numbers := make(chan int)
	failed := make(chan error, writers)
	for range min(writers, n) {
		group.Go(func() {
			for i := range numbers {
				if err := do(i); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for i := range n {
		select {
		case numbers <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(numbers)
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

// register creates the nodes and their leases. Nodes that exist already, from an earlier run, are reused.
func (f *fleet) register(ctx context.Context) error {
	return inParallel(ctx, f.Nodes, func(i int) error {
		node := f.node(i)
		made, err := f.nodes.Create(ctx, node, client.WriteOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = f.nodes.Get(ctx, "", node.Name)
		}
		if err != nil {
			return fmt.Errorf("register node %s: %w", node.Name, err)
		}
		if made.Status.Allocatable.Cpu().IsZero() || !ready(made) {
			// A patch, because controllers write the node too.
			patch, err := json.Marshal(map[string]any{"status": node.Status})
			if err != nil {
				return err
			}
			if made, err = f.nodes.Patch(ctx, "", node.Name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{Subresource: "status"}); err != nil {
				return fmt.Errorf("patch status of node %s: %w", node.Name, err)
			}
		}
		if err := f.removeNotReadyTaint(ctx, made); err != nil {
			return fmt.Errorf("remove not-ready taint of node %s: %w", node.Name, err)
		}
		return f.renewLease(ctx, i)
	})
}

// removeNotReadyTaint removes the taint that every new node has until the node lifecycle controller removes it: there may be no such
// controller.
func (f *fleet) removeNotReadyTaint(ctx context.Context, node *corev1.Node) error {
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	if len(left) == len(node.Spec.Taints) {
		return nil
	}
	// Taints always encode.
	patch, _ := json.Marshal(map[string]any{"spec": map[string]any{"taints": left}})
	_, err := f.nodes.Patch(ctx, "", node.Name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{})
	return err
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// node is the object of a node.
func (f *fleet) node(i int) *corev1.Node {
	name, now := f.name(i), metav1.Now()
	labels := map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "kubernetes.io/role": "hollow",
	}
	if f.Zones > 0 {
		labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%f.Zones)
		labels[corev1.LabelTopologyRegion] = "hollow"
	}
	for key, value := range f.Labels {
		labels[key] = value
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(f.CPU), corev1.ResourceMemory: resource.MustParse(f.Memory),
		corev1.ResourceEphemeralStorage: resource.MustParse(f.Storage), corev1.ResourcePods: resource.MustParse(f.Pods),
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: "hollow://" + name, Taints: f.Taints},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: version.Info().GitVersion, OperatingSystem: "linux", Architecture: "amd64",
				OSImage: "hollow", ContainerRuntimeVersion: "hollow://1", KernelVersion: "hollow", MachineID: name, SystemUUID: name, BootID: name,
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
			},
		},
	}
}

// each calls do for every node once per period, spread evenly.
func (f *fleet) each(ctx context.Context, period time.Duration, do func(context.Context, int) error) {
	const steps = 50
	ticker := time.NewTicker(max(period/steps, time.Millisecond))
	defer ticker.Stop()
	for step := 0; ; step = (step + 1) % steps {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		from, to := f.Nodes*step/steps, f.Nodes*(step+1)/steps
		if err := inParallel(ctx, to-from, func(i int) error { return do(ctx, from+i) }); err != nil && ctx.Err() == nil {
			f.Log.Warn("failed to renew hollow node", "error", err)
		}
	}
}

// renewLease renews the lease of a node, and creates it if needed.
func (f *fleet) renewLease(ctx context.Context, i int) error {
	name, now := f.name(i), metav1.NowMicro()
	patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, now.UTC().Format(metav1.RFC3339Micro))
	_, err := f.leases.Patch(ctx, leaseNamespace, name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	seconds := int32(leaseSeconds)
	_, err = f.leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, client.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// renewStatus refreshes a node's conditions, and nothing else: resources may have been changed by a test.
func (f *fleet) renewStatus(ctx context.Context, i int) error {
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"kubelet is posting ready status","lastHeartbeatTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	_, err := f.nodes.Patch(ctx, "", f.name(i), client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
	if apierrors.IsNotFound(err) {
		return nil // the node was deleted
	}
	return err
}
