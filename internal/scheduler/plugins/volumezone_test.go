package plugins

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

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
