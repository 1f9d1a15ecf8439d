package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/world"
)

// mapWords writes a map down, sorted.
func mapWords(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, " ")
}

// objectWords writes down what binding changes of an object.
func objectWords(obj kind.Object) string {
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		ref := "nobody"
		if r := o.Spec.ClaimRef; r != nil {
			ref = fmt.Sprintf("%s %s %s/%s %s@%s", r.APIVersion, r.Kind, r.Namespace, r.Name, r.UID, r.ResourceVersion)
		}
		return fmt.Sprintf("PV %s of %s [%s]", o.Name, ref, mapWords(o.Annotations))
	case *corev1.PersistentVolumeClaim:
		return fmt.Sprintf("PVC %s of %q class %s [%s]", o.Name, o.Spec.VolumeName, deref(o.Spec.StorageClassName), mapWords(o.Annotations))
	}
	return fmt.Sprintf("%T %s", obj, obj.GetName())
}

// fully writes a plan down with all it writes and tells, one a line.
func fully(plan controller.Plan) string {
	var lines []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			switch {
			case w.Patch != nil:
				lines = append(lines, fmt.Sprintf("%s %s: %s", w.Verb, w.Object.GetName(), w.Patch))
			default:
				lines = append(lines, fmt.Sprintf("%s %s", w.Verb, objectWords(w.Object)))
			}
		}
	}
	for _, e := range plan.Events {
		lines = append(lines, fmt.Sprintf("tell %s %s %s: %s", e.Object.GetName(), e.Type, e.Reason, e.Message))
	}
	return strings.Join(lines, "\n")
}

func inClaimPhase(phase corev1.PersistentVolumeClaimPhase) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = phase }
}

func leavingVolume(v *corev1.PersistentVolume) { v.DeletionTimestamp = new(ago(0)) }
func onBlocks(v *corev1.PersistentVolume) {
	v.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
}
func wantsBlocks(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
}
func saysNothing(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }

const (
	boundPatch     = `{"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Bound"}}`
	availablePatch = `{"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Available"}}`
	releasedPatch  = `{"metadata":{"uid":"uid-v"},"status":{"message":null,"phase":"Released"}}`
	claimPatch     = `{"metadata":{"uid":"uid-data"},"status":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"5Gi"},"phase":"Bound"}}`
	lostPatch      = `{"metadata":{"uid":"uid-data"},"status":{"accessModes":null,"capacity":null,"currentVolumeAttributesClassName":null,"phase":"Lost"}}`
	pendingPatch   = `{"metadata":{"uid":"uid-data"},"status":{"accessModes":null,"capacity":null,"currentVolumeAttributesClassName":null,"phase":"Pending"}}`
	byUs           = "pv.kubernetes.io/bound-by-controller=yes"
	complete       = "pv.kubernetes.io/bind-completed=yes"
)

