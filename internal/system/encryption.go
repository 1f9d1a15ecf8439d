package system

import (
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api"
	"skiff/internal/config"
	"skiff/internal/store/encryption"
)

// newEncryption makes what seals objects in the store; nil when they are stored as they are.
func newEncryption(c config.Encryption, log *slog.Logger) (*encryption.Encryption, error) {
	if c.File == "" {
		return nil, nil
	}
	return encryption.New(c.File, c.Reload, log.With("part", "encryption"))
}

// storeDir is the directory of the store that holds all objects.
const storeDir = "/registry/"

// resourceOfKey tells which resource a key of the store belongs to. Custom resources, which nobody knows beforehand, lie below
// their group and name.
func resourceOfKey() func(key string) schema.GroupResource {
	known := map[string]schema.GroupResource{}
	for _, k := range api.Kinds(api.Settings{}) {
		known[k.Prefix] = k.GroupResource()
	}
	return func(key string) schema.GroupResource {
		rest := strings.TrimPrefix(key, storeDir)
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
