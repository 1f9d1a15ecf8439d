package kind

import (
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestNewInvalid(t *testing.T) {
	path := field.NewPath("spec", "items")
	one := field.Invalid(path.Index(0), "a", "must not be")
	gk := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	for _, errs := range []field.ErrorList{
		nil, {one}, {one, one}, {one, field.Required(path, ""), one},
		{field.NotSupported(path, "x", []string{"a", "b"}), field.Forbidden(path, "no"), field.TooMany(path, 3, 2), field.Duplicate(path, 5)},
	} {
		if got, want := NewInvalid(gk, "web", errs), apierrors.NewInvalid(gk, "web", errs); !reflect.DeepEqual(got, want) {
			t.Errorf("%#v\nwant %#v", got.ErrStatus, want.ErrStatus)
		}
	}
}

// TestInvalidTextIsBounded: each error of a list can contain the whole list.
func TestInvalidTextIsBounded(t *testing.T) {
	value := strings.Repeat("x", maxInvalidText/4)
	var errs field.ErrorList
	for i := range 1000 {
		errs = append(errs, field.Invalid(field.NewPath("items").Index(i), value, "must not be"))
	}
	status := NewInvalid(schema.GroupKind{Kind: "Pod"}, "web", errs).ErrStatus
	if len(status.Message) > maxInvalidText+1000 || len(status.Details.Causes) != 3 || !strings.HasSuffix(status.Message, "and 997 more errors]") {
		t.Errorf("%d bytes, %d causes, ...%s", len(status.Message), len(status.Details.Causes), status.Message[len(status.Message)-50:])
	}
}

// TestInvalidPathsAreBounded: each item of a list has the key of the map around it in its path.
func TestInvalidPathsAreBounded(t *testing.T) {
	path := field.NewPath("spec").Key(strings.Repeat("x", maxInvalidText/4))
	var errs field.ErrorList
	for i := range 100 {
		errs = append(errs, field.Required(path.Index(i), ""))
	}
	status := NewInvalid(schema.GroupKind{Kind: "Pod"}, "web", errs).ErrStatus
	if len(status.Message) > maxInvalidText+1000 || len(status.Details.Causes) != 3 || !strings.HasSuffix(status.Message, "and 97 more errors]") {
		t.Errorf("%d bytes, %d causes", len(status.Message), len(status.Details.Causes))
	}
}

func TestCheckPaths(t *testing.T) {
	items := make([]any, 1000)
	for i := range items {
		items[i] = map[string]any{"a": int64(1)}
	}
	if err := CheckPaths(map[string]any{"spec": map[string]any{"list": items}}); err != nil {
		t.Errorf("an ordinary object: %v", err)
	}
	if err := CheckPaths(map[string]any{"spec": map[string]any{strings.Repeat("x", maxPathBytes/1000): items}}); err == nil {
		t.Error("the paths of an object have no bound")
	}
}
