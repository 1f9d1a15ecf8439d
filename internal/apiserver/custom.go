package apiserver

import (
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// objectForWrite returns the entry's object as a write handles it: in the storage version, or for a custom resource in the served
// version. It is shared and read-only.
func (r *resource) objectForWrite(entry *cache.Entry) (kind.Object, error) {
	obj, err := entry.Object()
	if err != nil || r.kind.Custom == nil {
		return obj, err
	}
	return r.fromStorageVersion(obj)
}

// emptyForWrite makes the empty object that a new one is compared with, in the version of objectForWrite.
func (r *resource) emptyForWrite() kind.Object {
	if r.kind.Custom != nil {
		return r.newObject()
	}
	return r.kind.New()
}

// toStore returns an object as objectForWrite in the storage version.
func (r *resource) toStore(obj kind.Object) (kind.Object, error) {
	if r.kind.Custom == nil {
		return obj, nil
	}
	return r.kind.Custom.ToStore(obj)
}
