package pki

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What is exported makes a directory with the same CAs and keys; leaf certificates are not in it.
func TestExport(t *testing.T) {
	now := time.Now()
	dir := Dir(t.TempDir())
	ca, err := dir.CA("ca", "test-ca", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.CA("etcd-ca", "test-etcd-ca", now); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Leaf("apiserver", ca, Leaf{CommonName: "x", Server: true}, now); err != nil {
		t.Fatal(err)
	}
	signing, err := dir.SigningKey("service-account")
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = dir.RotateCA("ca", "", now); err != nil {
		t.Fatal(err)
	}
	exported, err := dir.Export()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ca.crt", "ca.key", "etcd-ca.crt", "etcd-ca.key", "service-account.key", "service-account.pub"}
	if names := slices.Sorted(maps.Keys(exported)); !slices.Equal(names, want) {
		t.Fatalf("exported %v, want %v", names, want)
	}
	imported := Dir(t.TempDir())
	for name, data := range exported {
		if err := os.WriteFile(filepath.Join(string(imported), name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, err := imported.CA("ca", "another", now)
	if err != nil || !bytes.Equal(again.Cert, ca.Cert) || !bytes.Equal(again.Key, ca.Key) {
		t.Errorf("the CA differs: %v", err)
	}
	if key, err := imported.SigningKey("service-account"); err != nil || !samePublicKey(key, signing) {
		t.Errorf("the signing key differs: %v", err)
	}
}

func TestExportRefuses(t *testing.T) {
	for what, change := range map[string]func(dir string) error{
		"a damaged key":         func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.key"), []byte("x"), 0o600) },
		"a damaged certificate": func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600) },
		"the key of another CA": func(dir string) error {
			return os.Rename(filepath.Join(dir, "other.key"), filepath.Join(dir, "ca.key"))
		},
	} {
		dir := Dir(t.TempDir())
		for _, name := range []string{"ca", "other"} {
			if _, err := dir.CA(name, name, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if err := change(string(dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := dir.Export(); err == nil || !strings.Contains(err.Error(), "export ca") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Dir("/nonexistent").Export(); err == nil {
		t.Error("a directory that does not exist is exported")
	}
}
