package mounthelper

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMount(t *testing.T) {
	dir := t.TempDir()
	if _, err := Find("nfs", []string{dir}); err == nil || err.Error() != "the host has no mount.nfs" {
		t.Errorf("without a helper: %v", err)
	}
	arguments := filepath.Join(dir, "arguments")
	write := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "mount.nfs"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(`for argument; do echo "$argument" >> ` + arguments + `; done`)
	helper, err := Find("nfs", []string{t.TempDir(), dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Mount(t.Context(), "server:/a; b $(c)", "/target", []string{"ro", "vers=4.1"}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(arguments); err != nil || string(got) != "server:/a; b $(c)\n/target\n-o\nro,vers=4.1\n" {
		t.Errorf("called with %q, %v", got, err)
	}
	if err := helper.Mount(t.Context(), "-o:/", "/target", nil); err == nil || !strings.Contains(err.Error(), `"-o:/" could be taken for an option`) {
		t.Errorf("an option as source: %v", err)
	}
	write("echo access denied by server >&2; exit 32")
	if err := helper.Mount(t.Context(), "server:/", "/target", nil); err == nil || !strings.HasPrefix(err.Error(), "mount failed: exit status 32\n") || !strings.HasSuffix(err.Error(), "Output: access denied by server") {
		t.Errorf("a helper that fails: %v", err)
	}
	daemon := filepath.Join(dir, "daemon")
	write("sleep 1000 & echo $! > " + daemon)
	if err := helper.Mount(t.Context(), "server:/", "/target", nil); err != nil {
		t.Errorf("a helper that starts a daemon: %v", err)
	}
	text, err := os.ReadFile(daemon)
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(id, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	write("exec sleep 1000")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := helper.Mount(ctx, "server:/", "/target", nil); err == nil {
		t.Error("a helper that does not end is waited for")
	}
}
