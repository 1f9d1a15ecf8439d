package namespaces

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// singleVariable tells a copy of a test program that it runs a single test, and that the program that started it restores the sysctls.
const singleVariable = "SKIFF_TEST_SINGLE"

// Outermost reports whether this process is the one that was started to run the tests, outside of all namespaces.
func Outermost() bool { return os.Getenv(stageVariable) == "" && os.Getenv(singleVariable) == "" }

// Main runs the tests of a package, each inside namespaces of its own, as many at a time as there are processors, because tests of nodes
// mostly wait. Benchmarks have the host to themselves, one after the other.
func Main(m *testing.M) {
	flag.Parse()
	if !Outermost() || isSet("test.bench") {
		Enter()
		os.Exit(m.Run())
	}
	if isSet("test.list") {
		os.Exit(m.Run())
	}
	code, err := runEach()
	if err != nil {
		fmt.Fprintln(os.Stderr, "namespaces:", err)
		code = 1
	}
	os.Exit(code)
}

func isSet(name string) bool { return flag.Lookup(name).Value.String() != "" }

// runEach runs every test that -test.run selects in a process of its own, and returns the exit code of the test program.
func runEach() (int, error) {
	// The part of the pattern before a slash selects tests, the rest selects their subtests.
	pattern, subtests, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	names, err := listTests(pattern)
	if err != nil {
		return 0, err
	}
	defer keepSysctls()()
	if len(names) == 1 {
		// Its output is that of all tests, and may take hours.
		if err := runTest(names[0], subtests, os.Stdout); err != nil {
			return 1, nil
		}
		return 0, nil
	}
	queue := make(chan string, len(names))
	for _, name := range names {
		queue <- name
	}
	close(queue)
	code := 0
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range min(runtime.NumCPU(), len(names)) {
		workers.Go(func() {
			for name := range queue {
				var text bytes.Buffer
				err := runTest(name, subtests, &text)
				output := text.Bytes()
				if err == nil {
					// The result is that of all tests. With -test.v=test2json a control character marks it.
					output = bytes.TrimSuffix(bytes.TrimSuffix(output, []byte("PASS\n")), []byte{0x16})
				}
				mu.Lock()
				os.Stdout.Write(output)
				if err != nil {
					code = 1
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if code == 0 {
		fmt.Println("PASS")
	} else {
		fmt.Println("FAIL")
	}
	return code, nil
}

// listTests returns the names of the tests that a pattern selects.
func listTests(pattern string) ([]string, error) {
	if pattern == "" {
		pattern = "."
	}
	cmd := exec.Command("/proc/self/exe", "-test.list="+pattern)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list tests: %w", err)
	}
	var names []string
	for name := range strings.Lines(string(output)) {
		if name = strings.TrimSpace(name); strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	return names, nil
}

// runTest runs one test, or those of its subtests that a pattern selects, and writes its output, which ends with the error.
func runTest(name, subtests string, output io.Writer) error {
	// The parent-death signal is bound to the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pattern := "^" + name + "$"
	if subtests != "" {
		pattern += "/" + subtests
	}
	// The test log, by which go test decides whether a result may be cached, is of one process; what a node does is not cached.
	cmd := exec.Command("/proc/self/exe", append(slices.Clone(os.Args[1:]), "-test.run="+pattern, "-test.testlogfile=")...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), singleVariable+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = output, output
	err := cmd.Start()
	if err == nil {
		stop := forward(cmd.Process)
		err = cmd.Wait()
		stop()
	}
	if err != nil {
		fmt.Fprintf(output, "%s: %v\n", name, err)
	}
	return err
}
