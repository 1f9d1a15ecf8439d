package scaling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/controller"
	"skiff/test/world"
)

func uses(values ...int64) map[string]sample {
	samples := map[string]sample{}
	for i, v := range values {
		if v >= 0 {
			samples[fmt.Sprint("p", i)] = sample{value: v, at: now, window: time.Minute}
		}
	}
	return samples
}

// dial is a meter that shows what a test sets.
type settableMetrics struct {
	world *world.World
	mu    sync.Mutex
	each  int64 // of every pod; negative: broken
	whole int64
}

func (m *settableMetrics) set(each, whole int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.each, m.whole = each, whole
}

func (m *settableMetrics) usage(_ context.Context, _ string, _ labels.Selector, _ corev1.ResourceName, _ string) (map[string]sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.each < 0 {
		return nil, errors.New("broken")
	}
	samples := map[string]sample{}
	for _, pod := range world.List[*corev1.Pod](m.world) {
		samples[pod.Name] = sample{value: m.each, at: time.Now(), window: time.Second}
	}
	return samples, nil
}

func (m *settableMetrics) podMetric(ctx context.Context, namespace string, pods labels.Selector, _ string, _ labels.Selector) (map[string]sample, error) {
	return m.usage(ctx, namespace, pods, "", "")
}

func (m *settableMetrics) objectMetric(context.Context, string, autoscalingv2.CrossVersionObjectReference, string, labels.Selector) (int64, error) {
	return m.externalMetric(context.Background(), "", "", nil)
}

func (m *settableMetrics) externalMetric(context.Context, string, string, labels.Selector) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.whole, nil
}

func TestAutoscalerInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		meter := &settableMetrics{world: w}
		defer w.Run(newAutoscaler(DefaultAutoscaler, meter))()
		labels := map[string]string{"app": "web"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		world.Create(w, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}})
		pod := func(i int) {
			name := fmt.Sprint("web-", i)
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels}, Spec: template.Spec})
			world.EditStatus(w, "default", name, func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(metav1.NewTime(time.Now().Add(-time.Hour))),
					Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}}
			})
		}
		pod(0)
		pod(1)
		target := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
		meter.set(1000, 0)
		w.Pass(time.Second)
		world.Create(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target, MinReplicas: new(int32(1)), MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("500m"))}}}}}})
		size := func() int32 { return *world.Get[*appsv1.Deployment](w, "default", "web").Spec.Replicas }
		condition := func(kind autoscalingv2.HorizontalPodAutoscalerConditionType) string {
			for _, c := range world.Get[*autoscalingv2.HorizontalPodAutoscaler](w, "default", "web").Status.Conditions {
				if c.Type == kind {
					return fmt.Sprintf("%s %s", c.Status, c.Reason)
				}
			}
			return ""
		}
		w.Pass(time.Second)
		if size() != 4 || condition(autoscalingv2.AbleToScale) != "True SucceededRescale" || condition(autoscalingv2.ScalingActive) != "True ValidMetricFound" {
			t.Fatalf("size %d, %s, %s; %q", size(), condition(autoscalingv2.AbleToScale), condition(autoscalingv2.ScalingActive), w.Events("web"))
		}
		if told := w.Events("web"); !slices.Contains(told, "SuccessfulRescale: New size: 4; reason: cpu resource above target") {
			t.Errorf("events %q", told)
		}
		pod(2)
		pod(3)
		// Less is used, but that was not so for long.
		meter.set(100, 0)
		w.Pass(2 * time.Minute)
		if size() != 4 || condition(autoscalingv2.AbleToScale) != "True ScaleDownStabilized" {
			t.Errorf("size %d, %s; %q", size(), condition(autoscalingv2.AbleToScale), w.Events("web"))
		}
		w.Pass(5 * time.Minute)
		if size() != 1 {
			t.Errorf("size %d after the window", size())
		}
		// Metrics fail: nothing is done, and that is reported.
		meter.set(-1, 0)
		w.Pass(time.Minute)
		if size() != 1 || condition(autoscalingv2.ScalingActive) != "False FailedGetResourceMetric" {
			t.Errorf("size %d, %s", size(), condition(autoscalingv2.ScalingActive))
		}
		// A target above its bounds is brought back without asking metrics.
		world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(40)) })
		w.Pass(time.Minute)
		if size() != 10 {
			t.Errorf("size %d, with at most 10", size())
		}
		s := world.Get[*autoscalingv2.HorizontalPodAutoscaler](w, "default", "web")
		if s.Status.LastScaleTime == nil || s.Status.CurrentReplicas != 10 || *s.Status.ObservedGeneration != s.Generation {
			t.Errorf("status %+v", s.Status)
		}
		// A second one on the same pods: neither may scale.
		world.Create(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "second"}, Spec: s.Spec})
		w.Pass(time.Minute)
		if got := condition(autoscalingv2.ScalingActive); got != "False AmbiguousSelector" {
			t.Errorf("two autoscalers: %s", got)
		}
	})
}

