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

// Definition is a Kind whose functions take the concrete object type. The fields have the same meaning as those of Kind.
type Definition[T Object] struct {
	GVK            schema.GroupVersionKind
	Plural         string
	Singular       string
	Short          []string
	Categories     []string
	Namespaced     bool
	Verbs          []string
	Prefix         string
	StorageVersion string
	StoredOnly     []Version
	TTL            time.Duration
	// Versions are all served versions, the preferred one first. Empty: only the version of GVK.
	Versions []Version
	// List is an empty list of the kind.
	List runtime.Object

	EncodeJSON   func(obj T) ([]byte, error)
	DecodeJSON   func(data []byte, obj T) bool
	ValidateName func(name string, prefix bool) []string
	Default      func(obj T)
	Prepare      func(req *Request, obj, old T)
	Validate     func(req *Request, obj, old T) field.ErrorList
	Canonicalize func(obj T)
	Warn         func(obj, old T) []string

	CopyStatus     func(to, from T)
	ValidateStatus func(req *Request, obj, old T) field.ErrorList
	// StatusOnly: a status update keeps the stored labels, annotations, owners and finalizers.
	StatusOnly bool
	// ShareSpec, for kinds with large objects, sets everything of to besides metadata and status to that of from, without a copy. A status update then
	// shares it with the stored object, which is read-only: neither PrepareStatus nor Canonicalize may change it. nil: the stored object is copied.
	ShareSpec func(to, from T)
	// PrepareStatus runs after the server has reset everything but the status.
	PrepareStatus func(req *Request, obj, old T)
	WarnStatus    func(obj, old T) []string
	// BeforeStatus may refuse a new status because of other objects.
	BeforeStatus            func(ctx context.Context, client Client, req *Request, obj, old T) error
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
	CheckGracefulDelete     func(obj T, options *metav1.DeleteOptions) bool
	HasSpecFinalizers       func(obj T) bool
	MarkTerminating         func(obj T)
	CheckDelete             func(ctx context.Context, client Client, obj T) error
	Propagation             metav1.DeletionPropagation
	WarnDelete              func(obj T, options *metav1.DeleteOptions) []string
	BeforeCreate            func(ctx context.Context, client Client, req *Request, obj T) (undo func(), err error)
	BeforeUpdate            func(ctx context.Context, client Client, req *Request, obj, old T) (undo func(), err error)
	AfterUpdate             func(ctx context.Context, client Client, obj, old T)
	AfterDelete             func(ctx context.Context, client Client, obj T)
	ReturnDeleted           bool
	Subresources            []Subresource
	Action                  func(ctx context.Context, client Client, req *Request, obj T) (runtime.Object, error)
	Computed                func(ctx context.Context, client Client) ([]T, error)
}

