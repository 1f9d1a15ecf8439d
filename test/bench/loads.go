package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// bench is a running measurement of one server.
type bench struct {
	options
	cluster *cluster.Cluster
	config  *rest.Config
	rows    []Row
}

func newBench(c *cluster.Cluster, o options) (*bench, error) {
	config, err := c.Config()
	return &bench{options: o, cluster: c, config: config}, err
}

func (b *bench) add(name string, value float64, unit string, goal float64) {
	b.rows = append(b.rows, Row{Name: name, Value: value, Unit: unit, Goal: goal})
}

// client is a client-go client that uses contentType.
func (b *bench) client(contentType string) (*clientset.Clientset, error) {
	config := rest.CopyConfig(b.config)
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	return clientset.NewForConfig(config)
}

// cpu runs f and returns the server's CPU and the wall time it took.
func (b *bench) cpu(name string, f func() error) (used, wall time.Duration, err error) {
	if b.Profiles != "" && b.cluster.Name == "skiff" {
		done := b.profile(name)
		defer func() { err = errors.Join(err, <-done) }()
	}
	before, err := b.cluster.CPU()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, 0, err
	}
	wall = time.Since(began)
	after, err := b.cluster.CPU()
	return after - before, wall, err
}

// profile fetches a CPU profile of the server for a few seconds while the load runs.
func (b *bench) profile(name string) <-chan error {
	done := make(chan error, 1)
	go func() {
		data, err := func() ([]byte, error) {
			client, err := b.rawClient(true)
			if err != nil {
				return nil, err
			}
			defer client.CloseIdleConnections()
			resp, err := client.Get(b.config.Host + "/debug/pprof/profile?seconds=2")
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			return io.ReadAll(resp.Body)
		}()
		if err == nil {
			file := strings.NewReplacer(" ", "-", ",", "").Replace(name) + ".pprof"
			err = os.WriteFile(filepath.Join(b.Profiles, file), data, 0o644)
		}
		done <- err
	}()
	// Start the profile before the load.
	time.Sleep(100 * time.Millisecond)
	return done
}

func measureStart(b *bench) error {
	b.add("exec to readyz", float64(b.cluster.Ready.Milliseconds()), "ms", 1./4)
	time.Sleep(15 * time.Second)
	n, err := b.cluster.Resident()
	b.add("resident memory, idle", float64(n)/(1<<20), "MiB", 1./3)
	return err
}

