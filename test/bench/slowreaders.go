package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/cluster"
)

// The readers of measureSlowReaders.
const (
	slowReaders = 30
	// slowRate is how many bytes a reader takes in a second.
	slowRate = 1 << 20
	// slowLimit is the memory in MiB that a reader may cost.
	slowLimit = 2
	// slowSamples is how often the memory is measured while they read, a second apart.
	slowSamples = 6
)

// measureSlowReaders measures what the server holds for clients that list all pods and read a megabyte a second: the live heap for each of
// them. Each has a connection of its own; the kernel's socket buffers are not counted.
func measureSlowReaders(side, dir string, o options) ([]Row, error) {
	var c *cluster.Cluster
	var err error
	const flag = "--disable-admission-plugins=ServiceAccount"
	switch side {
	case "skiff":
		c, err = cluster.Skiff(dir, flag, "--profiling")
	case "upstream":
		c, err = cluster.UpstreamAPI(dir, "", flag)
	default:
		err = fmt.Errorf("unknown server %q", side)
	}
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	pods, err := b.client(protobufType)
	if err != nil {
		return nil, err
	}
	if err := b.parallel(b.Pods, func(i int) error {
		_, err := pods.CoreV1().Pods("kube-public").Create(context.Background(), pod(fmt.Sprintf("list-%d", i)), metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	for _, contentType := range []string{jsonType, protobufType} {
		name := map[string]string{protobufType: "protobuf", jsonType: "json"}[contentType]
		if err := b.measureReaders(name, contentType); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.rows, nil
}

func (b *bench) measureReaders(name, contentType string) error {
	fast, err := b.rawClient(true)
	if err != nil {
		return err
	}
	defer fast.CloseIdleConnections()
	if err := b.list(fast, contentType, 0); err != nil { // what is made once is made before
		return err
	}
	before, err := b.liveHeap(fast)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, slowReaders)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range slowReaders {
		readers.Go(func() { failed <- b.readSlowly(ctx, contentType) })
	}
	most := before
	for range slowSamples {
		select {
		case err := <-failed:
			return fmt.Errorf("a reader has failed: %w", err)
		case <-time.After(time.Second):
		}
		now, err := b.liveHeap(fast)
		if err != nil {
			return err
		}
		most = max(most, now)
	}
	b.rows = append(b.rows, Row{
		Name: fmt.Sprintf("list %d pods, %s, read at 1 MB/s: live heap per reader", b.Pods, name), Unit: "MiB",
		Value: (most - before) / slowReaders / (1 << 20), Goal: 1, Limit: slowLimit,
	})
	return nil
}

// readSlowly lists all pods, again and again, until ctx is done.
func (b *bench) readSlowly(ctx context.Context, contentType string) error {
	client, err := b.rawClient(true)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.config.Host+"/api/v1/namespaces/kube-public/pods", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", contentType)
	const parts = 10 // a second
	ticks := time.NewTicker(time.Second / parts)
	defer ticks.Stop()
	for {
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		for err == nil {
			<-ticks.C
			_, err = io.CopyN(io.Discard, resp.Body, slowRate/parts)
		}
		resp.Body.Close()
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// liveHeap is the heap in bytes after a garbage collection.
func (b *bench) liveHeap(client *http.Client) (float64, error) {
	if _, err := b.get(client, "/debug/pprof/heap?gc=1"); err != nil {
		return 0, err
	}
	metrics, err := b.get(client, "/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics))
	if err != nil {
		return 0, err
	}
	found := families["go_memstats_heap_alloc_bytes"].GetMetric()
	if len(found) != 1 {
		return 0, errors.New("the server has no metric go_memstats_heap_alloc_bytes")
	}
	return found[0].GetGauge().GetValue(), nil
}

func (b *bench) get(client *http.Client, path string) ([]byte, error) {
	resp, err := client.Get(b.config.Host + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return body, err
}
