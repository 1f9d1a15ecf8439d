package kubelet

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
)

func TestUnpreparedClaim(t *testing.T) {
	claims := func(names ...string) (all []corev1.PodResourceClaim) {
		for _, name := range names {
			all = append(all, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: ptr.To("template")})
		}
		return all
	}
	for _, test := range []struct {
		name   string
		claims []corev1.PodResourceClaim
		status corev1.PodStatus
		want   string
	}{
		{name: "no claim"},
		{name: "claim", claims: claims("gpu"), want: `resource claim "gpu" of the pod`},
		{name: "generated claim", claims: claims("gpu"), status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("p-gpu")}}}, want: `resource claim "gpu" of the pod`},
		{name: "no claim generated", claims: claims("gpu"), status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu"}}}},
		{name: "second claim", claims: claims("gpu", "nic"), status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu"}}}, want: `resource claim "nic" of the pod`},
		{name: "extended resource", status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "p-extended"}}, want: "resource claim p-extended of the pod's extended resources"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := unpreparedClaim(&corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: test.claims}, Status: test.status})
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestPodWithClaimDoesNotRun checks that a pod whose devices nobody prepares gets no sandbox, and that its event says why.
func TestPodWithClaimDoesNotRun(t *testing.T) {
	b := newTestKubelet(t)
	events := client.NewEventBroadcaster(b.client)
	b.stop()
	b.config.Events = events.NewRecorder("kubelet")
	b.start()
	go func() { _ = events.Run(b.ctx) }()
	pod := b.create(regular("a"), func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("claim")}}
	})
	b.eventually("event about the claim", func() bool {
		list, _, err := client.For[*corev1.Event](b.client).List(b.ctx, pod.Namespace, client.Selector{})
		return err == nil && slices.ContainsFunc(list, func(e *corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Reason == "FailedPrepareDynamicResources" && strings.Contains(e.Message, `resource claim "gpu"`)
		})
	})
	if sandboxes, err := b.runtime.ListPodSandbox(b.ctx, nil); err != nil || len(sandboxes) > 0 {
		t.Errorf("sandboxes %v, %v", sandboxes, err)
	}
	b.delete(pod, 1)
	b.gone(pod)
}
