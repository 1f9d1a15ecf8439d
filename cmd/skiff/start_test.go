package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runMain is the environment variable with which the test's own program is skiff.
const runMain = "TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command is skiff as a process of its own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	// The program may be in a directory that another user cannot read.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), runMain+"=1", "SKIFF_CONFIG=", "HOME="+t.TempDir())
	return cmd
}

// nobody runs a command as a user without rights, if the test is run by root.
func nobody(cmd *exec.Cmd) {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
}

// A start that cannot succeed says in one sentence why, and what to do.
func TestStartErrors(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := busy.Addr().(*net.TCPAddr).Port
	dir := t.TempDir()
	used, denied, file, config := filepath.Join(dir, "used"), filepath.Join(dir, "denied"), filepath.Join(dir, "file"), filepath.Join(dir, "config.yaml")
	if err := errors.Join(os.Mkdir(used, 0o700), os.Mkdir(denied, 0o500)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(used, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{file: "", config: "data-dir: " + dir + "/d\nsecure-prt: 1\n", file + ".yaml": "secure-port: 70000\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := []string{"server", "--no-node", "--bind-address=127.0.0.1"}
	for _, test := range []struct {
		what      string
		args      []string
		asNobody  bool
		want      string
		moreLines int
	}{
		{"busy port", append(server, "--data-dir="+dir+"/a", fmt.Sprintf("--secure-port=%d", port)), false,
			fmt.Sprintf("port %d is in use by skiff.test (process %d): stop it, or choose another --secure-port", port, os.Getpid()), 0},
		{"busy peer port", append(server, "--data-dir="+dir+"/b", "--secure-port=0", "--cluster-init", fmt.Sprintf("--etcd-peer-port=%d", port)), false,
			fmt.Sprintf("port %d is in use by skiff.test (process %d): stop it, or choose another --etcd-peer-port", port, os.Getpid()), 0},
		{"foreign address", []string{"server", "--no-node", "--data-dir=" + dir + "/c", "--bind-address=192.0.2.1"}, false, "this host has no address 192.0.2.1 (", 0},
		{"directory in use", append(server, "--data-dir="+used, "--secure-port=0"), false, "directory " + used + " is used by another skiff: stop it, or choose another --data-dir", 0},
		{"a file", append(server, "--data-dir="+file, "--secure-port=0"), false, "--data-dir: " + file + " is not a directory: choose another one", 0},
		{"no permission", append(server, "--data-dir="+denied+"/d", "--secure-port=0"), true, "--data-dir: there is no permission to use /", 0},
		{"not root", []string{"server", "--data-dir=" + dir + "/e"}, true, "only root can run a node: run skiff as root, or 'skiff server --no-node' for a control plane alone", 0},
		{"agent and not root", []string{"agent", "--server=https://127.0.0.1:1", "--token=t"}, true, "only root can run a node: run skiff as root", 0},
		{"no server", []string{"agent"}, false, "--server: required, the URL of an API server such as https://10.0.0.1:6443", 0},
		{"unknown flag", []string{"server", "--data-dr=/d"}, false, "unknown flag: --data-dr; did you mean --data-dir?", 1},
		{"unknown key", []string{"server", "--config=" + config}, false, config + `, line 2: unknown key "secure-prt"; did you mean secure-port?`, 0},
		{"value of a file", []string{"server", "--config=" + file + ".yaml"}, false, "--secure-port: 70000 is not a port (set in " + file + ".yaml, line 1)", 0},
		{"no file", []string{"server", "--config=" + dir + "/none.yaml"}, false, "--config: open " + dir + "/none.yaml: no such file or directory", 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			cmd := command(t, test.args...)
			if test.asNobody {
				nobody(cmd)
			}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit code 1", err)
			}
			text := string(out)
			if !strings.HasPrefix(text, "skiff: "+test.want) || strings.Count(text, "\n") != 1+test.moreLines {
				t.Errorf("skiff says\n%swant\nskiff: %s", text, test.want)
			}
		})
	}
}

// A first start logs its steps and the next command, and nothing that an operator has to act on: no warnings of the embedded etcd.
func TestFirstStart(t *testing.T) {
	peers, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, peerPort, err := net.SplitHostPort(peers.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peers.Close()
	for what, flags := range map[string][]string{"one server": nil, "first of several": {"--cluster-init", "--etcd-peer-port=" + peerPort}} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			cmd := command(t, append([]string{"server", "--no-node", "--data-dir=" + dir + "/data", "--bind-address=127.0.0.1", "--secure-port=0", "--merge-kubeconfig=" + dir + "/.kube/config"}, flags...)...)
			var log bytes.Buffer
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			timeout := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer timeout.Stop()
			isReady := false
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				log.WriteString(lines.Text() + "\n")
				if strings.Contains(lines.Text(), "msg=ready ") {
					isReady = true
					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Error(err)
					}
				}
			}
			if err := cmd.Wait(); err != nil || !isReady {
				t.Fatalf("ready %v, ended with %v:\n%s", isReady, err, log.String())
			}
			next := `next="kubectl --kubeconfig ` + dir + `/.kube/config --context skiff get nodes"`
			for _, want := range []string{"msg=started step=certificates duration=", "step=etcd", "step=cache", `step="API server"`, next} {
				if strings.Count(log.String(), want) != 1 {
					t.Errorf("the log has not one %q", want)
				}
			}
			for line := range strings.Lines(log.String()) {
				if !strings.Contains(line, "level=INFO") {
					t.Errorf("logged: %s", line)
				}
			}
			if t.Failed() {
				t.Log(log.String())
			}
			merged, err := os.ReadFile(dir + "/.kube/config")
			if err != nil || !strings.Contains(string(merged), "current-context: skiff") {
				t.Errorf("merged kubeconfig: %v\n%s", err, merged)
			}
		})
	}
}