// TestBinding: all that is written to bind a claim and a volume, from every half-way state.
func TestBinding(t *testing.T) {
	completed := noted(bindCompleted, "yes")
	const theirs = "PV v of v1 PersistentVolumeClaim default/data uid-data@7"
	rev := func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "7" }
	mine := claimedBy("data", "uid-data")
	bound := inPhase(corev1.VolumeBound)
	settled := func(c *corev1.PersistentVolumeClaim) {
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: room("5Gi")}
	}
	for _, test := range []struct {
		what   string
		claim  *corev1.PersistentVolumeClaim
		volume *corev1.PersistentVolume
		want   []string
	}{
		{"a match: both by us", aClaim(rev), aVolume("v"),
			[]string{"update " + theirs + " [" + byUs + "]", "patch status of v: " + boundPatch, `update PVC data of "v" class  [` + complete + " " + byUs + "]", "patch status of data: " + claimPatch}},
		{"reserved by a user by name: the volume is not by us", aClaim(rev), aVolume("v", claimedBy("data", "")),
			[]string{"update " + theirs + " []", "patch status of v: " + boundPatch, `update PVC data of "v" class  [` + complete + " " + byUs + "]", "patch status of data: " + claimPatch}},
		{"asked for by a user by name: the claim is not by us", aClaim(rev, names("v")), aVolume("v"),
			[]string{"update " + theirs + " [" + byUs + "]", "patch status of v: " + boundPatch, `update PVC data of "v" class  [` + complete + "]", "patch status of data: " + claimPatch}},
		{"both by users", aClaim(rev, names("v")), aVolume("v", claimedBy("data", "")),
			[]string{"update " + theirs + " []", "patch status of v: " + boundPatch, `update PVC data of "v" class  [` + complete + "]", "patch status of data: " + claimPatch}},
		{"stopped after the first write", aClaim(rev), aVolume("v", mine, marked(boundByController, "yes")),
			[]string{"patch status of v: " + boundPatch, `update PVC data of "v" class  [` + complete + " " + byUs + "]", "patch status of data: " + claimPatch}},
		{"stopped after the second", aClaim(rev), aVolume("v", mine, marked(boundByController, "yes"), bound),
			[]string{`update PVC data of "v" class  [` + complete + " " + byUs + "]", "patch status of data: " + claimPatch}},
		{"stopped after the third", aClaim(rev, names("v"), completed, noted(boundByController, "yes")), aVolume("v", mine, marked(boundByController, "yes"), bound),
			[]string{"patch status of data: " + claimPatch}},
		{"at rest", aClaim(rev, names("v"), completed, settled), aVolume("v", mine, bound), nil},
		{"the volume lost its reference", aClaim(rev, names("v"), completed, settled), aVolume("v", bound), []string{"update " + theirs + " [" + byUs + "]"}},
		{"the volume says it is free", aClaim(rev, names("v"), completed, settled), aVolume("v", mine), []string{"patch status of v: " + boundPatch}},
		{"a note of completion that went", aClaim(rev, names("v"), settled), aVolume("v", mine, bound), []string{`update PVC data of "v" class  [` + complete + "]"}},
		{"lost before, found again", aClaim(rev, names("v"), completed, inClaimPhase(corev1.ClaimLost)), aVolume("v", mine, bound), []string{"patch status of data: " + claimPatch}},
		{"access modes follow the volume", aClaim(rev, names("v"), completed, settled), aVolume("v", mine, bound, func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
		}), []string{`patch status of data: {"metadata":{"uid":"uid-data"},"status":{"accessModes":["ReadWriteOnce","ReadOnlyMany"]}}`}},
		{"the capacity does not, once bound", aClaim(rev, names("v"), completed, settled), aVolume("v", mine, bound, sized("9Gi")), nil},
		{"a volume that is being resized shows what it was", aClaim(rev, names("v"), completed), aVolume("v", mine, bound, marked(preResizeCapacity, "3Gi")),
			[]string{`patch status of data: {"metadata":{"uid":"uid-data"},"status":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"3Gi"},"phase":"Bound"}}`}},
		{"unless nobody can read it", aClaim(rev, names("v"), completed), aVolume("v", mine, bound, marked(preResizeCapacity, "much")), []string{"patch status of data: " + claimPatch}},
		{"its attributes class is told with the first binding", aClaim(rev, names("v"), completed), aVolume("v", mine, bound, func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = new("gold") }),
			[]string{`patch status of data: {"metadata":{"uid":"uid-data"},"status":{"accessModes":["ReadWriteOnce"],"capacity":{"storage":"5Gi"},"currentVolumeAttributesClassName":"gold","phase":"Bound"}}`}},
		{"but not when it was lost", aClaim(rev, names("v"), completed, inClaimPhase(corev1.ClaimLost)), aVolume("v", mine, bound, func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = new("gold") }),
			[]string{"patch status of data: " + claimPatch}},
	} {
		claim, volume := test.claim.DeepCopy(), test.volume.DeepCopy()
		v := claimView{claim: test.claim, volume: test.volume}
		if got, want := fully(v.reconcile()), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, want)
		}
		if objectWords(claim) != objectWords(test.claim) || objectWords(volume) != objectWords(test.volume) {
			t.Errorf("%s: what came from the cache was changed", test.what)
		}
	}
}

