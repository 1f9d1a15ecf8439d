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

// partialPrefixes begin the JSON and protobuf encodings of partial objects, by version.
var partialPrefixes = map[string]struct{ json, proto []byte }{
	"v1":      {jsonPrefix(partialKind("v1")), envelopePrefix(partialKind("v1"))},
	"v1beta1": {jsonPrefix(partialKind("v1beta1")), envelopePrefix(partialKind("v1beta1"))},
}

// partialJSON is an entry's metadata as a JSON object without kind and apiVersion.
func (e *encoder) partialJSON(entry *cache.Entry) ([]byte, error) {
	return e.memoize(entry, e.encodingIDs.partialJSON, func(entry *cache.Entry) ([]byte, error) { return e.marshalWith(entry, marshalPartialJSON) })
}

func marshalPartialJSON(obj kind.Object) ([]byte, error) { return json.Marshal(toPartialMetadata(obj)) }

func marshalPartialProto(obj kind.Object) ([]byte, error) {
	return marshalMessage(toPartialMetadata(obj))
}

func (e *encoder) appendPartialJSON(to []byte, entry *cache.Entry, version string) ([]byte, error) {
	body, err := e.partialJSON(entry)
	if err != nil {
		return to, err
	}
	return append(append(to, partialPrefixes[version].json...), body[1:]...), nil
}

// appendObjectPartialJSON is appendPartialJSON for an object that is not a cache entry.
func appendObjectPartialJSON(to []byte, obj kind.Object, version string) ([]byte, error) {
	body, err := marshalPartialJSON(obj)
	if err != nil {
		return to, fmt.Errorf("write metadata of %s: %w", obj.GetName(), err)
	}
	return append(append(to, partialPrefixes[version].json...), body[1:]...), nil
}

// partialProto is an entry's metadata as a protobuf message. Metadata is field 1 of a partial object, as of every object, so it is
// copied from the stored bytes without decoding too.
func (e *encoder) partialProto(entry *cache.Entry) (protoItem, error) {
	if e.protobuf {
		stored, err := e.bytes(entry)
		if err != nil {
			return protoItem{}, err
		}
		if s, ok := newSplice(stored, e.storePrefix, entry.Revision()); ok {
			return protoItem{splice: s.metadataOnly()}, nil
		}
	}
	encoded, err := e.memoize(entry, e.encodingIDs.partialProto, func(entry *cache.Entry) ([]byte, error) { return e.marshalWith(entry, marshalPartialProto) })
	return protoItem{encoded: encoded}, err
}

// metadataOnly drops what follows metadata. Its stored length is that of s.metadata with the stored resourceVersion instead of the new one.
func (s splice) metadataOnly() splice {
	s.body = s.body[:s.metadata-2-s.versionLen+s.versionEnd-s.versionStart]
	return s
}

// respondTransformed responds with the table or metadata of one object in the storage version.
func (s *Server) respondTransformed(req *request, code int, out output, obj kind.Object) error {
	switch out.transform {
	case transformTable:
		return s.respondObjectTable(req, code, out, obj)
	case transformPartialList:
		return errNotAcceptableMessage(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", obj))
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	if out.format == formatProtobuf {
		*buffer, err = appendEnvelope(*buffer, partialPrefixes[out.metaVersion].proto, toPartialMetadata(obj))
	} else {
		*buffer, err = appendObjectPartialJSON(*buffer, obj, out.metaVersion)
	}
	if err != nil {
		return err
	}
	return s.writeEncoded(req, code, out, buffer)
}

// respondPartialList responds to a list with the metadata of its objects.
func (s *Server) respondPartialList(req *request, out output, p *page) error {
	res, lists := req.res, req.res.lists.with(req.ctx)
	gvk := schema.GroupVersionKind{Group: metav1.GroupName, Version: out.metaVersion, Kind: "PartialObjectMetadataList"}
	if out.format == formatProtobuf {
		encode := func(i int) (protoItem, error) { return lists.partialProto(p.entries[i]) }
		if len(p.objs) > 0 {
			encode = func(i int) (protoItem, error) { return newProtoItem(toPartialMetadata(p.objs[i])) }
		}
		items := &protoItems{encode: encode}
		if lists.webhook && len(p.objs) == 0 {
			items.encodeRun = func(start, end int) ([]protoItem, error) {
				bodies, err := lists.encodeConverted(p.entries[start:end], res.encodingIDs.partialProto, marshalPartialProto)
				if err != nil {
					return nil, err
				}
				encoded := make([]protoItem, len(bodies))
				for i := range bodies {
					encoded[i].encoded = bodies[i]
				}
				return encoded, nil
			}
		}
		return s.writeProtoList(req, p, gvk, items, res.encodingIDs.listPartialProto)
	}
	items := &jsonItems{prefix: partialPrefixes[out.metaVersion].json}
	items.encode = func(i int) ([]byte, error) { return lists.partialJSON(p.entries[i]) }
	if lists.webhook && len(p.objs) == 0 {
		items.encodeRun = func(start, end int) ([][]byte, error) {
			return lists.encodeConverted(p.entries[start:end], res.encodingIDs.partialJSON, marshalPartialJSON)
		}
	}
	if len(p.objs) > 0 {
		items.encode = func(i int) ([]byte, error) { return json.Marshal(toPartialMetadata(p.objs[i])) }
	}
	encoding := res.encodingIDs.listPartialJSON
	encoding.Format += " " + out.metaVersion
	prefix := appendListPrefix(nil, gvk.Kind, gvk.GroupVersion().String(), p)
	return s.writeJSONList(req, out, &listBody{page: p, code: http.StatusOK, items: items, encoding: encoding}, prefix, "items")
}

// toPartialMetadata returns the PartialObjectMetadata of an object.
func toPartialMetadata(obj kind.Object) *metav1.PartialObjectMetadata {
	return meta.AsPartialObjectMetadata(obj)
}
