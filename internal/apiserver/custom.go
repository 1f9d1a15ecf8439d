package apiserver

import (
	"context"
	"fmt"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// The objects of a custom resource are converted by a webhook, if its definition says so. A call belongs to the request that needs the objects: it ends
// when the request does. Encodings and selectable fields are shared by all readers, so a reader that waits for one whose request ends makes it itself
// (cache.ErrAbandoned).

// abandoned marks the error of a request that has ended, whatever it was: others who need the same value make it themselves.
func abandoned(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", cache.ErrAbandoned, ctx.Err())
	}
	return err
}

// callsWebhook reports whether a webhook converts the objects, so that they are better converted together.
func (r *resource) callsWebhook() bool {
	custom := r.kind.Custom
	return custom != nil && custom.Webhook && custom.Convert != nil
}

// converts reports whether objects of the cache may have another version than the served one.
func (r *resource) converts() bool {
	return r.version.FromStorageVersion != nil || r.kind.Custom != nil && r.kind.Custom.Convert != nil
}

// fromStorageVersion converts an object to the served version. It returns obj itself when it is in that version already.
func (r *resource) fromStorageVersion(ctx context.Context, obj kind.Object) (kind.Object, error) {
	if !r.converts() {
		return obj, nil
	}
	converted, err := r.fromStorageVersions(ctx, []kind.Object{obj})
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// fromStorageVersions converts objects to the served version.
func (r *resource) fromStorageVersions(ctx context.Context, objs []kind.Object) ([]kind.Object, error) {
	converted, err := r.kind.FromStorageVersion(ctx, r.version, objs)
	return converted, abandoned(ctx, err)
}

// objectForWrite returns the entry's object as a write handles it: in the storage version, or for a custom resource in the served
// version. It is shared and read-only.
func (r *resource) objectForWrite(ctx context.Context, entry *cache.Entry) (kind.Object, error) {
	obj, err := entry.Object()
	if err != nil || r.kind.Custom == nil {
		return obj, err
	}
	return r.fromStorageVersion(ctx, obj)
}

// emptyForWrite makes the empty object that a new one is compared with, in the version of objectForWrite.
func (r *resource) emptyForWrite() kind.Object {
	if r.kind.Custom != nil {
		return r.newObject()
	}
	return r.kind.New()
}

// toStore returns an object as objectForWrite in the storage version.
func (r *resource) toStore(ctx context.Context, obj kind.Object) (kind.Object, error) {
	if r.kind.Custom == nil || r.kind.Custom.Convert == nil {
		return obj, nil
	}
	converted, err := r.kind.Custom.Convert(ctx, []kind.Object{obj}, r.kind.StorageGVK())
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// encodeConverted returns encodings of entries. The objects of those that have none yet are converted together.
func (e *encoder) encodeConverted(entries []*cache.Entry, id cache.EncodingID, marshal func(kind.Object) ([]byte, error)) ([][]byte, error) {
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
	converted, err := e.convertAll(e.ctx, objs)
	if err != nil {
		return nil, err
	}
	for i, at := range missing {
		if bodies[at], err = e.memoize(entries[at], id, func(*cache.Entry) ([]byte, error) { return marshal(converted[i]) }); err != nil {
			return nil, err
		}
	}
	for i, entry := range entries {
		if bodies[i] != nil {
			continue
		}
		if bodies[i], err = e.memoize(entry, id, func(entry *cache.Entry) ([]byte, error) { return e.marshalWith(entry, marshal) }); err != nil {
			return nil, err
		}
	}
	return bodies, nil
}

// prepare makes the encodings that a watch sends, so that the objects are converted together.
func (e *encoder) prepare(events []selectedEvent, out output) error {
	entries := make([]*cache.Entry, 0, len(events))
	for _, c := range events {
		if !c.deselected {
			entries = append(entries, c.event.Entry)
		}
	}
	id, marshal := e.encodingIDs.json, e.marshal
	switch {
	case out.transform == transformTable:
		return nil // its rows are made from objects, of which nothing is cached
	case out.transform == transformPartial && out.format == formatProtobuf:
		id, marshal = e.encodingIDs.partialProto, marshalPartialProto
	case out.transform == transformPartial:
		id, marshal = e.encodingIDs.partialJSON, marshalPartialJSON
	}
	_, err := e.encodeConverted(entries, id, marshal)
	return err
}
