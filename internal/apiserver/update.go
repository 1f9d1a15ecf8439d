package apiserver

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// change is an update. write.change calls next for each state of the live object until the result is written without conflict.
type change struct {
	// next returns the new object after mutating admission, a new one at every call; live is nil when there is none.
	next func(live kind.Object) (kind.Object, error)
	// admit runs validating admission; nil means write.admit.
	admit func(obj, live kind.Object) (undo func(), err error)
	// uid, when not empty, must be the live object's.
	uid types.UID
	// allowCreate: an absent object is created.
	allowCreate bool
	// options for admission: of an update, and of a creation.
	updateOptions, createOptions runtime.Object
	// authorizeCreate checks that the client may create, if the object does not exist.
	authorizeCreate func() error
	// internal: the server's own change; the Kind's Prepare and CopyStatus do not apply.
	internal bool
}

// update serves a PUT of an object or of a subresource such as status.
func (s *Server) update(req *request) error {
	w, body, options, err := s.beginUpdate(req)
	if err != nil {
		return err
	}
	obj, err := s.decodeBody(req, body, parseFieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	s.auditObject(req, obj, req.res.gvk)
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	if err := checkName(obj, w.name, w.namespace); err != nil {
		return err
	}
	dropDuplicateOwners(obj, w.warn, textDuplicateOwners)
	c := w.clientChange(req, options.DryRun, options.FieldManager, options.FieldValidation)
	c.uid, c.updateOptions = obj.GetUID(), options
	c.allowCreate = w.sub == nil && w.res.kind.AllowCreateOnUpdate
	first := true
	c.next = func(live kind.Object) (kind.Object, error) {
		wanted := obj
		if !first {
			// The first attempt modified the object: decode it again.
			if wanted, err = s.decodeBody(req, body, metav1.FieldValidationIgnore); err != nil {
				return nil, err
			}
			if err := ensureNamespace(w.namespace, wanted); err != nil {
				return nil, err
			}
		}
		first = false
		return w.setManagedFieldsAndMutate(c, live, wanted)
	}
	done, err := w.change(c)
	if err != nil {
		return err
	}
	return s.respondOutcome(req, done)
}

// beginUpdate parses a PUT.
func (s *Server) beginUpdate(req *request) (*write, []byte, *metav1.UpdateOptions, error) {
	if _, err := req.negotiate(); err != nil {
		return nil, nil, nil, err
	}
	body, err := s.readBody(req)
	if err != nil {
		return nil, nil, nil, err
	}
	options, err := parseUpdateOptions(req.query)
	if err != nil {
		return nil, nil, nil, err
	}
	w := s.newWrite(req, isDryRun(options.DryRun))
	w.manager = managedfields.ManagerName(options.FieldManager, req.UserAgent())
	return w, body, options, nil
}

// clientChange is a change for a client.
func (w *write) clientChange(req *request, dryRun []string, manager, fieldValidation string) *change {
	return &change{
		createOptions:   createOptions(dryRun, manager, fieldValidation),
		authorizeCreate: func() error { return w.s.authorizeCreate(req) },
	}
}

// authorizeCreate: permission to update does not include permission to create.
func (s *Server) authorizeCreate(req *request) error {
	a := req.attributes
	a.Verb = "create"
	decision, reason, err := s.config.Authorizer.Authorize(req.ctx, &a)
	if decision == authz.Allow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return errForbidden(&a, reason)
}

// setManagedFieldsAndMutate sets the managedFields of the new object and runs mutating admission.
func (w *write) setManagedFieldsAndMutate(c *change, live, wanted kind.Object) (kind.Object, error) {
	base := live
	if base == nil {
		base = w.res.emptyForWrite()
	}
	if err := w.setManagedFields(base, wanted); err != nil {
		return nil, err
	}
	return w.mutated(c, live, wanted)
}

func (w *write) mutated(c *change, live, wanted kind.Object) (kind.Object, error) {
	if live == nil {
		return w.mutate(admission.Create, wanted, nil, c.createOptions)
	}
	if strategy := w.strategy(); strategy != nil && strategy.Complete != nil {
		strategy.Complete(wanted, live)
	}
	return w.mutate(admission.Update, wanted, live, c.updateOptions)
}

// change updates the object and retries after a conflict with another writer, unless the client gave a resourceVersion.
func (w *write) change(c *change) (outcome, error) {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	w.ctx = ctx
	entry, err := w.current()
	if err != nil {
		return outcome{}, err
	}
	for {
		done, err := w.changeOnce(c, entry)
		if err == nil {
			return done, nil
		}
		var retry bool
		if entry, retry, err = w.retry(entry, err); !retry {
			return outcome{}, err
		}
	}
}

// retry decides whether a failed write is tried again, and with which entry: with the one of the conflict, or with the newest one if the
// attempt used an older one, because writes of other servers reach the cache with a delay. An error with the newest entry is final.
func (w *write) retry(entry *cache.Entry, failure error) (*cache.Entry, bool, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, false, err
	}
	var conflict *cache.Conflict
	if errors.As(failure, &conflict) {
		return conflict.Current, true, nil
	}
	if errors.Is(failure, cache.ErrReplaced) {
		return nil, false, failure
	}
	if _, err := w.s.config.Cache.Sync(w.ctx); err != nil {
		return nil, false, err
	}
	newest := w.res.table.Get(w.key())
	same := newest == entry || newest != nil && entry != nil && newest.Revision() <= entry.Revision()
	return newest, !same, failure
}

