package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
)

// protoMessage is implemented by all built-in API types.
type protoMessage interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// The protobuf encoding of an object, on the wire and in the store, is an envelope: four bytes of magic, then a message with
// the object's type (field 1), the object's own message (field 2), and two empty strings (fields 3 and 4).
var (
	envelopeMagic = []byte("k8s\x00")
	envelopeTail  = []byte{0x1a, 0x00, 0x22, 0x00}
)

const (
	tagField1 = 0x0a // a length-delimited field 1, and so on
	tagField2 = 0x12
	tagField6 = 0x32
)

// storeCodec encodes a kind's objects for the store: in protobuf for built-in types, in JSON for the others. The resourceVersion is
// not stored; it is the revision of the write.
type storeCodec struct {
	kind     *kind.Kind
	protobuf bool
	prefix   []byte // of the envelope: magic and type
}

func newStoreCodec(k *kind.Kind) *storeCodec {
	_, protobuf := k.New().(protoMessage)
	return &storeCodec{kind: k, protobuf: protobuf, prefix: envelopePrefix(k.StorageGVK())}
}

// envelopePrefix is the envelope up to the object's message.
func envelopePrefix(gvk schema.GroupVersionKind) []byte {
	apiVersion, kindName := gvk.ToAPIVersionAndKind()
	var typeMeta []byte
	typeMeta = appendBytes(append(typeMeta, tagField1), []byte(apiVersion))
	typeMeta = appendBytes(append(typeMeta, tagField2), []byte(kindName))
	prefix := append(bytes.Clone(envelopeMagic), tagField1)
	return appendBytes(prefix, typeMeta)
}

func appendBytes(to, what []byte) []byte {
	return append(binary.AppendUvarint(to, uint64(len(what))), what...)
}

func uvarintLen(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }

// Encode implements cache.Codec. It clears the fields of obj that are not stored.
func (c *storeCodec) Encode(obj kind.Object) ([]byte, error) {
	obj.SetResourceVersion("")
	obj.SetSelfLink("")
	if !c.protobuf {
		value, err := marshalJSON(obj)
		if err != nil {
			return nil, fmt.Errorf("encode %s %s/%s: %w", c.kind.Plural, obj.GetNamespace(), obj.GetName(), err)
		}
		return append(value, '\n'), nil // upstream's encoder ends a value with a newline
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	value, err := appendEnvelope(nil, c.prefix, obj.(protoMessage))
	if err != nil {
		return nil, fmt.Errorf("encode %s %s/%s: %w", c.kind.Plural, obj.GetNamespace(), obj.GetName(), err)
	}
	return value, nil
}

// appendEnvelope appends the whole protobuf encoding of a message.
func appendEnvelope(to, prefix []byte, message protoMessage) ([]byte, error) {
	size := message.Size()
	if to == nil {
		to = make([]byte, 0, len(prefix)+1+uvarintLen(size)+size+len(envelopeTail))
	}
	to = append(append(to, prefix...), tagField2)
	to = binary.AppendUvarint(to, uint64(size))
	to, err := appendMessage(to, message, size)
	return append(to, envelopeTail...), err
}

// appendMessage appends a message of known size.
func appendMessage(to []byte, message protoMessage, size int) ([]byte, error) {
	start := len(to)
	to = append(to, make([]byte, size)...)
	written, err := message.MarshalToSizedBuffer(to[start:])
	if err == nil && written != size {
		err = fmt.Errorf("message of %d bytes was announced as %d", written, size)
	}
	return to, err
}

// Decode implements cache.Codec.
func (c *storeCodec) Decode(value []byte, revision store.Revision) (kind.Object, error) {
	obj, err := c.decode(value)
	if err != nil {
		return nil, fmt.Errorf("decode stored %s: %w", c.kind.Plural, err)
	}
	switch {
	case c.kind.Custom != nil:
		if err := c.kind.Custom.FromStore(obj); err != nil {
			return nil, fmt.Errorf("decode stored %s: %w", c.kind.Plural, err)
		}
	case c.kind.Default != nil:
		c.kind.Default(obj)
	}
	obj.SetResourceVersion(strconv.FormatInt(revision, 10))
	return obj, nil
}

func (c *storeCodec) decode(value []byte) (kind.Object, error) {
	if !bytes.HasPrefix(value, envelopeMagic) {
		return c.decodeJSON(value)
	}
	envelope, err := parseEnvelope(value)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(value, c.prefix) {
		return unmarshalMessage(envelope.raw, c.kind.New())
	}
	return c.decodeAs(schema.FromAPIVersionAndKind(envelope.apiVersion, envelope.kind), func(obj kind.Object) error {
		_, err := unmarshalMessage(envelope.raw, obj)
		return err
	})
}

// decodeJSON decodes an object that was stored in JSON: a custom resource, or a built-in type that another server stored.
func (c *storeCodec) decodeJSON(value []byte) (kind.Object, error) {
	unmarshal := func(obj kind.Object) error { return unmarshalJSON(value, obj) }
	if custom, ok := c.kind.New().(*unstructured.Unstructured); ok {
		return custom, unmarshal(custom)
	}
	var stored metav1.TypeMeta
	if err := json.Unmarshal(value, &stored); err != nil {
		return nil, err
	}
	gvk := stored.GroupVersionKind()
	if gvk.Empty() || gvk == c.kind.StorageGVK() {
		gvk = c.kind.GVK
	}
	obj, err := c.decodeAs(gvk, unmarshal)
	if err == nil {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, err
}

// decodeAs decodes an object that was stored as gvk.
func (c *storeCodec) decodeAs(gvk schema.GroupVersionKind, unmarshal func(kind.Object) error) (kind.Object, error) {
	if gvk == c.kind.GVK {
		obj := c.kind.New()
		return obj, unmarshal(obj)
	}
	for _, versions := range [][]kind.Version{c.kind.Versions, c.kind.StoredOnly} {
		for i := range versions {
			if v := &versions[i]; v.GVK == gvk && v.New != nil {
				obj := v.New()
				if err := unmarshal(obj); err != nil {
					return nil, err
				}
				return v.ToStorageVersion(obj)
			}
		}
	}
	return nil, fmt.Errorf("stored as %s, which is not served", gvk)
}

func unmarshalMessage(raw []byte, obj kind.Object) (kind.Object, error) {
	message, ok := obj.(protoMessage)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf encoding", obj)
	}
	return obj, message.Unmarshal(raw)
}

func unmarshalJSON(data []byte, obj kind.Object) error {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = map[string]any{}
		return kjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object)
	}
	return json.Unmarshal(data, obj)
}

// marshalJSON encodes an object. The encoder of an unstructured object would be followed by a second pass over its text.
func marshalJSON(obj runtime.Object) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return json.Marshal(u.Object)
	}
	return json.Marshal(obj)
}

// envelope is the decoded outer message (runtime.Unknown). raw points into the input.
type envelope struct {
	apiVersion, kind string
	raw              []byte
	contentEncoding  string
	contentType      string
}

var errTruncated = errors.New("protobuf message is cut off or malformed")

// parseEnvelope decodes the protobuf encoding of an object, magic included.
func parseEnvelope(data []byte) (envelope, error) {
	var e envelope
	rest, ok := bytes.CutPrefix(data, envelopeMagic)
	if !ok {
		return e, errors.New("not the protobuf encoding of an object: it does not begin with k8s\\x00")
	}
	err := eachField(rest, func(field int, value []byte) error {
		switch field {
		case 1:
			return eachField(value, func(field int, value []byte) error {
				switch field {
				case 1:
					e.apiVersion = string(value)
				case 2:
					e.kind = string(value)
				}
				return nil
			})
		case 2:
			e.raw = value
		case 3:
			e.contentEncoding = string(value)
		case 4:
			e.contentType = string(value)
		}
		return nil
	})
	return e, err
}

// eachField calls visit for the length-delimited fields of a message and skips the others.
func eachField(message []byte, visit func(field int, value []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errTruncated
		}
		message = message[n:]
		size, err := fieldSize(message, tag)
		if err != nil {
			return err
		}
		if tag&7 == 2 {
			length, n := binary.Uvarint(message)
			if err := visit(int(tag>>3), message[n:n+int(length)]); err != nil {
				return err
			}
		}
		message = message[size:]
	}
	return nil
}

