package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestDeprecationOf(t *testing.T) {
	for _, tt := range []struct {
		obj  runtime.Object
		kind string
		want string
	}{
		{&corev1.Pod{}, "Pod", ""},
		{&corev1.Endpoints{}, "Endpoints", "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"},
		{&corev1.ComponentStatus{}, "ComponentStatus", "v1 ComponentStatus is deprecated in v1.19+"},
	} {
		if got := deprecationOf(tt.obj, corev1.SchemeGroupVersion.WithKind(tt.kind)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.kind, got, tt.want)
		}
	}
}