// current returns the object, or nil when there is none. The cache may be behind a store shared with other servers.
func (w *write) current() (*cache.Entry, error) {
	entry := w.res.table.Get(w.key())
	if entry != nil {
		return entry, nil
	}
	if _, err := w.s.config.Cache.Sync(w.ctx); err != nil {
		return nil, err
	}
	return w.res.table.Get(w.key()), nil
}

func (w *write) changeOnce(c *change, entry *cache.Entry) (outcome, error) {
	if err := w.ctx.Err(); err != nil {
		return outcome{}, err
	}
	if entry == nil {
		return w.createByChange(c)
	}
	live, err := w.res.objectForWrite(w.ctx, entry)
	if err != nil {
		return outcome{}, err
	}
	if c.uid != "" && c.uid != live.GetUID() {
		return outcome{}, errPrecondition(w, w.key(), fmt.Sprintf("UID in precondition: %s, UID in object meta: %s", c.uid, live.GetUID()))
	}
	obj, err := c.next(live)
	if err != nil {
		return outcome{}, err
	}
	if err := w.checkVersion(obj, live, entry); err != nil {
		return outcome{}, err
	}
	if w.check != nil {
		if err := w.check(obj, live); err != nil {
			return outcome{}, err
		}
	}
	if strategy := w.strategy(); strategy != nil && strategy.Before != nil && !c.internal {
		if err := strategy.Before(w.ctx, w.s.KindClient(), &w.kindRequest, obj, live); err != nil {
			return outcome{}, err
		}
	}
	if w.sub != nil || c.internal {
		return w.changePrepared(c, obj, live, entry)
	}
	hooks := &w.res.kind.Hooks
	undoHook := func() {}
	if hooks.BeforeUpdate != nil {
		undo, err := hooks.BeforeUpdate(w.ctx, w.s.KindClient(), &w.kindRequest, obj, live)
		if err != nil {
			return outcome{}, err
		}
		if undo != nil {
			undoHook = undo
		}
	}
	stored := false
	defer undoUnless(&stored, undoHook)
	done, err := w.changePrepared(c, obj, live, entry)
	stored = err == nil && !w.kindRequest.DryRun
	if stored && hooks.AfterUpdate != nil && done.entry != nil {
		hooks.AfterUpdate(context.WithoutCancel(w.ctx), w.s.KindClient(), obj, live)
	}
	return done, err
}

