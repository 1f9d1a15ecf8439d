package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"skiff/internal/upgrade"
)

// Program is the path of a skiff to start; empty: the one in bin/.
type Program string

// path is the path of the program.
func (p Program) path() (string, error) {
	if p != "" {
		return string(p), nil
	}
	root, err := Root()
	return filepath.Join(root, "bin/skiff"), err
}

// Release is the release of the program.
func (p Program) Release() (upgrade.Release, error) {
	path, err := p.path()
	if err != nil {
		return upgrade.Release{}, err
	}
	out, err := exec.Command(path, "version").Output()
	if err != nil {
		return upgrade.Release{}, fmt.Errorf("%s version: %w", path, err)
	}
	return upgrade.ParseVersion(strings.TrimPrefix(strings.TrimSpace(string(out)), "skiff version "))
}

// BuildAhead builds a skiff in a directory whose version is some minor versions ahead of the one in bin/. The other programs of bin/ are beside it.
func BuildAhead(dir string, minors int) (Program, error) {
	release, err := Program("").Release()
	if err != nil {
		return "", err
	}
	var major, minor int
	if _, err := fmt.Sscanf(release.Minor(), "v%d.%d", &major, &minor); err != nil {
		return "", err
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "skiff")
	build := exec.Command("go", "build", "-ldflags", fmt.Sprintf("-s -w -X skiff/internal/version.skiff=%d.%d.0", major, minor+minors), "-o", path, "./cmd/skiff")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build another version of skiff: %w: %s", err, out)
	}
	programs, err := os.ReadDir(filepath.Join(root, "bin"))
	if err != nil {
		return "", err
	}
	for _, program := range programs {
		if err := os.Symlink(filepath.Join(root, "bin", program.Name()), filepath.Join(dir, program.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return Program(path), nil
}
