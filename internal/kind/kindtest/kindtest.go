// Package kindtest runs objects through a Kind as the server does, without a server: defaults, preparation, validation.
// Tests state the expected errors as short lines.
package kindtest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Create returns the object as it would be stored and its validation errors. obj itself is not changed.
func Create[T kind.Object](k *kind.Kind, req *kind.Request, obj T) (T, field.ErrorList) {
	created := defaulted(k, obj)
	if k.CopyStatus != nil && !k.StatusOnCreate {
		k.CopyStatus(created, k.New())
	}
	if k.Prepare != nil {
		k.Prepare(req, created, nil)
	}
	if k.Validate == nil {
		return created, nil
	}
	return created, k.Validate(req, created, nil)
}

// Update returns the object as it would be stored over old and the validation errors of the change.
func Update[T kind.Object](k *kind.Kind, req *kind.Request, obj, old T) (T, field.ErrorList) {
	updated, stored := defaulted(k, obj), defaulted(k, old)
	if k.CopyStatus != nil {
		k.CopyStatus(updated, stored)
	}
	if k.Prepare != nil {
		k.Prepare(req, updated, stored)
	}
	if k.Validate == nil {
		return updated, nil
	}
	return updated, k.Validate(req, updated, stored)
}

// UpdateSubresource is Update through a subresource such as status.
func UpdateSubresource[T kind.Object](k *kind.Kind, subresource string, req *kind.Request, obj, old T) (T, field.ErrorList) {
	for _, s := range k.Subresources {
		if s.Name != subresource || s.Update == nil {
			continue
		}
		updated, stored := defaulted(k, obj), defaulted(k, old)
		s.Update.Prepare(req, updated, stored)
		if s.Update.Validate == nil {
			return updated, nil
		}
		return updated, s.Update.Validate(req, updated, stored)
	}
	panic(k.Plural + " has no subresource " + subresource)
}

func defaulted[T kind.Object](k *kind.Kind, obj T) T {
	obj = obj.DeepCopyObject().(T)
	if k.Default != nil {
		k.Default(obj)
	}
	return obj
}

// Errors compares an error list with lines such as "spec.name: Required value: must be set", in any order. The text
// after the type is a substring of the detail and may be left out.
func Errors(t testing.TB, got field.ErrorList, want ...string) {
	t.Helper()
	rest := append(field.ErrorList(nil), got...)
	for _, line := range want {
		found := -1
		for i, err := range rest {
			if matches(err, line) {
				found = i
				break
			}
		}
		if found < 0 {
			t.Errorf("missing error %q in:\n%s", line, render(got))
			continue
		}
		rest = append(rest[:found], rest[found+1:]...)
	}
	if len(rest) > 0 {
		t.Errorf("unexpected errors:\n%s", render(rest))
	}
}

func matches(err *field.Error, line string) bool {
	head := err.Field + ": " + err.Type.String()
	detail, ok := strings.CutPrefix(line, head)
	if !ok {
		return false
	}
	if detail == "" {
		return true
	}
	detail, ok = strings.CutPrefix(detail, ": ")
	return ok && strings.Contains(err.Detail, detail)
}

func render(list field.ErrorList) string {
	var b strings.Builder
	for _, err := range list {
		b.WriteString("\t" + err.Error() + "\n")
	}
	return b.String()
}
