// Command conformance runs Kubernetes' own conformance suite, or one class of it, against a new skiff cluster and counts results.
//
//	go run ./test/conformance -class api
//	go run ./test/conformance -focus 'ConfigMap should be'
//	go run ./test/conformance -focus 'Netpol' -labels '' -real
//	go run ./test/conformance -focus 'Driver: csi-hostpath' -labels '' -real
//
// A focus that names csi-hostpath also builds the images of that CSI driver, which only tests outside the conformance suite deploy.
//
// The classes are disjoint: api needs the API server and controllers only, node-hollow needs pods that become Running, node needs
// real containers, net needs pod traffic, multi-node needs two nodes. Together they are the 462 tests of v1.37.
package main

import (
	"cmp"
	"context"
	"embed"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"skiff/test/cluster"
	"skiff/test/namespaces"
)

//go:embed focus/*.re
var focusFiles embed.FS

type options struct {
	class, focus, skip string
	labels             string
	procs              int
	results            string
	kubeconfig         string
	jsonOnly           bool
	components         string
	nodes              int
	servers            int
	real               bool
	// kubeletRoot is the kubelet's directory, if all nodes have the same.
	kubeletRoot string
}

// csiDriver is the CSI driver that tests deploy if they have its name.
const csiDriver = "csi-hostpath"

// usesCSI reports whether the focus is on tests that deploy the CSI driver.
func (o options) usesCSI() bool { return o.real && strings.Contains(o.focus, csiDriver) }

// images are the image archives of the nodes. Tests of the CSI driver run nothing else than it, busybox and agnhost.
func (o options) images() []string {
	if o.usesCSI() {
		return []string{"busybox", "pause", "agnhost", "csi"}
	}
	return cluster.SuiteArchives
}

func main() {
	var o options
	flag.StringVar(&o.class, "class", "api", "api, node-hollow, node, net, multi-node or all")
	flag.StringVar(&o.focus, "focus", "", "regular expression of test names, instead of a class")
	flag.StringVar(&o.labels, "labels", "Conformance", "label filter of the tests of -class and -focus; empty: also those outside the conformance suite")
	flag.StringVar(&o.skip, "skip", "", "regular expression of test names to leave out")
	flag.IntVar(&o.procs, "procs", 4, "number of tests to run in parallel")
	flag.StringVar(&o.results, "results", "test/conformance/results", "directory for logs and junit files")
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "use this running cluster instead of starting one")
	flag.BoolVar(&o.jsonOnly, "json", false, "make the suite's clients use JSON instead of protobuf")
	flag.StringVar(&o.components, "components", "skiff", "controllers and scheduler to run: skiff (inside the server) or upstream")
	flag.IntVar(&o.nodes, "nodes", -1, "number of nodes; the default is one real node, two of them for classes multi-node and all, or two hollow nodes")
	flag.IntVar(&o.servers, "servers", 1, "number of servers; the suite's clients use the last one, which has no node. More than one need real nodes")
	flag.BoolVar(&o.real, "real", false, "run on a real node with containers, in its own namespaces; the default for classes node, net and multi-node without -focus")
	flag.Parse()
	if o.focus == "" && slices.Contains([]string{"node", "net", "multi-node", "all"}, o.class) {
		o.real = true
	}
	if o.servers < 1 || o.servers > 1 && !o.real {
		fmt.Fprintln(os.Stderr, "conformance: -servers: more than one server needs -real")
		os.Exit(2)
	}
	if o.nodes < 0 {
		o.nodes = 2
		if o.real && (o.focus != "" || o.class != "multi-node" && o.class != "all") {
			o.nodes = 1
		}
	}
	if o.usesCSI() && (o.nodes != 1 || o.servers != 1) {
		fmt.Fprintln(os.Stderr, "conformance: -focus: tests of "+csiDriver+" run on one server with one node")
		os.Exit(2)
	}
	if o.real && o.kubeconfig == "" {
		if err := prepare(o); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
			os.Exit(2)
		}
		namespaces.Enter()
	}
	// On an interrupt, the suite and the cluster are stopped before this program exits.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	failed, err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (failed int, err error) {
	focus, err := focusOf(o)
	if err != nil {
		return 0, err
	}
	root, err := cluster.Root()
	if err != nil {
		return 0, err
	}
	results := o.results
	if !filepath.IsAbs(results) {
		results = filepath.Join(root, results)
	}
	if err := os.RemoveAll(results); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return 0, err
	}
	programs, err := cluster.Upstream("e2e.test", "ginkgo", "kubectl")
	if err != nil {
		return 0, err
	}
	kubeconfig := o.kubeconfig
	if kubeconfig == "" {
		dir := filepath.Join(results, "cluster")
		if o.usesCSI() {
			if dir, err = csiDirectories(dir); err != nil {
				return 0, err
			}
			o.kubeletRoot = filepath.Join(dir, "data/kubelet")
		}
		c, err := startCluster(o, dir)
		if err != nil {
			return 0, err
		}
		defer c.Stop()
		kubeconfig = c.Kubeconfig
		if o.servers > 1 {
			server, err := addServers(c, o.servers-1)
			if err != nil {
				return 0, err
			}
			kubeconfig = server.Kubeconfig
		}
	}
	// The suite's exit code only reports that something failed; the junit files have the names.
	runErr := suite(ctx, o, programs, kubeconfig, focus, results)
	if ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	passed, failures, err := count(results)
	if err != nil {
		return 0, fmt.Errorf("read results (the suite ended with: %v): %w", runErr, err)
	}
	for _, name := range failures {
		fmt.Println("FAILED", name)
	}
	fmt.Printf("%s: %d passed, %d failed, %d total; junit in %s\n", cmp.Or(o.focus, o.class), passed, len(failures), passed+len(failures), results)
	if passed+len(failures) == 0 {
		return 0, fmt.Errorf("no test ran: %v", runErr)
	}
	return len(failures), nil
}

