package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// RuntimeClass is a handler of the container runtime, with the overhead of its pods and the nodes that support it.
var RuntimeClass = kind.Of(kind.Definition[*nodev1.RuntimeClass]{
	GVK: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), Plural: "runtimeclasses",
	List:                    &nodev1.RuntimeClassList{},
	Validate:                validateRuntimeClass,
	Warn:                    func(class, _ *nodev1.RuntimeClass) []string { return warnRuntimeClass(class) },
	AllowCreateOnUpdate:     true,
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Handler", "string", ""), // the API has no description for it
		kind.AgeColumn(),
	},
	Row: func(class *nodev1.RuntimeClass, now time.Time) []any {
		return []any{class.Name, class.Handler, kind.Age(class.CreationTimestamp, now)}
	},
})

func validateRuntimeClass(_ *kind.Request, class, old *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	handler := field.NewPath("handler")
	if class.Handler == "" {
		errs = append(errs, field.Required(handler, ""))
	} else {
		// A change of the handler is refused below; the error about its name has upstream's older text.
		check := utilvalidation.IsDNS1123Label
		if old == nil {
			check = content.IsDNS1123Label
		}
		for _, message := range check(class.Handler) {
			errs = append(errs, field.Invalid(handler, class.Handler, message))
		}
	}
	if class.Overhead != nil {
		overhead := &corev1.ResourceRequirements{Limits: class.Overhead.PodFixed}
		errs = append(errs, podspec.ValidateContainerResources(overhead, field.NewPath("overhead"))...)
	}
	if class.Scheduling != nil {
		path := field.NewPath("scheduling")
		errs = append(errs, metav1validation.ValidateLabels(class.Scheduling.NodeSelector, path.Child("nodeSelector"))...)
		errs = append(errs, validateTolerations(class.Scheduling.Tolerations, path.Child("tolerations"))...)
	}
	if old != nil && class.Handler != old.Handler {
		errs = append(errs, field.Invalid(handler, nil, "field is immutable"))
	}
	return errs
}

// validateTolerations: each only once, whatever its tolerationSeconds.
func validateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	errs := podspec.ValidateTolerations(tolerations, path)
	seen := sets.New[corev1.Toleration]()
	for i, toleration := range tolerations {
		key := toleration
		key.TolerationSeconds = nil
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(path.Index(i), toleration))
		}
		seen.Insert(key)
	}
	return errs
}

func warnRuntimeClass(class *nodev1.RuntimeClass) []string {
	if class.Scheduling == nil {
		return nil
	}
	var warnings []string
	for _, label := range slices.Sorted(maps.Keys(class.Scheduling.NodeSelector)) {
		if advice, deprecated := podspec.DeprecatedNodeLabels[label]; deprecated {
			warnings = append(warnings, fmt.Sprintf("scheduling.nodeSelector: %s", advice))
		}
	}
	return warnings
}
