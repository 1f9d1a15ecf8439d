package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skiff/test/cluster"
)

const conversation = `
apiVersion: v1
kind: Pod
metadata: {name: speaker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo one; sleep 0.5; echo two >&2; touch /scratch/said; sleep 3; echo three; exec tail -f /scratch/said']
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  - name: d
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo other; head -c 20m /dev/zero > /dev/shm/held; mkdir /www; echo welcome > /www/index.html; exec httpd -f -p 8080 -h /www']
  volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: twice}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, '[ -e /scratch/seen ] && { echo second life; exec sleep 1000; }; touch /scratch/seen; echo first life; exit 3']
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: listener}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2, command: [sh, -c, 'while read line; do echo "heard $line"; done'], stdin: true, stdinOnce: true}
`

// TestKubectl creates pods and uses the common kubectl commands on them.
func TestKubectl(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, conversation, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	t.Run("logs", func(t *testing.T) { testLogs(t, c) })
	t.Run("exec", func(t *testing.T) { testExec(t, c) })
	t.Run("exec on a terminal", func(t *testing.T) { testTerminal(t, c) })
	t.Run("attach", func(t *testing.T) {
		if out := kubectl(t, c, "this\nand that\n", "attach", "-i", "--quiet", "listener"); out != "heard this\nheard and that\n" {
			t.Errorf("attach wrote %q", out)
		}
		// The container's stdin was closed when the client detached, so the container exited.
		kubectl(t, c, "", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/listener", "--timeout=30s")
	})
	t.Run("port-forward", func(t *testing.T) { testPortForward(t, c) })
	t.Run("cp", func(t *testing.T) { testCopy(t, c) })
	t.Run("top", func(t *testing.T) { testTop(t, c) })
	t.Run("debug", func(t *testing.T) { testDebug(t, c) })
	t.Run("describe", func(t *testing.T) {
		text := kubectl(t, c, "", "describe", "pod", "twice")
		for _, want := range []string{
			`Status:\s+Running`, `Restart Count:\s+1`, `Exit Code:\s+3`,
			`Normal\s+Scheduled\s+.*default-scheduler\s+Successfully assigned default/twice to node-1`,
			`Normal\s+Pulled\s+.*kubelet\s+spec\.containers\{c\}: Container image "` + regexp.QuoteMeta(busybox) + `" already present on machine`,
			`Normal\s+Created\s+.*x2 over.*kubelet\s+spec\.containers\{c\}: Container created`,
			`Normal\s+Started\s+.*x2 over.*kubelet\s+spec\.containers\{c\}: Container started`,
		} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("nothing like %s in\n%s", want, text)
			}
		}
		for _, line := range eventLines(t, c, "twice") {
			if strings.Contains(line, "MissingClusterDNS") {
				t.Errorf("the pod does not use the cluster's DNS: %s", line)
			}
		}
	})
	// Nothing of a removed pod is left, not even its logs.
	kubectl(t, c, "", "delete", "pods", "--all", "--timeout=60s")
	for _, directory := range []string{"pods", "logs"} {
		eventually(t, "no "+directory+" are left on the node", func() bool {
			entries, err := os.ReadDir(filepath.Join(c.Dir, "data/kubelet", directory))
			return err == nil && len(entries) == 0
		})
	}
}