// TestClaimsWithoutAVolume: what is reported and written for a claim that has none.
func TestClaimsWithoutAVolume(t *testing.T) {
	classes := []*storagev1.StorageClass{
		aClass("fast", "example.com/disk", storagev1.VolumeBindingImmediate), aClass("lazy", "example.com/disk", storagev1.VolumeBindingWaitForFirstConsumer),
		aClass("old", "kubernetes.io/no-provisioner", storagev1.VolumeBindingImmediate), aClass("oldlazy", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer),
		{ObjectMeta: metav1.ObjectMeta{Name: "modeless"}, Provisioner: "example.com/disk"},
	}
	const external = "tell data Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'example.com/disk' or manually by the system administrator. " +
		"If volume creation is delayed, please verify that the provisioner is running and correctly registered."
	const calledOld, calledNew = "volume.beta.kubernetes.io/storage-provisioner=example.com/disk", "volume.kubernetes.io/storage-provisioner=example.com/disk"
	const called = calledOld + " " + calledNew
	bound := func(c *corev1.PersistentVolumeClaim) {
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: c.Spec.AccessModes, Capacity: room("1Gi")}
	}
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		volume  *corev1.PersistentVolume // by its name
		waiting []string
		want    []string
	}{
		{"no class", aClaim(), nil, nil, []string{"tell data Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"}},
		{"no class, by annotation", aClaim(ofClass("fast"), noted(corev1.BetaStorageClassAnnotation, "")), nil, nil, []string{"tell data Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"}},
		{"no class specified and none is the default", aClaim(saysNothing), nil, nil, []string{"tell data Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"}},
		{"a phase that is not so is written", aClaim(bound), nil, nil, []string{"patch status of data: " + pendingPatch, "tell data Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"}},
		{"a class nobody knows", aClaim(ofClass("slow")), nil, nil, []string{`tell data Warning ProvisioningFailed: storageclass.storage.k8s.io "slow" not found`}},
		{"a class by annotation", aClaim(noted(corev1.BetaStorageClassAnnotation, "slow")), nil, nil, []string{`tell data Warning ProvisioningFailed: storageclass.storage.k8s.io "slow" not found`}},
		{"a provisioner that is no more", aClaim(ofClass("old")), nil, nil, []string{"tell data Warning ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"}},
		{"called for", aClaim(ofClass("fast")), nil, nil, []string{`update PVC data of "" class fast [` + called + "]", external}},
		{"a class without a binding mode binds at once", aClaim(ofClass("modeless")), nil, nil, []string{`update PVC data of "" class modeless [` + called + "]", external}},
		{"called for another before", aClaim(ofClass("fast"), noted(storageProvisioner, "example.com/tape")), nil, nil, []string{`update PVC data of "" class fast [` + called + "]", external}},
		{"called for already", aClaim(ofClass("fast"), noted(storageProvisioner, "example.com/disk")), nil, nil, []string{external}},
		{"nobody needs it yet", aClaim(ofClass("lazy")), nil, nil, []string{"tell data Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"}},
		{"nobody needs it yet, and nobody could make it", aClaim(ofClass("oldlazy")), nil, nil, []string{"tell data Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"}},
		{"one pod waits", aClaim(ofClass("lazy")), nil, []string{"a"}, []string{"tell data Normal WaitForPodScheduled: waiting for pod a to be scheduled"}},
		{"pods wait", aClaim(ofClass("lazy")), nil, []string{"a", "b"}, []string{"tell data Normal WaitForPodScheduled: waiting for pods a,b to be scheduled"}},
		{"the scheduler chose a node", aClaim(ofClass("lazy"), noted(selectedNode, "n")), nil, nil, []string{`update PVC data of "" class lazy [` + calledOld + " volume.kubernetes.io/selected-node=n " + calledNew + "]", external}},
		{"an empty choice is one", aClaim(ofClass("lazy"), noted(selectedNode, "")), nil, nil, []string{`update PVC data of "" class lazy [` + calledOld + " volume.kubernetes.io/selected-node= " + calledNew + "]", external}},
		{"asks for what is not there", aClaim(names("v")), nil, nil, nil},
		{"asks for what is not there, and was bound", aClaim(names("v"), bound), nil, nil, []string{"patch status of data: " + pendingPatch}},
		{"asks for what is too small", aClaim(names("v")), aVolume("v", sized("1Mi")), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": requested PV is too small`}},
		{"asks for blocks of a directory", aClaim(names("v"), wantsBlocks), aVolume("v"), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible volumeMode`}},
		{"asks for a volume of another class", aClaim(names("v"), ofClass("fast")), aVolume("v", inClass("slow")), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": storageClassName does not match`}},
		{"asks for a volume of a class, and wants none", aClaim(names("v")), aVolume("v", inClass("slow")), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": storageClassName does not match`}},
		{"asks for more than one node of a volume for one", aClaim(names("v"), wanting(corev1.ReadWriteMany)), aVolume("v"), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible accessMode`}},
		{"asks for attributes a volume has not", aClaim(names("v"), wantingAttributes("gold")), aVolume("v"), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": volumeAttributesClassName does not match`}},
		{"a mismatch of a claim that was bound is pending again", aClaim(names("v"), bound, wantsBlocks), aVolume("v"), nil, []string{"patch status of data: " + pendingPatch, `tell data Warning VolumeMismatch: Cannot bind to requested volume "v": incompatible volumeMode`}},
		{"asks for what is leaving", aClaim(names("v")), aVolume("v", leavingVolume), nil, []string{`tell data Warning VolumeMismatch: Cannot bind to requested volume "v": the volume is marked for deletion "v"`}},
		{"asks for another's", aClaim(names("v")), aVolume("v", claimedBy("other", "uid-other")), nil, []string{`tell data Warning FailedBinding: volume "v" already bound to a different claim.`}},
		{"asks for what was reserved for an earlier one of its name", aClaim(names("v")), aVolume("v", claimedBy("data", "uid-before")), nil, []string{`tell data Warning FailedBinding: volume "v" already bound to a different claim.`}},
		{"bound, and its volume is gone", aClaim(names("v"), noted(bindCompleted, "yes"), bound), nil, nil, []string{"patch status of data: " + lostPatch, "tell data Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"}},
		{"bound, and its reference is gone", aClaim(noted(bindCompleted, "yes"), bound), nil, nil, []string{"patch status of data: " + lostPatch, "tell data Warning ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"}},
		{"bound, and its volume is another's", aClaim(names("v"), noted(bindCompleted, "yes"), bound), aVolume("v", claimedBy("other", "uid-other")), nil, []string{"patch status of data: " + lostPatch, "tell data Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"}},
		{"bound to what is reserved for its name only", aClaim(names("v"), noted(bindCompleted, "yes"), bound), aVolume("v", claimedBy("data", "")), nil, []string{"patch status of data: " + lostPatch, "tell data Warning ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"}},
		{"lost is told once", aClaim(names("v"), noted(bindCompleted, "yes"), inClaimPhase(corev1.ClaimLost)), nil, nil, nil},
	} {
		v := claimView{claim: test.claim, volume: test.volume, classes: classes, unscheduledPods: test.waiting}
		if got, want := fully(v.reconcile()), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, want)
		}
	}
}

