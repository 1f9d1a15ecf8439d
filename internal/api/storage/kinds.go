// Package storage has the kinds of storage.k8s.io: storage classes, CSI drivers, the capacity and volume limits of nodes,
// and volume attachments.
package storage

import (
	"math"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the kinds of group storage.k8s.io.
func Kinds() []*kind.Kind {
	return []*kind.Kind{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass}
}

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10
)

// validateProvisioner validates the name of a provisioner.
func validateProvisioner(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return validateQualifiedName(strings.ToLower(name), path)
}

func validateQualifiedName(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

// validateParameters validates the parameters of a class: their content is opaque, their size is limited.
func validateParameters(parameters map[string]string, path *field.Path) field.ErrorList {
	if len(parameters) > maxParameters {
		return field.ErrorList{field.TooLong(path, "", maxParameters)}
	}
	var errs field.ErrorList
	size := 0
	for key, value := range parameters {
		if key == "" {
			errs = append(errs, field.Invalid(path, key, "field can not be empty."))
		}
		size += len(key) + len(value)
	}
	if size > maxParametersSize {
		errs = append(errs, field.TooLong(path, "", maxParametersSize))
	}
	return errs
}

const maxDriverName = 63

func validateErrorCode(code *int32, path *field.Path) field.ErrorList {
	if code != nil && *code < 0 {
		return field.ErrorList{field.Invalid(path, *code, validation.InclusiveRangeError(0, math.MaxInt32))}
	}
	return nil
}

// immutable refuses a change of a field. Upstream's errors for these fields do not contain the value.
func immutable(changed bool, path *field.Path) field.ErrorList {
	if !changed {
		return nil
	}
	return field.ErrorList{field.Invalid(path, nil, "field is immutable")}
}
