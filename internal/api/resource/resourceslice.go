package resource

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// ResourceSlice is a part of a driver's pool of devices.
var ResourceSlice = kind.Of(kind.Definition[*resourcev1.ResourceSlice]{
	GVK: resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"), Plural: "resourceslices",
	List: &resourcev1.ResourceSliceList{},
	Prepare: func(req *kind.Request, slice, old *resourcev1.ResourceSlice) {
		for i := range slice.Spec.Devices {
			taints := slice.Spec.Devices[i].Taints
			for j := range taints {
				stamp(req, &taints[j])
			}
		}
		dropAlphaFields(&slice.Spec, old)
	},
	Validate: func(_ *kind.Request, slice, old *resourcev1.ResourceSlice) field.ErrorList {
		if old == nil {
			return validateSliceSpec(&slice.Spec, nil, field.NewPath("spec"))
		}
		return validateSliceSpec(&slice.Spec, &old.Spec, field.NewPath("spec"))
	},
	Warn: func(slice, _ *resourcev1.ResourceSlice) []string {
		if driver := slice.Spec.Driver; driver != strings.ToLower(driver) {
			return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", driver)}
		}
		return nil
	},
	SpecChanged: func(slice, old *resourcev1.ResourceSlice) bool {
		return !equality.Semantic.DeepEqual(slice.Spec, old.Spec)
	},
	Fields: map[string]func(*resourcev1.ResourceSlice) string{
		resourcev1.ResourceSliceSelectorNodeName: func(slice *resourcev1.ResourceSlice) string { return ptr.Deref(slice.Spec.NodeName, "") },
		resourcev1.ResourceSliceSelectorDriver:   func(slice *resourcev1.ResourceSlice) string { return slice.Spec.Driver },
		resourcev1.ResourceSliceSelectorPoolName: func(slice *resourcev1.ResourceSlice) string { return slice.Spec.Pool.Name },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
		kind.Column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
		kind.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
		kind.AgeColumn(),
	},
	Row: func(slice *resourcev1.ResourceSlice, now time.Time) []any {
		return []any{slice.Name, ptr.Deref(slice.Spec.NodeName, ""), slice.Spec.Driver, slice.Spec.Pool.Name, kind.Age(slice.CreationTimestamp, now)}
	},
})

// usedFeatures are the alpha features, and features that make validation expensive, which a slice uses.
type usedFeatures struct {
	groups, allocatable, lists, taints, counters bool
}

func traitsOf(spec *resourcev1.ResourceSliceSpec) usedFeatures {
	var t usedFeatures
	for i := range spec.Devices {
		device := &spec.Devices[i]
		t.taints = t.taints || len(device.Taints) > 0
		t.counters = t.counters || len(device.ConsumesCounters) > 0
		t.allocatable = t.allocatable || len(device.NodeAllocatableResources) > 0
		for _, consumption := range device.ConsumesCounters {
			t.groups = t.groups || len(consumption.CompatibilityGroups) > 0
		}
		for _, attribute := range device.Attributes {
			t.lists = t.lists || attribute.BoolValues != nil || attribute.IntValues != nil || attribute.StringValues != nil || attribute.VersionValues != nil
		}
	}
	return t
}

