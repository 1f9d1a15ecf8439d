package churn

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// The quantities.
const (
	residentMiB = "resident MiB"
	openFiles   = "open files"
	threads     = "threads"
	goroutines  = "goroutines"
	databaseMiB = "database MiB in use"
	mounts      = "mounts"
	links       = "links"
	cgroups     = "cgroups"
	processes   = "processes"
)

// leftoverQuantities are those of what pods leave behind if it is not removed.
var leftoverQuantities = []string{mounts, links, cgroups, processes}

// measureProcess adds the numbers of a process, and of the namespaces that it is in, under a name.
func measureProcess(s sample, of string, p *cluster.Process) error {
	resident, err := p.Resident()
	if err != nil {
		return err
	}
	s[quantity{of, residentMiB}] = float64(resident) / (1 << 20)
	dir := filepath.Join("/proc", strconv.Itoa(p.PID()))
	for name, entries := range map[string]string{openFiles: "fd", threads: "task"} {
		found, err := os.ReadDir(filepath.Join(dir, entries))
		if err != nil {
			return err
		}
		s[quantity{of, name}] = float64(len(found))
	}
	for name, file := range map[string]string{mounts: "mountinfo", links: "net/dev"} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		s[quantity{of, name}] = float64(bytes.Count(data, []byte("\n")))
	}
	return nil
}

// measureHosts adds the numbers of what all hosts of the test share.
func measureHosts(s sample) error {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	s[quantity{"all", processes}] = float64(len(all))
	groups := 0
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			groups++
		}
		return nil // a cgroup may be removed meanwhile
	})
	s[quantity{"all", cgroups}] = float64(groups)
	return err
}

// metricsSource is where a component reports about itself.
type metricsSource struct {
	name   string
	client rest.Interface
	path   string
}

// measureMetrics adds the wanted numbers that a component reports about itself: metrics of a URL path of the API server.
func measureMetrics(ctx context.Context, s sample, source metricsSource, wanted ...string) error {
	of := source.name
	data, err := source.client.Get().AbsPath(source.path).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read metrics of %s: %w", of, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		var q quantity
		unit := 1.0
		switch name {
		case "go_goroutines":
			q = quantity{of, goroutines}
		case "etcd_mvcc_db_total_size_in_use_in_bytes":
			q, unit = quantity{of, databaseMiB}, 1<<20
		default:
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("metric %s of %s: %w", name, of, err)
		}
		s[q] = value / unit
	}
	for _, name := range wanted {
		if _, ok := s[quantity{of, name}]; !ok {
			return fmt.Errorf("%s does not report %s", of, name)
		}
	}
	return lines.Err()
}
