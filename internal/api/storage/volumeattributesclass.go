package storage

import (
	"maps"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// VolumeAttributesClass is a set of attributes that can be changed on an existing volume.
var VolumeAttributesClass = kind.Of(kind.Definition[*storagev1.VolumeAttributesClass]{
	GVK: storagev1.SchemeGroupVersion.WithKind("VolumeAttributesClass"), Plural: "volumeattributesclasses", Short: []string{"vac"},
	List:     &storagev1.VolumeAttributesClassList{},
	Validate: validateVolumeAttributesClass,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
		kind.AgeColumn(),
	},
	Row: func(class *storagev1.VolumeAttributesClass, now time.Time) []any {
		return []any{class.Name, class.DriverName, kind.Age(class.CreationTimestamp, now)}
	},
})

func validateVolumeAttributesClass(_ *kind.Request, class, old *storagev1.VolumeAttributesClass) field.ErrorList {
	driverName, parameters := field.NewPath("driverName"), field.NewPath("parameters")
	var errs field.ErrorList
	if old != nil {
		if class.DriverName != old.DriverName {
			errs = append(errs, field.Forbidden(driverName, "updates to driverName are forbidden."))
		}
		if !maps.Equal(class.Parameters, old.Parameters) {
			errs = append(errs, field.Forbidden(parameters, "updates to parameters are forbidden."))
		}
	}
	errs = append(errs, validateProvisioner(class.DriverName, driverName)...)
	errs = append(errs, validateParameters(class.Parameters, parameters)...)
	if len(class.Parameters) == 0 {
		errs = append(errs, field.Required(parameters, "must contain at least one key/value pair"))
	}
	return errs
}
