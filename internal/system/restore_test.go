package system

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skiff/internal/backup"
	"skiff/internal/config"
	"skiff/internal/pki"
	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
	"skiff/internal/version"
)

// writeTree writes files with their own names as content.
func writeTree(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// readTree is the inverse of writeTree.
func readTree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files = append(files, name+"="+string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A restore is finished from every state in which it can have been interrupted.
func TestFinishRestore(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const kept = "replaced/20260102T030405.000Z"
	for what, test := range map[string]struct {
		before, after []string
		replaced      bool
	}{
		"no restore":     {before: []string{"etcd/db=old", "pki/ca=old"}, after: []string{"etcd/db=old", "pki/ca=old"}},
		"only prepared":  {before: []string{"etcd/db=old", "restore.tmp/etcd/db=new"}, after: []string{"etcd/db=old", "restore.tmp/etcd/db=new"}},
		"an empty place": {before: []string{"lock=", "restore/etcd/db=new", "restore/pki/ca=new"}, after: []string{"etcd/db=new", "lock=", "pki/ca=new"}},
		"replacing": {
			before:   []string{"etcd/db=old", "pki/ca=old", "restored-files/a=old", "restore/etcd/db=new", "restore/pki/ca=new", "restore/files/a=new"},
			after:    []string{"etcd/db=new", "pki/ca=new", kept + "/etcd/db=old", kept + "/pki/ca=old", kept + "/restored-files/a=old", "restored-files/a=new"},
			replaced: true,
		},
		"interrupted when the old keys were set aside": {
			before:   []string{"etcd/db=old", "replaced/before/pki/ca=old", "restore/etcd/db=new", "restore/pki/ca=new"},
			after:    []string{"etcd/db=new", "pki/ca=new", kept + "/etcd/db=old", "replaced/before/pki/ca=old"},
			replaced: true,
		},
		"interrupted when the new keys were in place": {
			before:   []string{"etcd/db=old", "pki/ca=new", "replaced/before/pki/ca=old", "restore/etcd/db=new"},
			after:    []string{"etcd/db=new", "pki/ca=new", kept + "/etcd/db=old", "replaced/before/pki/ca=old"},
			replaced: true,
		},
		"interrupted before the end": {
			before: []string{"etcd/db=new", "pki/ca=new", "restore/x="}, after: []string{"etcd/db=new", "pki/ca=new"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, test.before...)
			replaced, err := finishRestore(dir, now)
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(dir, kept); test.replaced && replaced != want || !test.replaced && replaced != "" {
				t.Errorf("replaced %q", replaced)
			}
			slices.Sort(test.after)
			if got := slices.Sorted(slices.Values(readTree(t, dir))); !slices.Equal(got, test.after) {
				t.Errorf("files\n%v, want\n%v", got, test.after)
			}
		})
	}
}

func TestReadPassphrase(t *testing.T) {
	for text, want := range map[string]string{
		"a good passphrase": "a good passphrase", "a good passphrase\n": "a good passphrase", "a good passphrase\r\n": "a good passphrase",
		" spaces are kept ": " spaces are kept ",
		"":                  "", "short\n": "", "a good passphrase\nanother line\n": "", strings.Repeat("a", maxPassphraseBytes+1): "",
	} {
		path := filepath.Join(t.TempDir(), "passphrase")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readPassphrase(path)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%.30q: %q, %v", text, got, err)
		}
	}
}

