package binding

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// Whether a plan has been carried out, by what has been observed from the API server.
func TestVolumesBound(t *testing.T) {
	const wait, done = "wait", "done"
	claimed := func(options ...schedulertest.VolumeOption) *corev1.PersistentVolume {
		return schedulertest.StorageVolume("v", append([]schedulertest.VolumeOption{schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeVersion("11")}, options...)...)
	}
	bound := schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))
	sent := func(options ...schedulertest.ClaimOption) *corev1.PersistentVolumeClaim {
		return schedulertest.StorageClaim("m", append([]schedulertest.ClaimOption{schedulertest.ClaimSelectedNode("a"), schedulertest.ClaimVersion("11")}, options...)...)
	}
	moved := func(zone string) schedulertest.Objects {
		return schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("11"), schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeSource(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}), schedulertest.VolumeNodeAffinity(corev1.LabelTopologyZone, zone)),
			bound, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")}
	}
	unreadable := schedulertest.StorageVolume("v", schedulertest.VolumeVersion("11"), schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeSource(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws:///x/"}}))
	for _, test := range []struct {
		what  string
		bind  bool // the plan binds c to v
		make  bool // the plan has a volume made for m
		known schedulertest.Objects
		node  string // a, unless something else is said
		gone  bool   // the pod is
		want  string
	}{
		{"an empty plan", false, false, nil, "", false, done},
		{"the node does not exist", true, false, schedulertest.Objects{claimed(), bound}, "z", false, `failed to get node "z": node "z" not found`},
		{"the node is only known by its CSINode", true, false, schedulertest.Objects{claimed(), bound, schedulertest.CSINodeWithDrivers("z", nil)}, "z", false, `failed to get node "z": node "z" not found`},
		{"the pod does not exist", true, false, schedulertest.Objects{claimed(), bound}, "", true, `pod does not exist any more: pod "p" not found`},
		{"a missing node is reported before a missing pod", true, false, nil, "z", true, `failed to get node "z": node "z" not found`},
		{"the volume does not exist", true, false, schedulertest.Objects{bound}, "", false, `failed to check binding: persistentvolumes "v" not found`},
		{"the claim does not exist", true, false, schedulertest.Objects{claimed()}, "", false, `failed to check binding: persistentvolumeclaims "default/c" not found`},
		{"neither exists", true, false, nil, "", false, `failed to check binding: persistentvolumes "v" not found`},
		{"our write has not been observed", true, false, schedulertest.Objects{schedulertest.StorageVolume("v"), bound}, "", false, wait},
		{"our write has been observed", true, false, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c")}, "", false, wait},
		{"the claim names the volume, and is not complete", true, false, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v"))}, "", false, wait},
		{"bound", true, false, schedulertest.Objects{claimed(), bound}, "", false, done},
		{"bound, and changed since", true, false, schedulertest.Objects{claimed(schedulertest.VolumeVersion("99")), bound}, "", false, done},
		{"the claimRef was removed", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("12")), bound}, "", false, `ClaimRef got reset for pv "v"`},
		{"the claimRef has no UID", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", ""), schedulertest.VolumeVersion("12")), bound}, "", false, `ClaimRef got reset for pv "v"`},
		{"the volume cannot be reached any more", true, false, schedulertest.Objects{claimed(schedulertest.VolumeOnNode("b")), bound}, "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"a node affinity mismatch is reported before a removed claimRef", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("12"), schedulertest.VolumeOnNode("b")), bound}, "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"a migrated volume, in a zone of the CSI driver", true, false, moved("driver-zone"), "", false, done},
		{"a migrated volume, in another zone", true, false, moved("za"), "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"a migrated volume that cannot be translated", true, false, schedulertest.Objects{unreadable, bound, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")}, "", false, `failed to translate pv to csi: could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x/)`},
		{"a volume that cannot be translated on a node without migration", true, false, schedulertest.Objects{unreadable, bound}, "", false, done},

		{"the claim to provision does not exist", false, true, nil, "", false, `failed to check provisioning pvc: persistentvolumeclaims "default/m" not found`},
		{"the selected node has not been observed", false, true, schedulertest.Objects{schedulertest.StorageClaim("m")}, "", false, wait},
		{"our order has been observed", false, true, schedulertest.Objects{sent()}, "", false, wait},
		{"the order was refused", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimAnnotation("other", "x"))}, "", false, `provisioning failed for PVC "m"`},
		{"the order was wiped out", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"))}, "", false, `selectedNode annotation reset for PVC "m"`},
		{"another node is selected now", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimSelectedNode("b"))}, "", false, `provisioning failed for PVC "m"`},
		{"the volume has not been observed yet", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w"))}, "", false, wait},
		{"it has a volume, and is not complete", false, true, schedulertest.Objects{sent(schedulertest.ClaimVolumeName("w")), schedulertest.StorageVolume("w")}, "", false, wait},
		{"it has a volume", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w")}, "", false, done},
		{"it has a volume of this node", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, "", false, done},
		{"it has a volume of another node", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"))}, "", false, `pv "w" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"it is to have a volume of another node", false, true, schedulertest.Objects{sent(schedulertest.ClaimVolumeName("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"))}, "", false, `pv "w" node affinity doesn't match node "a": no matching NodeSelectorTerms`},

		{"one is bound and one is not made", true, true, schedulertest.Objects{claimed(), bound, sent()}, "", false, wait},
		{"one is not bound and one is refused", true, true, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c"), schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimAnnotation("other", "x"))}, "", false, wait},
		{"both are there", true, true, schedulertest.Objects{claimed(), bound, sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w")}, "", false, done},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshot.NewSnapshot()
			for _, n := range []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za"), schedulertest.NodeLabel("topology.ebs.csi.aws.com/zone", "driver-zone")), schedulertest.TestNode("b")} {
				s.SetNode(n)
			}
			for _, o := range test.known {
				s.SetObject(o)
			}
			info := snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("m")))
			if !test.gone {
				s.Assume(info, "a")
			}
			d := &decision.Decision{Pod: info, Node: "a", Snapshot: s}
			if test.node != "" {
				d.Node = test.node
			}
			plan := &snapshot.PodVolumes{}
			if test.bind {
				plan.StaticBindings = []snapshot.StaticBinding{{Volume: claimed(), Claim: schedulertest.StorageClaim("c")}}
			}
			if test.make {
				plan.DynamicProvisions = []snapshot.DynamicProvision{{Claim: sent()}}
			}
			bound, err := volumesBound(s, d, plan)
			got := wait
			if err != nil {
				got = err.Error()
			} else if bound {
				got = done
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
