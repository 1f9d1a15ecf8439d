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
	if version := req.query.Get("resourceVersion"); version == "" {
		if _, err := s.config.Cache.Sync(req.ctx); err != nil {
			return nil, err
		}
	} else {
		wanted, err := parseResourceVersion(version)
		if err != nil {
			return nil, err
		}
		if err := s.waitFor(req.ctx, wanted); err != nil {
			return nil, err
		}
	}
	entry := req.res.table.Get(req.res.kind.Key(req.info.namespace, req.info.name))
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
