package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"skiff/test/namespaces"
)

// isolatedLoad is a workload that starts its own servers in namespaces of its own, so that containers, network links, nftables tables and
// cgroups end with it, also when it is interrupted. No packet leaves the host.
type isolatedLoad struct {
	name string
	// prepare builds what the workload needs, while the network is reachable.
	prepare func(side string) error
	run     func(side, dir string, o options) ([]Row, error)
}

var isolatedLoads = []isolatedLoad{
	{"node", prepareNode, measureNode},
	{"proxy", prepareProxy, measureProxy},
	{"policies", nil, measurePolicies},
	{"dns", prepareDNS, measureDNS},
	{"throughput", prepareThroughput, measureThroughput},
}

const (
	// isolatedVariable is the environment variable that makes a child process run an isolated workload: isolatedRun in JSON.
	isolatedVariable = "SKIFF_BENCH_ISOLATED"
	rowsFile         = "rows.json"
)

// isolatedRun is what a child process runs.
type isolatedRun struct {
	Load, Side, Dir string
	Options         options
}

// start runs the workload in a child process.
func (l isolatedLoad) start(side, dir string, o options) ([]Row, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can make namespaces")
	}
	if l.prepare != nil {
		if err := l.prepare(side); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	text, err := json.Marshal(isolatedRun{l.name, side, dir, o})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), isolatedVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("in its own namespaces: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, rowsFile))
	if err != nil {
		return nil, err
	}
	var rows []Row
	return rows, json.Unmarshal(data, &rows)
}

// isolatedMain is the child process's main: it writes the rows to a file.
func isolatedMain(text string) error {
	namespaces.Enter()
	var run isolatedRun
	if err := json.Unmarshal([]byte(text), &run); err != nil {
		return err
	}
	for _, l := range isolatedLoads {
		if l.name != run.Load {
			continue
		}
		rows, err := l.run(run.Side, run.Dir, run.Options)
		if err != nil {
			return err
		}
		data, err := json.Marshal(rows)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(run.Dir, rowsFile), data, 0o600)
	}
	return fmt.Errorf("unknown workload %q", run.Load)
}