// fieldSize is the size of a field after its tag.
func fieldSize(rest []byte, tag uint64) (int, error) {
	size := -1
	switch tag & 7 {
	case 0:
		if _, n := binary.Uvarint(rest); n > 0 {
			size = n
		}
	case 1:
		size = 8
	case 2:
		if length, n := binary.Uvarint(rest); n > 0 && length <= uint64(len(rest)-n) {
			size = n + int(length)
		}
	case 5:
		size = 4
	}
	if size < 0 || size > len(rest) {
		return 0, errTruncated
	}
	return size, nil
}

// splice is a stored message split where its resourceVersion belongs, so that the message can be written with a resourceVersion
// without being decoded:
//
//	[tag of metadata] [length of metadata] before [tag, length, resourceVersion] after
//
// before is metadata up to its field 6, after is the rest of the message. A list has one splice for each item, so it is kept small:
// offsets in body, which is the message after the length of metadata.
type splice struct {
	body                     []byte
	versionStart, versionEnd int32 // before is body[:versionStart], after is body[versionEnd:]
	metadata                 int32 // length of metadata with the resourceVersion
	versionLen               int32
	revision                 store.Revision
}

// newSplice splits the message of a stored value. ok is false when its layout is not that of our own encoder.
func newSplice(stored, prefix []byte, revision store.Revision) (s splice, ok bool) {
	raw, ok := storedMessage(stored, prefix)
	if !ok || len(raw) == 0 || raw[0] != tagField1 {
		return s, false
	}
	length, n := binary.Uvarint(raw[1:])
	if n <= 0 || length > uint64(len(raw)-1-n) {
		return s, false
	}
	body := raw[1+n:]
	meta := body[:length]
	start := 0
	for start < len(meta) && meta[start] < tagField6 {
		size, err := fieldSize(meta[start+1:], uint64(meta[start]))
		if err != nil {
			return s, false
		}
		start += 1 + size
	}
	end := start
	if start < len(meta) && meta[start] == tagField6 {
		size, err := fieldSize(meta[start+1:], tagField6)
		if err != nil {
			return s, false
		}
		end = start + 1 + size
	}
	var version [20]byte
	s = splice{body: body, versionStart: int32(start), versionEnd: int32(end), revision: revision}
	s.versionLen = int32(len(strconv.AppendInt(version[:0], revision, 10)))
	s.metadata = int32(start+2+len(meta)-end) + s.versionLen
	return s, true
}

// storedMessage is the object's own message in a stored value.
func storedMessage(stored, prefix []byte) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(stored, prefix)
	if !ok || len(rest) == 0 || rest[0] != tagField2 {
		return nil, false
	}
	length, n := binary.Uvarint(rest[1:])
	if n <= 0 || length > uint64(len(rest)-1-n) {
		return nil, false
	}
	return rest[1+n : 1+n+int(length)], true
}

func (s *splice) size() int {
	return 1 + uvarintLen(int(s.metadata)) + int(s.versionStart) + 2 + int(s.versionLen) + len(s.body) - int(s.versionEnd)
}

func (s *splice) append(to []byte) []byte {
	to = binary.AppendUvarint(append(to, tagField1), uint64(s.metadata))
	to = append(to, s.body[:s.versionStart]...)
	to = append(to, tagField6, byte(s.versionLen))
	to = strconv.AppendInt(to, s.revision, 10)
	return append(to, s.body[s.versionEnd:]...)
}

// encoder encodes the cache entries of one resource.
type encoder struct {
	// jsonPrefix begins a JSON object with its type: {"kind":"Pod","apiVersion":"v1",
	// The cached JSON of an entry does not have it, because items of a list do not. It is empty for custom resources, whose items
	// have it.
	jsonPrefix  []byte
	protoPrefix []byte
	storePrefix []byte // of the storage version
	stored      bool
	protobuf    bool
	// convert and convertAll return objects in the served version; convert is nil if they have it. They may call a webhook, until ctx is done.
	convert    func(ctx context.Context, obj kind.Object) (kind.Object, error)
	convertAll func(ctx context.Context, objs []kind.Object) ([]kind.Object, error)
	webhook    bool
	ctx        context.Context // of the request; see with

	// marshal encodes an object of the served version in JSON.
	marshal func(obj kind.Object) ([]byte, error)

	encodingIDs encodingIDs
	memoize     memoizer
	// bytes returns the stored bytes of an entry. They are nil if they were evicted and are not read back.
	bytes func(*cache.Entry) ([]byte, error)
}