func TestAutoscalerScalesToZeroAndBack(t *testing.T) {
	world.In(t, func(w *world.World) {
		meter := &settableMetrics{world: w}
		defer w.Run(newAutoscaler(DefaultAutoscaler, meter))()
		labels := map[string]string{"app": "web"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		world.Create(w, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}})
		world.EditStatus(w, "default", "web", func(d *appsv1.Deployment) { d.Status.Replicas = 1 })
		world.Create(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: new(int32(0)), MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("5"))}}}}}})
		size := func() int32 { return *world.Get[*appsv1.Deployment](w, "default", "web").Spec.Replicas }
		w.Pass(6 * time.Minute)
		if size() != 0 {
			t.Fatalf("with nothing to do, size %d: %q", size(), w.Events("web"))
		}
		world.EditStatus(w, "default", "web", func(d *appsv1.Deployment) { d.Status.Replicas = 0 })
		meter.set(0, 12000)
		w.Pass(time.Minute)
		if size() != 3 || !strings.Contains(strings.Join(w.Events("web"), ";"), "New size: 3") {
			t.Errorf("with twelve to do, size %d: %q", size(), w.Events("web"))
		}
		// Scaled to zero by a user: it stays.
		world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(0)) })
		w.Pass(time.Minute)
		if size() != 0 {
			t.Errorf("a user's zero became %d", size())
		}
	})
}

// gauge shows, by the metric's name, what pods use each or a value of the whole; a metric it does not know it has not.
type variableMetrics struct {
	mu    sync.Mutex
	each  map[string]int64
	whole map[string]int64
	world *world.World
}

func (m *variableMetrics) show(name string, each, whole int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.each[name], m.whole[name] = each, whole
}

// pods takes a moment to answer: events of one moment have one name.
func (m *variableMetrics) pods(name string) (map[string]sample, error) {
	time.Sleep(time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	each, known := m.each[name]
	if !known {
		return nil, errors.New("no metrics")
	}
	samples := map[string]sample{}
	for _, pod := range world.List[*corev1.Pod](m.world) {
		samples[pod.Name] = sample{value: each, at: time.Now(), window: time.Second}
	}
	return samples, nil
}

func (m *variableMetrics) usage(_ context.Context, _ string, _ labels.Selector, name corev1.ResourceName, _ string) (map[string]sample, error) {
	return m.pods(string(name))
}

func (m *variableMetrics) podMetric(_ context.Context, _ string, _ labels.Selector, metric string, _ labels.Selector) (map[string]sample, error) {
	return m.pods(metric)
}

func (m *variableMetrics) objectMetric(ctx context.Context, namespace string, _ autoscalingv2.CrossVersionObjectReference, metric string, selector labels.Selector) (int64, error) {
	return m.externalMetric(ctx, namespace, metric, selector)
}

func (m *variableMetrics) externalMetric(_ context.Context, _, metric string, _ labels.Selector) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if whole, known := m.whole[metric]; known {
		return whole, nil
	}
	return 0, errors.New("no metrics")
}

// stage is a world with a Deployment, its pods and an autoscaler.
type stage struct {
	*world.World
	gauge *variableMetrics
}

// onStage puts a Deployment of a size with that many ready pods, each of which requests 100m, and an autoscaler on a stage.
func onStage(t *testing.T, size int32, scaler *autoscalingv2.HorizontalPodAutoscaler, play func(s *stage)) {
	world.In(t, func(w *world.World) {
		s := &stage{World: w, gauge: &variableMetrics{each: map[string]int64{}, whole: map[string]int64{}, world: w}}
		set := map[string]string{"app": "web"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: set}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
		world.Create(w, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.DeploymentSpec{Replicas: &size, Selector: &metav1.LabelSelector{MatchLabels: set}, Template: template}})
		world.EditStatus(w, "default", "web", func(d *appsv1.Deployment) { d.Status.Replicas = size })
		for i := range size {
			name := fmt.Sprint("web-", i)
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: set}, Spec: template.Spec})
			world.EditStatus(w, "default", name, func(p *corev1.Pod) {
				before := metav1.NewTime(time.Now().Add(-time.Hour))
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &before, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: before}}}
			})
		}
		status := scaler.Status
		made := world.Create(w, scaler)
		if len(status.Conditions) > 0 {
			world.EditStatus(w, made.Namespace, made.Name, func(h *autoscalingv2.HorizontalPodAutoscaler) {
				for i := range status.Conditions {
					status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now())
				}
				h.Status.Conditions = status.Conditions
			})
		}
		play(s)
	})
}

