package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/localpath"
	"skiff/test/world"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

func room(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// aClaim wants 1Gi of class "" for one node.
func aClaim(changes ...change[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	return with(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}, changes...)
}

func ofClass(name string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func names(volume string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func noted(key, value string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

// aVolume is free and has 5Gi.
func aVolume(name string, changes ...change[*corev1.PersistentVolume]) *corev1.PersistentVolume {
	return with(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{Capacity: room("5Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}, changes...)
}

func sized(size string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.Capacity = room(size) }
}

func claimedBy(name, uid string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name, UID: types.UID(uid)}
	}
}

func inPhase(phase corev1.PersistentVolumePhase) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func marked(key, value string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { metav1.SetMetaDataAnnotation(&v.ObjectMeta, key, value) }
}

func reclaims(policy corev1.PersistentVolumeReclaimPolicy) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = policy }
}

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// words writes a plan down.
func words(plan controller.Plan) string {
	short := map[string]string{"PersistentVolume": "PV", "PersistentVolumeClaim": "PVC"}
	var all []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			kind := fmt.Sprintf("%T", w.Object)
			kind = kind[strings.LastIndexByte(kind, '.')+1:]
			if s := short[kind]; s != "" {
				kind = s
			}
			word := fmt.Sprintf("%s %s %s", w.Verb, kind, w.Object.GetName())
			if _, after, ok := strings.Cut(string(w.Patch), `"phase":"`); ok {
				phase, _, _ := strings.Cut(after, `"`)
				word += " " + phase
			}
			all = append(all, word)
		}
	}
	for _, e := range plan.Events {
		all = append(all, "tell "+e.Reason)
	}
	return strings.Join(all, ", ")
}

func TestStorageInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		all := []controller.Definition{Binder, ClaimProtection, VolumeProtection, AttributesClassProtection, Ephemeral, Expand,
			LocalPath(LocalPathSettings{Dir: "/data"}), LocalPathCleaner}
		stop := w.Run(all...)
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "n1", Labels: map[string]string{corev1.LabelHostname: "n1"}, Annotations: map[string]string{localpath.DirAnnotation: "/own"},
		}})
		w.Pass(time.Second)
		class := world.Get[*storagev1.StorageClass](w, "", LocalPathClass)
		if class.Annotations[defaultClass] != "true" {
			t.Errorf("the class is not the default: %+v", class)
		}
		phase := func(name string) corev1.PersistentVolumeClaimPhase {
			return world.Get[*corev1.PersistentVolumeClaim](w, "default", name).Status.Phase
		}
		claim := func(name string, class *string) *corev1.PersistentVolumeClaim {
			return world.Create(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
				Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}})
		}
		// Volumes made by hand: of two claims, each gets one.
		for _, name := range []string{"v1", "v2"} {
			world.Create(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: room("2Gi"),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + name}}}})
		}
		w.Pass(time.Second)
		a := claim("a", new(""))
		claim("b", new(""))
		w.Pass(time.Second)
		claim("c", new(""))
		w.Pass(time.Second)
		if phase("a") != corev1.ClaimBound || phase("b") != corev1.ClaimBound || phase("c") != corev1.ClaimPending {
			t.Fatalf("claims are %s, %s, %s", phase("a"), phase("b"), phase("c"))
		}
		bound := world.Get[*corev1.PersistentVolumeClaim](w, "default", "a")
		if bound.Status.Capacity.Storage().String() != "2Gi" || !slices.Contains(bound.Finalizers, claimFinalizer) || bound.Annotations[bindCompleted] != "yes" {
			t.Errorf("bound claim %+v", bound)
		}
		if len(bound.Status.Conditions) != 1 || bound.Status.Conditions[0].Reason != "NoPodsUsingPVC" {
			t.Errorf("conditions %+v", bound.Status.Conditions)
		}
		w.Remove(a)
		w.Pass(time.Second)
		if !world.Gone[*corev1.PersistentVolumeClaim](w, "default", "a") || world.Get[*corev1.PersistentVolume](w, "", bound.Spec.VolumeName).Status.Phase != corev1.VolumeReleased {
			t.Error("a claim that goes releases its volume")
		}
		// A directory on a node, for a pod with an ephemeral volume.
		pod := world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(LocalPathClass),
					Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}}}}}}}})
		w.Pass(time.Second)
		if phase("p-scratch") != corev1.ClaimPending || !metav1.IsControlledBy(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch"), pod) {
			t.Fatal("the claim of the pod is not as it should be")
		}
		if told := w.Events("p-scratch"); !slices.Contains(told, "WaitForPodScheduled: waiting for pod p to be scheduled") {
			t.Errorf("events %q", told)
		}
		world.Edit(w, "default", "p-scratch", func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, selectedNode, "n1") })
		w.Pass(time.Second)
		if phase("p-scratch") != corev1.ClaimBound {
			t.Fatalf("the claim is %s: %q", phase("p-scratch"), w.Events("p-scratch"))
		}
		made := world.Get[*corev1.PersistentVolume](w, "", world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch").Spec.VolumeName)
		w.Remove(pod)
		w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch")) // as the garbage collector would
		w.Pass(5 * time.Second)
		playRemovals(w, "n1")
		w.Pass(5 * time.Second)
		if !world.Gone[*corev1.PersistentVolume](w, "", made.Name) {
			t.Errorf("the volume is still there: %+v", world.Get[*corev1.PersistentVolume](w, "", made.Name))
		}
		// At rest another start writes nothing.
		stop()
		before := world.Newest(world.List[*corev1.PersistentVolumeClaim](w)) + " " + world.Newest(world.List[*corev1.PersistentVolume](w))
		defer w.Run(all...)()
		w.Pass(5 * time.Minute)
		if after := world.Newest(world.List[*corev1.PersistentVolumeClaim](w)) + " " + world.Newest(world.List[*corev1.PersistentVolume](w)); after != before {
			t.Errorf("a start at rest wrote: %s, was %s", after, before)
		}
	})
}