// TestDefaultClass: a claim that says nothing gets the newest default.
func TestDefaultClass(t *testing.T) {
	class := func(name, annotation, is string, before time.Duration) *storagev1.StorageClass {
		c := aClass(name, "example.com/disk", storagev1.VolumeBindingImmediate)
		c.CreationTimestamp = ago(before)
		if annotation != "" {
			c.Annotations = map[string]string{annotation: is}
		}
		return c
	}
	old, young := class("old", defaultClass, "true", time.Hour), class("young", defaultClass, "true", time.Minute)
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		classes []*storagev1.StorageClass
		want    string
	}{
		{"none", aClaim(saysNothing), nil, ""},
		{"none that is the default", aClaim(saysNothing), []*storagev1.StorageClass{class("a", "", "", 0)}, ""},
		{"one", aClaim(saysNothing), []*storagev1.StorageClass{class("a", "", "", 0), old}, "old"},
		{"one by the older annotation", aClaim(saysNothing), []*storagev1.StorageClass{class("b", oldDefaultClass, "true", 0)}, "b"},
		{"one that says no", aClaim(saysNothing), []*storagev1.StorageClass{class("b", defaultClass, "false", 0)}, ""},
		{"another spelling is no", aClaim(saysNothing), []*storagev1.StorageClass{class("b", defaultClass, "True", 0)}, ""},
		{"the younger of two", aClaim(saysNothing), []*storagev1.StorageClass{old, young}, "young"},
		{"in whatever order", aClaim(saysNothing), []*storagev1.StorageClass{young, old}, "young"},
		{"of the same age the first by name", aClaim(saysNothing), []*storagev1.StorageClass{class("b", defaultClass, "true", 0), class("a", defaultClass, "true", 0)}, "a"},
		{"a claim that wants none", aClaim(), []*storagev1.StorageClass{old}, ""},
		{"a claim that has one", aClaim(ofClass("x")), []*storagev1.StorageClass{old}, ""},
		{"a claim that has one by annotation", aClaim(saysNothing, noted(corev1.BetaStorageClassAnnotation, "")), []*storagev1.StorageClass{old}, ""},
	} {
		v := claimView{claim: test.claim, classes: test.classes}
		if got := v.defaultClassName(); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
		if want := `update PVC data of "" class ` + test.want + " []"; test.want != "" && fully(v.reconcile()) != want {
			t.Errorf("%s: %s", test.what, fully(v.reconcile()))
		}
	}
}

