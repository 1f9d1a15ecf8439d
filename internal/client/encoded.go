package client

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// Metadata is what can be read of an object without decoding all of it.
type Metadata interface {
	GetNamespace() string
	GetName() string
	GetLabels() map[string]string
	GetAnnotations() map[string]string
}

// protobufMessage is an object of the API in its protobuf encoding.
type protobufMessage interface {
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// encodedObject is an object in the cache of an informer, encoded in protobuf: a fraction of the memory of the decoded object, in two pieces without pointers.
type encodedObject struct {
	// Object is nil: the cache calls no methods but those below.
	metav1.Object
	// names are namespace, name and resource version, which end at the numbers.
	names                 string
	namespaceEnd, nameEnd uint32
	data                  []byte
}

func encode(obj kind.Object) (*encodedObject, error) {
	data, err := obj.(protobufMessage).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	namespace, name := obj.GetNamespace(), obj.GetName()
	return &encodedObject{
		names: namespace + name + obj.GetResourceVersion(), namespaceEnd: uint32(len(namespace)), nameEnd: uint32(len(namespace) + len(name)), data: data,
	}, nil
}

func (o *encodedObject) GetNamespace() string       { return o.names[:o.namespaceEnd] }
func (o *encodedObject) GetName() string            { return o.names[o.namespaceEnd:o.nameEnd] }
func (o *encodedObject) GetResourceVersion() string { return o.names[o.nameEnd:] }

func (o *encodedObject) GetLabels() map[string]string      { return o.metadata().Labels }
func (o *encodedObject) GetAnnotations() map[string]string { return o.metadata().Annotations }

// metadata decodes the metadata, which is the first field of every kind.
func (o *encodedObject) metadata() *metav1.ObjectMeta {
	var m metav1.PartialObjectMetadata
	o.decode(&m)
	return &m.ObjectMeta
}

func (o *encodedObject) decode(into protobufMessage) {
	if err := into.Unmarshal(o.data); err != nil {
		panic(fmt.Sprintf("client: %s/%s cannot be decoded: %v", o.GetNamespace(), o.GetName(), err)) // it was encoded by encode
	}
}

// decodedObject returns an object of a cache, decoded if it is encoded. t is the type of the informer's objects.
func decodedObject(obj any, t reflect.Type) any {
	o, ok := obj.(*encodedObject)
	if !ok {
		return obj
	}
	message := reflect.New(t.Elem()).Interface()
	o.decode(message.(protobufMessage))
	return message
}

// decoded returns an object of a cache, decoded if it is encoded.
func decoded[T kind.Object](obj any) T { return decodedObject(obj, reflect.TypeFor[T]()).(T) }

// SetEncoded is SetTransform for objects of which there are many and few are read at a time: the informer keeps the encoding of what transform returns,
// and decodes it whenever an object is read. Handlers and indexes that need metadata alone should be those for Metadata.
func (i Informer[T]) SetEncoded(transform func(obj T) T) error {
	if i.inProcess {
		return nil
	}
	if _, ok := any(*new(T)).(protobufMessage); !ok {
		return fmt.Errorf("%v has no protobuf encoding", reflect.TypeFor[T]())
	}
	return i.shared.SetTransform(func(obj any) (any, error) {
		// The informer passes objects that are encoded already, and markers of its own.
		if typed, ok := obj.(T); ok {
			return encode(transform(typed))
		}
		return obj, nil
	})
}
