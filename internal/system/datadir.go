package system

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"skiff/internal/atomicfile"
	"skiff/internal/upgrade"
)

// dataEntries are what skiff makes in its data directory. The last is removed last, so that a removal can be repeated.
var dataEntries = []string{
	adminKubeconfig, "cni", "containerd", "dns", "etcd", "images", "kubelet", lockFile, "network", "pki", "registries",
	replacedDir, restoreDir, preparedDir, restoredFiles, snapshotDir, snapshotStagingDir, snapshotPassphrase, tokenFile, upgrade.File, "volumes", markerFile,
}

// kubeletEntries are what skiff makes in a kubelet's directory that is not below its data directory. What others have put into plugins and
// plugins_registry is removed too: without a kubelet nobody uses it.
var kubeletEntries = []string{
	"checkpoints", "containers", "cpu_manager_state", "device-plugins", "dra_manager_state", "graceful_node_shutdown_state", "images.json", lockFile, "logs", "memory_manager_state",
	"pki", "plugins", "plugins_registry", "pod-resources", "pods", markerFile,
}

const (
	// markerFile is the file in a data directory that has the names of entries that were there before skiff. They have names that skiff uses too,
	// but they are not skiff's, so it does not remove them.
	markerFile   = ".skiff"
	markerHeader = "# skiff uses this directory. The entries below were here before: skiff uninstall keeps them."
)

// localPathDir is the parent of the directories of volumes that skiff provisions on a node with a data directory.
func localPathDir(dataDir string) string { return filepath.Join(dataDir, "volumes") }

// openDataDir creates the data directory, if it does not exist, and locks it.
func openDataDir(dir string) (unlock func(), err error) {
	if err := createDataDir(dir); err != nil {
		return nil, explainDir(err, dir, "data-dir")
	}
	unlock, err = lockDir(dir, "data-dir")
	return unlock, explainDir(err, dir, "data-dir")
}

// createDataDir creates the data directory, if it does not exist, and records what is in it when skiff uses it for the first time.
func createDataDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	return recordForeign(dir, dataEntries)
}

// openKubeletDir creates the kubelet's directory, if it does not exist, and locks it. Unless it is below the data directory, what is in it when skiff
// uses it for the first time is recorded.
func openKubeletDir(dir, dataDir, flag string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create the kubelet's directory: %w", err)
	}
	if unlock, err = lockDir(dir, flag); err != nil || isBelow(dir, dataDir) {
		return unlock, err
	}
	if err := recordForeign(dir, kubeletEntries); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// usedKubeletDir returns a kubelet's directory if skiff has used it, and "" otherwise: what is in it is another kubelet's then.
func usedKubeletDir(dir, dataDir string) (string, error) {
	if isBelow(dir, dataDir) {
		return dir, nil
	}
	_, err := os.Lstat(filepath.Join(dir, markerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return dir, err
}

// isBelow reports whether a path is below a directory.
func isBelow(path, dir string) bool {
	return strings.HasPrefix(filepath.Clean(path), filepath.Clean(dir)+"/")
}

// recordForeign records which of the entries are in a directory, and so not skiff's, when skiff uses it for the first time.
func recordForeign(dir string, names []string) error {
	path := filepath.Join(dir, markerFile)
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read directory: %w", err)
	}
	lines := []string{markerHeader}
	for _, entry := range entries {
		// The lock may be there before: skiff clean locks directories too.
		if name := entry.Name(); name != lockFile && slices.Contains(names, name) {
			lines = append(lines, entry.Name())
		}
	}
	if err := atomicfile.Write(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("write directory: %w", err)
	}
	return nil
}

// ownEntries returns those of the names that skiff has made, or would make, in a directory: nothing in one that it has never used.
func ownEntries(dir string, names []string) ([]string, error) {
	marker, err := os.ReadFile(filepath.Join(dir, markerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	others := strings.Split(string(marker), "\n")
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) }), nil
}