// memoizer returns an encoding of an entry, from the cache if possible: a method of cache.Entry.
type memoizer func(*cache.Entry, cache.EncodingID, func(*cache.Entry) ([]byte, error)) ([]byte, error)

// encodingIDs are the names of the encodings that are cached with each entry of a resource.
type encodingIDs struct {
	json, proto, partialJSON, partialProto                 cache.EncodingID
	deselectedJSON, deselectedProto                        cache.EncodingID
	listJSON, listProto, listPartialJSON, listPartialProto cache.EncodingID
}

func newEncoder(res *resource) encoder {
	e := encoder{stored: res.stored(), protobuf: res.codec.protobuf, convertAll: res.fromStorageVersions, webhook: res.callsWebhook(), ctx: context.Background(),
		protoPrefix: envelopePrefix(res.gvk), storePrefix: res.codec.prefix, marshal: marshalObject,
		memoize: (*cache.Entry).Encoding, bytes: func(entry *cache.Entry) ([]byte, error) { return entry.Stored(), nil }}
	if e.protobuf {
		e.jsonPrefix = jsonPrefix(res.gvk)
	}
	if res.kind.EncodeJSON != nil && e.stored {
		e.marshal = res.kind.EncodeJSON
	}
	if res.converts() {
		e.convert = res.fromStorageVersion
	}
	id := func(form string) cache.EncodingID {
		return cache.EncodingID{Version: res.gvk.GroupVersion().String(), Format: form}
	}
	e.encodingIDs = encodingIDs{
		json: id("json"), proto: id("proto"), partialJSON: id("partial json"), partialProto: id("partial proto"),
		deselectedJSON: id("deselected json"), deselectedProto: id("deselected proto"),
		listJSON: id("list json"), listProto: id("list proto"),
		listPartialJSON: id("list partial json"), listPartialProto: id("list partial proto"),
	}
	return e
}

// forLists returns an encoder for lists, which may be read long after their entries were superseded. It makes the same bytes of an entry
// before and after eviction, because the length of a protobuf list is computed before the list is sent.
func (e encoder) forLists() *encoder {
	e.memoize, e.bytes = (*cache.Entry).ListEncoding, (*cache.Entry).Value
	return &e
}

// with returns the encoder for a request: the calls of a webhook end when ctx is done, and the request has no seats while it waits for one, also if
// another request calls it for the same encoding. Without a webhook nothing depends on the request.
func (e *encoder) with(ctx context.Context) *encoder {
	if !e.webhook {
		return e
	}
	bound := *e
	bound.ctx = ctx
	bound.memoize = func(entry *cache.Entry, id cache.EncodingID, make func(*cache.Entry) ([]byte, error)) (encoded []byte, err error) {
		if entry.IsEncoded(id) {
			return e.memoize(entry, id, make)
		}
		kind.Wait(ctx, func() { encoded, err = e.memoize(entry, id, make) })
		return encoded, err
	}
	return &bound
}

// jsonPrefix begins a JSON object with its type. Some discovery documents have no version.
func jsonPrefix(gvk schema.GroupVersionKind) []byte {
	apiVersion, kindName := gvk.ToAPIVersionAndKind()
	if apiVersion == "" {
		return fmt.Appendf(nil, `{"kind":%q,`, kindName)
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kindName, apiVersion)
}

// object is the entry's object in the served version: shared and read-only.
func (e *encoder) object(entry *cache.Entry) (kind.Object, error) {
	obj, err := entry.Object()
	if err != nil || e.convert == nil {
		return obj, err
	}
	return e.convert(e.ctx, obj)
}

// json is the entry as an item of a JSON list: for built-in types without kind and apiVersion.
func (e *encoder) json(entry *cache.Entry) ([]byte, error) {
	return e.memoize(entry, e.encodingIDs.json, e.marshalJSON)
}

