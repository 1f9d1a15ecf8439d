package system

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckCapabilities(t *testing.T) {
	const admin, network = 1 << unix.CAP_SYS_ADMIN, 1 << unix.CAP_NET_ADMIN
	for _, test := range []struct {
		what      string
		effective uint64
		uid       int
		want      string
	}{
		{"root", admin | network, 0, ""},
		{"a user with capabilities", admin | network, 1000, ""},
		{"a user", 0, 1000, "only root can run a node: run skiff as root, or with --no-node"},
		{"a container", network, 0, "a node needs CAP_SYS_ADMIN, which this process does not have: run its container as a privileged one, or with --no-node"},
		{"a container without any", 0, 0, "a node needs CAP_SYS_ADMIN and CAP_NET_ADMIN, which"},
	} {
		err := checkCapabilities(test.effective, test.uid, ", or with --no-node")
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.what, err, test.want)
		}
	}
}

func TestExplainDir(t *testing.T) {
	pathError := func(path string, err error) error {
		return fmt.Errorf("write the key: %w", &fs.PathError{Op: "open", Path: path, Err: err})
	}
	for _, test := range []struct {
		err  error
		want string
	}{
		{pathError("/d/pki/.tmp-1", unix.ENOSPC), "--data-dir: the file system of /d is full: delete files there, or choose another directory (write the key: open /d/pki/.tmp-1: no space left on device)"},
		{pathError("/d/pki", unix.EDQUOT), "--data-dir: the file system of /d is full"},
		{pathError("/d", unix.EROFS), "--data-dir: /d is on a file system that is read-only: choose another directory"},
		{pathError("/d", unix.ENOTDIR), "--data-dir: /d is not a directory"},
		{pathError("/d/pki/ca.key", unix.EACCES), "--data-dir: there is no permission to use /d/pki/ca.key: "},
		{&os.LinkError{Op: "rename", Old: "/d/.tmp-1", New: "/d/file", Err: unix.EPERM}, "--data-dir: there is no permission to use /d/file: "},
		{pathError("/elsewhere/key.pem", unix.EACCES), "write the key: open /elsewhere/key.pem: permission denied"},
		{pathError("/d/pki/ca.key", unix.EIO), "write the key: open /d/pki/ca.key: input/output error"},
		{errors.New("other"), "other"},
	} {
		if got := explainDir(test.err, "/d", "data-dir").Error(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%v is explained as %q, want %q", test.err, got, test.want)
		}
	}
	if err := explainDir(nil, "/d", "data-dir"); err != nil {
		t.Error(err)
	}
}

// A data directory that cannot be used is explained as a whole.
func TestOpenDataDirErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(dir, "used")
	unlock, err := openDataDir(used)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for path, want := range map[string]string{
		file:        "--data-dir: " + file + " is not a directory: choose another one",
		file + "/d": "--data-dir: " + file + "/d is not a directory: choose another one",
		used:        "directory " + used + " is used by another skiff",
	} {
		if _, err := openDataDir(path); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
