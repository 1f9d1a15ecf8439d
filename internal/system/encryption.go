package system

import (
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api"
	"skiff/internal/config"
	"skiff/internal/store"
	"skiff/internal/store/encryption"
)

// newEncryption makes the encryption at rest; nil when objects are not encrypted.
func newEncryption(c config.Encryption, log *slog.Logger) (*encryption.Encryption, error) {
	if c.File == "" {
		return nil, nil
	}
	return encryption.New(c.File, c.Reload, log.With("component", "encryption"))
}

// resourceOfKey returns the function that maps a key of the store, below a prefix, to its resource. The keys of custom resources begin with
// their group and resource name.
func resourceOfKey(prefix string) func(key string) schema.GroupResource {
	dir := store.CleanPrefix(prefix) + "/"
	known := map[string]schema.GroupResource{}
	for _, k := range api.Kinds(api.Settings{}) {
		known[k.Prefix] = k.GroupResource()
	}
	return func(key string) schema.GroupResource {
		rest := strings.TrimPrefix(key, dir)
		first, rest, _ := strings.Cut(rest, "/")
		second, _, _ := strings.Cut(rest, "/")
		if gr, ok := known[first+"/"+second]; ok {
			return gr
		}
		if gr, ok := known[first]; ok {
			return gr
		}
		if strings.Contains(first, ".") {
			return schema.GroupResource{Group: first, Resource: second}
		}
		return schema.GroupResource{Resource: first}
	}
}
