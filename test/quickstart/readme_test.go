package quickstart

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skiff/test/namespaces"
)

// Each test runs on a host of its own, as far as a cluster is concerned.
func TestMain(m *testing.M) { namespaces.Main(m) }

const (
	makeUp, makeTest, makeDown = "make up", "make test", "make down"
	dataDir                    = "/var/lib/skiff"
)

// TestReadme types what README.md says under "Start" into one shell, word for word, and then what `make up` says comes next. Only `make test`, which runs this
// test, is left out. Then nothing of the cluster is left. There is no network access: the programs have to be built.
func TestReadme(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The default directories of a cluster.
	for _, dir := range []string{"/var/lib", "/var/log"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			t.Fatalf("mount %s: %v", dir, err)
		}
	}
	lines := readmeCommands(t, root)
	s := startShell(t, root)
	before := traces(t)
	for _, line := range lines {
		switch command, _, _ := strings.Cut(line, "  "); command {
		case makeTest:
		case makeUp:
			out := s.run(line)
			checkUp(t, out, dataDir)
			checkRunning(t, before)
			for _, next := range nextCommands(t, out) {
				s.run(next)
			}
			s.run("unset KUBECONFIG") // the README sets it as well
		case makeDown:
			s.run(line)
			checkNothingLeft(t, before)
		default:
			if out := s.run(line); strings.Contains(line, " get all ") {
				checkAll(t, out)
			}
		}
	}
}

// readmeCommands returns the lines of the code blocks under "Start".
func readmeCommands(t *testing.T, root string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var names []string
	for line := range strings.Lines(section) {
		if command, isCode := strings.CutPrefix(strings.TrimRight(line, "\n"), "    "); isCode {
			commands = append(commands, command)
			name, _, _ := strings.Cut(command, "  ")
			names = append(names, name)
		}
	}
	// What is tested is decided here, and how it is written there.
	want := []string{makeUp, "export KUBECONFIG=" + dataDir + "/admin.kubeconfig", "bin/kubectl get all --all-namespaces", makeDown, makeTest}
	if !slices.Equal(names, want) {
		t.Fatalf("README.md says %q under Start, want %q", names, want)
	}
	return commands
}

// nextCommands returns the commands that `make up` prints as the next ones.
func nextCommands(t *testing.T, out string) (commands []string) {
	t.Helper()
	_, list, _ := strings.Cut(out, "Next:\n")
	list, _, _ = strings.Cut(list, "Stop it with: make down\n")
	for line := range strings.Lines(list) {
		commands = append(commands, strings.TrimSpace(line))
	}
	if len(commands) != 5 || !strings.HasPrefix(commands[0], "export KUBECONFIG=") {
		t.Fatalf("make up says comes next: %q", commands)
	}
	return commands
}

// checkAll checks what kubectl shows of the demo.
func checkAll(t *testing.T, out string) {
	t.Helper()
	count := func(words ...string) (found int) {
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if !slices.ContainsFunc(words, func(word string) bool {
				return !slices.ContainsFunc(fields, func(field string) bool { return strings.HasPrefix(field, word) })
			}) {
				found++
			}
		}
		return found
	}
	if pods, service := count("demo", "pod/web-", "1/1", "Running"), count("demo", "service/web", "NodePort"); pods != 3 || service != 1 {
		t.Errorf("%d pods run behind %d services, want 3 behind 1:\n%s", pods, service, out)
	}
}

// shell is a shell into which commands are typed.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// startShell starts a shell in the root directory of the project, with nothing of skiff and of make in its environment.
func startShell(t *testing.T, root string) *shell {
	t.Helper()
	cmd := exec.Command("bash")
	cmd.Dir = root
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == "KUBECONFIG" || strings.HasPrefix(name, "MAKE") || name == "MFLAGS" || strings.HasPrefix(name, "SKIFF_") && name != "SKIFF_CACHE"
	})
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the shell ended with %v", err)
		}
	})
	return &shell{t, in, bufio.NewReader(out)}
}

// run runs a command line and returns what it writes. The test fails if the command does.
func (s *shell) run(line string) string {
	s.t.Helper()
	const end = "command ended with code "
	fmt.Fprintf(s.in, "{ %s\n} </dev/null\necho \"%s$?\"\n", line, end)
	var written strings.Builder
	for {
		text, err := s.out.ReadString('\n')
		// What the command writes last may have no newline.
		before, status, ended := strings.Cut(text, end)
		if written.WriteString(before); err != nil {
			s.t.Fatalf("%s: the shell ended: %v\n%s", line, err, &written)
		}
		if !ended {
			continue
		}
		if code, err := strconv.Atoi(strings.TrimSpace(status)); err != nil || code != 0 {
			log, _ := os.ReadFile(filepath.Join(dataDir, "skiff.log"))
			s.t.Fatalf("%s: exit code %s\n%s\nthe log is\n%s", line, status, &written, log)
		}
		s.t.Logf("$ %s\n%s", line, &written)
		return written.String()
	}
}
