// Package cluster starts control planes for tests and benchmarks, skiff's and upstream's, as real processes on loopback
// with new directories and free ports, so that both can be compared.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/test/namespaces"
	"skiff/test/registry"
)

// Cluster is a running control plane.
type Cluster struct {
	Name       string
	Dir        string
	URL        string
	Kubeconfig string
	// Ready is how long it took from the first exec to /readyz.
	Ready time.Duration
	// Server are the processes that serve the API, which are measured.
	Server []*Process
	// Others are further processes, such as a controller manager.
	Others []*Process
	// Agent is the program of the agents that are started.
	Agent Program

	pki *keys
	// nodes is the number of nodes that run containers; images is the registry they pull from; memory are their data
	// directories on tmpfs; hosts are the hosts of all but the first, by number.
	nodes  int
	images *registry.Registry
	memory []string
	hosts  map[int]*namespaces.Host
}

// Process is one running program.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// Root returns the root directory of the project, searched from the working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(data), "module skiff\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside skiff's tree")
		}
		dir = parent
	}
}

// Upstream builds the named upstream programs if they are not cached, and returns their directory.
func Upstream(programs ...string) (string, error) { return build("test/upstream/build", programs...) }

// Images builds the image archives of the tests, those named or else SuiteArchives, if they are not cached, and returns
// their directory.
func Images(archives ...string) (string, error) { return build("test/images/build", archives...) }

// Operator builds the operator of test/operator if it is not cached, and returns the archive of its image.
func Operator() (string, error) { return build("test/operator/build") }

// Helm builds helm if it is not cached, and returns its path.
func Helm() (string, error) { return build("test/helm/build") }

// build runs a script that builds something in the cache, and returns the path that it prints.
func build(script string, args ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, script), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %v: %w", script, args, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Config returns a client configuration of the administrator.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// Kubectl runs kubectl with a kubeconfig and input, and returns its output.
func Kubectl(kubeconfig, input string, args ...string) ([]byte, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(root, "bin/kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	return cmd.CombinedOutput()
}

// Stop stops all processes, the last started first, and waits for them. The data of nodes with containers is removed; to
// restart one, stop only its process.
func (c *Cluster) Stop() {
	all := append(append([]*Process(nil), c.Server...), c.Others...)
	for i := len(all) - 1; i >= 0; i-- {
		all[i].Stop()
	}
	if c.images != nil {
		c.images.Stop()
	}
	for _, host := range c.hosts {
		host.Remove()
	}
	for _, directory := range c.memory {
		_ = unix.Unmount(directory, unix.MNT_DETACH)
	}
}

// CPU returns the CPU time of the serving processes.
func (c *Cluster) CPU() (time.Duration, error) {
	var sum time.Duration
	for _, p := range c.Server {
		used, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// Resident returns the resident memory of the serving processes in bytes.
func (c *Cluster) Resident() (int64, error) {
	var sum int64
	for _, p := range c.Server {
		n, err := p.Resident()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// start runs a program with its output in a log file below dir.
func start(dir, name, path string, args ...string) (*Process, error) {
	return startBy((*exec.Cmd).Start, dir, name, path, args...)
}

// startBy is start with another function to start the command.
func startBy(run func(*exec.Cmd) error, dir, name, path string, args ...string) (*Process, error) {
	logPath := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = dir
	// The program is killed with the test that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := run(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, log: logPath, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Stop terminates the process, and kills it after ten seconds.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Terminate asks the process to terminate, waits until it has, and returns its exit code.
func (p *Process) Terminate() int {
	_ = p.Signal(syscall.SIGTERM)
	return p.Wait()
}

// Wait waits until the process has exited, and returns its exit code.
func (p *Process) Wait() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill kills the process and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited reports whether the process has exited.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Log returns the last lines of the process's log.
func (p *Process) Log(lines int) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// CPU returns the user and system CPU time of the process.
func (p *Process) CPU() (time.Duration, error) {
	used, err := CPUTime(p.PID())
	if err != nil {
		return 0, fmt.Errorf("read CPU clock of %s: %w", p.Name, err)
	}
	return used, nil
}

// ChildrenCPU returns the CPU time of the programs that the process has started and waited for, in hundredths of a second.
func (p *Process) ChildrenCPU() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, err
	}
	// The fields after the name, which may contain anything, begin with the third; the children's are the sixteenth and seventeenth.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const children, ticks = 16 - 3, 100
	if len(fields) < children+2 {
		return 0, fmt.Errorf("no CPU times for process %d", p.PID())
	}
	user, userErr := strconv.ParseInt(fields[children], 10, 64)
	system, systemErr := strconv.ParseInt(fields[children+1], 10, 64)
	return time.Duration(user+system) * time.Second / ticks, errors.Join(userErr, systemErr)
}

// CPUTime returns the user and system CPU time of a process.
func CPUTime(pid int) (time.Duration, error) {
	// The kernel's CPU clock of another process: its ID is the complement of the PID, shifted, with 2 for CPUCLOCK_SCHED.
	// It has nanoseconds, where /proc has hundredths of a second.
	var used unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|2), &used)
	return time.Duration(used.Nano()), err
}

// Resident returns the resident memory of the process in bytes.
func (p *Process) Resident() (int64, error) { return p.memory("VmRSS:") }

// Anonymous returns the resident memory of the process that is not of a file, such as that of the program itself, in bytes.
func (p *Process) Anonymous() (int64, error) { return p.memory("RssAnon:") }

// memory returns a size in the status of the process.
func (p *Process) memory(name string) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if value, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("no %s for process %d", name, p.PID())
}

// Servers listen on ports below those that the kernel chooses for outgoing connections and for listeners on port 0, and below those of
// Services: nothing takes a port between the search for it and the start of its server, or while the server is restarted.
const firstPort, lastPort = 20000, 29999

// portsInUse are the ports that freePorts has returned to the tests of this process, which may run in parallel.
var portsInUse struct {
	mu    sync.Mutex
	ports map[int]bool
}

// freePorts returns ports that are currently unused, each only once in a process.
func freePorts(n int) ([]int, error) {
	portsInUse.mu.Lock()
	defer portsInUse.mu.Unlock()
	if portsInUse.ports == nil {
		portsInUse.ports = map[int]bool{}
	}
	var ports []int
	for range 10 * (lastPort - firstPort) {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if portsInUse.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // another process has it
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		portsInUse.ports[port] = true
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports from %d to %d", n, firstPort, lastPort)
}

// waitReady polls /readyz until it returns 200.
func waitReady(ctx context.Context, config *rest.Config, p *Process) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	last := errors.New("no answer yet")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("/readyz returned %s", resp.Status)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		if p.Exited() {
			return fmt.Errorf("%s ended before it was ready:\n%s", p.Name, p.Log(20))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log ends:\n%s", p.Name, last, p.Log(20))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// writeKubeconfig writes a kubeconfig for a client certificate.
func writeKubeconfig(path, url string, ca, cert, key []byte) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["context"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	config.CurrentContext = "context"
	return clientcmd.WriteToFile(*config, path)
}
