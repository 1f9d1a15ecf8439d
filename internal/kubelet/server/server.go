// Package server is what a kubelet answers over HTTPS, mostly to the API server: the logs of containers, sessions with them
// (exec, attach, port-forward), which pods there are, and what they use. Who may ask is decided by the gate in front of
// it (skiff/internal/delegated), by action: see Access.
package server

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/delegated"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/usage"
)

// Pods are those of the node.
type Pods interface {
	Pods() []*corev1.Pod
	Pod(namespace, name string) (*corev1.Pod, bool)
}

// Server answers questions about the pods of a node.
type Server struct {
	Pods    Pods
	Runtime *cri.Runtime
	Usage   *usage.Usage
	// Probes has the metrics of probes.
	Probes prometheus.Gatherer
	Log    *slog.Logger
}

// Paths are what the server answers.
func (s *Server) Paths() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /pods":             http.HandlerFunc(s.pods),
		"GET /stats/summary":    http.HandlerFunc(s.summary),
		"GET /metrics/resource": metrics(usage.ResourceMetrics{Usage: s.Usage}),
		"GET /metrics/cadvisor": metrics(usage.CadvisorMetrics{Usage: s.Usage}),
		"GET /metrics/probes":   promhttp.HandlerFor(s.Probes, promhttp.HandlerOpts{}),
		"GET /containerLogs/{namespace}/{pod}/{container}": http.HandlerFunc(s.containerLogs),
		"/run/{namespace}/{pod}/{container}":               http.HandlerFunc(s.run),
		"/portForward/{namespace}/{pod}":                   http.HandlerFunc(s.portForward),
		"/portForward/{namespace}/{pod}/{uid}":             http.HandlerFunc(s.portForward),
		"/exec/{namespace}/{pod}/{container}":              http.HandlerFunc(s.exec),
		"/exec/{namespace}/{pod}/{uid}/{container}":        http.HandlerFunc(s.exec),
		"/attach/{namespace}/{pod}/{container}":            http.HandlerFunc(s.attach),
		"/attach/{namespace}/{pod}/{uid}/{container}":      http.HandlerFunc(s.attach),
	}
}

// metrics shows what a collector collects.
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

// actions are the paths that have an action of their own, and its name below nodes; any other path is nodes/proxy.
var actions = []struct {
	path, subresource string
	// also says that whoever may do everything (nodes/proxy) may do this too.
	also bool
}{
	{"/pods", "pods", true},
	{"/healthz", "healthz", true},
	{"/configz", "configz", true},
	{"/stats", "stats", false},
	{"/metrics", "metrics", false},
	{"/logs", "log", false},
	{"/exec", "exec", true},
	{"/attach", "attach", true},
	{"/portForward", "portforward", true},
	{"/run", "exec", true},
}

// Access says what a request asks for: any of the answers will do. To enter a container is to create something there,
// whatever the method: a WebSocket can only GET, and whoever may only look must not come in by one.
func Access(node string) func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
	return func(r *http.Request) []authorizationv1.SubjectAccessReviewSpec {
		verb, subresources := delegated.Verb(r), []string{"proxy"}
		for _, action := range actions {
			if r.URL.Path != action.path && !strings.HasPrefix(r.URL.Path, action.path+"/") {
				continue
			}
			subresources = []string{action.subresource}
			if action.also {
				subresources = append(subresources, "proxy")
			}
			if slices.Contains([]string{"exec", "attach", "portforward"}, action.subresource) {
				verb = "create"
			}
		}
		var asked []authorizationv1.SubjectAccessReviewSpec
		for _, subresource := range subresources {
			asked = append(asked, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: node,
			}})
		}
		return asked
	}
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{Items: []corev1.Pod{}}
	list.Kind, list.APIVersion = "PodList", "v1"
	for _, pod := range s.Pods.Pods() {
		list.Items = append(list.Items, *pod)
	}
	respondJSON(w, &list)
}

// find finds the pod and checks the container that a request names. It answers when they are not there.
func (s *Server) find(w http.ResponseWriter, r *http.Request) (*corev1.Pod, bool) {
	name, wanted := r.PathValue("pod"), r.PathValue("container")
	pod, ok := s.Pods.Pod(r.PathValue("namespace"), name)
	if uid := r.PathValue("uid"); ok && uid != "" && string(pod.UID) != uid {
		ok = false
	}
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return nil, false
	}
	if wanted == "" {
		return pod, true
	}
	for _, c := range container.All(&pod.Spec) {
		if c.Name == wanted {
			return pod, true
		}
	}
	http.Error(w, "container not found in pod", http.StatusNotFound)
	return nil, false
}
