package system

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skiff/internal/config"
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

// What administrators run on a host without a server, without rights, or while it is stopped.
func TestAdminErrors(t *testing.T) {
	dir := t.TempDir()
	token := config.DefaultToken()
	token.DataDir = dir
	expect := func(err error, want ...string) {
		t.Helper()
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("error %v, want %q", err, part)
			}
		}
	}
	expect(ListTokens(t.Context(), token, io.Discard), "--data-dir: no server has run with "+dir+": use the --data-dir of one, or an administrator's --kubeconfig")
	expect(SaveSnapshot(t.Context(), config.Snapshot{DataDir: dir, Name: "a"}, io.Discard), "no server has run with "+dir)
	expect(ListMembers(t.Context(), config.Member{DataDir: dir}, io.Discard), "no server has run with "+dir)
	expect(RemoveNode(t.Context(), config.NodeCommand{DataDir: dir}, "n", io.Discard), "no server has run with "+dir)
	token.Kubeconfig = filepath.Join(dir, "absent")
	expect(ListTokens(t.Context(), token, io.Discard), "--kubeconfig: ", "no such file")

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	kubeconfig := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"http://` + address + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	if err := os.WriteFile(filepath.Join(dir, adminKubeconfig), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	token.Kubeconfig = ""
	const stopped = ": start it, or use the --kubeconfig of another one"
	expect(ListTokens(t.Context(), token, io.Discard), "no API server runs at "+address+stopped)
	expect(SaveSnapshot(t.Context(), config.Snapshot{DataDir: dir, Name: "a"}, io.Discard), stopped)
	expect(ListMembers(t.Context(), config.Member{DataDir: dir}, io.Discard), stopped)

	denied := &fs.PathError{Op: "stat", Path: "/d/admin.kubeconfig", Err: unix.EACCES}
	expect(explainRead(fmt.Errorf("--data-dir: %w", denied)), "--data-dir: there is no permission to read /d/admin.kubeconfig: ", "use --kubeconfig")
	if err := explainRead(io.EOF); err != io.EOF {
		t.Errorf("another error: %v", err)
	}
}
