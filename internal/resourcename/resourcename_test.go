package resourcename

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]struct{ native, extended bool }{
		"cpu": {native: true}, "memory": {native: true}, "hugepages-2Mi": {native: true}, "": {native: true},
		"kubernetes.io/gpu": {native: true}, "sub.kubernetes.io/gpu": {native: true},
		"example.com/gpu": {extended: true}, "a.b/c_d.e": {extended: true}, "example.com/" + strings.Repeat("x", 63): {extended: true},
		"requests.example.com/gpu": {}, "example.com/": {}, "/gpu": {}, "example.com/a b": {}, "example.com/" + strings.Repeat("x", 64): {},
	} {
		if native, extended := IsNative(corev1.ResourceName(name)), IsExtended(corev1.ResourceName(name)); native != want.native || extended != want.extended {
			t.Errorf("%q: native %v, extended %v", name, native, extended)
		}
	}
}
