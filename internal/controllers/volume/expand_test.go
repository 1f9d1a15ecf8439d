package volume

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"skiff/test/world"
)

func TestExpand(t *testing.T) {
	has := func(size string) change[*corev1.PersistentVolumeClaim] {
		return func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = room(size) }
	}
	for _, test := range []struct {
		what   string
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		told   string
	}{
		{"as large as wanted", aClaim(has("1Gi")), aVolume("v", csi), ""},
		{"larger than wanted", aClaim(has("2Gi")), aVolume("v", csi), ""},
		{"a driver will do it", aClaim(has("500Mi")), aVolume("v", csi), "Normal"},
		{"nobody is known who could", aClaim(has("500Mi")), aVolume("v"), "Normal"},
		{"as large as wanted, but a resize is not over", aClaim(has("1Gi")), aVolume("v", marked(preResizeCapacity, "500Mi")), "Normal"},
	} {
		plan := expand{}.Reconcile(expandView{claim: test.claim, volume: test.volume})
		told := ""
		for _, e := range plan.Events {
			if told = e.Type; e.Reason != "ExternalExpanding" {
				t.Errorf("%s: told %s", test.what, e.Reason)
			}
		}
		if told != test.told || len(plan.Steps) > 0 {
			t.Errorf("%s: %q, want %q; %+v", test.what, told, test.told, plan.Steps)
		}
	}
}

// TestExpandInAWorld: it is reported when a claim asks for more, at the start and later, and only of claims that are bound.
func TestExpandInAWorld(t *testing.T) {
	const text = "ExternalExpanding: waiting for an external controller to expand this PVC"
	for _, test := range []struct {
		what   string
		phase  corev1.PersistentVolumeClaimPhase
		has    string
		uid    string // of the volume's claim; "": the claim's
		before bool   // it asks before anybody looks
		grows  bool
		want   int
	}{
		{"as it is", corev1.ClaimBound, "1Gi", "", true, false, 0},
		{"asked before the start", corev1.ClaimBound, "500Mi", "", true, false, 1},
		{"asked later", corev1.ClaimBound, "1Gi", "", false, true, 1},
		{"not bound", corev1.ClaimPending, "500Mi", "", true, false, 0},
		{"another's volume", corev1.ClaimBound, "500Mi", "uid-other", true, false, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				class := aClass("fast", "disk.example.com", storagev1.VolumeBindingImmediate)
				class.AllowVolumeExpansion = new(true)
				world.Create(w, class)
				claim := aClaim(names("v"), ofClass("fast"))
				claim.UID = ""
				made := world.Create(w, claim)
				uid := string(made.UID)
				if test.uid != "" {
					uid = test.uid
				}
				volume := aVolume("v", csi, claimedBy("data", uid))
				volume.UID = ""
				world.Create(w, volume)
				world.EditStatus(w, "default", "data", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase, c.Status.Capacity = test.phase, room(test.has) })
				defer w.Run(Expand)()
				w.Pass(time.Second)
				if test.grows {
					world.Edit(w, "default", "data", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = room("2Gi") })
					w.Pass(time.Second)
				}
				n := 0
				for _, told := range w.Events("data") {
					if told == text {
						n++
					}
				}
				if n != test.want {
					t.Errorf("told %q", w.Events("data"))
				}
			})
		})
	}
}

// TestWhoIsExpanded: only a claim whose volume knows it.
func TestWhoIsExpanded(t *testing.T) {
	has := func(size string) change[*corev1.PersistentVolumeClaim] {
		return func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = room(size) }
	}
	for _, test := range []struct {
		what   string
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		want   bool
	}{
		{"a byte more", aClaim(asking("1073741825"), has("1Gi")), aVolume("v"), true},
		{"exactly", aClaim(asking("1073741824"), has("1Gi")), aVolume("v"), false},
		{"a byte less", aClaim(asking("1073741823"), has("1Gi")), aVolume("v"), false},
		{"no capacity is known", aClaim(), aVolume("v"), true},
		{"nothing is asked for", aClaim(asking("0")), aVolume("v"), false},
		{"nothing more is asked for, a resize is not over", aClaim(has("9Gi")), aVolume("v", marked(preResizeCapacity, "")), true},
	} {
		plan := expand{}.Reconcile(expandView{claim: test.claim, volume: test.volume})
		if got := fully(plan) == "tell data Normal ExternalExpanding: waiting for an external controller to expand this PVC"; got != test.want || !test.want && !plan.IsEmpty() {
			t.Errorf("%s: %s", test.what, fully(plan))
		}
	}
}
