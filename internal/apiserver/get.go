package apiserver

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/store/cache"
)

// get serves a GET of one object.
func (s *Server) get(req *request) error {
	if req.res.kind.Computed != nil {
		return s.getComputed(req)
	}
	entry, err := s.read(req)
	if err != nil {
		return err
	}
	return s.respondEntry(req, http.StatusOK, entry)
}

// read returns the object that the request names: the newest state without a resourceVersion, the cached state for "0", and otherwise a
// state that is not older than the resourceVersion.
func (s *Server) read(req *request) (*cache.Entry, error) {
	start, err := s.listStart(req.ctx, req.res.table, "", &listOptions{resourceVersion: req.query.Get("resourceVersion")})
	if err != nil {
		return nil, err
	}
	entry := start.snapshot.Get(req.res.kind.Key(req.info.namespace, req.info.name))
	if entry == nil {
		return nil, apierrors.NewNotFound(req.res.groupResource(), req.info.name)
	}
	return entry, nil
}

func (s *Server) getComputed(req *request) error {
	objs, err := s.computedObjects(req, &listOptions{})
	if err != nil {
		return err
	}
	for _, obj := range objs {
		if obj.GetName() == req.info.name {
			return s.respondObject(req, http.StatusOK, obj)
		}
	}
	return apierrors.NewNotFound(req.res.groupResource(), req.info.name)
}