// TestVolumesFully: all that becomes of a volume, by its claim and its policy.
func TestVolumesFully(t *testing.T) {
	mine := claimedBy("data", "uid-data")
	remove, recycle := reclaims(corev1.PersistentVolumeReclaimDelete), reclaims(corev1.PersistentVolumeReclaimRecycle)
	bound, released, failed := inPhase(corev1.VolumeBound), inPhase(corev1.VolumeReleased), inPhase(corev1.VolumeFailed)
	made := marked(provisionedBy, "example.com/disk")
	fails := func(reason, message string) []string {
		return []string{fmt.Sprintf(`patch status of v: {"metadata":{"uid":"uid-v"},"status":{"message":%q,"phase":"Failed"}}`, message), fmt.Sprintf("tell v Warning %s: %s", reason, message)}
	}
	undeletable := func(why string) []string {
		return fails("VolumeFailedDelete", `error getting deleter volume plugin for volume "v": `+why)
	}
	after := func(first string, rest []string) []string {
		return append([]string{"patch status of v: " + first}, rest...)
	}
	onHost := func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/x"} }
	onNFS := func(v *corev1.PersistentVolume) { v.Spec.NFS = &corev1.NFSVolumeSource{} }
	reborn := aClaim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-new" })
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   []string
	}{
		{"new", aVolume("v", inPhase("")), nil, []string{"patch status of v: " + availablePatch}},
		{"free", aVolume("v"), nil, nil},
		{"free, and was released", aVolume("v", released), nil, []string{"patch status of v: " + availablePatch}},
		{"free, and was failed", aVolume("v", failed), nil, []string{"patch status of v: " + availablePatch}},
		{"reserved by name", aVolume("v", claimedBy("data", ""), bound), nil, []string{"patch status of v: " + availablePatch}},
		{"reserved by name, and the claim is there", aVolume("v", claimedBy("data", "")), aClaim(), nil},
		{"bound", aVolume("v", mine, bound), aClaim(names("v")), nil},
		{"bound, and does not say so", aVolume("v", mine), aClaim(names("v")), []string{"patch status of v: " + boundPatch}},
		{"bound again after all", aVolume("v", mine, released), aClaim(names("v")), []string{"patch status of v: " + boundPatch}},
		{"the claim does not know yet", aVolume("v", mine), aClaim(), nil},
		{"the claim does not know yet and wants blocks", aVolume("v", mine), aClaim(wantsBlocks), []string{
			`tell v Warning VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim "data" due to incompatible volumeMode.`,
			`tell data Warning VolumeMismatch: Cannot bind PersistentVolume "v" to requested PersistentVolumeClaim due to incompatible volumeMode.`}},
		{"the claim is gone: kept", aVolume("v", mine, bound), nil, []string{"patch status of v: " + releasedPatch}},
		{"the claim is another: kept", aVolume("v", mine, bound), reborn, []string{"patch status of v: " + releasedPatch}},
		{"released: kept", aVolume("v", mine, released), nil, nil},
		{"failed: kept", aVolume("v", mine, failed), nil, nil},
		{"a provisioner's", aVolume("v", mine, bound, remove, made), nil, []string{"patch status of v: " + releasedPatch}},
		{"a CSI driver's that nobody provisioned", aVolume("v", mine, bound, remove, csi), nil, []string{"patch status of v: " + releasedPatch}},
		{"one that moved to a CSI driver", aVolume("v", mine, bound, remove, marked(migratedTo, "csi.example.com")), nil, []string{"patch status of v: " + releasedPatch}},
		{"one that was made by what is no more", aVolume("v", mine, bound, remove, marked(provisionedBy, "kubernetes.io/aws-ebs")), nil, after(releasedPatch, fails("VolumeFailedDelete", "no volume plugin matched name: kubernetes.io/aws-ebs"))},
		{"a directory of a node", aVolume("v", mine, bound, remove, onHost), nil, after(releasedPatch, undeletable("no deletable volume plugin matched"))},
		{"a network's directory", aVolume("v", mine, released, remove, onNFS), nil, undeletable("no deletable volume plugin matched")},
		{"what nobody knows", aVolume("v", mine, released, remove), nil, undeletable("no volume plugin matched")},
		{"what nobody knows, failed before", aVolume("v", mine, failed, remove), nil, nil},
		{"nobody recycles what was recycled before", aVolume("v", mine, failed, recycle), nil, nil},
		{"a claim of another namespace has the name: gone", aVolume("v", mine, bound, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "other" }), nil, []string{"patch status of v: " + releasedPatch}},
		{"one that moved to a CSI driver, without its name", aVolume("v", mine, released, remove, marked(migratedTo, "")), nil, nil},
		{"one whose maker left its name empty", aVolume("v", mine, released, remove, marked(provisionedBy, "")), nil, undeletable("no volume plugin matched")},
		{"nobody recycles", aVolume("v", mine, bound, recycle), nil, after(releasedPatch, fails("VolumeFailedRecycle", "No recycler plugin found for the volume!"))},
		{"no policy that is one", aVolume("v", mine, released, reclaims("Burn")), nil, fails("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")},
		{"the claim took another: by us", aVolume("v", mine, bound, marked(boundByController, "yes")), aClaim(names("w")), []string{"update PV v of nobody []", "patch status of v: " + availablePatch}},
		{"the claim took another: by a user, who keeps his reservation", aVolume("v", mine, bound), aClaim(names("w")), []string{"update PV v of   default/data @ []", "patch status of v: " + availablePatch}},
		{"the claim took another: by us, other notes stay", aVolume("v", mine, marked(boundByController, "yes"), marked("mine", "1")), aClaim(names("w")), []string{"update PV v of nobody [mine=1]"}},
		{"made for a claim that took another: deleted", aVolume("v", mine, bound, remove, made), aClaim(names("w")), []string{"patch status of v: " + releasedPatch}},
		{"made for a claim that took another: kept, and free again", aVolume("v", mine, bound, made, marked(boundByController, "yes")), aClaim(names("w")),
			[]string{"update PV v of nobody [pv.kubernetes.io/provisioned-by=example.com/disk]", "patch status of v: " + availablePatch}},
	} {
		if got, want := fully(volumeView{volume: test.volume, claim: test.claim}.reconcile()), strings.Join(test.want, "\n"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, want)
		}
	}
}

