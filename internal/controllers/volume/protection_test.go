package volume

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/world"
)

func claimPod(name, node string, changes ...change[*corev1.Pod]) *corev1.Pod {
	return with(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: node,
		Containers: []corev1.Container{{Name: "c", Image: "i"}}, Volumes: []corev1.Volume{usesClaim("v", "data")}}}, changes...)
}

func usesClaim(volume, claim string) corev1.Volume {
	return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func usesEphemeral(volume string) corev1.Volume {
	return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: aClaim().Spec}}}}
}

func withVolumes(volumes ...corev1.Volume) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.Volumes = volumes }
}

func podInPhase(phase corev1.PodPhase) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func leavingPod(p *corev1.Pod) { p.DeletionTimestamp = new(ago(0)) }

// TestProtectWrites: the finalizer comes and goes by a patch of this very object.
func TestProtectWrites(t *testing.T) {
	held := func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"mine", claimFinalizer} }
	others := func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"mine"} }
	leaving := func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = new(ago(0)) }
	const add, remove = `{"metadata":{"finalizers":["kubernetes.io/pvc-protection"],"uid":"uid-data"}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["kubernetes.io/pvc-protection"],"uid":"uid-data"}}`
	for _, test := range []struct {
		what  string
		claim *corev1.PersistentVolumeClaim
		used  bool
		want  string
	}{
		{"new", aClaim(), false, add},
		{"new, and used", aClaim(), true, add},
		{"new, with another's finalizer", aClaim(others), false, add},
		{"held", aClaim(held), false, ""},
		{"leaving, used", aClaim(held, leaving), true, ""},
		{"leaving, not used", aClaim(held, leaving), false, remove},
		{"leaving, let go already", aClaim(others, leaving), false, ""},
		{"leaving, let go already, used", aClaim(leaving), true, ""},
	} {
		asked := false
		plan := protect(test.claim, claimFinalizer, func() bool { asked = true; return test.used })
		got := ""
		for _, step := range plan.Steps {
			w := step.Writes[0]
			if got = string(w.Patch); w.PatchType != client.StrategicPatch || w.Verb != controller.Patch || len(w.Ignore) != 1 || w.Ignore[0] != metav1.StatusReasonNotFound {
				t.Errorf("%s: %+v", test.what, w)
			}
		}
		if got != test.want || asked && test.claim.DeletionTimestamp == nil {
			t.Errorf("%s: %s, want %s; asked %v", test.what, got, test.want, asked)
		}
	}
}

// TestWhoHoldsAClaim: the pods that keep a claim from going, and those that make it count as used.
func TestWhoHoldsAClaim(t *testing.T) {
	own := func(owner string) *corev1.PersistentVolumeClaim {
		return aClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Name, c.OwnerReferences = "p-v", []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: types.UID(owner), Controller: new(true)}}
		})
	}
	grace := func(seconds int64) change[*corev1.Pod] {
		return func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(ago(0)), &seconds }
	}
	running := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	}
	ephemeral := withVolumes(usesEphemeral("v"))
	for _, test := range []struct {
		what        string
		pod         *corev1.Pod
		claim       *corev1.PersistentVolumeClaim
		holds, uses bool
	}{
		{"a pod with it", claimPod("p", "n"), aClaim(), true, true},
		{"a pod without a node: it is used, and does not hold", claimPod("p", ""), aClaim(), false, true},
		{"a pod that is over: it holds, and is not used", claimPod("p", "n", podInPhase(corev1.PodSucceeded)), aClaim(), true, false},
		{"a pod that failed", claimPod("p", "n", podInPhase(corev1.PodFailed)), aClaim(), true, false},
		{"a pod that leaves, a container still runs", claimPod("p", "n", leavingPod, running), aClaim(), true, true},
		{"a pod that leaves, no container runs", claimPod("p", "n", leavingPod), aClaim(), true, false},
		{"a pod that is shut down", claimPod("p", "n", grace(0), running), aClaim(), true, true},
		{"a pod with another claim", claimPod("p", "n", withVolumes(usesClaim("v", "other"))), aClaim(), false, false},
		{"a pod with two, the second is it", claimPod("p", "n", withVolumes(usesClaim("u", "other"), usesClaim("v", "data"))), aClaim(), true, true},
		{"a pod without volumes", claimPod("p", "n", withVolumes()), aClaim(), false, false},
		{"a pod and its own", claimPod("p", "n", ephemeral), own("uid-p"), true, true},
		{"a pod that is shut down and its own", claimPod("p", "n", ephemeral, grace(0), running), own("uid-p"), false, true},
		{"a pod with a grace period and its own", claimPod("p", "n", ephemeral, grace(30), running), own("uid-p"), true, true},
		{"an earlier pod's own", claimPod("p", "n", ephemeral), own("uid-before"), false, false},
		{"a user's claim of that name", claimPod("p", "n", ephemeral), aClaim(func(c *corev1.PersistentVolumeClaim) { c.Name = "p-v" }), false, false},
		{"a pod that names its claim outright", claimPod("x", "n", withVolumes(usesClaim("v", "p-v"))), own("uid-p"), true, true},
	} {
		if holds, uses := holds(test.pod, test.claim), !isPodTerminated(test.pod) && refers(test.pod, test.claim); holds != test.holds || uses != test.uses {
			t.Errorf("%s: holds %v, uses %v", test.what, holds, uses)
		}
	}
}

