package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// benchPod is about as large as pods in clusters are.
func benchPod(i int) *corev1.Pod {
	p := pod(fmt.Sprint("ns-", i%20), fmt.Sprintf("web-6f7c9d7f4-%05d", i), fmt.Sprint("node-", i%100), "app=web", "pod-template-hash=6f7c9d7f4", "tier=front")
	p.Annotations = map[string]string{"kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z", "prometheus.io/scrape": "true"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6f7c9d7f4", UID: "7d7c1a44-8d50-4f0f-9d0b-4a4d8b4c0f1e"}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{},"f:terminationMessagePath":{}}},"f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{}}}`)},
	}}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}}
	p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}}},
	}}}}
	p.Status.PodIP, p.Status.HostIP = fmt.Sprintf("10.0.%d.%d", i/250, i%250), "192.168.1.1"
	p.Status.Conditions = []corev1.PodCondition{{Type: "Initialized", Status: "True"}, {Type: "Ready", Status: "True"}, {Type: "ContainersReady", Status: "True"}, {Type: "PodScheduled", Status: "True"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: true, Image: "busybox", ImageID: "docker.io/library/busybox@sha256:" + strings.Repeat("ab", 32), ContainerID: "containerd://" + strings.Repeat("cd", 32)}}
	return p
}

// discard is a client that reads at once and keeps nothing.
type discard struct {
	header http.Header
	bytes  atomic.Int64
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Flush()              {}
func (d *discard) Write(p []byte) (int, error) {
	d.bytes.Add(int64(len(p)))
	return len(p), nil
}

func benchRequest(ctx context.Context, path string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	r.Header.Set("Authorization", "Bearer admin")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	return r
}

func BenchmarkGet(b *testing.B) {
	s := newTestServer(b)
	s.add("pods", benchPod(1))
	handler := s.Handler()
	for name, accept := range map[string]string{"json": mediaJSON, "protobuf": mediaProtobuf} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := benchRequest(context.Background(), "/api/v1/namespaces/ns-1/pods/web-6f7c9d7f4-00001", "Accept: "+accept)
			for b.Loop() {
				r.Header.Set("Authorization", "Bearer admin")
				handler.ServeHTTP(&discard{header: make(http.Header, 8)}, r)
			}
		})
	}
}

func BenchmarkList(b *testing.B) {
	s := newTestServer(b)
	for i := range 10000 {
		s.add("pods", benchPod(i))
	}
	handler := s.Handler()
	tests := []struct {
		name, path string
		headers    []string
	}{
		{"json", "/api/v1/pods", []string{"Accept: " + mediaJSON}},
		{"protobuf", "/api/v1/pods", []string{"Accept: " + mediaProtobuf}},
		{"json gzip", "/api/v1/pods", []string{"Accept: " + mediaJSON, "Accept-Encoding: gzip"}},
		{"protobuf gzip", "/api/v1/pods", []string{"Accept: " + mediaProtobuf, "Accept-Encoding: gzip"}},
		{"metadata", "/api/v1/pods", []string{"Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}},
		{"table of 500", "/api/v1/pods?limit=500", []string{kubectlAccept}},
		{"by label", "/api/v1/pods?labelSelector=app%3Ddb", []string{"Accept: " + mediaProtobuf}},
		{"by field", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-7", []string{"Accept: " + mediaProtobuf}},
		{"namespace", "/api/v1/namespaces/ns-3/pods", []string{"Accept: " + mediaProtobuf}},
	}
	for _, test := range tests {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			r := benchRequest(context.Background(), test.path, test.headers...)
			var size int64
			handler.ServeHTTP(&discard{header: make(http.Header, 8)}, r) // what is made once is made here
			for b.Loop() {
				r.Header.Set("Authorization", "Bearer admin")
				w := &discard{header: make(http.Header, 8)}
				handler.ServeHTTP(w, r)
				size = w.bytes.Load()
			}
			b.ReportMetric(float64(size), "bytes/answer")
		})
	}
}

// BenchmarkGzipWhole is what packing is measured against: one compressor over the whole answer.
func BenchmarkGzipWhole(b *testing.B) {
	s := newTestServer(b)
	for i := range 10000 {
		s.add("pods", benchPod(i))
	}
	body := s.get("/api/v1/pods", "Accept: "+mediaJSON).body
	b.ResetTimer()
	var size int64
	for b.Loop() {
		w := &discard{header: make(http.Header, 8)}
		req := &request{Request: benchRequest(context.Background(), "/", "Accept-Encoding: gzip"), w: &responseWriter{ResponseWriter: w}}
		_ = s.writeBody(req, 200, mediaJSON, body)
		size = w.bytes.Load()
	}
	b.ReportMetric(float64(size), "bytes/answer")
}

// BenchmarkWatch sends every change to 200 watchers. The time is that of a change under load, its delivery to all
// of them included.
func BenchmarkWatch(b *testing.B) {
	for _, test := range []struct{ name, accept, query string }{
		{"json", mediaJSON, ""}, {"protobuf", mediaProtobuf, ""}, {"by field", mediaProtobuf, "&fieldSelector=spec.nodeName%3Dnode-1"},
	} {
		b.Run(test.name, func(b *testing.B) {
			s := newTestServer(b)
			s.add("pods", benchPod(1))
			ctx, cancel := context.WithCancel(context.Background())
			const watchers = 200
			var running sync.WaitGroup
			for range watchers {
				running.Go(func() {
					r := benchRequest(ctx, "/api/v1/pods?watch=true"+test.query, "Accept: "+test.accept)
					s.Handler().ServeHTTP(&discard{header: make(http.Header, 8)}, r)
				})
			}
			delivered := func(events int) {
				for s.deliveredEvents(b, "pods") < events {
					time.Sleep(100 * time.Microsecond)
				}
			}
			delivered(watchers) // the pod that is there
			b.ResetTimer()
			b.ReportAllocs()
			for i := range b.N {
				s.change("pods", "ns-1", "web-6f7c9d7f4-00001", func(obj kind.Object) { obj.SetGeneration(int64(i + 5)) })
			}
			delivered(watchers * (b.N + 1))
			b.StopTimer()
			cancel()
			running.Wait()
		})
	}
}

// deliveredEvents is how many events the watchers of a resource have been sent.
func (s *testServer) deliveredEvents(b *testing.B, resource string) int {
	var m dto.Metric
	if err := s.find(resource).metrics.watchSeries().events.Write(&m); err != nil {
		b.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// BenchmarkRequestOverHTTP is a whole GET over a connection of its own kind, client included.
func BenchmarkRequestOverHTTP(b *testing.B) {
	s := newTestServer(b)
	s.add("pods", benchPod(1))
	b.ReportAllocs()
	for b.Loop() {
		req, _ := http.NewRequest("GET", s.http.URL+"/api/v1/namespaces/ns-1/pods/web-6f7c9d7f4-00001", nil)
		req.Header.Set("Authorization", "Bearer admin")
		req.Header.Set("Accept", mediaProtobuf)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
