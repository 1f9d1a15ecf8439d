package archtest

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sharedModules are the go.mod files whose programs and tests are built from the same dependencies. runtime/ is not among them: containerd
// needs newer versions.
var sharedModules = []string{"go.mod", "test/differential/go.mod", "test/h2spec/go.mod", "test/helm/go.mod", "test/operator/go.mod", "test/upstream/go.mod", "tools/kubectl/go.mod"}

// versionsApart are modules of few packages that upstream's programs and helm need in newer versions.
var versionsApart = map[string]bool{
	"github.com/Masterminds/semver/v3": true,
	"github.com/mdlayher/netlink":      true,
	"github.com/mdlayher/socket":       true,
}

// TestModuleVersions checks that go.mod files agree on versions. A package is compiled again when one of its dependencies has another version:
// one patch release of a YAML library once had half of Kubernetes compiled twice.
func TestModuleVersions(t *testing.T) {
	type requirement struct{ version, file string }
	first := map[string]requirement{}
	compared := 0
	for _, file := range sharedModules {
		data, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		for module, version := range requirements(data) {
			other, ok := first[module]
			switch {
			case !ok:
				first[module] = requirement{version, file}
			case other.version != version && !versionsApart[module]:
				t.Errorf("%s: %s %s, but %s in %s: run go get in the directory of the older", file, module, version, other.version, other.file)
			default:
				compared++
			}
		}
	}
	if compared < 100 {
		t.Errorf("only %d requirements are in more than one file: the files are not read correctly", compared)
	}
}

// requirements returns the versions that a go.mod file requires.
func requirements(data []byte) map[string]string {
	versions := map[string]string{}
	block := ""
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case fields[0] == ")":
			block = ""
		case len(fields) == 2 && fields[1] == "(":
			block = fields[0]
		case block == "require":
			versions[fields[0]] = fields[1]
		case fields[0] == "require":
			versions[fields[1]] = fields[2]
		}
	}
	return versions
}
