package webhook

import (
	"errors"
	"fmt"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkIdentity checks that a converted object is still the same object.
func checkIdentity(original, converted *unstructured.Unstructured) error {
	for _, property := range []struct{ name, before, after string }{
		{"name", original.GetName(), converted.GetName()},
		{"namespace", original.GetNamespace(), converted.GetNamespace()},
		{"UID", string(original.GetUID()), string(converted.GetUID())},
	} {
		if property.before != property.after {
			return fmt.Errorf("must have the same %s: %v != %v", property.name, property.before, property.after)
		}
	}
	return nil
}

// restoreMetadata replaces the metadata of a converted object with the original's, except for labels and annotations, which are checked if
// they have changed.
func restoreMetadata(original, converted *unstructured.Unstructured) error {
	returned, found := converted.Object["metadata"]
	if !found {
		return errors.New("missing metadata in converted object")
	}
	after, ok := returned.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", returned)
	}
	metadata := map[string]any{}
	if before, found := original.Object["metadata"]; found {
		if metadata, ok = runtime.DeepCopyJSONValue(before).(map[string]any); !ok {
			return fmt.Errorf("invalid metadata of type %T in input object", before)
		}
	}
	for _, name := range []string{"labels", "annotations"} {
		value, found := after[name]
		if !found || value == nil {
			delete(metadata, name)
			continue
		}
		texts, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, value)
		}
		before, ok := metadata[name].(map[string]any)
		if !ok && metadata[name] != nil {
			return fmt.Errorf("invalid metadata.%s of type %T in original object", name, metadata[name])
		}
		if err := validateTexts(name, texts, before); err != nil {
			return err
		}
		metadata[name] = texts
	}
	converted.Object["metadata"] = metadata
	return nil
}

// validateTexts validates labels or annotations that differ from those before the conversion.
func validateTexts(name string, texts, before map[string]any) error {
	typed, changed := make(map[string]string, len(texts)), len(texts) != len(before)
	for key, value := range texts {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, key, value)
		}
		typed[key] = text
		changed = changed || before[key] != value
	}
	if !changed {
		return nil
	}
	if name == "labels" {
		return metav1validation.ValidateLabels(typed, field.NewPath("metadata", "labels")).ToAggregate()
	}
	return apivalidation.ValidateAnnotations(typed, field.NewPath("metadata", "annotation")).ToAggregate()
}
