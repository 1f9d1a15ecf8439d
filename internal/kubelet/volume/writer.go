package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is one file of a volume with content from API objects.
type file struct {
	data []byte
	mode int32
	// owner is the file's owner; nil is root.
	owner *int64
}

// payload is the content of such a volume, by path.
type payload map[string]file

// The links to the current and the next version. Keys cannot begin with two dots.
const (
	currentLink = "..data"
	nextLink    = "..data_tmp"
)

// write atomically replaces the content of a volume.
//
//	..2026_11_15_10_30_00.1234/   one complete version
//	..data -> ..2026_11_15_10_30_00.1234
//	key    -> ..data/key
//
// A version is written completely before a rename of ..data makes it current. A reader that has opened ..data sees
// exactly one version. finish sets a version's owners before it becomes visible; it may be nil. write reports whether the
// content changed.
func write(dir string, files payload, finish func() error) (bool, error) {
	files, err := clean(files)
	if err != nil {
		return false, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	old, err := root.Readlink(currentLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read %s: %w", currentLink, err)
	}
	if old != "" {
		same, err := matches(root, old, files)
		if err != nil {
			return false, err
		}
		if same {
			return false, linkFiles(root, files)
		}
	}
	version, err := writeVersion(dir, root, files)
	if err == nil && finish != nil {
		err = finish()
	}
	if err == nil {
		err = activate(root, version)
	}
	if err != nil {
		return false, errors.Join(err, root.RemoveAll(version))
	}
	if err := linkFiles(root, files); err != nil {
		return true, err
	}
	return true, removeStale(root, version, files)
}

// clean checks that every path is inside the volume and does not collide with the writer's own names.
func clean(files payload) (payload, error) {
	cleaned := make(payload, len(files))
	for path, content := range files {
		switch {
		case path == "":
			return nil, fmt.Errorf("invalid path: must not be empty: %q", path)
		case filepath.IsAbs(path):
			return nil, fmt.Errorf("invalid path: must be relative path: %s", path)
		case len(path) > 4096:
			return nil, fmt.Errorf("invalid path: must be less than or equal to %d characters", 4096)
		}
		for i, name := range strings.Split(path, "/") {
			switch {
			case name == "..":
				return nil, fmt.Errorf("invalid path: must not contain '..': %s", path)
			case len(name) > 255:
				return nil, fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", 255)
			case i == 0 && strings.HasPrefix(name, ".."):
				return nil, fmt.Errorf("invalid path: must not start with '..': %s", path)
			}
		}
		cleaned[filepath.Clean(path)] = content
	}
	return cleaned, nil
}

// matches reports whether a version equals the payload.
func matches(root *os.Root, version string, files payload) (bool, error) {
	found := 0
	same := true
	err := fs.WalkDir(root.FS(), version, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		found++
		want, ok := files[strings.TrimPrefix(path, version+"/")]
		if !ok {
			same = false
			return fs.SkipAll
		}
		have, err := root.ReadFile(path)
		if err == nil && !bytes.Equal(have, want.data) {
			same = false
			return fs.SkipAll
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return same && found == len(files), err
}

func writeVersion(dir string, root *os.Root, files payload) (string, error) {
	path, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return "", err
	}
	version := filepath.Base(path)
	if err := root.Chmod(version, 0o755); err != nil {
		return version, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, path := files[name], filepath.Join(version, name)
		if err := makeDirs(root, version, filepath.Dir(name)); err != nil {
			return version, err
		}
		if err := root.WriteFile(path, content.data, 0o600); err != nil {
			return version, err
		}
		if content.owner != nil {
			if err := root.Lchown(path, int(*content.owner), -1); err != nil {
				return version, err
			}
		}
		// Set last, because chown clears mode bits, and because of the umask.
		if err := root.Chmod(path, os.FileMode(content.mode)&os.ModePerm); err != nil {
			return version, err
		}
	}
	return version, nil
}

// makeDirs creates the parent directories of a file, readable by all regardless of the umask.
func makeDirs(root *os.Root, version, path string) error {
	at := version
	for name := range strings.SplitSeq(path, "/") {
		if name == "." {
			continue
		}
		at = filepath.Join(at, name)
		if err := root.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := root.Chmod(at, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// activate makes a version the current one.
func activate(root *os.Root, version string) error {
	if err := root.Remove(nextLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Symlink(version, nextLink); err != nil {
		return err
	}
	return root.Rename(nextLink, currentLink)
}

// linkFiles links the first component of every path to the current version.
func linkFiles(root *os.Root, files payload) error {
	for path := range files {
		name, _, _ := strings.Cut(path, "/")
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := root.Symlink(currentLink+"/"+name, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// removeStale removes links to files that no longer exist, and all other versions.
func removeStale(root *os.Root, version string, files payload) error {
	first := map[string]bool{}
	for path := range files {
		name, _, _ := strings.Cut(path, "/")
		first[name] = true
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == currentLink || name == version:
		case strings.HasPrefix(name, ".."):
			err = root.RemoveAll(name)
		case entry.Type()&fs.ModeSymlink != 0 && !first[name]:
			err = root.Remove(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
