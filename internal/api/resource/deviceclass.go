package resource

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// DeviceClass describes a class of devices, so that claims can refer to it.
var DeviceClass = kind.Of(kind.Definition[*resourcev1.DeviceClass]{
	GVK: resourcev1.SchemeGroupVersion.WithKind("DeviceClass"), Plural: "deviceclasses",
	List:     &resourcev1.DeviceClassList{},
	Validate: validateDeviceClass,
	SpecChanged: func(class, old *resourcev1.DeviceClass) bool {
		return !equality.Semantic.DeepEqual(class.Spec, old.Spec)
	},
	Columns: []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
	Row: func(class *resourcev1.DeviceClass, now time.Time) []any {
		return []any{class.Name, kind.Age(class.CreationTimestamp, now)}
	},
})

func validateDeviceClass(_ *kind.Request, class, old *resourcev1.DeviceClass) field.ErrorList {
	path, spec := field.NewPath("spec"), &class.Spec
	sameSelectors := old != nil && equality.Semantic.DeepEqual(spec.Selectors, old.Spec.Selectors)
	sameConfig := old != nil && equality.Semantic.DeepEqual(spec.Config, old.Spec.Config)
	errs := validateSelectors(spec.Selectors, sameSelectors, path.Child("selectors"))
	errs = append(errs, validateSlice(spec.Config, resourcev1.DeviceConfigMaxSize, func(config *resourcev1.DeviceClassConfiguration, path *field.Path) field.ErrorList {
		return validateConfiguration(&config.DeviceConfiguration, sameConfig, path)
	}, path.Child("config"))...)
	if spec.ExtendedResourceName != nil {
		errs = append(errs, validate.ExtendedResourceName(context.Background(), operation.Operation{}, path.Child("extendedResourceName"), spec.ExtendedResourceName, nil)...)
	}
	return errs
}