// Of makes a Kind from typed functions. It panics on an incomplete definition, because definitions are package variables.
func Of[T Object](s Definition[T]) *Kind {
	if s.GVK.Kind == "" || s.GVK.Version == "" || s.Plural == "" {
		panic("kind.Of: GVK and Plural are required: " + s.GVK.String())
	}
	objType := reflect.TypeFor[T]().Elem()
	k := &Kind{
		GVK: s.GVK, Plural: s.Plural, Singular: s.Singular, ListKind: s.GVK.Kind + "List",
		Short: s.Short, Categories: s.Categories, Namespaced: s.Namespaced,
		Verbs: s.Verbs, Prefix: s.Prefix, StorageVersion: s.StorageVersion, StoredOnly: s.StoredOnly, TTL: s.TTL, Versions: s.Versions,
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
	if s.EncodeJSON != nil {
		k.EncodeJSON = func(obj Object) ([]byte, error) { return s.EncodeJSON(obj.(T)) }
	}
	if s.DecodeJSON != nil {
		k.DecodeJSON = func(data []byte, obj Object) bool { return s.DecodeJSON(data, obj.(T)) }
	}
	setRows(k, s)
	k.Delete = deletionOf(s)
	k.Hooks = hooksOf(s)
	if s.CopyStatus != nil {
		k.CopyStatus = func(to, from Object) { s.CopyStatus(to.(T), from.(T)) }
		k.Subresources = append([]Subresource{statusOf(s)}, k.Subresources...)
	}
	if s.Action != nil {
		k.Action = func(ctx context.Context, client Client, req *Request, obj Object) (runtime.Object, error) {
			return s.Action(ctx, client, req, obj.(T))
		}
	}
	if s.Computed != nil {
		k.Computed = func(ctx context.Context, client Client) ([]Object, error) {
			typed, err := s.Computed(ctx, client)
			objs := make([]Object, len(typed))
			for i, obj := range typed {
				objs[i] = obj
			}
			return objs, err
		}
	}
	k.setDefaults()
	return k
}

// setDefaults sets the names, verbs and versions that a definition leaves out.
func (k *Kind) setDefaults() {
	if k.Singular == "" {
		k.Singular = strings.ToLower(k.GVK.Kind)
	}
	if k.Verbs == nil {
		k.Verbs = AllVerbs
		if k.Action != nil {
			k.Verbs = []string{"create"}
		} else if k.Computed != nil {
			k.Verbs = []string{"get", "list"}
		}
	}
	if k.Prefix == "" {
		k.Prefix = k.Plural
	}
	if k.Versions == nil {
		k.Versions = []Version{{GVK: k.GVK}}
	}
	if k.ValidateName == nil {
		k.ValidateName = validation.NameIsDNSSubdomain
	}
}

// setRows sets the functions that make the rows of tables.
func setRows[T Object](k *Kind, s Definition[T]) {
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
}

// UpdateStrategyOf makes an UpdateStrategy from typed functions. prepare must reset the fields of obj that clients may not write.
func UpdateStrategyOf[T Object](prepare func(req *Request, obj, old T), validate func(req *Request, obj, old T) field.ErrorList) *UpdateStrategy {
	return &UpdateStrategy{Prepare: erasePrepare(prepare), Validate: eraseValidate(validate)}
}

// statusOf is the status subresource: it writes the client's status and keeps the other fields.
func statusOf[T Object](s Definition[T]) Subresource {
	part := &UpdateStrategy{
		UpdatesMetadata: !s.StatusOnly,
		Prepare: func(req *Request, obj, old Object) {
			if s.ShareSpec != nil {
				s.ShareSpec(obj.(T), old.(T))
			} else {
				submitted := obj.DeepCopyObject().(T)
				reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
				s.CopyStatus(obj.(T), submitted)
			}
			if s.PrepareStatus != nil {
				s.PrepareStatus(req, obj.(T), old.(T))
			}
		},
		Validate: eraseValidate(s.ValidateStatus),
	}
	if s.ShareSpec != nil {
		part.Complete = func(obj, old Object) { s.ShareSpec(obj.(T), old.(T)) }
	}
	if s.WarnStatus != nil {
		part.Warn = func(obj, old Object) []string { return s.WarnStatus(obj.(T), cast[T](old)) }
	}
	if s.BeforeStatus != nil {
		part.Before = func(ctx context.Context, client Client, req *Request, obj, old Object) error {
			return s.BeforeStatus(ctx, client, req, obj.(T), old.(T))
		}
	}
	return Subresource{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: part}
}

func deletionOf[T Object](s Definition[T]) Deletion {
	d := Deletion{Propagation: s.Propagation, MarkTerminating: erase1(s.MarkTerminating), ReturnObject: s.ReturnDeleted}
	if s.CheckGracefulDelete != nil {
		d.CheckGraceful = func(obj Object, o *metav1.DeleteOptions) bool { return s.CheckGracefulDelete(obj.(T), o) }
	}
	if s.HasSpecFinalizers != nil {
		d.HasSpecFinalizers = func(obj Object) bool { return s.HasSpecFinalizers(obj.(T)) }
	}
	if s.CheckDelete != nil {
		d.Check = func(ctx context.Context, client Client, obj Object) error { return s.CheckDelete(ctx, client, obj.(T)) }
	}
	if s.WarnDelete != nil {
		d.Warn = func(obj Object, o *metav1.DeleteOptions) []string { return s.WarnDelete(obj.(T), o) }
	}
	return d
}

func hooksOf[T Object](s Definition[T]) Hooks {
	var h Hooks
	if s.BeforeCreate != nil {
		h.BeforeCreate = func(ctx context.Context, client Client, req *Request, obj Object) (func(), error) {
			return s.BeforeCreate(ctx, client, req, obj.(T))
		}
	}
	if s.BeforeUpdate != nil {
		h.BeforeUpdate = func(ctx context.Context, client Client, req *Request, obj, old Object) (func(), error) {
			return s.BeforeUpdate(ctx, client, req, obj.(T), old.(T))
		}
	}
	if s.AfterUpdate != nil {
		h.AfterUpdate = func(ctx context.Context, client Client, obj, old Object) {
			s.AfterUpdate(ctx, client, obj.(T), old.(T))
		}
	}
	if s.AfterDelete != nil {
		h.AfterDelete = func(ctx context.Context, client Client, obj Object) { s.AfterDelete(ctx, client, obj.(T)) }
	}
	return h
}

// cast keeps nil nil: an absent old object reaches typed functions as a nil pointer.
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
