package plugins

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

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
func TestVolumePluginsFilterInOrder(t *testing.T) {
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
