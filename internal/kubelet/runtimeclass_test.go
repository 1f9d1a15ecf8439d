package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
)

func TestHandlers(t *testing.T) {
	b := newTestKubelet(t)
	if _, err := client.For[*nodev1.RuntimeClass](b.client).Create(b.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "boxed"}, Handler: "kata"}, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	informers := client.NewInformers(b.client)
	classes := RuntimeClasses{Classes: client.InformerFor[*nodev1.RuntimeClass](informers)}
	if _, err := classes.Handler(new("boxed")); err == nil || err.Error() != "failed to lookup RuntimeClass boxed: RuntimeClasses have not been listed yet" {
		t.Errorf("error %v before classes are known", err)
	}
	go func() { _ = informers.Run(b.ctx) }() // it ends with the test
	b.eventually("classes are known", classes.Classes.HasSynced)
	for _, row := range []struct {
		name    string
		class   *string
		want    string
		missing bool
	}{
		{"no class", nil, "", false},
		{"an empty class", new(""), "", false},
		{"a class", new("boxed"), "kata", false},
		{"a class that does not exist", new("absent"), "", true},
	} {
		got, err := classes.Handler(row.class)
		if got != row.want || apierrors.IsNotFound(err) != row.missing || err != nil && !row.missing {
			t.Errorf("%s: %q, %v; want %q", row.name, got, err, row.want)
		}
	}
}

// handlers implements Handlers with a map of classes.
type handlers map[string]string

func (h handlers) Handler(class *string) (string, error) {
	if class == nil {
		return "", nil
	}
	if handler, ok := h[*class]; ok {
		return handler, nil
	}
	return "", apierrors.NewNotFound(nodev1.Resource("runtimeclasses"), *class)
}

// TestRuntimeClass starts pods with the handler and the overhead of their RuntimeClass.
func TestRuntimeClass(t *testing.T) {
	b := newTestKubelet(t)
	b.stop()
	b.config.Handlers = handlers{"boxed": "kata"}
	b.start()
	for name, more := range map[string]string{"boxed": "1", "heavy": "1500m"} {
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "kata", Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(more)}}}
		if _, err := client.For[*nodev1.RuntimeClass](b.client).Create(b.ctx, class, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(class, more string) podOption {
		return func(pod *corev1.Pod) {
			pod.Spec.RuntimeClassName = &class
			pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(more)}
		}
	}
	pod := b.until(b.create(of("boxed", "1"), regular("a", needs("2", "", "", ""))), "running", running)
	if s, err := b.runtime.PodSandboxStatus(b.ctx, b.sandboxOf(pod), false); err != nil || s.Status.RuntimeHandler != "kata" {
		t.Errorf("the sandbox was made by %q, %v; want kata", s.GetStatus().GetRuntimeHandler(), err)
	}
	refused := b.until(b.create(of("heavy", "1500m"), regular("a", needs("500m", "", "", ""))), "refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if want := "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"; refused.Status.Message != want {
		t.Errorf("refused with %q, want %q", refused.Status.Message, want)
	}
}