func (e *encoder) marshalJSON(entry *cache.Entry) ([]byte, error) {
	return e.marshalWith(entry, e.marshal)
}

// marshalWith encodes the entry's object in the served version.
func (e *encoder) marshalWith(entry *cache.Entry, marshal func(kind.Object) ([]byte, error)) ([]byte, error) {
	obj, err := e.object(entry)
	if err != nil {
		return nil, err
	}
	return marshal(obj)
}

func marshalObject(obj kind.Object) ([]byte, error) { return marshalJSON(obj) }

// message is the entry's own protobuf message where it must be made by encoding: versions other than the stored one,
// and values that were not written by our encoder.
func (e *encoder) message(entry *cache.Entry) ([]byte, error) {
	return e.memoize(entry, e.encodingIDs.proto, func(entry *cache.Entry) ([]byte, error) {
		obj, err := e.object(entry)
		if err != nil {
			return nil, err
		}
		return marshalMessage(obj)
	})
}

func marshalMessage(obj runtime.Object) ([]byte, error) {
	message, ok := obj.(protoMessage)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf encoding", obj)
	}
	return appendMessage(nil, message, message.Size())
}

// protoItem is an entry's protobuf message ready to be written: spliced from the stored bytes where that is possible.
type protoItem struct {
	splice  splice
	encoded []byte // set when there is no splice
}

// newProtoItem encodes an object that is not a cache entry.
func newProtoItem(obj runtime.Object) (protoItem, error) {
	encoded, err := marshalMessage(obj)
	return protoItem{encoded: encoded}, err
}

func (e *encoder) proto(entry *cache.Entry) (protoItem, error) {
	if e.stored {
		stored, err := e.bytes(entry)
		if err != nil {
			return protoItem{}, err
		}
		if s, ok := newSplice(stored, e.protoPrefix, entry.Revision()); ok {
			return protoItem{splice: s}, nil
		}
	}
	encoded, err := e.message(entry)
	return protoItem{encoded: encoded}, err
}

func (p *protoItem) size() int {
	if p.encoded != nil {
		return len(p.encoded)
	}
	return p.splice.size()
}

func (p *protoItem) append(to []byte) []byte {
	if p.encoded != nil {
		return append(to, p.encoded...)
	}
	return p.splice.append(to)
}

// appendJSON appends the entry as a JSON object of its own, with kind and apiVersion.
func (e *encoder) appendJSON(to []byte, entry *cache.Entry) ([]byte, error) {
	body, err := e.json(entry)
	if err != nil {
		return to, err
	}
	return e.appendBody(to, body), nil
}

// appendMarshaled is appendJSON without caching the encoding, for an entry that is unlikely to be read soon.
func (e *encoder) appendMarshaled(to []byte, entry *cache.Entry) ([]byte, error) {
	body, err := e.marshalJSON(entry)
	if err != nil {
		return to, err
	}
	return e.appendBody(to, body), nil
}

// appendRepeatedJSON is appendJSON that caches the encoding only if it was requested before.
func (e *encoder) appendRepeatedJSON(to []byte, entry *cache.Entry) ([]byte, error) {
	body, err := entry.RepeatedEncoding(e.encodingIDs.json, e.marshalJSON)
	if err != nil {
		return to, err
	}
	return e.appendBody(to, body), nil
}

// appendBody appends an item of a list as an object of its own.
func (e *encoder) appendBody(to, body []byte) []byte {
	if len(e.jsonPrefix) == 0 {
		return append(to, body...)
	}
	return append(append(to, e.jsonPrefix...), body[1:]...)
}

// appendProto appends the entry as an object of its own: the whole envelope.
func (e *encoder) appendProto(to []byte, entry *cache.Entry) ([]byte, error) {
	item, err := e.proto(entry)
	if err != nil {
		return to, err
	}
	return e.appendEnvelope(to, &item), nil
}

func (e *encoder) appendEnvelope(to []byte, item *protoItem) []byte {
	to = append(append(to, e.protoPrefix...), tagField2)
	to = binary.AppendUvarint(to, uint64(item.size()))
	return append(item.append(to), envelopeTail...)
}
