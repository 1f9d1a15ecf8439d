package admissionregistration

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

const unenforcedText = "skiff does not enforce"

// withoutUnenforced leaves out the error that TestUnenforced checks.
func withoutUnenforced(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.Type == field.ErrorTypeForbidden && strings.HasPrefix(err.Detail, unenforcedText)
	})
}

// TestUnenforced checks that an object that would have no effect is not stored, and that stored ones keep what they define
// while their metadata can change.
func TestUnenforced(t *testing.T) {
	for _, test := range []struct {
		kind    *kind.Kind
		obj     kind.Object
		refused string
	}{
		{kind: ValidatingWebhookConfiguration, obj: validating(configuration()), refused: "webhooks"},
		{kind: MutatingWebhookConfiguration, obj: configuration(), refused: "webhooks"},
	} {
		t.Run(test.kind.GVK.Kind, func(t *testing.T) {
			want := test.refused + ": Forbidden: skiff does not enforce " + test.kind.Plural + " yet; the object was not stored"
			_, errs := kindtest.Create(test.kind, nil, test.obj)
			kindtest.Errors(t, errs, want)

			released := test.obj.DeepCopyObject().(kind.Object)
			released.SetFinalizers([]string{"example.com/f"})
			_, errs = kindtest.Update(test.kind, nil, test.obj, released)
			kindtest.Errors(t, errs)

			changed := test.obj.DeepCopyObject().(kind.Object)
			clearDefinition(changed)
			_, errs = kindtest.Update(test.kind, nil, test.obj, changed)
			kindtest.Errors(t, errs, want)
		})
	}
}

// clearDefinition clears the field that defines what an object does.
func clearDefinition(obj kind.Object) {
	value := reflect.ValueOf(obj).Elem()
	value.FieldByName("Webhooks").SetZero()
}
