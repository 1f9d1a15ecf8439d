package system

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"skiff/internal/config"
	"skiff/internal/systemd"
	fake "skiff/test/systemd"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestUnitFile(t *testing.T) {
	for name, u := range map[string]unit{
		"server": {program: "/usr/local/bin/skiff", command: "server", arguments: []string{"--data-dir=/srv/my cluster", "--node-labels=price=5$,share=50%"}},
		"agent": {
			program: "/opt/skiff/bin/skiff", command: "agent", foreignRuntime: true,
			arguments: []string{"--server=https://10.0.0.1:6443", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--token-file=/var/lib/skiff/join-token"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			golden := filepath.Join("testdata", "unit-"+name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(u.text()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if u.text() != string(want) {
				t.Errorf("unit file differs from %s (rewrite it with -update):\n%s", golden, u.text())
			}
			read, err := parseUnit(u.text())
			if err != nil || read.program != u.program || read.command != u.command || !slices.Equal(read.arguments, u.arguments) {
				t.Errorf("read back %+v, %v", read, err)
			}
		})
	}
}

func TestParseUnitErrors(t *testing.T) {
	for text, want := range map[string]string{
		"[Service]\nExecStart=/bin/skiff server\n":                   "not written by skiff",
		unitMarker + "\n[Service]\n":                                 "no ExecStart",
		unitMarker + "\nExecStart=/bin/skiff\n":                      "not a command of skiff",
		unitMarker + "\nExecStart=/bin/skiff server \"--data-dir\n":  "unclosed quote",
		unitMarker + "\nExecStart=/bin/skiff server --data-dir=\\\n": "ends within",
		unitMarker + "\nExecStart=/bin/skiff server $HOME\n":         "unknown escape sequence",
	} {
		if _, err := parseUnit(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one that contains %q", text, err, want)
		}
	}
}

func FuzzWords(f *testing.F) {
	f.Add("plain", "with space", `quote"back\slash`, "$HOME %n\n\t;")
	f.Add("", "é", "'", "a=b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		words := []string{a, b, c, d}
		var quoted []string
		for _, word := range words {
			quoted = append(quoted, quoteWord(word))
		}
		line := strings.Join(quoted, " ")
		if got, err := splitWords(line); err != nil || !slices.Equal(got, words) {
			t.Errorf("%q as %s is read as %q, %v", words, line, got, err)
		}
		if strings.Contains(line, "\n") {
			t.Errorf("%s has a line break", line)
		}
	})
}

// newTestInstaller is an installer with a fake systemd. cleaned receives what is cleaned.
func newTestInstaller(t *testing.T) (i *installer, host *fake.Systemd, out *bytes.Buffer, cleaned *[]config.Clean) {
	t.Helper()
	// The path of a socket is limited; that of t.TempDir may be too long.
	dir, err := os.MkdirTemp("", "install")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if host, err = fake.Start(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Stop)
	out, cleaned = &bytes.Buffer{}, new([]config.Clean)
	i = &installer{unitDir: dir, systemd: &systemd.Manager{Address: host.Address}, out: out}
	i.clean = func(_ context.Context, c config.Clean, _ io.Writer) error {
		*cleaned = append(*cleaned, c)
		return nil
	}
	t.Cleanup(i.systemd.Close)
	return i, host, out, cleaned
}