// TestGivingUp: before a volume is released, the server itself is asked.
func TestGivingUp(t *testing.T) {
	mine := claimedBy("data", "uid-data")
	reborn := aClaim(func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-old" })
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   bool
	}{
		{"its claim is there", aVolume("v", mine), aClaim(), false},
		{"its claim is not seen", aVolume("v", mine), nil, true},
		{"its claim is not seen, and it is bound", aVolume("v", mine, inPhase(corev1.VolumeBound)), nil, true},
		{"released already", aVolume("v", mine, inPhase(corev1.VolumeReleased)), nil, false},
		{"failed already", aVolume("v", mine, inPhase(corev1.VolumeFailed)), nil, false},
		{"an earlier claim of the name is seen: the cache may be old", aVolume("v", mine), reborn, true},
		{"an earlier claim of the name is seen, released already", aVolume("v", mine, inPhase(corev1.VolumeReleased)), reborn, true},
		{"reserved by name", aVolume("v", claimedBy("data", "")), nil, false},
	} {
		if got := (volumeView{volume: test.volume, claim: test.claim}).wouldRelease(); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestUnscheduled: the pods a claim waits for, as reported.
func TestUnscheduled(t *testing.T) {
	pod := func(name string, changes ...change[*corev1.Pod]) *corev1.Pod {
		return with(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, changes...)
	}
	got := unscheduled([]*corev1.Pod{
		pod("b"), pod("a"), pod("placed", func(p *corev1.Pod) { p.Spec.NodeName = "n" }), pod("over", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		pod("leaving", func(p *corev1.Pod) { p.DeletionTimestamp = new(ago(0)) }),
	})
	if fmt.Sprint(got) != "[a b]" {
		t.Errorf("%v", got)
	}
}

// TestBinderInAWorld: claims and volumes find each other in whatever order they come; a pending claim is reported again.
func TestBinderInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Binder)()
		claim := func(name string, changes ...change[*corev1.PersistentVolumeClaim]) {
			c := aClaim(changes...)
			c.Name, c.UID, c.Status = name, "", corev1.PersistentVolumeClaimStatus{}
			world.Create(w, c)
		}
		volume := func(name string, changes ...change[*corev1.PersistentVolume]) {
			v := aVolume(name, append(changes, func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/" + name} })...)
			v.UID, v.Status = "", corev1.PersistentVolumeStatus{}
			world.Create(w, v)
		}
		state := func() string {
			w.Pass(time.Second)
			var all []string
			for _, c := range world.List[*corev1.PersistentVolumeClaim](w) {
				all = append(all, fmt.Sprintf("%s:%s:%s", c.Name, c.Status.Phase, c.Spec.VolumeName))
			}
			for _, v := range world.List[*corev1.PersistentVolume](w) {
				all = append(all, fmt.Sprintf("%s:%s", v.Name, v.Status.Phase))
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		claim("first")
		if got := state(); got != "first:Pending:" {
			t.Errorf("a claim alone: %s", got)
		}
		volume("v1")
		if got := state(); got != "first:Bound:v1 v1:Bound" {
			t.Errorf("its volume came: %s", got)
		}
		volume("v2", sized("2Gi"))
		volume("v3", claimedBy("third", ""))
		claim("second")
		claim("third")
		if got := state(); got != "first:Bound:v1 second:Bound:v2 third:Bound:v3 v1:Bound v2:Bound v3:Bound" {
			t.Errorf("a free one and a reserved one: %s", got)
		}
		w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "second"))
		if got := state(); got != "first:Bound:v1 third:Bound:v3 v1:Bound v2:Released v3:Bound" {
			t.Errorf("a claim went: %s", got)
		}
		claim("second")
		if got := state(); got != "first:Bound:v1 second:Pending: third:Bound:v3 v1:Bound v2:Released v3:Bound" {
			t.Errorf("another of its name does not get its data: %s", got)
		}
		w.Remove(world.Get[*corev1.PersistentVolume](w, "", "v1"))
		if got := state(); got != "first:Lost:v1 second:Pending: third:Bound:v3 v2:Released v3:Bound" {
			t.Errorf("a volume went: %s", got)
		}
		world.Edit(w, "", "v2", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })
		if got := state(); got != "first:Lost:v1 second:Bound:v2 third:Bound:v3 v2:Bound v3:Bound" {
			t.Errorf("an owner gave a volume free: %s", got)
		}
		w.AssertSettled(Binder)
	})
}

// claimAfter and volumeAfter are what a write leaves of an object: an update changes all but the status, a patch the status.
func claimAfter(t *testing.T, w controller.Write, current *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	t.Helper()
	if w.Patch == nil {
		after := w.Object.(*corev1.PersistentVolumeClaim).DeepCopy()
		after.Status = current.Status
		return after
	}
	patched(t, w, current)
	return current
}

func volumeAfter(t *testing.T, w controller.Write, current *corev1.PersistentVolume) *corev1.PersistentVolume {
	t.Helper()
	if w.Patch == nil {
		after := w.Object.(*corev1.PersistentVolume).DeepCopy()
		after.Status = current.Status
		return after
	}
	patched(t, w, current)
	return current
}

func patched(t *testing.T, w controller.Write, obj kind.Object) {
	t.Helper()
	if err := json.Unmarshal(w.Patch, obj); err != nil {
		t.Fatal(err)
	}
}

