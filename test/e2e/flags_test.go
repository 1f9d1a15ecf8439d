package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"skiff/test/cluster"
)

// The list of kube-apiserver's flags, which skiff's flags are compared with, is that of the program's help.
func TestUpstreamFlagList(t *testing.T) {
	t.Parallel()
	programs, err := cluster.Upstream("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), filepath.Join(programs, "kube-apiserver"), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z0-9-]+)`).FindAllSubmatch(help, -1) {
		names = append(names, string(match[1]))
	}
	slices.Sort(names)
	want := strings.Join(slices.Compact(names), "\n") + "\n"
	file := filepath.Join("..", "..", "internal", "config", "testdata", "kube-apiserver-flags.txt")
	listed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(listed, []byte(want)) {
		t.Errorf("%s is not the list of this release, which is:\n%s", file, want)
	}
}
