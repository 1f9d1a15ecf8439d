// Package resource holds the rows of resource.k8s.io, by which pods get devices: drivers publish what devices there are
// in slices and mark them with taints, administrators describe classes of devices, and pods ask for devices with claims,
// whose status says which they got.
//
// Fields that belong to features still being tried out are removed from what clients send, unless the stored object has
// them already.
package resource

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the rows of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice}
}

// Lists of this group have bounds. One that is too long is not judged any further, so that nobody can keep the server
// busy with it.

const unbounded = -1

func validateSlice[T any](list []T, max int, validate func(*T, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	if max != unbounded && len(list) > max {
		return field.ErrorList{field.TooMany(path, len(list), max)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, validate(&list[i], path.Index(i))...)
	}
	return errs
}

// validateSet is validateSlice for items that differ in their keys.
func validateSet[T any, K comparable](list []T, max int, validate func(*T, *field.Path) field.ErrorList, key func(*T) K, path *field.Path) field.ErrorList {
	errs := validateSlice(list, max, validate, path)
	if max != unbounded && len(list) > max {
		return errs
	}
	return append(errs, validateUnique(list, key, path)...)
}

func validateUnique[T any, K comparable](list []T, key func(*T) K, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := make(map[K]bool, len(list))
	for i := range list {
		if k := key(&list[i]); seen[k] {
			errs = append(errs, field.Duplicate(path.Index(i), list[i]))
		} else {
			seen[k] = true
		}
	}
	return errs
}

func itself(s *string) string { return *s }

// validateMap judges keys at the path of the map, because they are not fields, and values at their own.
func validateMap[K ~string, T any](m map[K]T, max, longestKey int, validateKey func(string, *field.Path) field.ErrorList, validate func(*T, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	if max != unbounded && len(m) > max {
		return field.ErrorList{field.TooMany(path, len(m), max)}
	}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(m)) {
		errs = append(errs, validateKey(string(key), path)...)
		if validate != nil {
			value := m[key]
			errs = append(errs, validate(&value, path.Key(shortened(string(key), longestKey)))...)
		}
	}
	return errs
}

// shortened keeps the start and the end of a key that is too long to be valid.
func shortened(key string, max int) string {
	if len(key) <= max {
		return key
	}
	keep := max - len("...")
	return key[:(keep+1)/2] + "..." + key[len(key)-keep/2:]
}
