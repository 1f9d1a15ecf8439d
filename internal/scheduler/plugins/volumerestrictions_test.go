package plugins

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func TestDiskConflict(t *testing.T) {
	ebs := func(id string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: readOnly}}
	}
	gce := func(name string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}}
	}
	iscsi := func(name string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: name, ReadOnly: readOnly}}
	}
	rbd := func(image string, readOnly bool, monitors ...string) corev1.VolumeSource {
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: "pool", RBDImage: image, ReadOnly: readOnly}}
	}
	for _, test := range []struct {
		what        string
		wanted, has corev1.VolumeSource
		conflict    bool
	}{
		{"the same GCE disk", gce("x", false), gce("x", false), true},
		{"written by one of two", gce("x", true), gce("x", false), true},
		{"read by both", gce("x", true), gce("x", true), false},
		{"another GCE disk", gce("x", false), gce("y", false), false},
		{"the same EBS disk", ebs("x", false), ebs("x", false), true},
		{"which nobody shares, not even to read", ebs("x", true), ebs("x", true), true},
		{"another EBS disk", ebs("x", false), ebs("y", false), false},
		{"the same target", iscsi("x", false), iscsi("x", true), true},
		{"a target read by both", iscsi("x", true), iscsi("x", true), false},
		{"another target", iscsi("x", false), iscsi("y", false), false},
		{"the same image", rbd("x", false, "1", "2"), rbd("x", false, "2", "3"), true},
		{"an image read by both", rbd("x", true, "1"), rbd("x", true, "1"), false},
		{"an image of another cluster", rbd("x", false, "1"), rbd("x", false, "2"), false},
		{"another image", rbd("x", false, "1"), rbd("y", false, "1"), false},
		{"different kinds", gce("x", false), ebs("x", false), false},
	} {
		pod := schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "has", VolumeSource: test.has}} })
		if got := diskConflict(&corev1.Volume{Name: "wanted", VolumeSource: test.wanted}, pod); got != test.conflict {
			t.Errorf("%s: conflict is %t", test.what, got)
		}
	}
}

func TestAlternativeScore(t *testing.T) {
	claim := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		{Name: "fixed", Exactly: &resourcev1.ExactDeviceRequest{}},
		{Name: "one", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "big"}, {Name: "small"}}},
		{Name: "two", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "fast"}, {Name: "slow"}, {Name: "old"}}},
	}}}}
	for _, test := range []struct {
		given string
		want  int64
	}{
		{"", 0}, {"fixed", 0}, {"one/big", 8}, {"one/small", 7}, {"two/old", 6},
		{"one/big two/fast", 16}, {"one/small two/slow fixed", 14}, {"one/big one/big", 8}, {"one/unknown", 0},
	} {
		allocation := &resourcev1.AllocationResult{}
		for _, name := range strings.Fields(test.given) {
			allocation.Devices.Results = append(allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: name})
		}
		if got := subrequestScore(claim, allocation); got != test.want {
			t.Errorf("given %q: %d, want %d", test.given, got, test.want)
		}
	}
}
