package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// No process is left, whether the suite is interrupted or exits.
func TestRunGroup(t *testing.T) {
	for name, script := range map[string]string{
		"interrupted": "sleep 1000 & echo $! > pid; wait",
		"ended":       "sleep 1000 & echo $! > pid",
		"failed":      "sleep 1000 & echo $! > pid; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", script)
			cmd.Dir = t.TempDir()
			child := func() (pid int) {
				data, _ := os.ReadFile(filepath.Join(cmd.Dir, "pid"))
				pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
				return pid
			}
			if name == "interrupted" {
				go func() {
					for child() == 0 {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}()
			}
			err := runGroup(cmd)
			if (err == nil) != (name == "ended") {
				t.Errorf("runGroup returns %v", err)
			}
			pid := child()
			if pid == 0 {
				t.Fatal("the script wrote no process id")
			}
			for end := time.Now().Add(10 * time.Second); !gone(pid); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("process %d still exists", pid)
				}
			}
		})
	}
}

// Only tests that deploy the CSI driver have its images, which take minutes to build.
func TestImages(t *testing.T) {
	for focus, want := range map[string]bool{
		"": false, "ConfigMap should be": false,
		"Driver: csi-hostpath": true, `Driver: csi-hostpath.*Dynamic PV \(default fs\)`: true,
	} {
		if got := slices.Contains(options{focus: focus, real: true}.images(), "csi"); got != want {
			t.Errorf("focus %q: images of the CSI driver: %v", focus, got)
		}
	}
	if (options{focus: "Driver: csi-hostpath"}).usesCSI() {
		t.Error("a cluster without containers has images of the CSI driver")
	}
}

// gone reports whether a process has exited. A zombie counts as exited.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