// aScaler scales the Deployment web from 1 to 10.
func aScaler(metrics []autoscalingv2.MetricSpec, changes ...change[*autoscalingv2.HorizontalPodAutoscaler]) *autoscalingv2.HorizontalPodAutoscaler {
	return with(&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hpa"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MinReplicas: new(int32(1)), MaxReplicas: 10, Metrics: metrics}}, changes...)
}

func from(least, most int32) change[*autoscalingv2.HorizontalPodAutoscaler] {
	return func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MinReplicas, h.Spec.MaxReplicas = &least, most }
}

func of(kind, name string) change[*autoscalingv2.HorizontalPodAutoscaler] {
	return func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.ScaleTargetRef.Kind, h.Spec.ScaleTargetRef.Name = kind, name
	}
}

func wasScaledToZero(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScaledToZero, Status: corev1.ConditionTrue, Reason: "ScaledToZero"}}
}

func (s *stage) size() int32 {
	return *world.Get[*appsv1.Deployment](s.World, "default", "web").Spec.Replicas
}

func (s *stage) scaler() *autoscalingv2.HorizontalPodAutoscaler {
	return world.Get[*autoscalingv2.HorizontalPodAutoscaler](s.World, "default", "hpa")
}

func (s *stage) conditions() string { return conditionWords(s.scaler()) }

