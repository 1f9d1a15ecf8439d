package apiserver

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The API lifecycle methods of the Go types.
type (
	deprecated interface{ APILifecycleDeprecated() (major, minor int) }
	removed    interface{ APILifecycleRemoved() (major, minor int) }
	replaced   interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}
)

// removedRelease is the release in which the type is removed, empty when there is none.
func removedRelease(obj runtime.Object) string {
	if r, ok := obj.(removed); ok {
		if major, minor := r.APILifecycleRemoved(); major != 0 || minor != 0 {
			return fmt.Sprintf("%d.%d", major, minor)
		}
	}
	return ""
}

// deprecationOf is the warning in every response for a deprecated version of a resource; empty for other versions.
func deprecationOf(obj runtime.Object, gvk schema.GroupVersionKind) string {
	d, ok := obj.(deprecated)
	if !ok {
		return ""
	}
	major, minor := d.APILifecycleDeprecated()
	if major == 0 && minor == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s is deprecated in v%d.%d+", gvk.GroupVersion(), gvk.Kind, major, minor)
	if release := removedRelease(obj); release != "" {
		text += fmt.Sprintf(", unavailable in v%s+", release)
	}
	if r, ok := obj.(replaced); ok {
		if by := r.APILifecycleReplacement(); !by.Empty() {
			text += fmt.Sprintf("; use %s %s", by.GroupVersion(), by.Kind)
		}
	}
	return text
}
