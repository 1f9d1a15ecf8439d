package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
)

// publishedIndex has the CSI volumes of this node's pods, as they are on disk. The disk is read once: each unmount asks who else uses a volume.
type publishedIndex struct {
	// root is the kubelet's directory.
	root string

	mu    sync.Mutex
	byDir map[string]volumeData // by the volume's directory in a pod's directory; nil: it was not read yet
	// dirs are the directories by the volume that is published there.
	dirs map[volumeKey]map[string]bool
}

// volumeKey identifies a CSI volume.
type volumeKey struct{ driver, handle string }

func (d volumeData) key() volumeKey { return volumeKey{d.Driver, d.Handle} }

// read reads the index from disk unless that was done before. The caller holds mu.
func (x *publishedIndex) read() error {
	if x.byDir != nil {
		return nil
	}
	all, err := publishedBelow(x.root)
	if err != nil {
		return err
	}
	x.byDir, x.dirs = map[string]volumeData{}, map[volumeKey]map[string]bool{}
	for dir, data := range all {
		x.add(dir, data)
	}
	return nil
}

// add adds a volume. The caller holds mu.
func (x *publishedIndex) add(dir string, data volumeData) {
	x.delete(dir)
	x.byDir[dir] = data
	if x.dirs[data.key()] == nil {
		x.dirs[data.key()] = map[string]bool{}
	}
	x.dirs[data.key()][dir] = true
}

// delete deletes a volume. The caller holds mu.
func (x *publishedIndex) delete(dir string) {
	key := x.byDir[dir].key()
	delete(x.byDir, dir)
	delete(x.dirs[key], dir)
	if len(x.dirs[key]) == 0 {
		delete(x.dirs, key)
	}
}

// save writes the data of a volume into its directory.
func (x *publishedIndex) save(dir string, data volumeData) error {
	// Read before the file is written: else it could be read while it is replaced, and be missed.
	x.mu.Lock()
	err := x.read()
	x.mu.Unlock()
	if err == nil {
		err = save(dir, data)
	}
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(dir, data)
	return nil
}

// remove removes the data of a volume from its directory.
func (x *publishedIndex) remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, dataFile)); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.delete(dir)
	return nil
}

// all returns the CSI volumes of this node's pods, by directory.
func (x *publishedIndex) all() (map[string]volumeData, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.read(); err != nil {
		return nil, err
	}
	for dir := range x.byDir {
		x.deleteIfGone(dir)
	}
	return maps.Clone(x.byDir), nil
}

// dirsOf returns the directories in which a volume is published.
func (x *publishedIndex) dirsOf(data volumeData) ([]string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.read(); err != nil {
		return nil, err
	}
	for dir := range x.dirs[data.key()] {
		x.deleteIfGone(dir)
	}
	return slices.Sorted(maps.Keys(x.dirs[data.key()])), nil
}

// deleteIfGone deletes a volume whose directory somebody else has removed. The caller holds mu.
func (x *publishedIndex) deleteIfGone(dir string) {
	if _, err := os.Lstat(filepath.Join(dir, dataFile)); errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		x.delete(dir)
	}
}

// isShared reports whether another pod uses the volume of a directory.
func (x *publishedIndex) isShared(dir string, data volumeData) (bool, error) {
	dirs, err := x.dirsOf(data)
	return slices.ContainsFunc(dirs, func(other string) bool { return other != dir }), err
}

const dataFile = "vol_data.json"

func save(dir string, data volumeData) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, dataFile), text, 0o600)
}

func load(dir string) (volumeData, error) {
	var data volumeData
	text, err := os.ReadFile(filepath.Join(dir, dataFile))
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	return data, err
}

// publishedBelow reads the CSI volumes of the pods below the kubelet's directory, by directory.
func publishedBelow(root string) (map[string]volumeData, error) {
	pods := filepath.Join(root, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	all := map[string]volumeData{}
	for _, entry := range entries {
		ofPod, err := publishedFor(filepath.Join(pods, entry.Name()))
		if err != nil {
			return nil, err
		}
		maps.Copy(all, ofPod)
	}
	return all, nil
}

// publishedFor returns the CSI volumes of one pod, by directory.
func publishedFor(podDir string) (map[string]volumeData, error) {
	parent := filepath.Join(podDir, "volumes", strings.ReplaceAll(csiPlugin, "/", "~"))
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, err
	}
	volumes := map[string]volumeData{}
	for _, entry := range entries {
		dir := filepath.Join(parent, entry.Name())
		data, err := load(dir)
		var damaged *json.SyntaxError
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.As(err, &damaged) {
			continue // deleted since, or truncated by a power loss, after which nothing is mounted
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", dataFile, dir, err)
		}
		volumes[dir] = data
	}
	return volumes, nil
}