func testLogs(t *testing.T, c *cluster.Cluster) {
	eventually(t, "all is said", func() bool { return strings.Contains(kubectl(t, c, "", "logs", "speaker", "-c", "c"), "three") })
	for _, test := range []struct {
		want string
		args []string
	}{
		{"one\ntwo\nthree\n", []string{"speaker", "-c", "c"}},
		{"other\n", []string{"speaker", "-c", "d"}},
		{"three\n", []string{"speaker", "-c", "c", "--tail=1"}},
		{"one\ntw", []string{"speaker", "-c", "c", "--limit-bytes=6"}},
		{"[pod/speaker/d] other\n", []string{"speaker", "-c", "d", "--prefix", "--tail=1"}},
		{"second life\n", []string{"twice"}},
		{"first life\n", []string{"twice", "--previous"}},
	} {
		if got := kubectl(t, c, "", append([]string{"logs"}, test.args...)...); got != test.want {
			t.Errorf("logs %s: %q, want %q", strings.Join(test.args, " "), got, test.want)
		}
	}
	if out, err := kubectlCommand(c, "", "logs", "speaker", "-c", "d", "--previous"); err == nil || !strings.Contains(string(out), `previous terminated container "d" in pod "speaker" not found`) {
		t.Errorf("logs of a life that never was: %v %s", err, out)
	}
	if out, err := kubectlCommand(c, "", "logs", "speaker", "-c", "nobody"); err == nil || !strings.Contains(string(out), "container nobody is not valid for pod speaker") {
		t.Errorf("logs of a container that is not: %v %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(kubectl(t, c, "", "logs", "speaker", "-c", "c", "--timestamps")), "\n")
	var times []time.Time
	for _, line := range lines {
		stamp, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatalf("line %q does not begin with a time: %v", line, err)
		}
		times = append(times, at)
	}
	if len(times) != 3 || times[2].Sub(times[1]) < 2*time.Second {
		t.Fatalf("times %v, want the third 3 s after the second", times)
	}
	since := times[2].Add(-500 * time.Millisecond).Format(time.RFC3339)
	if got := kubectl(t, c, "", "logs", "speaker", "-c", "c", "--since-time="+since); got != "three\n" {
		t.Errorf("logs --since-time=%s (lines were at %v): %q", since, times, got)
	}
	// The line that is there already shows that the log is being followed.
	followed, stop := follow(t, c, "logs", "-f", "--since=1h", "--tail=1", "speaker", "-c", "c")
	defer stop()
	expectLine := func(want string) {
		t.Helper()
		if line, err := followed.ReadString('\n'); line != want+"\n" {
			t.Fatalf("followed %q (%v), want %q", line, err, want)
		}
	}
	expectLine("three")
	for _, word := range []string{"four", "five"} {
		// The command keeps its output open: when that ends, containerd no longer copies the input, of which some may not have arrived.
		kubectl(t, c, word+"\n", "exec", "-i", "speaker", "-c", "c", "--", "tee", "-a", "/scratch/said")
		expectLine(word)
	}
}

// follow starts kubectl and returns its output, and a function that stops it.
func follow(t *testing.T, c *cluster.Cluster, args ...string) (*bufio.Reader, func()) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(out), func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}
}

func testExec(t *testing.T, c *cluster.Cluster) {
	out, err := kubectlCommand(c, "", "exec", "speaker", "-c", "c", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.Contains(string(out), "command terminated with exit code 7") {
		t.Errorf("exit 7: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "out\n") || !strings.Contains(string(out), "err\n") {
		t.Errorf("exec wrote %q, want both streams", out)
	}
	large := strings.Repeat("0123456789abcdef", 1<<16)
	if got := kubectl(t, c, large, "exec", "-i", "speaker", "-c", "c", "--", "sh", "-c", "wc -c"); strings.TrimSpace(got) != fmt.Sprint(len(large)) {
		t.Errorf("of %d bytes arrived %s", len(large), got)
	}
	if got := kubectl(t, c, large, "exec", "-i", "speaker", "-c", "c", "--", "cat"); got != large {
		t.Errorf("of %d bytes came back %d", len(large), len(got))
	}
	out, err = kubectlCommand(c, "", "exec", "speaker", "-c", "c", "--", "no-such-program")
	if err == nil || !strings.Contains(string(out), "executable file not found in $PATH") {
		t.Errorf("a program that is not there: %v\n%s", err, out)
	}
}

// testTerminal runs kubectl on a terminal with a specific size, which the command inside must see.
func testTerminal(t *testing.T, c *cluster.Cluster) {
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	number, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(int(outer.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 37, Col: 91})); err != nil {
		t.Fatal(err)
	}
	inner, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/kubectl"), "--kubeconfig", c.Kubeconfig, "exec", "-it", "speaker", "-c", "c", "--",
		"sh", "-c", `until [ "$(stty size)" = "37 91" ]; do sleep 0.1; done; tty; read word; echo "got $word"; exit 4`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inner, inner, inner
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inner.Close()
	var seen bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&seen, outer) // ends with an error when the other side is closed
	}()
	// A line written before it is read is buffered by the terminal.
	if _, err := outer.WriteString("hello\r"); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	<-done
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(seen.String(), "/dev/pts/0") || !strings.Contains(seen.String(), "got hello\r\n") {
		t.Errorf("on a terminal: %v\n%s", err, seen.String())
	}
}

