package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

const once = corev1.ReadWriteOncePod

func TestVolumeRestrictions(t *testing.T) {
	const (
		taken = "no: node(s) had no available disk"
		inUse = "no: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
	)
	claim, alone := storageClaim("c"), storageClaim("c", claimModes(once))
	for _, test := range []struct {
		what    string
		known   objects
		running []*corev1.Pod
		pod     *corev1.Pod
		want    says
	}{
		{"a pod without volumes", nil, nil, testPod("p"), says{}},
		{"a directory is nobody's business", nil, []*corev1.Pod{testPod("1", on("a"), inline(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))},
			testPod("p", inline(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), says{}},
		{"a disk nobody has", nil, nil, testPod("p", inline(gceDisk("d", false))), says{}},
		{"a disk on one node", nil, []*corev1.Pod{testPod("1", on("a"), inline(gceDisk("d", false)))}, testPod("p", inline(gceDisk("d", false))), says{"a": taken}},
		{"a disk on both nodes", nil, []*corev1.Pod{testPod("1", on("a"), inline(gceDisk("d", true))), testPod("2", on("b"), inline(gceDisk("d", true)))}, testPod("p", inline(gceDisk("d", false))), says{"a": taken, "b": taken}},
		{"a disk of a pod in another namespace is the same disk", nil, []*corev1.Pod{testPod("1", on("a"), namespace("other"), inline(iscsiDisk("q", false)))}, testPod("p", inline(iscsiDisk("q", true))), says{"a": taken}},
		{"the second of two disks", nil, []*corev1.Pod{testPod("1", on("b"), inline(ebsDisk("y", true)))}, testPod("p", inline(ebsDisk("x", false)), inline(ebsDisk("y", true))), says{"b": taken}},
		{"the second disk of the other pod", nil, []*corev1.Pod{testPod("1", on("b"), inline(ebsDisk("x", false)), inline(rbdDisk("p", "i", false, "m")))}, testPod("p", inline(rbdDisk("p", "i", true, "n", "m"))), says{"b": taken}},
		{"the second pod of the node", nil, []*corev1.Pod{testPod("1", on("a")), testPod("2", on("a"), inline(ebsDisk("x", false)))}, testPod("p", inline(ebsDisk("x", false))), says{"a": taken}},
		{"disks of different kinds on different nodes", nil, []*corev1.Pod{testPod("1", on("a"), inline(gceDisk("x", false))), testPod("2", on("b"), inline(iscsiDisk("x", false)))},
			testPod("p", inline(gceDisk("x", true)), inline(iscsiDisk("x", true))), says{"a": taken, "b": taken}},
		{"a pod that has ended holds nothing", nil, []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("x", false)), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, testPod("p", inline(ebsDisk("x", false))), says{}},
		{"a pod on its way out still holds it", nil, []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("x", false)), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })}, testPod("p", inline(ebsDisk("x", false))), says{"a": taken}},

		{"a claim that is missing", nil, nil, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" not found`}},
		{"the first that is missing is named", objects{claim}, nil, testPod("p", usingClaim("c"), usingClaim("d"), usingClaim("e")), says{"*": `never: persistentvolumeclaim "d" not found`}},
		{"a claim of another namespace is missing", objects{storageClaim("c", claimIn("other"))}, nil, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim made for the pod is not looked for", nil, nil, testPod("p", usingOwn("v")), says{}},
		{"a claim others may use too", objects{claim}, []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{}},
		{"a claim for one pod, unused", objects{alone}, nil, testPod("p", usingClaim("c")), says{}},
		{"a claim for one pod, in use, is no use on any node", objects{alone}, []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{"a": inUse, "b": inUse}},
		{"one mode of several is for one pod", objects{storageClaim("c", claimModes(corev1.ReadWriteOnce, once))}, []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{"a": inUse, "b": inUse}},
		{"a claim of that name in another namespace is in use", objects{alone}, []*corev1.Pod{testPod("1", on("a"), namespace("other"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{}},
		{"a claim made for another pod, asked for by its name", objects{storageClaim("1-v", claimModes(once))}, []*corev1.Pod{testPod("1", on("a"), usingOwn("v"))}, testPod("p", usingClaim("1-v")), says{}},
		{"a claim made for the pod itself", objects{storageClaim("p-v", claimModes(once))}, []*corev1.Pod{testPod("1", on("a"), usingClaim("p-v"))}, testPod("p", usingOwn("v")), says{}},
		{"the second of two claims for one pod", objects{alone, storageClaim("d", claimModes(once))}, []*corev1.Pod{testPod("1", on("b"), usingClaim("d"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": inUse, "b": inUse}},
		{"in use by a pod of an unknown node", objects{alone}, []*corev1.Pod{testPod("1", on("gone"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{"a": inUse, "b": inUse}},
		{"of a disk and a claim, the disk is named", objects{alone}, []*corev1.Pod{testPod("1", on("a"), usingClaim("c"), inline(ebsDisk("x", false)))}, testPod("p", usingClaim("c"), inline(ebsDisk("x", false))), says{"a": taken, "b": inUse}},
		{"a missing claim is named before a disk", nil, []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("x", false)))}, testPod("p", inline(ebsDisk("x", false)), usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" not found`}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known, test.running...)
			if got := heard(t, s, volumeRestrictions{}, test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
			// What the others held is free when they are gone.
			for _, p := range test.running {
				s.DeletePod(p.UID)
			}
			if got := heard(t, s, volumeRestrictions{}, test.pod); len(got) > 0 && got["*"] == "" {
				t.Errorf("when nobody else is there: %v", got)
			}
		})
	}
}

// A claim for one pod is in use from the moment a pod is assumed to use it, as often as pods say so.
func TestClaimUsersAreCounted(t *testing.T) {
	s := knowing(t, twoZones(), objects{storageClaim("c", claimModes(once))})
	users := []*PodInfo{infoOf(t, testPod("1", usingClaim("c"), usingClaim("c"))), infoOf(t, testPod("2", usingClaim("c")))}
	refused := func() int { return len(heard(t, s, volumeRestrictions{}, testPod("p", usingClaim("c")))) }
	for i, u := range users {
		s.Assume(u, "a")
		if refused() != 2 {
			t.Errorf("with %d users the claim is free", i+1)
		}
	}
	s.Forget(users[0].Pod.UID)
	if refused() != 2 {
		t.Error("one of two users is gone, and the claim is free")
	}
	s.Forget(users[1].Pod.UID)
	if refused() != 0 || len(s.claimUsers) != 0 {
		t.Errorf("nobody uses the claim, and it is not free: %v", s.claimUsers)
	}
}

// diskModel is a disk in words that every kind of disk has.
type diskModel struct {
	kind, name string
	monitors   string // letters
	readOnly   bool
}

func (d diskModel) source() corev1.VolumeSource {
	switch d.kind {
	case "gce":
		return gceDisk(d.name, d.readOnly)
	case "ebs":
		return ebsDisk(d.name, d.readOnly)
	case "iscsi":
		return iscsiDisk(d.name, d.readOnly)
	case "azure":
		return azureDisk(d.name)
	default:
		return rbdDisk(d.name[:1], d.name[1:], d.readOnly, strings.Split(d.monitors, "")...)
	}
}

// clash is the model's answer: the same disk, unless everybody only reads it and the kind allows readers to share.
func (d diskModel) clash(other diskModel) bool {
	same := d.kind == other.kind && d.name == other.name
	if d.kind == "rbd" {
		same = same && strings.ContainsAny(d.monitors, other.monitors)
	}
	return same && d.kind != "azure" && (d.kind == "ebs" || !d.readOnly || !other.readOnly)
}

func TestDisksClashAsTheModelSays(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 1))
	disk := func() diskModel {
		return diskModel{
			kind: []string{"gce", "ebs", "iscsi", "rbd", "azure"}[random.IntN(5)], name: []string{"xi", "xj", "yi"}[random.IntN(3)],
			monitors: []string{"m", "n", "mn", "no"}[random.IntN(4)], readOnly: random.IntN(2) == 0,
		}
	}
	clashes := 0
	for round := range 3000 {
		wanted, held := make([]diskModel, 1+random.IntN(2)), make([]diskModel, random.IntN(3))
		pod, other := testPod("p"), testPod("1", on("a"))
		for i := range wanted {
			wanted[i] = disk()
			inline(wanted[i].source())(pod)
		}
		for i := range held {
			held[i] = disk()
			inline(held[i].source())(other)
		}
		want := slices.ContainsFunc(wanted, func(w diskModel) bool { return slices.ContainsFunc(held, w.clash) })
		s := cluster(t, twoZones(), other)
		got := heard(t, s, volumeRestrictions{}, pod)
		if _, refused := got["a"]; refused != want || got["b"] != "" {
			t.Fatalf("seed %d, round %d: %v beside %v: says %v", seed, round, wanted, held, got)
		}
		if want {
			clashes++
		}
	}
	if clashes < 150 {
		t.Errorf("only %d clashes", clashes)
	}
}

func TestVolumeRestrictionsHints(t *testing.T) {
	gone := func(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Delete, Old: p} }
	added := func(c *corev1.PersistentVolumeClaim) Event {
		return Event{Resource: PersistentVolumeClaim, Action: Add, New: c}
	}
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"who had the disk is gone", testPod("p", inline(gceDisk("d", false))), gone(testPod("1", on("a"), inline(gceDisk("d", true)))), true},
		{"who read the disk with us is gone", testPod("p", inline(gceDisk("d", true))), gone(testPod("1", on("a"), inline(gceDisk("d", true)))), false},
		{"who had another disk is gone", testPod("p", inline(ebsDisk("d", false))), gone(testPod("1", on("a"), inline(ebsDisk("e", false)))), false},
		{"who had the disk elsewhere in the cluster is gone", testPod("p", inline(ebsDisk("d", false))), gone(testPod("1", on("a"), namespace("other"), inline(ebsDisk("d", false)))), false},
		{"who had the claim is gone", testPod("p", usingClaim("c")), gone(testPod("1", on("a"), usingClaim("x"), usingClaim("c"))), true},
		{"who had a claim of that name elsewhere is gone", testPod("p", usingClaim("c")), gone(testPod("1", on("a"), namespace("other"), usingClaim("c"))), false},
		{"who had another claim is gone", testPod("p", usingClaim("c")), gone(testPod("1", on("a"), usingClaim("x"))), false},
		{"the pod the claim was made for is gone", testPod("p", usingClaim("1-v")), gone(testPod("1", on("a"), usingOwn("v"))), false},
		{"who borrowed the pod's own claim is gone", testPod("p", usingOwn("v")), gone(testPod("1", on("a"), usingClaim("p-v"))), false},
		{"somebody without volumes is gone", testPod("p", usingClaim("c")), gone(testPod("1", on("a"))), false},
		{"a node", testPod("p", usingClaim("c")), Event{Resource: NodeResource, Action: Add, New: testNode("n")}, true},
		{"a node's labels", testPod("p", usingClaim("c")), Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: testNode("n"), New: testNode("n")}, false},
		{"its claim", testPod("p", usingClaim("x"), usingClaim("c")), added(storageClaim("c")), true},
		{"another claim", testPod("p", usingClaim("c")), added(storageClaim("d")), false},
		{"a claim of that name elsewhere", testPod("p", usingClaim("c")), added(storageClaim("c", claimIn("other"))), false},
		{"a claim made for it", testPod("p", usingOwn("v")), added(storageClaim("p-v")), false},
		{"its claim changes", testPod("p", usingClaim("c")), Event{Resource: PersistentVolumeClaim, Action: updateOther, Old: storageClaim("c"), New: storageClaim("c")}, false},
		{"its claim is gone", testPod("p", usingClaim("c")), Event{Resource: PersistentVolumeClaim, Action: Delete, Old: storageClaim("c")}, false},
		{"a pod came", testPod("p", usingClaim("c")), Event{Resource: AssignedPod, Action: Add, New: testPod("1", on("a"), usingClaim("c"))}, false},
		{"a volume", testPod("p", usingClaim("c")), Event{Resource: PersistentVolumeResource, Action: Add, New: storageVolume("v")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, cluster(t, twoZones()), volumeRestrictions{}, test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}

func TestNodeVolumeLimits(t *testing.T) {
	const full = "no: node(s) exceed max volume count"
	const missing = "no: csi.example.com CSI driver is not installed on the node"
	must := storageDriver(csiName, nil, ptr.To(true))
	limit := func(n int32) *storagev1.CSINode { return driversOn("a", map[string]int32{csiName: n}) }
	bound := func(names ...string) (all objects) { // claims with a volume each, of the same name
		for _, n := range names {
			all = append(all, storageClaim(n, claimHas(n)), storageVolume(n))
		}
		return all
	}
	with := func(lists ...objects) objects { return slices.Concat(lists...) }
	for _, test := range []struct {
		what    string
		known   objects
		running []*corev1.Pod
		pod     *corev1.Pod
		want    says
	}{
		{"a pod without volumes", objects{limit(0)}, nil, testPod("p"), says{}},
		{"a disk that no driver attaches", objects{limit(0)}, nil, testPod("p", inline(iscsiDisk("x", false))), says{}},
		{"no node tells of drivers", bound("c"), nil, testPod("p", usingClaim("c")), says{}},
		{"a node without limits", with(bound("c"), objects{limit(-1)}), nil, testPod("p", usingClaim("c")), says{}},
		{"a limit of another driver", with(bound("c"), objects{driversOn("a", map[string]int32{"other": 0})}), nil, testPod("p", usingClaim("c")), says{}},
		{"a limit of none", with(bound("c"), objects{limit(0)}), nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"a limit of one", with(bound("c"), objects{limit(1)}), nil, testPod("p", usingClaim("c")), says{}},
		{"as many as there may be", with(bound("c", "d", "e"), objects{limit(3)}), []*corev1.Pod{testPod("1", on("a"), usingClaim("d"), usingClaim("e"))}, testPod("p", usingClaim("c")), says{}},
		{"one more than there may be", with(bound("c", "d", "e"), objects{limit(2)}), []*corev1.Pod{testPod("1", on("a"), usingClaim("d"), usingClaim("e"))}, testPod("p", usingClaim("c")), says{"a": full}},
		{"pods of another node do not count", with(bound("c", "d"), objects{limit(1)}), []*corev1.Pod{testPod("1", on("b"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{}},
		{"two of the pod itself", with(bound("c", "d"), objects{limit(1)}), nil, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": full}},
		{"the same claim twice is one", with(bound("c"), objects{limit(1)}), nil, testPod("p", usingClaim("c"), usingClaim("c")), says{}},
		{"the same volume by two claims is one", objects{storageClaim("c", claimHas("v")), storageClaim("d", claimHas("w")), storageVolume("v", volumeHandle(csiName, "h")), storageVolume("w", volumeHandle(csiName, "h")), limit(1)},
			[]*corev1.Pod{testPod("1", on("a"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{}},
		{"a handle of another driver is another volume", objects{storageClaim("c", claimHas("v")), storageClaim("d", claimHas("w")), storageVolume("v", volumeHandle(csiName, "h")), storageVolume("w", volumeHandle("other", "h")), driversOn("a", map[string]int32{csiName: 0, "other": 5})},
			[]*corev1.Pod{testPod("1", on("a"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{"a": full}},
		{"a volume a pod there uses already needs no room", with(bound("c", "d"), objects{limit(1)}), []*corev1.Pod{testPod("1", on("a"), usingClaim("c"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{}},
		{"one of two needs room", with(bound("c", "d"), objects{limit(1)}), []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": full}},
		{"a limit exceeded by others is not this pod's fault", with(bound("d", "e"), objects{storageClaim("c", claimHas("c")), storageVolume("c", volumeHandle("other", "c")), driversOn("a", map[string]int32{csiName: 1, "other": 1})}),
			[]*corev1.Pod{testPod("1", on("a"), usingClaim("d"), usingClaim("e"))}, testPod("p", usingClaim("c")), says{}},
		{"the second of two drivers", objects{storageClaim("c", claimHas("c")), storageVolume("c"), storageClaim("d", claimHas("d")), storageVolume("d", volumeHandle("other", "d")), driversOn("a", map[string]int32{csiName: 1, "other": 0})}, nil,
			testPod("p", usingClaim("c"), usingClaim("d")), says{"a": full}},
		{"a volume no driver attaches", objects{storageClaim("c", claimHas("c")), storageVolume("c", volumeSource(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}})), limit(0)}, nil, testPod("p", usingClaim("c")), says{}},

		{"a claim that is missing", objects{limit(5)}, nil, testPod("p", usingClaim("c")), says{
			"a": `never: looking up PVC default/c: persistentvolumeclaim "c" not found`, "b": `never: looking up PVC default/c: persistentvolumeclaim "c" not found`}},
		{"a claim still to be made for the pod", objects{limit(5)}, nil, testPod("p", usingOwn("v")), says{
			"a": `never: looking up PVC default/p-v: persistentvolumeclaim "p-v" not found`, "b": `never: looking up PVC default/p-v: persistentvolumeclaim "p-v" not found`}},
		{"a claim made for the pod", objects{storageClaim("p-v", claimOf("p"), claimHas("v")), storageVolume("v"), limit(0)}, nil, testPod("p", usingOwn("v")), says{"a": full}},
		{"a claim that only looks made for the pod", objects{storageClaim("p-v", claimHas("v")), storageVolume("v"), limit(5)}, nil, testPod("p", usingOwn("v")), says{
			"a": "error: PVC default/p-v was not created for pod default/p (pod is not owner)", "b": "error: PVC default/p-v was not created for pod default/p (pod is not owner)"}},
		{"a running pod's claim is gone", with(bound("c"), objects{limit(1)}), []*corev1.Pod{testPod("1", on("a"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{}},
		{"a running pod's own claim is another's", with(bound("c"), objects{storageClaim("1-v", claimOf("2")), limit(1)}), []*corev1.Pod{testPod("1", on("a"), usingOwn("v"))}, testPod("p", usingClaim("c")), says{
			"a": "error: PVC default/1-v was not created for pod default/1 (pod is not owner)"}},
		{"a running pod's own claim counts", with(bound("c"), objects{storageClaim("1-v", claimOf("1"), claimHas("w")), storageVolume("w"), limit(1)}), []*corev1.Pod{testPod("1", on("a"), usingOwn("v"))}, testPod("p", usingClaim("c")), says{"a": full}},

		{"a volume still to be made", objects{lateClass("late", csiName), storageClaim("c"), limit(0)}, nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"of a class that is missing", objects{storageClaim("c"), limit(0)}, nil, testPod("p", usingClaim("c")), says{}},
		{"of no class", objects{storageClaim("c", claimClass("")), limit(0)}, nil, testPod("p", usingClaim("c")), says{}},
		{"of the class in the old annotation", objects{lateClass("other", csiName), storageClaim("c", claimNote(corev1.BetaStorageClassAnnotation, "other")), limit(0)}, nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"a volume without a handle is not counted", objects{storageClaim("c", claimHas("v")), storageVolume("v", volumeHandle(csiName, "")), limit(0)}, nil, testPod("p", usingClaim("c")), says{}},
		{"of a class without anybody to make it", objects{lateClass("late", ""), storageClaim("c"), driversOn("a", map[string]int32{"": 0})}, nil, testPod("p", usingClaim("c")), says{}},
		{"of a class nobody makes volumes of, beside a disk that cannot be read", objects{lateClass("late", volume.NotSupportedProvisioner), storageClaim("c"), limit(5)}, []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("aws:///zone/", false)))}, testPod("p", usingClaim("c")), says{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
		{"of a class nobody makes volumes of", objects{lateClass("late", volume.NotSupportedProvisioner), storageClaim("c"), driversOn("a", map[string]int32{csiName: 0})}, nil, testPod("p", usingClaim("c")), says{}},
		{"two claims will have two volumes", objects{lateClass("late", csiName), storageClaim("c"), storageClaim("d"), limit(1)}, []*corev1.Pod{testPod("1", on("a"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{"a": full}},
		{"one claim will have one", objects{lateClass("late", csiName), storageClaim("c"), limit(1)}, []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{}},
		{"claims of the same name in two namespaces are two", objects{lateClass("late", csiName), storageClaim("c"), storageClaim("c", claimIn("other")), limit(1)}, []*corev1.Pod{testPod("1", on("a"), namespace("other"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{"a": full}},
		{"a claim whose volume is gone counts by its class", objects{lateClass("late", csiName), storageClaim("c", claimHas("v")), limit(0)}, nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"a claim that names a volume to come counts by its class", objects{lateClass("late", csiName), storageClaim("c", claimWants("v")), limit(0)}, nil, testPod("p", usingClaim("c")), says{"a": full}},

		{"what is attached counts", with(bound("c", "d"), objects{limit(1), attachedAs("x", "a", csiName, "d")}), nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"attached elsewhere", with(bound("c", "d"), objects{limit(1), attachedAs("x", "b", csiName, "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached by another driver", with(bound("c", "d"), objects{limit(1), attachedAs("x", "a", "other", "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached by nobody", with(bound("c", "d"), objects{limit(1), attachedAs("x", "a", "", "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached without a volume", with(bound("c"), objects{limit(1), attachedAs("x", "a", csiName, "")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached a volume that is gone", with(bound("c"), objects{limit(1), attachedAs("x", "a", csiName, "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached a volume of no driver", with(bound("c"), objects{limit(1), ebsVolume("d", "vol-d", ""), attachedAs("x", "a", csiName, "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"attached for a pod there counts once", with(bound("c", "d"), objects{limit(2), attachedAs("x", "a", csiName, "d")}), []*corev1.Pod{testPod("1", on("a"), usingClaim("d"))}, testPod("p", usingClaim("c")), says{}},
		{"attached twice counts once", with(bound("c", "d"), objects{limit(2), attachedAs("x", "a", csiName, "d"), attachedAs("y", "a", csiName, "d")}), nil, testPod("p", usingClaim("c")), says{}},
		{"the pod's own volume is attached and on its way out", with(bound("c"), objects{limit(1), attachedAs("x", "a", csiName, "c")}), nil, testPod("p", usingClaim("c")), says{"a": full}},
		{"or there is room for both", with(bound("c"), objects{limit(2), attachedAs("x", "a", csiName, "c")}), nil, testPod("p", usingClaim("c")), says{}},
		{"the pod's own volume is attached for a pod there", with(bound("c"), objects{limit(1), attachedAs("x", "a", csiName, "c")}), []*corev1.Pod{testPod("1", on("a"), usingClaim("c"))}, testPod("p", usingClaim("c")), says{}},

		{"a driver that must be there, and is not", with(bound("c"), objects{must, driversOn("a", map[string]int32{"other": 1})}), nil, testPod("p", usingClaim("c")), says{"a": missing, "b": missing}},
		{"and is on one node, without a limit", with(bound("c"), objects{must, limit(-1)}), nil, testPod("p", usingClaim("c")), says{"b": missing}},
		{"and is full", with(bound("c"), objects{must, limit(0)}), nil, testPod("p", usingClaim("c")), says{"a": full, "b": missing}},
		{"a driver that need not be there", with(bound("c"), objects{storageDriver(csiName, nil, ptr.To(false)), driversOn("a", nil)}), nil, testPod("p", usingClaim("c")), says{}},
		{"a driver that says nothing of it", with(bound("c"), objects{storageDriver(csiName, nil, nil)}), nil, testPod("p", usingClaim("c")), says{}},
		{"another driver must be there", with(bound("c"), objects{storageDriver("other", nil, ptr.To(true))}), nil, testPod("p", usingClaim("c")), says{}},
		{"a driver that must be there for a volume to be made", objects{lateClass("late", csiName), storageClaim("c"), must}, nil, testPod("p", usingClaim("c")), says{"a": missing, "b": missing}},

		{"a disk that moved counts where drivers are told of", objects{driversOn("a", map[string]int32{ebsDriver: 0})}, nil, testPod("p", inline(ebsDisk("vol-1", false))), says{"a": full}},
		{"beside a moved disk of a pod there", objects{driversOn("a", map[string]int32{ebsDriver: 1})}, []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("vol-2", false)))}, testPod("p", inline(ebsDisk("vol-1", false))), says{"a": full}},
		{"a disk that cannot be read, where no drivers are told of", nil, nil, testPod("p", inline(ebsDisk("aws:///zone/", false))), says{}},
		{"a disk that cannot be read, where they are", objects{driversOn("a", map[string]int32{ebsDriver: 5})}, nil, testPod("p", inline(ebsDisk("aws:///zone/", false))), says{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
		{"a running pod's disk that cannot be read", with(bound("c"), objects{limit(5)}), []*corev1.Pod{testPod("1", on("a"), inline(ebsDisk("aws:///zone/", false)))}, testPod("p", usingClaim("c")), says{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known, test.running...)
			if got := heard(t, s, nodeVolumeLimits{}, test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

// What one rule leaves to another is told in the other's words: a claim still to be made for a pod is what VolumeBinding waits for.
func TestVolumeRulesSpeakInOrder(t *testing.T) {
	for what, test := range map[string]struct {
		known objects
		pod   *corev1.Pod
		want  string
	}{
		"a claim that is missing":            {nil, testPod("p", usingClaim("c")), `persistentvolumeclaim "c" not found`},
		"a claim still to be made":           {nil, testPod("p", usingOwn("v")), `waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`},
		"a claim that was not made for it":   {objects{storageClaim("p-v")}, testPod("p", usingOwn("v")), "PVC default/p-v was not created for pod default/p (pod is not owner)"},
		"an immediate claim is not bound":    {objects{storageClaim("c"), soonClass("late")}, testPod("p", usingClaim("c")), "pod has unbound immediate PersistentVolumeClaims"},
		"its class is missing":               {objects{storageClaim("c")}, testPod("p", usingClaim("c")), "pod has unbound immediate PersistentVolumeClaims"},
		"its volume is missing":              {objects{storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), `persistentvolume "v" not found`},
		"the volume of its own claim is too": {objects{storageClaim("p-v", claimOf("p"), claimHas("v"))}, testPod("p", usingOwn("v")), reasonVolumeMissing},
	} {
		t.Run(what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known)
			if got := refusalsOf(t, s, test.pod, DefaultProfile()); !maps.Equal(got, says{"a": test.want, "b": test.want}) {
				t.Errorf("refused %v, want %q", got, test.want)
			}
		})
	}
}

// limitModel counts volumes of one driver on one node, the slow way.
type limitModel struct {
	volumeOf map[string]string // handle of each claim; "" when it will be made
	running  [][]string        // claims, by pod
	attached []string          // handles
	limit    int
}

func (m *limitModel) name(claim string) string {
	if h := m.volumeOf[claim]; h != "" {
		return h
	}
	return "of " + claim
}

func (m *limitModel) refuses(claims []string) bool {
	var used, fresh []string
	add := func(list []string, name string) []string {
		if slices.Contains(list, name) {
			return list
		}
		return append(list, name)
	}
	for _, pod := range m.running {
		for _, c := range pod {
			used = add(used, m.name(c))
		}
	}
	for _, c := range claims {
		if !slices.Contains(used, m.name(c)) {
			fresh = add(fresh, m.name(c))
		}
	}
	sum := len(used) + len(fresh)
	var extra []string
	for _, h := range m.attached {
		if !slices.Contains(used, h) {
			extra = add(extra, h)
		}
	}
	return len(fresh) > 0 && sum+len(extra) > m.limit
}

func TestLimitsAreAsTheModelSays(t *testing.T) {
	const seed = 9
	random := rand.New(rand.NewPCG(seed, 2))
	refused := 0
	for round := range 1500 {
		m := &limitModel{volumeOf: map[string]string{}, limit: random.IntN(6)}
		known := objects{lateClass("late", csiName), driversOn("a", map[string]int32{csiName: int32(m.limit)})}
		for h := range 5 {
			name := fmt.Sprint("h", h)
			known = append(known, storageVolume("pv-"+name, volumeHandle(csiName, name)))
			if random.IntN(4) == 0 {
				m.attached = append(m.attached, name)
				known = append(known, attachedAs("x-"+name, "a", csiName, "pv-"+name))
			}
		}
		var claims []string
		for c := range 8 {
			name := fmt.Sprint("c", c)
			claims = append(claims, name)
			if random.IntN(3) == 0 {
				m.volumeOf[name] = ""
				known = append(known, storageClaim(name))
				continue
			}
			m.volumeOf[name] = fmt.Sprint("h", random.IntN(5))
			known = append(known, storageClaim(name, claimHas("pv-"+m.volumeOf[name])))
		}
		some := func(p *corev1.Pod) (names []string) {
			for range random.IntN(4) {
				names = append(names, claims[random.IntN(len(claims))])
			}
			for _, n := range names {
				usingClaim(n)(p)
			}
			return names
		}
		var running []*corev1.Pod
		for i := range random.IntN(4) {
			p := testPod(fmt.Sprint(i), on("a"))
			m.running = append(m.running, some(p))
			running = append(running, p)
		}
		random.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
		s := knowing(t, twoZones(), known, running...)
		pod := testPod("p")
		wanted := some(pod)
		got, want := heard(t, s, nodeVolumeLimits{}, pod), m.refuses(wanted)
		if _, no := got["a"]; no != want || got["b"] != "" || got["*"] != "" {
			t.Fatalf("seed %d, round %d: %+v, claims %v: says %v", seed, round, m, wanted, got)
		}
		if want {
			refused++
		}
	}
	if refused < 300 || refused > 1200 {
		t.Errorf("%d of 1500 refused", refused)
	}
}

func TestNodeVolumeLimitsHints(t *testing.T) {
	pod := testPod("p", usingClaim("c"))
	changed := func(old, now *storagev1.CSINode) Event {
		return Event{Resource: CSINodeResource, Action: updateOther, Old: old, New: now}
	}
	one := func(count int32) *storagev1.CSINode { return driversOn("a", map[string]int32{csiName: count}) }
	detached := func(driver string) Event {
		return Event{Resource: VolumeAttachmentResource, Action: Delete, Old: attachedAs("x", "a", driver, "v")}
	}
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a node tells of its drivers", pod, Event{Resource: CSINodeResource, Action: Add, New: one(1)}, true},
		{"a higher limit", pod, changed(one(1), one(2)), true},
		{"the same limit", pod, changed(one(1), one(1)), false},
		{"a lower limit", pod, changed(one(2), one(1)), false},
		{"a first limit of none", pod, changed(one(-1), one(0)), false},
		{"a first limit", pod, changed(one(-1), one(1)), true},
		{"a limit is dropped", pod, changed(one(1), one(-1)), false},
		{"another driver with a limit", pod, changed(driversOn("a", nil), one(1)), true},
		{"another driver, which may be the one that must be there", pod, changed(driversOn("a", nil), one(-1)), true},
		{"one of two is higher", pod, changed(driversOn("a", map[string]int32{csiName: 3, "other": 1}), driversOn("a", map[string]int32{csiName: 2, "other": 2})), true},
		{"a driver is gone", pod, changed(one(1), driversOn("a", nil)), false},
		{"a node's drivers are gone", pod, Event{Resource: CSINodeResource, Action: Delete, Old: one(1)}, false},
		{"a pod with a claim is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), usingClaim("x"))}, true},
		{"a pod of another namespace too", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), namespace("other"), usingClaim("x"))}, true},
		{"a pod with a claim of its own is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), usingOwn("v"))}, true},
		{"a pod with a moved disk is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), inline(gceDisk("d", true)))}, true},
		{"a pod with a disk no driver attaches is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), inline(iscsiDisk("d", true)))}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("c")}, true},
		{"the claim made for it", testPod("p", usingOwn("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("p-v")}, true},
		{"another claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("d")}, false},
		{"its claim changes", pod, Event{Resource: PersistentVolumeClaim, Action: updateOther, Old: storageClaim("c"), New: storageClaim("c")}, false},
		{"a volume is detached", pod, detached(csiName), true},
		{"a volume is detached, for a claim made for it", testPod("p", usingOwn("v")), detached(csiName), true},
		{"a volume of its disk's driver is detached", testPod("p", inline(ebsDisk("vol-1", false))), detached(ebsDriver), true},
		{"a volume of another driver is detached", testPod("p", inline(ebsDisk("vol-1", false))), detached(csiName), false},
		{"the second of its disks", testPod("p", inline(azureDisk("d")), inline(ebsDisk("vol-1", false))), detached(ebsDriver), true},
		{"a disk that cannot be read may be any", testPod("p", inline(ebsDisk("aws:///zone/", false))), detached(csiName), true},
		{"a volume is detached, for a disk no driver attaches", testPod("p", inline(iscsiDisk("q", false))), detached(csiName), false},
		{"a volume is attached", pod, Event{Resource: VolumeAttachmentResource, Action: Add, New: attachedAs("x", "a", csiName, "v")}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: testNode("n")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, cluster(t, twoZones()), nodeVolumeLimits{}, test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}

func TestVolumeBindingArguments(t *testing.T) {
	points := func(xs ...int32) (shape []configv1.UtilizationShapePoint) {
		for i := 0; i < len(xs); i += 2 {
			shape = append(shape, configv1.UtilizationShapePoint{Utilization: xs[i], Score: xs[i+1]})
		}
		return shape
	}
	for _, test := range []struct {
		what    string
		args    configv1.VolumeBindingArgs
		timeout int64
		shape   []configv1.UtilizationShapePoint
	}{
		{"none", configv1.VolumeBindingArgs{}, 600, points(0, 10, 100, 0)},
		{"no patience", configv1.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(int64(0))}, 0, points(0, 10, 100, 0)},
		{"little patience", configv1.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(int64(1))}, 1, points(0, 10, 100, 0)},
		{"a shape", configv1.VolumeBindingArgs{Shape: points(10, 1, 20, 2)}, 600, points(10, 1, 20, 2)},
	} {
		t.Run(test.what, func(t *testing.T) {
			if r := newVolumeBinding(&test.args).(*volumeBinding); r.timeoutSeconds != test.timeout || !slices.Equal(r.shape, test.shape) {
				t.Errorf("timeout %d, shape %v", r.timeoutSeconds, r.shape)
			}
		})
	}
}

func bindingRule(t testing.TB, shape ...configv1.UtilizationShapePoint) *volumeBinding {
	t.Helper()
	return newVolumeBinding(&configv1.VolumeBindingArgs{Shape: shape}).(*volumeBinding)
}

func TestVolumeBindingFilter(t *testing.T) {
	const (
		elsewhere = "never: " + reasonNodeConflict
		none      = "never: " + reasonBindConflict
		small     = "never: " + reasonNotEnoughSpace
		missing   = "never: " + reasonVolumeMissing
	)
	static := lateClass("late", volume.NotSupportedProvisioner)
	made := lateClass("late", csiName)
	tracks := storageDriver(csiName, ptr.To(true), nil)
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		want  says
	}{
		{"a pod without volumes", nil, testPod("p"), says{}},
		{"a pod with a disk and no claim", nil, testPod("p", inline(ebsDisk("x", false))), says{}},
		{"a claim that is missing", nil, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim of another namespace", objects{storageClaim("c", claimIn("other"))}, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim still to be made for it", nil, testPod("p", usingOwn("v")), says{"*": `never: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`}},
		{"a claim that was not made for it", objects{storageClaim("p-v", claimOf("q"))}, testPod("p", usingOwn("v")), says{"*": "never: PVC default/p-v was not created for pod default/p (pod is not owner)"}},
		{"a claim that lost its volume", objects{storageClaim("c", claimHas("v"), claimLost)}, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"a claim on its way out", objects{storageClaim("c", claimHas("v"), claimLeaving), storageVolume("v")}, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" is being deleted`}},
		{"lost and on its way out", objects{storageClaim("c", claimHas("v"), claimLeaving, claimLost)}, testPod("p", usingClaim("c")), says{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"on its way out and another's", objects{storageClaim("p-v", claimLeaving)}, testPod("p", usingOwn("v")), says{"*": `never: persistentvolumeclaim "p-v" is being deleted`}},
		{"the first that is wrong is named", objects{storageClaim("c", claimHas("v")), storageVolume("v")}, testPod("p", usingClaim("c"), usingClaim("d"), usingClaim("e")), says{"*": `never: persistentvolumeclaim "d" not found`}},
		{"an unbound claim of an immediate class", objects{soonClass("late"), storageClaim("c")}, testPod("p", usingClaim("c")), says{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of no class", objects{storageClaim("c", claimClass(""))}, testPod("p", usingClaim("c")), says{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of a class that is missing", objects{storageClaim("c")}, testPod("p", usingClaim("c")), says{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a claim that names its volume and waits", objects{made, storageVolume("v"), storageClaim("c", claimWants("v"))}, testPod("p", usingClaim("c")), says{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"one bound and one not", objects{soonClass("late"), storageVolume("v"), storageClaim("c", claimHas("v")), storageClaim("d")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a class without a mode", objects{modelessClass("late"), storageClaim("c")}, testPod("p", usingClaim("c")), says{"*": `error: VolumeBindingMode not set for StorageClass "late"`}},

		{"a bound volume of everywhere", objects{storageVolume("v"), storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), says{}},
		{"a bound volume of one node", objects{storageVolume("v", volumeAt("a")), storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), says{"b": elsewhere}},
		{"a bound volume of no node", objects{storageVolume("v", volumeAt("z")), storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), says{"a": elsewhere, "b": elsewhere}},
		{"a bound volume of another phase and a class without mode", objects{modelessClass("late"), storageVolume("v", volumePhase(corev1.VolumeFailed)), storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), says{}},
		{"bound volumes of two nodes", objects{storageVolume("v", volumeAt("a")), storageClaim("c", claimHas("v")), storageVolume("w", volumeAt("b")), storageClaim("d", claimHas("w"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": elsewhere, "b": elsewhere}},
		{"a bound volume that is gone", objects{storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), says{"a": missing, "b": missing}},
		{"gone is named where nothing else is wrong before", objects{storageVolume("v", volumeAt("a")), storageClaim("c", claimHas("v")), storageClaim("d", claimHas("w"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": missing, "b": elsewhere}},
		{"the first that is gone ends the look", objects{storageVolume("v", volumeAt("a")), storageClaim("c", claimHas("v")), storageClaim("d", claimHas("w"))}, testPod("p", usingClaim("d"), usingClaim("c")), says{"a": missing, "b": missing}},
		{"a bound volume that cannot be read in its driver's words", objects{ebsVolume("v", "aws:///x/", ""), storageClaim("c", claimHas("v")), driversOn("b", nil, "kubernetes.io/aws-ebs")}, testPod("p", usingClaim("c")), says{
			"b": "error: could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x/)"}},
		{"its own bound claim", objects{storageVolume("v", volumeAt("b")), storageClaim("p-v", claimOf("p"), claimHas("v"))}, testPod("p", usingOwn("v")), says{"a": elsewhere}},

		{"a volume to choose on one node", objects{static, storageClaim("c"), storageVolume("v", volumeAt("a"))}, testPod("p", usingClaim("c")), says{"b": none}},
		{"a volume to choose anywhere", objects{static, storageClaim("c"), storageVolume("v")}, testPod("p", usingClaim("c")), says{}},
		{"no volume", objects{static, storageClaim("c")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume of just the size", objects{static, storageClaim("c", claimSize("5Gi")), storageVolume("v")}, testPod("p", usingClaim("c")), says{}},
		{"a volume too small by a byte", objects{static, storageClaim("c", claimSize("5368709121")), storageVolume("v")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume of another class", objects{static, storageClaim("c"), storageVolume("v", volumeClass("other"))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume that is released", objects{static, storageClaim("c"), storageVolume("v", volumePhase(corev1.VolumeReleased))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume that is pending", objects{static, storageClaim("c"), storageVolume("v", volumePhase(corev1.VolumePending))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume on its way out", objects{static, storageClaim("c"), storageVolume("v", volumeLeaving)}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume of another mode", objects{static, storageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), storageVolume("v")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume without the access asked", objects{static, storageClaim("c", claimModes(corev1.ReadWriteMany)), storageVolume("v")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume with other attributes", objects{static, storageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), storageVolume("v")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume with the attributes asked", objects{static, storageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), storageVolume("v", func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") })}, testPod("p", usingClaim("c")), says{}},
		{"a volume whose labels do not match", objects{static, storageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "fast"}}
		}), storageVolume("v", volumeLabel("kind", "slow"))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a selector that cannot be read", objects{static, storageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}}
		})}, testPod("p", usingClaim("c")), says{
			"a": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`, "b": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`}},
		{"a volume kept for another claim", objects{static, storageClaim("c"), storageVolume("v", volumeOf("default", "d", ""))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume kept for this claim, whatever its phase", objects{static, storageClaim("c"), storageVolume("v", volumeOf("default", "c", ""), volumePhase(corev1.VolumeBound))}, testPod("p", usingClaim("c")), says{}},
		{"a volume kept for an earlier claim of the name", objects{static, storageClaim("c"), storageVolume("v", volumeOf("default", "c", "old"))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a volume kept for this claim on another node leaves no choice", objects{static, storageClaim("c"), storageVolume("v", volumeOf("default", "c", "c"), volumeAt("b")), storageVolume("w", volumeAt("a"))}, testPod("p", usingClaim("c")), says{"a": none}},
		{"two claims and one volume", objects{static, storageClaim("c"), storageClaim("d"), storageVolume("v")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": none, "b": none}},
		{"two claims and two volumes of a node", objects{static, storageClaim("c"), storageClaim("d"), storageVolume("v", volumeAt("a")), storageVolume("w", volumeAt("a"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"b": none}},
		{"the small claim leaves the large volume", objects{static, storageClaim("c", claimSize("3Gi")), storageClaim("d", claimSize("1Gi")), storageVolume("v", volumeSize("3Gi")), storageVolume("w", volumeSize("2Gi"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{}},
		{"a bound one elsewhere and none to choose", objects{static, storageClaim("c", claimHas("v")), storageVolume("v", volumeAt("b"), volumeOf("default", "c", "c")), storageClaim("d")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": elsewhere + "; " + reasonBindConflict, "b": none}},
		{"a bound one gone and none to choose", objects{static, storageClaim("c", claimHas("v")), storageClaim("d")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": none + "; " + reasonVolumeMissing, "b": none + "; " + reasonVolumeMissing}},
		{"a bound one gone and no room", objects{made, tracks, storageClaim("c", claimHas("v")), storageClaim("d")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": small + "; " + reasonVolumeMissing, "b": small + "; " + reasonVolumeMissing}},

		{"a volume to be made anywhere", objects{made, storageClaim("c")}, testPod("p", usingClaim("c")), says{}},
		{"nobody to make it", objects{lateClass("late", ""), storageClaim("c")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"to be made in one zone", objects{lateClass("late", csiName, allowedPlace(corev1.LabelTopologyZone, "za")), storageClaim("c")}, testPod("p", usingClaim("c")), says{"b": none}},
		{"a choice is made before anything is to be made", objects{lateClass("late", csiName, allowedPlace(corev1.LabelTopologyZone, "za")), storageClaim("c"), storageVolume("v", volumeAt("b"))}, testPod("p", usingClaim("c")), says{}},
		{"one chosen and one to be made", objects{made, storageClaim("c"), storageClaim("d"), storageVolume("v", volumeAt("a"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{}},
		{"a claim sent to a node is not bound elsewhere", objects{made, storageClaim("c", claimFor("b"))}, testPod("p", usingClaim("c")), says{"a": none}},
		{"nor to a volume there is", objects{static, storageClaim("c", claimFor("b")), storageVolume("v")}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"a claim sent to no node at all", objects{made, storageClaim("c", claimFor(""))}, testPod("p", usingClaim("c")), says{"a": none, "b": none}},
		{"claims sent to two nodes", objects{made, storageClaim("c", claimFor("a")), storageClaim("d", claimFor("b"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": none, "b": none}},
		{"sent elsewhere ends the look, but bound ones are told", objects{made, storageClaim("c", claimHas("v")), storageVolume("v", volumeAt("b")), storageClaim("d", claimFor("b"))}, testPod("p", usingClaim("c"), usingClaim("d")), says{"a": elsewhere + "; " + reasonBindConflict}},

		{"no room anywhere", objects{made, tracks, storageClaim("c")}, testPod("p", usingClaim("c")), says{"a": small, "b": small}},
		{"a driver that does not track", objects{made, storageDriver(csiName, ptr.To(false), nil), storageClaim("c")}, testPod("p", usingClaim("c")), says{}},
		{"a driver that says nothing", objects{made, storageDriver(csiName, nil, nil), storageClaim("c")}, testPod("p", usingClaim("c")), says{}},
		{"another driver tracks", objects{made, storageDriver("other", ptr.To(true), nil), storageClaim("c")}, testPod("p", usingClaim("c")), says{}},
		{"room in one zone", objects{made, tracks, storageClaim("c"), room("x", "late", "za", "1Gi", "")}, testPod("p", usingClaim("c")), says{"b": small}},
		{"too little by a byte", objects{made, tracks, storageClaim("c"), room("x", "late", "za", "1073741823", ""), room("y", "late", "zb", "1073741824", "")}, testPod("p", usingClaim("c")), says{"a": small}},
		{"room of another class", objects{made, tracks, storageClaim("c"), room("x", "other", "za", "9Gi", "")}, testPod("p", usingClaim("c")), says{"a": small, "b": small}},
		{"room nobody reaches", objects{made, tracks, storageClaim("c"), room("x", "late", "", "9Gi", "")}, testPod("p", usingClaim("c")), says{"a": small, "b": small}},
		{"room of unknown size", objects{made, tracks, storageClaim("c"), room("x", "late", "za", "", "")}, testPod("p", usingClaim("c")), says{"a": small, "b": small}},
		{"room for small volumes only", objects{made, tracks, storageClaim("c", claimSize("3Gi")), room("x", "late", "za", "9Gi", "2Gi"), room("y", "late", "zb", "1Gi", "3Gi")}, testPod("p", usingClaim("c")), says{"a": small}},
		{"the second room", objects{made, tracks, storageClaim("c"), room("x", "late", "za", "1Mi", ""), room("y", "late", "za", "2Gi", "")}, testPod("p", usingClaim("c")), says{"b": small}},
		{"a place that cannot be read", objects{made, tracks, storageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := room("x", "late", "za", "9Gi", "")
			c.NodeTopology.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}
			return c
		}()}, testPod("p", usingClaim("c")), says{"a": small, "b": small}},
		{"an empty place is every place", objects{made, tracks, storageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := room("x", "late", "", "9Gi", "")
			c.NodeTopology = &metav1.LabelSelector{}
			return c
		}()}, testPod("p", usingClaim("c")), says{}},
		{"a claim for no size needs no room", objects{made, tracks, storageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })}, testPod("p", usingClaim("c")), says{}},
		{"each of two claims has room, though not both", objects{made, tracks, storageClaim("c"), storageClaim("d"), room("x", "late", "za", "1Gi", "")}, testPod("p", usingClaim("c"), usingClaim("d")), says{"b": small}},
		{"room does not matter for what is chosen", objects{made, tracks, storageClaim("c"), storageVolume("v", volumeAt("a"))}, testPod("p", usingClaim("c")), says{"b": small}},
		{"room matters for a claim sent to the node", objects{made, tracks, storageClaim("c", claimFor("a")), room("x", "late", "zb", "9Gi", "")}, testPod("p", usingClaim("c")), says{"a": small, "b": none}},
		{"a place that is not allowed is named before the room", objects{lateClass("late", csiName, allowedPlace(corev1.LabelTopologyZone, "zb")), tracks, storageClaim("c")}, testPod("p", usingClaim("c")), says{"a": none, "b": small}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known)
			if got := heard(t, s, bindingRule(t), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingScore(t *testing.T) {
	static, made := lateClass("late", volume.NotSupportedProvisioner), lateClass("late", csiName)
	other := lateClass("other", volume.NotSupportedProvisioner)
	tracks := storageDriver(csiName, ptr.To(true), nil)
	point := func(x, y int32) configv1.UtilizationShapePoint {
		return configv1.UtilizationShapePoint{Utilization: x, Score: y}
	}
	fullest := []configv1.UtilizationShapePoint{point(0, 0), point(100, 10)}
	for _, test := range []struct {
		what  string
		shape []configv1.UtilizationShapePoint
		known objects
		pod   *corev1.Pod
		want  [2]int64 // of nodes a and b
	}{
		{"no claim", nil, nil, testPod("p"), [2]int64{}},
		{"a bound claim says nothing", nil, objects{storageClaim("c", claimHas("v")), storageVolume("v")}, testPod("p", usingClaim("c")), [2]int64{}},
		{"a fifth used, least is best", nil, objects{static, storageClaim("c"), storageVolume("v")}, testPod("p", usingClaim("c")), [2]int64{80, 80}},
		{"a fifth used, most is best", fullest, objects{static, storageClaim("c"), storageVolume("v")}, testPod("p", usingClaim("c")), [2]int64{20, 20}},
		{"all used", nil, objects{static, storageClaim("c", claimSize("5Gi")), storageVolume("v")}, testPod("p", usingClaim("c")), [2]int64{0, 0}},
		{"each node has its own volume", nil, objects{static, storageClaim("c"), storageVolume("v", volumeAt("a"), volumeSize("2Gi")), storageVolume("w", volumeAt("b"), volumeSize("4Gi"))}, testPod("p", usingClaim("c")), [2]int64{50, 75}},
		{"parts are cut, not rounded", nil, objects{static, storageClaim("c"), storageVolume("v", volumeSize("3Gi"))}, testPod("p", usingClaim("c")), [2]int64{67, 67}},
		{"volumes of a class are added up", nil, objects{static, storageClaim("c"), storageClaim("d", claimSize("2Gi")), storageVolume("v", volumeSize("1Gi")), storageVolume("w", volumeSize("5Gi"))}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{50, 50}},
		{"classes are averaged", nil, objects{static, other, storageClaim("c"), storageClaim("d", claimClass("other")), storageVolume("v", volumeSize("1Gi")), storageVolume("w", volumeClass("other"), volumeSize("2Gi"))}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{25, 25}},
		{"and the average is rounded", fullest, objects{static, other, storageClaim("c"), storageClaim("d", claimClass("other")), storageVolume("v", volumeSize("1Gi")), storageVolume("w", volumeClass("other"), volumeSize("3Gi"))}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{67, 67}},
		{"nothing is known of what will be made", nil, objects{made, storageClaim("c")}, testPod("p", usingClaim("c")), [2]int64{}},
		{"room to make it", nil, objects{made, tracks, storageClaim("c"), room("x", "late", "za", "2Gi", ""), room("y", "late", "zb", "10Gi", "")}, testPod("p", usingClaim("c")), [2]int64{50, 90}},
		{"two share one room", nil, objects{made, tracks, storageClaim("c"), storageClaim("d", claimSize("2Gi")), room("x", "late", "za", "6Gi", ""), room("y", "late", "zb", "2Gi", "")}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{50, 0}},
		{"room of which only the largest volume is known", nil, objects{made, tracks, storageClaim("c"), room("x", "late", "za", "", "5Gi"), room("y", "late", "zb", "4Gi", "5Gi")}, testPod("p", usingClaim("c")), [2]int64{0, 75}},
		{"what is chosen speaks alone", nil, objects{made, tracks, storageClaim("c"), storageClaim("d", claimSize("2Gi")), storageVolume("v", volumeAt("a"), volumeSize("1Gi")), room("x", "late", "za", "100Gi", ""), room("y", "late", "zb", "30Gi", "")}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{0, 90}},
		{"a volume that cannot be read in its driver's words", nil, objects{static, storageClaim("c"), storageVolume("v"), ebsVolume("w", "aws:///x/", ""), storageClaim("d", claimHas("w")), driversOn("b", nil, "kubernetes.io/aws-ebs")}, testPod("p", usingClaim("c"), usingClaim("d")), [2]int64{80, 0}},
		{"its own claim counts", nil, objects{static, storageClaim("p-v", claimOf("p")), storageVolume("v")}, testPod("p", usingOwn("v")), [2]int64{80, 80}},
		{"beyond the last point it stays level", []configv1.UtilizationShapePoint{point(10, 3), point(20, 7)}, objects{static, storageClaim("c"), storageVolume("v", volumeAt("a"), volumeSize("2Gi")), storageVolume("w", volumeAt("b"), volumeSize("20Gi"))}, testPod("p", usingClaim("c")), [2]int64{70, 30}},
		{"between points it is straight", []configv1.UtilizationShapePoint{point(0, 10), point(50, 0), point(100, 10)}, objects{static, storageClaim("c"), storageVolume("v", volumeAt("a"), volumeSize("4Gi")), storageVolume("w", volumeAt("b"), volumeSize("2Gi"))}, testPod("p", usingClaim("c")), [2]int64{50, 0}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known)
			scorer := bindingRule(t, test.shape...).Score(s, infoOf(t, test.pod))
			var got [2]int64
			if scorer.Of != nil {
				got = [2]int64{scorer.Of(0), scorer.Of(1)}
			}
			if got != test.want || scorer.Scale != AsIs {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingHints(t *testing.T) {
	pod := testPod("p", usingClaim("x"), usingClaim("c"))
	capacity := func(capacity, largest string) *storagev1.CSIStorageCapacity {
		return room("r", "late", "za", capacity, largest)
	}
	update := func(r Resource, old, now any) Event {
		return Event{Resource: r, Action: updateOther, Old: old, New: now}
	}
	class := lateClass("late", csiName, allowedPlace("zone", "za"))
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a class", pod, Event{Resource: StorageClassResource, Action: Add, New: class}, true},
		{"a class allows other places", pod, update(StorageClassResource, class, lateClass("late", csiName, allowedPlace("zone", "zb"))), true},
		{"a class allows all places", pod, update(StorageClassResource, class, lateClass("late", csiName)), true},
		{"a class says the same", pod, update(StorageClassResource, class, lateClass("late", csiName, allowedPlace("zone", "za"))), false},
		{"an empty list is no list", pod, update(StorageClassResource, lateClass("late", csiName), lateClass("late", csiName, []corev1.TopologySelectorTerm{}...)), false},
		{"a class is gone", pod, Event{Resource: StorageClassResource, Action: Delete, Old: class}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("c")}, true},
		{"its claim changes", pod, update(PersistentVolumeClaim, storageClaim("c"), storageClaim("c")), true},
		{"the claim made for it", testPod("p", usingOwn("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("p-v")}, true},
		{"the claim made for another", testPod("p", usingOwn("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("q-v")}, false},
		{"another claim", pod, update(PersistentVolumeClaim, storageClaim("d"), storageClaim("d")), false},
		{"a claim elsewhere", pod, update(PersistentVolumeClaim, storageClaim("c", claimIn("other")), storageClaim("c", claimIn("other"))), false},
		{"its claim is gone", pod, Event{Resource: PersistentVolumeClaim, Action: Delete, Old: storageClaim("c")}, false},
		{"a volume", pod, Event{Resource: PersistentVolumeResource, Action: Add, New: storageVolume("v")}, true},
		{"a volume changes", pod, update(PersistentVolumeResource, storageVolume("v"), storageVolume("v")), true},
		{"a volume is gone", pod, Event{Resource: PersistentVolumeResource, Action: Delete, Old: storageVolume("v")}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: testNode("n")}, true},
		{"a node's labels", pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: testNode("n"), New: testNode("n", nodeLabel("x", "y"))}, true},
		{"a node's taints", pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: testNode("n"), New: testNode("n")}, false},
		{"a node's resources", pod, Event{Resource: NodeResource, Action: UpdateNodeAllocatable, Old: testNode("n"), New: testNode("n")}, false},
		{"a node tells of its drivers", pod, Event{Resource: CSINodeResource, Action: Add, New: driversOn("a", nil)}, true},
		{"a kind has moved on a node", pod, update(CSINodeResource, driversOn("a", nil), driversOn("a", nil, "kubernetes.io/aws-ebs")), true},
		{"a kind has moved back", pod, update(CSINodeResource, driversOn("a", nil, "kubernetes.io/aws-ebs"), driversOn("a", nil)), true},
		{"a node has another driver", pod, update(CSINodeResource, driversOn("a", nil, "x"), driversOn("a", map[string]int32{csiName: 5}, "x")), false},
		{"room", pod, Event{Resource: CSIStorageCapacityResource, Action: Add, New: capacity("", "")}, true},
		{"more room", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("2Gi", "")), true},
		{"as much room", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("1024Mi", "")), false},
		{"less room", pod, update(CSIStorageCapacityResource, capacity("2Gi", ""), capacity("1Gi", "")), false},
		{"room that was unknown", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("0", "")), true},
		{"room that is unknown now", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("", "")), false},
		{"unknown still", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("", "")), false},
		{"larger volumes", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "2Gi")), true},
		{"more room for volumes of the same size", pod, update(CSIStorageCapacityResource, capacity("5Gi", "1Gi"), capacity("9Gi", "1Gi")), false},
		{"volumes no longer bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "")), true},
		{"volumes bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", ""), capacity("9Gi", "1Gi")), false},
		{"room is gone", pod, Event{Resource: CSIStorageCapacityResource, Action: Delete, Old: capacity("1Gi", "")}, false},
		{"a driver tracks room no longer", pod, update(CSIDriverResource, storageDriver(csiName, ptr.To(true), nil), storageDriver(csiName, ptr.To(false), nil)), true},
		{"a driver says nothing of room any longer", pod, update(CSIDriverResource, storageDriver(csiName, ptr.To(true), nil), storageDriver(csiName, nil, nil)), true},
		{"a driver begins to track room", pod, update(CSIDriverResource, storageDriver(csiName, nil, nil), storageDriver(csiName, ptr.To(true), nil)), false},
		{"a driver changes otherwise", pod, update(CSIDriverResource, storageDriver(csiName, ptr.To(true), nil), storageDriver(csiName, ptr.To(true), ptr.To(true))), false},
		{"a driver", pod, Event{Resource: CSIDriverResource, Action: Add, New: storageDriver(csiName, nil, nil)}, false},
		{"a pod is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), usingClaim("c"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, cluster(t, twoZones()), bindingRule(t), test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}

func TestVolumeZone(t *testing.T) {
	const (
		refused              = "never: node(s) had no available volume zone"
		zoneKey, regionKey   = corev1.LabelTopologyZone, corev1.LabelTopologyRegion
		oldZone, oldRegion   = corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion
		everyNode, noneAtAll = "a old plain region", ""
	)
	nodes := []*corev1.Node{
		testNode("a", zone("za")), testNode("old", nodeLabel(oldZone, "za"), nodeLabel(oldRegion, "r")), testNode("plain"), testNode("region", nodeLabel(regionKey, "r")),
	}
	label := func(pairs ...string) objects { // a bound claim of a volume with these labels
		v := storageVolume("v")
		for i := 0; i < len(pairs); i += 2 {
			volumeLabel(pairs[i], pairs[i+1])(v)
		}
		return objects{v, storageClaim("c", claimHas("v"))}
	}
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		fits  string // nodes, when nothing is said of all
		all   string
	}{
		{"a pod without volumes", nil, testPod("p"), everyNode, ""},
		{"a volume without labels", label(), testPod("p", usingClaim("c")), everyNode, ""},
		{"labels that say nothing of zones", label("kind", "fast"), testPod("p", usingClaim("c")), everyNode, ""},
		{"a zone; nodes without any labels of the kind may be anywhere", label(zoneKey, "za"), testPod("p", usingClaim("c")), "a plain", ""},
		{"another zone", label(zoneKey, "zb"), testPod("p", usingClaim("c")), "plain", ""},
		{"one of several zones", label(zoneKey, "zb__za"), testPod("p", usingClaim("c")), "a plain", ""},
		{"spaces do not matter", label(zoneKey, "zb __ za "), testPod("p", usingClaim("c")), "a plain", ""},
		{"a single underscore is part of the name", label(zoneKey, "zb_za"), testPod("p", usingClaim("c")), "plain", ""},
		{"a hole in the list makes it void", label(zoneKey, "zb__"), testPod("p", usingClaim("c")), everyNode, ""},
		{"an empty label is void", label(zoneKey, ""), testPod("p", usingClaim("c")), everyNode, ""},
		{"a zone in the old words, found in the old and the new", label(oldZone, "za"), testPod("p", usingClaim("c")), "a old plain", ""},
		{"a zone in the new words is not found in the old", label(zoneKey, "za"), testPod("p", usingClaim("c")), "a plain", ""},
		{"a region", label(regionKey, "r"), testPod("p", usingClaim("c")), "plain region", ""},
		{"a region in the old words", label(oldRegion, "r"), testPod("p", usingClaim("c")), "old plain region", ""},
		{"a zone and a region", label(oldZone, "za", oldRegion, "r"), testPod("p", usingClaim("c")), "old plain", ""},
		{"a void zone and a region", label(zoneKey, "__", regionKey, "r"), testPod("p", usingClaim("c")), "plain region", ""},
		{"old and new words that differ", label(oldZone, "za", zoneKey, "zb"), testPod("p", usingClaim("c")), "plain", ""},
		{"two volumes of two zones", slices.Concat(label(zoneKey, "za"), objects{storageVolume("w", volumeLabel(zoneKey, "zb")), storageClaim("d", claimHas("w"))}), testPod("p", usingClaim("c"), usingClaim("d")), "plain", ""},
		{"two volumes with a zone in common", slices.Concat(label(zoneKey, "za__zb"), objects{storageVolume("w", volumeLabel(zoneKey, "zc__za")), storageClaim("d", claimHas("w"))}), testPod("p", usingClaim("c"), usingClaim("d")), "a plain", ""},
		{"a claim that names its volume is taken at its word", objects{storageVolume("v", volumeLabel(zoneKey, "za")), storageClaim("c", claimWants("v"))}, testPod("p", usingClaim("c")), "a plain", ""},
		{"a claim made for the pod is passed over", objects{storageVolume("v", volumeLabel(zoneKey, "za")), storageClaim("p-v", claimOf("p"), claimHas("v"))}, testPod("p", usingOwn("v")), everyNode, ""},
		{"a disk without a claim", nil, testPod("p", inline(ebsDisk("x", false))), everyNode, ""},
		{"a claim that waits for its consumer", objects{lateClass("late", csiName), storageClaim("c")}, testPod("p", usingClaim("c")), everyNode, ""},
		{"one that waits and one with a zone", slices.Concat(label(zoneKey, "za"), objects{lateClass("late", csiName), storageClaim("d")}), testPod("p", usingClaim("d"), usingClaim("c")), "a plain", ""},
		{"a claim that is missing", nil, testPod("p", usingClaim("c")), noneAtAll, `never: persistentvolumeclaim "c" not found`},
		{"a volume that is missing", objects{storageClaim("c", claimHas("v"))}, testPod("p", usingClaim("c")), noneAtAll, `never: persistentvolume "v" not found`},
		{"neither volume nor class", objects{storageClaim("c", claimClass(""))}, testPod("p", usingClaim("c")), noneAtAll, "never: PersistentVolumeClaim had no pv name and storageClass name"},
		{"a class that is missing", objects{storageClaim("c")}, testPod("p", usingClaim("c")), noneAtAll, `never: storageclass.storage.k8s.io "late" not found`},
		{"a class without a mode", objects{modelessClass("late"), storageClaim("c")}, testPod("p", usingClaim("c")), noneAtAll, `never: VolumeBindingMode not set for StorageClass "late"`},
		{"a class that does not wait", objects{soonClass("late"), storageClaim("c")}, testPod("p", usingClaim("c")), noneAtAll, "never: PersistentVolume had no name"},
		{"the class in the old annotation", objects{soonClass("late"), lateClass("other", csiName), storageClaim("c", claimNote(corev1.BetaStorageClassAnnotation, "other"))}, testPod("p", usingClaim("c")), everyNode, ""},
		{"the first that is wrong", slices.Concat(label(zoneKey, "zz"), objects{storageClaim("d")}), testPod("p", usingClaim("c"), usingClaim("d"), usingClaim("e")), noneAtAll, `never: storageclass.storage.k8s.io "late" not found`},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := says{"*": test.all}
			if test.all == "" {
				want = says{}
				for _, n := range nodes {
					if !slices.Contains(strings.Fields(test.fits), n.Name) {
						want[n.Name] = refused
					}
				}
			}
			if got := heard(t, knowing(t, nodes, test.known), volumeZone{}, test.pod); !maps.Equal(got, want) {
				t.Errorf("says %v, want %v", got, want)
			}
		})
	}
}

// Zones beside a model that looks at every pair of a volume's and a node's labels.
func TestZonesAreAsTheModelSays(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, 3))
	newer := map[string]string{corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion}
	keys := []string{corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyZone, corev1.LabelTopologyRegion}
	refused := 0
	for round := range 2000 {
		onNode, onVolume := map[string]string{}, map[string]string{}
		for _, k := range keys {
			if random.IntN(2) == 0 {
				onNode[k] = []string{"x", "y"}[random.IntN(2)]
			}
			if random.IntN(3) == 0 {
				onVolume[k] = []string{"x", "y", "x__y", "y__z", "__x"}[random.IntN(5)]
			}
		}
		fits := true
		for k, list := range onVolume {
			if list == "__x" || len(onNode) == 0 {
				continue
			}
			value, has := onNode[k]
			if !has {
				value, has = onNode[newer[k]]
			}
			fits = fits && has && strings.Contains("__"+list+"__", "__"+value+"__")
		}
		n := testNode("a")
		maps.Copy(n.Labels, onNode)
		v := storageVolume("v")
		v.Labels = onVolume
		got := heard(t, knowing(t, []*corev1.Node{n}, objects{v, storageClaim("c", claimHas("v"))}), volumeZone{}, testPod("p", usingClaim("c")))
		if (len(got) == 0) != fits {
			t.Fatalf("seed %d, round %d: node %v, volume %v: says %v", seed, round, onNode, onVolume, got)
		}
		if !fits {
			refused++
		}
	}
	if refused < 400 {
		t.Errorf("only %d refused", refused)
	}
}

func TestVolumeZoneHints(t *testing.T) {
	pod := testPod("p", usingClaim("x"), usingClaim("c"))
	relabel := func(old, now string) Event {
		return Event{Resource: PersistentVolumeResource, Action: updateOther, Old: storageVolume("v", volumeLabel(corev1.LabelTopologyZone, old)), New: storageVolume("v", volumeLabel(corev1.LabelTopologyZone, now))}
	}
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a class that waits", pod, Event{Resource: StorageClassResource, Action: Add, New: lateClass("late", csiName)}, true},
		{"a class that does not", pod, Event{Resource: StorageClassResource, Action: Add, New: soonClass("late")}, false},
		{"a class without a mode", pod, Event{Resource: StorageClassResource, Action: Add, New: modelessClass("late")}, false},
		{"a class changes", pod, Event{Resource: StorageClassResource, Action: updateOther, Old: soonClass("late"), New: lateClass("late", csiName)}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: testNode("n")}, true},
		{"a node's labels", pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: testNode("n"), New: testNode("n")}, true},
		{"a node's taints", pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: testNode("n"), New: testNode("n")}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("c")}, true},
		{"its claim changes", pod, Event{Resource: PersistentVolumeClaim, Action: updateOther, Old: storageClaim("c"), New: storageClaim("c")}, true},
		{"another claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("d")}, false},
		{"a claim elsewhere", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("c", claimIn("other"))}, false},
		{"a claim made for it, which is passed over", testPod("p", usingOwn("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: storageClaim("p-v")}, false},
		{"a volume", pod, Event{Resource: PersistentVolumeResource, Action: Add, New: storageVolume("v")}, true},
		{"a volume's zone", pod, relabel("za", "zb"), true},
		{"one zone more", pod, relabel("za", "za__zb"), true},
		{"the same zones in another order", pod, relabel("za__zb", "zb__za"), false},
		{"the same zones, one twice", pod, relabel("za__zb", "za__zb__za"), false},
		{"from one void list to another", pod, relabel("__", "x__"), false},
		{"another label", pod, Event{Resource: PersistentVolumeResource, Action: updateOther, Old: storageVolume("v"), New: storageVolume("v", volumeLabel("k", "v"))}, false},
		{"a first zone", pod, Event{Resource: PersistentVolumeResource, Action: updateOther, Old: storageVolume("v"), New: storageVolume("v", volumeLabel(corev1.LabelTopologyRegion, "r"))}, true},
		{"a volume is gone", pod, Event{Resource: PersistentVolumeResource, Action: Delete, Old: storageVolume("v")}, false},
		{"a pod is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), usingClaim("c"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, cluster(t, twoZones()), volumeZone{}, test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}
