package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apimanagedfields "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
)

// write is a write of one object, for a client or for the server itself.
type write struct {
	s         *Server
	ctx       context.Context
	res       *resource
	sub       *kind.Subresource // nil for the resource itself
	namespace string            // "" for kinds without namespaces
	name      string
	// kindRequest is what the functions of the Kind get of the request.
	kindRequest kind.Request

	// manager is the field manager; "" is recorded as unknown.
	manager string
	// chain is empty for the server's own writes.
	chain admission.Chain
	// attributes are the admission attributes that all writes of the request share.
	attributes admission.Attributes
	warn       func(string)
	// check is Config.CheckWrite for the client's request; nil for the server's own writes.
	check func(obj, old kind.Object) error
	// validate is Config.ValidateWrite, likewise.
	validate func(obj, old kind.Object) field.ErrorList
}

// newWrite is a write for a client.
func (s *Server) newWrite(req *request, dryRun bool) *write {
	w := &write{
		s: s, ctx: req.ctx, res: req.res, sub: req.sub, name: req.info.name, warn: req.warn, chain: s.config.Admission,
		kindRequest: kind.Request{User: req.user, Now: now(), DryRun: dryRun, APIVersion: req.res.gvk.GroupVersion(), Annotate: req.annotate, Warn: req.warn, Context: req.ctx},
		attributes: admission.Attributes{
			Kind: req.res.gvk, Resource: req.res.gvr, Subresource: req.info.subresource, Namespace: req.info.namespace,
			User: req.user, DryRun: dryRun, Versions: &writtenVersions{req.ctx, s, req.res, req.sub},
			Warn: req.warn, Annotate: req.annotate, AnnotateRequest: req.annotateRequest, OnWait: req.waitForServer,
		},
	}
	if req.res.kind.Namespaced {
		w.namespace = req.info.namespace
	}
	if check := s.config.CheckWrite; check != nil && req.sub == nil {
		w.check = func(obj, old kind.Object) error { return check(req.ctx, &req.attributes, obj, old) }
	}
	if validate := s.config.ValidateWrite; validate != nil {
		w.validate = func(obj, old kind.Object) field.ErrorList { return validate(req.ctx, &req.attributes, obj, old) }
	}
	return w
}

// ownWrite is a write of the server itself. It passes no admission and leaves managedFields as they are.
func (s *Server) ownWrite(ctx context.Context, res *resource, namespace, name string) *write {
	return &write{
		s: s, ctx: ctx, res: res, namespace: namespace, name: name, warn: func(string) {}, kindRequest: kind.Request{Now: now(), Context: ctx},
	}
}

func (w *write) key() string { return w.res.kind.Key(w.namespace, w.name) }

// attributesFor describes the write to admission.
func (w *write) attributesFor(operation admission.Operation, obj, old runtime.Object, options runtime.Object) *admission.Attributes {
	a := w.attributes
	a.Operation, a.Options, a.Name = operation, options, w.name
	// An interface that holds a nil object would not be nil.
	if obj != nil {
		a.Object = obj
	}
	if old != nil {
		a.Old = old
	}
	return &a
}

const textInvalidManagedFields = ".metadata.managedFields was in an invalid state after admission; this could be caused by an " +
	"outdated mutating admission controller; please fix your requests: %v"

// mutate runs the mutating admission plugins and returns the resulting object.
func (w *write) mutate(operation admission.Operation, obj, old kind.Object, options runtime.Object) (kind.Object, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	if len(w.chain) == 0 {
		dropDuplicateOwners(obj, w.warn, textDuplicateOwners)
		return obj, nil
	}
	var before runtime.Object
	if old != nil {
		before = old
	}
	entries := obj.GetManagedFields()
	a := w.attributesFor(operation, obj, before, options)
	if err := w.chain.Mutate(w.ctx, a); err != nil {
		return nil, err
	}
	changed, ok := a.Object.(kind.Object)
	if !ok {
		return nil, fmt.Errorf("mutating admission returned %T for kind %s", a.Object, w.res.gvk.Kind)
	}
	if operation == admission.Create && w.sub == nil {
		clearSystemFields(changed)
	}
	if err := ensureNamespace(w.namespace, changed); err != nil {
		return nil, err
	}
	if after := changed.GetManagedFields(); !managedfields.EqualEntries(after, entries) {
		if err := apimanagedfields.ValidateManagedFields(after); err != nil {
			changed.SetManagedFields(entries)
			w.warn(fmt.Sprintf(textInvalidManagedFields, err))
		}
	}
	dropDuplicateOwners(changed, w.warn, textDuplicateOwnersAfterAdmission)
	return changed, nil
}

