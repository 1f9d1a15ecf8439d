package node

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skiff/test/cluster"
)

// TestPrivilegedUnitTests runs the unit tests that need root: those with the build tag root. They create mounts, cgroups and network
// interfaces, which exist only in this test's namespaces.
func TestPrivilegedUnitTests(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	packages := privilegedPackages(t, root)
	if len(packages) < 10 {
		t.Errorf("only %q have tests that need root", packages)
	}
	for _, pkg := range packages {
		t.Run(pkg, func(t *testing.T) {
			cmd := exec.Command("go", "test", "-count=1", "-tags=root", pkg)
			cmd.Dir = root
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

// privilegedPackages finds the packages with tests that have the build tag root.
func privilegedPackages(t *testing.T, root string) (packages []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(text, []byte("//go:build root\n")) {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if pkg := "./" + dir; !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}
