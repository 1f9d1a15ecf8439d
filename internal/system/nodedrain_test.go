package system

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/config"
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
		if !slices.Equal(evict, test.evict) || len(plan.ending) != 1 || plan.ending[0].Name != "terminating" {
			t.Errorf("%+v: evict %v, ending %v, want %v", test.config, evict, plan.ending, test.evict)
		}
		if !slices.EqualFunc(plan.refused, test.refused, strings.HasPrefix) {
			t.Errorf("%+v: refused %v, want %v", test.config, plan.refused, test.refused)
		}
	}
}
