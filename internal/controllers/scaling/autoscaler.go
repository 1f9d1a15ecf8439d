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
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// AutoscalerSettings are the flags --horizontal-pod-autoscaler-*.
type AutoscalerSettings struct {
	// SyncPeriod is the interval between syncs of each autoscaler.
	SyncPeriod time.Duration
	// DownscaleStabilization is the window in which the highest recommendation prevents scaling down.
	DownscaleStabilization time.Duration
	// Tolerance is the allowed deviation of the usage ratio from 1.
	Tolerance float64
	// CPUInitialization is the period after a pod's start in which its CPU samples may be ignored; InitialReadiness, the period in
	// which it may become ready for the first time.
	CPUInitialization, InitialReadiness time.Duration
}

// DefaultAutoscaler are upstream's defaults.
var DefaultAutoscaler = AutoscalerSettings{
	SyncPeriod: 15 * time.Second, DownscaleStabilization: 5 * time.Minute, Tolerance: 0.1, CPUInitialization: 5 * time.Minute, InitialReadiness: 30 * time.Second,
}

// Autoscaler scales workloads by their metrics, within the bounds of their HorizontalPodAutoscaler.
func Autoscaler(settings AutoscalerSettings) controller.Definition {
	return newAutoscaler(settings, nil)
}

// newAutoscaler allows another metrics client than the metrics APIs, for tests.
func newAutoscaler(settings AutoscalerSettings, metrics metricsClient) controller.Definition {
	return controller.Definition{
		Name: "horizontal-pod-autoscaler-controller", Aliases: []string{"horizontalpodautoscaling"}, Component: "horizontal-pod-autoscaler",
		Queue: "horizontalpodautoscaler", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &autoscaler{
				setup: s, settings: settings,
				autoscalers: client.InformerFor[*autoscalingv2.HorizontalPodAutoscaler](s.Informers),
				pods:        client.InformerFor[*corev1.Pod](s.Informers),
				histories:   map[controller.Key]*scaleHistory{}, selectors: map[string]map[string]labels.Selector{},
				measured: newAutoscalerMetrics(),
			}
			if err := s.Register(c.measured.collectors()...); err != nil {
				return nil, err
			}
			var err error
			if c.api, err = newAPI(s.Client); err != nil {
				return nil, err
			}
			if c.metrics = metrics; metrics == nil {
				c.metrics = c.api
			}
			if err := c.pods.EnsureLabelIndex(); err != nil {
				return nil, fmt.Errorf("index pods by label: %w", err)
			}
			enqueue := func(scaler *autoscalingv2.HorizontalPodAutoscaler) { s.Enqueue(controller.KeyOf(scaler)) }
			// Every sync changes the status; only a change of the spec requires another sync before the period is over.
			onUpdate := func(old, scaler *autoscalingv2.HorizontalPodAutoscaler) {
				if !apiequality.Semantic.DeepEqual(old.Spec, scaler.Spec) {
					enqueue(scaler)
				}
			}
			if err := c.autoscalers.AddEventHandler(enqueue, onUpdate, enqueue); err != nil {
				return nil, fmt.Errorf("watch autoscalers: %w", err)
			}
			return c, nil
		},
	}
}

type autoscaler struct {
	setup       *controller.Setup
	settings    AutoscalerSettings
	api         *api
	metrics     metricsClient
	autoscalers client.Informer[*autoscalingv2.HorizontalPodAutoscaler]
	pods        client.Informer[*corev1.Pod]
	measured    *autoscalerMetrics

	mu        sync.Mutex
	histories map[controller.Key]*scaleHistory
	selectors map[string]map[string]labels.Selector // of the targets, by namespace and name of the autoscaler
}

