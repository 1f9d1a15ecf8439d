package kindtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Now is the current time in tests.
var Now = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// MinutesAgo is the time some minutes before Now.
func MinutesAgo(ago int) metav1.Time {
	return metav1.NewTime(Now.Add(-time.Duration(ago) * time.Minute))
}

// Case is one case of a validation table: a change of the table's base object, tested as a create or as an update of
// the base. Want are the expected errors, "field: text", where the error at the field must contain the text; the text
// may begin with the error type and the value.
type Case[T kind.Object] struct {
	Name   string
	Change func(T)
	Update bool
	Want   []string
}

// Validations runs a table of validations.
func Validations[T kind.Object](t *testing.T, k *kind.Kind, base T, cases []Case[T]) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			req := &kind.Request{Now: metav1.NewTime(Now)}
			var errs field.ErrorList
			if obj := With(base, c.Change); c.Update {
				// A stored object was prepared when it was created.
				stored, _ := Create(k, req, base)
				_, errs = Update(k, req, obj, stored)
			} else {
				checkIdempotent(t, k, obj)
				_, errs = Create(k, req, obj)
			}
			expect(t, errs, c.Want)
		})
	}
}

// StatusUpdates runs a table of status updates over base.
func StatusUpdates[T kind.Object](t *testing.T, k *kind.Kind, base T, cases []Case[T]) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			_, errs := UpdateSubresource(k, "status", &kind.Request{Now: metav1.NewTime(Now)}, With(base, c.Change), base)
			expect(t, errs, c.Want)
		})
	}
}

// With returns a changed copy of an object.
func With[T kind.Object](obj T, change func(T)) T {
	obj = obj.DeepCopyObject().(T)
	if change != nil {
		change(obj)
	}
	return obj
}

func checkIdempotent(t *testing.T, k *kind.Kind, obj kind.Object) {
	t.Helper()
	if k.Default == nil {
		return
	}
	once := obj.DeepCopyObject().(kind.Object)
	k.Default(once)
	twice := once.DeepCopyObject().(kind.Object)
	k.Default(twice)
	if !equality.Semantic.DeepEqual(once, twice) {
		t.Errorf("defaults of %s are not idempotent", k.Plural)
	}
}

func expect(t *testing.T, got field.ErrorList, want []string) {
	t.Helper()
	left := slices.Clone(got)
	for _, line := range want {
		path, text, _ := strings.Cut(line, ": ")
		i := slices.IndexFunc(left, func(err *field.Error) bool { return err.Field == path && strings.Contains(err.ErrorBody(), text) })
		if i < 0 {
			t.Errorf("missing error %q in:\n%s", line, render(got))
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 {
		t.Errorf("unexpected errors:\n%s", render(left))
	}
}

// Row compares an object's table row with the expected cells, types included, and the number of cells with the number
// of columns.
func Row(t *testing.T, k *kind.Kind, obj kind.Object, want ...any) {
	t.Helper()
	got := k.Row(obj, Now)
	if len(got) != len(k.Columns) {
		t.Errorf("%s: %d cells for %d columns", k.Plural, len(got), len(k.Columns))
	}
	if fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
		t.Errorf("row of %s:\n got %#v\nwant %#v", k.Plural, got, want)
	}
}

// ColumnsDescribed checks that every column has a description, except the given ones.
func ColumnsDescribed(t *testing.T, k *kind.Kind, except ...string) {
	t.Helper()
	for _, column := range k.Columns {
		if (column.Description == "") != slices.Contains(except, column.Name) {
			t.Errorf("%s: description of column %s is %q", k.Plural, column.Name, column.Description)
		}
	}
}

// Warnings compares warnings with the expected ones, in order; each must contain the expected text.
func Warnings(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("got %q, want %q", got, want)
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}
