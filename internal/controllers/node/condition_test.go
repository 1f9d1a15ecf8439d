package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSetPodCondition(t *testing.T) {
	before, after := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now)
	ready := func(status corev1.ConditionStatus, reason string, at metav1.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodReady, Status: status, Reason: reason, LastTransitionTime: at}
	}
	other := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
	for _, test := range []struct {
		what    string
		was     []corev1.PodCondition
		set     corev1.PodCondition
		changed bool
		at      metav1.Time // of the transition
	}{
		{"new", []corev1.PodCondition{other}, ready("False", "Lost", after), true, after},
		{"the same", []corev1.PodCondition{other, ready("False", "Lost", before)}, ready("False", "Lost", after), false, before},
		{"another status", []corev1.PodCondition{ready("True", "", before), other}, ready("False", "Lost", after), true, after},
		{"another reason: no transition", []corev1.PodCondition{ready("False", "Slow", before)}, ready("False", "Lost", after), true, before},
	} {
		kept := append([]corev1.PodCondition(nil), test.was...)
		got, changed := setPodCondition(test.was, test.set)
		if changed != test.changed {
			t.Errorf("%s: changed %v", test.what, changed)
		}
		for _, c := range got {
			if c.Type == corev1.PodReady && (c.Status != "False" || c.Reason != "Lost" || !c.LastTransitionTime.Equal(&test.at)) {
				t.Errorf("%s: %+v", test.what, c)
			}
		}
		for i := range kept {
			if test.was[i] != kept[i] {
				t.Errorf("%s: what was given has changed", test.what)
			}
		}
	}
}
