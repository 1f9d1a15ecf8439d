// Package namespaces runs a test and everything it starts in private mount, PID, network, IPC, UTS and cgroup namespaces.
// Containers, bridges, routes, firewall tables, mounts and cgroups of a test exist only there, tests do not interfere,
// and no packet leaves the host, because the default route ends on a bridge without other ports.
//
// A program calls Enter first. It is then executed twice more. The first copy prepares the namespaces and is their PID 1,
// which reaps orphaned processes; when it exits, the kernel kills all others. The second copy returns from Enter and does
// the work. The original only waits, and removes the cgroups afterwards.
//
// A test package has
//
//	func TestMain(m *testing.M) { namespaces.Main(m) }
//
// which does this for each test.
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
	"time"

	"golang.org/x/sys/unix"
)

// NodeAddress is the address of the test's host, on its only link besides loopback.
const NodeAddress = "10.88.0.1"

const (
	// stageVariable tells a copy of the program its stage.
	stageVariable = "SKIFF_TEST_STAGE"
	stageFirst    = "first"
	stageWork     = "work"
	// groupVariable is the name of the run's cgroup.
	groupVariable = "SKIFF_TEST_GROUP"
)

// Enter returns inside the namespaces. The process that called it first exits with the exit code of the inner one.
func Enter() {
	var code int
	var err error
	switch os.Getenv(stageVariable) {
	case stageWork:
		os.Unsetenv(stageVariable)
		os.Unsetenv(groupVariable)
		os.Unsetenv(singleVariable)
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

// outside starts the first process of the namespaces, waits for it, and removes what outlives it.
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
	if os.Getenv(singleVariable) == "" {
		defer keepSysctls()()
	}
	cmd := again(stageFirst)
	cmd.Env = append(cmd.Env, groupVariable+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The parent-death signal is bound to the thread that started the child.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	defer forward(cmd.Process)()
	return exitCode(cmd.Wait())
}

// first prepares the namespaces and starts the copy that does the work. As PID 1 it reaps all processes.
func first() (int, error) {
	// A cgroup namespace belongs to a thread; the child inherits it from this one.
	runtime.LockOSThread()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"enter cgroups", func() error { return enterGroups(os.Getenv(groupVariable)) }},
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

// again returns a command for this program with the same arguments, at another stage.
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

// forward passes termination signals on to the process, and kills it after a while.
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

// keepSysctls saves the sysctls that a kubelet changes and that are not namespaced, and returns a function that restores
// them.
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
