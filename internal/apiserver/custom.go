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

// fromStorageVersions converts objects to the served version.
func (r *resource) fromStorageVersions(objs []kind.Object) ([]kind.Object, error) {
	if r.version.FromStorageVersions != nil {
		return r.version.FromStorageVersions(objs)
	}
	if r.version.FromStorageVersion == nil {
		return objs, nil
	}
	converted := make([]kind.Object, len(objs))
	for i, obj := range objs {
		var err error
		if converted[i], err = r.version.FromStorageVersion(obj); err != nil {
			return nil, err
		}
	}
	return converted, nil
}

// encodeConverted returns encodings of entries for a list. The objects of those that have none yet are converted together.
func (r *resource) encodeConverted(entries []*cache.Entry, id cache.EncodingID, marshal func(kind.Object) ([]byte, error)) ([][]byte, error) {
	bodies := make([][]byte, len(entries))
	var missing []int
	var objs []kind.Object
	for i, entry := range entries {
		if entry.HasEncoding(id) {
			continue
		}
		obj, err := entry.Object()
		if err != nil {
			return nil, err
		}
		missing, objs = append(missing, i), append(objs, obj)
	}
	converted, err := r.fromStorageVersions(objs)
	if err != nil {
		return nil, err
	}
	for i, at := range missing {
		if bodies[at], err = r.lists.memoize(entries[at], id, func(*cache.Entry) ([]byte, error) { return marshal(converted[i]) }); err != nil {
			return nil, err
		}
	}
	for i, entry := range entries {
		if bodies[i] != nil {
			continue
		}
		if bodies[i], err = r.lists.memoize(entry, id, func(entry *cache.Entry) ([]byte, error) { return r.lists.marshalWith(entry, marshal) }); err != nil {
			return nil, err
		}
	}
	return bodies, nil
}
