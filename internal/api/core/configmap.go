package core

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

const frozen = "field is immutable when `immutable` is set"

var ConfigMap = kind.Of(kind.Definition[*corev1.ConfigMap]{
	GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Short: []string{"cm"}, Namespaced: true,
	List: &corev1.ConfigMapList{},

	Default: func(obj *corev1.ConfigMap) {
		if obj.Data == nil {
			obj.Data = map[string]string{}
		}
	},
	Validate: validateConfigMap,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]),
		kind.AgeColumn(),
	},
	Row: func(obj *corev1.ConfigMap, now time.Time) []any {
		return []any{obj.Name, int64(len(obj.Data) + len(obj.BinaryData)), kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateConfigMap(_ *kind.Request, obj, old *corev1.ConfigMap) (errs field.ErrorList) {
	if old != nil && old.Immutable != nil && *old.Immutable {
		if obj.Immutable == nil || !*obj.Immutable {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), frozen))
		}
		if !reflect.DeepEqual(obj.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), frozen))
		}
		if !reflect.DeepEqual(obj.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), frozen))
		}
	}
	size := 0
	for key, value := range obj.Data {
		path := field.NewPath("data").Key(key)
		errs = append(errs, kind.Invalid(path, key, validation.IsConfigMapKey(key))...)
		if _, twice := obj.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(path, key, "duplicate of key present in binaryData"))
		}
		size += len(value)
	}
	for key, value := range obj.BinaryData {
		errs = append(errs, kind.Invalid(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}
