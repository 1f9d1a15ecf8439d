package storage

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// The annotations that mark the default class.
const (
	DefaultClassAnnotation     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClassAnnotation = "storageclass.beta.kubernetes.io/is-default-class"
)

var classDoc = storagev1.StorageClass{}.SwaggerDoc()

// StorageClass is a way to provision volumes.
var StorageClass = kind.Of(kind.Definition[*storagev1.StorageClass]{
	GVK: storagev1.SchemeGroupVersion.WithKind("StorageClass"), Plural: "storageclasses", Short: []string{"sc"},
	List: &storagev1.StorageClassList{},
	Default: func(class *storagev1.StorageClass) {
		kind.SetDefault(&class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
		kind.SetDefault(&class.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	},
	Validate: validateStorageClass,
	Warn:     func(class, _ *storagev1.StorageClass) []string { return warnTopologies(class.AllowedTopologies) },
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Provisioner", "string", classDoc["provisioner"]),
		kind.Column("ReclaimPolicy", "string", classDoc["reclaimPolicy"]),
		kind.Column("VolumeBindingMode", "string", classDoc["volumeBindingMode"]),
		kind.Column("AllowVolumeExpansion", "string", classDoc["allowVolumeExpansion"]),
		kind.AgeColumn(),
	},
	Row: func(class *storagev1.StorageClass, now time.Time) []any {
		return []any{
			class.Name, class.Provisioner,
			string(ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
			string(ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
			ptr.Deref(class.AllowVolumeExpansion, false), kind.Age(class.CreationTimestamp, now),
		}
	},
	ListRows: func(classes []*storagev1.StorageClass, rows [][]any) {
		if i := defaultClass(classes); i >= 0 {
			rows[i][0] = classes[i].Name + " (default)"
		}
	},
})

// IsDefaultClass reports whether a class is marked as the default one.
func IsDefaultClass(class *storagev1.StorageClass) bool {
	return class.Annotations[DefaultClassAnnotation] == "true" || class.Annotations[betaDefaultClassAnnotation] == "true"
}

// defaultClass is the index of the effective default if several classes are marked: the newest, then the first by name;
// -1 when none is marked.
func defaultClass(classes []*storagev1.StorageClass) int {
	best := -1
	for i, class := range classes {
		if !IsDefaultClass(class) {
			continue
		}
		if best < 0 || class.CreationTimestamp.After(classes[best].CreationTimestamp.Time) ||
			class.CreationTimestamp.Equal(&classes[best].CreationTimestamp) && class.Name < classes[best].Name {
			best = i
		}
	}
	return best
}

func validateStorageClass(_ *kind.Request, class, old *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(class.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(class.Parameters, field.NewPath("parameters"))...)
	// An empty policy is treated as absent.
	if policy := ptr.Deref(class.ReclaimPolicy, ""); policy != "" &&
		policy != corev1.PersistentVolumeReclaimDelete && policy != corev1.PersistentVolumeReclaimRetain {
		errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), class.ReclaimPolicy,
			[]corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}))
	}
	switch mode := class.VolumeBindingMode; {
	case mode == nil:
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	case *mode != storagev1.VolumeBindingImmediate && *mode != storagev1.VolumeBindingWaitForFirstConsumer:
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), mode,
			[]storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}))
	}
	errs = append(errs, validateTopologies(class.AllowedTopologies, field.NewPath("allowedTopologies"))...)
	if old != nil {
		errs = append(errs, immutable(class.Provisioner != old.Provisioner, field.NewPath("provisioner"))...)
		errs = append(errs, immutable(!equality.Semantic.DeepEqual(class.Parameters, old.Parameters), field.NewPath("parameters"))...)
		errs = append(errs, immutable(!ptr.Equal(class.ReclaimPolicy, old.ReclaimPolicy), field.NewPath("reclaimPolicy"))...)
		errs = append(errs, immutable(!ptr.Equal(class.VolumeBindingMode, old.VolumeBindingMode), field.NewPath("volumeBindingMode"))...)
	}
	return errs
}

// validateTopologies validates where volumes of the class may be provisioned: no duplicate terms, and no duplicate keys in
// a term.
func validateTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New(termContent(nil)) // an empty term is refused as a duplicate
	for i, term := range terms {
		fldPath := path.Index(i).Child("matchLabelExpressions")
		values := map[string]sets.Set[string]{}
		for j, requirement := range term.MatchLabelExpressions {
			errs = append(errs, validateTopologyRequirement(requirement, fldPath.Index(j))...)
			if _, exists := values[requirement.Key]; exists {
				errs = append(errs, field.Duplicate(fldPath.Index(j).Child("key"), requirement.Key))
			}
			values[requirement.Key] = sets.New(requirement.Values...)
		}
		content := termContent(values)
		if seen.Has(content) {
			errs = append(errs, field.Duplicate(fldPath, ""))
		}
		seen.Insert(content)
	}
	return errs
}

// termContent is a text that is equal for equal terms.
func termContent(values map[string]sets.Set[string]) string {
	var content []byte
	for _, key := range slices.Sorted(maps.Keys(values)) {
		content = append(strconv.AppendQuote(content, key), ':')
		for _, value := range sets.List(values[key]) {
			content = append(strconv.AppendQuote(content, value), ',')
		}
	}
	return string(content)
}

func validateTopologyRequirement(requirement corev1.TopologySelectorLabelRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(requirement.Values) == 0 {
		errs = append(errs, field.Required(path.Child("values"), ""))
	}
	seen := sets.New[string]()
	for i, value := range requirement.Values {
		if seen.Has(value) {
			errs = append(errs, field.Duplicate(path.Child("values").Index(i), value))
		}
		seen.Insert(value)
	}
	return append(errs, metav1validation.ValidateLabelName(requirement.Key, path.Child("key"))...)
}

func warnTopologies(terms []corev1.TopologySelectorTerm) []string {
	var warnings []string
	for i, term := range terms {
		for j, requirement := range term.MatchLabelExpressions {
			if advice, deprecated := podspec.DeprecatedNodeLabels[requirement.Key]; deprecated {
				fldPath := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key")
				warnings = append(warnings, fmt.Sprintf("%s: %s", fldPath, advice))
			}
		}
	}
	return warnings
}
