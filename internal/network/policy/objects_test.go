package policy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A trimmed pod has all that policies depend on, and nothing else that is large.
func TestTrimPod(t *testing.T) {
	p := testPod("default/web", thisNode, "app=web", "10.42.1.9", "fd42::9")
	p.UID, p.Annotations = "1", map[string]string{corev1.MirrorPodAnnotationKey: "hash", "large": "text"}
	p.Status.Phase = corev1.PodRunning
	ports := func(name string, number int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: number}}
	}
	p.Spec.Containers = []corev1.Container{{Name: "plain", Env: []corev1.EnvVar{{Name: "A"}}}, {Name: "c", Image: "image", Ports: ports("http", 80)}}
	p.Spec.InitContainers = []corev1.Container{
		{Name: "init", Ports: ports("setup", 81)}, {Name: "sidecar", Ports: ports("metrics", 82), RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	trimmed := trimPod(p)
	want, _ := NewPod(p, thisNode, nil)
	have, hasNetwork := NewPod(trimmed, thisNode, nil)
	if !hasNetwork || !have.equal(&want) || len(have.ports) != 2 {
		t.Errorf("policies see %+v, want %+v", have, want)
	}
	if isRelevant(p, trimmed) {
		t.Error("trimming is a relevant change")
	}
	if a := (&announcement{uid: "hash"}); !a.isFor(trimmed) {
		t.Error("a trimmed mirror pod is not recognized")
	}
	if len(trimmed.Annotations) != 1 || len(trimmed.Spec.Containers) != 1 || trimmed.Spec.Containers[0].Image != "" || trimmed.Spec.Volumes != nil {
		t.Errorf("it keeps what it does not need: %+v", trimmed)
	}
	for _, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
	} {
		changed := p.DeepCopy()
		change(changed)
		if _, hasNetwork := NewPod(trimPod(changed), thisNode, nil); hasNetwork {
			t.Errorf("%+v has a network", changed)
		}
	}
}
