package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/status"
)

// What is looked at when somebody asks.
var (
	runningPods       = desc("running_pods", "Number of pods that have a running pod sandbox")
	runningContainers = desc("running_containers", "Number of containers currently running", "container_state")
	desiredPods       = desc("desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", "static")
	activePods        = desc("active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", "static")
	mirrorPods        = desc("mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)")
	ephemeral         = desc("managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet.")
	shutdownStart     = desc("graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds")
	shutdownEnd       = desc("graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds")
	totalVolumes      = prometheus.NewDesc("volume_manager_total_volumes", "Number of volumes in Volume Manager", []string{"plugin_name", "state"}, nil)
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(subsystem+"_"+name, help, labels, nil)
}

// lookTimeout bounds how long a runtime may take to be counted.
const lookTimeout = 10 * time.Second

// Node collects how the node is. Register it with All.
type NodeCollector struct {
	// Pods are all pods of the node, Active those that count against its room.
	Pods, Active func() []*corev1.Pod
	Runtime      interface {
		ListPodSandboxes(ctx context.Context, uid types.UID) ([]*cri.Sandbox, error)
		ListContainers(ctx context.Context, uid types.UID) ([]*cri.Container, error)
	}
	// Volumes counts by plugin those that pods want and those that are set up.
	Volumes func(pods []*corev1.Pod) (wanted, there map[string]int)
	// Claims are the volumes of claims that have file systems of their own, and where those are.
	Claims func(pods []*corev1.Pod) map[types.NamespacedName]string
	// Shutdown is when pods were last ended for a shutdown.
	Shutdown func() (start, end time.Time)
}

// Describe implements prometheus.Collector.
func (n NodeCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningPods, runningContainers, desiredPods, activePods, mirrorPods, ephemeral, shutdownStart, shutdownEnd, totalVolumes} {
		to <- d
	}
	for _, v := range volumeStats {
		to <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (n NodeCollector) Collect(to chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	n.collectRuntime(emit)
	pods, active := n.Pods(), n.Active()
	debuggers, mirrors := 0, 0
	for _, pod := range pods {
		debuggers += len(pod.Spec.EphemeralContainers)
	}
	for _, pod := range active {
		if status.Static(pod) {
			mirrors++
		}
	}
	emit(ephemeral, float64(debuggers))
	emit(mirrorPods, float64(mirrors))
	for d, list := range map[*prometheus.Desc][]*corev1.Pod{desiredPods: pods, activePods: active} {
		count := map[bool]int{}
		for _, pod := range list {
			count[status.Static(pod)]++
		}
		for _, static := range []bool{true, false} {
			emit(d, float64(count[static]), staticLabel(static))
		}
	}
	wanted, there := n.Volumes(active)
	for plugin, number := range wanted {
		emit(totalVolumes, float64(number), plugin, "desired_state_of_world")
	}
	for plugin, number := range there {
		emit(totalVolumes, float64(number), plugin, "actual_state_of_world")
	}
	collectClaims(n.Claims(active), emit)
	start, end := n.Shutdown()
	emit(shutdownStart, seconds(start))
	emit(shutdownEnd, seconds(end))
}

// staticLabel is empty for pods of the API, as upstream has it.
func staticLabel(static bool) string {
	if static {
		return strconv.FormatBool(true)
	}
	return ""
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}

// collectRuntime counts what the runtime has. One that does not answer is not counted.
func (n NodeCollector) collectRuntime(emit func(*prometheus.Desc, float64, ...string)) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	sandboxes, err := n.Runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return
	}
	containers, err := n.Runtime.ListContainers(ctx, "")
	if err != nil {
		return
	}
	running := map[types.UID]bool{}
	for _, s := range sandboxes {
		if s.Ready {
			running[s.UID] = true
		}
	}
	emit(runningPods, float64(len(running)))
	states := map[cri.State]int{}
	for _, c := range containers {
		states[c.State]++
	}
	for state, number := range states {
		emit(runningContainers, float64(number), state.String())
	}
}