// changePrepared validates the new object and stores it.
func (w *write) changePrepared(c *change, obj, live kind.Object, entry *cache.Entry) (outcome, error) {
	if err := w.prepareChanged(c, obj, live); err != nil {
		return outcome{}, err
	}
	admit := c.admit
	if admit == nil {
		admit = func(obj, live kind.Object) (func(), error) {
			return w.admit(admission.Update, obj, live, c.updateOptions)
		}
	}
	undo, err := admit(obj, live)
	if err != nil {
		return outcome{}, err
	}
	stored := false
	defer undoUnless(&stored, undo)
	done, err := w.replace(obj, live, entry)
	stored = err == nil && !w.kindRequest.DryRun
	return done, err
}

// createByChange creates the object of a PUT or an apply.
func (w *write) createByChange(c *change) (outcome, error) {
	if !c.allowCreate {
		return outcome{}, apierrors.NewNotFound(w.res.groupResource(), w.name)
	}
	if c.uid != "" {
		return outcome{}, errPrecondition(w, w.key(), fmt.Sprintf("UID in precondition: %s, UID in object meta: ", c.uid))
	}
	obj, err := c.next(nil)
	if err != nil {
		return outcome{}, err
	}
	clearSystemFields(obj)
	if c.authorizeCreate != nil {
		if err := c.authorizeCreate(); err != nil {
			return outcome{}, err
		}
	}
	done, err := w.createOnce(obj, c.createOptions)
	if apierrors.IsAlreadyExists(err) {
		// Another client has just created it: retry as an update.
		return outcome{}, &cache.Conflict{Current: w.res.table.Get(w.key())}
	}
	return done, err
}

// checkVersion compares the client's resourceVersion with the current one.
func (w *write) checkVersion(obj, live kind.Object, entry *cache.Entry) error {
	version, err := parseVersion(obj)
	if err != nil {
		return err
	}
	gr := w.res.groupResource()
	switch {
	case version == 0 && w.res.kind.AllowUnconditionalUpdate:
		obj.SetResourceVersion(live.GetResourceVersion())
		return nil
	case version == 0:
		return kind.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, w.name, field.ErrorList{
			field.Invalid(metadataPath.Child("resourceVersion"), version, "must be specified for an update"),
		})
	case version == entry.Revision():
		return nil
	}
	return apierrors.NewConflict(gr, w.name, errors.New(textModified))
}

// prepareChanged prepares and validates a changed object for the store.
func (w *write) prepareChanged(c *change, obj, live kind.Object) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	k := w.res.kind
	obj.SetGeneration(live.GetGeneration())
	strategy := w.strategy()
	switch {
	case c.internal:
	case strategy != nil:
		w.prepareSubresource(strategy, obj, live)
	default:
		from := live
		if k.Prepare != nil {
			from = live.DeepCopyObject().(kind.Object) // Prepare may modify what obj shares with live, and live is shared
		}
		if k.CopyStatus != nil {
			k.CopyStatus(obj, from)
		}
		if k.Prepare != nil {
			k.Prepare(&w.kindRequest, obj, live)
		}
	}
	// A write of the status may change annotations, which SpecChanged of some kinds includes; the generation stays the same.
	if k.SpecChanged != nil && !w.writesStatus() && k.SpecChanged(obj, live) {
		obj.SetGeneration(live.GetGeneration() + 1)
	}
	keepSystemFields(obj, live)
	errs := validateChangedMetadata(k, obj, live)
	if !c.internal {
		validate, warnings := k.Validate, k.Warn
		if strategy != nil {
			validate, warnings = strategy.Validate, strategy.Warn
		}
		if validate != nil {
			errs = append(errs, validate(&w.kindRequest, obj, live)...)
		}
		if len(errs) == 0 && w.validate != nil {
			errs = w.validate(obj, live)
		}
		if len(errs) == 0 && warnings != nil {
			for _, text := range warnings(obj, live) {
				w.warn(text)
			}
		}
	}
	if len(errs) > 0 {
		return kind.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
	}
	if k.Canonicalize != nil {
		k.Canonicalize(obj)
	}
	keepUnchangedTimes(obj, live)
	return nil
}

