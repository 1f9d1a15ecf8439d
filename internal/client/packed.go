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

// packed is an object in the cache of an informer, encoded in protobuf: a fraction of the memory of the decoded object, in two pieces without pointers.
type packed struct {
	// Object is nil: the cache calls no methods but those below.
	metav1.Object
	// names are namespace, name and resource version, which end at the numbers.
	names                 string
	namespaceEnd, nameEnd uint32
	data                  []byte
}

func pack(obj kind.Object) (*packed, error) {
	data, err := obj.(protobufMessage).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	namespace, name := obj.GetNamespace(), obj.GetName()
	return &packed{
		names: namespace + name + obj.GetResourceVersion(), namespaceEnd: uint32(len(namespace)), nameEnd: uint32(len(namespace) + len(name)), data: data,
	}, nil
}

func (p *packed) GetNamespace() string       { return p.names[:p.namespaceEnd] }
func (p *packed) GetName() string            { return p.names[p.namespaceEnd:p.nameEnd] }
func (p *packed) GetResourceVersion() string { return p.names[p.nameEnd:] }

func (p *packed) GetLabels() map[string]string      { return p.metadata().Labels }
func (p *packed) GetAnnotations() map[string]string { return p.metadata().Annotations }

// metadata decodes the metadata, which is the first field of every kind.
func (p *packed) metadata() *metav1.ObjectMeta {
	var m metav1.PartialObjectMetadata
	p.decode(&m)
	return &m.ObjectMeta
}

func (p *packed) decode(into protobufMessage) {
	if err := into.Unmarshal(p.data); err != nil {
		panic(fmt.Sprintf("client: %s/%s cannot be decoded: %v", p.GetNamespace(), p.GetName(), err)) // it was encoded by pack
	}
}

// unpacked returns an object of a cache, decoded if it is packed. t is the type of the informer's objects.
func unpacked(obj any, t reflect.Type) any {
	p, ok := obj.(*packed)
	if !ok {
		return obj
	}
	decoded := reflect.New(t.Elem()).Interface()
	p.decode(decoded.(protobufMessage))
	return decoded
}

// unpack returns an object of a cache, decoded if it is packed.
func unpack[T kind.Object](obj any) T { return unpacked(obj, reflect.TypeFor[T]()).(T) }

// SetPacked is SetTransform for objects of which there are many and few are read at a time: the informer keeps the encoding of what transform returns,
// and decodes it whenever an object is read. Handlers and indexes that need metadata alone should be those for Metadata.
func (i Informer[T]) SetPacked(transform func(obj T) T) error {
	if i.inProcess {
		return nil
	}
	if _, ok := any(*new(T)).(protobufMessage); !ok {
		return fmt.Errorf("%v has no protobuf encoding", reflect.TypeFor[T]())
	}
	return i.shared.SetTransform(func(obj any) (any, error) {
		// The informer passes objects that are packed already, and markers of its own.
		if typed, ok := obj.(T); ok {
			return pack(transform(typed))
		}
		return obj, nil
	})
}