// savedCluster makes a data directory with an etcd and keys, and a snapshot of it in a directory.
func savedCluster(t *testing.T) (c config.Snapshot, keys map[string][]byte) {
	t.Helper()
	dataDir := t.TempDir()
	encryption := filepath.Join(t.TempDir(), "encryption.yaml")
	writeTree(t, filepath.Dir(encryption), "encryption.yaml=kind: EncryptionConfiguration")
	dir := pki.Dir(filepath.Join(dataDir, "pki"))
	ca, err := dir.CA("ca", "test-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Leaf("apiserver", ca, pki.Leaf{CommonName: "x", Server: true}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.SigningKey("service-account"); err != nil {
		t.Fatal(err)
	}
	store, err := etcd.Open(t.Context(), etcd.Config{DataDir: filepath.Join(dataDir, "etcd"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.Create(t.Context(), "/registry/a", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	server := config.DefaultAPIServer()
	server.DataDir, server.Encryption.File = dataDir, encryption
	source := &snapshotSource{Store: store, config: server}
	c = config.DefaultSnapshot()
	c.DataDir = filepath.Join(t.TempDir(), "restored")
	c.Storage.Dir, c.PassphraseFile = t.TempDir(), filepath.Join(dataDir, snapshotPassphrase)
	saver := backup.NewSaver(backup.SaverOptions{
		Source: source, Storage: backup.Directory(c.Storage.Dir), StagingDir: filepath.Join(dataDir, snapshotStagingDir), Server: "host", Version: version.String(), Log: slog.New(slog.DiscardHandler),
	})
	if _, err := saver.Save(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if keys, err = dir.Export(); err != nil {
		t.Fatal(err)
	}
	return c, keys
}

func TestRestoreSnapshot(t *testing.T) {
	c, keys := savedCluster(t)
	var out strings.Builder
	if err := RestoreSnapshot(t.Context(), c, "latest", &out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "snapshot of host") || !strings.Contains(text, filepath.Join(c.DataDir, "restored-files/encryption-provider-config")) || strings.Contains(text, "before") {
		t.Errorf("output:\n%s", text)
	}
	restored, err := pki.Dir(filepath.Join(c.DataDir, "pki")).Export()
	if names := slices.Sorted(maps.Keys(restored)); err != nil || !slices.Equal(names, []string{"ca.crt", "ca.key", "service-account.key", "service-account.pub"}) {
		t.Errorf("keys %v, %v", names, err)
	}
	for name, data := range keys {
		if string(restored[name]) != string(data) {
			t.Errorf("%s differs", name)
		}
	}
	store, err := etcd.Open(t.Context(), etcd.Config{DataDir: filepath.Join(c.DataDir, "etcd"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if kv, err := store.Get(t.Context(), "/registry/a"); err != nil || string(kv.Value) != "1" {
		t.Errorf("%+v, %v", kv, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	// A second time only on request, and not while a server runs.
	if err := RestoreSnapshot(t.Context(), c, "latest", io.Discard); err == nil || !strings.Contains(err.Error(), "replace it with --replace") {
		t.Errorf("over the state of a cluster: %v", err)
	}
	c.Replace = true
	unlock, err := openDataDir(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := RestoreSnapshot(t.Context(), c, "latest", io.Discard); err == nil || !strings.Contains(err.Error(), "is used by another skiff (process ") {
		t.Errorf("over a running cluster: %v", err)
	}
	unlock()
	out.Reset()
	if err := RestoreSnapshot(t.Context(), c, "latest", &out); err != nil || !strings.Contains(out.String(), "what was there before is in "+filepath.Join(c.DataDir, replacedDir)) {
		t.Errorf("%v:\n%s", err, out.String())
	}
}

// The latest snapshot is not one that was saved when the clock was wrong.
func TestLatestSnapshot(t *testing.T) {
	directory, now := backup.Directory(t.TempDir()), time.Date(2026, 5, 6, 7, 0, 0, 0, time.UTC)
	for _, test := range []struct{ add, want string }{
		{"", "there are no snapshots"},
		{"manual-host-20260506T060000.000Z.snapshot", ""},
		{"manual-other-20260506T070100.000Z.snapshot", ""}, // whose clock is a little ahead
		{"manual-host-20360101T000000.000Z.snapshot", "manual-host-20360101T000000.000Z.snapshot, is from the future"},
	} {
		if test.add != "" {
			writeTree(t, string(directory), test.add+"=x")
		}
		got, err := latestSnapshot(t.Context(), directory, now)
		if test.want == "" && (err != nil || got != test.add) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("with %q: %q, %v, want %q", test.add, got, err, test.want)
		}
	}
}

// A snapshot leads back from an upgrade: what is restored is this version's, whatever a newer one has written beside it.
func TestRestoreRelease(t *testing.T) {
	own := upgrade.Current()
	newer := upgrade.Record{Release: upgrade.Release{Skiff: "v0.900.0", Kubernetes: own.Kubernetes}, Layout: own.Layout}
	for what, test := range map[string]struct {
		saved string
		have  *upgrade.Record
		// damaged is the content of a record that cannot be read.
		damaged string
		want    string
	}{
		"the same version":            {saved: version.String()},
		"over what a newer has":       {saved: version.String(), have: &newer},
		"over a newer layout":         {saved: version.String(), have: &upgrade.Record{Release: newer.Release, Layout: own.Layout + 1}, want: "restore into another directory"},
		"over a damaged record":       {saved: version.String(), damaged: "{", want: "version.json is damaged (unexpected end of JSON input), so it is not known"},
		"of a newer version":          {saved: "v0.900.0 (Kubernetes v1.37.1, commit x)", want: "restore it with v0.900"},
		"of a version without a name": {saved: "new", want: "is not"},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, preparedDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if test.have != nil {
			if err := test.have.Write(dir); err != nil {
				t.Fatal(err)
			}
		}
		if test.damaged != "" {
			writeTree(t, dir, upgrade.File+"="+test.damaged)
		}
		err := prepareRelease(dir, test.saved)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", what, err, test.want)
			}
			continue
		}
		if prepared, readErr := upgrade.ReadRecord(filepath.Join(dir, preparedDir)); err != nil || readErr != nil || *prepared != own {
			t.Errorf("%s: %v, %v, %v", what, prepared, err, readErr)
		}
	}
}

// What cannot be restored is refused with a reason, and changes nothing.
func TestRestoreRefused(t *testing.T) {
	c, _ := savedCluster(t)
	entries, err := backup.Directory(c.Storage.Dir).List(t.Context())
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	saved := filepath.Join(c.Storage.Dir, entries[0].Name)
	content, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "passphrase")
	writeTree(t, filepath.Dir(other), "passphrase=another passphrase")
	damaged := slices.Clone(content)
	damaged[len(damaged)/2] ^= 1
	for what, test := range map[string]struct {
		content    []byte
		snapshot   string
		passphrase string
		want       string
	}{
		"a changed byte":     {content: damaged, want: "the snapshot is damaged or incomplete"},
		"a truncated file":   {content: content[:len(content)-100], want: "the snapshot is damaged or incomplete"},
		"another file":       {content: []byte("kind: Pod"), want: "not a snapshot of skiff"},
		"another passphrase": {content: content, passphrase: other, want: "the passphrase is not the one"},
		"no passphrase":      {content: content, passphrase: "/nonexistent", want: "--snapshot-passphrase-file"},
		"a missing snapshot": {snapshot: "manual-host-20200101T000000.000Z.snapshot", want: "there is no snapshot"},
		"a missing file":     {snapshot: "/nonexistent/snapshot", want: "no such file"},
		"another name":       {snapshot: "snapshot", want: "is not the name of a snapshot"},
	} {
		t.Run(what, func(t *testing.T) {
			c := c
			c.DataDir, c.Replace = t.TempDir(), true
			writeTree(t, c.DataDir, "etcd/db=old", "pki/ca=old")
			if test.passphrase != "" {
				c.PassphraseFile = test.passphrase
			}
			if test.snapshot == "" {
				test.snapshot = filepath.Join(t.TempDir(), "snapshot")
				if err := os.WriteFile(test.snapshot, test.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := RestoreSnapshot(t.Context(), c, test.snapshot, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			got := readTree(t, c.DataDir)
			got = slices.DeleteFunc(got, func(file string) bool {
				return strings.HasPrefix(file, lockFile) || strings.HasPrefix(file, markerFile)
			})
			if !slices.Equal(got, []string{"etcd/db=old", "pki/ca=old"}) {
				t.Errorf("files %v", got)
			}
			if _, err := os.Stat(filepath.Join(c.DataDir, preparedDir)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the prepared restore is left: %v", err)
			}
		})
	}
}
