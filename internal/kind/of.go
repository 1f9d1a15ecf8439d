package kind

import (
	"context"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Spec is a row in the type of its own object. The fields mean what those of Kind mean.
type Spec[T Object] struct {
	GVK           schema.GroupVersionKind
	Plural        string
	Singular      string
	Short         []string
	Categories    []string
	Namespaced    bool
	Verbs         []string
	Prefix        string
	StoredVersion string
	TTL           time.Duration
	// Versions beside or instead of the stored one, the preferred one first. Empty: the stored version alone.
	Versions []Version
	// List is an empty list of the kind.
	List runtime.Object

	ValidateName func(name string, prefix bool) []string
	Default      func(obj T)
	Prepare      func(req *Request, obj, old T)
	Validate     func(req *Request, obj, old T) field.ErrorList
	Canonicalize func(obj T)
	Warn         func(obj, old T) []string

	Status         func(to, from T)
	ValidateStatus func(req *Request, obj, old T) field.ErrorList
	// StatusOnly: a write of the status leaves labels, annotations and the like of the stored object as they are.
	StatusOnly bool
	// PrepareStatus runs after the server has put everything but the status back.
	PrepareStatus func(req *Request, obj, old T)
	WarnStatus    func(obj, old T) []string
	// BeforeStatus looks at a new status in the light of other objects, and may refuse it.
	BeforeStatus            func(ctx context.Context, env Env, req *Request, obj, old T) error
	StatusOnCreate          bool
	IsNamespace             bool
	IndexedField            string
	SpecChanged             func(obj, old T) bool
	AllowCreateOnUpdate     bool
	DenyUnconditionalUpdate bool
	Fields                  map[string]func(obj T) string
	Columns                 []metav1.TableColumnDefinition
	Row                     func(obj T, now time.Time) []any
	RowConditions           func(obj T) []metav1.TableRowCondition
	ListRows                func(objs []T, rows [][]any)
	Grace                   func(obj T, options *metav1.DeleteOptions) bool
	Held                    func(obj T) bool
	BeginDelete             func(obj T)
	CheckDelete             func(ctx context.Context, env Env, obj T) error
	Propagation             metav1.DeletionPropagation
	WarnDelete              func(obj T, options *metav1.DeleteOptions) []string
	BeforeCreate            func(ctx context.Context, env Env, req *Request, obj T) (undo func(), err error)
	BeforeUpdate            func(ctx context.Context, env Env, req *Request, obj, old T) (undo func(), err error)
	AfterUpdate             func(ctx context.Context, env Env, obj, old T)
	AfterDelete             func(ctx context.Context, env Env, obj T)
	ReturnDeleted           bool
	Subresources            []Subresource
	Action                  func(ctx context.Context, env Env, req *Request, obj T) (runtime.Object, error)
	Virtual                 func(ctx context.Context, env Env) ([]T, error)
}

// Of turns typed rules into a row. It panics on a row that cannot work, because rows are made at program start.
func Of[T Object](s Spec[T]) *Kind {
	if s.GVK.Kind == "" || s.GVK.Version == "" || s.Plural == "" {
		panic("kind.Of: a row needs GVK and Plural: " + s.GVK.String())
	}
	objType := reflect.TypeFor[T]().Elem()
	k := &Kind{
		GVK: s.GVK, Plural: s.Plural, Singular: s.Singular, ListKind: s.GVK.Kind + "List",
		Short: s.Short, Categories: s.Categories, Namespaced: s.Namespaced,
		Verbs: s.Verbs, Prefix: s.Prefix, StoredVersion: s.StoredVersion, TTL: s.TTL, Versions: s.Versions,
		New:                      func() Object { return reflect.New(objType).Interface().(Object) },
		ValidateName:             s.ValidateName,
		StatusOnCreate:           s.StatusOnCreate,
		IsNamespace:              s.IsNamespace,
		IndexedField:             s.IndexedField,
		AllowCreateOnUpdate:      s.AllowCreateOnUpdate,
		AllowUnconditionalUpdate: !s.DenyUnconditionalUpdate,
		Columns:                  s.Columns,
		Subresources:             s.Subresources,
		Default:                  erase1(s.Default),
		Canonicalize:             erase1(s.Canonicalize),
		Prepare:                  erasePrepare(s.Prepare),
		Validate:                 eraseValidate(s.Validate),
	}
	if k.Singular == "" {
		k.Singular = strings.ToLower(s.GVK.Kind)
	}
	if k.Verbs == nil {
		k.Verbs = AllVerbs
		if s.Action != nil {
			k.Verbs = []string{"create"}
		} else if s.Virtual != nil {
			k.Verbs = []string{"get", "list"}
		}
	}
	if k.Prefix == "" {
		k.Prefix = s.Plural
	}
	if k.Versions == nil {
		k.Versions = []Version{{GVK: s.GVK}}
	}
	if k.ValidateName == nil {
		k.ValidateName = validation.NameIsDNSSubdomain
	}
	if s.List != nil {
		listType := reflect.TypeOf(s.List).Elem()
		k.NewList = func() runtime.Object { return reflect.New(listType).Interface().(runtime.Object) }
	}
	if s.Warn != nil {
		k.Warn = func(obj, old Object) []string { return s.Warn(obj.(T), cast[T](old)) }
	}
	if s.SpecChanged != nil {
		k.SpecChanged = func(obj, old Object) bool { return s.SpecChanged(obj.(T), old.(T)) }
	}
	if len(s.Fields) > 0 {
		k.Fields = make(map[string]func(Object) string, len(s.Fields))
		for label, get := range s.Fields {
			k.Fields[label] = func(obj Object) string { return get(obj.(T)) }
		}
	}
	if s.Row != nil {
		k.Row = func(obj Object, now time.Time) []any { return s.Row(obj.(T), now) }
	}
	if s.RowConditions != nil {
		k.RowConditions = func(obj Object) []metav1.TableRowCondition { return s.RowConditions(obj.(T)) }
	}
	if s.ListRows != nil {
		k.ListRows = func(objs []Object, rows [][]any) {
			typed := make([]T, len(objs))
			for i, obj := range objs {
				typed[i] = obj.(T)
			}
			s.ListRows(typed, rows)
		}
	}
	k.Delete = deletionOf(s)
	k.Hooks = hooksOf(s)
	if s.Status != nil {
		k.Status = func(to, from Object) { s.Status(to.(T), from.(T)) }
		k.Subresources = append([]Subresource{statusOf(s)}, k.Subresources...)
	}
	if s.Action != nil {
		k.Action = func(ctx context.Context, env Env, req *Request, obj Object) (runtime.Object, error) {
			return s.Action(ctx, env, req, obj.(T))
		}
	}
	if s.Virtual != nil {
		k.Virtual = func(ctx context.Context, env Env) ([]Object, error) {
			typed, err := s.Virtual(ctx, env)
			objs := make([]Object, len(typed))
			for i, obj := range typed {
				objs[i] = obj
			}
			return objs, err
		}
	}
	return k
}

// PartOf makes a Part from typed rules. prepare gets the client's object and must leave it equal to old outside the part.
func PartOf[T Object](prepare func(req *Request, obj, old T), validate func(req *Request, obj, old T) field.ErrorList) *Part {
	return &Part{Prepare: erasePrepare(prepare), Validate: eraseValidate(validate)}
}

// statusOf is the subresource that every kind with a status has: the client's status on the stored rest.
func statusOf[T Object](s Spec[T]) Subresource {
	part := &Part{
		Metadata: !s.StatusOnly,
		Prepare: func(req *Request, obj, old Object) {
			submitted := obj.DeepCopyObject().(T)
			reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
			s.Status(obj.(T), submitted)
			if s.PrepareStatus != nil {
				s.PrepareStatus(req, obj.(T), old.(T))
			}
		},
		Validate: eraseValidate(s.ValidateStatus),
	}
	if s.WarnStatus != nil {
		part.Warn = func(obj, old Object) []string { return s.WarnStatus(obj.(T), cast[T](old)) }
	}
	if s.BeforeStatus != nil {
		part.Before = func(ctx context.Context, env Env, req *Request, obj, old Object) error {
			return s.BeforeStatus(ctx, env, req, obj.(T), old.(T))
		}
	}
	return Subresource{Name: "status", Verbs: []string{"get", "patch", "update"}, Part: part}
}

func deletionOf[T Object](s Spec[T]) Deletion {
	d := Deletion{Propagation: s.Propagation, Begin: erase1(s.BeginDelete), ReturnObject: s.ReturnDeleted}
	if s.Grace != nil {
		d.Grace = func(obj Object, o *metav1.DeleteOptions) bool { return s.Grace(obj.(T), o) }
	}
	if s.Held != nil {
		d.Held = func(obj Object) bool { return s.Held(obj.(T)) }
	}
	if s.CheckDelete != nil {
		d.Check = func(ctx context.Context, env Env, obj Object) error { return s.CheckDelete(ctx, env, obj.(T)) }
	}
	if s.WarnDelete != nil {
		d.Warn = func(obj Object, o *metav1.DeleteOptions) []string { return s.WarnDelete(obj.(T), o) }
	}
	return d
}

func hooksOf[T Object](s Spec[T]) Hooks {
	var h Hooks
	if s.BeforeCreate != nil {
		h.BeforeCreate = func(ctx context.Context, env Env, req *Request, obj Object) (func(), error) {
			return s.BeforeCreate(ctx, env, req, obj.(T))
		}
	}
	if s.BeforeUpdate != nil {
		h.BeforeUpdate = func(ctx context.Context, env Env, req *Request, obj, old Object) (func(), error) {
			return s.BeforeUpdate(ctx, env, req, obj.(T), old.(T))
		}
	}
	if s.AfterUpdate != nil {
		h.AfterUpdate = func(ctx context.Context, env Env, obj, old Object) { s.AfterUpdate(ctx, env, obj.(T), old.(T)) }
	}
	if s.AfterDelete != nil {
		h.AfterDelete = func(ctx context.Context, env Env, obj Object) { s.AfterDelete(ctx, env, obj.(T)) }
	}
	return h
}

// cast keeps nil nil: an absent old object reaches typed rules as a nil pointer.
func cast[T Object](obj Object) T {
	if obj == nil {
		var none T
		return none
	}
	return obj.(T)
}

func erase1[T Object](f func(T)) func(Object) {
	if f == nil {
		return nil
	}
	return func(obj Object) { f(obj.(T)) }
}

func erasePrepare[T Object](f func(*Request, T, T)) func(*Request, Object, Object) {
	if f == nil {
		return nil
	}
	return func(req *Request, obj, old Object) { f(req, obj.(T), cast[T](old)) }
}

func eraseValidate[T Object](f func(*Request, T, T) field.ErrorList) func(*Request, Object, Object) field.ErrorList {
	if f == nil {
		return nil
	}
	return func(req *Request, obj, old Object) field.ErrorList { return f(req, obj.(T), cast[T](old)) }
}
