package node

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/images"
	"skiff/test/registry"
)

// fakeRecorder records events, one line each.
type fakeRecorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *fakeRecorder) EventWithFieldPath(_ kind.Object, _, eventType, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, eventType+" "+reason+" "+message)
}

func (r *fakeRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

func podWith(name, image string, policy corev1.PullPolicy, secrets ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: policy}}},
	}
	for _, s := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return pod
}

func TestPullFromARegistry(t *testing.T) {
	open, err := registry.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer open.Stop()
	private, err := registry.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer private.Stop()
	private.User, private.Password = "user", "secret"
	for _, r := range []*registry.Registry{open, private} {
		if err := r.AddImage("team/app:1", map[string]string{"app": "#!/bin/sh\n" + r.Host}, "/app"); err != nil {
			t.Fatal(err)
		}
	}
	// An unused port.
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()

	dataDir := shortDir(t)
	// Registries with special configuration.
	if err := open.StandIn(dataDir+"/registries", "example.org"); err != nil {
		t.Fatal(err)
	}
	c := start(t, dataDir)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "login", UID: "login"}, Type: corev1.SecretTypeDockerConfigJson}
	data, err := json.Marshal(map[string]any{"auths": map[string]any{private.Host: map[string]string{"username": "user", "password": "secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{corev1.DockerConfigJsonKey: data}
	events := &fakeRecorder{}
	i, err := images.New(images.Options{
		Runtime: cri.New(c.client), Events: events, Parallel: 2, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Secret: func(_, name string) (*corev1.Secret, error) { return secret, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, image      string
		policy           corev1.PullPolicy
		secrets          []string
		reason, contains string // of the error
		events           []string
		requests         int // for the manifest
	}{
		{name: "pull", image: open.Host + "/team/app:1", policy: corev1.PullIfNotPresent, events: []string{"Pulling", "Pulled"}, requests: 2},
		{name: "present", image: open.Host + "/team/app:1", policy: corev1.PullIfNotPresent, events: []string{"Pulled"}},
		{name: "present, always", image: open.Host + "/team/app:1", policy: corev1.PullAlways, events: []string{"Pulling", "Pulled"}, requests: 1},
		{name: "a registry that is served by another", image: "example.org/team/app:1", policy: corev1.PullIfNotPresent, events: []string{"Pulling", "Pulled"}, requests: 1},
		{name: "no such tag", image: open.Host + "/team/app:2", policy: corev1.PullIfNotPresent, reason: "ErrImagePull", contains: "not found",
			events: []string{"Pulling", "Failed"}, requests: 1},
		{name: "no secret", image: private.Host + "/team/app:1", policy: corev1.PullIfNotPresent, reason: "ErrImagePull", contains: "pull access denied",
			events: []string{"Pulling", "Failed"}},
		{name: "secret", image: private.Host + "/team/app:1", policy: corev1.PullIfNotPresent, secrets: []string{"login"}, events: []string{"Pulling", "Pulled"}, requests: 2},
		{name: "secret, present", image: private.Host + "/team/app:1", policy: corev1.PullIfNotPresent, secrets: []string{"login"}, events: []string{"Pulled"}},
		{name: "present, but for those with the secret", image: private.Host + "/team/app:1", policy: corev1.PullIfNotPresent, reason: "ErrImagePull", contains: "pull access denied",
			events: []string{"Pulling", "Failed"}},
		{name: "no registry", image: gone.Addr().String() + "/team/app:1", policy: corev1.PullIfNotPresent, reason: "ErrImagePull", contains: "connection refused",
			events: []string{"Pulling", "Failed"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := podWith(row.name, row.image, row.policy, row.secrets...)
			ref, err := i.Ensure(t.Context(), pod, &pod.Spec.Containers[0], nil)
			if row.reason == "" {
				if err != nil || !strings.HasPrefix(ref, "sha256:") {
					t.Errorf("reference %q, error %v", ref, err)
				}
			} else if e, ok := err.(*images.Error); !ok || e.Reason != row.reason || !strings.Contains(e.Message, row.contains) {
				t.Errorf("error %v, want %s with %q", err, row.reason, row.contains)
			}
			var reasons []string
			for _, line := range events.take() {
				reasons = append(reasons, strings.Fields(line)[1])
			}
			if !reflect.DeepEqual(reasons, row.events) {
				t.Errorf("events %v, want %v", reasons, row.events)
			}
			if requests := append(open.Requests(), private.Requests()...); len(requests) != row.requests {
				t.Errorf("requests %q, want %d", requests, row.requests)
			}
		})
	}
}

func TestManyPodsOnePull(t *testing.T) {
	r, err := registry.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	r.Delay = 300 * time.Millisecond
	if err := r.AddImage("team/app:1", map[string]string{"app": "x"}, "/app"); err != nil {
		t.Fatal(err)
	}
	c := start(t, shortDir(t))
	i, err := images.New(images.Options{Runtime: cri.New(c.client), Events: &fakeRecorder{}, Parallel: 1, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for n := range 5 {
		group.Go(func() {
			pod := podWith(strings.Repeat("p", n+1), r.Host+"/team/app:1", corev1.PullAlways)
			if _, err := i.Ensure(context.Background(), pod, &pod.Spec.Containers[0], nil); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if requests := r.Requests(); len(requests) != 2 {
		t.Errorf("five pods made %q, want one HEAD and one GET", requests)
	}
}

func TestCollectorRemovesFromContainerd(t *testing.T) {
	r, err := registry.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	if err := r.AddImage("team/app:1", map[string]string{"app": "x"}, "/app"); err != nil {
		t.Fatal(err)
	}
	c := start(t, shortDir(t))
	discard := slog.New(slog.NewTextHandler(io.Discard, nil))
	i, err := images.New(images.Options{Runtime: cri.New(c.client), Events: &fakeRecorder{}, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	pod := podWith("p", r.Host+"/team/app:1", corev1.PullAlways)
	if _, err := i.Ensure(t.Context(), pod, &pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	collector := &images.Collector{Store: cri.New(c.client), Images: i, Log: discard}
	// A real disk is never this full: nothing is removed.
	collector.Policy = images.Policy{HighPercent: 100, LowPercent: 100}
	if err := collector.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		t.Helper()
		list, err := c.client.ListImages(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := count(); n != 2 {
		t.Errorf("%d images, want the pulled one and pause", n)
	}
	if err := collector.DeleteUnused(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d images left, want pause alone", n)
	}
}