// TestBindingReachesARest: claims and volumes of all sorts, looked at in random order, with objects that come and go meanwhile: in the
// end every binding is mutual, no volume has two claims, what could be bound is, and nothing more is written.
func TestBindingReachesARest(t *testing.T) {
	const seed = 37
	for round := range 150 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		pick := func(from ...string) string { return from[random.IntN(len(from))] }
		claims, volumes := map[string]*corev1.PersistentVolumeClaim{}, map[string]*corev1.PersistentVolume{}
		serial := 0
		addClaim := func() {
			name := fmt.Sprint("c", random.IntN(5))
			if claims[name] != nil {
				return
			}
			serial++
			c := aClaim(ofClass(pick("", "", "fast")), asking(pick("1Gi", "3Gi", "6Gi")))
			c.Name, c.UID = name, types.UID(fmt.Sprint("uid-c", serial))
			if random.IntN(4) == 0 {
				c.Spec.VolumeName = fmt.Sprint("v", random.IntN(5))
			}
			claims[name] = c
		}
		addVolume := func() {
			name := fmt.Sprint("v", random.IntN(5))
			if volumes[name] != nil {
				return
			}
			v := aVolume(name, inClass(pick("", "", "fast")), sized(pick("2Gi", "4Gi")), inPhase(corev1.VolumePending))
			if random.IntN(4) == 0 {
				claimedBy(fmt.Sprint("c", random.IntN(5)), "")(v)
			}
			volumes[name] = v
		}
		apply := func(plan controller.Plan) (writes int) {
			for _, step := range plan.Steps {
				for _, w := range step.Writes {
					writes++
					switch o := w.Object.(type) {
					case *corev1.PersistentVolumeClaim:
						claims[o.Name] = claimAfter(t, w, claims[o.Name])
					case *corev1.PersistentVolume:
						volumes[o.Name] = volumeAfter(t, w, volumes[o.Name])
					}
				}
			}
			return writes
		}
		all := func() (list []*corev1.PersistentVolume) {
			for _, name := range slices.Sorted(maps.Keys(volumes)) {
				list = append(list, volumes[name].DeepCopy())
			}
			return list
		}
		syncClaim := func(name string) int {
			v := claimView{claim: claims[name].DeepCopy()}
			if v.claim.Spec.VolumeName != "" {
				v.volume = volumes[v.claim.Spec.VolumeName].DeepCopy()
			} else if !metav1.HasAnnotation(v.claim.ObjectMeta, bindCompleted) {
				v.volume, _ = match(v.claim, all(), false)
			}
			return apply(v.reconcile())
		}
		syncVolume := func(name string) int {
			v := volumeView{volume: volumes[name].DeepCopy()}
			if ref := v.volume.Spec.ClaimRef; ref != nil {
				v.claim = claims[ref.Name].DeepCopy()
			}
			return apply(v.reconcile())
		}
		for range 60 {
			switch random.IntN(8) {
			case 0:
				addClaim()
			case 1:
				addVolume()
			case 2:
				if name := fmt.Sprint("c", random.IntN(5)); random.IntN(3) == 0 {
					delete(claims, name)
				}
			default:
				if name := fmt.Sprint("c", random.IntN(5)); random.IntN(2) == 0 && claims[name] != nil {
					syncClaim(name)
				} else if name := fmt.Sprint("v", random.IntN(5)); volumes[name] != nil {
					syncVolume(name)
				}
			}
		}
		for round := 0; ; round++ {
			writes := 0
			for _, name := range slices.Sorted(maps.Keys(claims)) {
				writes += syncClaim(name)
			}
			for _, name := range slices.Sorted(maps.Keys(volumes)) {
				writes += syncVolume(name)
			}
			if writes == 0 {
				break
			}
			if round > 20 {
				t.Fatalf("seed %d, round %d: no rest", seed, round)
			}
		}
		fail := func(why string, obj kind.Object) {
			t.Fatalf("seed %d, round %d: %s: %s", seed, round, why, objectWords(obj))
		}
		for _, c := range claims {
			v := volumes[c.Spec.VolumeName]
			switch {
			case c.Status.Phase == corev1.ClaimBound && (v == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID || v.Status.Phase != corev1.VolumeBound || !metav1.HasAnnotation(c.ObjectMeta, bindCompleted)):
				fail("a claim that is bound alone", c)
			case c.Status.Phase == corev1.ClaimBound && storageOf(c.Status.Capacity) != storageOf(v.Spec.Capacity):
				fail("a claim with another capacity than its volume's", c)
			case c.Status.Phase == corev1.ClaimPending && c.Spec.VolumeName == "":
				if free, _ := match(c, all(), false); free != nil {
					fail("a claim that could be bound to "+free.Name, c)
				}
			}
		}
		for _, v := range volumes {
			ref := v.Spec.ClaimRef
			switch {
			case v.Status.Phase == corev1.VolumeBound && (ref == nil || claims[ref.Name] == nil || claims[ref.Name].UID != ref.UID):
				fail("a volume that is bound alone", v)
			case v.Status.Phase == corev1.VolumeAvailable && ref != nil && ref.UID != "":
				fail("a volume that is free and has a claim", v)
			case ref != nil && ref.UID != "" && (claims[ref.Name] == nil || claims[ref.Name].UID != ref.UID) && v.Status.Phase != corev1.VolumeReleased:
				fail("a volume that keeps a claim that is gone", v)
			}
		}
	}
}