// admit runs the validating admission plugins. undo releases what they reserved; it is called when the write fails.
func (w *write) admit(operation admission.Operation, obj, old runtime.Object, options runtime.Object) (undo func(), err error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	if len(w.chain) == 0 {
		return func() {}, nil
	}
	a := w.attributesFor(operation, obj, old, options)
	if err := w.chain.Validate(w.ctx, a); err != nil {
		return nil, err
	}
	return func() { w.chain.Undo(context.WithoutCancel(w.ctx), a) }, nil
}

// undoUnless releases what a write has reserved unless it was stored. It is deferred, so that a panic leaves nothing reserved.
func undoUnless(stored *bool, undo func()) {
	if !*stored {
		undo()
	}
}

// outcome is the result of a write: a cache entry, or an object that is not (or no longer) in the store.
type outcome struct {
	entry   *cache.Entry
	obj     kind.Object
	created bool
}

func (s *Server) respondOutcome(req *request, o outcome) error {
	code := http.StatusOK
	if o.created {
		code = http.StatusCreated
	}
	if o.entry != nil {
		return s.respondEntry(req, code, o.entry)
	}
	return s.respondObject(req, code, o.obj)
}

// create serves a POST to a collection.
func (s *Server) create(req *request) error {
	if _, err := req.negotiate(); err != nil {
		return err
	}
	if _, err := req.contentFormat(); err != nil {
		return err
	}
	body, err := s.readBody(req)
	if err != nil {
		return err
	}
	options, err := parseCreateOptions(req.query)
	if err != nil {
		return err
	}
	obj, err := s.decodeBody(req, body, parseFieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	s.auditObject(req, obj, req.res.gvk)
	w := s.newWrite(req, isDryRun(options.DryRun))
	w.manager = managedfields.ManagerName(options.FieldManager, req.UserAgent())
	if req.res.kind.Action != nil {
		return s.runAction(req, w, obj, options)
	}
	w.name = obj.GetName()
	if req.res.kind.IsNamespace {
		w.attributes.Namespace = w.name
	}
	clearSystemFields(obj)
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	dropDuplicateOwners(obj, w.warn, textDuplicateOwners)
	if err := w.setManagedFields(w.res.emptyForWrite(), obj); err != nil {
		return err
	}
	if obj, err = w.mutate(admission.Create, obj, nil, options); err != nil {
		return err
	}
	made, err := w.create(obj, options)
	if err != nil {
		return err
	}
	return s.respondOutcome(req, made)
}

// setManagedFields records the manager of the changes from live to obj.
func (w *write) setManagedFields(live, obj kind.Object) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	m, err := w.res.managers.Manager(w.sub)
	if err != nil {
		return err
	}
	m.With(w.ctx).Update(live, obj, w.manager, w.kindRequest.Now.Time)
	return nil
}

// create stores a new object. If a generated name is taken, another one is generated, a few times.
func (w *write) create(obj kind.Object, options runtime.Object) (outcome, error) {
	if obj.GetName() != "" || obj.GetGenerateName() == "" {
		return w.createOnce(obj, options)
	}
	var made outcome
	var err error
	for range generatedAttempts {
		attempt := obj
		if w.res.kind.Hooks.BeforeCreate != nil {
			attempt = obj.DeepCopyObject().(kind.Object) // the hook must not find the fields it set before
		}
		made, err = w.createOnce(attempt, options)
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return made, err
		}
		obj.SetName("")
	}
	return made, err
}

func (w *write) createOnce(obj kind.Object, options runtime.Object) (outcome, error) {
	fillSystemFields(obj, w.kindRequest.Now)
	w.name = obj.GetName()
	if w.check != nil {
		if err := w.check(obj, nil); err != nil {
			return outcome{}, err
		}
	}
	undoHook, err := w.beforeCreate(obj)
	if err != nil {
		return outcome{}, err
	}
	stored := false
	defer undoUnless(&stored, undoHook)
	made, err := w.createPrepared(obj, options)
	stored = err == nil && !w.kindRequest.DryRun
	return made, err
}