// conditionWords writes the conditions of an autoscaler down, one a line.
func conditionWords(h *autoscalingv2.HorizontalPodAutoscaler) string {
	var lines []string
	for _, c := range h.Status.Conditions {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(lines, "\n")
}

const (
	gotScale   = "AbleToScale=True SucceededGetScale: the HPA controller was able to get the target's current scale"
	readyFor   = "AbleToScale=True ReadyForNewScale: recommended size matches current size"
	within     = "ScalingLimited=False DesiredWithinRange: the desired count is within the acceptable range"
	notZero    = "ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero"
	stabilized = "AbleToScale=True ScaleDownStabilized: recent recommendations were higher than current one, applying the highest recent recommendation"
)

func valid(metric string) string {
	return "ScalingActive=True ValidMetricFound: the HPA was able to successfully calculate a replica count from " + metric
}

func rescaledTo(n int) string {
	return fmt.Sprintf("AbleToScale=True SucceededRescale: the HPA controller was able to update the target scale to %d", n)
}

// TestFirstSync: one sync at a Deployment; its size after, the whole status, and what is reported.
func TestFirstSync(t *testing.T) {
	cpu, hits, jobs := resourceMetric("cpu", perPod("100m")), podsMetric("hits", perPod("1")), externalMetric("jobs", inAll("1"))
	all := func(m ...autoscalingv2.MetricSpec) []autoscalingv2.MetricSpec { return m }
	const cpuName, hitsName = "cpu resource", "pods metric hits"
	jobsName := fmt.Sprintf("external metric jobs(%+v)", (*metav1.LabelSelector)(nil))
	const noCPU = "failed to get cpu usage: unable to get metrics for resource cpu: no metrics"
	for _, test := range []struct {
		what       string
		size       int32
		scaler     *autoscalingv2.HorizontalPodAutoscaler
		show       func(g *variableMetrics)
		want       int32
		status     string // current, desired, whether there was a rescale
		conditions []string
		told       []string
	}{
		{"as wanted", 3, aScaler(all(cpu)), func(g *variableMetrics) { g.show("cpu", 100, 0) }, 3, "3 3 false; Resource cpu: each 100m", []string{readyFor, valid(cpuName), within}, nil},
		{"more", 3, aScaler(all(cpu)), func(g *variableMetrics) { g.show("cpu", 150, 0) }, 5, "3 5 true; Resource cpu: each 150m", []string{rescaledTo(5), valid(cpuName), within, notZero},
			[]string{"SuccessfulRescale: New size: 5; reason: cpu resource above target"}},
		{"less, but not so soon", 3, aScaler(all(cpu)), func(g *variableMetrics) { g.show("cpu", 10, 0) }, 3, "3 3 false; Resource cpu: each 10m", []string{stabilized, valid(cpuName), within}, nil},
		{"less, at once where the behavior says so", 3, aScaler(all(cpu), func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior = both(nil, &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))})
		}), func(g *variableMetrics) { g.show("cpu", 10, 0) }, 1, "3 1 true; Resource cpu: each 10m", []string{rescaledTo(1), valid(cpuName), within, notZero},
			[]string{"SuccessfulRescale: New size: 1; reason: All metrics below target"}},
		{"too fast", 1, aScaler(all(cpu)), func(g *variableMetrics) { g.show("cpu", 900, 0) }, 4, "1 4 true; Resource cpu: each 900m",
			[]string{rescaledTo(4), valid(cpuName), "ScalingLimited=True ScaleUpLimit: the desired replica count is increasing faster than the maximum scale rate", notZero},
			[]string{"SuccessfulRescale: New size: 4; reason: cpu resource above target"}},
		{"too many", 6, aScaler(all(cpu)), func(g *variableMetrics) { g.show("cpu", 900, 0) }, 10, "6 10 true; Resource cpu: each 900m",
			[]string{rescaledTo(10), valid(cpuName), "ScalingLimited=True TooManyReplicas: the desired replica count is more than the maximum replica count", notZero},
			[]string{"SuccessfulRescale: New size: 10; reason: cpu resource above target"}},
		{"too few, where the window is over", 3, aScaler(all(cpu), from(2, 10), func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior = both(nil, &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))})
		}), func(g *variableMetrics) { g.show("cpu", 10, 0) }, 2, "3 2 true; Resource cpu: each 10m",
			[]string{rescaledTo(2), valid(cpuName), "ScalingLimited=True TooFewReplicas: the desired replica count is less than the minimum replica count", notZero},
			[]string{"SuccessfulRescale: New size: 2; reason: All metrics below target"}},
		{"above the bounds, without asking", 5, aScaler(all(cpu), from(1, 3)), func(g *variableMetrics) {}, 3, "5 3 true", []string{rescaledTo(3), notZero},
			[]string{"SuccessfulRescale: New size: 3; reason: Current number of replicas above Spec.MaxReplicas"}},
		{"below the bounds, without asking", 1, aScaler(all(cpu), from(3, 9)), func(g *variableMetrics) {}, 3, "1 3 true", []string{rescaledTo(3), notZero},
			[]string{"SuccessfulRescale: New size: 3; reason: Current number of replicas below Spec.MinReplicas"}},
		{"switched off by a user", 0, aScaler(all(cpu)), func(g *variableMetrics) {}, 0, "0 0 false",
			[]string{gotScale, "ScalingActive=False ScalingDisabled: scaling is disabled since the replica count of the target is zero"}, nil},
		{"the highest of two", 3, aScaler(all(cpu, hits)), func(g *variableMetrics) { g.show("cpu", 110, 0); g.show("hits", 1500, 0) }, 5, "3 5 true; Resource cpu: each 110m; Pods hits: each 1500m",
			[]string{rescaledTo(5), valid(hitsName), within, notZero}, []string{"SuccessfulRescale: New size: 5; reason: pods metric hits above target"}},
		{"one fails, the other wants more", 3, aScaler(all(cpu, hits)), func(g *variableMetrics) { g.show("hits", 1500, 0) }, 5, "3 5 true; ; Pods hits: each 1500m",
			[]string{rescaledTo(5), valid(hitsName), within, notZero}, []string{"FailedGetResourceMetric: " + noCPU, "SuccessfulRescale: New size: 5; reason: pods metric hits above target"}},
		{"one fails, the other wants the same", 3, aScaler(all(cpu, hits)), func(g *variableMetrics) { g.show("hits", 1000, 0) }, 3, "3 3 false; ; Pods hits: each 1",
			[]string{readyFor, valid(hitsName), within}, []string{"FailedGetResourceMetric: " + noCPU}},
		{"one fails, the other wants less: nothing is done", 3, aScaler(all(cpu, hits)), func(g *variableMetrics) { g.show("hits", 100, 0) }, 3, "3 0 false; ; Pods hits: each 100m",
			[]string{gotScale, "ScalingActive=False FailedGetResourceMetric: the HPA was unable to compute the replica count: " + noCPU},
			[]string{"FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 2), first error is: failed to get cpu resource metric value: " + noCPU, "FailedGetResourceMetric: " + noCPU}},
		{"two fail of three, and the third wants less: the first is told", 3, aScaler(all(hits, cpu, podsMetric("rests", perPod("1")))), func(g *variableMetrics) { g.show("rests", 1, 0) }, 3, "3 0 false; ; ; Pods rests: each 1m",
			[]string{gotScale, "ScalingActive=False FailedGetPodsMetric: the HPA was unable to compute the replica count: unable to get metric hits: no metrics"},
			[]string{"FailedComputeMetricsReplicas: invalid metrics (2 invalid out of 3), first error is: failed to get pods metric value: unable to get metric hits: no metrics",
				"FailedGetPodsMetric: unable to get metric hits: no metrics", "FailedGetResourceMetric: " + noCPU}},
		{"a target that is not there", 3, aScaler(all(cpu), of("Deployment", "other")), func(g *variableMetrics) {}, 3, "0 0 false",
			[]string{`AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: deployments.apps "other" not found`},
			[]string{`FailedGetScale: deployments.apps "other" not found`}},
		{"a kind nobody knows", 3, aScaler(all(cpu), of("Nothing", "web")), func(g *variableMetrics) {}, 3, "0 0 false",
			[]string{`AbleToScale=False FailedGetScale: the HPA controller was unable to get the target's current scale: no matches for kind "Nothing" in group "apps"`},
			[]string{`FailedGetScale: no matches for kind "Nothing" in group "apps"`}},
		{"zero, which was ours, and there is work", 0, aScaler(all(jobs), from(0, 10), wasScaledToZero), func(g *variableMetrics) { g.show("jobs", 0, 3000) }, 3, "0 3 true; External jobs: all 3",
			[]string{"ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero", rescaledTo(3), valid(jobsName), within},
			[]string{"SuccessfulRescale: New size: 3; reason: " + jobsName + " above target"}},
		{"zero, which was ours, and there is none", 0, aScaler(all(jobs), from(0, 10), wasScaledToZero), func(g *variableMetrics) { g.show("jobs", 0, 0) }, 0, "0 0 false; External jobs: all 0",
			[]string{"ScaledToZero=True ScaledToZero: ", readyFor, valid(jobsName), within}, nil},
		{"zero, which was a user's, and there is work", 0, aScaler(all(jobs), from(0, 10)), func(g *variableMetrics) { g.show("jobs", 0, 3000) }, 0, "0 0 false",
			[]string{gotScale, "ScalingActive=False ScalingDisabled: scaling is disabled since the replica count of the target is zero"}, nil},
		{"zero, which was ours, and one is the least now", 0, aScaler(all(jobs), from(2, 10), wasScaledToZero), func(g *variableMetrics) { g.show("jobs", 0, 0) }, 2, "0 2 true; External jobs: all 0",
			[]string{"ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero", rescaledTo(2), valid(jobsName),
				"ScalingLimited=True TooFewReplicas: the desired replica count is less than the minimum replica count"},
			[]string{"SuccessfulRescale: New size: 2; reason: "}},
		{"the same with a behavior, which does not know of bounds", 0, aScaler(all(jobs), from(2, 10), wasScaledToZero, func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior = both(rules(theMost, policy(byPods, 9, 60)), nil)
		}), func(g *variableMetrics) { g.show("jobs", 0, 0) }, 2, "0 2 true; External jobs: all 0",
			[]string{"ScaledToZero=False NotScaledToZero: the HPA controller did not scale the workload to zero", rescaledTo(2), valid(jobsName), within},
			[]string{"SuccessfulRescale: New size: 2; reason: Current number of replicas below Spec.MinReplicas"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			onStage(t, test.size, test.scaler, func(s *stage) {
				test.show(s.gauge)
				defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
				s.Pass(time.Second)
				h := s.scaler()
				status := fmt.Sprintf("%d %d %v", h.Status.CurrentReplicas, h.Status.DesiredReplicas, h.Status.LastScaleTime != nil)
				for _, m := range h.Status.CurrentMetrics {
					status += "; " + metricWords(m)
				}
				if s.size() != test.want || status != test.status {
					t.Errorf("size %d, status %s\nwant %d, %s", s.size(), status, test.want, test.status)
				}
				if got, want := s.conditions(), strings.Join(test.conditions, "\n"); got != want {
					t.Errorf("conditions\n%s\nwant\n%s", got, want)
				}
				told := s.Events("hpa")
				slices.Sort(told)
				if strings.Join(told, "\n") != strings.Join(test.told, "\n") {
					t.Errorf("told\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(test.told, "\n"))
				}
			})
		})
	}
}

