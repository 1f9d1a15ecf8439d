package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"skiff/test/cluster"
)

// TestKubectl runs scripts of kubectl commands against skiff and against upstream and compares the output and exit code of each
// command. A script is a text file: commands, one per line, then the files they use, each under a line `-- name --`. What may differ
// is in testdata/kubectl/differences.txt, each with its reason.
func TestKubectl(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/kubectl/*.script")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	allowed := readDifferences(t, "testdata/kubectl/differences.txt")
	kubeconfigs := startSides(t)
	for _, file := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			s := readScript(t, file)
			outputs := s.run(t, kubeconfigs)
			want := outputs["upstream"]
			for _, server := range http2Servers {
				got := outputs["skiff/"+server]
				for i, command := range s.commands {
					if got[i] == want[i] || allowed.cover(command, got[i], want[i]) {
						continue
					}
					t.Errorf("%s:%d: --http2-server=%s: $ %s\n%s", filepath.Base(file), s.lines[i], server, command, difference(got[i], want[i]))
				}
			}
		})
	}
	for _, d := range allowed {
		if !d.used && !testing.Short() {
			t.Errorf("differences.txt:%d: nothing differs by %q any more; remove it", d.line, d.pattern)
		}
	}
}

// http2Servers are the values of --http2-server: skiff's own HTTP/2 and Go's.
var http2Servers = []string{"skiff", "go"}

// startSides starts skiff, once with each HTTP/2 server, and upstream, with upstream's controllers on all, which the scripts wait for. It
// returns their kubeconfigs.
func startSides(t *testing.T) map[string]string {
	t.Helper()
	sides := map[string]*cluster.Cluster{}
	const flag = "--disable-admission-plugins=ServiceAccount"
	for _, server := range http2Servers {
		c, err := cluster.Skiff(t.TempDir(), flag, "--http2-server="+server)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		sides["skiff/"+server] = c
	}
	c, err := cluster.UpstreamAPI(t.TempDir(), "", flag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	sides["upstream"] = c
	kubeconfigs := map[string]string{}
	for name, c := range sides {
		if err := c.ControllerManager(); err != nil {
			t.Fatal(err)
		}
		kubeconfigs[name] = c.Kubeconfig
	}
	return kubeconfigs
}

type script struct {
	commands []string
	lines    []int
	files    map[string]string
}

func readScript(t *testing.T, file string) script {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := script{files: map[string]string{}}
	current := ""
	for i, line := range strings.Split(string(data), "\n") {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --") {
			current = strings.TrimSuffix(name, " --")
			continue
		}
		switch {
		case current != "":
			s.files[current] += line + "\n"
		case line != "" && !strings.HasPrefix(line, "#"):
			s.commands = append(s.commands, line)
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// run runs the script on all servers in parallel, and returns the output of each command by server.
func (s script) run(t *testing.T, kubeconfigs map[string]string) map[string][]string {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	outputs := map[string][]string{}
	for name, kubeconfig := range kubeconfigs {
		dir := t.TempDir()
		for name, content := range s.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			var out []string
			for _, command := range s.commands {
				out = append(out, runCommand(dir, kubeconfig, command))
			}
			mu.Lock()
			defer mu.Unlock()
			outputs[name] = out
		})
	}
	wg.Wait()
	return outputs
}

// runCommand returns a command's output, without what differs from run to run, and its exit code.
func runCommand(dir, kubeconfig, command string) string {
	root, err := cluster.Root()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command("timeout", "60", "bash", "-c", command)
	cmd.Dir = dir
	// kubectl uses a third less CPU time when it collects less garbage.
	cmd.Env = append(os.Environ(), "GOGC=400", "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig,
		"HOME="+dir, "KUBE_EDITOR="+filepath.Join(dir, "editor"), "KUBECTL_EXTERNAL_DIFF=diff -N -u")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	code := 0
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return err.Error()
		}
		code = exit.ExitCode()
	}
	return fmt.Sprintf("%s[exit %d]", normalize(out.String()), code)
}

// volatile matches what differs between any two runs.
var volatile = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \+0000( UTC)?`), "TIME"},
	{regexp.MustCompile(`(resourceVersion"?: ?"?)\d+`), "${1}N"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "SHA256"},
	{regexp.MustCompile(`:[0-9a-f]{24}\b`), ":HASH"},
	{regexp.MustCompile(`\(x\d+ over [0-9smh]+\)`), "(xN over AGE)"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`(?m)(^|\s)(\d+[smhd])+(\s|$)`), "${1}AGE${3}"},
	{regexp.MustCompile(`/tmp/[A-Za-z0-9_./-]+`), "FILE"},
	{regexp.MustCompile(`\b3[0-2]\d{3}\b`), "PORT"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-RANDOM"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` +\n`), "\n"},
	{regexp.MustCompile(`-{3,}`), "---"},
}

func normalize(text string) string {
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return text
}

// difference returns the lines of each output that the other does not have.
func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	count := map[string]int{}
	for _, line := range w {
		count[line]++
	}
	var out strings.Builder
	for _, line := range g {
		if count[line]--; count[line] < 0 {
			fmt.Fprintf(&out, "  skiff:    %s\n", line)
		}
	}
	count = map[string]int{}
	for _, line := range g {
		count[line]++
	}
	for _, line := range w {
		if count[line]--; count[line] < 0 {
			fmt.Fprintf(&out, "  upstream: %s\n", line)
		}
	}
	if out.Len() == 0 {
		return "  the same lines in another order:\n  skiff:\n" + got + "\n  upstream:\n" + want
	}
	text := out.String()
	if lines := strings.SplitAfter(text, "\n"); len(lines) > 60 {
		return strings.Join(lines[:60], "") + fmt.Sprintf("  ... %d lines more\n", len(lines)-60)
	}
	return text
}

// differences are lines that may be in one output and not in the other.
type differences []*allowedDifference

type allowedDifference struct {
	command, pattern *regexp.Regexp
	line             int
	used             bool
}

// readDifferences reads lines `command expression => line expression   # reason`.
func readDifferences(t *testing.T, file string) differences {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all differences
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, reason, ok := strings.Cut(line, "   # ")
		command, pattern, ok2 := strings.Cut(rule, " => ")
		if !ok || !ok2 || reason == "" {
			t.Fatalf("%s:%d: want `command => line   # reason`", file, i+1)
		}
		all = append(all, &allowedDifference{command: regexp.MustCompile(command), pattern: regexp.MustCompile(strings.TrimSpace(pattern)), line: i + 1})
	}
	return all
}

// cover reports whether every line that is in only one of the outputs is an allowed difference.
func (d differences) cover(command, got, want string) bool {
	for line := range strings.SplitSeq(strings.TrimSpace(difference(got, want)), "\n") {
		_, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		covered := false
		for _, a := range d {
			if a.command.MatchString(command) && a.pattern.MatchString(strings.TrimSpace(text)) {
				a.used, covered = true, true
			}
		}
		if !covered {
			return false
		}
	}
	return true
}
