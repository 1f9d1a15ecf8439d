package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/podstate"
)

// Metrics computed by a scrape.
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

// runtimeTimeout bounds how long a scrape waits for the runtime.
const runtimeTimeout = 10 * time.Second

// NodeCollector collects the node's gauges. Register it with Metrics.All.
type NodeCollector struct {
	// Pods returns all pods of the node, Active those that count against its allocatable resources.
	Pods, Active func() []*corev1.Pod
	Runtime      interface {
		ListPodSandboxes(ctx context.Context, uid types.UID) ([]*cri.Sandbox, error)
		ListContainers(ctx context.Context, uid types.UID) ([]*cri.Container, error)
	}
	// Volumes counts desired and mounted volumes by plugin.
	Volumes func(pods []*corev1.Pod) (desired, mounted map[string]int)
	// VolumeStats returns the usage of the volumes of pods, by UID.
	VolumeStats func(ctx context.Context, pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats
	// Shutdown returns the start and end of the last graceful shutdown.
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
	ephemeralContainers, mirrors := 0, 0
	for _, pod := range pods {
		ephemeralContainers += len(pod.Spec.EphemeralContainers)
	}
	for _, pod := range active {
		if podstate.IsStatic(pod) {
			mirrors++
		}
	}
	emit(ephemeral, float64(ephemeralContainers))
	emit(mirrorPods, float64(mirrors))
	for d, list := range map[*prometheus.Desc][]*corev1.Pod{desiredPods: pods, activePods: active} {
		count := map[bool]int{}
		for _, pod := range list {
			count[podstate.IsStatic(pod)]++
		}
		for _, static := range []bool{true, false} {
			emit(d, float64(count[static]), staticLabel(static))
		}
	}
	desired, mounted := n.Volumes(active)
	for plugin, number := range desired {
		emit(totalVolumes, float64(number), plugin, "desired_state_of_world")
	}
	for plugin, number := range mounted {
		emit(totalVolumes, float64(number), plugin, "actual_state_of_world")
	}
	collectClaims(n.VolumeStats(context.Background(), active), emit)
	start, end := n.Shutdown()
	emit(shutdownStart, seconds(start))
	emit(shutdownEnd, seconds(end))
}

// staticLabel is empty for pods from the API, as upstream has it.
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

// collectRuntime counts the runtime's sandboxes and containers. It emits nothing if the runtime does not respond.
func (n NodeCollector) collectRuntime(emit func(*prometheus.Desc, float64, ...string)) {
	ctx, cancel := context.WithTimeout(context.Background(), runtimeTimeout)
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
