package kubelet

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The status of a container whose exit was not observed.
const (
	lostWords    = "ContainerStatusUnknown 137 The container could not be located when the pod was deleted.  The container used to be Running"
	unknownWords = "ContainerStatusUnknown 137 The container could not be located when the pod was terminated"
)

func lastWords(s corev1.ContainerState) string {
	if s.Terminated == nil {
		return ""
	}
	return fmt.Sprint(s.Terminated.Reason, " ", s.Terminated.ExitCode, " ", s.Terminated.Message)
}

// TestUnobservedExit has a container that exits, or is removed, while neither the kubelet nor the runtime runs. It is reported as killed, and
// restarted according to its policy.
func TestUnobservedExit(t *testing.T) {
	lose := map[string]func(b *testKubelet, pod *corev1.Pod){
		"the container is gone": func(b *testKubelet, pod *corev1.Pod) {
			if err := b.runtime.RemoveContainer(b.ctx, b.id(pod, "a")); err != nil {
				b.Fatal(err)
			}
		},
		"the whole pod is gone": func(b *testKubelet, pod *corev1.Pod) {
			if err := b.runtime.RemovePodSandbox(b.ctx, b.sandboxOf(pod)); err != nil {
				b.Fatal(err)
			}
		},
		"the runtime does not know": func(b *testKubelet, pod *corev1.Pod) { b.runtime.Lose(b.id(pod, "a")) },
	}
	for how, lost := range lose {
		t.Run(how, func(t *testing.T) {
			b := newTestKubelet(t)
			words, restarts := lostWords, int32(1)
			unknown := how == "the runtime does not know"
			if unknown {
				words, restarts = unknownWords, 2 // upstream counts the end and the start
			}
			var pods []*corev1.Pod
			for _, policy := range []podOption{always, onFailure, never} {
				pods = append(pods, b.until(b.create(policy, regular("a")), "running", running))
			}
			b.stop()
			for _, pod := range pods {
				lost(b, pod)
			}
			b.start()
			for _, pod := range pods[:2] {
				b.until(pod, "restarted after "+words, func(p *corev1.Pod) bool {
					s := p.Status.ContainerStatuses[0]
					return running(p) && s.RestartCount == restarts && lastWords(s.LastTerminationState) == words
				})
			}
			if unknown {
				return // upstream asks the policy about exits only: it starts again whatever the policy
			}
			b.until(pods[2], "failed", func(p *corev1.Pod) bool {
				return p.Status.Phase == corev1.PodFailed && lastWords(p.Status.ContainerStatuses[0].State) == unknownWords
			})
		})
	}
}
