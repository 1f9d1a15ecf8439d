package apiserver

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// act answers a POST of a kind that is a question: nothing is stored, the answer is computed.
func (s *Server) act(req *request, w *write, obj kind.Object, options *metav1.CreateOptions) error {
	wipeSystemFields(obj)
	if err := ensureNamespace(w.namespace, obj); err != nil {
		return err
	}
	w.name = obj.GetName()
	obj, err := w.mutate(admission.Create, obj, nil, options)
	if err != nil {
		return err
	}
	if validate := w.res.kind.Validate; validate != nil {
		if errs := validate(&w.rules, obj, nil); len(errs) > 0 {
			return apierrors.NewInvalid(w.res.gvk.GroupKind(), obj.GetName(), errs)
		}
	}
	undo, err := w.admit(admission.Create, obj, nil, options)
	if err != nil {
		return err
	}
	answer, err := w.res.kind.Action(w.ctx, s.env(), &w.rules, obj)
	if err != nil || w.rules.DryRun {
		undo()
	}
	if err != nil {
		return err
	}
	return s.respondCreated(req, answer)
}

// respondCreated answers a POST with whatever came of it.
func (s *Server) respondCreated(req *request, answer runtime.Object) error {
	if status, ok := answer.(*metav1.Status); ok && status.Code == 0 {
		status.Code = http.StatusCreated
	}
	return s.respondObject(req, http.StatusCreated, answer)
}
