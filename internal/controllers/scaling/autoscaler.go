package scaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// AutoscalerSettings are the flags --horizontal-pod-autoscaler-*.
type AutoscalerSettings struct {
	// SyncPeriod is how often each target is looked at.
	SyncPeriod time.Duration
	// DownscaleStabilization is for how long the highest advice counts before pods are taken away.
	DownscaleStabilization time.Duration
	// Tolerance is how far usage may be from its target.
	Tolerance float64
	// CPUInitialization is how long a pod's CPU usage may be that of its start; InitialReadiness, how long it may take to be
	// ready for the first time.
	CPUInitialization, InitialReadiness time.Duration
}

// DefaultAutoscaler are upstream's defaults.
var DefaultAutoscaler = AutoscalerSettings{
	SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, Tolerance: 0.1, CPUInitialization: 5 * time.Minute, InitialReadiness: 30 * time.Second,
}

// Autoscaler gives workloads as many pods as their metrics ask for, within the bounds of their HorizontalPodAutoscaler.
func Autoscaler(settings AutoscalerSettings) controller.Definition {
	return autoscalerWith(settings, nil)
}

// autoscalerWith asks another meter than the metrics APIs.
func autoscalerWith(settings AutoscalerSettings, meter meter) controller.Definition {
	return controller.Definition{
		Name: "horizontal-pod-autoscaler-controller", Aliases: []string{"horizontalpodautoscaling"}, Component: "horizontal-pod-autoscaler",
		Queue: "horizontalpodautoscaler", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &autoscaler{
				setup: s, settings: settings,
				scalers:   client.InformerFor[*autoscalingv2.HorizontalPodAutoscaler](s.Informers),
				pods:      client.InformerFor[*corev1.Pod](s.Informers),
				histories: map[controller.Key]*history{}, selectors: map[controller.Key]labels.Selector{},
			}
			var err error
			if c.api, err = newAPI(s.Client); err != nil {
				return nil, err
			}
			if c.meter = meter; meter == nil {
				c.meter = c.api
			}
			enqueue := func(scaler *autoscalingv2.HorizontalPodAutoscaler) { s.Enqueue(controller.KeyOf(scaler)) }
			// Its status changes with every look; only a change of what is wanted asks for another before its time.
			changed := func(old, scaler *autoscalingv2.HorizontalPodAutoscaler) {
				if !apiequality.Semantic.DeepEqual(old.Spec, scaler.Spec) {
					enqueue(scaler)
				}
			}
			if err := c.scalers.AddEventHandler(enqueue, changed, enqueue); err != nil {
				return nil, fmt.Errorf("watch autoscalers: %w", err)
			}
			return c, nil
		},
	}
}

type autoscaler struct {
	setup    *controller.Setup
	settings AutoscalerSettings
	api      *api
	meter    meter
	scalers  client.Informer[*autoscalingv2.HorizontalPodAutoscaler]
	pods     client.Informer[*corev1.Pod]

	mu        sync.Mutex
	histories map[controller.Key]*history
	selectors map[controller.Key]labels.Selector
}