// TestUnusedCondition: bound claims say whether and since when nothing uses them.
func TestUnusedCondition(t *testing.T) {
	says := func(status corev1.ConditionStatus) change[*corev1.PersistentVolumeClaim] {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing", Status: "True"}, {Type: corev1.PersistentVolumeClaimUnused, Status: status}}
		}
	}
	bound := inClaimPhase(corev1.ClaimBound)
	const prefix = `{"metadata":{"uid":"uid-data"},"status":{"conditions":[{"type":"Unused","status":`
	const unused = prefix + `"True","lastProbeTime":null,"lastTransitionTime":"2026-03-01T12:00:00Z","reason":"NoPodsUsingPVC","message":"No pods are currently referencing this PVC"}]}}`
	const used = prefix + `"False","lastProbeTime":null,"lastTransitionTime":"2026-03-01T12:00:00Z","reason":"PodUsingPVC","message":"A pod is currently referencing this PVC"}]}}`
	for _, test := range []struct {
		what  string
		claim *corev1.PersistentVolumeClaim
		pods  []*corev1.Pod
		want  string
	}{
		{"nobody uses it", aClaim(bound), nil, unused},
		{"nobody uses it, known", aClaim(bound, says("True")), nil, ""},
		{"nobody uses it any more", aClaim(bound, says("False")), nil, unused},
		{"a pod uses it", aClaim(bound), []*corev1.Pod{claimPod("p", "n")}, used},
		{"a pod uses it, known", aClaim(bound, says("False")), []*corev1.Pod{claimPod("p", "n")}, ""},
		{"a pod uses it again", aClaim(bound, says("True")), []*corev1.Pod{claimPod("p", "n")}, used},
		{"a pod that waits uses it", aClaim(bound), []*corev1.Pod{claimPod("p", "")}, used},
		{"only pods that are over", aClaim(bound), []*corev1.Pod{claimPod("p", "n", podInPhase(corev1.PodSucceeded)), claimPod("q", "n", podInPhase(corev1.PodFailed))}, unused},
		{"one of two is not over", aClaim(bound), []*corev1.Pod{claimPod("p", "n", podInPhase(corev1.PodSucceeded)), claimPod("q", "n")}, used},
		{"not bound", aClaim(), nil, ""},
		{"lost", aClaim(inClaimPhase(corev1.ClaimLost)), nil, ""},
		{"leaving", aClaim(bound, func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = new(ago(0)) }), nil, ""},
	} {
		w, ok := noteUse(test.claim, test.pods, now)
		if got := string(w.Patch); got != test.want || ok != (got != "") || ok && (w.Verb != controller.PatchStatus || w.PatchType != client.StrategicPatch) {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
	}
}

// TestVolumeProtectionRules: a volume is kept while it is bound, in no other phase.
func TestVolumeProtectionRules(t *testing.T) {
	for phase, kept := range map[corev1.PersistentVolumePhase]bool{corev1.VolumeBound: true, corev1.VolumeAvailable: false, corev1.VolumeReleased: false, corev1.VolumeFailed: false, corev1.VolumePending: false, "": false} {
		v := aVolume("v", inPhase(phase), leavingVolume, func(v *corev1.PersistentVolume) { v.Finalizers = []string{volumeFinalizer} })
		if got := len(volumeProtection{}.Reconcile(v).Steps) == 0; got != kept {
			t.Errorf("in phase %q: kept %v", phase, got)
		}
	}
}

// TestAttributesClasses: which classes claims and volumes hold.
func TestAttributesClasses(t *testing.T) {
	for _, test := range []struct {
		what string
		obj  kind.Object
		want string
	}{
		{"a claim without", aClaim(), "[]"},
		{"a claim that wants one", aClaim(wantingAttributes("gold")), "[gold]"},
		{"a claim that has one", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("silver") }), "[silver]"},
		{"a claim on its way", aClaim(wantingAttributes("gold"), func(c *corev1.PersistentVolumeClaim) {
			c.Status.CurrentVolumeAttributesClassName = new("silver")
			c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "bronze"}
		}), "[gold silver bronze]"},
		{"a volume without", aVolume("v"), "[]"},
		{"a volume with one", aVolume("v", ofAttributes("gold")), "[gold]"},
	} {
		var keys []controller.Key
		switch o := test.obj.(type) {
		case *corev1.PersistentVolumeClaim:
			keys = classKeys(classesOfClaim(o))
		case *corev1.PersistentVolume:
			keys = classKeys(classesOfVolume(o))
		}
		var got []string
		for _, k := range keys {
			got = append(got, k.Name)
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("%s: %v, want %s", test.what, got, test.want)
		}
	}
}