// TestScalingOverTime: windows, rates and memory, over many looks.
func TestScalingOverTime(t *testing.T) {
	cpu := []autoscalingv2.MetricSpec{resourceMetric("cpu", perPod("100m"))}
	t.Run("less is waited for five minutes", func(t *testing.T) {
		onStage(t, 4, aScaler(cpu), func(s *stage) {
			s.gauge.show("cpu", 50, 0)
			defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
			s.Pass(4*time.Minute + 50*time.Second)
			if s.size() != 4 {
				t.Errorf("after less than five minutes: %d", s.size())
			}
			s.Pass(time.Minute)
			if s.size() != 2 {
				t.Errorf("after more than five minutes: %d", s.size())
			}
		})
	})
	t.Run("a rate of one pod a minute", func(t *testing.T) {
		slow := func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.Behavior = both(rules(theMost, policy(byPods, 1, 60)), window(0, rules(theMost, policy(byPods, 1, 60))))
		}
		onStage(t, 2, aScaler(cpu, slow), func(s *stage) {
			s.gauge.show("cpu", 1000, 0)
			defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
			for minute, want := range []int32{3, 4, 5} {
				s.Pass(10 * time.Second)
				if s.size() != want {
					t.Errorf("in minute %d: %d, want %d", minute, s.size(), want)
				}
				s.Pass(55 * time.Second)
			}
		})
	})
	t.Run("what was done before there was a behavior does not count", func(t *testing.T) {
		onStage(t, 2, aScaler(cpu), func(s *stage) {
			s.gauge.show("cpu", 200, 0)
			defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
			s.Pass(time.Second)
			if s.size() != 4 {
				t.Fatalf("without a behavior: %d", s.size())
			}
			world.Edit(s.World, "default", "hpa", func(h *autoscalingv2.HorizontalPodAutoscaler) {
				h.Spec.Behavior = both(rules(theMost, policy(byPods, 2, 600)), nil)
			})
			s.gauge.show("cpu", 1000, 0)
			s.Pass(20 * time.Second)
			if s.size() != 6 {
				t.Errorf("two more are allowed: %d", s.size())
			}
		})
	})
	t.Run("a change of what is wanted is looked at now", func(t *testing.T) {
		onStage(t, 3, aScaler(cpu), func(s *stage) {
			s.gauge.show("cpu", 100, 0)
			defer s.Run(newAutoscaler(AutoscalerSettings{SyncPeriod: time.Hour, Tolerance: 0.1}, s.gauge))()
			s.Pass(time.Second)
			world.Edit(s.World, "default", "hpa", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MinReplicas = new(int32(5)) })
			s.Pass(time.Second)
			if h := s.scaler(); s.size() != 5 || *h.Status.ObservedGeneration != h.Generation {
				t.Errorf("size %d, observed %d of %d", s.size(), *h.Status.ObservedGeneration, h.Generation)
			}
		})
	})
	t.Run("a transition time stays while the status does", func(t *testing.T) {
		onStage(t, 3, aScaler(cpu), func(s *stage) {
			s.gauge.show("cpu", 100, 0)
			defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
			s.Pass(time.Second)
			before := s.scaler().Status.Conditions
			s.Pass(time.Minute)
			revision := s.scaler().ResourceVersion
			s.Pass(10 * time.Minute)
			if after := s.scaler(); after.ResourceVersion != revision || !after.Status.Conditions[0].LastTransitionTime.Equal(&before[0].LastTransitionTime) {
				t.Errorf("nothing changed, yet it was written: %s, was %s", after.ResourceVersion, revision)
			}
		})
	})
	t.Run("two autoscalers of the same pods", func(t *testing.T) {
		onStage(t, 3, aScaler(cpu), func(s *stage) {
			second := aScaler(cpu)
			second.Name = "other"
			world.Create(s.World, second)
			s.gauge.show("cpu", 300, 0)
			defer s.Run(newAutoscaler(DefaultAutoscaler, s.gauge))()
			s.Pass(time.Minute)
			text := "pods by selector app=web are controlled by more than one HPA (e.g. [default/hpa default/other])"
			if got := s.conditions(); !strings.Contains(got, "ScalingActive=False AmbiguousSelector: "+text) {
				t.Errorf("conditions\n%s", got)
			}
			if told := s.Events("hpa"); !slices.Contains(told, "AmbiguousSelector: "+text) {
				t.Errorf("told %q", told)
			}
			// The other one goes: this one works again.
			s.Remove(world.Get[*autoscalingv2.HorizontalPodAutoscaler](s.World, "default", "other"))
			s.Pass(time.Minute)
			if got := s.conditions(); !strings.Contains(got, "ScalingActive=True ValidMetricFound") {
				t.Errorf("alone again:\n%s", got)
			}
		})
	})
}

