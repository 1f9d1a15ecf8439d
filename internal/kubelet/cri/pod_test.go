package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestHashIsUpstreams(t *testing.T) {
	// A node that changes from upstream's kubelet to ours must not restart its containers.
	if got := Hash(&corev1.Container{Name: "test_container", Image: "foo/image:v1"}); got != "8e45cbd0" {
		t.Errorf("hash %s, want 8e45cbd0", got)
	}
}

// TestClockSetBack: the newest sandbox and container of a pod are those of the last attempts, also if the clock of the host was set back before.
func TestClockSetBack(t *testing.T) {
	now := time.Now()
	ahead := now.Add(8 * time.Hour)
	pod := &Pod{
		Sandboxes: []*Sandbox{
			{ID: "s0", CreatedAt: ahead}, {ID: "s2", Attempt: 2, Ready: true, CreatedAt: now.Add(time.Second)}, {ID: "s1", Attempt: 1, CreatedAt: now},
		},
		Containers: []*Container{
			{ID: "a0", Name: "a", SandboxID: "s0", State: Exited, CreatedAt: ahead}, {ID: "a1", Name: "a", SandboxID: "s2", RestartCount: 1, State: Running, CreatedAt: now},
			{ID: "b0", Name: "b", SandboxID: "s2", State: Running, CreatedAt: now},
		},
	}
	pod.sort()
	if reason, attempt, id := pod.NeedsSandbox(true); reason != SandboxNetworkMode || attempt != 3 || id != "" {
		t.Errorf("in the host's network: %q, attempt %d, sandbox %q", reason, attempt, id)
	}
	if reason, attempt, id := pod.NeedsSandbox(false); reason != "" || attempt != 2 || id != "s2" {
		t.Errorf("the sandbox is %q, attempt %d; a new one is needed because %q", id, attempt, reason)
	}
	for name, want := range map[string]string{"a": "a1", "b": "b0"} {
		if got := pod.Container(name); got.ID != want {
			t.Errorf("the newest container %s is %s, want %s", name, got.ID, want)
		}
	}
}

func TestTerminationMessage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := strings.Repeat("x", 5000)
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "2026-01-02T03:04:05.000000000Z stdout F line %d\n", i)
	}
	log := file("log", "2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stderr P par\n2026-01-02T03:04:06Z stderr F tial\n")
	const fallBack = string(corev1.TerminationMessageFallbackToLogsOnError)
	for _, row := range []struct {
		name, message, log, policy string
		code                       int32
		reason                     string
		want                       string
	}{
		{"written", file("a", "bye"), log, "File", 1, "Error", "bye"},
		{"nothing written", file("b", ""), log, "File", 1, "Error", ""},
		{"never made", filepath.Join(dir, "none"), log, "File", 1, "Error", ""},
		{"too long keeps the end", file("c", "begin"+long), log, "File", 1, "Error", long[:4096]},
		{"falls back to the log", file("d", ""), log, fallBack, 1, "Error", "one\npartial\n"},
		{"prefers the file", file("e", "bye"), log, fallBack, 1, "Error", "bye"},
		{"no fall back after success", file("f", ""), log, fallBack, 0, "Completed", ""},
		{"no fall back when it never ran", file("g", ""), log, fallBack, 128, "ContainerCannotRun", ""},
		{"the last eighty lines", file("h", ""), file("lines", lines.String()), fallBack, 1, "Error", "line 20\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := terminationMessage(&runtimeapi.ContainerStatus{
				ExitCode: row.code, Reason: row.reason, LogPath: row.log, Mounts: []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: row.message}},
				Annotations: map[string]string{AnnotationTerminationMessagePath: "/dev/termination-log", AnnotationTerminationMessagePolicy: row.policy},
			})
			if row.name == "the last eighty lines" {
				if !strings.HasPrefix(got, row.want) || !strings.HasSuffix(got, "line 99\n") {
					t.Errorf("message %q", got)
				}
			} else if got != row.want {
				t.Errorf("message %.60q, want %.60q", got, row.want)
			}
		})
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := tail(filepath.Join(dir, "link"), 10); err == nil {
		t.Error("a link was followed out of the container's directory")
	}
}
