package apiserver

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// runAction serves a POST of a kind with an Action: nothing is stored, the response is computed.
func (s *Server) runAction(req *request, w *write, obj kind.Object, options *metav1.CreateOptions) error {
	clearSystemFields(obj)
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	w.name = obj.GetName()
	obj, err := w.mutate(admission.Create, obj, nil, options)
	if err != nil {
		return err
	}
	if validate := w.res.kind.Validate; validate != nil {
		if errs := validate(&w.kindRequest, obj, nil); len(errs) > 0 {
			return kind.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
		}
	}
	undo, err := w.admit(admission.Create, obj, nil, options)
	if err != nil {
		return err
	}
	done := false
	defer undoUnless(&done, undo)
	result, err := w.res.kind.Action(w.ctx, s.KindClient(), &w.kindRequest, obj)
	if err != nil {
		return err
	}
	done = !w.kindRequest.DryRun
	return s.respondCreated(req, result)
}

// respondCreated responds to a POST with its result.
func (s *Server) respondCreated(req *request, obj runtime.Object) error {
	if status, ok := obj.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return s.respondObject(req, http.StatusCreated, obj)
}
