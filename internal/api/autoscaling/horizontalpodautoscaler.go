package autoscaling

import (
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// defaultCPUUtilization is the target of an autoscaler without metrics, in percent of the pods' requests.
const defaultCPUUtilization = 80

var specDoc = autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()

// HorizontalPodAutoscaler keeps metrics near their targets by changing a number of pods.
var HorizontalPodAutoscaler = kind.Of(kind.Definition[*autoscalingv2.HorizontalPodAutoscaler]{
	GVK:    autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	Plural: "horizontalpodautoscalers", Short: []string{"hpa"}, Categories: []string{"all"}, Namespaced: true,
	List: &autoscalingv2.HorizontalPodAutoscalerList{},
	Versions: []kind.Version{
		{GVK: autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler")},
		{
			GVK:     autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
			New:     func() kind.Object { return &autoscalingv1.HorizontalPodAutoscaler{} },
			NewList: func() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} },
			Default: func(obj kind.Object) {
				spec := &obj.(*autoscalingv1.HorizontalPodAutoscaler).Spec
				if spec.MinReplicas == nil {
					spec.MinReplicas = ptr.To[int32](1)
				}
			},
			ToStorageVersion: func(obj kind.Object) (kind.Object, error) {
				return fromV1(obj.(*autoscalingv1.HorizontalPodAutoscaler)), nil
			},
			FromStorageVersion: func(obj kind.Object) (kind.Object, error) {
				return toV1(obj.(*autoscalingv2.HorizontalPodAutoscaler))
			},
		},
	},
	Default: defaultAutoscaler,
	// The annotations are for v1 only; in v2 they would contradict the fields they represent.
	Prepare: func(_ *kind.Request, hpa, _ *autoscalingv2.HorizontalPodAutoscaler) {
		hpa.Annotations = withoutV1Annotations(hpa.Annotations)
	},
	Validate:       validateAutoscaler,
	CopyStatus:     func(to, from *autoscalingv2.HorizontalPodAutoscaler) { to.Status = from.Status },
	ValidateStatus: validateAutoscalerStatus,
	SpecChanged: func(hpa, old *autoscalingv2.HorizontalPodAutoscaler) bool {
		return !equality.Semantic.DeepEqual(hpa.Spec, old.Spec)
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Reference", "string", specDoc["scaleTargetRef"]),
		kind.Column("Targets", "string", specDoc["metrics"]),
		kind.Column("MinPods", "string", specDoc["minReplicas"]),
		kind.Column("MaxPods", "string", specDoc["maxReplicas"]),
		kind.Column("Replicas", "string", autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
		kind.AgeColumn(),
	},
	Row: rowOfAutoscaler,
})

func defaultAutoscaler(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	spec := &hpa.Spec
	if spec.MinReplicas == nil {
		spec.MinReplicas = ptr.To[int32](1)
	}
	if len(spec.Metrics) == 0 {
		spec.Metrics = []autoscalingv2.MetricSpec{cpuUtilization(defaultCPUUtilization)}
	}
	if spec.Behavior != nil {
		defaultRules(&spec.Behavior.ScaleUp, autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0),
			SelectPolicy:               ptr.To(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{
				{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
				{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
			},
		})
		// The stabilization window for scaling down has no default here: the controller chooses it.
		defaultRules(&spec.Behavior.ScaleDown, autoscalingv2.HPAScalingRules{
			SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
			Policies:     []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}},
		})
	}
}

// defaultRules sets the defaults of scaling rules.
func defaultRules(rules **autoscalingv2.HPAScalingRules, defaults autoscalingv2.HPAScalingRules) {
	if *rules == nil {
		*rules = &defaults
		return
	}
	r := *rules
	if r.StabilizationWindowSeconds == nil {
		r.StabilizationWindowSeconds = defaults.StabilizationWindowSeconds
	}
	if r.SelectPolicy == nil {
		r.SelectPolicy = defaults.SelectPolicy
	}
	if r.Policies == nil {
		r.Policies = defaults.Policies
	}
}

// cpuUtilization is the only metric for which v1 has a field.
func cpuUtilization(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
		},
	}
}

func validateAutoscalerStatus(_ *kind.Request, hpa, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	for i, condition := range hpa.Status.Conditions {
		if condition.ObservedGeneration != nil {
			fldPath := path.Child("conditions").Index(i).Child("observedGeneration")
			errs = append(errs, validation.ValidateNonnegativeField(*condition.ObservedGeneration, fldPath)...)
		}
	}
	errs = append(errs, validation.ValidateNonnegativeField(int64(hpa.Status.CurrentReplicas), path.Child("currentReplicas"))...)
	return append(errs, validation.ValidateNonnegativeField(int64(hpa.Status.DesiredReplicas), path.Child("desiredReplicas"))...)
}

func rowOfAutoscaler(hpa *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	minimum := "<unset>"
	if hpa.Spec.MinReplicas != nil {
		minimum = number(*hpa.Spec.MinReplicas)
	}
	target := hpa.Spec.ScaleTargetRef
	return []any{
		hpa.Name, target.Kind + "/" + target.Name, formatTargets(hpa.Spec.Metrics, hpa.Status.CurrentMetrics), minimum,
		int64(hpa.Spec.MaxReplicas), int64(hpa.Status.CurrentReplicas), kind.Age(hpa.CreationTimestamp, now),
	}
}
