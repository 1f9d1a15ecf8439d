package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

const longestQualifiedName = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

// validateDNSLabel validates the names of requests, devices and counters.
func validateDNSLabel(name string, path *field.Path) field.ErrorList {
	return kind.Invalid(path, name, utilvalidation.IsDNS1123Label(name))
}

func validateLabelValue(value string, path *field.Path) field.ErrorList {
	return kind.Invalid(path, value, utilvalidation.IsValidLabelValue(value))
}

func validateNodeName(name string, path *field.Path) field.ErrorList {
	return kind.Invalid(path, name, validation.NameIsDNSSubdomain(name, false))
}

func validateClassName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return kind.Invalid(path, name, utilvalidation.IsDNS1123Subdomain(name))
}

func validateDriverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DriverNameMaxLength))
	}
	return append(errs, kind.Invalid(path, name, utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func validatePoolName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for _, part := range strings.Split(name, "/") {
		errs = append(errs, kind.Invalid(path, part, utilvalidation.IsDNS1123Subdomain(part))...)
	}
	return errs
}

// validateQualifiedName validates names of attributes and capacities: a C identifier, after the domain of its owner unless
// that is the driver identity.
func validateQualifiedName(name string, path *field.Path) field.ErrorList {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		return validateIdentifier(name, path)
	case 2:
		var errs field.ErrorList
		if parts[0] == "" {
			errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
		} else {
			errs = append(errs, validateDriverName(parts[0], path)...)
		}
		if parts[1] == "" {
			return append(errs, field.Invalid(path, "", "the name must not be empty"))
		}
		return append(errs, validateIdentifier(parts[1], path)...)
	}
	return nil
}

func validateIdentifier(name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(name) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, kind.Invalid(path, name, content.IsCIdentifier(name))...)
}

func validateFullyQualifiedName(name *resourcev1.FullyQualifiedName, path *field.Path) field.ErrorList {
	return validate.ResourceFullyQualifiedName(context.Background(), operation.Operation{}, path, name, nil)
}

// validateDriverReference and validatePoolReference validate references to a driver and a pool. They accept the same names
// as validateDriverName and validatePoolName, with the error texts of upstream's generated validation.
func validateDriverReference(name *string, path *field.Path) field.ErrorList {
	ctx, op := context.Background(), operation.Operation{}
	if *name == "" {
		return validate.RequiredValue(ctx, op, path, name, nil)
	}
	return append(validate.LongNameCaseless(ctx, op, path, name, nil), validate.MaxLength(ctx, op, path, name, nil, resourcev1.DriverNameMaxLength)...)
}

func validatePoolReference(name *string, path *field.Path) field.ErrorList {
	ctx, op := context.Background(), operation.Operation{}
	if *name == "" {
		return validate.RequiredValue(ctx, op, path, name, nil)
	}
	return validate.ResourcePoolName(ctx, op, path, name, nil)
}

func validateUUID[T ~string](id *T, path *field.Path) field.ErrorList {
	return validate.UUID(context.Background(), operation.Operation{}, path, id, nil)
}

// validateObject requires a JSON object of limited size. A stored one may be larger than today's limit.
func validateObject(data *runtime.RawExtension, stored bool, max int, path *field.Path) field.ErrorList {
	if len(data.Raw) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if !stored && len(data.Raw) > max {
		return field.ErrorList{field.TooLong(path, "", max)}
	}
	var value any
	if err := json.Unmarshal(data.Raw, &value); err != nil {
		return field.ErrorList{field.Invalid(path, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if value == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	if _, ok := value.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(path, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}
