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

// change is an update in the making. The loop in write.change asks it for the wanted object for each state of the live
// one it meets, until one is written.
type change struct {
	// next makes the wanted object, a new one at every call; live is nil when there is none. Admission has seen it.
	next func(live kind.Object) (kind.Object, error)
	// admit shows the finished object to validating admission; nil means the ordinary way.
	admit func(obj, live kind.Object) (undo func(), err error)
	// uid, when not empty, must be the live object's.
	uid types.UID
	// allowCreate: an absent object is created.
	allowCreate bool
	// options for admission: of an update, and of a creation.
	updateOptions, createOptions runtime.Object
	// authorizeCreate asks whether the client may create when that is what it comes to.
	authorizeCreate func() error
	// bare: the server's own change; neither Prepare nor Status of the row stand in its way.
	bare bool
}

// update answers a PUT of an object or of a part of it.
func (s *Server) update(req *request) error {
	w, body, options, err := s.beginUpdate(req)
	if err != nil {
		return err
	}
	validate := strictnessOf(options.FieldValidation)
	obj, err := s.decodeBody(req, body, validate)
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
			// The first attempt changed the object; the body says again what is wanted.
			if wanted, err = s.decodeBody(req, body, metav1.FieldValidationIgnore); err != nil {
				return nil, err
			}
			if err := ensureNamespace(w.namespace, wanted); err != nil {
				return nil, err
			}
		}
		first = false
		return w.managedAndMutated(c, live, wanted)
	}
	done, err := w.change(c)
	if err != nil {
		return err
	}
	return s.respondOutcome(req, done)
}

// beginUpdate is what every PUT begins with.
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

// clientChange is a change a client asks for.
func (w *write) clientChange(req *request, dryRun []string, manager, fieldValidation string) *change {
	return &change{
		createOptions:   createOptions(dryRun, manager, fieldValidation),
		authorizeCreate: func() error { return w.s.authorizeCreate(req) },
	}
}

// authorizeCreate: who may update may not for that reason create.
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

// managedAndMutated records the owners of a wanted object's changes and shows it to mutating admission.
func (w *write) managedAndMutated(c *change, live, wanted kind.Object) (kind.Object, error) {
	base := live
	if base == nil {
		base = w.res.kind.New()
	}
	if err := w.manage(base, wanted); err != nil {
		return nil, err
	}
	return w.mutated(c, live, wanted)
}

func (w *write) mutated(c *change, live, wanted kind.Object) (kind.Object, error) {
	if live == nil {
		return w.mutate(admission.Create, wanted, nil, c.createOptions)
	}
	return w.mutate(admission.Update, wanted, live, c.updateOptions)
}

// change writes what is wanted over what is there, again when another writer came first, unless the client said
// which state it wants to change.
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
		var again bool
		if entry, again, err = w.again(entry, err); !again {
			return outcome{}, err
		}
	}
}

// again tells whether a write that failed is to be tried again, and on which state: on the one another writer left, or on
// the newest when it failed on an older one, because another server's writes reach the cache a little later. What
// is refused for the state it meets is refused for the newest.
func (w *write) again(entry *cache.Entry, failure error) (*cache.Entry, bool, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, false, err
	}
	var conflict *cache.Conflict
	if errors.As(failure, &conflict) {
		return conflict.Current, true, nil
	}
	if _, err := w.s.config.Cache.Sync(w.ctx); err != nil {
		return nil, false, err
	}
	newest := w.res.table.Get(w.key())
	same := newest == entry || newest != nil && entry != nil && newest.Revision() <= entry.Revision()
	return newest, !same, failure
}

// current finds the object to be changed, nil when there is none. A shared store may know more than the cache.
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
	if entry == nil {
		return w.createByChange(c)
	}
	live, err := entry.Object()
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
	if part := w.part(); part != nil && part.Before != nil && !c.bare {
		if err := part.Before(w.ctx, w.s.env(), &w.rules, obj, live); err != nil {
			return outcome{}, err
		}
	}
	if w.sub != nil || c.bare {
		return w.changePrepared(c, obj, live, entry)
	}
	hooks := &w.res.kind.Hooks
	giveBack := func() {}
	if hooks.BeforeUpdate != nil {
		undo, err := hooks.BeforeUpdate(w.ctx, w.s.env(), &w.rules, obj, live)
		if err != nil {
			return outcome{}, err
		}
		if undo != nil {
			giveBack = undo
		}
	}
	done, err := w.changePrepared(c, obj, live, entry)
	if err != nil || w.rules.DryRun {
		giveBack()
	} else if hooks.AfterUpdate != nil && done.entry != nil {
		hooks.AfterUpdate(context.WithoutCancel(w.ctx), w.s.env(), obj, live)
	}
	return done, err
}

// changePrepared judges the wanted object and stores it.
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
	done, err := w.replace(obj, live, entry)
	if err != nil || w.rules.DryRun {
		undo()
	}
	return done, err
}

