package resource

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// DeviceTaintRule is an administrator's taint on devices, in addition to those that drivers set.
var DeviceTaintRule = kind.Of(kind.Definition[*resourcev1.DeviceTaintRule]{
	GVK: resourcev1.SchemeGroupVersion.WithKind("DeviceTaintRule"), StorageVersion: "v1beta2", Plural: "devicetaintrules",
	List: &resourcev1.DeviceTaintRuleList{},
	Prepare: func(req *kind.Request, rule, old *resourcev1.DeviceTaintRule) {
		stamp(req, &rule.Spec.Taint)
		// A taint with another effect is a new taint, with its own timeAdded.
		if old != nil && rule.Spec.Taint.Effect != old.Spec.Taint.Effect && rule.Spec.Taint.TimeAdded.Equal(old.Spec.Taint.TimeAdded) {
			rule.Spec.Taint.TimeAdded = wholeSecond(req)
		}
	},
	Validate: func(_ *kind.Request, rule, old *resourcev1.DeviceTaintRule) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateTaintSelector(rule.Spec.DeviceSelector, path.Child("deviceSelector"))
		var stored *resourcev1.DeviceTaint
		if old != nil {
			stored = &old.Spec.Taint
		}
		return append(errs, validateTaint(&rule.Spec.Taint, stored, path.Child("taint"))...)
	},
	CopyStatus: func(to, from *resourcev1.DeviceTaintRule) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, rule, _ *resourcev1.DeviceTaintRule) field.ErrorList {
		path := field.NewPath("status", "conditions")
		errs := metavalidation.ValidateConditions(rule.Status.Conditions, path)
		if len(rule.Status.Conditions) > resourcev1.DeviceTaintRuleStatusMaxConditions {
			errs = append(errs, field.TooMany(path, len(rule.Status.Conditions), resourcev1.DeviceTaintRuleStatusMaxConditions))
		}
		return errs
	},
	StatusOnly: true,
	SpecChanged: func(rule, old *resourcev1.DeviceTaintRule) bool {
		return !equality.Semantic.DeepEqual(rule.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Key", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["key"]),
		kind.Column("Value", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["value"]),
		kind.Column("Effect", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["effect"]),
		kind.Column("TimeAdded", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["timeAdded"]),
		kind.AgeColumn(),
	},
	Row: func(rule *resourcev1.DeviceTaintRule, now time.Time) []any {
		taint, added := &rule.Spec.Taint, ""
		if taint.TimeAdded != nil {
			added = kind.Age(*taint.TimeAdded, now)
		}
		return []any{rule.Name, taint.Key, taint.Value, string(taint.Effect), added, kind.Age(rule.CreationTimestamp, now)}
	},
})

func validateTaintSelector(selector *resourcev1.DeviceTaintSelector, path *field.Path) field.ErrorList {
	if selector == nil {
		return nil
	}
	var errs field.ErrorList
	if selector.Driver != nil {
		errs = append(errs, validateDriverName(*selector.Driver, path.Child("driver"))...)
	}
	if selector.Pool != nil {
		errs = append(errs, validatePoolName(*selector.Pool, path.Child("pool"))...)
	}
	if selector.Device != nil {
		errs = append(errs, validateDNSLabel(*selector.Device, path.Child("device"))...)
	}
	return errs
}