// Sync reconciles one autoscaler and requeues it after the period, whatever the result: failures are reported in events and
// conditions.
func (c *autoscaler) Sync(ctx context.Context, key controller.Key) error {
	cached, ok := c.autoscalers.Get(key.Namespace, key.Name)
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.histories, key)
		if delete(c.selectors[key.Namespace], key.Name); len(c.selectors[key.Namespace]) == 0 {
			delete(c.selectors, key.Namespace)
		}
		return nil
	}
	defer c.setup.EnqueueAfter(key, c.settings.SyncPeriod)
	run := &autoscalerSync{controller: c, ctx: ctx, key: key, metrics: c.metrics, cached: cached, scaler: cached.DeepCopy(), now: time.Now(), history: c.historyOf(key), action: actionLabel(0, 0)}
	err := run.reconcile()
	c.measured.reconciled(run.action, err, time.Since(run.now))
	if err != nil {
		c.setup.Log.Debug("failed to scale", "autoscaler", key.String(), "error", err)
	}
	if apiequality.Semantic.DeepEqual(cached.Status, run.scaler.Status) {
		return nil
	}
	written, err := client.For[*autoscalingv2.HorizontalPodAutoscaler](c.setup.Client).UpdateStatus(ctx, run.scaler)
	if err != nil {
		if !apierrors.IsConflict(err) {
			run.recordEvent(corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		}
		return fmt.Errorf("update status: %w", err)
	}
	c.setup.RecordWrite(key, written)
	return nil
}

func (c *autoscaler) historyOf(key controller.Key) *scaleHistory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.histories[key] == nil {
		c.histories[key] = &scaleHistory{}
	}
	return c.histories[key]
}

// autoscalerSync is the state of one sync of an autoscaler.
type autoscalerSync struct {
	controller *autoscaler
	ctx        context.Context // of this sync
	key        controller.Key
	metrics    metricsClient
	cached     *autoscalingv2.HorizontalPodAutoscaler // the cached object, for events, which are recorded concurrently with the status update
	scaler     *autoscalingv2.HorizontalPodAutoscaler // a copy with the new status
	history    *scaleHistory
	now        time.Time

	pods     []*corev1.Pod
	selector labels.Selector
	action   string // what the sync has done to the target, for metrics
}

func (s *autoscalerSync) recordEvent(eventType, reason, message string) {
	s.controller.setup.Events.Event(s.cached, eventType, reason, message)
}

