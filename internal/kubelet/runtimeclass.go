package kubelet

import (
	"fmt"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/client"
)

// RuntimeClasses finds the handlers of RuntimeClasses.
type RuntimeClasses struct {
	Classes client.Informer[*nodev1.RuntimeClass]
}

// Handler is what the runtime calls a class; pods without a class have the runtime's own handler.
func (r RuntimeClasses) Handler(class *string) (string, error) {
	if class == nil || *class == "" {
		return "", nil
	}
	found, ok := r.Classes.Get("", *class)
	switch {
	case ok:
		return found.Handler, nil
	case !r.Classes.HasSynced():
		return "", fmt.Errorf("failed to lookup RuntimeClass %s: classes have not been read yet", *class)
	}
	return "", apierrors.NewNotFound(nodev1.Resource("runtimeclasses"), *class)
}