// measureWrites creates and updates config maps and pods, in JSON and in protobuf.
func measureWrites(b *bench) error {
	for _, contentType := range []string{protobufType, jsonType} {
		short := map[string]string{protobufType: "protobuf", jsonType: "json"}[contentType]
		c, err := b.client(contentType)
		if err != nil {
			return err
		}
		configMaps := c.CoreV1().ConfigMaps("default")
		pods := c.CoreV1().Pods("default")
		ctx := context.Background()
		// A few writes first, so that connections and caches are warm on both sides.
		if err := b.parallel(50, func(i int) error {
			_, err := configMaps.Create(ctx, configMap(fmt.Sprintf("warm-%s-%d", short, i)), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		for _, step := range []struct {
			name string
			do   func(i int) error
		}{
			{"create configmap", func(i int) error {
				_, err := configMaps.Create(ctx, configMap(fmt.Sprintf("%s-%d", short, i)), metav1.CreateOptions{})
				return err
			}},
			{"update configmap", func(i int) error {
				cm := configMap(fmt.Sprintf("%s-%d", short, i))
				cm.Data["changed"] = "yes"
				_, err := configMaps.Update(ctx, cm, metav1.UpdateOptions{})
				return err
			}},
			{"create pod", func(i int) error {
				_, err := pods.Create(ctx, pod(fmt.Sprintf("%s-%d", short, i)), metav1.CreateOptions{})
				return err
			}},
			{"update pod", func(i int) error {
				p := pod(fmt.Sprintf("%s-%d", short, i))
				p.Labels["changed"] = "yes"
				_, err := pods.Update(ctx, p, metav1.UpdateOptions{})
				return err
			}},
		} {
			name := step.name + ", " + short
			used, wall, err := b.cpu(name, func() error { return b.parallel(b.Requests, step.do) })
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			b.add(name+": server CPU", float64(used.Microseconds())/float64(b.Requests), "µs", 1./4)
			b.rows = append(b.rows, Row{Name: name + ": throughput", Value: float64(b.Requests) / wall.Seconds(), Unit: "/s", Goal: 2.5, HigherIsBetter: true})
		}
	}
	return nil
}

// parallel calls do for 0..n-1 from the configured number of workers and stops at the first error.
func (b *bench) parallel(n int, do func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range b.Workers {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// measureLists creates pods up to the configured number and lists them whole and in pages.
func measureLists(b *bench) error {
	c, err := b.client(protobufType)
	if err != nil {
		return err
	}
	if err := b.parallel(b.Pods, func(i int) error {
		_, err := c.CoreV1().Pods("kube-public").Create(context.Background(), pod(fmt.Sprintf("list-%d", i)), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	for _, contentType := range []string{jsonType, protobufType} {
		for _, gzip := range []bool{false, true} {
			for _, page := range []int{0, 500} {
				name := fmt.Sprintf("list %d pods, %s", b.Pods, map[string]string{protobufType: "protobuf", jsonType: "json"}[contentType])
				if gzip {
					name += ", gzip"
				}
				if page > 0 {
					name += fmt.Sprintf(", pages of %d", page)
				}
				if err := b.measureList(name, contentType, gzip, page); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return nil
}

func (b *bench) measureList(name, contentType string, gzip bool, page int) error {
	client, err := b.rawClient(!gzip)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	once := func() error { return b.list(client, contentType, page) }
	if err := once(); err != nil {
		return err
	}
	used, _, err := b.cpu(name, func() error {
		for range b.Rounds {
			if err := once(); err != nil {
				return err
			}
		}
		return nil
	})
	b.add(name+": server CPU", float64(used.Microseconds())/1000/float64(b.Rounds), "ms", 1./10)
	return err
}

// list reads all pods and discards the bytes; only the continue token of a page is parsed.
func (b *bench) list(client *http.Client, contentType string, page int) error {
	token := ""
	for {
		url := b.config.Host + "/api/v1/namespaces/kube-public/pods"
		if page > 0 {
			url += fmt.Sprintf("?limit=%d&continue=%s", page, token)
		}
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", contentType)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		if page == 0 {
			return nil
		}
		if token, err = continueToken(body, contentType); err != nil || token == "" {
			return err
		}
	}
}

// continueToken finds the token in the list's metadata.
func continueToken(body []byte, contentType string) (string, error) {
	list := &corev1.PodList{}
	if contentType == protobufType {
		unknown := &runtime.Unknown{}
		if err := unknown.Unmarshal(body[4:]); err != nil {
			return "", err
		}
		if err := list.Unmarshal(unknown.Raw); err != nil {
			return "", err
		}
		return list.Continue, nil
	}
	var head struct {
		Metadata metav1.ListMeta `json:"metadata"`
	}
	err := json.Unmarshal(body, &head)
	return head.Metadata.Continue, err
}

// measureWatch sends events to many watchers, each with its own connection, and counts the events received.
func measureWatch(b *bench) error {
	for _, contentType := range []string{jsonType, protobufType} {
		short := map[string]string{protobufType: "protobuf", jsonType: "json"}[contentType]
		goal := map[string]float64{protobufType: 1. / 3, jsonType: 1. / 5}[contentType]
		if err := b.measureFanOut("watch by "+fmt.Sprint(b.Watchers)+", "+short, contentType, goal); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureFanOut(name, contentType string, goal float64) error {
	c, err := b.client(protobufType)
	if err != nil {
		return err
	}
	pods := c.CoreV1().Pods("kube-node-lease")
	list, err := pods.List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var seen atomic.Int64
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	for range b.Watchers {
		body, closeIdle, err := b.openWatch(ctx, contentType, list.ResourceVersion)
		if err != nil {
			return err
		}
		watchers.Go(func() {
			defer closeIdle()
			defer body.Close()
			countFrames(body, contentType, &seen)
		})
	}
	want := int64(b.Watchers) * int64(b.Events)
	used, wall, err := b.cpu(name, func() error {
		if err := b.parallel(b.Events, func(i int) error {
			_, err := pods.Create(ctx, pod(fmt.Sprintf("%s-%d", map[string]string{jsonType: "j", protobufType: "p"}[contentType], i)), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		for seen.Load() < want {
			if ctx.Err() != nil {
				return fmt.Errorf("%d of %d events arrived", seen.Load(), want)
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.add(name+": server CPU per event", float64(used.Nanoseconds())/1000/float64(want), "µs", goal)
	b.rows = append(b.rows, Row{Name: name + ": events delivered", Value: float64(want) / wall.Seconds(), Unit: "/s", Goal: 1, HigherIsBetter: true})
	return nil
}

func (b *bench) openWatch(ctx context.Context, contentType, version string) (io.ReadCloser, func(), error) {
	return b.watchPath(ctx, "/api/v1/namespaces/kube-node-lease/pods", contentType, version)
}

// watchPath opens a watch with a connection of its own.
func (b *bench) watchPath(ctx context.Context, path, contentType, version string) (io.ReadCloser, func(), error) {
	client, err := b.rawClient(true)
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		b.config.Host+path+"?watch=true&timeoutSeconds=600&resourceVersion="+version, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", contentType)
	if contentType == protobufType {
		req.Header.Set("Accept", contentType+";stream=watch")
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, nil, fmt.Errorf("watch: %s", resp.Status)
	}
	return resp.Body, client.CloseIdleConnections, nil
}

// countFrames counts watch events: lines in JSON, length-prefixed frames in protobuf.
func countFrames(r io.Reader, contentType string, seen *atomic.Int64) {
	buf := make([]byte, 64<<10)
	if contentType == jsonType {
		for {
			n, err := r.Read(buf)
			for _, c := range buf[:n] {
				if c == '\n' {
					seen.Add(1)
				}
			}
			if err != nil {
				return
			}
		}
	}
	var header [4]byte
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint32(header[:]))); err != nil {
			return
		}
		seen.Add(1)
	}
}

func measureMemory(b *bench) error {
	time.Sleep(5 * time.Second)
	n, err := b.cluster.Resident()
	b.add("resident memory, with all objects", float64(n)/(1<<20), "MiB", 1./3)
	return err
}

// rawClient is an HTTP client with the administrator's credentials and its own connections.
func (b *bench) rawClient(disableCompression bool) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(b.config)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true, DisableCompression: disableCompression}}, nil
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Data:       map[string]string{"config.yaml": "level: info\nlisten: 127.0.0.1:8080\nworkers: 8\n", "name": name},
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench", "tier": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "web",
			Image: "registry.example/web:1.2.3",
			Args:  []string{"--listen=:8080", "--verbose"},
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			Env:   []corev1.EnvVar{{Name: "MODE", Value: "production"}, {Name: "REGION", Value: "north"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/tmp"}},
		}},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}
