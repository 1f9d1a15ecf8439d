package apiserver

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	apimanagedfields "k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
)

// getSub serves a GET of a subresource: the whole object, or a view (scale).
func (s *Server) getSub(req *request) error {
	if req.sub.View == nil {
		return s.get(req)
	}
	entry, err := s.read(req)
	if err != nil {
		return err
	}
	parent, err := req.res.objectForWrite(req.ctx, entry)
	if err != nil {
		return err
	}
	if check := req.sub.View.CheckRead; check != nil {
		view, err := req.sub.View.From(parent)
		if err == nil {
			err = check(view)
		}
		if err != nil {
			return err
		}
	}
	return s.respondView(req, parent)
}

// respondView responds with the view of an object.
func (s *Server) respondView(req *request, parent kind.Object) error {
	view, err := req.sub.View.From(parent)
	if err != nil {
		return err
	}
	view.GetObjectKind().SetGroupVersionKind(req.sub.BodyGVK(req.res.gvk))
	return s.respondObject(req, http.StatusOK, view)
}

// updateSub serves a PUT of a subresource.
func (s *Server) updateSub(req *request) error {
	if req.sub.View == nil {
		return s.update(req)
	}
	w, body, options, err := s.beginUpdate(req)
	if err != nil {
		return err
	}
	decode := func(directive fieldValidation) (kind.Object, error) {
		return s.decodeView(req, w, body, directive)
	}
	wanted, err := decode(parseFieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	c := w.clientChange(req, options.DryRun, options.FieldManager, options.FieldValidation)
	c.updateOptions = options
	return s.changeView(req, w, c, func(old kind.Object, m *managedfields.Manager) (kind.Object, error) {
		view := wanted.DeepCopyObject().(kind.Object)
		m.Update(old, view, w.manager, w.kindRequest.Now.Time)
		return view, nil
	})
}

func (s *Server) decodeView(req *request, w *write, body []byte, directive fieldValidation) (kind.Object, error) {
	f, err := req.contentFormat()
	if err != nil {
		return nil, err
	}
	view := req.sub.NewBody()
	if err := s.decodeInto(view, requestBody{data: body, format: f, want: req.sub.BodyGVK(req.res.gvk), fieldValidation: directive}, req.warn); err != nil {
		return nil, err
	}
	kind.ClearType(view)
	s.auditObject(req, view, req.sub.BodyGVK(req.res.gvk))
	if err := ensureNamespace(w.namespace, view); err != nil {
		return nil, err
	}
	return view, checkName(view, w.name, w.namespace)
}

// patchSub serves a PATCH of a subresource.
func (s *Server) patchSub(req *request) error {
	if req.sub.View == nil {
		return s.patch(req)
	}
	p, err := s.beginPatch(req, req.res.kind.Custom != nil)
	if err != nil {
		return err
	}
	gvk := req.sub.BodyGVK(req.res.gvk)
	return s.changeView(req, p.w, p.change(), func(old kind.Object, m *managedfields.Manager) (kind.Object, error) {
		var view kind.Object
		var err error
		if p.patchType == types.ApplyYAMLPatchType {
			view, err = p.merge(m, old)
		} else if view, err = p.patched(old, req.sub.NewBody, nil, gvk); err == nil {
			kind.ClearType(view)
			m.Update(old, view, p.w.manager, p.w.kindRequest.Now.Time)
		}
		if err != nil {
			return nil, err
		}
		return view, p.check(view)
	})
}

// changeView changes an object through its view: old object → old view → new view → new object.
func (s *Server) changeView(req *request, w *write, c *change, next func(old kind.Object, m *managedfields.Manager) (kind.Object, error)) error {
	view := req.sub.View
	gvk := req.sub.BodyGVK(req.res.gvk)
	w.attributes.Kind = gvk
	c.next = func(live kind.Object) (kind.Object, error) {
		return w.throughView(c, live, next)
	}
	c.admit = func(obj, live kind.Object) (func(), error) {
		after, err := view.From(obj)
		if err != nil {
			return nil, err
		}
		before, err := view.From(live)
		if err != nil {
			return nil, err
		}
		return w.admit(admission.Update, after, before, c.updateOptions)
	}
	done, err := w.change(c)
	if err != nil {
		return err
	}
	parent := done.obj
	if done.entry != nil {
		if parent, err = req.res.objectForWrite(req.ctx, done.entry); err != nil {
			return err
		}
	}
	return s.respondView(req, parent)
}

func (w *write) throughView(c *change, live kind.Object, next func(old kind.Object, m *managedfields.Manager) (kind.Object, error)) (kind.Object, error) {
	view := w.sub.View
	m, err := w.res.managers.Manager(w.sub)
	if err != nil {
		return nil, err
	}
	owners := apimanagedfields.NewScaleHandler(live.GetManagedFields(), w.res.gvk.GroupVersion(), w.viewPaths())
	old, err := view.From(live)
	if err != nil {
		return nil, err
	}
	entries, err := owners.ToSubresource()
	if err != nil {
		return nil, err
	}
	old.SetManagedFields(entries)
	wanted, err := next(old, m)
	if err != nil {
		return nil, err
	}
	if wanted, err = w.mutate(admission.Update, wanted, old, c.updateOptions); err != nil {
		return nil, err
	}
	if view.Validate != nil {
		if errs := view.Validate(wanted); len(errs) > 0 {
			return nil, kind.NewInvalid(w.attributes.Kind.GroupKind(), live.GetName(), errs)
		}
	}
	if uid := wanted.GetUID(); uid != "" && uid != live.GetUID() {
		gr := w.res.groupResource()
		gr.Resource += "/" + w.sub.Name
		return nil, apierrors.NewConflict(gr, live.GetName(),
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, live.GetUID()))
	}
	parent := live.DeepCopyObject().(kind.Object)
	if err := view.Apply(wanted, parent); err != nil {
		return nil, err
	}
	parent.SetResourceVersion(wanted.GetResourceVersion())
	if entries, err = owners.ToParent(wanted.GetManagedFields()); err != nil {
		return nil, err
	}
	parent.SetManagedFields(entries)
	return parent, nil
}

