package podstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPhases(t *testing.T) {
	for _, test := range []struct {
		phase                         corev1.PodPhase
		deleted                       bool
		active, terminal, terminating bool
	}{
		{phase: "", active: true},
		{phase: "", deleted: true, terminating: true},
		{phase: corev1.PodPending, active: true},
		{phase: corev1.PodPending, deleted: true, terminating: true},
		{phase: corev1.PodRunning, active: true},
		{phase: corev1.PodRunning, deleted: true, terminating: true},
		{phase: corev1.PodUnknown, active: true},
		{phase: corev1.PodUnknown, deleted: true, terminating: true},
		{phase: corev1.PodSucceeded, terminal: true},
		{phase: corev1.PodSucceeded, deleted: true, terminal: true},
		{phase: corev1.PodFailed, terminal: true},
		{phase: corev1.PodFailed, deleted: true, terminal: true},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: test.phase}}
		if test.deleted {
			pod.DeletionTimestamp = new(metav1.Now())
		}
		if got := IsActive(pod); got != test.active {
			t.Errorf("%q, deleted %v: active %v", test.phase, test.deleted, got)
		}
		if got := IsTerminal(pod); got != test.terminal || IsPhaseTerminal(test.phase) != test.terminal {
			t.Errorf("%q, deleted %v: terminal %v", test.phase, test.deleted, got)
		}
		if got := IsTerminating(pod); got != test.terminating {
			t.Errorf("%q, deleted %v: terminating %v", test.phase, test.deleted, got)
		}
	}
}

func TestConditions(t *testing.T) {
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status}
	}
	for _, test := range []struct {
		name               string
		conditions         []corev1.PodCondition
		ready, initialized bool
		index              int // of the Ready condition, -1 if there is none
	}{
		{"no conditions", nil, false, false, -1},
		{"another condition", []corev1.PodCondition{condition(corev1.PodInitialized, corev1.ConditionTrue)}, false, true, -1},
		{"ready", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue)}, true, false, 0},
		{"not ready", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionFalse)}, false, false, 0},
		{"unknown", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionUnknown)}, false, false, 0},
		{"second in the list", []corev1.PodCondition{condition(corev1.PodInitialized, corev1.ConditionFalse), condition(corev1.PodReady, corev1.ConditionTrue)}, true, false, 1},
		{"the first of two counts", []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionFalse), condition(corev1.PodReady, corev1.ConditionTrue)}, false, false, 0},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: test.conditions}}
		if got := IsReady(pod); got != test.ready {
			t.Errorf("%s: ready %v", test.name, got)
		}
		if got := IsConditionTrue(pod, corev1.PodInitialized); got != test.initialized {
			t.Errorf("%s: initialized %v", test.name, got)
		}
		var want *corev1.PodCondition
		if test.index >= 0 {
			want = &pod.Status.Conditions[test.index]
		}
		if got := Condition(pod, corev1.PodReady); got != want {
			t.Errorf("%s: condition %v, not %v", test.name, got, want)
		}
	}
}

func TestCritical(t *testing.T) {
	source := func(value string) map[string]string { return map[string]string{ConfigSourceAnnotationKey: value} }
	mirror := func(hash string) map[string]string { return map[string]string{corev1.MirrorPodAnnotationKey: hash} }
	for _, test := range []struct {
		name                     string
		annotations              map[string]string
		priority                 *int32
		static, mirror, critical bool
	}{
		{name: "ordinary"},
		{name: "from the API", annotations: source("api")},
		{name: "no source", annotations: source("")},
		{name: "from a file", annotations: source("file"), static: true, critical: true},
		{name: "from a URL", annotations: source("http"), static: true, critical: true},
		{name: "mirror", annotations: mirror("0123"), mirror: true, critical: true},
		{name: "mirror without a hash", annotations: mirror(""), mirror: true, critical: true},
		{name: "highest priority that is not critical", priority: new(int32(SystemCriticalPriority - 1))},
		{name: "critical for the cluster", priority: new(int32(SystemCriticalPriority)), critical: true},
		{name: "critical for the node", priority: new(int32(SystemCriticalPriority + 1000)), critical: true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}, Spec: corev1.PodSpec{Priority: test.priority}}
		if static, mirror, critical := IsStatic(pod), IsMirror(pod), IsCritical(pod); static != test.static || mirror != test.mirror || critical != test.critical {
			t.Errorf("%s: static %v, mirror %v, critical %v", test.name, static, mirror, critical)
		}
	}
}
