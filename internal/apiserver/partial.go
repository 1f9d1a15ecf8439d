package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// partialKind is PartialObjectMetadata in a version of meta.k8s.io.
func partialKind(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: metav1.GroupName, Version: version, Kind: "PartialObjectMetadata"}
}

// partialHeads open the JSON and protobuf encodings of partial objects, by version.
var partialHeads = map[string]struct{ json, proto []byte }{
	"v1":      {jsonHead(partialKind("v1")), envelopeHead(partialKind("v1"))},
	"v1beta1": {jsonHead(partialKind("v1beta1")), envelopeHead(partialKind("v1beta1"))},
}

// partialJSON is an entry's metadata as a JSON object without kind and apiVersion.
func (e *encoder) partialJSON(entry *cache.Entry) ([]byte, error) {
	return entry.Encoding(e.ids.partialJSON, func(entry *cache.Entry) ([]byte, error) {
		obj, err := e.object(entry)
		if err != nil {
			return nil, err
		}
		return json.Marshal(partialOf(obj))
	})
}

func (e *encoder) appendPartialJSON(to []byte, entry *cache.Entry, version string) ([]byte, error) {
	body, err := e.partialJSON(entry)
	if err != nil {
		return to, err
	}
	return append(append(to, partialHeads[version].json...), body[1:]...), nil
}

// appendPartialOf is appendPartialJSON for an object that is not a cache entry.
func appendPartialOf(to []byte, obj kind.Object, version string) ([]byte, error) {
	body, err := json.Marshal(partialOf(obj))
	if err != nil {
		return to, fmt.Errorf("write metadata of %s: %w", obj.GetName(), err)
	}
	return append(append(to, partialHeads[version].json...), body[1:]...), nil
}

// partialProto is an entry's metadata as a protobuf message. Metadata is field 1 of a partial object, as of every object, so it is
// spliced from the stored bytes too.
func (e *encoder) partialProto(entry *cache.Entry) (protoItem, error) {
	if e.protobuf {
		if s, ok := newSplice(entry.Stored(), e.storeHead, entry.Revision()); ok {
			return protoItem{splice: s.metadataOnly()}, nil
		}
	}
	encoded, err := entry.Encoding(e.ids.partialProto, func(entry *cache.Entry) ([]byte, error) {
		obj, err := e.object(entry)
		if err != nil {
			return nil, err
		}
		return marshalMessage(partialOf(obj))
	})
	return protoItem{encoded: encoded}, err
}

// metadataOnly drops the rest of the message.
func (s splice) metadataOnly() splice {
	s.body = s.body[:s.metadata-2-s.versionLen+s.next-s.at]
	return s
}

// respondShaped responds with the table or metadata of one object in the storage version.
func (s *Server) respondShaped(req *request, code int, out output, obj kind.Object) error {
	switch out.shape {
	case shapeTable:
		return s.respondTableOfOne(req, code, out, obj)
	case shapePartialList:
		return errNotAcceptableText(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", obj))
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	if out.format == formatProtobuf {
		*buffer, err = appendEnvelope(*buffer, partialHeads[out.metaVersion].proto, partialOf(obj))
	} else {
		*buffer, err = appendPartialOf(*buffer, obj, out.metaVersion)
	}
	if err != nil {
		return err
	}
	return s.finishBody(req, code, out, buffer)
}

func partialListHead(version string, p *page) []byte {
	return appendListHead(nil, "PartialObjectMetadataList", metav1.GroupName+"/"+version, p)
}

// respondPartialList responds to a list with the metadata of its objects.
func (s *Server) respondPartialList(req *request, out output, p *page) error {
	res := req.res
	if out.format == formatProtobuf {
		head := envelopeHead(schema.GroupVersionKind{Group: metav1.GroupName, Version: out.metaVersion, Kind: "PartialObjectMetadataList"})
		return s.respondProtoItems(req, head, p, &protoItems{page: p, encode: res.partialProto, id: res.ids.listPartialProto})
	}
	id := res.ids.listPartialJSON
	id.Format += " " + out.metaVersion
	return s.respondJSONItems(req, out, partialListHead(out.metaVersion, p), &jsonItems{
		page: p, encode: res.partialJSON, head: partialHeads[out.metaVersion].json, id: id,
	})
}

// respondPartialListOf responds to a list of a virtual kind with the metadata of its objects.
func (s *Server) respondPartialListOf(req *request, out output, objs []kind.Object) error {
	list := &metav1.PartialObjectMetadataList{Items: make([]metav1.PartialObjectMetadata, len(objs))}
	for i, obj := range objs {
		list.Items[i] = *partialOf(obj)
		list.Items[i].SetGroupVersionKind(partialKind(out.metaVersion))
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	gvk := schema.GroupVersionKind{Group: metav1.GroupName, Version: out.metaVersion, Kind: "PartialObjectMetadataList"}
	if *buffer, err = appendObject(*buffer, list, gvk, out.format); err != nil {
		return err
	}
	return s.finishBody(req, http.StatusOK, out, buffer)
}

// partialOf returns the PartialObjectMetadata of an object.
func partialOf(obj kind.Object) *metav1.PartialObjectMetadata {
	return meta.AsPartialObjectMetadata(obj)
}