// viewPaths are the paths of the parent's replicas field for each version, for managedFields.
func (w *write) viewPaths() apimanagedfields.ResourcePathMappings {
	k := w.res.kind
	paths := apimanagedfields.ResourcePathMappings{}
	for i := range k.Versions {
		v := &k.Versions[i]
		var path fieldpath.Path // nil for a version without this view
		for _, sub := range k.SubresourcesOf(v) {
			if sub.Name == w.sub.Name && sub.View != nil {
				path = replicasPath(sub.View)
			}
		}
		paths[v.GVK.GroupVersion().String()] = path
	}
	return paths
}

// replicasPath is the path of the field of the parent that is spec.replicas of the view.
func replicasPath(view *kind.View) (path fieldpath.Path) {
	dotted, ok := view.Paths["spec.replicas"]
	if !ok {
		dotted = "spec.replicas"
	}
	for _, name := range strings.Split(strings.TrimPrefix(dotted, "."), ".") {
		path = append(path, fieldpath.FieldNameElement(name))
	}
	return path
}

// createSub serves a POST of a subresource (eviction, binding, token).
func (s *Server) createSub(req *request) error {
	if req.sub.Create == nil {
		return errNoMethod()
	}
	if _, err := req.negotiate(); err != nil {
		return err
	}
	f, err := req.contentFormat()
	if err != nil {
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
	obj := req.sub.NewBody()
	gvk := req.sub.BodyGVK(req.res.gvk)
	if err := s.decodeInto(obj, requestBody{data: body, format: f, want: gvk, fieldValidation: parseFieldValidation(options.FieldValidation)}, req.warn); err != nil {
		return err
	}
	kind.ClearType(obj)
	s.auditObject(req, obj, gvk)
	w := s.newWrite(req, isDryRun(options.DryRun))
	w.attributes.Kind = gvk
	if !req.sub.KeepBodyUID {
		clearSystemFields(obj)
	}
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	if obj, err = w.mutate(admission.Create, obj, nil, options); err != nil {
		return err
	}
	undo, err := w.admit(admission.Create, obj, nil, options)
	if err != nil {
		return err
	}
	done := false
	defer undoUnless(&done, undo)
	created, err := req.sub.Create(w.ctx, s.KindClient(), &w.kindRequest, types.NamespacedName{Namespace: w.namespace, Name: w.name}, obj)
	if err != nil {
		return err
	}
	done = !w.kindRequest.DryRun
	return s.respondCreated(req, created)
}
