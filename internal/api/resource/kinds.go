// Package resource has the kinds of resource.k8s.io, dynamic resource allocation: drivers publish devices in slices and
// taint them, administrators describe device classes, and pods request devices with claims, whose status has the
// allocation.
//
// Fields of alpha features are dropped from what clients send, unless the stored object has them.
package resource

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice}
}

// Lists of this group have limits. A longer list is not validated any further, so that no client can keep the server busy
// with it.

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

func identity(s *string) string { return *s }

// keyValidation validates the keys of a map. Errors shorten keys that exceed maxLength.
type keyValidation struct {
	maxLength int
	validate  func(string, *field.Path) field.ErrorList
}

// validateMap validates keys at the path of the map, because they are not fields, and values at their own path.
func validateMap[K ~string, T any](m map[K]T, max int, key keyValidation, validate func(*T, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	if max != unbounded && len(m) > max {
		return field.ErrorList{field.TooMany(path, len(m), max)}
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(m)) {
		errs = append(errs, key.validate(string(name), path)...)
		if validate != nil {
			value := m[name]
			errs = append(errs, validate(&value, path.Key(shortened(string(name), key.maxLength)))...)
		}
	}
	return errs
}

// shortened keeps the start and the end of a key that exceeds the limit.
func shortened(key string, max int) string {
	if len(key) <= max {
		return key
	}
	keep := max - len("...")
	return key[:(keep+1)/2] + "..." + key[len(key)-keep/2:]
}
