package admission

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Versions are the versions in which the objects of a write are served. Plugins get objects of the storage version; webhooks and
// policies get them in the version that their rules name.
type Versions interface {
	// Equivalents are the resources that serve the same objects, the one of the request included: all served versions, in all
	// groups. For a subresource they are those that have it.
	Equivalents() []Equivalent
	// Convert returns an object of the storage version in another one. The result may be obj itself and may lack apiVersion and kind.
	Convert(obj runtime.Object, kind schema.GroupVersionKind) (runtime.Object, error)
	// Encode returns the JSON of an object of the storage version in another one, with apiVersion and kind.
	Encode(obj runtime.Object, kind schema.GroupVersionKind) ([]byte, error)
	// Decode returns the object of the storage version for JSON of another one: fields that are not in the schema are removed, defaults
	// are set. Data that is larger than a request may be is an error.
	Decode(data []byte, kind schema.GroupVersionKind) (runtime.Object, error)
}

// Equivalent is a resource that serves the objects of a write, and their kind there.
type Equivalent struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}
