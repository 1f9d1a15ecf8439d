package server

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// request returns the status and the body of a response.
func request(t *testing.T, method, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestConfigz(t *testing.T) {
	configuration := &kubeletconfig.KubeletConfiguration{MaxPods: 42}
	configuration.SetGroupVersionKind(kubeletconfig.SchemeGroupVersion.WithKind("KubeletConfiguration"))
	config, _ := newKubelet(t, func(s *Server) { s.Configuration = configuration })
	status, body := request(t, http.MethodGet, config.Host+"/configz")
	var got struct {
		KubeletConfig kubeletconfig.KubeletConfiguration `json:"kubeletconfig"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	if c := got.KubeletConfig; c.MaxPods != 42 || c.Kind != "KubeletConfiguration" || c.APIVersion != "kubelet.config.k8s.io/v1beta1" {
		t.Errorf("configuration %s", body)
	}
}

// TestHostLogs: files below the directory of logs are served, others are not.
func TestHostLogs(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "log")
	for path, text := range map[string]string{"log/messages": "one\ntwo\n", "log/pods/a.log": "of a pod\n", "secret": "secret"} {
		path = filepath.Join(parent, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"escape": "../secret", "absolute": filepath.Join(parent, "secret"), "inside": "pods/a.log"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	config, _ := newKubelet(t, func(s *Server) { s.LogDir = dir })
	for _, row := range []struct {
		path   string
		status int
		text   string
	}{
		{"/logs/", http.StatusOK, "messages"},
		{"/logs/messages", http.StatusOK, "one\ntwo\n"},
		{"/logs/pods/a.log", http.StatusOK, "of a pod\n"},
		{"/logs/inside", http.StatusOK, "of a pod\n"},
		{"/logs/absent", http.StatusNotFound, ""},
		{"/logs/escape", http.StatusInternalServerError, ""},
		{"/logs/absolute", http.StatusInternalServerError, ""},
		{"/logs/..%2fsecret", http.StatusNotFound, ""},
	} {
		status, body := request(t, http.MethodGet, config.Host+row.path)
		if status != row.status || !strings.Contains(body, row.text) || strings.Contains(body, "secret") && row.path != "/logs/" {
			t.Errorf("%s: %d %q, want %d %q", row.path, status, body, row.status, row.text)
		}
	}
	if status, _ := request(t, http.MethodPost, config.Host+"/logs/messages"); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
	config, _ = newKubelet(t)
	if status, body := request(t, http.MethodGet, config.Host+"/logs/"); status != http.StatusMethodNotAllowed || body != "logs endpoint is disabled.\n" {
		t.Errorf("disabled: %d %q", status, body)
	}
}

func TestRunningPods(t *testing.T) {
	config, _ := newKubelet(t)
	status, body := request(t, http.MethodGet, config.Host+"/runningpods/")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK || list.Kind != "PodList" || len(list.Items) != 1 {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	pod := list.Items[0]
	if pod.Name != "p" || pod.Namespace != "ns" || pod.UID != "u" || len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != "c" || pod.Spec.Containers[0].Image != "image" {
		t.Errorf("pod %s", body)
	}
}

func TestCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	config, id := newKubelet(t, func(s *Server) { s.CheckpointDir = dir })
	status, body := request(t, http.MethodPost, config.Host+"/checkpoint/ns/p/c?timeout=7")
	var made struct{ Items []string }
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != http.StatusOK || len(made.Items) != 1 {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	if file := made.Items[0]; !strings.HasPrefix(file, filepath.Join(dir, "checkpoint-p_ns-c-")) || !strings.HasSuffix(file, ".tar") {
		t.Errorf("file %s", file)
	} else if data, err := os.ReadFile(file); err != nil || string(data) != id {
		t.Errorf("checkpoint of %q, %v; want that of %q", data, err, id)
	}
	for _, row := range []struct {
		method, path string
		status       int
		text         string
	}{
		{http.MethodPost, "/checkpoint/ns/other/c", http.StatusNotFound, "pod does not exist"},
		{http.MethodPost, "/checkpoint/ns/p/other", http.StatusNotFound, "container other does not exist"},
		{http.MethodPost, "/checkpoint/ns/p/c?timeout=x", http.StatusNotFound, "cannot parse value of timeout parameter"},
		{http.MethodPost, "/checkpoint/ns/p/late", http.StatusInternalServerError, "checkpointing of ns/p/late failed (container late not found)"},
		{http.MethodGet, "/checkpoint/ns/p/c", http.StatusMethodNotAllowed, ""},
	} {
		if status, body := request(t, row.method, config.Host+row.path); status != row.status || !strings.Contains(body, row.text) {
			t.Errorf("%s %s: %d %q, want %d %q", row.method, row.path, status, body, row.status, row.text)
		}
	}
}