// TestWaitingForAConsumer: with a class that waits, nothing is bound before a pod has a node; a class that comes later is used.
func TestWaitingForAConsumer(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Binder)()
		lazy := aClass("lazy", "example.com/disk", storagev1.VolumeBindingWaitForFirstConsumer)
		lazy.Annotations = map[string]string{defaultClass: "true"}
		claim := aClaim(saysNothing)
		claim.UID, claim.Status = "", corev1.PersistentVolumeClaimStatus{}
		world.Create(w, claim)
		get := func() *corev1.PersistentVolumeClaim {
			w.Pass(time.Second)
			return world.Get[*corev1.PersistentVolumeClaim](w, "default", "data")
		}
		if c := get(); c.Spec.StorageClassName != nil {
			t.Fatalf("a class from nowhere: %s", *c.Spec.StorageClassName)
		}
		world.Create(w, lazy)
		if c := get(); deref(c.Spec.StorageClassName) != "lazy" {
			t.Fatalf("the default came later: %q", deref(c.Spec.StorageClassName))
		}
		volume := aVolume("v", inClass("lazy"), func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/v"} })
		volume.UID, volume.Status = "", corev1.PersistentVolumeStatus{}
		world.Create(w, volume)
		if c := get(); c.Spec.VolumeName != "" {
			t.Errorf("bound before it is needed: %s", c.Spec.VolumeName)
		}
		pod := claimPod("p", "")
		pod.UID = ""
		world.Create(w, pod)
		w.Pass(2 * time.Minute)
		told := w.Events("data")
		for _, want := range []string{"WaitForFirstConsumer: waiting for first consumer to be created before binding", "WaitForPodScheduled: waiting for pod p to be scheduled"} {
			if !slices.Contains(told, want) {
				t.Errorf("told %q, not %q", told, want)
			}
		}
		// The scheduler chose the volume: it writes the claim into it.
		uid := get().UID
		world.Edit(w, "", "v", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: uid}
		})
		if c := get(); c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != "v" {
			t.Errorf("chosen: %s %s", c.Status.Phase, c.Spec.VolumeName)
		}
		w.AssertSettled(Binder)
	})
}

// TestStoppedAnywhere: whichever write of a binding was the last before the process ended, the next sync finishes it, and what is there in
// the end is the same.
func TestStoppedAnywhere(t *testing.T) {
	end := func(stop int) (string, int) {
		claim, volume := aClaim(), aVolume("v")
		writes := 0
		for {
			plan := claimView{claim: claim.DeepCopy(), volume: volume.DeepCopy()}.reconcile()
			if len(plan.Steps) == 0 {
				break
			}
			for _, step := range plan.Steps {
				w := step.Writes[0]
				switch w.Object.(type) {
				case *corev1.PersistentVolumeClaim:
					claim = claimAfter(t, w, claim)
				case *corev1.PersistentVolume:
					volume = volumeAfter(t, w, volume)
				}
				if writes++; writes == stop {
					break // nothing hears of the rest
				}
			}
		}
		return fmt.Sprint(objectWords(claim), claim.Status.Phase, claim.Status.AccessModes, storageOf(claim.Status.Capacity), objectWords(volume), volume.Status.Phase), writes
	}
	want, writes := end(0)
	if writes != 4 || !strings.Contains(want, "Bound") {
		t.Fatalf("undisturbed: %d writes, %s", writes, want)
	}
	for stop := 1; stop <= writes; stop++ {
		if got, n := end(stop); got != want || n != writes {
			t.Errorf("stopped behind write %d: %d writes\n got %s\nwant %s", stop, n, got, want)
		}
	}
}

// TestReclaimInAWorld: what becomes of volumes when their claims go, policy by policy, told to who looks.
func TestReclaimInAWorld(t *testing.T) {
	for _, test := range []struct {
		what   string
		change change[*corev1.PersistentVolume]
		phase  corev1.PersistentVolumePhase
		told   string
	}{
		{"kept", func(*corev1.PersistentVolume) {}, corev1.VolumeReleased, ""},
		{"deleted by who made it", func(v *corev1.PersistentVolume) {
			reclaims(corev1.PersistentVolumeReclaimDelete)(v)
			marked(provisionedBy, "example.com/disk")(v)
		}, corev1.VolumeReleased, ""},
		{"nobody deletes a directory of a node", reclaims(corev1.PersistentVolumeReclaimDelete), corev1.VolumeFailed,
			`VolumeFailedDelete: error getting deleter volume plugin for volume "v": no deletable volume plugin matched`},
		{"nobody recycles", reclaims(corev1.PersistentVolumeReclaimRecycle), corev1.VolumeFailed, "VolumeFailedRecycle: No recycler plugin found for the volume!"},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				defer w.Run(Binder)()
				volume := aVolume("v", test.change, func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/v"} })
				volume.UID, volume.Status = "", corev1.PersistentVolumeStatus{}
				world.Create(w, volume)
				claim := aClaim()
				claim.UID, claim.Status = "", corev1.PersistentVolumeClaimStatus{}
				made := world.Create(w, claim)
				w.Pass(time.Second)
				if got := world.Get[*corev1.PersistentVolume](w, "", "v").Status.Phase; got != corev1.VolumeBound {
					t.Fatalf("bound: %s", got)
				}
				w.Remove(made)
				w.Pass(time.Minute)
				got := world.Get[*corev1.PersistentVolume](w, "", "v")
				if got.Status.Phase != test.phase || (got.Status.Message != "") != (test.phase == corev1.VolumeFailed) {
					t.Errorf("%s: %q", got.Status.Phase, got.Status.Message)
				}
				if told := strings.Join(w.Events("v"), "; "); told != test.told {
					t.Errorf("told %q, want %q", told, test.told)
				}
				w.AssertSettled(Binder)
			})
		})
	}
}
