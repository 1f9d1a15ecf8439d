package kind

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestStorageVersionHash(t *testing.T) {
	if got := StorageVersionHash(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}); got != "Q3oi5N2YM8M=" {
		t.Errorf("hash %s", got)
	}
}
