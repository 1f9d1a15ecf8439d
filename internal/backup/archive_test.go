package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
)

func testManifest(database []byte) Manifest {
	sum := sha256.Sum256(database)
	return Manifest{
		Created: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Server: "host1", Version: "v1",
		Database: Database{Revision: 12, Records: 7, Bytes: int64(len(database)), Hash: 99, SHA256: hex.EncodeToString(sum[:])},
	}
}

func TestArchive(t *testing.T) {
	database := randomBytes(300_000)
	files := []File{
		{Name: "pki/ca.crt", Data: []byte("certificate")},
		{Name: "pki/ca.key", Data: []byte("key")},
		{Name: "files/encryption-provider-config", Data: []byte("kind: EncryptionConfiguration"), Origin: "/etc/skiff/encryption.yaml"},
	}
	var archive bytes.Buffer
	if err := writeArchive(&archive, testPassphrase, testManifest(database), files, bytes.NewReader(database)); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if bytes.Contains(archive.Bytes(), file.Data) {
			t.Errorf("%s is in the archive in plain text", file.Name)
		}
	}
	dir := t.TempDir()
	got, err := Read(bytes.NewReader(archive.Bytes()), testPassphrase, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := testManifest(database)
	if got.Database != want.Database || got.Server != "host1" || got.Version != "v1" || !got.Created.Equal(want.Created) || got.Format != format {
		t.Errorf("manifest %+v, want %+v", got, want)
	}
	if origin := got.Origins["files/encryption-provider-config"]; len(got.Origins) != 1 || origin != "/etc/skiff/encryption.yaml" {
		t.Errorf("origins %v", got.Origins)
	}
	for _, file := range append(files, File{Name: databaseName, Data: database}) {
		path := filepath.Join(dir, file.Name)
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(data, file.Data) {
			t.Errorf("%s: %d bytes, %v", file.Name, len(data), err)
		}
		mode := os.FileMode(0o600)
		if strings.HasSuffix(file.Name, ".crt") {
			mode = 0o644
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, want %v", file.Name, info.Mode(), mode)
		}
	}
	if _, err := Read(bytes.NewReader(archive.Bytes()), testPassphrase, ""); err != nil {
		t.Errorf("verify only: %v", err)
	}
	for _, cut := range []int{1, 100, archive.Len() / 2, archive.Len() - headerSize} {
		if _, err := Read(bytes.NewReader(archive.Bytes()[:archive.Len()-cut]), testPassphrase, ""); !errors.Is(err, ErrDamaged) {
			t.Errorf("without the last %d bytes: %v", cut, err)
		}
	}
}

func TestArchiveRefusesFiles(t *testing.T) {
	for what, file := range map[string]File{
		"a path upwards":    {Name: "pki/../ca.key"},
		"an absolute path":  {Name: "/etc/passwd"},
		"a subdirectory":    {Name: "pki/a/ca.key"},
		"another directory": {Name: "etcd/db"},
		"a hidden file":     {Name: "pki/.ca.key"},
		"a large file":      {Name: "pki/ca.key", Data: make([]byte, maxFileBytes+1)},
	} {
		if err := writeArchive(&bytes.Buffer{}, testPassphrase, testManifest(nil), []File{file}, strings.NewReader("")); err == nil {
			t.Errorf("%s was written", what)
		}
	}
}

// handMade is an archive with any entries, encrypted as a snapshot.
func handMade(t *testing.T, entries ...File) []byte {
	t.Helper()
	var sealed bytes.Buffer
	encrypted, err := newEncrypter(&sealed, testPassphrase)
	if err != nil {
		t.Fatal(err)
	}
	compressed := gzip.NewWriter(encrypted)
	archive := tar.NewWriter(compressed)
	for _, entry := range entries {
		if err := archive.WriteHeader(entryHeader(entry.Name, int64(len(entry.Data)), time.Now())); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(entry.Data); err != nil {
			t.Fatal(err)
		}
	}
	for _, close := range []func() error{archive.Close, compressed.Close, encrypted.Close} {
		if err := close(); err != nil {
			t.Fatal(err)
		}
	}
	return sealed.Bytes()
}

// An archive that someone with the passphrase has made must not write outside of its directory, nor pass as a snapshot.
func TestReadRefusesArchives(t *testing.T) {
	encode := func(change func(*Manifest)) File {
		m := testManifest([]byte("database"))
		m.Format = format
		change(&m)
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return File{Name: manifestName, Data: data}
	}
	manifest := encode(func(*Manifest) {})
	database := File{Name: databaseName, Data: []byte("database")}
	if _, err := Read(bytes.NewReader(handMade(t, manifest, database)), testPassphrase, t.TempDir()); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	for what, test := range map[string]struct {
		entries []File
		want    error
	}{
		"no entries":          {nil, ErrDamaged},
		"no manifest":         {[]File{database}, ErrDamaged},
		"no database":         {[]File{manifest}, ErrDamaged},
		"a broken manifest":   {[]File{{Name: manifestName, Data: []byte("{")}, database}, ErrDamaged},
		"another format":      {[]File{encode(func(m *Manifest) { m.Format = 2 }), database}, ErrFormat},
		"another size":        {[]File{encode(func(m *Manifest) { m.Database.Bytes++ }), database}, ErrDamaged},
		"another database":    {[]File{manifest, {Name: databaseName, Data: []byte("databasE")}}, ErrDamaged},
		"a path upwards":      {[]File{manifest, {Name: "pki/../../ca.key"}, database}, ErrDamaged},
		"an absolute path":    {[]File{manifest, {Name: "/tmp/ca.key"}, database}, ErrDamaged},
		"an unexpected entry": {[]File{manifest, {Name: "etcd/db"}, database}, ErrDamaged},
		"a large entry":       {[]File{manifest, {Name: "pki/ca.key", Data: make([]byte, maxFileBytes+1)}, database}, ErrDamaged},
	} {
		t.Run(what, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "a", "b")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(bytes.NewReader(handMade(t, test.entries...)), testPassphrase, dir); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			for _, outside := range []string{parent, filepath.Join(parent, "a")} {
				if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
					t.Errorf("files in %s: %v, %v", outside, entries, err)
				}
			}
		})
	}
}
