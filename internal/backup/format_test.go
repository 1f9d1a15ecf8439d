package backup

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A snapshot that a released version has written can be read: the file in testdata was written once, with the real cost of scrypt.
func TestFormat(t *testing.T) {
	const golden = "testdata/format-1.snapshot"
	before := scryptN
	scryptN = 1 << 15
	defer func() { scryptN = before }()
	database, files := []byte("database"), []File{{Name: "pki/ca.key", Data: []byte("key")}, {Name: "files/a", Data: []byte("a"), Origin: "/etc/a"}}
	if *update {
		var archive bytes.Buffer
		if err := writeArchive(&archive, testPassphrase, testManifest(database), files, bytes.NewReader(database)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, archive.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	dir := t.TempDir()
	manifest, err := Read(content, testPassphrase, dir)
	if err != nil || manifest.Database != testManifest(database).Database || manifest.Origins["files/a"] != "/etc/a" {
		t.Errorf("%+v, %v", manifest, err)
	}
	for _, file := range append(files, File{Name: databaseName, Data: database}) {
		if data, err := os.ReadFile(filepath.Join(dir, file.Name)); err != nil || !bytes.Equal(data, file.Data) {
			t.Errorf("%s: %q, %v", file.Name, data, err)
		}
	}
}
