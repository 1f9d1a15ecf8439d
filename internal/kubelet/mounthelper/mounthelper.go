// Package mounthelper runs the host's mount helpers: the programs mount.TYPE that mount(8) runs for file systems whose mounts are negotiated in user
// space. No shell is involved, and no argument can be taken for an option.
package mounthelper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Dirs are the directories in which mount(8) looks for helpers.
var Dirs = []string{"/sbin", "/sbin/fs.d", "/sbin/fs", "/usr/sbin"}

// waitDelay is how long the output of a helper that has ended, or was killed, is waited for.
const waitDelay = time.Second

// Helper mounts file systems of one type.
type Helper struct{ path string }

// Find finds the helper of a type of file systems in directories.
func Find(fsType string, dirs []string) (Helper, error) {
	name := "mount." + fsType
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return Helper{path}, nil
		}
	}
	return Helper{}, fmt.Errorf("the host has no %s", name)
}

// Mount mounts a source on a directory. It is killed when ctx is done.
func (h Helper) Mount(ctx context.Context, source, target string, options []string) error {
	for _, argument := range []string{source, target} {
		if strings.HasPrefix(argument, "-") {
			return fmt.Errorf("mount %q on %q: %q could be taken for an option", source, target, argument)
		}
	}
	args := []string{source, target}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	command := exec.CommandContext(ctx, h.path, args...)
	command.WaitDelay = waitDelay
	output, err := command.CombinedOutput()
	// A helper may leave a process that has its output, such as a daemon for file locks.
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("mount failed: %w\nMounting command: %s\nMounting arguments: %s\nOutput: %s", err, h.path, strings.Join(args, " "), bytes.TrimSpace(output))
	}
	return nil
}
