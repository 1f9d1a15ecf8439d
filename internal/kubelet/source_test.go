package kubelet

import (
	"testing"

	"skiff/internal/podstate"
)

// A pod from the API must not become critical by an annotation that its creator set.
func TestPodFromAPIIsNotStatic(t *testing.T) {
	claimed := victim("p", "", "", static)
	pod := withAPISource(claimed)
	if podstate.IsStatic(pod) || podstate.IsCritical(pod) {
		t.Errorf("a pod from the API with the annotation %s=file is static", podstate.ConfigSourceAnnotationKey)
	}
	if !podstate.IsStatic(claimed) {
		t.Error("the object of the cache was changed")
	}
	if plain := victim("p", "", ""); withAPISource(plain) != plain {
		t.Error("a pod without the annotation was copied")
	}
}