// beforeCreate runs the kind's BeforeCreate hook, which may reserve resources. undoHook releases them.
func (w *write) beforeCreate(obj kind.Object) (undoHook func(), err error) {
	if hook := w.res.kind.Hooks.BeforeCreate; hook != nil {
		if undoHook, err = hook(w.ctx, w.s.KindClient(), &w.kindRequest, obj); err != nil {
			return nil, err
		}
	}
	if undoHook == nil {
		undoHook = func() {}
	}
	return undoHook, nil
}

func (w *write) createPrepared(obj kind.Object, options runtime.Object) (outcome, error) {
	if err := w.prepareNew(obj); err != nil {
		return outcome{}, err
	}
	undo, err := w.admit(admission.Create, obj, nil, options)
	if err != nil {
		return outcome{}, err
	}
	stored := false
	defer undoUnless(&stored, undo)
	made, err := w.insert(obj)
	stored = err == nil && !w.kindRequest.DryRun
	return made, err
}

// prepareNew prepares and validates a new object for the store.
func (w *write) prepareNew(obj kind.Object) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	k := w.res.kind
	if k.CopyStatus != nil && !k.StatusOnCreate {
		k.CopyStatus(obj, w.res.emptyForWrite())
	}
	obj.SetGeneration(0)
	if k.SpecChanged != nil {
		obj.SetGeneration(1)
	}
	if k.Prepare != nil {
		k.Prepare(&w.kindRequest, obj, nil)
	}
	errs := validateNewMetadata(k, obj)
	if k.Validate != nil {
		errs = append(errs, k.Validate(&w.kindRequest, obj, nil)...)
	}
	if len(errs) == 0 {
		errs = validateNames(obj)
	}
	if len(errs) == 0 && w.validate != nil {
		errs = w.validate(obj, nil)
	}
	if len(errs) > 0 {
		if err := w.ctx.Err(); err != nil {
			return err // rules that were interrupted say nothing about the object
		}
		return kind.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
	}
	if k.Warn != nil {
		for _, text := range k.Warn(obj, nil) {
			w.warn(text)
		}
	}
	if k.Canonicalize != nil {
		k.Canonicalize(obj)
	}
	return nil
}

// insert stores the object.
func (w *write) insert(obj kind.Object) (outcome, error) {
	if obj.GetResourceVersion() != "" && obj.GetResourceVersion() != "0" {
		return outcome{}, errors.New("resourceVersion should not be set on objects to be created")
	}
	if w.kindRequest.DryRun {
		if entry := w.res.table.Get(w.key()); entry != nil {
			return outcome{}, w.errExists(obj)
		}
		return outcome{obj: obj, created: true}, nil
	}
	converted, err := w.res.toStore(w.ctx, obj)
	if err != nil {
		return outcome{}, err
	}
	ctx, span := w.traceStore("Create etcd3")
	entry, err := w.res.table.Create(ctx, w.key(), converted, w.res.kind.TTL)
	span.End()
	if err != nil {
		if errors.Is(err, store.ErrExists) {
			err = w.errExists(obj)
		}
		return outcome{}, err
	}
	return outcome{entry: entry, created: true}, nil
}

// errExists is the AlreadyExists error; the message differs when the existing object is being deleted.
func (w *write) errExists(obj kind.Object) error {
	gr := w.res.groupResource()
	err := apierrors.NewAlreadyExists(gr, w.name)
	if obj.GetGenerateName() != "" {
		err = apierrors.NewGenerateNameConflict(gr, w.name, 1)
	}
	if entry := w.res.table.Get(w.key()); entry != nil {
		if existing, readErr := entry.Object(); readErr == nil && existing.GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
	}
	return err
}

// createOptions are the options that admission sees for an update or patch that creates.
func createOptions(dryRun []string, manager, fieldValidation string) *metav1.CreateOptions {
	return &metav1.CreateOptions{
		TypeMeta: optionsType("CreateOptions"), DryRun: dryRun, FieldManager: manager, FieldValidation: fieldValidation,
	}
}

// writeTimeout bounds the retries of a write after conflicts.
const writeTimeout = 34 * time.Second
