package kubelet

import (
	"fmt"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/client"
)

// RuntimeClasses resolves RuntimeClasses to runtime handlers.
type RuntimeClasses struct {
	Classes client.Informer[*nodev1.RuntimeClass]
}

// Handler returns the handler of a RuntimeClass; pods without a class have the default handler, which is empty.
func (r RuntimeClasses) Handler(class *string) (string, error) {
	if class == nil || *class == "" {
		return "", nil
	}
	found, ok := r.Classes.Get("", *class)
	switch {
	case ok:
		return found.Handler, nil
	case !r.Classes.HasSynced():
		return "", fmt.Errorf("failed to lookup RuntimeClass %s: RuntimeClasses have not been listed yet", *class)
	}
	return "", apierrors.NewNotFound(nodev1.Resource("runtimeclasses"), *class)
}
