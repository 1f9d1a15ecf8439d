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

// write is one change of one object on its way into the store: for a client, or for the server itself.
type write struct {
	s         *Server
	ctx       context.Context
	res       *resource
	sub       *kind.Subresource // nil for the resource itself
	namespace string            // "" for kinds without namespaces
	name      string
	rules     kind.Request

	// manager is who the change is recorded under; "" is recorded as unknown.
	manager string
	// chain is empty for the server's own writes.
	chain admission.Chain
	// attributes are what admission is told of every write of the request.
	attributes admission.Attributes
	warn       func(string)
	// check is Config.CheckWrite for the client's request; nil for the server's own writes.
	check func(obj, old kind.Object) error
	// judge is Config.JudgeWrite, likewise.
	judge func(obj, old kind.Object) field.ErrorList
}

// newWrite is a write for a client.
func (s *Server) newWrite(req *request, dryRun bool) *write {
	w := &write{
		s: s, ctx: req.ctx, res: req.res, sub: req.sub, name: req.info.name, warn: req.warn, chain: s.config.Admission,
		rules: kind.Request{User: req.user, Now: now(), DryRun: dryRun, APIVersion: req.res.gvk.GroupVersion(), Annotate: req.annotate, Warn: req.warn},
		attributes: admission.Attributes{
			Kind: req.res.gvk, Resource: req.res.gvr, Subresource: req.info.subresource, Namespace: req.info.namespace,
			User: req.user, DryRun: dryRun, Warn: req.warn, Annotate: req.annotate,
		},
	}
	if req.res.kind.Namespaced {
		w.namespace = req.info.namespace
	}
	if check := s.config.CheckWrite; check != nil && req.sub == nil {
		w.check = func(obj, old kind.Object) error { return check(req.ctx, &req.attributes, obj, old) }
	}
	if judge := s.config.JudgeWrite; judge != nil {
		w.judge = func(obj, old kind.Object) field.ErrorList { return judge(req.ctx, &req.attributes, obj, old) }
	}
	return w
}

// ownWrite is a write of the server itself. It passes no admission and leaves managedFields as they are.
func (s *Server) ownWrite(ctx context.Context, res *resource, namespace, name string) *write {
	return &write{
		s: s, ctx: ctx, res: res, namespace: namespace, name: name, warn: func(string) {}, rules: kind.Request{Now: now()},
	}
}

func (w *write) key() string { return w.res.kind.Key(w.namespace, w.name) }

