package runtime

import (
	"archive/tar"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestSocketPathsAreShort(t *testing.T) {
	long := "/tmp/" + strings.Repeat("long/", 30)
	for _, row := range []struct {
		dataDir, sockets string
	}{
		{"/var/lib/skiff", "/var/lib/skiff/containerd/s"},
		{long, "/run/skiff/"},
	} {
		f := newDirectories(row.dataDir)
		if !strings.HasPrefix(f.sockets, row.sockets) {
			t.Errorf("sockets of %s are in %s, want %s", row.dataDir, f.sockets, row.sockets)
		}
		if len(f.sockets) > socketDirMax {
			t.Errorf("%s is too long for a shim's socket", f.sockets)
		}
	}
	if newDirectories(long).sockets == newDirectories(long+"x").sockets {
		t.Error("two data directories share their sockets")
	}
}

func TestConfiguration(t *testing.T) {
	for _, row := range []struct {
		name       string
		privileged bool
		want       []string
	}{
		{"without CAP_SYS_RESOURCE", false, []string{"restrict_oom_score_adj = true", "oom_score = 0"}},
		{"with CAP_SYS_RESOURCE", true, []string{"restrict_oom_score_adj = false", "oom_score = -999"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := settings{
				directories: newDirectories("/data"), shim: "/bin/shim", runc: "/bin/runc", networkBin: "/data/cni/bin", networkConf: "/data/cni/net.d",
				privileged: row.privileged,
			}
			got := s.text()
			for _, want := range append(row.want, "version = 3", `root = "/data/containerd/root"`, `state = "/data/containerd/state"`,
				`address = "/data/containerd/s/containerd.sock"`, `socket_dir = "/data/containerd/s"`, `sandbox = "localhost/skiff/pause:1"`,
				`config_path = "/data/registries"`, `runtime_path = "/bin/shim"`, `BinaryName = "/bin/runc"`, "SystemdCgroup = false",
				`bin_dirs = ["/data/cni/bin"]`, `conf_dir = "/data/cni/net.d"`, "use_internal_loopback = true", "netns_mounts_under_state_dir = true",
				"sync_fs = true", "use_local_image_pull = true", "'io.containerd.timeout.shim.load' = '1m'", "'io.containerd.timeout.task.state' = '10s'") {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}
}

func TestFindPrograms(t *testing.T) {
	programDir, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	for _, file := range []string{programDir + "/runc", path + "/runc", path + "/containerd"} {
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"runc": programDir + "/runc", "containerd": path + "/containerd"} {
		if got, err := find(programDir, name); err != nil || got != want {
			t.Errorf("find(%s) = %s, %v; want %s", name, got, err, want)
		}
	}
	if _, err := find(programDir, "absent"); err == nil || !strings.Contains(err.Error(), "find absent: it is neither in "+programDir+" nor in PATH") {
		t.Errorf("error is %v", err)
	}
}

func TestStateOfAnEarlierBootIsForgotten(t *testing.T) {
	f := newDirectories(t.TempDir())
	write := func(path, data string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	kept, lost := f.root()+"/store", f.state()+"/task"
	write(kept, "")
	write(lost, "")
	write(filepath.Join(f.dir, "boot"), "another boot\n")
	if err := f.removeStateOfEarlierBoot(); err != nil {
		t.Fatal(err)
	}
	if !exists(kept) || exists(lost) {
		t.Errorf("store kept: %t, state kept: %t; want true, false", exists(kept), exists(lost))
	}
	write(lost, "")
	if err := f.removeStateOfEarlierBoot(); err != nil {
		t.Fatal(err)
	}
	if !exists(lost) {
		t.Error("state of this boot was removed")
	}
}

func TestReadArchive(t *testing.T) {
	const digest = "sha256:0123"
	index := `{"manifests":[{"digest":"` + digest + `","annotations":{"io.containerd.image.name":"localhost/a:1"}}]}`
	for _, row := range []struct {
		name  string
		files map[string]string
		want  []archived
		err   error
	}{
		{"OCI", map[string]string{"index.json": index, "blobs/sha256/0123": `{"config":{"digest":"sha256:c"}}`}, []archived{{"localhost/a:1", "sha256:c"}}, nil},
		{"OCI, files with ./", map[string]string{"./index.json": index, "./blobs/sha256/0123": `{"config":{"digest":"sha256:c"}}`},
			[]archived{{"localhost/a:1", "sha256:c"}}, nil},
		{"OCI, a tag alone", map[string]string{"index.json": `{"manifests":[{"digest":"sha256:0123","annotations":{"org.opencontainers.image.ref.name":"v1"}}]}`,
			"blobs/sha256/0123": `{"config":{"digest":"sha256:c"}}`}, []archived{{"localhost/import:v1", "sha256:c"}}, nil},
		{"OCI, no name", map[string]string{"index.json": `{"manifests":[{"digest":"sha256:0123"}]}`}, nil, nil},
		{"OCI, several platforms", map[string]string{"index.json": index, "blobs/sha256/0123": `{"manifests":[]}`}, nil, errUnknownForm},
		{"docker", map[string]string{"manifest.json": `[{"Config":"abc.json","RepoTags":["busybox:1","quay.io/x/y:2"]}]`},
			[]archived{{"docker.io/library/busybox:1", "sha256:abc"}, {"quay.io/x/y:2", "sha256:abc"}}, nil},
		{"docker, blobs by digest", map[string]string{"manifest.json": `[{"Config":"blobs/sha256/abc","RepoTags":["a:1"]}]`},
			[]archived{{"docker.io/library/a:1", "sha256:abc"}}, nil},
		{"docker, files with ./ and a configuration without its digest", map[string]string{
			"./manifest.json": `[{"Config":"config.json","RepoTags":["a:1"]}]`, "./config.json": "{}"},
			[]archived{{"docker.io/library/a:1", "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}}, nil},
		{"something else", map[string]string{"file": ""}, nil, errUnknownForm},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "archive.tar")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			w := tar.NewWriter(f)
			for name, data := range row.files {
				if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write([]byte(data)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(w.Close(), f.Close()); err != nil {
				t.Fatal(err)
			}
			got, err := readArchive(path)
			if !errors.Is(err, row.err) || !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %v, %v; want %v, %v", got, err, row.want, row.err)
			}
		})
	}
}

func TestLeftoverIsEnded(t *testing.T) {
	dir := t.TempDir()
	pidFile := dir + "/pid"
	start := func(argument string) *exec.Cmd {
		t.Helper()
		if err := os.WriteFile(argument, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("tail", "-f", argument)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := writePID(pidFile, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ended := func(cmd *exec.Cmd) bool {
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
			return true
		case <-time.After(300 * time.Millisecond):
			_ = cmd.Process.Kill()
			<-done
			return false
		}
	}
	ours, other := start(dir+"/config.toml"), (*exec.Cmd)(nil)
	if err := stopOrphan(context.Background(), pidFile, dir+"/config.toml"); err != nil {
		t.Fatal(err)
	}
	if !ended(ours) {
		t.Error("the containerd of an earlier skiff still runs")
	}
	other = start(dir + "/unrelated")
	if err := stopOrphan(context.Background(), pidFile, dir+"/config.toml"); err != nil {
		t.Fatal(err)
	}
	if ended(other) {
		t.Error("a process that only has the number of an earlier containerd was ended")
	}
	for _, content := range []string{"nonsense", "-1", strconv.Itoa(1 << 30)} {
		if err := os.WriteFile(pidFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := stopOrphan(context.Background(), pidFile, "x"); err != nil {
			t.Errorf("pid file %q: %v", content, err)
		}
		if _, err := os.Stat(pidFile); err == nil {
			t.Errorf("pid file %q stays", content)
		}
	}
}

// TestLogIsLimited: the log of a containerd that runs does not grow without bound, and containerd goes on writing to it.
func TestLogIsLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "containerd.log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write := func(text string) {
		t.Helper()
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := truncateLog(path); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	if text, err := os.ReadFile(path); err != nil || string(text) != "first\n" {
		t.Errorf("a small log has %q, %v", text, err)
	}
	write(strings.Repeat("x", largeLog))
	write("next\n")
	if text, err := os.ReadFile(path); err != nil || string(text) != "next\n" {
		t.Errorf("the log has %d bytes, %v", len(text), err)
	}
	if text, err := os.ReadFile(path + ".old"); err != nil || len(text) != largeLog+len("first\n") || !strings.HasPrefix(string(text), "first\n") {
		t.Errorf("the old log has %d bytes, %v", len(text), err)
	}
}