// scales is a server with one scale, which somebody else changes a number of times while it is being written.
type scales struct {
	conflicts, code int // code: another refusal, 0 for none
	replicas        []int32
	reads           int
	revision        int
}

func (s *scales) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason, message string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, message, code)
	}
	if r.Method == http.MethodGet {
		s.reads++
		fmt.Fprintf(w, `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web","namespace":"default","resourceVersion":"%d"},"spec":{"replicas":7}}`, s.revision)
		return
	}
	var scale autoscalingv1.Scale
	if err := json.NewDecoder(r.Body).Decode(&scale); err != nil {
		refuse(http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	switch {
	case s.code != 0:
		refuse(s.code, "Forbidden", "you may not")
	case s.conflicts > 0:
		s.conflicts--
		s.revision++
		refuse(http.StatusConflict, "Conflict", "changed")
	case scale.ResourceVersion != fmt.Sprint(s.revision):
		refuse(http.StatusConflict, "Conflict", "an old revision: "+scale.ResourceVersion)
	default:
		s.replicas = append(s.replicas, scale.Spec.Replicas)
		fmt.Fprint(w, `{"kind":"Scale"}`)
	}
}

// TestRescale: written again when somebody else was faster, and what stands in the conditions.
func TestRescale(t *testing.T) {
	where := scaleTarget{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, namespaced: true}
	whole := []autoscalingv2.MetricSpec{externalMetric("jobs", inAll("1"))}
	for _, test := range []struct {
		what         string
		server       *scales
		scaler       *autoscalingv2.HorizontalPodAutoscaler
		before, want int32
		written      string
		reads        int
		conditions   string
		steps        int
		err          string
	}{
		{"at once", &scales{}, aScaler(nil), 3, 5, "[5]", 0, rescaledTo(5) + "\n" + notZero, 0, ""},
		{"a behavior: the step is remembered", &scales{}, aScaler(nil, func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Behavior = both(nil, nil) }), 3, 5, "[5]", 0, rescaledTo(5) + "\n" + notZero, 1, ""},
		{"somebody was faster once", &scales{conflicts: 1}, aScaler(nil), 3, 5, "[5]", 1, rescaledTo(5) + "\n" + notZero, 0, ""},
		{"somebody was faster four times", &scales{conflicts: 4}, aScaler(nil), 3, 5, "[5]", 4, rescaledTo(5) + "\n" + notZero, 0, ""},
		{"somebody is always faster", &scales{conflicts: 99}, aScaler(nil), 3, 5, "[]", 5, "AbleToScale=False FailedUpdateScale: the HPA controller was unable to update the target scale: changed", 0, "changed"},
		{"forbidden: asked once", &scales{code: http.StatusForbidden}, aScaler(nil), 3, 5, "[]", 0, "AbleToScale=False FailedUpdateScale: the HPA controller was unable to update the target scale: you may not", 0, "you may not"},
		{"to zero", &scales{}, aScaler(whole, from(0, 9)), 3, 0, "[0]", 0, rescaledTo(0) + "\nScaledToZero=True ScaledToZero: the HPA controller scaled the workload to zero", 0, ""},
		{"to zero, where zero is not the least", &scales{}, aScaler(whole, from(1, 9)), 3, 0, "[0]", 0, rescaledTo(0) + "\n" + notZero, 0, ""},
		{"to zero, by pods' metrics: nobody could wake it", &scales{}, aScaler([]autoscalingv2.MetricSpec{resourceMetric("cpu", share(50))}, from(0, 9)), 3, 0, "[0]", 0, rescaledTo(0) + "\n" + notZero, 0, ""},
		{"from zero", &scales{}, aScaler(whole, from(0, 9), wasScaledToZero), 0, 2, "[2]", 0, notZero + "\n" + rescaledTo(2), 0, ""},
	} {
		autoscaler := &autoscalerSync{ctx: t.Context(), controller: &autoscaler{api: apiAt(t, test.server), measured: newAutoscalerMetrics(), settings: DefaultAutoscaler, setup: &controller.Setup{}}, scaler: test.scaler, cached: test.scaler, history: &scaleHistory{}, now: now}
		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", ResourceVersion: "0"}, Spec: autoscalingv1.ScaleSpec{Replicas: test.before}}
		err := autoscaler.rescale(where, scale, &decision{replicas: test.want, reason: "because"})
		if got := fmt.Sprint(test.server.replicas); got != test.written || test.server.reads != test.reads || errorText(err) != test.err || len(autoscaler.history.scaleEvents) != test.steps {
			t.Errorf("%s: written %s, read %d times, %d steps, %v", test.what, got, test.server.reads, len(autoscaler.history.scaleEvents), err)
		}
		if got := conditionWords(test.scaler); got != test.conditions {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.conditions)
		}
		if test.steps == 1 && autoscaler.history.scaleEvents[0] != (scaleEvent{test.want - test.before, now}) {
			t.Errorf("%s: step %+v", test.what, autoscaler.history.scaleEvents[0])
		}
	}
}