// attributesFor describes the write to admission.
func (w *write) attributesFor(operation admission.Operation, obj, old runtime.Object, options runtime.Object) *admission.Attributes {
	a := w.attributes
	a.Operation, a.Options, a.Name = operation, options, w.name
	// A nil object in an interface would not be nil to those who look.
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

// mutate runs the mutating admission plugins and returns the object they leave.
func (w *write) mutate(operation admission.Operation, obj, old kind.Object, options runtime.Object) (kind.Object, error) {
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
		return nil, fmt.Errorf("admission made a %T of a %s", a.Object, w.res.gvk.Kind)
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

// admit runs the validating admission plugins. What they reserve is given back by undo when the write fails.
func (w *write) admit(operation admission.Operation, obj, old runtime.Object, options runtime.Object) (undo func(), err error) {
	if len(w.chain) == 0 {
		return func() {}, nil
	}
	a := w.attributesFor(operation, obj, old, options)
	if err := w.chain.Validate(w.ctx, a); err != nil {
		return nil, err
	}
	return func() { w.chain.Undo(context.WithoutCancel(w.ctx), a) }, nil
}

// outcome is what a write came to: an entry of the cache, or an object that is not, or no longer, in the store.
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

// create answers a POST to a collection.
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
	obj, err := s.decodeBody(req, body, strictnessOf(options.FieldValidation))
	if err != nil {
		return err
	}
	s.auditObject(req, obj, req.res.gvk)
	w := s.newWrite(req, isDryRun(options.DryRun))
	w.manager = managedfields.ManagerName(options.FieldManager, req.UserAgent())
	if req.res.kind.Action != nil {
		return s.act(req, w, obj, options)
	}
	w.name = obj.GetName()
	if req.res.kind.IsNamespace {
		w.attributes.Namespace = w.name
	}
	wipeSystemFields(obj)
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	dropDuplicateOwners(obj, w.warn, textDuplicateOwners)
	if err := w.manage(w.res.kind.New(), obj); err != nil {
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

// manage records who owns the changes from live to obj.
func (w *write) manage(live, obj kind.Object) error {
	m, err := w.res.managers.Manager(w.sub)
	if err != nil {
		return err
	}
	m.Update(live, obj, w.manager, w.rules.Now.Time)
	return nil
}

// create stores a new object. A name that the server chose and that is taken is chosen again, a few times.
func (w *write) create(obj kind.Object, options runtime.Object) (outcome, error) {
	if obj.GetName() != "" || obj.GetGenerateName() == "" {
		return w.createOnce(obj, options)
	}
	var made outcome
	var err error
	for range generatedAttempts {
		attempt := obj
		if w.res.kind.Hooks.BeforeCreate != nil {
			attempt = obj.DeepCopyObject().(kind.Object) // the hook would find what it filled in before
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
	fillSystemFields(obj, w.rules.Now)
	w.name = obj.GetName()
	if w.check != nil {
		if err := w.check(obj, nil); err != nil {
			return outcome{}, err
		}
	}
	giveBack, err := w.beforeCreate(obj)
	if err != nil {
		return outcome{}, err
	}
	made, err := w.createPrepared(obj, options)
	if err != nil || w.rules.DryRun {
		giveBack()
	}
	return made, err
}

// beforeCreate lets the kind reserve what the object needs. giveBack undoes it.
func (w *write) beforeCreate(obj kind.Object) (giveBack func(), err error) {
	if hook := w.res.kind.Hooks.BeforeCreate; hook != nil {
		if giveBack, err = hook(w.ctx, w.s.env(), &w.rules, obj); err != nil {
			return nil, err
		}
	}
	if giveBack == nil {
		giveBack = func() {}
	}
	return giveBack, nil
}

func (w *write) createPrepared(obj kind.Object, options runtime.Object) (outcome, error) {
	if err := w.prepareNew(obj); err != nil {
		return outcome{}, err
	}
	undo, err := w.admit(admission.Create, obj, nil, options)
	if err != nil {
		return outcome{}, err
	}
	made, err := w.insert(obj)
	if err != nil || w.rules.DryRun {
		undo()
	}
	return made, err
}

// prepareNew brings a new object into the form it is stored in, and judges it.
func (w *write) prepareNew(obj kind.Object) error {
	k := w.res.kind
	if k.Status != nil && !k.StatusOnCreate {
		k.Status(obj, k.New())
	}
	obj.SetGeneration(0)
	if k.SpecChanged != nil {
		obj.SetGeneration(1)
	}
	if k.Prepare != nil {
		k.Prepare(&w.rules, obj, nil)
	}
	errs := validateNewMetadata(k, obj)
	if k.Validate != nil {
		errs = append(errs, k.Validate(&w.rules, obj, nil)...)
	}
	if len(errs) == 0 {
		errs = validateNames(obj)
	}
	if len(errs) == 0 && w.judge != nil {
		errs = w.judge(obj, nil)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
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
	if w.rules.DryRun {
		if entry := w.res.table.Get(w.key()); entry != nil {
			return outcome{}, w.errExists(obj)
		}
		return outcome{obj: obj, created: true}, nil
	}
	entry, err := w.res.table.Create(w.ctx, w.key(), obj, w.res.kind.TTL)
	if err != nil {
		if errors.Is(err, store.ErrExists) {
			err = w.errExists(obj)
		}
		return outcome{}, err
	}
	return outcome{entry: entry, created: true}, nil
}

// errExists says that the name is taken; by an object on its way out, it may be.
func (w *write) errExists(obj kind.Object) error {
	gr := w.res.groupResource()
	err := apierrors.NewAlreadyExists(gr, w.name)
	if obj.GetGenerateName() != "" {
		err = apierrors.NewGenerateNameConflict(gr, w.name, 1)
	}
	if entry := w.res.table.Get(w.key()); entry != nil {
		if there, readErr := entry.Object(); readErr == nil && there.GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
	}
	return err
}

// createOptions are the options under which an update or patch that creates shows itself to admission.
func createOptions(dryRun []string, manager, fieldValidation string) *metav1.CreateOptions {
	return &metav1.CreateOptions{
		TypeMeta: optionsType("CreateOptions"), DryRun: dryRun, FieldManager: manager, FieldValidation: fieldValidation,
	}
}

// writeTimeout bounds how long a write tries again against other writers.
const writeTimeout = 34 * time.Second
