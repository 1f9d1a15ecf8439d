// Package runtime runs containerd as a child process of skiff, so that a node needs no installed container runtime.
//
// containerd's configuration (config.go), which is written at every start, its images, state and socket are in one directory below skiff's
// data directory. Run starts containerd, waits until it is ready, imports the images that must be present without a registry (the pause
// image, and archives that an operator provides), restarts it when it exits, and stops it when skiff stops.
//
// Containers keep running without containerd: each pod has a shim, a separate process, to which a new containerd reconnects. An orphaned
// containerd of a skiff that was killed is stopped first, so that two never use one directory.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/cri"
)

const (
	// SandboxImage is the pause image of every pod. It is built from skiff's source and imported, never pulled.
	SandboxImage = "localhost/skiff/pause:1"
	// readyTimeout bounds a start; with many images, or on a slow host, it is slow. A containerd that exits is noticed at once.
	readyTimeout = 5 * time.Minute
	// stopTimeout is how long containerd may take to stop before it is killed.
	stopTimeout = 10 * time.Second
	// The bounds of the backoff of restarts.
	restartMin, restartMax = 500 * time.Millisecond, 30 * time.Second
	// largeLog is the size of containerd's log from which on a new one is begun; logPeriod is how often that is checked.
	largeLog  = 10 << 20
	logPeriod = time.Minute
)

// Options configure containerd.
type Options struct {
	// DataDir is skiff's data directory. containerd's directory is containerd below it; archives in images below it are imported.
	DataDir string
	// Programs is the directory with containerd, containerd-shim-runc-v2, runc and pause.tar: the one of skiff itself. Missing programs
	// are searched in PATH.
	Programs string
	// NetworkBin and NetworkConf are the directories of CNI plugins and their configuration. The default is cni/bin and
	// cni/net.d below DataDir.
	NetworkBin, NetworkConf string
	// SystemdCgroup has the cgroups of containers created by systemd, as the kubelet's of pods must be then.
	SystemdCgroup bool
	Log           *slog.Logger
}

// Containerd is the runtime of one node.
type Containerd struct {
	options     Options
	directories directories
	config      string
	program     string
	pause       string
	log         *slog.Logger

	ready     chan struct{}
	readyOnce sync.Once

	mu      sync.Mutex
	problem error // guarded by mu
}

// New finds the programs and directories. It starts nothing.
func New(o Options) (*Containerd, error) {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	o.DataDir = dir
	if o.NetworkBin == "" {
		o.NetworkBin = filepath.Join(dir, "cni/bin")
	}
	if o.NetworkConf == "" {
		o.NetworkConf = filepath.Join(dir, "cni/net.d")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	c := &Containerd{options: o, directories: newDirectories(dir), pause: filepath.Join(o.Programs, "pause.tar"), log: o.Log, ready: make(chan struct{})}
	p := settings{directories: c.directories, networkBin: o.NetworkBin, networkConf: o.NetworkConf, systemdCgroup: o.SystemdCgroup, privileged: mayLowerOOMScore()}
	for name, path := range map[string]*string{"containerd": &c.program, "containerd-shim-runc-v2": &p.shim, "runc": &p.runc} {
		if *path, err = find(o.Programs, name); err != nil {
			return nil, err
		}
	}
	c.config = p.text()
	return c, nil
}

// find searches a program in a directory, then in PATH.
func find(directory, name string) (string, error) {
	path := filepath.Join(directory, name)
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s: it is neither in %s nor in PATH", name, directory)
	}
	return filepath.Abs(path)
}

// Endpoint is the CRI endpoint of containerd.
func (c *Containerd) Endpoint() string { return "unix://" + c.directories.socket() }

// Endpoint is the CRI endpoint of the containerd of a skiff with this data directory.
func Endpoint(dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	return "unix://" + newDirectories(dir).socket(), err
}

// SandboxProfile is the file of the seccomp profile for the pause image.
func (c *Containerd) SandboxProfile() string { return c.directories.profile() }

// Ready is closed when containerd is ready for the first time and the images are imported.
func (c *Containerd) Ready() <-chan struct{} { return c.ready }