func testPortForward(t *testing.T, c *cluster.Cluster) {
	out, stop := follow(t, c, "port-forward", "pod/speaker", ":8080")
	defer stop()
	line, err := out.ReadString('\n')
	match := regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> 8080`).FindStringSubmatch(line)
	if match == nil {
		t.Fatalf("port-forward says %q (%v)", line, err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 {
		response, err := client.Get("http://" + match[1] + "/index.html")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != "welcome\n" {
			t.Fatalf("through the port: %q, %v", body, err)
		}
	}
}

func testCopy(t *testing.T, c *cluster.Cluster) {
	dir := t.TempDir()
	content := make([]byte, 300_000)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	if err := errors.Join(os.MkdirAll(dir+"/directory/below", 0o755), os.WriteFile(dir+"/directory/below/file", content, 0o600)); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "", "cp", dir+"/directory", "speaker:/scratch/copied", "-c", "c")
	if got := strings.Fields(kubectl(t, c, "", "exec", "speaker", "-c", "c", "--", "wc", "-c", "/scratch/copied/below/file")); len(got) == 0 || got[0] != "300000" {
		t.Errorf("in the container are %v bytes", got)
	}
	kubectl(t, c, "", "cp", "speaker:/scratch/copied/below/file", dir+"/back", "-c", "c")
	if back, err := os.ReadFile(dir + "/back"); err != nil || !bytes.Equal(back, content) {
		t.Errorf("%d bytes came back (%v), other than were sent", len(back), err)
	}
}

func testTop(t *testing.T, c *cluster.Cluster) {
	for _, test := range []struct {
		want string
		args []string
	}{
		{`(?m)^speaker\s+d\s+\d+m\s+2\dMi\s*$`, []string{"pod", "speaker", "--containers"}},
		{`(?m)^node-1\s+\d+m\s+\d+%\s+[1-9]\d*Mi\s+\d+%\s*$`, []string{"node"}},
	} {
		var out []byte
		want, deadline := regexp.MustCompile(test.want), time.Now().Add(30*time.Second)
		for !want.Match(out) && time.Now().Before(deadline) {
			out, _ = kubectlCommand(c, "", append([]string{"top"}, test.args...)...) // fails as long as nothing was measured
		}
		if !want.Match(out) {
			t.Errorf("top %s says\n%s", strings.Join(test.args, " "), out)
		}
	}
}

// testDebug adds an ephemeral container to a running pod, which shares the process namespace of one of its containers.
func testDebug(t *testing.T, c *cluster.Cluster) {
	before := identity(podNow(t, c, "speaker"))
	kubectl(t, c, "", "debug", "speaker", "--image="+busybox, "--target=c", "-c", "looker", "--", "sh", "-c", "ps; exec sleep 1000")
	running := "jsonpath={.status.ephemeralContainerStatuses[0].state.running.startedAt}"
	kubectl(t, c, "", "wait", "pod/speaker", "--for="+running, "--timeout=30s")
	eventually(t, "the new container sees the old one's processes", func() bool {
		return strings.Contains(kubectl(t, c, "", "logs", "speaker", "-c", "looker"), "tail -f /scratch/said")
	})
	if out := kubectl(t, c, "", "exec", "speaker", "-c", "looker", "--", "ls", "/proc/1/root/scratch"); !strings.Contains(out, "said") {
		t.Errorf("through /proc it sees %q of the other's files", out)
	}
	if now := identity(podNow(t, c, "speaker")); now != before {
		t.Errorf("the containers are %s, were %s", now, before)
	}
}