// TestClaimBeforeItsVolume: a claim may name a volume that is made after it.
func TestClaimBeforeItsVolume(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Binder)()
		spec := *aClaim().Spec.DeepCopy()
		spec.VolumeName = "disk"
		world.Create(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: spec})
		w.Pass(time.Second)
		world.Create(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: aVolume("disk", csi).Spec})
		w.Pass(time.Second)
		if got := world.Get[*corev1.PersistentVolumeClaim](w, "default", "data").Status.Phase; got != corev1.ClaimBound {
			t.Errorf("the claim is %s", got)
		}
	})
}

// TestEnded: when a pod no longer uses its volumes.
func TestEnded(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	stopped := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	with := func(states ...corev1.ContainerState) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			for _, s := range states {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{State: s})
			}
		}
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"pending", claimPod("p", "n", podInPhase(corev1.PodPending)), false},
		{"running", claimPod("p", "n", podInPhase(corev1.PodRunning)), false},
		{"unknown", claimPod("p", "n", podInPhase(corev1.PodUnknown)), false},
		{"succeeded", claimPod("p", "n", podInPhase(corev1.PodSucceeded)), true},
		{"failed", claimPod("p", "n", podInPhase(corev1.PodFailed)), true},
		{"failed, though a container runs", claimPod("p", "n", podInPhase(corev1.PodFailed), with(running)), true},
		{"all containers stopped, but it stays", claimPod("p", "n", with(stopped)), false},
		{"leaving, without containers", claimPod("p", "n", leavingPod), true},
		{"leaving, one runs", claimPod("p", "n", leavingPod, with(stopped, running)), false},
		{"leaving, all stopped", claimPod("p", "n", leavingPod, with(stopped, stopped)), true},
		{"leaving, one never started", claimPod("p", "n", leavingPod, with(stopped, waiting)), true},
		{"leaving, nobody knows what one does", claimPod("p", "n", leavingPod, with(corev1.ContainerState{})), false},
	} {
		if got := isPodTerminated(test.pod); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestClaimsOfPods: the claims behind a pod's volumes.
func TestClaimsOfPods(t *testing.T) {
	empty := corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	for _, test := range []struct {
		what    string
		volumes []corev1.Volume
		want    string
	}{
		{"none", nil, "[]"},
		{"no claim behind it", []corev1.Volume{empty}, "[]"},
		{"by name", []corev1.Volume{usesClaim("v", "data")}, "[default/data]"},
		{"its own", []corev1.Volume{usesEphemeral("v")}, "[default/p-v]"},
		{"all together", []corev1.Volume{usesClaim("v", "data"), empty, usesEphemeral("w"), usesClaim("x", "more")}, "[default/data default/p-w default/more]"},
		{"the same twice", []corev1.Volume{usesClaim("v", "data"), usesClaim("w", "data")}, "[default/data default/data]"},
	} {
		pod := claimPod("p", "n", withVolumes(test.volumes...))
		if got, keys := fmt.Sprint(claimsOf(pod)), fmt.Sprint(claimKeys(pod)); got != test.want || keys != test.want {
			t.Errorf("%s: %s, keys %s, want %s", test.what, got, keys, test.want)
		}
	}
}

// TestSayings: what claims, volumes and classes say by fields and by older annotations.
func TestSayings(t *testing.T) {
	beta := corev1.BetaStorageClassAnnotation
	for _, test := range []struct {
		what      string
		got, want any
	}{
		{"a claim's class", classOfClaim(aClaim(ofClass("fast"))), "fast"},
		{"a claim's class by annotation", classOfClaim(aClaim(ofClass("fast"), noted(beta, "slow"))), "slow"},
		{"a claim's class by an empty annotation", classOfClaim(aClaim(ofClass("fast"), noted(beta, ""))), ""},
		{"a claim that says nothing", classOfClaim(aClaim(saysNothing)), ""},
		{"a volume's class", classOfVolume(aVolume("v", inClass("fast"))), "fast"},
		{"a volume's class by annotation", classOfVolume(aVolume("v", inClass("fast"), marked(beta, "slow"))), "slow"},
		{"no mode", modeOf(nil), corev1.PersistentVolumeFilesystem},
		{"blocks", modeOf(new(corev1.PersistentVolumeBlock)), corev1.PersistentVolumeBlock},
		{"no class waits", waitsForFirstConsumer(nil), false},
		{"a class without a mode", waitsForFirstConsumer(&storagev1.StorageClass{}), false},
		{"a class that binds at once", waitsForFirstConsumer(aClass("x", "y", storagev1.VolumeBindingImmediate)), false},
		{"a class that waits", waitsForFirstConsumer(aClass("x", "y", storagev1.VolumeBindingWaitForFirstConsumer)), true},
		{"room", storageOf(room("1Ki")), int64(1024)},
		{"part of a byte", storageOf(room("1500m")), int64(2)},
		{"no room", storageOf(nil), int64(0)},
		{"no default", isDefault(aClass("x", "y", storagev1.VolumeBindingImmediate)), false},
		{"nothing behind a pointer", deref[string](nil), ""},
	} {
		if test.got != test.want {
			t.Errorf("%s: %v, want %v", test.what, test.got, test.want)
		}
	}
}

// TestPatches: patches name the object they are for, so that another of its name is spared.
func TestPatches(t *testing.T) {
	w := patchStatus(aVolume("v"), map[string]any{"phase": corev1.VolumeBound})
	if string(w.Patch) != `{"metadata":{"uid":"uid-v"},"status":{"phase":"Bound"}}` || w.Verb != controller.PatchStatus || w.PatchType != client.MergePatch {
		t.Errorf("%s %s %v", w.Verb, w.Patch, w.PatchType)
	}
	for verb, write := range map[string]controller.Write{"finalizers": addFinalizer(aVolume("v"), "f"), "$deleteFromPrimitiveList/finalizers": removeFinalizer(aVolume("v"), "f")} {
		if want := fmt.Sprintf(`"%s":["f"]`, verb); !strings.Contains(string(write.Patch), want) || !strings.Contains(string(write.Patch), `"uid":"uid-v"`) || write.PatchType != client.StrategicPatch {
			t.Errorf("%s: %s", verb, write.Patch)
		}
	}
}
