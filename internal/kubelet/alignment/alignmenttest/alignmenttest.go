// Package alignmenttest has what tests of resources that are aligned with NUMA nodes share.
package alignmenttest

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/alignment"
)

// Pods are the pods of a node, which a test sets.
type Pods struct {
	mu         sync.Mutex
	pods       []*corev1.Pod
	incomplete bool
}

// Set replaces the pods.
func (p *Pods) Set(pods ...*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = pods
}

// SetIncomplete sets whether pods may be missing in the list.
func (p *Pods) SetIncomplete(incomplete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.incomplete = incomplete
}

// List returns the pods.
func (p *Pods) List() []*corev1.Pod {
	pods, _ := p.Active()
	return pods
}

// Active returns the pods, and whether they are all.
func (p *Pods) Active() ([]*corev1.Pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods, !p.incomplete
}

// Admit adds a pod and allocates the resources of its containers.
func (p *Pods) Admit(provider alignment.Provider, pod *corev1.Pod, hint alignment.Hint) error {
	p.mu.Lock()
	p.pods = append(slices.Clone(p.pods), pod)
	p.mu.Unlock()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := provider.Allocate(context.Background(), pod, &list[i], hint); err != nil {
				return err
			}
		}
	}
	return nil
}

// Container is a container whose limits are its requests.
func Container(name string, requests corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests.DeepCopy()}}
}

// Sidecar makes an init container a sidecar.
func Sidecar(c corev1.Container) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

// Pod is a pod whose UID is its name.
func Pod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: containers}}
}

// WithInit gives a pod init containers.
func WithInit(p *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
	p.Spec.InitContainers = containers
	return p
}

// Checkpoint is a checkpoint file that a kubelet finds when it starts.
type Checkpoint struct{ Path, Text string }

// Restore writes the file and calls start, which reads it, and must fail with an error that contains failure, if that is not empty. It reports whether start
// had to succeed.
func (c Checkpoint) Restore(t *testing.T, failure string, start func() error) bool {
	t.Helper()
	if err := os.WriteFile(c.Path, []byte(c.Text), 0o600); err != nil {
		t.Fatal(err)
	}
	err := start()
	if failure == "" && err != nil {
		t.Fatal(err)
	}
	if failure != "" && (err == nil || !strings.Contains(err.Error(), failure)) {
		t.Errorf("error %v, want %q", err, failure)
	}
	return failure == ""
}

// ExpectText checks what the file contains now.
func (c Checkpoint) ExpectText(t *testing.T, want string) {
	t.Helper()
	text, err := os.ReadFile(c.Path)
	if err != nil || string(text) != want {
		t.Errorf("checkpoint %s, error %v, want %s", text, err, want)
	}
}
