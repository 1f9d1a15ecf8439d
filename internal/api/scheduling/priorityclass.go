package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/podstate"
)

const (
	// HighestUserPriority is the highest priority of a user-defined class; higher ones are for system pods.
	HighestUserPriority = 1_000_000_000

	// SystemPrefix is the name prefix of system classes.
	SystemPrefix = "system-"
	// SystemNodeCritical is the class of pods that are critical for their node.
	SystemNodeCritical = SystemPrefix + "node-critical"
	// SystemClusterCritical is the class of pods that are critical for the cluster.
	SystemClusterCritical = SystemPrefix + "cluster-critical"
)

var classDoc = schedulingv1.PriorityClass{}.SwaggerDoc()

// PriorityClass maps a name to a priority.
var PriorityClass = kind.Of(kind.Definition[*schedulingv1.PriorityClass]{
	GVK: schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"), Plural: "priorityclasses", Short: []string{"pc"},
	List: &schedulingv1.PriorityClassList{},
	Default: func(class *schedulingv1.PriorityClass) {
		if class.PreemptionPolicy == nil {
			class.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
		}
	},
	Validate: validatePriorityClass,
	// The generation is always 1.
	SpecChanged: func(_, _ *schedulingv1.PriorityClass) bool { return false },
	CheckDelete: func(_ context.Context, _ kind.Client, class *schedulingv1.PriorityClass) error {
		if class.Name == SystemNodeCritical || class.Name == SystemClusterCritical {
			return apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), class.Name,
				errors.New("this is a system priority class and cannot be deleted"))
		}
		return nil
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Value", "integer", classDoc["value"]),
		kind.Column("Global-Default", "boolean", classDoc["globalDefault"]),
		kind.AgeColumn(),
		kind.Column("PreemptionPolicy", "string", classDoc["preemptionPolicy"]),
	},
	Row: func(class *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{
			class.Name, int64(class.Value), class.GlobalDefault, kind.Age(class.CreationTimestamp, now),
			string(ptr.Deref(class.PreemptionPolicy, "")),
		}
	},
})

// SystemPriorityClasses are the classes that must exist before system pods can be created.
func SystemPriorityClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: SystemNodeCritical},
			Value:       podstate.SystemCriticalPriority + 1000,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		{
			ObjectMeta:  metav1.ObjectMeta{Name: SystemClusterCritical},
			Value:       podstate.SystemCriticalPriority,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
	}
}

func validatePriorityClass(_ *kind.Request, class, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if old != nil {
		if class.Value != old.Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}
		return append(errs, validation.ValidateImmutableField(class.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
	}
	if strings.HasPrefix(class.Name, SystemPrefix) {
		if err := checkSystemClass(class); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with '"+SystemPrefix+"' prefix are reserved for system use only. error: "+err.Error()))
		}
	} else if class.Value > HighestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %v", HighestUserPriority)))
	}
	if policy := class.PreemptionPolicy; policy != nil {
		path := field.NewPath("preemptionPolicy")
		switch *policy {
		case corev1.PreemptLowerPriority, corev1.PreemptNever:
		case "":
			errs = append(errs, field.Required(path, ""))
		default:
			errs = append(errs, field.NotSupported(path, policy, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever}))
		}
	}
	return errs
}

// checkSystemClass refuses a class with the name of a system class that is not that class.
func checkSystemClass(class *schedulingv1.PriorityClass) error {
	for _, system := range SystemPriorityClasses() {
		switch {
		case system.Name != class.Name:
		case system.Value != class.Value:
			return fmt.Errorf("value of %v PriorityClass must be %v", system.Name, system.Value)
		case system.GlobalDefault != class.GlobalDefault:
			return fmt.Errorf("globalDefault of %v PriorityClass must be %v", system.Name, system.GlobalDefault)
		default:
			return nil
		}
	}
	return fmt.Errorf("%v is not a known system priority class", class.Name)
}
