package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
	"skiff/test/cluster"
	"skiff/test/workloads"
)

// schedulerNodes is how many nodes the schedulers have to choose from.
const schedulerNodes = 5000

// measureScheduling creates pods as fast as it can and waits until all have a node. The control plane and the client share the host;
// there is no client throttling.
func measureScheduling(side, dir string, o options) ([]Row, error) {
	c, err := startWithScheduler(side, dir, o)
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	k, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	if err := b.parallel(schedulerNodes, func(i int) error {
		_, err := k.CoreV1().Nodes().Create(ctx, workloads.Node(i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, fmt.Errorf("create nodes: %w", err)
	}
	load := &workloads.All[0]
	if err := b.schedule(ctx, k, load, 0, load.First); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("schedule %d pods on %d nodes while creating them", load.Pods, schedulerNodes)
	used, wall, err := b.cpu(name, func() error { return b.schedule(ctx, k, load, load.First, load.Pods) })
	if err != nil {
		return nil, err
	}
	b.rows = append(b.rows, Row{Name: name, Value: float64(load.Pods) / wall.Seconds(), Unit: "pods/s", Goal: 6, HigherIsBetter: true})
	b.add(name+": CPU of the whole control plane", float64(used.Microseconds())/float64(load.Pods), "µs/pod", 1./6)
	return b.rows, nil
}

// startWithScheduler starts a control plane with its scheduler: skiff in one process, upstream in three.
func startWithScheduler(side, dir string, o options) (*cluster.Cluster, error) {
	// Nodes are created ready; admission must not taint them as new.
	const flag = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
	switch side {
	case "skiff":
		return cluster.Skiff(dir, flag, "--without=controllers", fmt.Sprintf("--profiling=%t", o.Profiles != ""))
	case "upstream":
		c, err := cluster.UpstreamAPI(dir, "", flag, "--max-requests-inflight=3000", "--max-mutating-requests-inflight=3000")
		if err != nil {
			return nil, err
		}
		if err := c.Scheduler("--kube-api-qps=5000", "--kube-api-burst=5000"); err != nil {
			c.Stop()
			return nil, err
		}
		c.Server, c.Others = append(c.Server, c.Others...), nil
		return c, nil
	}
	return nil, fmt.Errorf("unknown server %q", side)
}

// schedule creates pods and returns when all of them have a node.
func (b *bench) schedule(ctx context.Context, k clientset.Interface, load *workloads.Workload, first, pods int) error {
	placed := map[string]bool{}
	w, err := watchPods(ctx, k, placed)
	if err != nil {
		return err
	}
	defer func() { w.Stop() }()
	before := len(placed)
	created := make(chan error, 1)
	go func() {
		created <- b.parallel(pods, func(i int) error {
			_, err := k.CoreV1().Pods("default").Create(ctx, load.Pod(first+i), metav1.CreateOptions{})
			return err
		})
	}()
	for len(placed) < before+pods {
		select {
		case event, ok := <-w.ResultChan():
			if p, isPod := event.Object.(*corev1.Pod); ok && isPod {
				if p.Spec.NodeName != "" {
					placed[p.Name] = true
				}
				continue
			}
			// A server may close a watch whose client is too slow.
			if w, err = watchPods(ctx, k, placed); err != nil {
				return err
			}
		case err := <-created:
			if err != nil {
				return err
			}
			created = nil
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods have a node: %w", len(placed)-before, pods, ctx.Err())
		}
	}
	return nil
}

// watchPods records the pods that have a node and watches for more.
func watchPods(ctx context.Context, k clientset.Interface, placed map[string]bool) (watch.Interface, error) {
	list, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Spec.NodeName != "" {
			placed[list.Items[i].Name] = true
		}
	}
	return k.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
}

// measureAlgorithm measures scheduling decisions without an API server: decide, assume, next pod.
func measureAlgorithm(side, _ string, _ options) ([]Row, error) {
	if side == "upstream" {
		return upstreamAlgorithm()
	}
	var rows []Row
	for i := range workloads.All {
		w := &workloads.All[i]
		rate, err := decide(w, schedulerNodes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		rows = append(rows, algorithmRow(w.Name, rate))
	}
	plain := &workloads.All[0]
	rateWith1000, err := decide(plain, 1000)
	if err != nil {
		return nil, err
	}
	rateWith15000, err := decide(plain, 15000)
	if err != nil {
		return nil, err
	}
	rows = append(rows, Row{Name: "decisions only, plain pods: cost per pod with 15000 nodes relative to 1000 (goal: below 15)", Value: rateWith1000 / rateWith15000, Unit: "times"})
	for i := range workloads.All {
		more, err := recordCost(&workloads.All[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", workloads.All[i].Name, err)
		}
		rows = append(rows, Row{Name: "decisions only, 5000 nodes, " + workloads.All[i].Name + ": CPU time added by decision records", Value: more, Unit: "%", Limit: 5})
	}
	size, err := schedulerMemory()
	return append(rows, Row{Name: "scheduler's memory without the shared objects, 5000 nodes and 50000 pods (goal: below 100)", Value: size, Unit: "MB"}), err
}

func algorithmRow(name string, rate float64) Row {
	goal := 20.
	if name == workloads.All[0].Name {
		name += " (goal: 20000)"
	}
	return Row{Name: "decisions only, 5000 nodes, " + name, Value: rate, Unit: "pods/s", Goal: goal, HigherIsBetter: true}
}

// upstreamAlgorithm runs upstream's own code, which is in another module.
func upstreamAlgorithm() ([]Row, error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "run", "./algorithm")
	cmd.Dir, cmd.Stderr = filepath.Join(root, "test/differential"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("measure upstream's algorithm: %w", err)
	}
	rates := map[string]float64{}
	if err := json.Unmarshal(out, &rates); err != nil {
		return nil, err
	}
	var rows []Row
	for i := range workloads.All {
		rows = append(rows, algorithmRow(workloads.All[i].Name, rates[workloads.All[i].Name]))
	}
	return rows, nil
}

// decide schedules pods and returns how many per second.
func decide(w *workloads.Workload, nodes int) (float64, error) {
	s, profile := snapshot.NewSnapshot(), plugins.DefaultProfile()
	for i := range nodes {
		s.SetNode(workloads.Node(i))
	}
	place := func(i int) error {
		info, err := snapshot.NewPodInfo(w.Pod(i))
		if err != nil {
			return err
		}
		d, err := decision.Schedule(s, info, profile)
		if err != nil {
			return err
		}
		s.Assume(info, d.Node)
		return nil
	}
	for i := range w.First {
		if err := place(i); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for i := range w.Pods {
		if err := place(w.First + i); err != nil {
			return 0, err
		}
	}
	return float64(w.Pods) / time.Since(began).Seconds(), nil
}

// recordCost is how much more CPU time decisions take when decision records are kept, in percent. It schedules the same pods on two
// equal clusters alternately, so that other load on the host affects both; garbage is collected between batches. The tenth of the
// batches with the highest and the lowest ratio are outliers and dropped.
func recordCost(w *workloads.Workload) (float64, error) {
	const batch, rounds = 200, 10
	infos := make([]*snapshot.PodInfo, w.First+w.Pods)
	for i := range infos {
		var err error
		if infos[i], err = snapshot.NewPodInfo(w.Pod(i)); err != nil {
			return 0, err
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	profile := plugins.DefaultProfile()
	var pairs [][2]time.Duration // without the record, with it
	for range rounds {
		snapshots := [2]*snapshot.Snapshot{snapshot.NewSnapshot(), snapshot.NewSnapshot()}
		decision.SetOptions(snapshots[0], decision.Options{NoRecord: true})
		for i := range schedulerNodes {
			snapshots[0].SetNode(workloads.Node(i))
			snapshots[1].SetNode(workloads.Node(i))
		}
		var log decision.Log
		for first := 0; first < len(infos); first += batch {
			runtime.GC()
			var used [2]time.Duration
			for i := range snapshots {
				record := (i + first/batch) % 2
				s := snapshots[record]
				now := time.Now() // the scheduler reads the clock in any case
				began, err := cpuTime()
				if err != nil {
					return 0, err
				}
				for _, info := range infos[first:min(first+batch, len(infos))] {
					d, err := decision.Schedule(s, info, profile)
					if err != nil {
						return 0, err
					}
					if record == 1 {
						log.Remember(d, nil, now)
					}
					s.Assume(info, d.Node)
				}
				ended, err := cpuTime()
				if err != nil {
					return 0, err
				}
				used[record] = ended - began
			}
			if first >= w.First {
				pairs = append(pairs, used)
			}
		}
	}
	slices.SortFunc(pairs, func(a, b [2]time.Duration) int { return cmp.Compare(a[1]*b[0], b[1]*a[0]) })
	var used [2]time.Duration
	for _, pair := range pairs[len(pairs)/10 : len(pairs)-len(pairs)/10] {
		used[0] += pair[0]
		used[1] += pair[1]
	}
	return 100 * (float64(used[1])/float64(used[0]) - 1), nil
}

// cpuTime is the CPU time this process has used.
func cpuTime() (time.Duration, error) {
	var used unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used)
	return time.Duration(used.Nano()), err
}

// schedulerMemory is the memory of a snapshot with pods of all workloads, without the objects themselves.
func schedulerMemory() (float64, error) {
	const pods = 50000
	nodes, objects := make([]*corev1.Node, schedulerNodes), make([]*corev1.Pod, pods)
	for i := range nodes {
		nodes[i] = workloads.Node(i)
	}
	for i := range objects {
		objects[i] = workloads.All[i%len(workloads.All)].Pod(i)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, profile := snapshot.NewSnapshot(), plugins.DefaultProfile()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range objects {
		info, err := snapshot.NewPodInfo(p)
		if err != nil {
			return 0, err
		}
		d, err := decision.Schedule(s, info, profile)
		var full *decision.FitError
		if errors.As(err, &full) {
			continue // anti-affinity leaves no feasible node
		}
		if err != nil {
			return 0, err
		}
		s.Assume(info, d.Node)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(objects)
	runtime.KeepAlive(s)
	return float64(after.HeapAlloc-before.HeapAlloc) / 1e6, nil
}
