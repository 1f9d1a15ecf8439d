package scaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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

func TestProposeByAverage(t *testing.T) {
	pending := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	young := func(p *corev1.Pod) {
		p.Status.StartTime, p.Status.Conditions[0].LastTransitionTime = new(ago(time.Minute)), ago(10*time.Second)
	}
	for _, test := range []struct {
		what     string
		pods     []*corev1.Pod
		samples  map[string]sample
		resource corev1.ResourceName
		want     int32
		err      string
	}{
		{"on target", ready(3), uses(100, 100, 100), "", 3, ""},
		{"within tolerance", ready(3), uses(109, 109, 109), "", 3, ""},
		{"twice as much", ready(3), uses(200, 200, 200), "", 6, ""},
		{"half as much", ready(4), uses(50, 50, 50, 50), "", 2, ""},
		{"one without a sample, more wanted: it counts as idle", ready(3), uses(300, 300, -1), "", 6, ""},
		{"one without a sample, less wanted: it counts as full", ready(3), uses(10, 10, -1), "", 2, ""},
		{"that would turn the direction", ready(4), uses(115, -1, -1, -1), "", 4, ""},
		{"one pending, more wanted: it counts as idle", append(ready(2), aPod("p2", pending)), uses(300, 300, -1), "", 6, ""},
		{"one pending, less wanted: it does not count", append(ready(2), aPod("p2", pending)), uses(50, 50, -1), "", 1, ""},
		{"one leaving does not count", append(ready(2), aPod("p2", leaving)), uses(200, 200, 900), "", 4, ""},
		{"a young pod's CPU does not count", append(ready(1), aPod("p1", young)), uses(100, 900), corev1.ResourceCPU, 1, ""},
		{"its memory does", append(ready(1), aPod("p1", young)), uses(100, 900), corev1.ResourceMemory, 10, ""},
		{"no pods", nil, uses(1), "", 0, "no pods returned by selector while calculating replica count"},
		{"no samples", ready(1), nil, "", 0, "did not receive metrics for targeted pods (pods might be unready)"},
	} {
		c := crowd{pods: test.pods, samples: test.samples, resource: test.resource, startup: 5 * time.Minute, delay: 30 * time.Second, now: now}
		current := int32(len(test.pods))
		if test.what == "a young pod's CPU does not count" {
			current = 1
		}
		got, err := c.propose(current, average{100}, tolerance{0.1, 0.1})
		if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %d, %v; want %d, %s", test.what, got, err, test.want, test.err)
		}
	}
}

// dial is a meter that shows what a test sets.
type dial struct {
	world *world.World
	mu    sync.Mutex
	each  int64 // of every pod; negative: broken
	whole int64
}

func (d *dial) set(each, whole int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.each, d.whole = each, whole
}

func (d *dial) usage(_ context.Context, _ string, _ labels.Selector, _ corev1.ResourceName, _ string) (map[string]sample, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.each < 0 {
		return nil, errors.New("broken")
	}
	samples := map[string]sample{}
	for _, pod := range world.List[*corev1.Pod](d.world) {
		samples[pod.Name] = sample{value: d.each, at: time.Now(), window: time.Second}
	}
	return samples, nil
}

func (d *dial) ofPods(ctx context.Context, namespace string, pods labels.Selector, _ string, _ labels.Selector) (map[string]sample, error) {
	return d.usage(ctx, namespace, pods, "", "")
}

func (d *dial) ofObject(context.Context, string, autoscalingv2.CrossVersionObjectReference, string, labels.Selector) (int64, error) {
	return d.external(context.Background(), "", "", nil)
}

func (d *dial) external(context.Context, string, string, labels.Selector) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.whole, nil
}

func TestAutoscalerInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		meter := &dial{world: w}
		defer w.Run(autoscalerWith(DefaultAutoscaler, meter))()
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
		// Metrics fail: nothing is done, and it is said.
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
		meter := &dial{world: w}
		defer w.Run(autoscalerWith(DefaultAutoscaler, meter))()
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
