// Command bench measures skiff and upstream side by side: the same load, one server after the other on the same machine, and prints
// a table with the ratios. Server CPU per request comes first: it varies less than wall time.
//
//	go run ./test/bench [-only create,list] [-pods 10000] [-sides skiff,upstream]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"skiff/test/cluster"
)

// Row is one measured number of one server. Goal is the ratio to upstream that skiff must not exceed (or, for throughput, must
// reach).
type Row struct {
	Name  string
	Value float64
	Unit  string
	Goal  float64
	// HigherIsBetter is true for throughput.
	HigherIsBetter bool
	// Limit is the maximum of a number, also of one that is not compared with upstream; 0: none. AtLeast makes it the minimum.
	Limit   float64
	AtLeast bool
}

// load is one workload. It runs against a freshly started server; workloads run in the order of the list.
type load struct {
	name string
	run  func(b *bench) error
}

// loads in order: later ones find the objects of earlier ones.
var loads = []load{
	{"start", measureStart},
	{"create", measureWrites},
	{"watch", measureWatch},
	{"list", measureLists},
	{"memory", measureMemory},
}

// separateLoad is a workload that starts its own servers.
type separateLoad struct {
	name string
	run  func(side, dir string, o options) ([]Row, error)
}

// standaloneLoads are those on the host's own network; isolatedLoads follow them.
var standaloneLoads = []separateLoad{
	{"deployment", measureDeployment},
	{"idle", measureIdle},
	{"schedule", measureScheduling},
	{"algorithm", measureAlgorithm},
	{"access-control", measureAccessControl},
	{"slow-readers", measureSlowReaders},
	{"extensions", measureExtensions},
	{"servers", measureServers},
}

// options are fields of a JSON document for workloads that run in a child process.
type options struct {
	Replicas int
	Pods     int
	Requests int
	Workers  int
	Watchers int
	Events   int
	Rounds   int
	Services int
	Policies int
	Profiles string
}

func main() {
	var o options
	only := flag.String("only", "", "workloads to run, separated by commas: start, create, watch, list, memory, deployment, idle, schedule, algorithm, access-control, slow-readers, extensions, servers, node, proxy, policies, dns, throughput")
	sides := flag.String("sides", "skiff,upstream", "servers to measure")
	out := flag.String("json", "", "also write the numbers to this file")
	keep := flag.String("dir", "", "keep state and logs in this directory")
	flag.StringVar(&o.Profiles, "profiles", "", "write a CPU profile of skiff's first seconds under each load to this directory; the numbers are then a little worse")
	flag.IntVar(&o.Pods, "pods", 10000, "pods to list")
	flag.IntVar(&o.Replicas, "replicas", 2000, "replicas of the deployment")
	flag.IntVar(&o.Requests, "requests", 4000, "writes of each kind")
	flag.IntVar(&o.Workers, "workers", 16, "clients that write at once")
	flag.IntVar(&o.Watchers, "watchers", 200, "watchers of one resource")
	flag.IntVar(&o.Events, "events", 500, "events sent to the watchers")
	flag.IntVar(&o.Services, "services", 5000, "Services of the proxy, with ten endpoints each")
	flag.IntVar(&o.Policies, "policies", 1000, "network policies")
	flag.IntVar(&o.Rounds, "rounds", 40, "lists of each form")
	flag.Parse()
	if text := os.Getenv(isolatedVariable); text != "" {
		if err := isolatedMain(text); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*only, *sides, *out, *keep, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(only, sides, out, dir string, o options) error {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "skiff-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	}
	results := map[string][]Row{}
	for side := range strings.SplitSeq(sides, ",") {
		rows, err := measure(side, filepath.Join(dir, side), only, o)
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		results[side] = rows
	}
	print(results)
	if out != "" {
		data, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(out, data, 0o644)
	}
	return nil
}

// measure runs the workloads against one server after the other.
func measure(side, dir, only string, o options) (rows []Row, err error) {
	wanted := func(name string) bool { return only == "" || strings.Contains(","+only+",", ","+name+",") }
	if slices.ContainsFunc(loads, func(l load) bool { return wanted(l.name) }) {
		if rows, err = measureShared(side, dir, wanted, o); err != nil {
			return nil, err
		}
	}
	for _, l := range separateLoads() {
		if !wanted(l.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s ...\n", side, l.name)
		more, err := l.run(side, filepath.Join(dir, l.name), o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// separateLoads are the workloads that start their own servers.
func separateLoads() []separateLoad {
	all := slices.Clone(standaloneLoads)
	for _, l := range isolatedLoads {
		all = append(all, separateLoad{l.name, l.start})
	}
	return all
}

// measureShared starts one server and runs the workloads that share it.
func measureShared(side, dir string, wanted func(string) bool, o options) ([]Row, error) {
	var c *cluster.Cluster
	var err error
	// Pods here have no service account: the token volume it would add is not what is measured.
	const flag = "--disable-admission-plugins=ServiceAccount"
	switch side {
	case "skiff":
		c, err = cluster.Skiff(dir, flag, fmt.Sprintf("--profiling=%t", o.Profiles != ""))
	case "upstream":
		c, err = cluster.UpstreamAPI(dir, "", flag)
	default:
		return nil, fmt.Errorf("unknown server %q", side)
	}
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	for _, l := range loads {
		if !wanted(l.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: %s ...\n", side, l.name)
		if err := l.run(b); err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return b.rows, nil
}

// limit describes the row's limit and whether it is met.
func (r Row) limit() string {
	if r.Limit == 0 {
		return ""
	}
	sign, met := "≤", r.Value <= r.Limit
	if r.AtLeast {
		sign, met = "≥", r.Value >= r.Limit
	}
	mark := "yes"
	if !met {
		mark = "NO"
	}
	return fmt.Sprintf("%s %g %s", sign, r.Limit, mark)
}

// number formats a value: with more digits if it is small.
func number(value float64) string {
	if value < 10 {
		return fmt.Sprintf("%.2f", value)
	}
	return fmt.Sprintf("%.1f", value)
}

// print prints the table: skiff, upstream, ratio, goal.
func print(results map[string][]Row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprintln(w, "\tunit\tskiff\tupstream\tratio\tgoal\t")
	upstream := map[string]Row{}
	for _, r := range results["upstream"] {
		upstream[r.Name] = r
	}
	rows := results["skiff"]
	if len(rows) == 0 {
		rows = results["upstream"]
	}
	for _, r := range rows {
		u, both := upstream[r.Name]
		if !both || len(results["skiff"]) == 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\t%s\t\n", r.Name, r.Unit, number(r.Value), r.limit())
			continue
		}
		ratio, sign := r.Value/u.Value, "≤"
		met := ratio <= r.Goal
		if r.HigherIsBetter {
			sign, met = "≥", ratio >= r.Goal
		}
		mark := "yes"
		if !met {
			mark = "NO"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.3f\t%s %.2f %s %s\t\n", r.Name, r.Unit, number(r.Value), number(u.Value), ratio, sign, r.Goal, mark, r.limit())
	}
}
