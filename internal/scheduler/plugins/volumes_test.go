package plugins

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

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

const once = corev1.ReadWriteOncePod

func TestVolumeRestrictions(t *testing.T) {
	const (
		taken = "no: node(s) had no available disk"
		inUse = "no: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
	)
	claim, oncePod := schedulertest.StorageClaim("c"), schedulertest.StorageClaim("c", claimModes(once))
	for _, test := range []struct {
		what    string
		known   schedulertest.Objects
		running []*corev1.Pod
		pod     *corev1.Pod
		want    schedulertest.Verdicts
	}{
		{"a pod without volumes", nil, nil, schedulertest.TestPod("p"), schedulertest.Verdicts{}},
		{"a directory is nobody's business", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))},
			schedulertest.TestPod("p", schedulertest.InlineVolumeSource(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), schedulertest.Verdicts{}},
		{"a disk nobody has", nil, nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", false))), schedulertest.Verdicts{}},
		{"a disk on one node", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", false)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", false))), schedulertest.Verdicts{"a": taken}},
		{"a disk on both nodes", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true))), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", false))), schedulertest.Verdicts{"a": taken, "b": taken}},
		{"a disk of a pod in another namespace is the same disk", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("q", false)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("q", true))), schedulertest.Verdicts{"a": taken}},
		{"the second of two disks", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("b"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("y", true)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("y", true))), schedulertest.Verdicts{"b": taken}},
		{"the second disk of the other pod", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("b"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)), schedulertest.InlineVolumeSource(schedulertest.RbdDisk("p", "i", false, "m")))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.RbdDisk("p", "i", true, "n", "m"))), schedulertest.Verdicts{"b": taken}},
		{"the second pod of the node", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a")), schedulertest.TestPod("2", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{"a": taken}},
		{"disks of different kinds on different nodes", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("x", false))), schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("x", false)))},
			schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("x", true)), schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("x", true))), schedulertest.Verdicts{"a": taken, "b": taken}},
		{"a pod that has ended holds nothing", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{}},
		{"a pod on its way out still holds it", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{"a": taken}},

		{"a claim that is missing", nil, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"the first that is missing is named", schedulertest.Objects{claim}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "d" not found`}},
		{"a claim of another namespace is missing", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim made for the pod is not looked for", nil, nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{}},
		{"a claim others may use too", schedulertest.Objects{claim}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a claim for one pod, unused", schedulertest.Objects{oncePod}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a claim for one pod, in use, is no use on any node", schedulertest.Objects{oncePod}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": inUse, "b": inUse}},
		{"one mode of several is for one pod", schedulertest.Objects{schedulertest.StorageClaim("c", claimModes(corev1.ReadWriteOnce, once))}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": inUse, "b": inUse}},
		{"a claim of that name in another namespace is in use", schedulertest.Objects{oncePod}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a claim made for another pod, asked for by its name", schedulertest.Objects{schedulertest.StorageClaim("1-v", claimModes(once))}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingEphemeralVolume("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("1-v")), schedulertest.Verdicts{}},
		{"a claim made for the pod itself", schedulertest.Objects{schedulertest.StorageClaim("p-v", claimModes(once))}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("p-v"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{}},
		{"the second of two claims for one pod", schedulertest.Objects{oncePod, schedulertest.StorageClaim("d", claimModes(once))}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("b"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": inUse, "b": inUse}},
		{"in use by a pod of an unknown node", schedulertest.Objects{oncePod}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("gone"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": inUse, "b": inUse}},
		{"of a disk and a claim, the disk is named", schedulertest.Objects{oncePod}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{"a": taken, "b": inUse}},
		{"a missing claim is named before a disk", nil, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false)), schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known, test.running...)
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
	s := knowing(t, schedulertest.TwoZones(), schedulertest.Objects{schedulertest.StorageClaim("c", claimModes(once))})
	users := []*snapshot.PodInfo{snapshottest.PodInfo(t, schedulertest.TestPod("1", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("c"))), snapshottest.PodInfo(t, schedulertest.TestPod("2", schedulertest.UsingClaim("c")))}
	refused := func() int {
		return len(heard(t, s, volumeRestrictions{}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"))))
	}
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
	if refused() != 0 || len(s.ClaimUsers) != 0 {
		t.Errorf("nobody uses the claim, and it is not free: %v", s.ClaimUsers)
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
		return schedulertest.GceDisk(d.name, d.readOnly)
	case "ebs":
		return schedulertest.EbsDisk(d.name, d.readOnly)
	case "iscsi":
		return schedulertest.IscsiDisk(d.name, d.readOnly)
	case "azure":
		return schedulertest.AzureDisk(d.name)
	default:
		return schedulertest.RbdDisk(d.name[:1], d.name[1:], d.readOnly, strings.Split(d.monitors, "")...)
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
		pod, other := schedulertest.TestPod("p"), schedulertest.TestPod("1", schedulertest.OnNode("a"))
		for i := range wanted {
			wanted[i] = disk()
			schedulertest.InlineVolumeSource(wanted[i].source())(pod)
		}
		for i := range held {
			held[i] = disk()
			schedulertest.InlineVolumeSource(held[i].source())(other)
		}
		want := slices.ContainsFunc(wanted, func(w diskModel) bool { return slices.ContainsFunc(held, w.clash) })
		s := snapshottest.New(t, schedulertest.TwoZones(), other)
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
		{"who had the disk is gone", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", false))), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true)))), true},
		{"who read the disk with us is gone", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true))), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true)))), false},
		{"who had another disk is gone", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("d", false))), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("e", false)))), false},
		{"who had the disk elsewhere in the cluster is gone", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("d", false))), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("d", false)))), false},
		{"who had the claim is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("x"), schedulertest.UsingClaim("c"))), true},
		{"who had a claim of that name elsewhere is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.UsingClaim("c"))), false},
		{"who had another claim is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("x"))), false},
		{"the pod the claim was made for is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("1-v")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingEphemeralVolume("v"))), false},
		{"who borrowed the pod's own claim is gone", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("p-v"))), false},
		{"somebody without volumes is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), gone(schedulertest.TestPod("1", schedulertest.OnNode("a"))), false},
		{"a node", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, true},
		{"a node's labels", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"its claim", schedulertest.TestPod("p", schedulertest.UsingClaim("x"), schedulertest.UsingClaim("c")), added(schedulertest.StorageClaim("c")), true},
		{"another claim", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), added(schedulertest.StorageClaim("d")), false},
		{"a claim of that name elsewhere", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), added(schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))), false},
		{"a claim made for it", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), added(schedulertest.StorageClaim("p-v")), false},
		{"its claim changes", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: PersistentVolumeClaim, Action: UpdateOther, Old: schedulertest.StorageClaim("c"), New: schedulertest.StorageClaim("c")}, false},
		{"its claim is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: PersistentVolumeClaim, Action: Delete, Old: schedulertest.StorageClaim("c")}, false},
		{"a pod came", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: AssignedPod, Action: Add, New: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, false},
		{"a volume", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), Event{Resource: PersistentVolumeResource, Action: Add, New: schedulertest.StorageVolume("v")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, snapshottest.New(t, schedulertest.TwoZones()), volumeRestrictions{}, test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}

func TestNodeVolumeLimits(t *testing.T) {
	const full = "no: node(s) exceed max volume count"
	const missing = "no: csi.example.com CSI driver is not installed on the node"
	must := schedulertest.StorageDriver(schedulertest.CsiName, nil, ptr.To(true))
	limit := func(n int32) *storagev1.CSINode {
		return schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: n})
	}
	bound := func(names ...string) (all schedulertest.Objects) { // claims with a volume each, of the same name
		for _, n := range names {
			all = append(all, schedulertest.StorageClaim(n, schedulertest.ClaimBoundTo(n)), schedulertest.StorageVolume(n))
		}
		return all
	}
	with := func(lists ...schedulertest.Objects) schedulertest.Objects { return slices.Concat(lists...) }
	for _, test := range []struct {
		what    string
		known   schedulertest.Objects
		running []*corev1.Pod
		pod     *corev1.Pod
		want    schedulertest.Verdicts
	}{
		{"a pod without volumes", schedulertest.Objects{limit(0)}, nil, schedulertest.TestPod("p"), schedulertest.Verdicts{}},
		{"a disk that no driver attaches", schedulertest.Objects{limit(0)}, nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("x", false))), schedulertest.Verdicts{}},
		{"no node tells of drivers", bound("c"), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a node without limits", with(bound("c"), schedulertest.Objects{limit(-1)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a limit of another driver", with(bound("c"), schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", map[string]int32{"other": 0})}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a limit of none", with(bound("c"), schedulertest.Objects{limit(0)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"a limit of one", with(bound("c"), schedulertest.Objects{limit(1)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"as many as there may be", with(bound("c", "d", "e"), schedulertest.Objects{limit(3)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"one more than there may be", with(bound("c", "d", "e"), schedulertest.Objects{limit(2)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"pods of another node do not count", with(bound("c", "d"), schedulertest.Objects{limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("b"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"two of the pod itself", with(bound("c", "d"), schedulertest.Objects{limit(1)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": full}},
		{"the same claim twice is one", with(bound("c"), schedulertest.Objects{limit(1)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"the same volume by two claims is one", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("v", schedulertest.VolumeHandle(schedulertest.CsiName, "h")), schedulertest.StorageVolume("w", schedulertest.VolumeHandle(schedulertest.CsiName, "h")), limit(1)},
			[]*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a handle of another driver is another volume", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("v", schedulertest.VolumeHandle(schedulertest.CsiName, "h")), schedulertest.StorageVolume("w", schedulertest.VolumeHandle("other", "h")), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 0, "other": 5})},
			[]*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"a volume that a pod on the node uses already needs no attachment", with(bound("c", "d"), schedulertest.Objects{limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"one of two needs an attachment", with(bound("c", "d"), schedulertest.Objects{limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": full}},
		{"a limit exceeded by others is not this pod's fault", with(bound("d", "e"), schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("c")), schedulertest.StorageVolume("c", schedulertest.VolumeHandle("other", "c")), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 1, "other": 1})}),
			[]*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"the second of two drivers", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("c")), schedulertest.StorageVolume("c"), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("d")), schedulertest.StorageVolume("d", schedulertest.VolumeHandle("other", "d")), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 1, "other": 0})}, nil,
			schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": full}},
		{"a volume no driver attaches", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("c")), schedulertest.StorageVolume("c", schedulertest.VolumeSource(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}})), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},

		{"a claim that is missing", schedulertest.Objects{limit(5)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": `never: looking up PVC default/c: persistentvolumeclaim "c" not found`, "b": `never: looking up PVC default/c: persistentvolumeclaim "c" not found`}},
		{"a claim still to be made for the pod", schedulertest.Objects{limit(5)}, nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{
			"a": `never: looking up PVC default/p-v: persistentvolumeclaim "p-v" not found`, "b": `never: looking up PVC default/p-v: persistentvolumeclaim "p-v" not found`}},
		{"a claim made for the pod", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p"), schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v"), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"a": full}},
		{"a claim that only looks made for the pod", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v"), limit(5)}, nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{
			"a": "error: PVC default/p-v was not created for pod default/p (pod is not owner)", "b": "error: PVC default/p-v was not created for pod default/p (pod is not owner)"}},
		{"a running pod's claim is gone", with(bound("c"), schedulertest.Objects{limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a running pod's own claim is another's", with(bound("c"), schedulertest.Objects{schedulertest.StorageClaim("1-v", schedulertest.ClaimOwnedBy("2")), limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingEphemeralVolume("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": "error: PVC default/1-v was not created for pod default/1 (pod is not owner)"}},
		{"a running pod's own claim counts", with(bound("c"), schedulertest.Objects{schedulertest.StorageClaim("1-v", schedulertest.ClaimOwnedBy("1"), schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w"), limit(1)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingEphemeralVolume("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},

		{"a volume still to be made", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c"), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"of a class that is missing", schedulertest.Objects{schedulertest.StorageClaim("c"), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"of no class", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimClass("")), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"of the class in the old annotation", schedulertest.Objects{schedulertest.WaitForConsumerClass("other", schedulertest.CsiName), schedulertest.StorageClaim("c", schedulertest.ClaimAnnotation(corev1.BetaStorageClassAnnotation, "other")), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"a volume without a handle is not counted", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeHandle(schedulertest.CsiName, "")), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"of a class without anybody to make it", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", ""), schedulertest.StorageClaim("c"), schedulertest.CSINodeWithDrivers("a", map[string]int32{"": 0})}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"of a class nobody makes volumes of, beside a disk that cannot be read", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.StorageClaim("c"), limit(5)}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("aws:///zone/", false)))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
		{"of a class nobody makes volumes of", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.StorageClaim("c"), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 0})}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"two claims will have two volumes", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), limit(1)}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"one claim will have one", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c"), limit(1)}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"claims of the same name in two namespaces are two", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c"), schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other")), limit(1)}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"a claim whose volume is gone counts by its class", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"a claim that names a volume to come counts by its class", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v")), limit(0)}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},

		{"what is attached counts", with(bound("c", "d"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", schedulertest.CsiName, "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"attached elsewhere", with(bound("c", "d"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "b", schedulertest.CsiName, "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached by another driver", with(bound("c", "d"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", "other", "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached by nobody", with(bound("c", "d"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", "", "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached without a volume", with(bound("c"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", schedulertest.CsiName, "")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached a volume that is gone", with(bound("c"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", schedulertest.CsiName, "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached a volume of no driver", with(bound("c"), schedulertest.Objects{limit(1), schedulertest.EbsVolume("d", "vol-d", ""), schedulertest.Attachment("x", "a", schedulertest.CsiName, "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached for a pod there counts once", with(bound("c", "d"), schedulertest.Objects{limit(2), schedulertest.Attachment("x", "a", schedulertest.CsiName, "d")}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("d"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"attached twice counts once", with(bound("c", "d"), schedulertest.Objects{limit(2), schedulertest.Attachment("x", "a", schedulertest.CsiName, "d"), schedulertest.Attachment("y", "a", schedulertest.CsiName, "d")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"the pod's own volume is attached and on its way out", with(bound("c"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", schedulertest.CsiName, "c")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full}},
		{"the limit allows both", with(bound("c"), schedulertest.Objects{limit(2), schedulertest.Attachment("x", "a", schedulertest.CsiName, "c")}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"the pod's own volume is attached for a pod there", with(bound("c"), schedulertest.Objects{limit(1), schedulertest.Attachment("x", "a", schedulertest.CsiName, "c")}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},

		{"a driver that must be there, and is not", with(bound("c"), schedulertest.Objects{must, schedulertest.CSINodeWithDrivers("a", map[string]int32{"other": 1})}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},
		{"and is on one node, without a limit", with(bound("c"), schedulertest.Objects{must, limit(-1)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": missing}},
		{"and is full", with(bound("c"), schedulertest.Objects{must, limit(0)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": full, "b": missing}},
		{"a driver that need not be there", with(bound("c"), schedulertest.Objects{schedulertest.StorageDriver(schedulertest.CsiName, nil, ptr.To(false)), schedulertest.CSINodeWithDrivers("a", nil)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a driver that says nothing of it", with(bound("c"), schedulertest.Objects{schedulertest.StorageDriver(schedulertest.CsiName, nil, nil)}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"another driver must be there", with(bound("c"), schedulertest.Objects{schedulertest.StorageDriver("other", nil, ptr.To(true))}), nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a driver that must be there for a volume to be made", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c"), must}, nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},

		{"a disk that moved counts where drivers are told of", schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.EbsDriver: 0})}, nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-1", false))), schedulertest.Verdicts{"a": full}},
		{"beside a moved disk of a pod there", schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.EbsDriver: 1})}, []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-2", false)))}, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-1", false))), schedulertest.Verdicts{"a": full}},
		{"a disk that cannot be read, where no drivers are told of", nil, nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("aws:///zone/", false))), schedulertest.Verdicts{}},
		{"a disk that cannot be read, where they are", schedulertest.Objects{schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.EbsDriver: 5})}, nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("aws:///zone/", false))), schedulertest.Verdicts{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
		{"a running pod's disk that cannot be read", with(bound("c"), schedulertest.Objects{limit(5)}), []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("aws:///zone/", false)))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": `error: converting volume(inline-a) from inline to csi: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///zone/)`}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known, test.running...)
			if got := heard(t, s, nodeVolumeLimits{}, test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

// What one rule leaves to another is told in the other's words: a claim still to be made for a pod is what VolumeBinding waits for.
func TestVolumeRulesSpeakInOrder(t *testing.T) {
	for what, test := range map[string]struct {
		known schedulertest.Objects
		pod   *corev1.Pod
		want  string
	}{
		"a claim that is missing":            {nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `persistentvolumeclaim "c" not found`},
		"a claim still to be made":           {nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), `waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`},
		"a claim that was not made for it":   {schedulertest.Objects{schedulertest.StorageClaim("p-v")}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), "PVC default/p-v was not created for pod default/p (pod is not owner)"},
		"an immediate claim is not bound":    {schedulertest.Objects{schedulertest.StorageClaim("c"), schedulertest.ImmediateClass("late")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "pod has unbound immediate PersistentVolumeClaims"},
		"its class is missing":               {schedulertest.Objects{schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "pod has unbound immediate PersistentVolumeClaims"},
		"its volume is missing":              {schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `persistentvolume "v" not found`},
		"the volume of its own claim is too": {schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p"), schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), snapshot.ReasonVolumeMissing},
	} {
		t.Run(what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			if got := filterReasons(t, s, test.pod, DefaultProfile()); !maps.Equal(got, schedulertest.Verdicts{"a": test.want, "b": test.want}) {
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
		known := schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: int32(m.limit)})}
		for h := range 5 {
			name := fmt.Sprint("h", h)
			known = append(known, schedulertest.StorageVolume("pv-"+name, schedulertest.VolumeHandle(schedulertest.CsiName, name)))
			if random.IntN(4) == 0 {
				m.attached = append(m.attached, name)
				known = append(known, schedulertest.Attachment("x-"+name, "a", schedulertest.CsiName, "pv-"+name))
			}
		}
		var claims []string
		for c := range 8 {
			name := fmt.Sprint("c", c)
			claims = append(claims, name)
			if random.IntN(3) == 0 {
				m.volumeOf[name] = ""
				known = append(known, schedulertest.StorageClaim(name))
				continue
			}
			m.volumeOf[name] = fmt.Sprint("h", random.IntN(5))
			known = append(known, schedulertest.StorageClaim(name, schedulertest.ClaimBoundTo("pv-"+m.volumeOf[name])))
		}
		some := func(p *corev1.Pod) (names []string) {
			for range random.IntN(4) {
				names = append(names, claims[random.IntN(len(claims))])
			}
			for _, n := range names {
				schedulertest.UsingClaim(n)(p)
			}
			return names
		}
		var running []*corev1.Pod
		for i := range random.IntN(4) {
			p := schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode("a"))
			m.running = append(m.running, some(p))
			running = append(running, p)
		}
		random.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
		s := knowing(t, schedulertest.TwoZones(), known, running...)
		pod := schedulertest.TestPod("p")
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
	pod := schedulertest.TestPod("p", schedulertest.UsingClaim("c"))
	changed := func(old, now *storagev1.CSINode) Event {
		return Event{Resource: CSINodeResource, Action: UpdateOther, Old: old, New: now}
	}
	one := func(count int32) *storagev1.CSINode {
		return schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: count})
	}
	detached := func(driver string) Event {
		return Event{Resource: VolumeAttachmentResource, Action: Delete, Old: schedulertest.Attachment("x", "a", driver, "v")}
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
		{"another driver with a limit", pod, changed(schedulertest.CSINodeWithDrivers("a", nil), one(1)), true},
		{"another driver, which may be the one that must be there", pod, changed(schedulertest.CSINodeWithDrivers("a", nil), one(-1)), true},
		{"one of two is higher", pod, changed(schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 3, "other": 1}), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 2, "other": 2})), true},
		{"a driver is gone", pod, changed(one(1), schedulertest.CSINodeWithDrivers("a", nil)), false},
		{"a node's drivers are gone", pod, Event{Resource: CSINodeResource, Action: Delete, Old: one(1)}, false},
		{"a pod with a claim is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("x"))}, true},
		{"a pod of another namespace too", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Namespace("other"), schedulertest.UsingClaim("x"))}, true},
		{"a pod with a claim of its own is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingEphemeralVolume("v"))}, true},
		{"a pod with a moved disk is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.GceDisk("d", true)))}, true},
		{"a pod with a disk no driver attaches is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("d", true)))}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("c")}, true},
		{"the claim made for it", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("p-v")}, true},
		{"another claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("d")}, false},
		{"its claim changes", pod, Event{Resource: PersistentVolumeClaim, Action: UpdateOther, Old: schedulertest.StorageClaim("c"), New: schedulertest.StorageClaim("c")}, false},
		{"a volume is detached", pod, detached(schedulertest.CsiName), true},
		{"a volume is detached, for a claim made for it", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), detached(schedulertest.CsiName), true},
		{"a volume of its disk's driver is detached", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-1", false))), detached(schedulertest.EbsDriver), true},
		{"a volume of another driver is detached", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-1", false))), detached(schedulertest.CsiName), false},
		{"the second of its disks", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.AzureDisk("d")), schedulertest.InlineVolumeSource(schedulertest.EbsDisk("vol-1", false))), detached(schedulertest.EbsDriver), true},
		{"a disk that cannot be read may be any", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("aws:///zone/", false))), detached(schedulertest.CsiName), true},
		{"a volume is detached, for a disk no driver attaches", schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.IscsiDisk("q", false))), detached(schedulertest.CsiName), false},
		{"a volume is attached", pod, Event{Resource: VolumeAttachmentResource, Action: Add, New: schedulertest.Attachment("x", "a", schedulertest.CsiName, "v")}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, snapshottest.New(t, schedulertest.TwoZones()), nodeVolumeLimits{}, test.pod, test.event); got != test.helps {
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
			if r := newVolumeBinding(&test.args).(*volumeBinding); r.TimeoutSeconds != test.timeout || !slices.Equal(r.shape, test.shape) {
				t.Errorf("timeout %d, shape %v", r.TimeoutSeconds, r.shape)
			}
		})
	}
}

