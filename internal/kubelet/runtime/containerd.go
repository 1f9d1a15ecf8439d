// Package runtime runs containerd as a child of skiff, so that a node needs nothing installed.
//
// All containerd has lies in one directory below skiff's own: its configuration (config.go), written anew at every start, its store,
// its state and its socket. Run starts it, waits until it answers, brings in the images that must be there without any registry (the
// pause image, and the archives an operator has laid ready), starts it again when it dies, and ends it when skiff ends.
//
// Containers do not end with it: each pod is held by a shim, a process of its own, and a containerd that starts on the same directory
// finds them again. A containerd left over from a skiff that was killed is ended first, so that never two work on one directory.
//
// This is the one place from which skiff starts another program to do its work.
package runtime

import (
	"context"
	"errors"
	"fmt"
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
	// SandboxImage holds the namespaces of every pod. It is built from our own source and imported, never pulled.
	SandboxImage = "localhost/skiff/pause:1"
	// readyTimeout bounds a start; a store with many images takes its time on a slow disk.
	readyTimeout = time.Minute
	// stopTimeout is how long containerd may take to end.
	stopTimeout = 10 * time.Second
	// A containerd that died is started again at once; one that keeps dying, ever more slowly.
	restartMin, restartMax = 500 * time.Millisecond, 30 * time.Second
)

// Options say where containerd is and where it keeps things.
type Options struct {
	// DataDir is skiff's data directory. containerd's own is containerd below it; archives in images below it are imported.
	DataDir string
	// Programs is the directory with containerd, containerd-shim-runc-v2, runc and pause.tar: the one skiff itself is in. What is
	// not there is looked for in PATH.
	Programs string
	// NetworkBin and NetworkConf are where containerd looks for CNI plugins and their configuration. The default is cni/bin and
	// cni/net.d below DataDir.
	NetworkBin, NetworkConf string
	Log                     *slog.Logger
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
}

// New finds the programs and decides on the directories. It starts nothing.
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
	c := &Containerd{options: o, directories: dirsBelow(dir), pause: filepath.Join(o.Programs, "pause.tar"), log: o.Log, ready: make(chan struct{})}
	p := settings{directories: c.directories, networkBin: o.NetworkBin, networkConf: o.NetworkConf, privileged: mayLowerOOMScore()}
	for name, path := range map[string]*string{"containerd": &c.program, "containerd-shim-runc-v2": &p.shim, "runc": &p.runc} {
		if *path, err = find(o.Programs, name); err != nil {
			return nil, err
		}
	}
	c.config = p.text()
	return c, nil
}

// find looks for a program in a directory, then in PATH.
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

// Endpoint is where the runtime answers, as the CRI's clients want it.
func (c *Containerd) Endpoint() string { return "unix://" + c.directories.socket() }

// Endpoint is where a skiff with this data directory has its containerd.
func Endpoint(dataDir string) (string, error) {
	dir, err := filepath.Abs(dataDir)
	return "unix://" + dirsBelow(dir).socket(), err
}

// SandboxProfile is the file with the seccomp profile that fits the pause image of this containerd.
func (c *Containerd) SandboxProfile() string { return c.directories.profile() }

// Ready is closed when containerd has answered for the first time and the images are in.
func (c *Containerd) Ready() <-chan struct{} { return c.ready }