// Problem is why containerd is not ready although it runs, for the condition of the node; nil: nothing is known.
func (c *Containerd) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

func (c *Containerd) setProblem(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = err
}

// Run runs containerd until ctx is done, and then stops it. It returns an error if containerd cannot be started at first; if it exits later it
// is restarted.
func (c *Containerd) Run(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return fmt.Errorf("prepare containerd directory: %w", err)
	}
	if err := stopOrphan(ctx, c.directories.pidFile(), c.directories.configFile()); err != nil {
		return fmt.Errorf("stop orphaned containerd: %w", err)
	}
	delay := restartMin
	for first := true; ; first = false {
		began := time.Now()
		err := c.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if first && !c.wasReady() {
			return err
		}
		if time.Since(began) > restartMax {
			delay = restartMin
		}
		c.log.Error("containerd exited, restarting", "error", err, "delay", delay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		delay = min(2*delay, restartMax)
	}
}

func (c *Containerd) wasReady() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// prepare creates the directories and writes the configuration.
func (c *Containerd) prepare() error {
	if err := c.directories.removeStateOfEarlierBoot(); err != nil {
		return err
	}
	for _, dir := range []string{c.directories.root(), c.directories.state(), c.directories.sockets, c.options.NetworkConf, c.directories.registries()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The root filesystems of containers are below these directories, and containers with a user namespace must be able to traverse them.
	// Secret files have their own permissions.
	for _, dir := range []string{c.directories.data, c.directories.dir, c.directories.state()} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	if err := atomicfile.Write(c.directories.profile(), sandboxProfile(), 0o600); err != nil {
		return err
	}
	return atomicfile.Write(c.directories.configFile(), []byte(c.config), 0o600)
}

// runOnce starts containerd and returns when it has exited, or was stopped because ctx is done.
func (c *Containerd) runOnce(ctx context.Context) error {
	began := time.Now()
	child, err := c.start()
	if err != nil {
		return err
	}
	defer os.Remove(c.directories.pidFile())
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var logs sync.WaitGroup
	defer logs.Wait()
	defer cancel(nil)
	logs.Go(func() { c.limitLog(within) })
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := c.serve(within, began); err != nil {
			cancel(err)
		}
	}()
	select {
	case <-within.Done():
		<-served
		child.stop()
	case <-child.exited:
		cancel(nil)
		<-served
	}
	if cause := context.Cause(within); cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w; end of its log:\n%s", cause, tail(c.directories.logFile()))
	}
	return fmt.Errorf("containerd exited: %v; end of its log:\n%s", child.err, tail(c.directories.logFile()))
}

// serve waits until a started containerd is ready, imports images, and records those that are on disk until ctx is done.
func (c *Containerd) serve(ctx context.Context, began time.Time) error {
	connection, err := dial(c.Endpoint())
	if err != nil {
		return err
	}
	defer connection.Close()
	version, err := waitReady(ctx, connection)
	if err != nil {
		return ignoreCancelled(ctx, err)
	}
	c.log.Info("containerd is ready", "version", version, "took", time.Since(began).Round(time.Millisecond))
	importer := Importer{connection: connection}
	boot, err := bootID()
	if err != nil {
		return err
	}
	recorder := &imageRecorder{importer: importer, dir: c.directories.root(), file: c.directories.imageRecord(), boot: boot, log: c.log}
	if !c.checkImages(ctx, recorder) {
		return nil
	}
	if err := importer.ensure(ctx, c.pause, true); err != nil {
		return ignoreCancelled(ctx, fmt.Errorf("import pause image: %w", err))
	}
	c.importDir(ctx, importer)
	if ctx.Err() == nil {
		c.readyOnce.Do(func() { close(c.ready) })
	}
	recorder.run(ctx)
	return nil
}

// checkImages checks the images until that succeeds: an image that is not checked may be damaged, and containers would fail with it. The start goes on
// then, and the condition of the node says why meanwhile. It returns false when ctx is done.
func (c *Containerd) checkImages(ctx context.Context, recorder *imageRecorder) bool {
	defer c.setProblem(nil)
	for delay := restartMin; ; delay = min(2*delay, restartMax) {
		err := recorder.recheck(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		c.setProblem(fmt.Errorf("containerd is not used before its images are checked: %w", err))
		c.log.Error("failed to check images, trying again", "error", err, "delay", delay)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(delay):
		}
	}
}

