package cri_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

func TestLogRotation(t *testing.T) {
	dir := t.TempDir()
	fake := critest.NewFake("image")
	ctx := t.Context()
	sandbox, err := fake.RunPodSandbox(ctx, &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := fake.CreateContainer(ctx, sandbox, &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "image"}, LogPath: "0.log"},
		&runtimeapi.PodSandboxConfig{LogDirectory: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "0.log")
	logs := &cri.Logs{Runtime: cri.New(fake), MaxSize: 100, MaxFiles: 3}
	write := func(n int) {
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() []string {
		files, err := filepath.Glob(path + "*")
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	write(99)
	if err := logs.Rotate(ctx); err != nil || len(names()) != 1 {
		t.Fatalf("a short log: %v, %v", names(), err)
	}
	for round := range 5 {
		write(100 + round)
		// Rotated files have the second in their name.
		for _, old := range names() {
			if old != path && !strings.HasSuffix(old, ".gz") {
				if err := os.Rename(old, fmt.Sprintf("%s.2020010%d-000000", path, round+1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := logs.Rotate(ctx); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != 0 {
			t.Fatalf("round %d: no new log: %v", round, err)
		}
		if len(names()) > 3 {
			t.Fatalf("round %d: %v", round, names())
		}
	}
	compressed := 0
	for _, name := range names() {
		if strings.HasSuffix(name, ".gz") {
			compressed++
		}
	}
	if compressed != 1 {
		t.Errorf("%v: want one compressed log", names())
	}
}
