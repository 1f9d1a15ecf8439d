package storage

import (
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

var driverDoc = storagev1.CSIDriverSpec{}.SwaggerDoc()

// CSIDriver describes how the cluster must treat a CSI driver.
var CSIDriver = kind.Of(kind.Definition[*storagev1.CSIDriver]{
	GVK: storagev1.SchemeGroupVersion.WithKind("CSIDriver"), Plural: "csidrivers",
	List:    &storagev1.CSIDriverList{},
	Default: defaultCSIDriver,
	Prepare: func(_ *kind.Request, driver, old *storagev1.CSIDriver) {
		// Generation starts at zero and counts changes of the spec.
		if old == nil {
			driver.Generation = 0
		}
	},
	Validate: validateCSIDriver,
	Warn:     warnCSIDriver,
	SpecChanged: func(driver, old *storagev1.CSIDriver) bool {
		return !equality.Semantic.DeepEqual(driver.Spec, old.Spec)
	},
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("AttachRequired", "boolean", driverDoc["attachRequired"]),
		kind.Column("PodInfoOnMount", "boolean", driverDoc["podInfoOnMount"]),
		kind.Column("StorageCapacity", "boolean", driverDoc["storageCapacity"]),
		kind.Column("TokenRequests", "string", driverDoc["tokenRequests"]),
		kind.Column("RequiresRepublish", "boolean", driverDoc["requiresRepublish"]),
		kind.Column("Modes", "string", driverDoc["volumeLifecycleModes"]),
		kind.AgeColumn(),
	},
	Row: rowOfCSIDriver,
})

func defaultCSIDriver(driver *storagev1.CSIDriver) {
	spec := &driver.Spec
	kind.SetDefault(&spec.AttachRequired, true)
	kind.SetDefault(&spec.PodInfoOnMount, false)
	kind.SetDefault(&spec.StorageCapacity, false)
	kind.SetDefault(&spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	kind.SetDefault(&spec.RequiresRepublish, false)
	kind.SetDefault(&spec.SELinuxMount, false)
	kind.SetDefault(&spec.PreventPodSchedulingIfMissing, false)
}

func validateCSIDriver(_ *kind.Request, driver, old *storagev1.CSIDriver) field.ErrorList {
	spec, path := &driver.Spec, field.NewPath("spec")
	var errs field.ErrorList
	for _, flag := range []struct {
		field string
		value *bool
	}{
		{"attachedRequired", spec.AttachRequired}, // the misspelling is upstream's
		{"podInfoOnMount", spec.PodInfoOnMount},
		{"storageCapacity", spec.StorageCapacity},
		{"seLinuxMount", spec.SELinuxMount},
		{"preventPodSchedulingIfMissing", spec.PreventPodSchedulingIfMissing},
	} {
		if flag.value == nil {
			errs = append(errs, field.Required(path.Child(flag.field), ""))
		}
	}
	policies := sets.New(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)
	if spec.FSGroupPolicy != nil && !policies.Has(*spec.FSGroupPolicy) {
		errs = append(errs, field.NotSupported(path.Child("fsGroupPolicy"), spec.FSGroupPolicy, sets.List(policies)))
	}
	errs = append(errs, validateTokenRequests(spec.TokenRequests, path.Child("tokenRequests"))...)
	for _, mode := range spec.VolumeLifecycleModes {
		if mode != storagev1.VolumeLifecyclePersistent && mode != storagev1.VolumeLifecycleEphemeral {
			errs = append(errs, field.NotSupported(path.Child("volumeLifecycleModes"), mode,
				[]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}))
		}
	}
	if period := spec.NodeAllocatableUpdatePeriodSeconds; period != nil && *period < 10 {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *period, "must be greater than or equal to 10 seconds"))
	}
	if spec.ServiceAccountTokenInSecrets != nil && len(spec.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), spec.ServiceAccountTokenInSecrets,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(spec.AttachRequired, old.Spec.AttachRequired, path.Child("attachedRequired"))...)
		errs = append(errs, validation.ValidateImmutableField(spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, path.Child("volumeLifecycleModes"))...)
	}
	return errs
}

// validateTokenRequests: each audience once, with a minimum lifetime.
func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	audiences := sets.New[string]()
	for i, request := range requests {
		if audiences.Has(request.Audience) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("audience"), request.Audience))
			continue
		}
		audiences.Insert(request.Audience)
		if request.ExpirationSeconds == nil {
			continue
		}
		at, seconds := path.Index(i).Child("expirationSeconds"), *request.ExpirationSeconds
		if seconds < 600 {
			errs = append(errs, field.Invalid(at, seconds, "may not specify a duration less than 10 minutes"))
		}
		if seconds > 1<<32 {
			errs = append(errs, field.Invalid(at, seconds, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}

func warnCSIDriver(driver, old *storagev1.CSIDriver) []string {
	unchanged := old != nil && equality.Semantic.DeepEqual(driver.Spec.TokenRequests, old.Spec.TokenRequests)
	if unchanged || len(driver.Spec.TokenRequests) == 0 || driver.Spec.ServiceAccountTokenInSecrets != nil {
		return nil
	}
	return []string{"spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"}
}

func rowOfCSIDriver(driver *storagev1.CSIDriver, now time.Time) []any {
	spec := &driver.Spec
	tokens := "<unset>"
	if spec.TokenRequests != nil {
		audiences := make([]string, len(spec.TokenRequests))
		for i, request := range spec.TokenRequests {
			audiences[i] = request.Audience
		}
		tokens = strings.Join(audiences, ",")
	}
	modes := make([]string, len(spec.VolumeLifecycleModes))
	for i, mode := range spec.VolumeLifecycleModes {
		modes[i] = string(mode)
	}
	joined := strings.Join(modes, ",")
	if joined == "" {
		joined = "<none>"
	}
	return []any{
		driver.Name, ptr.Deref(spec.AttachRequired, true), ptr.Deref(spec.PodInfoOnMount, false), ptr.Deref(spec.StorageCapacity, false),
		tokens, ptr.Deref(spec.RequiresRepublish, false), joined, kind.Age(driver.CreationTimestamp, now),
	}
}