// ignoreCancelled drops errors after ctx is done.
func ignoreCancelled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// importDir imports the archives that an operator provides. Failures are logged: they must not keep the node from starting.
func (c *Containerd) importDir(ctx context.Context, importer Importer) {
	archives, err := filepath.Glob(filepath.Join(c.options.DataDir, "images/*.tar"))
	if err != nil {
		c.log.Error("failed to list image archives", "error", err)
		return
	}
	for _, archive := range archives {
		began := time.Now()
		if err := importer.ensure(ctx, archive, true); err != nil && ctx.Err() == nil {
			c.log.Error("failed to import images", "archive", archive, "error", err)
			continue
		}
		c.log.Info("images are present", "archive", archive, "took", time.Since(began).Round(time.Millisecond))
	}
}

// child is a running containerd.
type child struct {
	process *os.Process
	exited  chan struct{}
	err     error // valid after ended is closed
}

// start starts containerd in its own session, so that it does not receive signals of skiff's terminal. The kernel sends it SIGTERM when
// skiff dies.
func (c *Containerd) start() (*child, error) {
	log, err := openLog(c.directories.logFile())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.program, "--config", c.directories.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = c.directories.dir
	// The shim and runc are configured with full paths; CNI plugins and hooks may need PATH.
	cmd.Env = append(os.Environ(), "PATH="+c.options.Programs+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	result := &child{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the child exits, so this goroutine keeps the thread.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		result.process = cmd.Process
		started <- err
		if err == nil {
			result.err = cmd.Wait()
			close(result.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	if err := writePID(c.directories.pidFile(), result.process.Pid); err != nil {
		result.stop()
		return nil, err
	}
	return result, nil
}

// stop sends containerd SIGTERM, and SIGKILL after stopTimeout.
func (c *child) stop() {
	_ = c.process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(stopTimeout):
		_ = c.process.Kill()
		<-c.exited
	}
}

// limitLog keeps the log of a running containerd from growing without bound, until ctx is done.
func (c *Containerd) limitLog(ctx context.Context) {
	ticker := time.NewTicker(logPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := truncateLog(c.directories.logFile()); err != nil {
				c.log.Warn("failed to truncate the log of containerd", "error", err)
			}
		}
	}
}

// truncateLog moves the content of a large log to a second file. containerd writes to its end, wherever that is.
func truncateLog(path string) (err error) {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= largeLog {
		return err
	}
	log, err := os.Open(path)
	if err != nil {
		return err
	}
	defer log.Close()
	old, err := os.OpenFile(path+".old", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, io.LimitReader(log, 2*largeLog))
	// Also if the disk is too full for a copy.
	return errors.Join(err, old.Close(), os.Truncate(path, 0))
}

// openLog opens containerd's log for appending. A large one is renamed first.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > largeLog {
		if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// tail returns the end of a log, to be shown with an error.
func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const most = 2048
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	data := make([]byte, min(most, info.Size()))
	if _, err := f.ReadAt(data, info.Size()-int64(len(data))); err != nil {
		return err.Error()
	}
	return string(data)
}

// dial makes a connection to containerd, which may not listen yet.
func dial(endpoint string) (*grpc.ClientConn, error) {
	return grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second,
		}))
}

// waitReady waits until containerd reports the condition RuntimeReady, and returns its version.
func waitReady(ctx context.Context, connection *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	runtime := cri.New(cri.NewClient(connection))
	for {
		version, err := runtime.Version(ctx)
		if err == nil {
			if err = runtimeReady(ctx, runtime); err == nil {
				return version.Version, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("containerd is not ready after %s: %w", readyTimeout, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func runtimeReady(ctx context.Context, runtime *cri.Runtime) error {
	status, err := runtime.Status(ctx)
	if err != nil {
		return err
	}
	if condition, ok := status.Condition(cri.RuntimeReady); ok && !condition.Status {
		return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
	}
	return nil
}
