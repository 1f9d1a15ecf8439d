package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// forbidden says who must not import what, directly. "..." stands for everything below.
var forbidden = []struct {
	who    []string
	not    []string
	except []string // packages among who that may
	why    string
}{
	{
		who: []string{"skiff/..."}, not: []string{"skiff/internal/system"}, except: []string{"skiff/cmd/skiff"},
		why: "system ties the parts together; a part that knows it could reach everything",
	},
	{
		who: []string{"skiff/internal/kind/..."}, not: []string{"skiff/..."}, except: []string{"skiff/internal/kind/kindtest"},
		why: "kind is the vocabulary all others speak; it knows none of them",
	},
	{
		who: []string{"skiff/internal/api/..."},
		not: []string{"skiff/internal/apiserver/...", "skiff/internal/store/...", "skiff/internal/client/...", "skiff/internal/config/..."},
		why: "kinds are pure functions; they reach other objects through kind.Client",
	},
	{
		who: []string{"skiff/internal/store/..."}, not: []string{"skiff/internal/api/...", "skiff/internal/apiserver/...", "skiff/internal/client/..."},
		why: "the store keeps bytes and knows no resource",
	},
	{
		who: []string{"skiff/..."}, not: []string{"go.etcd.io/..."}, except: []string{"skiff/internal/store/etcd", "skiff/test/bench"},
		why: "etcd can be replaced in one place; the benchmark compares writes with etcd's own",
	},
	{
		who: []string{"skiff/..."}, not: []string{"k8s.io/cri-api/..."}, except: []string{"skiff/internal/kubelet/cri/..."},
		why: "the rest of the kubelet uses cri.Runtime and its types, so that a new version of the CRI changes one package",
	},
	{
		who: []string{"skiff/internal/...", "skiff/cmd/..."}, not: []string{"skiff/internal/kubelet/cri/critest"},
		why: "the fake container runtime is for tests",
	},
	{
		who: []string{"skiff/internal/client/...", "skiff/internal/controller/...", "skiff/internal/controllers/...", "skiff/internal/scheduler/...", "skiff/internal/kubelet/...", "skiff/internal/network/..."},
		not: []string{"skiff/internal/apiserver/...", "skiff/internal/store/..."},
		why: "every part but the API server speaks through client, so that it can move to another machine or be replaced by upstream's",
	},
	{
		who: []string{"skiff/internal/apiserver/..."}, not: []string{"skiff/internal/api/...", "skiff/internal/client/..."},
		why: "the server has no code for any particular resource; it reads the rows it is given",
	},
	{
		who:    []string{"skiff/..."},
		not:    []string{"k8s.io/kubernetes/...", "k8s.io/apiserver/pkg/server/...", "k8s.io/apiserver/pkg/registry/...", "k8s.io/apiserver/pkg/storage/...", "k8s.io/apiserver/pkg/endpoints/...", "k8s.io/client-go/kubernetes/..."},
		except: []string{"skiff/test/..."},
		why:    "upstream's server is the peer we are measured against, not a part of us",
	},
	{
		who: []string{"skiff/internal/..."}, not: []string{"os/exec"},
		except: []string{"skiff/internal/archtest", "skiff/internal/openapi/gen", "skiff/internal/kubelet/runtime", "skiff/internal/kubelet/images/credentials", "skiff/internal/kubelet/mounthelper"},
		why:    "the product does not shell out; it starts containerd, the credential plugins an operator configures, and the host's mount helpers",
	},
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string
}

// packages lists skiff's packages, once for all tests.
var packages = sync.OnceValues(func() ([]pkg, error) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", "skiff/...").Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func matches(path string, patterns []string) bool {
	for _, pattern := range patterns {
		base, below := strings.CutSuffix(pattern, "/...")
		if path == base || below && strings.HasPrefix(path, base+"/") {
			return true
		}
	}
	return false
}

func TestWhoMayImportWhom(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages found", len(all))
	}
	for _, p := range all {
		for _, rule := range forbidden {
			if !matches(p.ImportPath, rule.who) || matches(p.ImportPath, rule.except) {
				continue
			}
			for _, imported := range p.Imports {
				// A package may import what is below itself and belongs to the same part.
				if matches(imported, rule.not) && !samePart(p.ImportPath, imported, rule.who) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imported, rule.why)
				}
			}
		}
	}
}

// samePart reports whether both packages are covered by the same pattern of skiff's own packages.
func samePart(a, b string, patterns []string) bool {
	for _, pattern := range patterns {
		if pattern != "skiff/..." && matches(a, []string{pattern}) && matches(b, []string{pattern}) {
			return true
		}
	}
	return false
}

func TestEveryPackageHasADoc(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if len(p.GoFiles) > 0 && len(p.Doc) < 30 {
			t.Errorf("%s has no package comment that a newcomer could read", p.ImportPath)
		}
	}
}