// What install makes uninstall removes, and nothing else.
func TestInstallAndUninstall(t *testing.T) {
	i, host, out, cleaned := newTestInstaller(t)
	data, path := filepath.Join(t.TempDir(), "data"), filepath.Join(i.unitDir, unitName)
	if err := createDataDir(data); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"etcd/member", "kubelet/pods", "images"} {
		if err := os.MkdirAll(filepath.Join(data, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	u := unit{command: commandServer, arguments: []string{
		"--data-dir=" + data, "--kubelet-config=/etc/kubelet.yaml", "--container-runtime-endpoint=unix:///run/x.sock", "--write-kubeconfig=" + kubeconfig,
	}}
	if err := i.install(t.Context(), u, config.Install{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), " server --data-dir="+data) {
		t.Fatalf("unit file %s, %v", text, err)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err != nil {
		t.Fatal(err)
	}
	for _, removed := range []string{path, data, kubeconfig} {
		if _, err := os.Lstat(removed); err == nil {
			t.Errorf("%s was not removed; output:\n%s", removed, out)
		}
	}
	if want := (config.Clean{DataDir: data, KubeletConfig: "/etc/kubelet.yaml", ContainerRuntimeEndpoint: "unix:///run/x.sock"}); !slices.Equal(*cleaned, []config.Clean{want}) {
		t.Errorf("cleaned %+v", *cleaned)
	}
	want := []string{
		"Reload", fmt.Sprintf("EnableUnitFiles [%s] false true", path), "RestartUnit skiff.service replace",
		"StopUnit skiff.service replace", "DisableUnitFiles [skiff.service] false", "Reload", "ResetFailedUnit skiff.service",
	}
	if got := host.Calls(); !slices.Equal(got, want) {
		t.Errorf("calls of systemd: %q, want %q", got, want)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err == nil || !strings.Contains(err.Error(), "skiff is not installed") {
		t.Errorf("second uninstall: %v", err)
	}
}

// The configuration file of a service has its flags too. It is the administrator's, so it is kept.
func TestUninstallReadsConfigurationFile(t *testing.T) {
	i, _, out, cleaned := newTestInstaller(t)
	dir := t.TempDir()
	data, file := filepath.Join(dir, "data"), filepath.Join(dir, "config.yaml")
	if err := createDataDir(data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("data-dir: "+data+"\nserver: [https://a:6443, https://b:6443]\nkubelet-config: /etc/kubelet.yaml\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := unit{command: commandAgent, arguments: []string{"--config=" + file}}
	if err := i.install(t.Context(), u, config.Install{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".wrong", []byte("data-dr: "+data+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := unit{command: commandAgent, arguments: []string{"--config=" + file + ".wrong"}}
	if _, err := wrong.installed(); err == nil || !strings.Contains(err.Error(), "did you mean data-dir?") {
		t.Errorf("an invalid file: %v", err)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(data); err == nil {
		t.Errorf("%s was not removed; output:\n%s", data, out)
	}
	if _, err := os.Lstat(file); err != nil || !strings.Contains(out.String(), "kept "+file) {
		t.Errorf("%v; output:\n%s", err, out)
	}
	if len(*cleaned) != 1 || (*cleaned)[0].KubeletConfig != "/etc/kubelet.yaml" {
		t.Errorf("cleaned %+v", *cleaned)
	}
}

// A configuration that was changed since the installation does not make uninstall remove another directory.
func TestUninstallAfterChangedConfiguration(t *testing.T) {
	i, _, out, cleaned := newTestInstaller(t)
	dir := t.TempDir()
	data, other, file := filepath.Join(dir, "my data"), filepath.Join(dir, "other"), filepath.Join(dir, "config.yaml")
	for _, path := range []string{data, other} {
		if err := createDataDir(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(path, "etcd"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	configure := func(data string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("data-dir: "+data+"\nroot-dir: "+data+"/kubelet\nserver: [https://a:6443]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure(data)
	if err := i.install(t.Context(), unit{command: commandAgent, arguments: []string{"--config=" + file}}, config.Install{}); err != nil {
		t.Fatal(err)
	}
	configure(other)
	if err := i.refresh(t.Context()); err != nil { // an upgrade keeps what was recorded
		t.Fatal(err)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(data); err == nil {
		t.Errorf("%s was not removed; output:\n%s", data, out)
	}
	if _, err := os.Lstat(filepath.Join(other, "etcd")); err != nil || !strings.Contains(out.String(), "kept "+other) {
		t.Errorf("%v; output:\n%s", err, out)
	}
	if len(*cleaned) != 1 || (*cleaned)[0].DataDir != data || (*cleaned)[0].RootDir != data+"/kubelet" {
		t.Errorf("cleaned %+v", *cleaned)
	}
}

// After an upgrade the unit is the new version's, with the flags of the old. A service that an administrator has disabled or stopped stays so.
func TestRefreshService(t *testing.T) {
	i, host, _, _ := newTestInstaller(t)
	path := filepath.Join(i.unitDir, unitName)
	if err := i.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "skiff is not installed") {
		t.Errorf("without a service: %v", err)
	}
	u := unit{program: "/old/skiff", command: commandAgent, foreignRuntime: true, arguments: []string{"--server=https://a:6443", "--container-runtime-endpoint=unix:///run/x.sock"}}
	old := strings.Replace(u.text(), "RestartSec=2", "RestartSec=9", 1)
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	u.program, u.recorded = program, []string{"--data-dir=/var/lib/skiff"}
	if text, err := os.ReadFile(path); err != nil || string(text) != u.text() {
		t.Errorf("unit file %s, %v", text, err)
	}
	if got, want := host.Calls(), []string{"Reload", "TryRestartUnit skiff.service replace"}; !slices.Equal(got, want) {
		t.Errorf("calls of systemd: %q, want %q", got, want)
	}
}

// Files of others are kept: a unit of that name, and what else is in the data directory.
func TestUninstallKeepsOthersFiles(t *testing.T) {
	i, _, out, cleaned := newTestInstaller(t)
	path := filepath.Join(i.unitDir, unitName)
	if err := os.WriteFile(path, []byte("[Service]\nExecStart=/usr/bin/skiff server\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := i.install(t.Context(), unit{command: commandServer}, config.Install{}); err == nil || !strings.Contains(err.Error(), "not written by skiff install") {
		t.Errorf("install: %v", err)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err == nil || !strings.Contains(err.Error(), "not written by skiff install") {
		t.Errorf("uninstall: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	// A directory that others use too, with names that skiff uses too.
	data := t.TempDir()
	mkdir := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(data, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	mkdir("images", "photos", "volumes")
	for range 2 { // a restart changes nothing
		unlock, err := openDataDir(data)
		if err != nil {
			t.Fatal(err)
		}
		mkdir("etcd", "pki", "volumes/pvc-1")
		unlock()
	}
	if err := i.install(t.Context(), unit{command: commandServer, arguments: []string{"--no-node", "--data-dir=" + data}}, config.Install{NoStart: true}); err != nil {
		t.Fatal(err)
	}
	if err := i.uninstall(t.Context(), config.Uninstall{}); err != nil {
		t.Fatal(err)
	}
	var kept []string
	entries, err := os.ReadDir(data)
	for _, entry := range entries {
		kept = append(kept, entry.Name())
	}
	if err != nil || !slices.Equal(kept, []string{"images", "photos", "volumes"}) {
		t.Errorf("the data directory has %v, %v", kept, err)
	}
	if !strings.Contains(out.String(), "images is not of skiff") {
		t.Errorf("output %q", out)
	}
	if len(*cleaned) != 0 {
		t.Errorf("a node was cleaned although there was none: %v", *cleaned)
	}
}

// After a failure, uninstall can be repeated.
func TestUninstallAgainAfterFailure(t *testing.T) {
	i, _, _, _ := newTestInstaller(t)
	data := t.TempDir()
	if err := i.install(t.Context(), unit{command: commandAgent, arguments: []string{"--server=https://a:6443", "--data-dir=" + data}}, config.Install{}); err != nil {
		t.Fatal(err)
	}
	clean, failure := i.clean, errors.New("a pod does not stop")
	i.clean = func(context.Context, config.Clean, io.Writer) error { return failure }
	if err := i.uninstall(t.Context(), config.Uninstall{}); !errors.Is(err, failure) {
		t.Fatal(err)
	}
	i.clean = clean
	if err := i.uninstall(t.Context(), config.Uninstall{KeepData: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); err != nil {
		t.Error("--keep-data did not keep the data directory")
	}
}

// A service that does not start is reported with where to read why. The installation stays, so that it can be corrected.
func TestInstallReportsFailedStart(t *testing.T) {
	i, host, _, _ := newTestInstaller(t)
	host.Call = func(member string, _ []any) (string, error) {
		if member == "RestartUnit" {
			return "failed", nil
		}
		return "done", nil
	}
	if err := i.install(t.Context(), unit{command: commandServer}, config.Install{}); err == nil || !strings.Contains(err.Error(), "journalctl -u skiff.service") {
		t.Error(err)
	}
}

// A token is not among the arguments of a service: they can be read by everyone.
func TestMoveToken(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(data, tokenFile)
	given := []string{"--server=https://a:6443", "--token=secret", "--log-level=debug"}
	arguments, err := moveToken(data, given, "token")
	if want := []string{"--server=https://a:6443", "--log-level=debug", "--token-file=" + path}; err != nil || !slices.Equal(arguments, want) {
		t.Fatalf("arguments %q, %v, want %q", arguments, err, want)
	}
	for _, others := range [][]string{{"--server=https://a:6443"}, {"--token-file=/x"}} {
		if arguments, err := moveToken(data, others, "token"); err != nil || !slices.Equal(arguments, others) {
			t.Errorf("arguments %q, %v, want %q", arguments, err, others)
		}
	}
	if arguments, err := moveToken(data, []string{"--token="}, "token"); err != nil || len(arguments) > 0 {
		t.Errorf("arguments %q, %v, want none", arguments, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	agent := config.Agent{TokenFile: path}
	if token, err := agent.ReadToken(); err != nil || token != "secret" {
		t.Errorf("token %q, %v", token, err)
	}
}

// The token of a server is the administrator's.
func TestServerToken(t *testing.T) {
	if err := checkServerArguments([]string{"--no-node=true", "--token=secret"}); err == nil || !strings.Contains(err.Error(), "/etc/skiff/config.yaml") || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
	if err := checkServerArguments([]string{"--token=", "--join-token=moved", "--token-auth-file=/f"}); err != nil {
		t.Error(err)
	}
}

// A directory is locked for one skiff, by whichever command.
func TestLockNamesTheFlag(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockDir(dir, "root-dir")
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockDirs(filepath.Join(dir, "absent"), dir)
	if want := fmt.Sprintf("directory %s is used by another skiff (process %d): stop it, or choose another --data-dir", dir, os.Getpid()); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	} else if err := checkNode(&config.Node{}, dir, ""); err == nil || err.Error() != want {
		t.Errorf("before a node is started: error %v, want %q", err, want)
	}
	unlock()
	unlock, err = lockDirs(filepath.Join(dir, "absent"), dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// A kubelet's directory beside the data directory is removed with what skiff has made in it, and the logs of its pods.
func TestRemoveKubeletDir(t *testing.T) {
	i, _, out, _ := newTestInstaller(t)
	root, data := filepath.Join(t.TempDir(), "kubelet"), t.TempDir()
	service := installed{node: &config.Node{RootDir: root}, dataDir: data}
	if err := os.MkdirAll(filepath.Join(root, "plugins/other"), 0o750); err != nil {
		t.Fatal(err)
	}
	unlock, err := openKubeletDir(root, data, "root-dir")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	for _, dir := range []string{"pods/uid", "device-plugins", "logs/ns_pod_uid", "logs/ns_pod_other", "containers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.removeKubeletDir(service); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != "plugins" {
		t.Errorf("left %v, %v", entries, err)
	}
	if want := "kept " + root + ": plugins is not of skiff"; !strings.Contains(out.String(), want) {
		t.Errorf("said %q, want %q", out, want)
	}
	// One in the data directory is removed with that.
	service.node.RootDir = filepath.Join(data, "kubelet")
	if err := errors.Join(os.Mkdir(service.node.RootDir, 0o750), i.removeKubeletDir(service)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(service.node.RootDir); err != nil {
		t.Error(err)
	}
}

// What is in a kubelet's directory that skiff has never used is another kubelet's: nothing of it is removed.
func TestForeignKubeletDir(t *testing.T) {
	i, _, _, _ := newTestInstaller(t)
	root, data := filepath.Join(t.TempDir(), "kubelet"), t.TempDir()
	for _, dir := range []string{"pods/uid", "logs/ns_pod_uid", "containers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.removeKubeletDir(installed{node: &config.Node{RootDir: root}, dataDir: data}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"pods/uid", "logs/ns_pod_uid", "containers"} {
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			t.Error(err)
		}
	}
	used, err := usedKubeletDir(root, data)
	if used != "" || err != nil {
		t.Fatalf("skiff has used %q, %v", used, err)
	}
	if uids, err := podDirectories(used); len(uids) > 0 || err != nil {
		t.Errorf("pods %v, %v", uids, err)
	}
	dirs := nodeDirs{data: data, kubelet: used}
	if mount := filepath.Join(root, "pods/uid/volumes/x"); isNodeMount(&mountinfo.Info{Mountpoint: mount, Root: "/"}, dirs) {
		t.Errorf("%s would be unmounted", mount)
	}
	if all := dirs.all(); !slices.Equal(all, []string{data}) {
		t.Errorf("would lock %q", all)
	}
}

// The logs of this node's pods are removed, and links that lead nowhere; those of others stay.
func TestRemovePodLogs(t *testing.T) {
	root := filepath.Join(t.TempDir(), "kubelet")
	for _, dir := range []string{"pods/uid", "logs/ns_pod_uid", "logs/ns_pod_other", "containers"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"pod_ns_c-1.log": "logs/ns_pod_uid", "pod_ns_c-2.log": "logs/ns_pod_other", "other": "nowhere"} {
		if err := os.Symlink(filepath.Join(root, target), filepath.Join(root, "containers", link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removePodLogs(root, filepath.Join(root, "logs")); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{"logs": {"ns_pod_other"}, "containers": {"other", "pod_ns_c-2.log"}} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%s has %q, %v, want %q", dir, names, err, want)
		}
	}
}