// TestProtectionInAWorld: what is in use stays until it is not.
func TestProtectionInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(ClaimProtection, VolumeProtection, AttributesClassProtection)()
		claim := aClaim(wantingAttributes("gold"))
		claim.UID = ""
		class := world.Create(w, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "disk.example.com", Parameters: map[string]string{"iops": "5"}})
		made := world.Create(w, claim)
		volume := aVolume("v", csi, ofAttributes("gold"))
		volume.UID = ""
		v := world.Create(w, volume)
		world.EditStatus(w, "", "v", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound })
		pod := claimPod("p", "n")
		pod.UID, pod.Spec.TerminationGracePeriodSeconds = "", new(int64(0))
		p := world.Create(w, pod)
		w.Pass(time.Second)
		w.Remove(made)
		w.Remove(v)
		w.Remove(class)
		w.Pass(time.Second)
		gone := func() string {
			w.Pass(time.Second)
			return fmt.Sprint(world.Gone[*corev1.PersistentVolumeClaim](w, "default", "data"), world.Gone[*corev1.PersistentVolume](w, "", "v"), world.Gone[*storagev1.VolumeAttributesClass](w, "", "gold"))
		}
		if got := gone(); got != "false false false" {
			t.Errorf("all in use: gone %s", got)
		}
		w.Remove(p)
		if got := gone(); got != "true false false" {
			t.Errorf("the pod went: gone %s", got)
		}
		world.EditStatus(w, "", "v", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased })
		if got := gone(); got != "true true true" {
			t.Errorf("the volume is free: gone %s", got)
		}
	})
}

// TestProtectionWithALaggingCache: a pod that is not seen yet holds its claim all the same: the server itself is asked.
func TestProtectionWithALaggingCache(t *testing.T) {
	world.In(t, func(w *world.World) {
		claim := aClaim(func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{claimFinalizer} })
		claim.UID = ""
		made := world.Create(w, claim)
		w.Manage(&world.Faults{Lag: time.Minute}, ClaimProtection)
		w.Pass(2 * time.Minute)
		w.Remove(made)
		w.Pass(30 * time.Second)
		pod := claimPod("p", "n")
		pod.UID, pod.Spec.TerminationGracePeriodSeconds = "", new(int64(0))
		late := world.Create(w, pod)
		w.Pass(45 * time.Second) // the deletion is seen, the pod is not
		if world.Gone[*corev1.PersistentVolumeClaim](w, "default", "data") {
			t.Fatal("the claim went while a pod used it")
		}
		w.Remove(late)
		w.Pass(3 * time.Minute)
		if !world.Gone[*corev1.PersistentVolumeClaim](w, "default", "data") {
			t.Error("nobody uses the claim, and it stays")
		}
	})
}

// TestAttributesClassesInUse: a class stays as long as any claim or volume has it, wants it or is on its way to it.
func TestAttributesClassesInUse(t *testing.T) {
	for _, test := range []struct {
		what   string
		claim  *corev1.PersistentVolumeClaim // nil: none
		volume *corev1.PersistentVolume
		gone   bool
	}{
		{"nobody", nil, nil, true},
		{"a claim wants it", aClaim(wantingAttributes("gold")), nil, false},
		{"a claim has it", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = new("gold") }), nil, false},
		{"a claim is on its way to it", aClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "gold", Status: corev1.PersistentVolumeClaimModifyVolumePending}
		}), nil, false},
		{"a claim has another", aClaim(wantingAttributes("silver")), nil, true},
		{"a volume has it", nil, aVolume("v", csi, ofAttributes("gold")), false},
		{"a volume has another", nil, aVolume("v", csi, ofAttributes("silver")), true},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				defer w.Run(AttributesClassProtection)()
				class := world.Create(w, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "disk.example.com", Parameters: map[string]string{"iops": "5"}})
				if test.claim != nil {
					status := test.claim.Status
					test.claim.UID = ""
					world.Create(w, test.claim)
					world.EditStatus(w, "default", "data", func(c *corev1.PersistentVolumeClaim) { c.Status = status })
				}
				if test.volume != nil {
					test.volume.UID = ""
					world.Create(w, test.volume)
				}
				w.Pass(time.Second)
				w.Remove(class)
				w.Pass(time.Second)
				if got := world.Gone[*storagev1.VolumeAttributesClass](w, "", "gold"); got != test.gone {
					t.Errorf("gone %v", got)
				}
			})
		})
	}
}