// setCondition sets a condition. The transition time changes with the status.
func (s *autoscalerSync) setCondition(t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string) {
	list := &s.scaler.Status.Conditions
	i := slices.IndexFunc(*list, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool { return c.Type == t })
	if i < 0 {
		i = len(*list)
		*list = append(*list, autoscalingv2.HorizontalPodAutoscalerCondition{Type: t})
	}
	c := &(*list)[i]
	if c.Status != status {
		c.LastTransitionTime = metav1.NewTime(s.now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
}

func (s *autoscalerSync) isConditionTrue(t autoscalingv2.HorizontalPodAutoscalerConditionType) bool {
	return slices.ContainsFunc(s.scaler.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

func (s *autoscalerSync) reconcile() error {
	target, scale, err := s.scale()
	if err != nil {
		s.recordEvent(corev1.EventTypeWarning, "FailedGetScale", err.Error())
		s.setCondition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
		return err
	}
	s.setCondition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := scale.Spec.Replicas
	if len(s.history.recommendations) == 0 {
		s.history.recommendations = []recommendation{{current, s.now}}
	}
	d, err := s.decide(scale)
	if err != nil && d == nil {
		s.setStatus(current, s.scaler.Status.DesiredReplicas, s.scaler.Status.CurrentMetrics, false)
		return err
	}
	if d.replicas == current || d.disabled {
		s.setStatus(current, current, d.metrics, false)
		return err
	}
	if rescaleErr := s.rescale(target, scale, d); rescaleErr != nil {
		s.setStatus(current, s.scaler.Status.DesiredReplicas, d.metrics, false)
		return rescaleErr
	}
	s.action = actionLabel(current, d.replicas)
	s.setStatus(current, d.replicas, d.metrics, true)
	return err
}

// scale reads the scale of the target.
func (s *autoscalerSync) scale() (scaleTarget, *autoscalingv1.Scale, error) {
	ref := s.scaler.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return scaleTarget{}, nil, specError{err}
	}
	t, err := s.controller.api.find(s.ctx, gv.WithKind(ref.Kind))
	if err != nil {
		return scaleTarget{}, nil, err
	}
	scale, err := s.controller.api.scale(s.ctx, t, s.scaler.Namespace, ref.Name)
	return t, scale, err
}

// decision is the desired number of replicas and the reason.
type decision struct {
	replicas int32
	reason   string
	metrics  []autoscalingv2.MetricStatus
	disabled bool
}

func (s *autoscalerSync) minReplicas() int32 { return ptr.Deref(s.scaler.Spec.MinReplicas, 1) }

// decide returns the desired replicas. It may return both a decision and an error, if only some metrics are available.
func (s *autoscalerSync) decide(scale *autoscalingv1.Scale) (*decision, error) {
	current, minReplicas, maxReplicas := scale.Spec.Replicas, s.minReplicas(), s.scaler.Spec.MaxReplicas
	scaledToZero := s.isConditionTrue(autoscalingv2.ScaledToZero) // this controller scaled it to zero
	switch {
	case current == 0 && !(scaledToZero && (minReplicas != 0 || s.hasMetricWithoutPods())):
		s.setCondition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
		return &decision{disabled: true}, nil
	case current > maxReplicas:
		return &decision{replicas: maxReplicas, reason: "Current number of replicas above Spec.MaxReplicas"}, nil
	case current != 0 && current < minReplicas:
		return &decision{replicas: minReplicas, reason: "Current number of replicas below Spec.MinReplicas"}, nil
	}
	proposed, metric, statuses, err := s.computeReplicas(scale)
	if err != nil && proposed < 0 {
		s.scaler.Status.CurrentMetrics = statuses
		s.recordEvent(corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
		return nil, err
	}
	d := &decision{metrics: statuses}
	switch {
	case proposed > current:
		d.reason = metric + " above target"
	case proposed < current:
		d.reason = "All metrics below target"
	}
	d.replicas = s.normalize(current, proposed)
	if current == 0 && scaledToZero && d.replicas < minReplicas {
		d.replicas = minReplicas
		if d.reason == "" {
			d.reason = "Current number of replicas below Spec.MinReplicas"
		}
	}
	return d, err
}

// hasMetricWithoutPods reports whether there is a metric that does not need pods.
func (s *autoscalerSync) hasMetricWithoutPods() bool {
	return slices.ContainsFunc(s.scaler.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// normalize applies stabilization windows and rate limits to the proposed replicas.
func (s *autoscalerSync) normalize(current, proposed int32) int32 {
	b := replicaBounds{min: s.minReplicas(), max: s.scaler.Spec.MaxReplicas}
	behavior, window := s.scaler.Spec.Behavior, s.controller.settings.DownscaleStabilization
	var stabilized, limited int32
	var reason, message string
	s.history.prune(max(maxStabilizationWindow, window), s.now)
	if behavior == nil {
		stabilized, reason, message = s.history.stabilize(proposed, window, s.now)
	} else {
		stabilized, reason, message = s.history.stabilizeBy(behavior, current, proposed, window, s.now)
	}
	s.history.recommendations = append(s.history.recommendations, recommendation{proposed, s.now})
	if stabilized == proposed {
		reason, message = "ReadyForNewScale", "recommended size matches current size"
	}
	s.setCondition(autoscalingv2.AbleToScale, corev1.ConditionTrue, reason, message)
	if behavior == nil {
		limited, reason, message = b.limit(current, stabilized)
	} else {
		limited, reason, message = b.limitBy(behavior, current, stabilized, s.history.scaleEvents, s.now)
	}
	status := corev1.ConditionTrue
	if limited == stabilized {
		status = corev1.ConditionFalse
	}
	s.setCondition(autoscalingv2.ScalingLimited, status, reason, message)
	return limited
}

// rescale updates the scale. On a conflict it retries with the live scale.
func (s *autoscalerSync) rescale(t scaleTarget, scale *autoscalingv1.Scale, d *decision) error {
	previous := scale.Spec.Replicas
	var err error
	for range 5 {
		scale.Spec.Replicas = d.replicas
		if err = s.controller.api.setScale(s.ctx, t, scale); !apierrors.IsConflict(err) {
			break
		}
		if live, readErr := s.controller.api.scale(s.ctx, t, s.scaler.Namespace, scale.Name); readErr == nil {
			scale = live
		}
	}
	if err != nil {
		s.recordEvent(corev1.EventTypeWarning, "FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", d.replicas, d.reason, err))
		s.setCondition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		return err
	}
	s.setCondition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", d.replicas))
	s.recordEvent(corev1.EventTypeNormal, "SuccessfulRescale", fmt.Sprintf("New size: %d; reason: %s", d.replicas, d.reason))
	if s.scaler.Spec.Behavior != nil {
		s.history.scaleEvents = append(s.history.scaleEvents, scaleEvent{d.replicas - previous, s.now})
	}
	if previous > 0 && d.replicas == 0 && s.minReplicas() == 0 && s.hasMetricWithoutPods() {
		s.setCondition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		s.setCondition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
	}
	return nil
}

// setStatus fills the status.
func (s *autoscalerSync) setStatus(current, desired int32, metrics []autoscalingv2.MetricStatus, rescaled bool) {
	status := &s.scaler.Status
	status.CurrentReplicas, status.DesiredReplicas, status.CurrentMetrics = current, desired, metrics
	status.ObservedGeneration = new(s.scaler.Generation)
	if rescaled {
		status.LastScaleTime = new(metav1.NewTime(s.now))
	}
}

// computeReplicas evaluates all metrics and takes the highest proposal. If some fail, it only scales up. It returns -1 if no
// proposal can be made.
func (s *autoscalerSync) computeReplicas(scale *autoscalingv1.Scale) (replicas int32, metric string, statuses []autoscalingv2.MetricStatus, err error) {
	if err := s.selectPods(scale.Status.Selector); err != nil {
		return -1, "", nil, err
	}
	specs := s.scaler.Spec.Metrics
	statuses = make([]autoscalingv2.MetricStatus, len(specs))
	failures := 0
	var first *metricError
	for i, spec := range specs {
		began := time.Now()
		proposal, err := s.computeForMetric(spec, scale, &statuses[i])
		if err != nil {
			s.controller.measured.computed(actionLabel(0, 0), err, spec.Type, time.Since(began))
			if failures++; first == nil {
				first = err
			}
			s.recordEvent(corev1.EventTypeWarning, err.reason, err.inner.Error())
			continue
		}
		s.controller.measured.computed(actionLabel(s.scaler.Status.CurrentReplicas, proposal.replicas), nil, spec.Type, time.Since(began))
		if replicas == 0 || proposal.replicas > replicas {
			replicas, metric = proposal.replicas, proposal.metric
		}
	}
	if first != nil {
		err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failures, len(specs), first)
	}
	if failures >= len(specs) || failures > 0 && replicas < scale.Spec.Replicas {
		if first != nil {
			s.setCondition(autoscalingv2.ScalingActive, corev1.ConditionFalse, first.reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.inner))
		}
		return -1, "", statuses, err
	}
	s.setCondition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+metric)
	return replicas, metric, statuses, err
}

// selectPods lists the pods of the target. It fails if another autoscaler selects one of them.
func (s *autoscalerSync) selectPods(selector string) error {
	fail := func(event, reason, message, text string) error {
		s.recordEvent(corev1.EventTypeWarning, event, message)
		s.setCondition(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, text)
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
	c := s.controller
	s.selector, s.pods = parsed, c.pods.List(s.scaler.Namespace, parsed)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.selectors[s.key.Namespace] == nil {
		c.selectors[s.key.Namespace] = map[string]labels.Selector{}
	}
	c.selectors[s.key.Namespace][s.key.Name] = parsed
	for name, otherSelector := range c.selectors[s.key.Namespace] {
		if name == s.key.Name {
			continue
		}
		other := controller.Key{Namespace: s.key.Namespace, Name: name}
		if slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool { return otherSelector.Matches(labels.Set(pod.Labels)) }) {
			message := fmt.Sprintf("pods by selector %s are controlled by more than one HPA (e.g. %v)", selector, []controller.Key{s.key, other})
			return fail("AmbiguousSelector", "AmbiguousSelector", message, message)
		}
	}
	return nil
}