// TestNormalize: windows first, limits then; both are reported.
func TestNormalize(t *testing.T) {
	const limitedUp = "ScalingLimited=True ScaleUpLimit: the desired replica count is increasing faster than the maximum scale rate"
	const limitedMany = "ScalingLimited=True TooManyReplicas: the desired replica count is more than the maximum replica count"
	const limitedDown = "ScalingLimited=True ScaleDownLimit: the desired replica count is decreasing faster than the maximum scale rate"
	const stableUp = "AbleToScale=True ScaleUpStabilized: recent recommendations were lower than current one, applying the lowest recent recommendation"
	recently := func(n int32) scaleHistory {
		return scaleHistory{recommendations: []recommendation{{n, now.Add(-time.Minute)}}}
	}
	slow := func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.Behavior = both(window(120, rules(theMost, policy(byPods, 2, 60))), window(300, rules(theMost, policy(byPods, 2, 60))))
	}
	for _, test := range []struct {
		what              string
		scaler            *autoscalingv2.HorizontalPodAutoscaler
		history           scaleHistory
		current, proposed int32
		want              int32
		conditions        string
	}{
		{"as it is", aScaler(nil), scaleHistory{}, 3, 3, 3, readyFor + "\n" + within},
		{"up", aScaler(nil), scaleHistory{}, 3, 5, 5, readyFor + "\n" + within},
		{"up too fast", aScaler(nil), scaleHistory{}, 3, 9, 6, readyFor + "\n" + limitedUp},
		{"down, and more was recommended", aScaler(nil), recently(3), 3, 1, 3, stabilized + "\n" + within},
		{"down, and much more was recommended", aScaler(nil), recently(9), 3, 1, 6, stabilized + "\n" + limitedUp},
		{"down, and it was recommended too long ago", aScaler(nil), scaleHistory{recommendations: []recommendation{{9, now.Add(-5*time.Minute - time.Nanosecond)}}}, 3, 1, 1, readyFor + "\n" + within},
		{"up by a behavior, and less was recommended", aScaler(nil, slow), recently(4), 3, 9, 4, stableUp + "\n" + within},
		{"up by a behavior, too fast", aScaler(nil, slow), scaleHistory{}, 3, 9, 5, readyFor + "\n" + limitedUp},
		{"up by a behavior, too many", aScaler(nil, slow, from(1, 4)), scaleHistory{}, 3, 9, 4, readyFor + "\n" + limitedMany},
		{"down by a behavior, too fast", aScaler(nil, slow), scaleHistory{}, 9, 1, 7, readyFor + "\n" + limitedDown},
		{"down by a behavior, and more was recommended", aScaler(nil, slow), recently(8), 9, 1, 8, stabilized + "\n" + within},
	} {
		autoscaler := &autoscalerSync{controller: &autoscaler{measured: newAutoscalerMetrics(), settings: DefaultAutoscaler}, scaler: test.scaler, history: &test.history, now: now}
		if got := autoscaler.normalize(test.current, test.proposed); got != test.want || conditionWords(test.scaler) != test.conditions {
			t.Errorf("%s: %d, want %d\n got %s\nwant %s", test.what, got, test.want, conditionWords(test.scaler), test.conditions)
		}
		if last := test.history.recommendations[len(test.history.recommendations)-1]; last != (recommendation{test.proposed, now}) {
			t.Errorf("%s: what was recommended is remembered as %+v", test.what, last)
		}
	}
}

