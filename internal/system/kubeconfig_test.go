package system

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
	"skiff/internal/pki"
)

// someKubeconfig is one that a user has written: with comments, fields that this version does not know, and an entry of an earlier cluster of the name.
const someKubeconfig = `# my clusters
apiVersion: v1
kind: Config
preferences: {}
current-context: work
clusters:
- name: work # the important one
  cluster:
    server: https://work.example:6443
    certificate-authority: /etc/work/ca.crt
    future-field: {a: 1}
- name: skiff
  cluster:
    server: https://127.0.0.1:6443
    insecure-skip-tls-verify: true
    proxy-url: http://proxy.example
contexts:
- name: work
  context: {cluster: work, user: me, namespace: team}
- name: skiff
  context:
    cluster: old
    user: old
    namespace: demo
users:
- name: me
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: login
      interactiveMode: Never
- name: skiff
  user:
    token: old
`

func testEntry() kubeconfigEntry {
	return kubeconfigEntry{name: "skiff", server: "https://127.0.0.1:6443", ca: []byte("ca"), cert: []byte("cert"), key: []byte("key")}
}

func TestMergeKubeconfig(t *testing.T) {
	merged, err := testEntry().merge([]byte(someKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	before, err := clientcmd.Load([]byte(someKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	after, err := clientcmd.Load(merged)
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{"# my clusters", "# the important one", "future-field: {a: 1}", "preferences: {}"} {
		if !bytes.Contains(merged, []byte(kept)) {
			t.Errorf("%q is gone:\n%s", kept, merged)
		}
	}
	if after.CurrentContext != "work" || after.Contexts["work"].Namespace != "team" || after.AuthInfos["me"].Exec.Command != before.AuthInfos["me"].Exec.Command ||
		after.Clusters["work"].CertificateAuthority != "/etc/work/ca.crt" {
		t.Errorf("other entries have changed:\n%s", merged)
	}
	cluster, user, context := after.Clusters["skiff"], after.AuthInfos["skiff"], after.Contexts["skiff"]
	if cluster.Server != "https://127.0.0.1:6443" || string(cluster.CertificateAuthorityData) != "ca" || cluster.InsecureSkipTLSVerify || cluster.ProxyURL != "http://proxy.example" {
		t.Errorf("cluster %+v", cluster)
	}
	if string(user.ClientCertificateData) != "cert" || string(user.ClientKeyData) != "key" || user.Token != "" {
		t.Errorf("user %+v", user)
	}
	if context.Cluster != "skiff" || context.AuthInfo != "skiff" || context.Namespace != "demo" {
		t.Errorf("context %+v", context)
	}
	again, err := testEntry().merge(merged)
	if err != nil || !bytes.Equal(again, merged) {
		t.Errorf("merged again: %v\n%s\nwant\n%s", err, again, merged)
	}
	current := testEntry()
	current.setCurrent = true
	if merged, err := current.merge([]byte(someKubeconfig)); err != nil || !bytes.Contains(merged, []byte("current-context: skiff")) {
		t.Errorf("the context is not the current one: %v\n%s", err, merged)
	}
}

// What was merged is removed again, unless it is another cluster's by now.
func TestUnmergeKubeconfig(t *testing.T) {
	merged, err := testEntry().merge([]byte(someKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	removed, err := testEntry().unmerge(merged)
	if err != nil {
		t.Fatal(err)
	}
	after, err := clientcmd.Load(removed)
	if err != nil || len(after.Clusters) != 1 || len(after.AuthInfos) != 1 || len(after.Contexts) != 1 || after.CurrentContext != "work" {
		t.Errorf("%v\n%s", err, removed)
	}
	if unchanged, err := testEntry().unmerge([]byte(someKubeconfig)); err != nil || string(unchanged) != someKubeconfig {
		t.Errorf("the entry of another cluster: %v\n%s", err, unchanged)
	}
	created, err := testEntry().merge(nil)
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := testEntry().unmerge(created); err != nil || bytes.Contains(removed, []byte("skiff")) {
		t.Errorf("%v\n%s", err, removed)
	}
}

func TestMergeKubeconfigForms(t *testing.T) {
	for what, test := range map[string]struct{ before, current, wrong string }{
		"empty":               {"", "skiff", ""},
		"null lists":          {"apiVersion: v1\nkind: Config\nclusters: null\ncontexts: null\nusers: null\ncurrent-context: \"\"\n", "skiff", ""},
		"JSON":                {`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":"https://a"}}],"current-context":"a"}`, "a", ""},
		"no YAML":             {"clusters: [", "", "it is not a kubeconfig"},
		"an alias":            {"x: &x\n- {name: a, context: {cluster: a, user: a}}\ncontexts: *x\n", "", "line 3: it has a YAML alias, *x, which cannot be kept"},
		"several documents":   {"current-context: a\n---\ncurrent-context: b\n", "", "several YAML documents"},
		"a list":              {"- a\n", "", "it is not a kubeconfig"},
		"another kind":        {"apiVersion: v1\nkind: Pod\n", "", "it is not a kubeconfig"},
		"another cluster":     {"clusters:\n- name: skiff\n  cluster: {server: 'https://other:6443'}\n", "", "it has another cluster with the name skiff, https://other:6443: choose another --merge-kubeconfig-context"},
		"with another port":   {"clusters:\n- name: skiff\n  cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: Y2E=}\n", "skiff", ""},
		"an unfinished entry": {"clusters:\n- name: skiff\n", "skiff", ""},
	} {
		merged, err := testEntry().merge([]byte(test.before))
		if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%s: %v, want %q", what, err, test.wrong)
		}
		if err != nil {
			continue
		}
		after, err := clientcmd.Load(merged)
		if err != nil || after.CurrentContext != test.current || after.Clusters["skiff"].Server != "https://127.0.0.1:6443" || after.Contexts["skiff"].AuthInfo != "skiff" {
			t.Errorf("%s: %v\n%s", what, err, merged)
		}
	}
}

func TestMergeKubeconfigFile(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for path, want := range map[string]string{
		"~/.kube/config": "kubectl --context a", home + "/.kube/config": "kubectl --context a", "/srv/config": "kubectl --kubeconfig /srv/config --context a",
		"~/other": "kubectl --kubeconfig " + home + "/other --context a",
	} {
		if got := kubectlFor(config.MergeKubeconfig{Path: path, Context: "a"}); got != want {
			t.Errorf("command for %s: %s, want %s", path, got, want)
		}
	}
	path := filepath.Join(home, ".kube/config")
	c := config.APIServer{DataDir: t.TempDir(), BindAddress: "127.0.0.1", SecurePort: 6443, MergeKubeconfig: config.MergeKubeconfig{Path: "~/.kube/config", Context: "skiff"}}
	admin := adminKubeconfigOf(c, []byte("ca"), pki.Pair{Cert: []byte("cert"), Key: []byte("key")})
	if err := mergeKubeconfig(c.MergeKubeconfig, admin); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(path): 0o700, path: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
	// A link to the file stays, and the file itself is changed.
	target := filepath.Join(home, "elsewhere")
	if err := os.WriteFile(target, []byte(someKubeconfig), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if err := mergeKubeconfig(c.MergeKubeconfig, admin); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if merged, err := clientcmd.LoadFromFile(path); err != nil || merged.Contexts["skiff"].Cluster != "skiff" || merged.CurrentContext != "work" {
		t.Errorf("%+v, %v", merged, err)
	}
	// While kubectl writes it, it is left as it is.
	if err := os.WriteFile(target+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mergeKubeconfig(c.MergeKubeconfig, admin); err == nil || !strings.Contains(err.Error(), "is being written by kubectl") {
		t.Errorf("locked: %v", err)
	}
}

// The kubeconfig of a user is readable for the user at all times: it has its owner when it gets its name.
func TestMergeKubeconfigKeepsOwner(t *testing.T) {
	owner := atomicfile.Owner{UID: os.Getuid(), GID: os.Getgid()}
	if os.Geteuid() == 0 {
		owner = atomicfile.Owner{UID: 1234, GID: 5678}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "config")
	if err := atomicfile.WriteOwned(path, []byte(someKubeconfig), 0o600, owner); err != nil {
		t.Fatal(err)
	}
	events, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(events)
	if _, err := unix.InotifyAddWatch(events, dir, unix.IN_MOVED_TO|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	if err := testEntry().mergeInto(path); err != nil {
		t.Fatal(err)
	}
	if found, err := ownerOf(path); err != nil || found != owner {
		t.Errorf("the owner is %+v, %v, want %+v", found, err, owner)
	}
	buffer := make([]byte, 4096)
	n, err := unix.Read(events, buffer)
	if err != nil {
		t.Fatal(err)
	}
	moved := false
	for rest := buffer[:n]; len(rest) > 0; {
		mask, length := binary.NativeEndian.Uint32(rest[4:]), binary.NativeEndian.Uint32(rest[12:])
		name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:][:length]), "\x00")
		rest = rest[unix.SizeofInotifyEvent+length:]
		switch {
		case name == "config" && mask&unix.IN_MOVED_TO != 0:
			moved = true
		case name == "config" && mask&unix.IN_ATTRIB != 0:
			t.Error("the owner was changed after the file was in place")
		}
	}
	if !moved {
		t.Error("the file was not replaced")
	}
}
