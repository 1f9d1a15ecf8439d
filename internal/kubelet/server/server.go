// Package server is the kubelet's HTTPS API, used mostly by the API server: container logs, streaming sessions (exec,
// attach, port-forward), connections to pods, the list of pods and their usage, the kubelet's configuration and the host's logs. Requests are authenticated and authorized by a filter in front
// of it (skiff/internal/delegated), see Access.
package server

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/container"
	"skiff/internal/delegated"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/usage"
)

// Pods are the pods of the node.
type Pods interface {
	Pods() []*corev1.Pod
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// Server serves the kubelet's API.
type Server struct {
	Pods    Pods
	Runtime *cri.Runtime
	Usage   *usage.Usage
	// Probes has the probe metrics.
	Probes prometheus.Gatherer
	// Configuration is the kubelet's configuration.
	Configuration runtime.Object
	// LogDir is the directory of the host's logs; empty: they are not served.
	LogDir string
	// CheckpointDir is the directory that checkpoints of containers are written to.
	CheckpointDir string
	Log           *slog.Logger

	// podConnections counts the connections to pods.
	podConnections atomic.Int32
}

// Paths returns the handlers by pattern.
func (s *Server) Paths() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /pods":             http.HandlerFunc(s.pods),
		"GET /runningpods/":     http.HandlerFunc(s.runningPods),
		"GET /configz":          http.HandlerFunc(s.configz),
		"GET /logs/":            http.HandlerFunc(s.hostLogs),
		"GET /stats/summary":    http.HandlerFunc(s.summary),
		"GET /metrics/resource": metrics(usage.ResourceMetrics{Usage: s.Usage}),
		"GET /metrics/cadvisor": metrics(usage.CadvisorMetrics{Usage: s.Usage}),
		"GET /metrics/probes":   promhttp.HandlerFor(s.Probes, promhttp.HandlerOpts{}),
		"GET /containerLogs/{namespace}/{pod}/{container}": http.HandlerFunc(s.containerLogs),
		"POST /checkpoint/{namespace}/{pod}/{container}":   http.HandlerFunc(s.checkpoint),
		"POST /connect/{namespace}/{pod}":                  http.HandlerFunc(s.connect),
		"/run/{namespace}/{pod}/{container}":               http.HandlerFunc(s.run),
		"/portForward/{namespace}/{pod}":                   http.HandlerFunc(s.portForward),
		"/portForward/{namespace}/{pod}/{uid}":             http.HandlerFunc(s.portForward),
		"/exec/{namespace}/{pod}/{container}":              http.HandlerFunc(s.exec),
		"/exec/{namespace}/{pod}/{uid}/{container}":        http.HandlerFunc(s.exec),
		"/attach/{namespace}/{pod}/{container}":            http.HandlerFunc(s.attach),
		"/attach/{namespace}/{pod}/{uid}/{container}":      http.HandlerFunc(s.attach),
	}
}

// metrics serves a collector's metrics.
func metrics(c prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	only := r.URL.Query().Get("only_cpu_and_memory")
	summary, err := s.Usage.Summary(r.Context(), only != "" && only != "false")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	respondJSON(w, summary)
}

func respondJSON(w http.ResponseWriter, value any) {
	body, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// kubeletPaths maps paths to the subresources of nodes that authorize them. All other paths need nodes/proxy.
var kubeletPaths = []struct {
	path, subresource string
	// orProxy is set if nodes/proxy authorizes the path as well.
	orProxy bool
}{
	{"/pods", "pods", true},
	{"/runningpods", "pods", true},
	{"/healthz", "healthz", true},
	{"/configz", "configz", true},
	{"/stats", "stats", false},
	{"/metrics", "metrics", false},
	{"/logs", "log", false},
	{"/checkpoint", "checkpoint", false},
	{"/exec", "exec", true},
	{"/attach", "attach", true},
	{"/portForward", "portforward", true},
	{"/run", "exec", true},
}

// Access returns the attributes that authorize a request; any one of them suffices. Streaming sessions always need the
// verb create, whatever the method: a WebSocket upgrade is a GET, and read access must not allow it.
func Access(node string) func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	return func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
		verb, subresources := delegated.Verb(r), []string{"proxy"}
		for _, action := range kubeletPaths {
			if r.URL.Path != action.path && !strings.HasPrefix(r.URL.Path, action.path+"/") {
				continue
			}
			subresources = []string{action.subresource}
			if action.orProxy {
				subresources = append(subresources, "proxy")
			}
			if slices.Contains([]string{"exec", "attach", "portforward"}, action.subresource) {
				verb = "create"
			}
		}
		var specs []authorizationv1.SubjectAccessReviewSpec
		for _, subresource := range subresources {
			specs = append(specs, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: node,
			}})
		}
		return specs
	}
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) { respondPods(w, s.Pods.Pods()) }

func respondPods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := corev1.PodList{Items: []corev1.Pod{}}
	list.Kind, list.APIVersion = "PodList", "v1"
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	respondJSON(w, &list)
}

// findPod returns the pod a request names, and checks its container. It responds to the request if they do not exist.
func (s *Server) findPod(w http.ResponseWriter, r *http.Request) (*corev1.Pod, bool) {
	name, containerName := r.PathValue("pod"), r.PathValue("container")
	pod, ok := s.Pods.Pod(r.PathValue("namespace"), name)
	if uid := r.PathValue("uid"); ok && uid != "" && string(pod.UID) != uid {
		ok = false
	}
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return nil, false
	}
	if containerName == "" || hasContainer(pod, containerName) {
		return pod, true
	}
	http.Error(w, "container not found in pod", http.StatusNotFound)
	return nil, false
}

// hasContainer reports whether a container of a pod has the name.
func hasContainer(pod *corev1.Pod, name string) bool {
	for _, c := range container.All(&pod.Spec) {
		if c.Name == name {
			return true
		}
	}
	return false
}
