package server

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const log = `2026-01-02T03:04:05.000000001Z stdout F one
2026-01-02T03:04:06.5Z stderr F two
2026-01-02T03:04:07Z stdout P three 
2026-01-02T03:04:08Z stdout F and a half
garbage
2026-01-02T03:04:09Z stdout F four
`

func TestReadLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ query, want string }{
		{"", "one\ntwo\nthree and a half\nfour\n"},
		{"tailLines=0", ""},
		{"tailLines=1", "four\n"},
		{"tailLines=3", "and a half\nfour\n"}, // what is not the runtime's is a line too
		{"tailLines=100", "one\ntwo\nthree and a half\nfour\n"},
		{"limitBytes=5", "one\nt"},
		{"limitBytes=4", "one\n"},
		{"stream=Stderr", "two\n"},
		{"stream=Stdout", "one\nthree and a half\nfour\n"},
		{"stream=All", "one\ntwo\nthree and a half\nfour\n"},
		{"sinceTime=2026-01-02T03:04:08Z", "and a half\nfour\n"},
		{"sinceTime=2026-01-02T04:04:09%2B01:00", "four\n"},
		{"sinceSeconds=3", "three and a half\nfour\n"},
		{"timestamps=true&tailLines=1", "2026-01-02T03:04:09.000000000Z four\n"},
		{"timestamps=1&limitBytes=35", "2026-01-02T03:04:05.000000001Z one\n"},
	} {
		options, err := parseLogOptions(httptest.NewRequest("GET", "/?"+test.query, nil), time.Date(2026, 1, 2, 3, 4, 10, 0, time.UTC))
		if err != nil {
			t.Errorf("%s: %v", test.query, err)
			continue
		}
		var out bytes.Buffer
		if err := readLog(t.Context(), path, options, nil, &out); err != nil || out.String() != test.want {
			t.Errorf("%s: %q %v, want %q", test.query, out.String(), err, test.want)
		}
	}
}

func TestInvalidLogOptions(t *testing.T) {
	for _, query := range []string{"tailLines=x", "tailLines=-1", "limitBytes=1.5", "sinceSeconds=ago", "sinceTime=yesterday", "stream=Stdin"} {
		if _, err := parseLogOptions(httptest.NewRequest("GET", "/?"+query, nil), time.Now()); err == nil {
			t.Errorf("%s is accepted", query)
		}
	}
}

// TestTailOfLongLines: lines longer than what is read at once.
func TestTailOfLongLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var text strings.Builder
	for i := range 5 {
		fmt.Fprintf(&text, "2026-01-02T03:04:0%dZ stdout F %d%s\n", i, i, strings.Repeat("x", 40<<10))
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := readLog(t.Context(), path, logOptions{tail: 2, limit: -1, stdout: true, stderr: true}, nil, &out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines) != 3 || lines[0][0] != '3' || lines[1][0] != '4' || len(lines[0]) != 40<<10+1 {
		t.Errorf("%d lines", len(lines))
	}
}

// shared is a buffer with a concurrent writer and reader.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestFollow: a log is followed across partial lines and rotation, until the container has exited.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	var running atomic.Bool
	running.Store(true)
	out, done := &shared{}, make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		done <- readLog(ctx, path, logOptions{tail: -1, limit: -1, follow: true, stdout: true, stderr: true}, running.Load, out)
	}()
	say := func(text, want string) {
		t.Helper()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		for out.String() != want {
			if ctx.Err() != nil {
				t.Fatalf("got %q, want %q", out.String(), want)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	say("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04", "one\n")
	say(":05Z stdout F two\n", "one\ntwo\n")
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("2026-01-02T03:04:05Z stdout F late\n"); err != nil {
		t.Fatal(err)
	}
	file.Close()
	if file, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	say("2026-01-02T03:04:05Z stdout F new\n", "one\ntwo\nlate\nnew\n")
	if _, err := file.WriteString("2026-01-02T03:04:05Z stdout F last\n"); err != nil {
		t.Fatal(err)
	}
	running.Store(false)
	if err := <-done; err != nil || out.String() != "one\ntwo\nlate\nnew\nlast\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestLogContainerID(t *testing.T) {
	ended := func(id string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, test := range []struct {
		what     string
		status   corev1.ContainerStatus
		previous bool
		want     string
		err      string
	}{
		{what: "running", status: corev1.ContainerStatus{State: running, ContainerID: "containerd://a"}, want: "a"},
		{what: "ended", status: corev1.ContainerStatus{State: ended("containerd://a")}, want: "a"},
		{what: "waiting for its next start", status: corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended("containerd://b")}, want: "b"},
		{what: "the one before", status: corev1.ContainerStatus{State: running, ContainerID: "containerd://a", LastTerminationState: ended("containerd://b")}, previous: true, want: "b"},
		{what: "none before", status: corev1.ContainerStatus{State: running, ContainerID: "containerd://a"}, previous: true, err: `previous terminated container "c" in pod "p" not found`},
		{what: "never started", status: corev1.ContainerStatus{State: waiting("ContainerCreating")}, err: `container "c" in pod "p" is waiting to start: ContainerCreating`},
		{what: "no image", status: corev1.ContainerStatus{State: waiting("ErrImagePull")}, err: `container "c" in pod "p" is waiting to start: image can't be pulled`},
		{what: "still no image", status: corev1.ContainerStatus{State: waiting("ImagePullBackOff")}, err: `container "c" in pod "p" is waiting to start: trying and failing to pull image`},
		{what: "ended without a trace", status: corev1.ContainerStatus{State: ended("")}, err: `container "c" in pod "p" is terminated`},
		{what: "nothing known", status: corev1.ContainerStatus{}, err: `container "c" in pod "p" is waiting to start - no logs yet`},
	} {
		test.status.Name = "c"
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{test.status}}}
		got, err := logContainerID(pod, "c", test.previous)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %q %v, want %q %s", test.what, got, err, test.want, test.err)
		}
	}
	if _, err := logContainerID(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "c", false); err == nil || err.Error() != `container "c" in pod "p" is not available` {
		t.Errorf("unknown: %v", err)
	}
}