// dropAlphaFields drops the fields of alpha features unless the stored slice has them.
func dropAlphaFields(spec *resourcev1.ResourceSliceSpec, stored *resourcev1.ResourceSlice) {
	var old resourcev1.ResourceSliceSpec
	if stored != nil {
		old = stored.Spec
	}
	if old.PartitionTypeAttribute == nil {
		spec.PartitionTypeAttribute = nil
	}
	if len(old.SkipNodeOperations) == 0 {
		spec.SkipNodeOperations = nil
	}
	keep := traitsOf(&old)
	for i := range spec.Devices {
		device := &spec.Devices[i]
		if !keep.allocatable {
			device.NodeAllocatableResources = nil
		}
		for j := range device.ConsumesCounters {
			if !keep.groups {
				device.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		for name, attribute := range device.Attributes {
			if !keep.lists {
				attribute.BoolValues, attribute.IntValues, attribute.StringValues, attribute.VersionValues = nil, nil, nil, nil
				device.Attributes[name] = attribute
			}
		}
	}
}

func validateSliceSpec(spec, old *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	errs := validateDriverName(spec.Driver, path.Child("driver"))
	errs = append(errs, validatePool(&spec.Pool, path.Child("pool"))...)
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(spec.Pool.Name, old.Pool.Name, path.Child("pool", "name"))...)
		errs = append(errs, validation.ValidateImmutableField(spec.Driver, old.Driver, path.Child("driver"))...)
		errs = append(errs, validation.ValidateImmutableField(spec.NodeName, old.NodeName, path.Child("nodeName"))...)
	}
	errs = append(errs, validateSliceNodes(spec, path)...)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	max := resourcev1.ResourceSliceMaxDevices
	if has := traitsOf(spec); has.taints || has.counters || has.lists {
		max = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	perDevice := ptr.Deref(spec.PerDeviceNodeSelection, false)
	errs = append(errs, validateSet(spec.Devices, max, func(device *resourcev1.Device, path *field.Path) field.ErrorList {
		return validateDevice(device, deviceNamed(old, device.Name), perDevice, path)
	}, func(device *resourcev1.Device) string { return device.Name }, path.Child("devices"))...)
	return append(errs, validateSet(spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, func(set *resourcev1.CounterSet, path *field.Path) field.ErrorList {
		return validateCounters(set.Name, set.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet, path.Child("name"), path.Child("counters"))
	}, func(set *resourcev1.CounterSet) string { return set.Name }, path.Child("sharedCounters"))...)
}

func deviceNamed(spec *resourcev1.ResourceSliceSpec, name string) *resourcev1.Device {
	if spec != nil {
		for i := range spec.Devices {
			if spec.Devices[i].Name == name {
				return &spec.Devices[i]
			}
		}
	}
	return nil
}

func validatePool(pool *resourcev1.ResourcePool, path *field.Path) field.ErrorList {
	errs := validatePoolName(pool.Name, path.Child("name"))
	if pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("resourceSliceCount"), pool.ResourceSliceCount, "must be greater than zero"))
	}
	if pool.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("generation"), pool.Generation, "must be greater than or equal to zero"))
	}
	return errs
}

// validateSliceNodes: a slice selects the nodes of its devices in exactly one way.
func validateSliceNodes(spec *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	errs, set := validateNodes(spec.NodeName, spec.NodeSelector, spec.AllNodes, "must be either unset or set to a non-empty string", path)
	if selector := spec.NodeSelector; selector != nil && len(selector.NodeSelectorTerms) != 1 {
		errs = append(errs, field.Invalid(path.Child("nodeSelector", "nodeSelectorTerms"), selector.NodeSelectorTerms, "must have exactly one node selector term"))
	}
	if perDevice := spec.PerDeviceNodeSelection; perDevice != nil {
		if *perDevice {
			set = append(set, "`perDeviceNodeSelection`")
		} else {
			errs = append(errs, field.Invalid(path.Child("perDeviceNodeSelection"), false, "must be either unset or set to true"))
		}
	}
	const rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch len(set) {
	case 0:
		errs = append(errs, field.Required(path, rule))
	case 1:
	default:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", rule+", but multiple fields are set"))
	}
	return errs
}

// validateNodes validates the three ways to select nodes and returns those that are set.
func validateNodes(name *string, selector *corev1.NodeSelector, all *bool, emptyRule string, path *field.Path) (errs field.ErrorList, set []string) {
	if name != nil {
		if *name == "" {
			errs = append(errs, field.Invalid(path.Child("nodeName"), "", emptyRule))
		} else {
			set = append(set, "`nodeName`")
			errs = append(errs, validateNodeName(*name, path.Child("nodeName"))...)
		}
	}
	if selector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(selector, false, path.Child("nodeSelector"))...)
	}
	if all != nil {
		if *all {
			set = append(set, "`allNodes`")
		} else {
			errs = append(errs, field.Invalid(path.Child("allNodes"), false, "must be either unset or set to true"))
		}
	}
	return errs, set
}