// TestConditions: the time of a condition moves with its status alone.
func TestConditions(t *testing.T) {
	autoscaler := &autoscalerSync{scaler: aScaler(nil), now: now}
	autoscaler.setCondition(autoscalingv2.AbleToScale, "True", "A", "a")
	autoscaler.setCondition(autoscalingv2.ScalingActive, "True", "X", "x")
	autoscaler.now = now.Add(time.Hour)
	autoscaler.setCondition(autoscalingv2.AbleToScale, "True", "B", "b")
	autoscaler.setCondition(autoscalingv2.ScalingActive, "False", "Y", "y")
	if got := conditionWords(autoscaler.scaler); got != "AbleToScale=True B: b\nScalingActive=False Y: y" {
		t.Errorf("conditions\n%s", got)
	}
	if list := autoscaler.scaler.Status.Conditions; !list[0].LastTransitionTime.Time.Equal(now) || !list[1].LastTransitionTime.Time.Equal(autoscaler.now) {
		t.Errorf("times %v, %v", list[0].LastTransitionTime, list[1].LastTransitionTime)
	}
	if !autoscaler.isConditionTrue(autoscalingv2.AbleToScale) || autoscaler.isConditionTrue(autoscalingv2.ScalingActive) || autoscaler.isConditionTrue(autoscalingv2.ScalingLimited) {
		t.Error("what is so is so")
	}
}

// TestZeroOfOurs: who may wake a target that has no pods.
func TestZeroOfOurs(t *testing.T) {
	cpu := []autoscalingv2.MetricSpec{resourceMetric("cpu", share(50))}
	for _, test := range []struct {
		what     string
		scaler   *autoscalingv2.HorizontalPodAutoscaler
		disabled bool
	}{
		{"a user's zero", aScaler(cpu), true},
		{"ours, and by pods' metrics there is nothing to measure", aScaler(cpu, from(0, 9), wasScaledToZero), true},
		{"ours, and one is the least now: it is asked", aScaler(cpu, from(1, 9), wasScaledToZero), false},
		{"ours, and minReplicas is not set", aScaler(cpu, wasScaledToZero, func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MinReplicas = nil }), false},
	} {
		autoscaler := &autoscalerSync{ctx: t.Context(), controller: &autoscaler{measured: newAutoscalerMetrics(), settings: DefaultAutoscaler, setup: &controller.Setup{}}, scaler: test.scaler, cached: test.scaler, history: &scaleHistory{}, now: now}
		// Without a selector nothing can be asked: that is as far as it goes when it is not disabled.
		d, err := autoscaler.decide(&autoscalingv1.Scale{})
		if test.disabled != (err == nil && d != nil && d.disabled) || !test.disabled && errorText(err) != "selector is required" {
			t.Errorf("%s: %+v, %v", test.what, d, err)
		}
	}
}