// Run keeps containerd running until ctx ends, and ends it then. It returns an error when containerd cannot be started at all; one
// that dies later is started again.
func (c *Containerd) Run(ctx context.Context) error {
	if err := c.prepare(); err != nil {
		return fmt.Errorf("prepare containerd's directory: %w", err)
	}
	if err := endLeftover(ctx, c.directories.pidFile(), c.directories.configFile()); err != nil {
		return fmt.Errorf("end the containerd of an earlier skiff: %w", err)
	}
	delay := restartMin
	for first := true; ; first = false {
		began := time.Now()
		err := c.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if first && !c.answered() {
			return err
		}
		if time.Since(began) > restartMax {
			delay = restartMin
		}
		c.log.Error("containerd ended; starting it again", "err", err, "after", delay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		delay = min(2*delay, restartMax)
	}
}

func (c *Containerd) answered() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// prepare makes the directories and writes the configuration.
func (c *Containerd) prepare() error {
	if err := c.directories.forgetOldBoot(); err != nil {
		return err
	}
	for _, dir := range []string{c.directories.root(), c.directories.state(), c.directories.sockets, c.options.NetworkConf, c.directories.registries()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The roots of containers are in here, and those with users of their own have to pass through. What is secret says so itself.
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

// live starts containerd and returns when it has ended, or when ctx has and it was ended.
func (c *Containerd) live(ctx context.Context) error {
	began := time.Now()
	child, err := c.start()
	if err != nil {
		return err
	}
	defer os.Remove(c.directories.pidFile())
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := c.serve(within, began); err != nil {
			cancel(err)
		}
	}()
	select {
	case <-within.Done():
		child.stop()
	case <-child.ended:
		cancel(nil)
	}
	<-served
	if cause := context.Cause(within); cause != nil && !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("%w; its log ends:\n%s", cause, tail(c.directories.logFile()))
	}
	return fmt.Errorf("containerd ended: %v; its log ends:\n%s", child.err, tail(c.directories.logFile()))
}

// serve makes a containerd that has just been started useful: it waits for it and brings in images.
func (c *Containerd) serve(ctx context.Context, began time.Time) error {
	connection, err := dial(c.Endpoint())
	if err != nil {
		return err
	}
	defer connection.Close()
	version, err := waitReady(ctx, connection)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	c.log.Info("containerd is ready", "version", version, "took", time.Since(began).Round(time.Millisecond))
	importer := Importer{connection: connection}
	if err := importer.ensure(ctx, c.pause, true); err != nil {
		return ignoreEnd(ctx, fmt.Errorf("import the pause image: %w", err))
	}
	c.importDir(ctx, importer)
	if ctx.Err() == nil {
		c.readyOnce.Do(func() { close(c.ready) })
	}
	return nil
}

// ignoreEnd drops errors that say only that we are ending.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// importDir imports the archives laid ready by the operator. One that cannot be read is reported and left out: it must not keep the
// node from starting.
func (c *Containerd) importDir(ctx context.Context, importer Importer) {
	archives, err := filepath.Glob(filepath.Join(c.options.DataDir, "images/*.tar"))
	if err != nil {
		c.log.Error("cannot look for images to import", "err", err)
		return
	}
	for _, archive := range archives {
		began := time.Now()
		if err := importer.ensure(ctx, archive, true); err != nil && ctx.Err() == nil {
			c.log.Error("cannot import images", "archive", archive, "err", err)
			continue
		}
		c.log.Info("images are present", "archive", archive, "took", time.Since(began).Round(time.Millisecond))
	}
}

// child is a running containerd.
type child struct {
	process *os.Process
	ended   chan struct{}
	err     error // why it ended; to be read after ended is closed
}

// start runs containerd in a session of its own, so that a signal meant for skiff's terminal does not reach it. It is told to end
// when skiff dies in whatever way, by the kernel.
func (c *Containerd) start() (*child, error) {
	log, err := openLog(c.directories.logFile())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.program, "--config", c.directories.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = c.directories.dir
	// The shim and runc are given by their full paths; CNI plugins and hooks may want more.
	cmd.Env = append(os.Environ(), "PATH="+c.options.Programs+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	result := &child{ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the child ends, so that thread is kept for it.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		result.process = cmd.Process
		started <- err
		if err == nil {
			result.err = cmd.Wait()
			close(result.ended)
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

// stop asks containerd to end, and after a while makes it.
func (c *child) stop() {
	_ = c.process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(stopTimeout):
		_ = c.process.Kill()
		<-c.ended
	}
}

// openLog opens containerd's log to append to it; one that has grown large is put aside first.
func openLog(path string) (*os.File, error) {
	const large = 10 << 20
	if info, err := os.Stat(path); err == nil && info.Size() > large {
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

// dial connects to containerd, also to one that is only about to listen.
func dial(endpoint string) (*grpc.ClientConn, error) {
	return grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second}, MinConnectTimeout: time.Second,
		}))
}

// waitReady waits until containerd answers and says that it can run containers, and returns its version.
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
