package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
)

// configz serves the kubelet's configuration.
func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	respondJSON(w, map[string]any{"kubeletconfig": s.Configuration})
}

// hostLogs serves the files below LogDir. A symbolic link that leads out of it is not followed.
func (s *Server) hostLogs(w http.ResponseWriter, r *http.Request) {
	if s.LogDir == "" {
		http.Error(w, "logs endpoint is disabled.", http.StatusMethodNotAllowed)
		return
	}
	root, err := os.OpenRoot(s.LogDir)
	if err != nil {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	defer root.Close()
	http.StripPrefix("/logs/", http.FileServerFS(root.FS())).ServeHTTP(w, r)
}

// runningPods lists the pods that the container runtime runs, as far as it has them.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := listRunning(r.Context(), s.Runtime)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	respondPods(w, pods)
}

func listRunning(ctx context.Context, runtime *cri.Runtime) ([]*corev1.Pod, error) {
	sandboxes, err := runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := runtime.ListContainers(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	pods := map[types.UID]*corev1.Pod{}
	owner := map[string]*corev1.Pod{} // by sandbox
	for _, sandbox := range sandboxes {
		pod := pods[sandbox.UID]
		if pod == nil {
			pod = &corev1.Pod{}
			pod.UID, pod.Namespace, pod.Name = sandbox.UID, sandbox.Namespace, sandbox.Name
		}
		owner[sandbox.ID] = pod
		if sandbox.Ready {
			pods[sandbox.UID] = pod
		}
	}
	for _, c := range containers {
		if pod := owner[c.SandboxID]; pod != nil && c.State == cri.Running {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
			pods[pod.UID] = pod
		}
	}
	return slices.SortedFunc(maps.Values(pods), func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	}), nil
}

// checkpoint writes the state of a container to a file in CheckpointDir.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	pod, ok := s.Pods.Pod(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	name := r.PathValue("container")
	if !hasContainer(pod, name) {
		http.Error(w, fmt.Sprintf("container %s does not exist", name), http.StatusNotFound)
		return
	}
	var timeout time.Duration
	if values := r.URL.Query()["timeout"]; len(values) > 0 {
		// The last of several counts.
		seconds, err := strconv.ParseInt(values[len(values)-1], 10, 32)
		if err != nil || seconds < 0 {
			http.Error(w, "cannot parse value of timeout parameter", http.StatusNotFound)
			return
		}
		timeout = time.Duration(seconds) * time.Second
	}
	file, err := s.checkpointContainer(r.Context(), pod, name, timeout)
	if err != nil {
		http.Error(w, fmt.Sprintf("checkpointing of %s/%s/%s failed (%v)", pod.Namespace, pod.Name, name, err), http.StatusInternalServerError)
		return
	}
	respondJSON(w, map[string][]string{"items": {file}})
}

func (s *Server) checkpointContainer(ctx context.Context, pod *corev1.Pod, name string, timeout time.Duration) (string, error) {
	observed, err := s.Runtime.ReadPod(ctx, pod.UID)
	if err != nil {
		return "", err
	}
	c := observed.Container(name)
	if c == nil {
		return "", fmt.Errorf("container %s not found", name)
	}
	// A checkpoint has the memory of the container.
	if err := os.MkdirAll(s.CheckpointDir, 0o700); err != nil {
		return "", fmt.Errorf("create directory of checkpoints: %w", err)
	}
	file := filepath.Join(s.CheckpointDir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, name, time.Now().Format(time.RFC3339)))
	return file, s.Runtime.CheckpointContainer(ctx, c.ID, file, timeout)
}