func (w *write) writesStatus() bool { return w.sub != nil && w.sub.Name == "status" }

// strategy is that of the written subresource; nil if it has none.
func (w *write) strategy() *kind.UpdateStrategy {
	if w.sub == nil {
		return nil
	}
	return w.sub.Update
}

// prepareSubresource keeps of the client's object what the subresource writes, and takes everything else from the live one.
func (w *write) prepareSubresource(strategy *kind.UpdateStrategy, obj, live kind.Object) {
	entries := obj.GetManagedFields()
	labels, annotations := obj.GetLabels(), obj.GetAnnotations()
	owners, finalizers := obj.GetOwnerReferences(), obj.GetFinalizers()
	uid := obj.GetUID()
	strategy.Prepare(&w.kindRequest, obj, live)
	copyMetadata(obj, live)
	// A UID in the request is a precondition.
	if uid != "" {
		obj.SetUID(uid)
	}
	obj.SetManagedFields(entries)
	if strategy.UpdatesMetadata {
		obj.SetLabels(labels)
		obj.SetAnnotations(annotations)
		obj.SetOwnerReferences(owners)
		obj.SetFinalizers(finalizers)
	}
}

// replace stores the object. An object that is being deleted is removed with its last finalizer.
func (w *write) replace(obj, live kind.Object, entry *cache.Entry) (outcome, error) {
	if w.deletesNow(obj, live) {
		if w.kindRequest.DryRun {
			return outcome{obj: obj}, nil
		}
		deleted, err := w.res.table.Delete(w.ctx, w.key(), entry.Revision())
		var conflict *cache.Conflict
		if errors.As(err, &conflict) && conflict.Current == nil {
			return outcome{obj: obj}, nil // another client has removed it
		}
		if err != nil {
			return outcome{}, err
		}
		obj.SetResourceVersion(live.GetResourceVersion())
		return outcome{obj: obj}, w.afterDelete(deleted)
	}
	if w.kindRequest.DryRun {
		return outcome{obj: obj}, nil
	}
	stored, err := w.store(obj, entry)
	return outcome{entry: stored}, err
}

// store replaces the entry's object in the store.
func (w *write) store(obj kind.Object, entry *cache.Entry) (*cache.Entry, error) {
	obj, err := w.res.toStore(w.ctx, obj)
	if err != nil {
		return nil, err
	}
	ctx, span := w.traceStore("GuaranteedUpdate etcd3")
	defer span.End()
	return w.res.table.Update(ctx, w.key(), obj, w.res.kind.TTL, entry.Revision())
}

// deletesNow reports whether an object that is being deleted has no finalizer and no grace period left.
func (w *write) deletesNow(obj, live kind.Object) bool {
	if len(obj.GetFinalizers()) > 0 || live.GetDeletionTimestamp() == nil {
		return false
	}
	if grace := live.GetDeletionGracePeriodSeconds(); grace != nil && *grace != 0 {
		return false
	}
	held := w.res.kind.Delete.HasSpecFinalizers
	return held == nil || !held(obj)
}

// afterDelete runs the kind's AfterDelete hook.
func (w *write) afterDelete(deleted *cache.Entry) error {
	hook := w.res.kind.Hooks.AfterDelete
	if hook == nil || w.kindRequest.DryRun {
		return nil
	}
	obj, err := deleted.Object()
	if err != nil {
		return err
	}
	hook(context.WithoutCancel(w.ctx), w.s.KindClient(), obj)
	return nil
}