// createByChange: a PUT or an apply of an object that is not there.
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
	wipeSystemFields(obj)
	if c.authorizeCreate != nil {
		if err := c.authorizeCreate(); err != nil {
			return outcome{}, err
		}
	}
	done, err := w.createOnce(obj, c.createOptions)
	if apierrors.IsAlreadyExists(err) {
		// Somebody created it just now; then it is an update.
		return outcome{}, &cache.Conflict{Current: w.res.table.Get(w.key())}
	}
	return done, err
}

// checkVersion compares the state the client wants to change with the one there is.
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
		return apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, w.name, field.ErrorList{
			field.Invalid(metadataPath.Child("resourceVersion"), version, "must be specified for an update"),
		})
	case version == entry.Revision():
		return nil
	}
	return apierrors.NewConflict(gr, w.name, errors.New(textModified))
}

// prepareChanged brings a changed object into the form it is stored in, and judges the change.
func (w *write) prepareChanged(c *change, obj, live kind.Object) error {
	k := w.res.kind
	obj.SetGeneration(live.GetGeneration())
	part := w.part()
	switch {
	case c.bare:
	case part != nil:
		w.preparePart(part, obj, live)
	default:
		from := live
		if k.Prepare != nil {
			from = live.DeepCopyObject().(kind.Object) // Prepare may change what it finds in obj, and live is everybody's
		}
		if k.Status != nil {
			k.Status(obj, from)
		}
		if k.Prepare != nil {
			k.Prepare(&w.rules, obj, live)
		}
	}
	// A write of the status may change annotations, which some kinds count as wishes; it is none all the same.
	if k.SpecChanged != nil && !w.writesStatus() && k.SpecChanged(obj, live) {
		obj.SetGeneration(live.GetGeneration() + 1)
	}
	keepSystemFields(obj, live)
	errs := validateChangedMetadata(k, obj, live)
	if !c.bare {
		validate, warnings := k.Validate, k.Warn
		if part != nil {
			validate, warnings = part.Validate, part.Warn
		}
		if validate != nil {
			errs = append(errs, validate(&w.rules, obj, live)...)
		}
		if len(errs) == 0 && w.judge != nil {
			errs = w.judge(obj, live)
		}
		if len(errs) == 0 && warnings != nil {
			for _, text := range warnings(obj, live) {
				w.warn(text)
			}
		}
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
	}
	if k.Canonicalize != nil {
		k.Canonicalize(obj)
	}
	keepTimes(obj, live)
	return nil
}

func (w *write) writesStatus() bool { return w.sub != nil && w.sub.Name == "status" }

func (w *write) part() *kind.UpdateStrategy {
	if w.sub == nil {
		return nil
	}
	return w.sub.Update
}

// preparePart leaves the client's part on the live rest. Of metadata the client's is taken where the part has it so.
func (w *write) preparePart(part *kind.UpdateStrategy, obj, live kind.Object) {
	entries := obj.GetManagedFields()
	labels, annotations := obj.GetLabels(), obj.GetAnnotations()
	owners, finalizers := obj.GetOwnerReferences(), obj.GetFinalizers()
	uid := obj.GetUID()
	part.Prepare(&w.rules, obj, live)
	takeMetadata(obj, live)
	// Whoever names a UID means that object and no other.
	if uid != "" {
		obj.SetUID(uid)
	}
	obj.SetManagedFields(entries)
	if part.UpdatesMetadata {
		obj.SetLabels(labels)
		obj.SetAnnotations(annotations)
		obj.SetOwnerReferences(owners)
		obj.SetFinalizers(finalizers)
	}
}

// replace stores the object over the entry. An object whose deletion only waited for its
// finalizers goes when the last of them does.
func (w *write) replace(obj, live kind.Object, entry *cache.Entry) (outcome, error) {
	if w.deletesNow(obj, live) {
		if w.rules.DryRun {
			return outcome{obj: obj}, nil
		}
		gone, err := w.res.table.Delete(w.ctx, w.key(), entry.Revision())
		var conflict *cache.Conflict
		if errors.As(err, &conflict) && conflict.Current == nil {
			return outcome{obj: obj}, nil // somebody else let it go
		}
		if err != nil {
			return outcome{}, err
		}
		obj.SetResourceVersion(live.GetResourceVersion())
		return outcome{obj: obj}, w.afterDelete(gone)
	}
	if w.rules.DryRun {
		return outcome{obj: obj}, nil
	}
	stored, err := w.res.table.Update(w.ctx, w.key(), obj, w.res.kind.TTL, entry.Revision())
	return outcome{entry: stored}, err
}

// deletesNow: nothing holds an object any more that was deleted before.
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

// afterDelete tells the kind that an object is gone.
func (w *write) afterDelete(gone *cache.Entry) error {
	hook := w.res.kind.Hooks.AfterDelete
	if hook == nil || w.rules.DryRun {
		return nil
	}
	obj, err := gone.Object()
	if err != nil {
		return err
	}
	hook(context.WithoutCancel(w.ctx), w.s.env(), obj)
	return nil
}
