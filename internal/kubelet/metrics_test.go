package kubelet

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/metrics"
)

func probedReady(c *corev1.Container) {
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1}
}

func missingImage(c *corev1.Container) { c.Image = "missing" }

// counted is the sum of a counter or the number of observations of a histogram over all its labels.
func counted(t *testing.T, from prometheus.Gatherer, name, labels string) (sum float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			var all []string
			for _, l := range m.Label {
				all = append(all, l.GetName()+"="+l.GetValue())
			}
			if family.GetName() == name && strings.Contains(strings.Join(all, ","), labels) {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// TestCounts checks the metrics of a pod from its start to its removal.
func TestCounts(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	m := metrics.New("n1")
	b.config.Metrics = m
	b.start()
	pod := b.until(b.create(initial("i", command("exit 0")), regular("a", probedReady)), "running", running)
	for _, row := range []struct {
		name, labels string
		want         float64
	}{
		{"kubelet_pod_start_duration_seconds", "", 1},
		{"kubelet_started_containers_total", "container_type=init_container", 1},
		{"kubelet_started_containers_total", "container_type=container", 1},
		{"kubelet_started_containers_errors_total", "", 0},
		{"kubelet_pod_worker_duration_seconds", "operation_type=create", 1},
		{"kubelet_pod_worker_duration_seconds", "operation_type=kill", 0},
	} {
		if got := counted(t, m.All, row.name, row.labels); got != row.want {
			t.Errorf("%s{%s} is %g, want %g", row.name, row.labels, got, row.want)
		}
	}
	if got := counted(t, m.Probes, "prober_probe_total", "probe_type=Readiness,result=successful"); got < 1 {
		t.Errorf("%g probes are counted of a pod that is ready", got)
	}
	b.runtime.Exit(b.id(pod, "a"), 1)
	b.until(pod, "restarted", func(p *corev1.Pod) bool { return running(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if got := counted(t, m.All, "kubelet_pod_start_duration_seconds", ""); got != 1 {
		t.Errorf("a pod that runs on is counted as started %g times", got)
	}
	wrong := b.until(b.create(regular("a", missingImage)), "waiting", waitingFor("ErrImagePull"))
	if got := counted(t, m.All, "kubelet_started_containers_errors_total", "code=ErrImagePull,container_type=container"); got < 1 {
		t.Errorf("%g failures are counted", got)
	}
	for _, p := range []*corev1.Pod{pod, wrong} {
		b.delete(p, 1)
		b.gone(p)
	}
	if got := counted(t, m.All, "kubelet_pod_worker_duration_seconds", "operation_type=kill"); got < 2 {
		t.Errorf("%g looks are counted that ended pods", got)
	}
	if got := counted(t, m.Probes, "prober_probe_total", ""); got != 0 {
		t.Errorf("probes of pods that are gone are shown: %g", got)
	}

	// A pod that ran before the kubelet started is not counted as started.
	again := b.until(b.create(regular("a")), "running", running)
	b.stop()
	m = metrics.New("n1")
	b.config.Metrics = m
	b.start()
	b.until(b.create(regular("z")), "running", running)
	b.until(again, "running", running)
	if got := counted(t, m.All, "kubelet_pod_start_duration_seconds", ""); got != 1 {
		t.Errorf("%g pods are counted as started, one was", got)
	}
}