// Sync looks at one autoscaler, and again after the period, whatever came of it: what fails is told as an event and stands in
// the conditions.
func (c *autoscaler) Sync(ctx context.Context, key controller.Key) error {
	scaler, ok := c.scalers.Get(key.Namespace, key.Name)
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.histories, key)
		delete(c.selectors, key)
		return nil
	}
	defer c.setup.EnqueueAfter(key, c.settings.SyncPeriod)
	look := &scalerLook{controller: c, ctx: ctx, key: key, meter: c.meter, about: scaler, scaler: scaler.DeepCopy(), now: time.Now(), history: c.historyOf(key)}
	if err := look.run(); err != nil {
		c.setup.Log.Debug("cannot scale", "autoscaler", key.String(), "error", err)
	}
	if apiequality.Semantic.DeepEqual(scaler.Status, look.scaler.Status) {
		return nil
	}
	written, err := client.For[*autoscalingv2.HorizontalPodAutoscaler](c.setup.Client).UpdateStatus(ctx, look.scaler)
	if err != nil {
		if !apierrors.IsConflict(err) {
			look.tell(corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return fmt.Errorf("write status: %w", err)
	}
	c.setup.RecordWrite(key, written)
	return nil
}

func (c *autoscaler) historyOf(key controller.Key) *history {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.histories[key] == nil {
		c.histories[key] = &history{}
	}
	return c.histories[key]
}

// scalerLook is one look at an autoscaler.
type scalerLook struct {
	controller *autoscaler
	ctx        context.Context // of this one look
	key        controller.Key
	meter      meter
	about      *autoscalingv2.HorizontalPodAutoscaler // as it was seen: events are about it, and are told while the copy is written
	scaler     *autoscalingv2.HorizontalPodAutoscaler // our copy: the status is written into it
	history    *history
	now        time.Time

	pods     []*corev1.Pod
	selector labels.Selector
}

func (l *scalerLook) tell(eventType, reason, message string) {
	l.controller.setup.Events.Event(l.about, eventType, reason, message)
}

// condition sets a condition. Its transition time moves with its status.
func (l *scalerLook) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string) {
	list := &l.scaler.Status.Conditions
	i := slices.IndexFunc(*list, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool { return c.Type == t })
	if i < 0 {
		i = len(*list)
		*list = append(*list, autoscalingv2.HorizontalPodAutoscalerCondition{Type: t})
	}
	c := &(*list)[i]
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(l.now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
}

func (l *scalerLook) is(t autoscalingv2.HorizontalPodAutoscalerConditionType) bool {
	return slices.ContainsFunc(l.scaler.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

func (l *scalerLook) run() error {
	target, scale, err := l.scale()
	if err != nil {
		l.tell(corev1.EventTypeWarning, "FailedGetScale", err.Error())
		l.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
		return err
	}
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := scale.Spec.Replicas
	if len(l.history.advice) == 0 {
		l.history.advice = []advice{{current, l.now}}
	}
	d, err := l.decide(scale)
	if err != nil && d == nil {
		l.report(current, l.scaler.Status.DesiredReplicas, l.scaler.Status.CurrentMetrics, false)
		return err
	}
	if d.replicas == current || d.disabled {
		l.report(current, current, d.metrics, false)
		return err
	}
	if failure := l.rescale(target, scale, d); failure != nil {
		l.report(current, l.scaler.Status.DesiredReplicas, d.metrics, false)
		return failure
	}
	l.report(current, d.replicas, d.metrics, true)
	return err
}

// scale reads the scale of the target.
func (l *scalerLook) scale() (target, *autoscalingv1.Scale, error) {
	ref := l.scaler.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return target{}, nil, err
	}
	t, err := l.controller.api.find(l.ctx, gv.WithKind(ref.Kind))
	if err != nil {
		return target{}, nil, err
	}
	scale, err := l.controller.api.scale(l.ctx, t, l.scaler.Namespace, ref.Name)
	return t, scale, err
}

// decision is how many pods there shall be, and why.
type decision struct {
	replicas int32
	reason   string
	metrics  []autoscalingv2.MetricStatus
	disabled bool
}

func (l *scalerLook) least() int32 { return orOne(l.scaler.Spec.MinReplicas) }

// decide returns how many pods there shall be. It may return a decision and an error: some metrics were there.
func (l *scalerLook) decide(scale *autoscalingv1.Scale) (*decision, error) {
	current, least, most := scale.Spec.Replicas, l.least(), l.scaler.Spec.MaxReplicas
	ours := l.is(autoscalingv2.ScaledToZero) // it was us who took the last pod
	switch {
	case current == 0 && !(ours && (least != 0 || l.wholeMetrics())):
		l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
		return &decision{disabled: true}, nil
	case current > most:
		return &decision{replicas: most, reason: "Current number of replicas above Spec.MaxReplicas"}, nil
	case current != 0 && current < least:
		return &decision{replicas: least, reason: "Current number of replicas below Spec.MinReplicas"}, nil
	}
	proposed, metric, statuses, err := l.byMetrics(scale)
	if err != nil && proposed < 0 {
		l.scaler.Status.CurrentMetrics = statuses
		l.tell(corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
		return nil, err
	}
	d := &decision{metrics: statuses}
	switch {
	case proposed > current:
		d.reason = metric + " above target"
	case proposed < current:
		d.reason = "All metrics below target"
	}
	d.replicas = l.normalize(current, proposed)
	if current == 0 && ours && d.replicas < least {
		d.replicas = least
		if d.reason == "" {
			d.reason = "Current number of replicas below Spec.MinReplicas"
		}
	}
	return d, err
}

// wholeMetrics says whether a metric can be had without pods.
func (l *scalerLook) wholeMetrics() bool {
	return slices.ContainsFunc(l.scaler.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// normalize applies windows and limits to what the metrics propose.
func (l *scalerLook) normalize(current, proposed int32) int32 {
	b := bounds{least: l.least(), most: l.scaler.Spec.MaxReplicas}
	behavior, window := l.scaler.Spec.Behavior, l.controller.settings.DownscaleStabilization
	var stable, limited int32
	var reason, message string
	l.history.prune(max(longestWindow, window), l.now)
	if behavior == nil {
		stable, reason, message = l.history.stabilize(proposed, window, l.now)
	} else {
		stable, reason, message = l.history.stabilizeBy(behavior, current, proposed, window, l.now)
	}
	l.history.advice = append(l.history.advice, advice{proposed, l.now})
	if stable == proposed {
		reason, message = "ReadyForNewScale", "recommended size matches current size"
	}
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, reason, message)
	if behavior == nil {
		limited, reason, message = b.limit(current, stable)
	} else {
		limited, reason, message = b.limitBy(behavior, current, stable, l.history.steps, l.now)
	}
	status := corev1.ConditionTrue
	if limited == stable {
		status = corev1.ConditionFalse
	}
	l.condition(autoscalingv2.ScalingLimited, status, reason, message)
	return limited
}

// rescale writes the decision, again with a fresh scale if someone else wrote meanwhile.
func (l *scalerLook) rescale(t target, scale *autoscalingv1.Scale, d *decision) error {
	before := scale.Spec.Replicas
	var err error
	for range 5 {
		scale.Spec.Replicas = d.replicas
		if err = l.controller.api.setScale(l.ctx, t, scale); !apierrors.IsConflict(err) {
			break
		}
		if fresh, readErr := l.controller.api.scale(l.ctx, t, l.scaler.Namespace, scale.Name); readErr == nil {
			scale = fresh
		}
	}
	if err != nil {
		l.tell(corev1.EventTypeWarning, "FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", d.replicas, d.reason, err))
		l.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		return err
	}
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", d.replicas))
	l.tell(corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", d.replicas, d.reason))
	if l.scaler.Spec.Behavior != nil {
		l.history.steps = append(l.history.steps, step{d.replicas - before, l.now})
	}
	if before > 0 && d.replicas == 0 && l.least() == 0 && l.wholeMetrics() {
		l.condition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		l.condition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
	}
	return nil
}

// report fills the status.
func (l *scalerLook) report(current, desired int32, metrics []autoscalingv2.MetricStatus, rescaled bool) {
	s := &l.scaler.Status
	s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics = current, desired, metrics
	s.ObservedGeneration = new(l.scaler.Generation)
	if rescaled {
		s.LastScaleTime = new(metav1.NewTime(l.now))
	}
}

// byMetrics asks all metrics and takes the highest answer. If some do not answer, pods are only added, never taken away. It
// returns -1 when nothing can be said.
func (l *scalerLook) byMetrics(scale *autoscalingv1.Scale) (replicas int32, metric string, statuses []autoscalingv2.MetricStatus, err error) {
	if err := l.choose(scale.Status.Selector); err != nil {
		return -1, "", nil, err
	}
	specs := l.scaler.Spec.Metrics
	statuses = make([]autoscalingv2.MetricStatus, len(specs))
	failures := 0
	var first *metricError
	for i, spec := range specs {
		a, err := l.ask(spec, scale, &statuses[i])
		if err != nil {
			if failures++; first == nil {
				first = err
			}
			l.tell(corev1.EventTypeWarning, err.reason, err.inner.Error())
			continue
		}
		if replicas == 0 || a.replicas > replicas {
			replicas, metric = a.replicas, a.metric
		}
	}
	if first != nil {
		err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failures, len(specs), first)
	}
	if failures >= len(specs) || failures > 0 && replicas < scale.Spec.Replicas {
		if first != nil {
			l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, first.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.inner))
		}
		return -1, "", statuses, err
	}
	l.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+metric)
	return replicas, metric, statuses, err
}

// choose finds the pods of the target. They must be no other autoscaler's: the two would fight.
func (l *scalerLook) choose(selector string) error {
	fail := func(event, reason, message, text string) error {
		l.tell(corev1.EventTypeWarning, event, message)
		l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, text)
		return errors.New(message)
	}
	if selector == "" {
		return fail("SelectorRequired", "InvalidSelector", "selector is required", "the HPA target's scale is missing a selector")
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		return fail("InvalidSelector", "InvalidSelector", message, message)
	}
	c := l.controller
	l.selector, l.pods = parsed, c.pods.List(l.scaler.Namespace, parsed)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.selectors[l.key] = parsed
	for other, selects := range c.selectors {
		if other.Namespace != l.key.Namespace || other == l.key {
			continue
		}
		if slices.ContainsFunc(l.pods, func(pod *corev1.Pod) bool { return selects.Matches(labels.Set(pod.Labels)) }) {
			message := fmt.Sprintf("pods by selector %s are controlled by more than one HPA (e.g. %v)", selector, []controller.Key{l.key, other})
			return fail("AmbiguousSelector", "AmbiguousSelector", message, message)
		}
	}
	return nil
}
