package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/test/world"
)

// TestEphemeralClaims: a claim for each ephemeral volume, from its template, owned by the pod.
func TestEphemeralClaims(t *testing.T) {
	template := func(v corev1.Volume, labels, notes map[string]string) corev1.Volume {
		v.Ephemeral.VolumeClaimTemplate.Labels, v.Ephemeral.VolumeClaimTemplate.Annotations = labels, notes
		return v
	}
	claim := func(name, owner string, controls bool) map[string]*corev1.PersistentVolumeClaim {
		c := aClaim()
		c.Name = name
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: types.UID(owner), Controller: &controls}}
		}
		return map[string]*corev1.PersistentVolumeClaim{name: c}
	}
	const foreign = "tell p Warning FailedBinding: ephemeral volume v: PVC default/p-v was not created for pod default/p (pod is not owner)"
	for _, test := range []struct {
		what    string
		volumes []corev1.Volume
		claims  map[string]*corev1.PersistentVolumeClaim
		want    []string
	}{
		{"no volumes", nil, nil, nil},
		{"a claim by name is not ours to make", []corev1.Volume{usesClaim("v", "data")}, nil, nil},
		{"one", []corev1.Volume{usesEphemeral("v")}, nil, []string{"create p-v [] [] of Pod p uid-p true true"}},
		{"two", []corev1.Volume{usesEphemeral("v"), usesEphemeral("w")}, nil, []string{"create p-v [] [] of Pod p uid-p true true", "create p-w [] [] of Pod p uid-p true true"}},
		{"labels and notes of the template", []corev1.Volume{template(usesEphemeral("v"), map[string]string{"a": "1"}, map[string]string{"b": "2"})}, nil, []string{"create p-v [a=1] [b=2] of Pod p uid-p true true"}},
		{"there already", []corev1.Volume{usesEphemeral("v")}, claim("p-v", "uid-p", true), nil},
		{"one of two is there", []corev1.Volume{usesEphemeral("v"), usesEphemeral("w")}, claim("p-v", "uid-p", true), []string{"create p-w [] [] of Pod p uid-p true true"}},
		{"a user's claim of that name", []corev1.Volume{usesEphemeral("v")}, claim("p-v", "", false), []string{foreign}},
		{"an earlier pod's", []corev1.Volume{usesEphemeral("v")}, claim("p-v", "uid-before", true), []string{foreign}},
		{"owned, but not controlled", []corev1.Volume{usesEphemeral("v")}, claim("p-v", "uid-p", false), []string{foreign}},
		{"a user's claim of one name does not hold up the other", []corev1.Volume{usesEphemeral("v"), usesEphemeral("w")}, claim("p-v", "", false), []string{"create p-w [] [] of Pod p uid-p true true", foreign}},
	} {
		pod := claimPod("p", "n", withVolumes(test.volumes...))
		plan := (&ephemeral{}).Reconcile(ephemeralView{pod: pod, claims: test.claims})
		var lines []string
		for _, step := range plan.Steps {
			for _, w := range step.Writes {
				c := w.Object.(*corev1.PersistentVolumeClaim)
				o := c.OwnerReferences[0]
				lines = append(lines, fmt.Sprintf("%s %s [%s] [%s] of %s %s %s %v %v", w.Verb, c.Name, mapWords(c.Labels), mapWords(c.Annotations), o.Kind, o.Name, o.UID, *o.Controller, *o.BlockOwnerDeletion))
				volume := strings.TrimPrefix(c.Name, "p-")
				if c.Namespace != "default" || storageOf(c.Spec.Resources.Requests) != 1<<30 || w.FailureEvent.Reason != "FailedBinding" || w.FailureEvent.Type != corev1.EventTypeWarning || w.FailureEvent.Object != pod ||
					w.FailureEvent.Message != "ephemeral volume "+volume+": create PVC "+c.Name+": %s" {
					t.Errorf("%s: %+v, failed %+v", test.what, c, w.FailureEvent)
				}
			}
		}
		for _, e := range plan.Events {
			lines = append(lines, fmt.Sprintf("tell %s %s %s: %s", e.Object.GetName(), e.Type, e.Reason, e.Message))
		}
		if got, want := strings.Join(lines, "\n"), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, want)
		}
	}
	// The template is not the claim's: what is changed of one is not of the other.
	pod := claimPod("p", "n", withVolumes(usesEphemeral("v")))
	made := (&ephemeral{}).Reconcile(ephemeralView{pod: pod}).Steps[0].Writes[0].Object.(*corev1.PersistentVolumeClaim)
	made.Spec.AccessModes[0] = corev1.ReadWriteMany
	if pod.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Error("the pod's template was changed")
	}
}

// TestEphemeralInAWorld: claims come with their pod, again when they are deleted, and not for a pod that leaves.
func TestEphemeralInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Ephemeral)()
		foreign := aClaim()
		foreign.Name, foreign.UID = "p-taken", ""
		theirs := world.Create(w, foreign)
		pod := claimPod("p", "n", withVolumes(usesEphemeral("v"), usesEphemeral("taken")))
		pod.UID, pod.Spec.TerminationGracePeriodSeconds = "", new(int64(30))
		made := world.Create(w, pod)
		claims := func() (list []string) {
			w.Pass(time.Second)
			for _, c := range world.List[*corev1.PersistentVolumeClaim](w) {
				list = append(list, fmt.Sprint(c.Name, metav1.IsControlledBy(c, made)))
			}
			slices.Sort(list)
			return list
		}
		if got := fmt.Sprint(claims()); got != "[p-takenfalse p-vtrue]" {
			t.Errorf("claims %s", got)
		}
		if told := w.Events("p"); !slices.Contains(told, "FailedBinding: ephemeral volume taken: PVC default/p-taken was not created for pod default/p (pod is not owner)") {
			t.Errorf("told %q", told)
		}
		w.Remove(theirs)
		if got := fmt.Sprint(claims()); got != "[p-takentrue p-vtrue]" {
			t.Errorf("the name is free: %s", got)
		}
		w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-v"))
		if got := fmt.Sprint(claims()); got != "[p-takentrue p-vtrue]" {
			t.Errorf("a user deleted one: %s", got)
		}
		w.Remove(made)
		w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-v"))
		if got := fmt.Sprint(claims()); got != "[p-takentrue]" {
			t.Errorf("the pod leaves: %s", got)
		}
	})
}
