package node

import (
	"os/exec"
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
	for _, pkg := range []string{"./internal/kubelet/cgroup", "./internal/kubelet/volume", "./internal/network/cni", "./internal/network/conflict"} {
		t.Run(pkg, func(t *testing.T) {
			cmd := exec.Command("go", "test", "-count=1", "-tags=root", pkg)
			cmd.Dir = root
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}