func bindingPlugin(t testing.TB, shape ...configv1.UtilizationShapePoint) *volumeBinding {
	t.Helper()
	return newVolumeBinding(&configv1.VolumeBindingArgs{Shape: shape}).(*volumeBinding)
}

func TestVolumeBindingFilter(t *testing.T) {
	const (
		elsewhere = "never: " + snapshot.ReasonNodeConflict
		none      = "never: " + snapshot.ReasonBindConflict
		small     = "never: " + snapshot.ReasonNotEnoughSpace
		missing   = "never: " + snapshot.ReasonVolumeMissing
	)
	static := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner)
	made := schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)
	tracks := schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		want  schedulertest.Verdicts
	}{
		{"a pod without volumes", nil, schedulertest.TestPod("p"), schedulertest.Verdicts{}},
		{"a pod with a disk and no claim", nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{}},
		{"a claim that is missing", nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim of another namespace", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim still to be made for it", nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": `never: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`}},
		{"a claim that was not made for it", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("q"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": "never: PVC default/p-v was not created for pod default/p (pod is not owner)"}},
		{"a claim that lost its volume", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimLost)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"a claim on its way out", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimTerminating), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" is being deleted`}},
		{"lost and on its way out", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimTerminating, schedulertest.ClaimLost)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"on its way out and another's", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimTerminating)}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "p-v" is being deleted`}},
		{"the first that is wrong is named", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "d" not found`}},
		{"an unbound claim of an immediate class", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of no class", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimClass(""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of a class that is missing", schedulertest.Objects{schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a claim that names its volume and waits", schedulertest.Objects{made, schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"one bound and one not", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a class without a mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `error: VolumeBindingMode not set for StorageClass "late"`}},

		{"a bound volume of everywhere", schedulertest.Objects{schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a bound volume of one node", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": elsewhere}},
		{"a bound volume of no node", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("z")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere}},
		{"a bound volume of another phase and a class without mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumeFailed)), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"bound volumes of two nodes", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere}},
		{"a bound volume that is gone", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},
		{"gone is named where nothing else is wrong before", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": missing, "b": elsewhere}},
		{"the first that is gone ends the look", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("d"), schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},
		{"a bound volume that cannot be read in its driver's words", schedulertest.Objects{schedulertest.EbsVolume("v", "aws:///x/", ""), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.CSINodeWithDrivers("b", nil, "kubernetes.io/aws-ebs")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"b": "error: could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x/)"}},
		{"its own bound claim", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p"), schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"a": elsewhere}},

		{"a volume to choose on one node", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": none}},
		{"a volume to choose anywhere", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"no volume", schedulertest.Objects{static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of just the size", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5Gi")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume too small by a byte", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5368709121")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of another class", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClass("other"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume that is released", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumeReleased))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume that is pending", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumePending))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume on its way out", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeTerminating)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of another mode", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume without the access asked", schedulertest.Objects{static, schedulertest.StorageClaim("c", claimModes(corev1.ReadWriteMany)), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume with other attributes", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume with the attributes asked", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), schedulertest.StorageVolume("v", func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") })}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume whose labels do not match", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "fast"}}
		}), schedulertest.StorageVolume("v", schedulertest.VolumeLabel("kind", "slow"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a selector that cannot be read", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}}
		})}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`, "b": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`}},
		{"a volume kept for another claim", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "d", ""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume kept for this claim, whatever its phase", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", ""), schedulertest.VolumePhase(corev1.VolumeBound))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume kept for an earlier claim of the name", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", "old"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume kept for this claim on another node leaves no choice", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeOnNode("b")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none}},
		{"two claims and one volume", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none, "b": none}},
		{"two claims and two volumes of a node", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"b": none}},
		{"the small claim leaves the large volume", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageClaim("d", schedulertest.ClaimSize("1Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{}},
		{"a bound one elsewhere and none to choose", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b"), schedulertest.VolumeClaimRef("default", "c", "c")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere + "; " + snapshot.ReasonBindConflict, "b": none}},
		{"a bound one gone and none to choose", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none + "; " + snapshot.ReasonVolumeMissing, "b": none + "; " + snapshot.ReasonVolumeMissing}},
		{"a bound one gone and no capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": small + "; " + snapshot.ReasonVolumeMissing, "b": small + "; " + snapshot.ReasonVolumeMissing}},

		{"a volume to be made anywhere", schedulertest.Objects{made, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"nobody to make it", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", ""), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"to be made in one zone", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "za")), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": none}},
		{"a choice is made before anything is to be made", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "za")), schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"one chosen and one to be made", schedulertest.Objects{made, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{}},
		{"a claim sent to a node is not bound elsewhere", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none}},
		{"nor to a volume there is", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("b")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a claim sent to no node at all", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode(""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"claims sent to two nodes", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("a")), schedulertest.StorageClaim("d", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none, "b": none}},
		{"sent elsewhere ends the look, but bound ones are told", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("d", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere + "; " + snapshot.ReasonBindConflict}},

		{"no capacity anywhere", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"a driver that does not track", schedulertest.Objects{made, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(false), nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a driver that says nothing", schedulertest.Objects{made, schedulertest.StorageDriver(schedulertest.CsiName, nil, nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"another driver tracks", schedulertest.Objects{made, schedulertest.StorageDriver("other", ptr.To(true), nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"capacity in one zone", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"too little by a byte", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1073741823", ""), schedulertest.StorageCapacity("y", "late", "zb", "1073741824", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small}},
		{"capacity of another class", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "other", "za", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity that no node reaches", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity of unknown size", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity for small volumes only", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageCapacity("x", "late", "za", "9Gi", "2Gi"), schedulertest.StorageCapacity("y", "late", "zb", "1Gi", "3Gi")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small}},
		{"the second capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1Mi", ""), schedulertest.StorageCapacity("y", "late", "za", "2Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"a place that cannot be read", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := schedulertest.StorageCapacity("x", "late", "za", "9Gi", "")
			c.NodeTopology.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}
			return c
		}()}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"an empty place is every place", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := schedulertest.StorageCapacity("x", "late", "", "9Gi", "")
			c.NodeTopology = &metav1.LabelSelector{}
			return c
		}()}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a claim for no size needs no capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"each of two claims has capacity, though not both", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageCapacity("x", "late", "za", "1Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"b": small}},
		{"capacity does not matter for what is chosen", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"capacity matters for a claim sent to the node", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("a")), schedulertest.StorageCapacity("x", "late", "zb", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": none}},
		{"a place that is not allowed is named before the capacity", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "zb")), tracks, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": small}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			if got := heard(t, s, bindingPlugin(t), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingScore(t *testing.T) {
	static, made := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)
	other := schedulertest.WaitForConsumerClass("other", volume.NotSupportedProvisioner)
	tracks := schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)
	point := func(x, y int32) configv1.UtilizationShapePoint {
		return configv1.UtilizationShapePoint{Utilization: x, Score: y}
	}
	fullest := []configv1.UtilizationShapePoint{point(0, 0), point(100, 10)}
	for _, test := range []struct {
		what  string
		shape []configv1.UtilizationShapePoint
		known schedulertest.Objects
		pod   *corev1.Pod
		want  [2]int64 // of nodes a and b
	}{
		{"no claim", nil, nil, schedulertest.TestPod("p"), [2]int64{}},
		{"a bound claim says nothing", nil, schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{}},
		{"a fifth used, least is best", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{80, 80}},
		{"a fifth used, most is best", fullest, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{20, 20}},
		{"all used", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5Gi")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{0, 0}},
		{"each node has its own volume", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("2Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("4Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 75}},
		{"parts are cut, not rounded", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{67, 67}},
		{"volumes of a class are added up", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("5Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{50, 50}},
		{"classes are averaged", nil, schedulertest.Objects{static, other, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimClass("other")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeClass("other"), schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{25, 25}},
		{"and the average is rounded", fullest, schedulertest.Objects{static, other, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimClass("other")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeClass("other"), schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{67, 67}},
		{"nothing is known of what will be made", nil, schedulertest.Objects{made, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{}},
		{"capacity to make it", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "2Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "10Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 90}},
		{"two share one capacity", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageCapacity("x", "late", "za", "6Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "2Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{50, 0}},
		{"capacity of which only the largest volume is known", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "", "5Gi"), schedulertest.StorageCapacity("y", "late", "zb", "4Gi", "5Gi")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{0, 75}},
		{"what is chosen speaks oncePod", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("1Gi")), schedulertest.StorageCapacity("x", "late", "za", "100Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "30Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{0, 90}},
		{"a volume that cannot be read in its driver's words", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v"), schedulertest.EbsVolume("w", "aws:///x/", ""), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w")), schedulertest.CSINodeWithDrivers("b", nil, "kubernetes.io/aws-ebs")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{80, 0}},
		{"its own claim counts", nil, schedulertest.Objects{static, schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), [2]int64{80, 80}},
		{"beyond the last point it stays level", []configv1.UtilizationShapePoint{point(10, 3), point(20, 7)}, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("2Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("20Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{70, 30}},
		{"between points it is straight", []configv1.UtilizationShapePoint{point(0, 10), point(50, 0), point(100, 10)}, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("4Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 0}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			scorer := bindingPlugin(t, test.shape...).Score(s, snapshottest.PodInfo(t, test.pod))
			var got [2]int64
			if scorer.Score != nil {
				got = [2]int64{scorer.Score(0), scorer.Score(1)}
			}
			if got != test.want || scorer.Normalization != NotNormalized {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingHints(t *testing.T) {
	pod := schedulertest.TestPod("p", schedulertest.UsingClaim("x"), schedulertest.UsingClaim("c"))
	capacity := func(capacity, largest string) *storagev1.CSIStorageCapacity {
		return schedulertest.StorageCapacity("r", "late", "za", capacity, largest)
	}
	update := func(r Resource, old, now any) Event {
		return Event{Resource: r, Action: UpdateOther, Old: old, New: now}
	}
	class := schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "za"))
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a class", pod, Event{Resource: StorageClassResource, Action: Add, New: class}, true},
		{"a class allows other places", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "zb"))), true},
		{"a class allows all places", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)), true},
		{"a class says the same", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "za"))), false},
		{"an empty list is no list", pod, update(StorageClassResource, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, []corev1.TopologySelectorTerm{}...)), false},
		{"a class is gone", pod, Event{Resource: StorageClassResource, Action: Delete, Old: class}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("c")}, true},
		{"its claim changes", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("c")), true},
		{"the claim made for it", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("p-v")}, true},
		{"the claim made for another", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("q-v")}, false},
		{"another claim", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("d"), schedulertest.StorageClaim("d")), false},
		{"a claim elsewhere", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other")), schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))), false},
		{"its claim is gone", pod, Event{Resource: PersistentVolumeClaim, Action: Delete, Old: schedulertest.StorageClaim("c")}, false},
		{"a volume", pod, Event{Resource: PersistentVolumeResource, Action: Add, New: schedulertest.StorageVolume("v")}, true},
		{"a volume changes", pod, update(PersistentVolumeResource, schedulertest.StorageVolume("v"), schedulertest.StorageVolume("v")), true},
		{"a volume is gone", pod, Event{Resource: PersistentVolumeResource, Action: Delete, Old: schedulertest.StorageVolume("v")}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, true},
		{"a node's labels", pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n", schedulertest.NodeLabel("x", "y"))}, true},
		{"a node's taints", pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"a node's resources", pod, Event{Resource: NodeResource, Action: UpdateNodeAllocatable, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"a node tells of its drivers", pod, Event{Resource: CSINodeResource, Action: Add, New: schedulertest.CSINodeWithDrivers("a", nil)}, true},
		{"a kind has moved on a node", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil), schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")), true},
		{"a kind has moved back", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs"), schedulertest.CSINodeWithDrivers("a", nil)), true},
		{"a node has another driver", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil, "x"), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 5}, "x")), false},
		{"capacity", pod, Event{Resource: CSIStorageCapacityResource, Action: Add, New: capacity("", "")}, true},
		{"more capacity", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("2Gi", "")), true},
		{"as much capacity", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("1024Mi", "")), false},
		{"less capacity", pod, update(CSIStorageCapacityResource, capacity("2Gi", ""), capacity("1Gi", "")), false},
		{"capacity that was unknown", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("0", "")), true},
		{"capacity that is unknown now", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("", "")), false},
		{"unknown still", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("", "")), false},
		{"larger volumes", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "2Gi")), true},
		{"more capacity for volumes of the same size", pod, update(CSIStorageCapacityResource, capacity("5Gi", "1Gi"), capacity("9Gi", "1Gi")), false},
		{"volumes no longer bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "")), true},
		{"volumes bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", ""), capacity("9Gi", "1Gi")), false},
		{"capacity is gone", pod, Event{Resource: CSIStorageCapacityResource, Action: Delete, Old: capacity("1Gi", "")}, false},
		{"a driver tracks capacity no longer", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(false), nil)), true},
		{"a driver says nothing of capacity any longer", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, nil, nil)), true},
		{"a driver begins to track capacity", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, nil, nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)), false},
		{"a driver changes otherwise", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), ptr.To(true))), false},
		{"a driver", pod, Event{Resource: CSIDriverResource, Action: Add, New: schedulertest.StorageDriver(schedulertest.CsiName, nil, nil)}, false},
		{"a pod is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, snapshottest.New(t, schedulertest.TwoZones()), bindingPlugin(t), test.pod, test.event); got != test.helps {
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
		schedulertest.TestNode("a", schedulertest.Zone("za")), schedulertest.TestNode("old", schedulertest.NodeLabel(oldZone, "za"), schedulertest.NodeLabel(oldRegion, "r")), schedulertest.TestNode("plain"), schedulertest.TestNode("region", schedulertest.NodeLabel(regionKey, "r")),
	}
	label := func(pairs ...string) schedulertest.Objects { // a bound claim of a volume with these labels
		v := schedulertest.StorageVolume("v")
		for i := 0; i < len(pairs); i += 2 {
			schedulertest.VolumeLabel(pairs[i], pairs[i+1])(v)
		}
		return schedulertest.Objects{v, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}
	}
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		fits  string // nodes, when nothing is said of all
		all   string
	}{
		{"a pod without volumes", nil, schedulertest.TestPod("p"), everyNode, ""},
		{"a volume without labels", label(), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"labels that say nothing of zones", label("kind", "fast"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"a zone; nodes without any labels of the kind may be anywhere", label(zoneKey, "za"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a plain", ""},
		{"another zone", label(zoneKey, "zb"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "plain", ""},
		{"one of several zones", label(zoneKey, "zb__za"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a plain", ""},
		{"spaces do not matter", label(zoneKey, "zb __ za "), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a plain", ""},
		{"a single underscore is part of the name", label(zoneKey, "zb_za"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "plain", ""},
		{"a hole in the list makes it void", label(zoneKey, "zb__"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"an empty label is void", label(zoneKey, ""), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"a zone in the old words, found in the old and the new", label(oldZone, "za"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a old plain", ""},
		{"a zone in the new words is not found in the old", label(zoneKey, "za"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a plain", ""},
		{"a region", label(regionKey, "r"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "plain region", ""},
		{"a region in the old words", label(oldRegion, "r"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "old plain region", ""},
		{"a zone and a region", label(oldZone, "za", oldRegion, "r"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "old plain", ""},
		{"a void zone and a region", label(zoneKey, "__", regionKey, "r"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "plain region", ""},
		{"old and new words that differ", label(oldZone, "za", zoneKey, "zb"), schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "plain", ""},
		{"two volumes of two zones", slices.Concat(label(zoneKey, "za"), schedulertest.Objects{schedulertest.StorageVolume("w", schedulertest.VolumeLabel(zoneKey, "zb")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}), schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), "plain", ""},
		{"two volumes with a zone in common", slices.Concat(label(zoneKey, "za__zb"), schedulertest.Objects{schedulertest.StorageVolume("w", schedulertest.VolumeLabel(zoneKey, "zc__za")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}), schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), "a plain", ""},
		{"a claim that names its volume is taken at its word", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeLabel(zoneKey, "za")), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), "a plain", ""},
		{"a claim made for the pod is passed over", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeLabel(zoneKey, "za")), schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p"), schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), everyNode, ""},
		{"a disk without a claim", nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), everyNode, ""},
		{"a claim that waits for its consumer", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"one that waits and one with a zone", slices.Concat(label(zoneKey, "za"), schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("d")}), schedulertest.TestPod("p", schedulertest.UsingClaim("d"), schedulertest.UsingClaim("c")), "a plain", ""},
		{"a claim that is missing", nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, `never: persistentvolumeclaim "c" not found`},
		{"a volume that is missing", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, `never: persistentvolume "v" not found`},
		{"neither volume nor class", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimClass(""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, "never: PersistentVolumeClaim had no pv name and storageClass name"},
		{"a class that is missing", schedulertest.Objects{schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, `never: storageclass.storage.k8s.io "late" not found`},
		{"a class without a mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, `never: VolumeBindingMode not set for StorageClass "late"`},
		{"a class that does not wait", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), noneAtAll, "never: PersistentVolume had no name"},
		{"the class in the old annotation", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.WaitForConsumerClass("other", schedulertest.CsiName), schedulertest.StorageClaim("c", schedulertest.ClaimAnnotation(corev1.BetaStorageClassAnnotation, "other"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), everyNode, ""},
		{"the first that is wrong", slices.Concat(label(zoneKey, "zz"), schedulertest.Objects{schedulertest.StorageClaim("d")}), schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e")), noneAtAll, `never: storageclass.storage.k8s.io "late" not found`},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := schedulertest.Verdicts{"*": test.all}
			if test.all == "" {
				want = schedulertest.Verdicts{}
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
		n := schedulertest.TestNode("a")
		maps.Copy(n.Labels, onNode)
		v := schedulertest.StorageVolume("v")
		v.Labels = onVolume
		got := heard(t, knowing(t, []*corev1.Node{n}, schedulertest.Objects{v, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}), volumeZone{}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")))
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
	pod := schedulertest.TestPod("p", schedulertest.UsingClaim("x"), schedulertest.UsingClaim("c"))
	relabel := func(old, now string) Event {
		return Event{Resource: PersistentVolumeResource, Action: UpdateOther, Old: schedulertest.StorageVolume("v", schedulertest.VolumeLabel(corev1.LabelTopologyZone, old)), New: schedulertest.StorageVolume("v", schedulertest.VolumeLabel(corev1.LabelTopologyZone, now))}
	}
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a class that waits", pod, Event{Resource: StorageClassResource, Action: Add, New: schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)}, true},
		{"a class that does not", pod, Event{Resource: StorageClassResource, Action: Add, New: schedulertest.ImmediateClass("late")}, false},
		{"a class without a mode", pod, Event{Resource: StorageClassResource, Action: Add, New: schedulertest.ClassWithoutBindingMode("late")}, false},
		{"a class changes", pod, Event{Resource: StorageClassResource, Action: UpdateOther, Old: schedulertest.ImmediateClass("late"), New: schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, true},
		{"a node's labels", pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, true},
		{"a node's taints", pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("c")}, true},
		{"its claim changes", pod, Event{Resource: PersistentVolumeClaim, Action: UpdateOther, Old: schedulertest.StorageClaim("c"), New: schedulertest.StorageClaim("c")}, true},
		{"another claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("d")}, false},
		{"a claim elsewhere", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))}, false},
		{"a claim made for it, which is passed over", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("p-v")}, false},
		{"a volume", pod, Event{Resource: PersistentVolumeResource, Action: Add, New: schedulertest.StorageVolume("v")}, true},
		{"a volume's zone", pod, relabel("za", "zb"), true},
		{"one zone more", pod, relabel("za", "za__zb"), true},
		{"the same zones in another order", pod, relabel("za__zb", "zb__za"), false},
		{"the same zones, one twice", pod, relabel("za__zb", "za__zb__za"), false},
		{"from one void list to another", pod, relabel("__", "x__"), false},
		{"another label", pod, Event{Resource: PersistentVolumeResource, Action: UpdateOther, Old: schedulertest.StorageVolume("v"), New: schedulertest.StorageVolume("v", schedulertest.VolumeLabel("k", "v"))}, false},
		{"a first zone", pod, Event{Resource: PersistentVolumeResource, Action: UpdateOther, Old: schedulertest.StorageVolume("v"), New: schedulertest.StorageVolume("v", schedulertest.VolumeLabel(corev1.LabelTopologyRegion, "r"))}, true},
		{"a volume is gone", pod, Event{Resource: PersistentVolumeResource, Action: Delete, Old: schedulertest.StorageVolume("v")}, false},
		{"a pod is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, snapshottest.New(t, schedulertest.TwoZones()), volumeZone{}, test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}
