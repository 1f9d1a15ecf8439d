// Package namespaces puts a test, with everything it starts, on a machine of its own: private mount, process, network, IPC, host name
// and control group namespaces. Containers, bridges, routes, firewall tables, mounts and control groups of a test live and end in
// there, two tests do not meet, and no packet leaves the machine, since the default route ends on a bridge without neighbours.
//
// A program calls Enter first thing; a test package has
//
//	func TestMain(m *testing.M) { namespaces.Main(m) }
//
// The program is then started twice more. The first copy prepares the namespaces and stays as their first process, burying whatever the
// containers leave; when it ends, the kernel ends all the others. The second copy is the one that returns from Enter and does the work. The
// original only waits, and removes the control groups afterwards.
package namespaces

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NodeAddress is the address of the machine inside, on its only link besides loopback.
const NodeAddress = "10.88.0.1"

const (
	// stageVariable tells a copy of the program which one it is.
	stageVariable = "SKIFF_TEST_STAGE"
	stageFirst    = "first"
	stageWork     = "work"
	// groupVariable names the control group of the run.
	groupVariable = "SKIFF_TEST_GROUP"
)

// Main runs the tests of a package inside namespaces of their own.
func Main(m *testing.M) {
	Enter()
	os.Exit(m.Run())
}

// Enter returns inside the namespaces. The process that called it first ends, with the same exit code, when the one inside has ended.
func Enter() {
	var code int
	var err error
	switch os.Getenv(stageVariable) {
	case stageWork:
		os.Unsetenv(stageVariable)
		os.Unsetenv(groupVariable)
		return
	case stageFirst:
		code, err = first()
	default:
		code, err = outside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "namespaces:", err)
		code = 1
	}
	os.Exit(code)
}

// outside starts the first process of the namespaces, waits for it, and clears away what outlives them.
func outside() (int, error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("tests that run containers need root")
	}
	removeStaleGroups()
	group := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	if err := makeGroups(group); err != nil {
		return 0, err
	}
	defer removeGroups(group)
	defer keepSysctls()()
	cmd := again(stageFirst)
	cmd.Env = append(cmd.Env, groupVariable+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The kernel watches the thread that started the child.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	defer forward(cmd.Process)()
	return exitCode(cmd.Wait())
}

// first prepares the namespaces and starts the copy that does the work. As process 1 it waits for everybody.
func first() (int, error) {
	// A control group namespace belongs to a thread; the copy inherits it from this one.
	runtime.LockOSThread()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"enter control groups", func() error { return enterGroups(os.Getenv(groupVariable)) }},
		{"mount file systems", mountAll},
		{"set up network", setUpNetwork},
	} {
		if err := step.do(); err != nil {
			return 0, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	cmd := again(stageWork)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer forward(cmd.Process)()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for processes: %w", err)
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == cmd.Process.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		}
	}
}

// again is this program with the same arguments, at another stage.
func again(stage string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, stageVariable+"=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, stageVariable+"="+stage)
	return cmd
}

// forward passes on the signals that ask to end, and insists after a while.
func forward(p *os.Process) (stop func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	done := make(chan struct{})
	go func() {
		var insist <-chan time.Time
		for {
			select {
			case s := <-signals:
				_ = p.Signal(s)
				insist = time.After(time.Minute)
			case <-insist:
				_ = p.Kill()
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(signals); close(done) }
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// keepSysctls notes the settings that a kubelet changes and that no namespace holds, and returns what puts them back.
func keepSysctls() (restore func()) {
	noted := map[string][]byte{}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		path := "/proc/sys/" + name
		if value, err := os.ReadFile(path); err == nil {
			noted[path] = value
		}
	}
	return func() {
		for path, value := range noted {
			if now, err := os.ReadFile(path); err == nil && string(now) != string(value) {
				_ = os.WriteFile(path, value, 0)
			}
		}
	}
}
