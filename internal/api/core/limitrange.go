package core

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
	"skiff/internal/resourcename"
)

// LimitRange has no columns of its own: its table has name and creation time.
var LimitRange = kind.Of(kind.Definition[*corev1.LimitRange]{
	GVK: corev1.SchemeGroupVersion.WithKind("LimitRange"), Plural: "limitranges", Short: []string{"limits"}, Namespaced: true,
	List: &corev1.LimitRangeList{},

	Default: defaultLimitRange,
	Prepare: func(_ *kind.Request, obj, old *corev1.LimitRange) {
		if old == nil && obj.Name == "" {
			obj.Name = uuid.NewString()
		}
	},
	Validate:            validateLimitRange,
	AllowCreateOnUpdate: true,
})

// defaultLimitRange: the default limit is the maximum, and the default request is the default limit.
func defaultLimitRange(obj *corev1.LimitRange) {
	for i := range obj.Spec.Limits {
		item := &obj.Spec.Limits[i]
		if item.Type == corev1.LimitTypeContainer {
			if item.Default == nil {
				item.Default = corev1.ResourceList{}
			}
			if item.DefaultRequest == nil {
				item.DefaultRequest = corev1.ResourceList{}
			}
			setMissing(item.Default, item.Max)
			setMissing(item.DefaultRequest, item.Default)
			setMissing(item.DefaultRequest, item.Min)
		}
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio} {
			podspec.RoundUpToMilli(list)
		}
	}
}

func setMissing(to, from corev1.ResourceList) {
	for name, quantity := range from {
		if _, set := to[name]; !set {
			to[name] = quantity.DeepCopy()
		}
	}
}

var limitTypes = sets.New(corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim)

func validateLimitRange(_ *kind.Request, obj, _ *corev1.LimitRange) (errs field.ErrorList) {
	seen := sets.New[corev1.LimitType]()
	for i := range obj.Spec.Limits {
		item, idxPath := &obj.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(item.Type, idxPath.Child("type"))...)
		if seen.Has(item.Type) {
			errs = append(errs, field.Duplicate(idxPath.Child("type"), item.Type))
		}
		seen.Insert(item.Type)
		errs = append(errs, validateLimitItem(item, idxPath)...)
	}
	return errs
}

func validateLimitType(limit corev1.LimitType, path *field.Path) field.ErrorList {
	if errs := kind.Invalid(path, limit, validation.IsQualifiedName(string(limit))); len(errs) > 0 {
		return errs
	}
	if !strings.Contains(string(limit), "/") && !limitTypes.Has(limit) {
		return field.ErrorList{field.Invalid(path, limit, "must be a standard limit type or fully qualified")}
	}
	return nil
}

func validateLimitItem(item *corev1.LimitRangeItem, path *field.Path) (errs field.ErrorList) {
	names := sets.New[corev1.ResourceName]()
	validateNames := func(list corev1.ResourceList, child string) {
		for name := range list {
			names.Insert(name)
			idxPath := path.Child(child).Key(string(name))
			if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
				errs = append(errs, podspec.ValidateContainerResourceName(name, idxPath)...)
			} else {
				errs = append(errs, validateResourceName(name, idxPath)...)
			}
		}
	}
	validateNames(item.Max, "max")
	validateNames(item.Min, "min")
	limits := *item
	if item.Type == corev1.LimitTypePod {
		if len(item.Default) > 0 {
			errs = append(errs, field.Forbidden(path.Child("default"), "may not be specified when `type` is 'Pod'"))
		}
		if len(item.DefaultRequest) > 0 {
			errs = append(errs, field.Forbidden(path.Child("defaultRequest"), "may not be specified when `type` is 'Pod'"))
		}
		limits.Default, limits.DefaultRequest = nil, nil
	} else {
		validateNames(item.Default, "default")
		validateNames(item.DefaultRequest, "defaultRequest")
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, min := item.Min[corev1.ResourceStorage]
		_, max := item.Max[corev1.ResourceStorage]
		if !min && !max {
			errs = append(errs, field.Required(path.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	validateNames(item.MaxLimitRequestRatio, "maxLimitRequestRatio")
	for _, name := range sets.List(names) {
		errs = append(errs, validateLimitOrder(&limits, name, path)...)
	}
	return errs
}

// validateLimitOrder: min <= default request <= default limit <= max, and a ratio that min and max allow.
func validateLimitOrder(item *corev1.LimitRangeItem, name corev1.ResourceName, path *field.Path) (errs field.ErrorList) {
	min, hasMin := item.Min[name]
	max, hasMax := item.Max[name]
	limit, hasLimit := item.Default[name]
	request, hasRequest := item.DefaultRequest[name]
	ratio, hasRatio := item.MaxLimitRequestRatio[name]
	key := string(name)
	order := func(both bool, low, high resource.Quantity, child string, blamed resource.Quantity, lowName, highName string) {
		if both && low.Cmp(high) > 0 {
			errs = append(errs, field.Invalid(path.Child(child).Key(key), blamed,
				fmt.Sprintf("%s value %s is greater than %s value %s", lowName, low.String(), highName, high.String())))
		}
	}
	order(hasMin && hasMax, min, max, "min", min, "min", "max")
	order(hasRequest && hasMin, min, request, "defaultRequest", request, "min", "default request")
	order(hasRequest && hasMax, request, max, "defaultRequest", request, "default request", "max")
	order(hasRequest && hasLimit, request, limit, "defaultRequest", request, "default request", "default limit")
	order(hasLimit && hasMin, min, limit, "default", min, "min", "default")
	order(hasLimit && hasMax, limit, max, "default", max, "default", "max")

	ratioPath := path.Child("maxLimitRequestRatio").Key(key)
	if hasRatio && ratio.Cmp(resource.MustParse("1")) < 0 {
		errs = append(errs, field.Invalid(ratioPath, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	if hasRatio && hasMin && hasMax {
		if most := thousandths(max) / thousandths(min); thousandths(ratio)/1000 > most {
			errs = append(errs, field.Invalid(ratioPath, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), most)))
		}
	}
	overcommit := resourcename.IsNative(name) && !podspec.IsHugePages(name)
	if !overcommit && hasLimit && hasRequest && limit.Cmp(request) != 0 {
		errs = append(errs, field.Invalid(path.Child("defaultRequest").Key(key), request,
			fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(), request.String(), key)))
	}
	return errs
}

// thousandths keeps small fractions exact, so that 300m / 100m is three.
func thousandths(quantity resource.Quantity) float64 {
	if quantity.Value() < resource.MaxMilliValue {
		return float64(quantity.MilliValue())
	}
	return float64(quantity.Value()) * 1000
}
