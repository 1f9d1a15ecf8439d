package system

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/test/inprocess"
)

func TestPlanDrain(t *testing.T) {
	isController := true
	pod := func(name, ownerKind string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if ownerKind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: ownerKind, Name: "owner", Controller: &isController}}
		}
		for _, f := range change {
			f(p)
		}
		return p
	}
	emptyDir := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	succeeded := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	static := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	pods := []*corev1.Pod{
		pod("replicated", "ReplicaSet"), pod("data", "StatefulSet", emptyDir), pod("daemon", "DaemonSet", emptyDir), pod("static", "Node", static),
		pod("bare", ""), pod("bare-data", "", emptyDir), pod("finished", "", succeeded, emptyDir), pod("terminating", "", terminating, emptyDir),
	}
	for _, test := range []struct {
		config  config.NodeCommand
		evict   []string
		refused []string
	}{
		{config.NodeCommand{}, []string{"replicated", "finished"}, []string{"ns/data: its emptyDir", "ns/bare: no controller", "ns/bare-data: no controller"}},
		{config.NodeCommand{Force: true}, []string{"replicated", "bare", "finished"}, []string{"ns/data: its emptyDir", "ns/bare-data: its emptyDir"}},
		{config.NodeCommand{DeleteEmptyDirData: true}, []string{"replicated", "data", "finished"}, []string{"ns/bare: no controller", "ns/bare-data: no controller"}},
		{config.NodeCommand{Force: true, DeleteEmptyDirData: true}, []string{"replicated", "data", "bare", "bare-data", "finished"}, nil},
	} {
		plan := planDrain(pods, test.config)
		var evict []string
		for _, p := range plan.evict {
			evict = append(evict, p.Name)
		}
		if !slices.Equal(evict, test.evict) || len(plan.terminating) != 1 || plan.terminating[0].Name != "terminating" {
			t.Errorf("%+v: evict %v, terminating %v, want %v", test.config, evict, plan.terminating, test.evict)
		}
		if !slices.EqualFunc(plan.refused, test.refused, strings.HasPrefix) {
			t.Errorf("%+v: refused %v, want %v", test.config, plan.refused, test.refused)
		}
	}
}

// A pod that must not be evicted may come to the node between the first plan and the time when the node is unschedulable. The node is not drained then.
func TestDrainFindsLatePods(t *testing.T) {
	remote := inprocess.Start(t, t.Context())
	d := &drain{node: "node1", pods: client.For[*corev1.Pod](remote), out: t.Output(), evicted: map[types.UID]bool{}}
	if _, err := d.plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	inprocess.Create(t, remote, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "late"},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	if err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), "default/late: no controller") {
		t.Errorf("the drain ends with %v", err)
	}
}
