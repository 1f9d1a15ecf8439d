package apiserver

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// deleteCollection serves a DELETE of a collection: every selected object is deleted as by a request of its own. The response lists the
// objects as they were found. It is not a transaction: objects deleted before an error stay deleted.
func (s *Server) deleteCollection(req *request) error {
	out, err := req.negotiate()
	if err != nil {
		return err
	}
	if out.transform == transformPartial {
		return errNotAcceptableMessage(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", req.res.listName()))
	}
	listOptions, err := req.listOptions()
	if err != nil {
		return err
	}
	options, err := s.parseDeleteOptions(req)
	if err != nil {
		return err
	}
	found, err := s.find(req, listOptions)
	if err != nil {
		return err
	}
	for _, entry := range found.entries {
		if err := req.ctx.Err(); err != nil {
			return err
		}
		obj, err := entry.Object()
		if err != nil {
			return err
		}
		w := s.newWrite(req, isDryRun(options.DryRun))
		w.name = obj.GetName()
		if req.res.kind.Namespaced {
			w.namespace = obj.GetNamespace()
		}
		if _, err := w.delete(options); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return s.respondPage(req, out, found)
}
