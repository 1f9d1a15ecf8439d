package system

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"skiff/internal/config"
	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// Under another prefix than the default the resources to encrypt are found, and the values are bound to their keys in etcd.
func TestEncryptionWithPrefix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	text := `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: a, secret: "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	encrypt, err := newEncryption(config.Encryption{File: file}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stored := memory.New()
	s := store.WithPrefix(encrypt.Wrap(stored, resourceOfKey("/other")), "/other")
	for key, encrypted := range map[string]bool{"secrets/default/a": true, "configmaps/default/a": false} {
		if _, err := s.Create(t.Context(), "/registry/"+key, []byte("value"), 0); err != nil {
			t.Fatal(err)
		}
		kv, err := stored.Get(t.Context(), "/other/"+key)
		if err != nil || store.IsEncrypted(kv.Value) != encrypted {
			t.Errorf("%s is stored as %q, error %v", key, kv.Value, err)
		}
		if kv, err = s.Get(t.Context(), "/registry/"+key); err != nil || string(kv.Value) != "value" {
			t.Errorf("%s is read as %q, error %v", key, kv.Value, err)
		}
		// Values of a list are decrypted when they are needed.
		kvs, _, _, err := s.List(t.Context(), "/registry/"+key, "", 0, 0)
		if err != nil || len(kvs) != 1 || kvs[0].Key != "/registry/"+key {
			t.Fatalf("list: %v, error %v", kvs, err)
		}
		if store.IsEncrypted(kvs[0].Value) {
			if kvs[0].Value, err = s.(store.Decrypter).Decrypt(t.Context(), kvs[0].Key, kvs[0].Value); err != nil {
				t.Fatal(err)
			}
		}
		if string(kvs[0].Value) != "value" {
			t.Errorf("%s is listed as %q", key, kvs[0].Value)
		}
	}
}
