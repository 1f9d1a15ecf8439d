package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/client"
	"skiff/internal/kubelet/evict"
)

// maxNodeDisks is of how many nodes the disks are read: each kubelet has to be asked. In larger clusters monitoring does that.
const maxNodeDisks = 100

// nodeDisk is a file system of a node.
type nodeDisk struct {
	node   string
	signal evict.Signal
	evict.Observation
}

// readNodeDisks asks the kubelets of nodes that are ready. Those that do not respond in time are left out: other checks are about them.
func (c Cluster) readNodeDisks(ctx context.Context) (disks []nodeDisk, err error) {
	var names []string
	err = client.For[*corev1.Node](c.Client).EachPage(ctx, "", client.Selector{}, pageSize, func(page []*corev1.Node) error {
		for _, node := range page {
			if len(names) < maxNodeDisks && newNodeState(node).ready == corev1.ConditionTrue {
				names = append(names, node.Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(c.Client.Config)
	if err != nil {
		return nil, err
	}
	requests, err := rest.HTTPClientFor(c.Client.Config)
	if err != nil {
		return nil, err
	}
	defer requests.CloseIdleConnections()
	q := query{requests, strings.TrimSuffix(base.String(), "/")}
	asking, cancel := shorten(ctx)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for _, name := range names {
		group.Go(func() error {
			found, err := readNodeStats(asking, q, name)
			if err != nil {
				return nil //nolint:nilerr // a kubelet that does not respond
			}
			mu.Lock()
			defer mu.Unlock()
			disks = append(disks, found...)
			return nil
		})
	}
	_ = group.Wait() // always nil
	slices.SortFunc(disks, func(a, b nodeDisk) int { return strings.Compare(a.node+string(a.signal), b.node+string(b.signal)) })
	return disks, nil
}

// readNodeStats reads the file systems of a node from its kubelet.
func readNodeStats(ctx context.Context, q query, name string) (disks []nodeDisk, err error) {
	var summary statsapi.Summary
	err = q.get(ctx, "/api/v1/nodes/"+url.PathEscape(name)+"/proxy/stats/summary", "", func(r *http.Response) error {
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", r.Status)
		}
		return json.NewDecoder(io.LimitReader(r.Body, maxPage)).Decode(&summary)
	})
	if err != nil {
		return nil, err
	}
	add := func(signal evict.Signal, s *statsapi.FsStats) {
		if s != nil && s.AvailableBytes != nil && s.CapacityBytes != nil {
			disks = append(disks, nodeDisk{name, signal, evict.Observation{Available: int64(*s.AvailableBytes), Capacity: int64(*s.CapacityBytes)}})
		}
	}
	add(evict.NodeFsAvailable, summary.Node.Fs)
	if summary.Node.Runtime != nil {
		add(evict.ImageFsAvailable, summary.Node.Runtime.ImageFs)
	}
	return disks, nil
}

// decideNodeDisks compares disks with the default thresholds. A node below its own has the condition DiskPressure, which another check reports.
func decideNodeDisks(disks []nodeDisk) (findings []Finding) {
	thresholds, _ := evict.Parse(evict.DefaultHard(), nil, nil, nil, false) // the defaults are valid
	for _, t := range thresholds {
		var names []string
		for _, d := range disks {
			if d.signal != t.Signal || d.Capacity == 0 {
				continue
			}
			if minimum := t.Minimum(d.Capacity); d.Available <= minimum+d.Capacity*soonPercent/100 {
				names = append(names, fmt.Sprintf("%s has %s of %s left", d.node, bytesText(d.Available), bytesText(d.Capacity)))
			}
		}
		if len(names) > 0 {
			findings = append(findings, Finding{
				Severity: Warning, Problem: fmt.Sprintf("%s near the threshold %s: %s", plural(len(names), "node"), t.Signal, some(names)),
				Breaks: "no pods are scheduled there, images are deleted and pods evicted", When: "soon, at the threshold", Fix: "remove files, or enlarge the disks",
			})
		}
	}
	return findings
}