// prepare builds the programs and images of a run while the network is reachable.
func prepare(o options) error {
	if _, err := cluster.Upstream("e2e.test", "ginkgo", "kubectl"); err != nil {
		return err
	}
	return cluster.UseImages(o.images()...)
}

// csiDirectories prepares this host for the CSI driver and returns a short path of the cluster's directory: sockets of the driver are below it, and
// the path of a socket has at most 107 bytes. The driver creates its volumes in /var/lib, where nothing may stay behind.
func csiDirectories(dir string) (string, error) {
	const short, upper, work = "/run/cluster", "/run/var-lib/upper", "/run/var-lib/work"
	for _, d := range []string{dir, short, upper, work} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(upper, 0o755); err != nil {
		return "", err
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		options              string
	}{
		{source: dir, target: short, flags: unix.MS_BIND},
		// Shared with the driver, but not with the other path, where everything would be mounted as well.
		{target: short, flags: unix.MS_PRIVATE},
		{target: short, flags: unix.MS_SHARED},
		{source: "overlay", target: "/var/lib", kind: "overlay", options: "lowerdir=/var/lib,upperdir=" + upper + ",workdir=" + work},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return "", fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// Some tests know no other directory of the kubelet.
	return short, os.Symlink(filepath.Join(short, "data/kubelet"), "/var/lib/kubelet")
}

// startCluster starts the API server, controllers, scheduler and nodes.
func startCluster(o options, dir string) (*cluster.Cluster, error) {
	if o.real {
		var flags []string
		if o.servers > 1 {
			flags = append(flags, "--cluster-init")
		}
		c, err := cluster.SkiffNode(dir, flags...)
		if err != nil {
			return nil, err
		}
		for range o.nodes - 1 {
			if err := c.AddNode(); err != nil {
				c.Stop()
				return nil, err
			}
		}
		return c, nil
	}
	flags := []string{"--advertise-address=192.0.2.1"}
	switch o.components {
	case "skiff":
		flags = append(flags, "--without=")
	case "upstream":
	default:
		return nil, fmt.Errorf("-components: %q is neither skiff nor upstream", o.components)
	}
	c, err := cluster.Skiff(dir, flags...)
	if err != nil {
		return nil, err
	}
	if o.components == "upstream" {
		err = errors.Join(c.ControllerManager(), c.Scheduler())
	}
	if err == nil && o.nodes > 0 {
		_, err = c.Hollow(o.nodes)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// firstServer is the number of the host of the first server that is added; nodes have the numbers from 2.
const firstServer = 51

// addServers adds servers without nodes to a cluster, and returns the last one.
func addServers(c *cluster.Cluster, n int) (last *cluster.Cluster, err error) {
	for i := range n {
		if last, err = c.AddServer(firstServer + i); err != nil {
			return nil, fmt.Errorf("add a server: %w", err)
		}
	}
	return last, nil
}

// focusOf returns the expression that selects the tests.
func focusOf(o options) (string, error) {
	if o.focus != "" {
		return o.focus, nil
	}
	if o.class == "all" {
		return `\[Conformance\]`, nil
	}
	data, err := focusFiles.ReadFile("focus/" + o.class + ".re")
	if err != nil {
		return "", fmt.Errorf("unknown class %q", o.class)
	}
	return strings.TrimSpace(string(data)), nil
}

// suite runs ginkgo and writes its output to a file.
func suite(ctx context.Context, o options, programs, kubeconfig, focus, results string) error {
	log, err := os.Create(filepath.Join(results, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--procs=" + strconv.Itoa(o.procs), "--timeout=24h", "--no-color", "--focus=" + focus}
	if o.skip != "" {
		args = append(args, "--skip="+o.skip)
	}
	if o.class != "all" || o.focus != "" {
		args = append(args, "--label-filter="+o.labels)
	}
	args = append(args, filepath.Join(programs, "e2e.test"), "--",
		"--kubeconfig="+kubeconfig, "--provider=skeleton", "--kubectl-path="+filepath.Join(programs, "kubectl"),
		"--report-dir="+results, "--disable-log-dump", "--dump-logs-on-failure=false")
	if o.kubeletRoot != "" {
		args = append(args, "--kubelet-root-dir="+o.kubeletRoot)
	}
	if !o.real {
		args = append(args, "--allowed-not-ready-nodes=-1", "--num-nodes=0", "--minStartupPods=-1")
	}
	if o.jsonOnly {
		args = append(args, "--kube-api-content-type=application/json")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "ginkgo"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	fmt.Fprintf(os.Stderr, "running; follow %s\n", log.Name())
	return runGroup(cmd)
}

// interruptGrace is how long the suite may take to exit when it is interrupted.
const interruptGrace = 10 * time.Second

// runGroup runs a command in its own process group. When it returns, no process of the group is left, whether the command exited or
// its context was cancelled.
func runGroup(cmd *exec.Cmd) error {
	// The kernel sends Pdeathsig when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = interruptGrace
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // ESRCH: no process is left
	return err
}

// count reads the junit files: tests that ran, by outcome.
func count(results string) (passed int, failed []string, err error) {
	files, err := filepath.Glob(filepath.Join(results, "junit*.xml"))
	if err != nil {
		return 0, nil, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, nil, err
		}
		var report struct {
			Suites []struct {
				Cases []struct {
					Name    string    `xml:"name,attr"`
					Status  string    `xml:"status,attr"`
					Skipped *struct{} `xml:"skipped"`
				} `xml:"testcase"`
			} `xml:"testsuite"`
		}
		if err := xml.Unmarshal(data, &report); err != nil {
			return 0, nil, fmt.Errorf("parse %s: %w", file, err)
		}
		for _, s := range report.Suites {
			for _, c := range s.Cases {
				switch {
				case c.Skipped != nil || !strings.HasPrefix(c.Name, "[It]"):
				case c.Status == "passed":
					passed++
				default:
					failed = append(failed, c.Name)
				}
			}
		}
	}
	slices.Sort(failed)
	return passed, failed, nil
}
