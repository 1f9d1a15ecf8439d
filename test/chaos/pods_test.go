package chaos

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/cluster"
)

// podChecks checks that of a StatefulSet no two pods with the same identity run at the same time, on whichever nodes.
type podChecks struct {
	h *harness
	*cluster.Identities
}

const replicas = 3

// startPods makes a StatefulSet and watches its processes until the test ends.
func startPods(t *testing.T, h *harness) *podChecks {
	t.Helper()
	var tolerations []corev1.Toleration
	seconds, grace, n := int64(1), int64(1), int32(replicas)
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	labels := map[string]string{"app": "chaos"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "chaos"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &n, ServiceName: "chaos", PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &grace, Tolerations: tolerations,
					Containers: []corev1.Container{{
						Name: "c", Image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", Command: []string{"sleep", "100000"},
						Env: cluster.IdentityEnv(),
					}},
				},
			},
		},
	}
	if _, err := h.clients[0].AppsV1().StatefulSets("default").Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := &podChecks{h: h}
	p.awaitReady(t)
	p.Identities = cluster.ObserveIdentities()
	t.Cleanup(p.Stop)
	return p
}

// awaitReady waits until all pods are ready.
func (p *podChecks) awaitReady(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), recoveryTimeout)
	defer cancel()
	for i := 0; ; i++ {
		set, err := p.h.clients[i%servers].AppsV1().StatefulSets("default").Get(ctx, "chaos", metav1.GetOptions{})
		if err == nil && set.Status.ReadyReplicas == replicas {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the pods are not ready: %v, %+v\n%s", err, set.Status, p.describe())
		}
		if apierrors.IsNotFound(err) {
			t.Fatal("the StatefulSet was lost")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// describe returns the pods with their nodes and states.
func (p *podChecks) describe() string {
	var text strings.Builder
	list, err := p.h.clients[0].CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range list.Items {
		fmt.Fprintf(&text, "%s %s on %s: %s, deleted %v, %+v\n", pod.Name, pod.UID, pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp, pod.Status.Conditions)
	}
	for _, agent := range p.h.fleet.Agents {
		fmt.Fprintf(&text, "the log of %s ends:\n%s\n", agent.Host.Name, agent.Process.Log(10))
	}
	return text.String()
}

// check waits until all pods run again and fails the test if two with the same identity ran.
func (p *podChecks) check(t *testing.T) {
	t.Helper()
	p.awaitReady(t)
	for _, text := range p.Twice() {
		t.Errorf("two pods with the same identity ran at the same time: %s", text)
	}
	started := p.Started()
	if len(started) < replicas {
		t.Errorf("the processes of %d identities were found, want %d", len(started), replicas)
	}
	total := 0
	for _, uids := range started {
		total += len(uids)
	}
	t.Logf("%d pods of %d identities ran", total, len(started))
}
