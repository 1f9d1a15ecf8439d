package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// planned reads a plan as text: "claim=volume" for what is bound, "claim+" for what is made.
func planned(plan *volumePlan) string {
	var words []string
	for _, b := range plan.bindings {
		words = append(words, b.claim.Name+"="+b.volume.Name)
	}
	for _, p := range plan.provisions {
		word := p.claim.Name + "+"
		if p.capacity != nil {
			word += p.capacity.Name
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func planFor(t testing.TB, s *Snapshot, pod *corev1.Pod, node string) (volumePlan, []string) {
	t.Helper()
	claims, err := s.volumes.claimsOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	n := s.nodeNumber[node]
	plan, reasons, err := s.volumes.plan(claims, s.nodes[n].object, s.nodes[n].csi)
	if err != nil {
		t.Fatal(err)
	}
	return plan, reasons
}

func TestVolumePlans(t *testing.T) {
	static, made := lateClass("late", volume.NotSupportedProvisioner), lateClass("late", csiName)
	tracks := storageDriver(csiName, ptr.To(true), nil)
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		want  [2]string // on a and b; reasons in brackets
	}{
		{"nothing to do", nil, testPod("p"), [2]string{"", ""}},
		{"all is bound", objects{storageClaim("c", claimHas("v")), storageVolume("v")}, testPod("p", usingClaim("c")), [2]string{"", ""}},
		{"the only volume", objects{static, storageClaim("c"), storageVolume("v")}, testPod("p", usingClaim("c")), [2]string{"c=v", "c=v"}},
		{"the smallest that will do", objects{static, storageClaim("c", claimSize("2Gi")), storageVolume("v", volumeSize("9Gi")), storageVolume("w", volumeSize("2Gi")), storageVolume("x", volumeSize("1Gi")), storageVolume("y", volumeSize("3Gi"))}, testPod("p", usingClaim("c")), [2]string{"c=w", "c=w"}},
		{"of two alike the first by name", objects{static, storageClaim("c"), storageVolume("w"), storageVolume("v"), storageVolume("x")}, testPod("p", usingClaim("c")), [2]string{"c=v", "c=v"}},
		{"the smallest the node reaches", objects{static, storageClaim("c"), storageVolume("v", volumeSize("1Gi"), volumeAt("b")), storageVolume("w", volumeSize("2Gi"), volumeAt("a"))}, testPod("p", usingClaim("c")), [2]string{"c=w", "c=v"}},
		{"what is kept for the claim, though larger", objects{static, storageClaim("c"), storageVolume("v", volumeSize("1Gi")), storageVolume("w", volumeSize("9Gi"), volumeOf("default", "c", ""))}, testPod("p", usingClaim("c")), [2]string{"c=w", "c=w"}},
		{"small claims first", objects{static, storageClaim("c", claimSize("3Gi")), storageClaim("d", claimSize("1Gi")), storageClaim("e", claimSize("2Gi")), storageVolume("v", volumeSize("3Gi")), storageVolume("w", volumeSize("3Gi")), storageVolume("x", volumeSize("3Gi"))},
			testPod("p", usingClaim("c"), usingClaim("d"), usingClaim("e")), [2]string{"d=v e=w c=x", "d=v e=w c=x"}},
		{"a small claim may take the only large volume", objects{static, storageClaim("c", claimSize("3Gi")), storageClaim("d"), storageVolume("v", volumeSize("3Gi"))}, testPod("p", usingClaim("c"), usingClaim("d")), [2]string{"d=v [" + reasonBindConflict + "]", "d=v [" + reasonBindConflict + "]"}},
		{"made when nothing is there", objects{made, storageClaim("c")}, testPod("p", usingClaim("c")), [2]string{"c+", "c+"}},
		{"made where there is room", objects{made, tracks, storageClaim("c"), room("x", "late", "za", "2Gi", ""), room("y", "late", "zb", "1Mi", "")}, testPod("p", usingClaim("c")), [2]string{"c+x", "[" + reasonNotEnoughSpace + "]"}},
		{"one taken, one made", objects{made, storageClaim("c"), storageClaim("d", claimSize("2Gi")), storageVolume("v", volumeAt("a"))}, testPod("p", usingClaim("d"), usingClaim("c")), [2]string{"c=v d+", "c+ d+"}},
		{"sent to a node before, others after", objects{made, storageClaim("c"), storageClaim("d", claimSize("9Gi"), claimFor("a"))}, testPod("p", usingClaim("c"), usingClaim("d")), [2]string{"d+ c+", "[" + reasonBindConflict + "]"}},
		{"a claim used twice is two claims", objects{static, storageClaim("c"), storageVolume("v"), storageVolume("w")}, testPod("p", usingClaim("c"), usingClaim("c")), [2]string{"c=v c=w", "c=v c=w"}},
		{"classes keep to themselves", objects{static, lateClass("other", volume.NotSupportedProvisioner), storageClaim("c"), storageClaim("d", claimClass("other")), storageVolume("v", volumeClass("other"), volumeSize("1Gi")), storageVolume("w")}, testPod("p", usingClaim("c"), usingClaim("d")), [2]string{"c=w d=v", "c=w d=v"}},
		{"the class of the old annotation", objects{lateClass("other", volume.NotSupportedProvisioner), storageClaim("c", claimNote(corev1.BetaStorageClassAnnotation, "other")), storageVolume("v", volumeSize("1Gi")), storageVolume("w", func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "other"}
		})}, testPod("p", usingClaim("c")), [2]string{"c=w", "c=w"}},
		{"its own claim", objects{static, storageClaim("p-x", claimOf("p")), storageVolume("v")}, testPod("p", usingOwn("x")), [2]string{"p-x=v", "p-x=v"}},
		{"bound here, to be bound there", objects{static, storageClaim("c", claimHas("v")), storageVolume("v", volumeAt("b"), volumeOf("default", "c", "c")), storageClaim("d"), storageVolume("w", volumeAt("a"))}, testPod("p", usingClaim("c"), usingClaim("d")),
			[2]string{"d=w [" + reasonNodeConflict + "]", "[" + reasonBindConflict + "]"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), test.known)
			for i, node := range []string{"a", "b"} {
				plan, reasons := planFor(t, s, test.pod, node)
				got := planned(&plan)
				if len(reasons) > 0 {
					got = strings.TrimSpace(got + " [" + strings.Join(reasons, ", ") + "]")
				}
				if got != test.want[i] {
					t.Errorf("on %s: %q, want %q", node, got, test.want[i])
				}
				if plan.empty() != (!strings.ContainsAny(got, "=+")) {
					t.Errorf("on %s: empty is %t", node, plan.empty())
				}
			}
		})
	}
}

func TestClaimsOf(t *testing.T) {
	known := objects{
		lateClass("late", csiName), soonClass("soon"), modelessClass("odd"), storageVolume("v1"), storageVolume("v2"), storageVolume("v3", volumeClass("soon")),
		storageClaim("bound", claimHas("v1")), storageClaim("waits"), storageClaim("waits-too"), storageClaim("soon", claimClass("soon")), storageClaim("named", claimWants("v2")),
		storageClaim("odd", claimClass("odd")), storageClaim("odd-bound", claimClass("odd"), claimHas("v1")), storageClaim("noted", claimNote(volume.AnnBindCompleted, "yes")),
		storageClaim("unset", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }), storageClaim("elsewhere", claimIn("other")),
	}
	for _, test := range []struct {
		what           string
		names          []string
		bound, waiting string
		immediate      bool
		volumes        string // by class
		fail           string
	}{
		{"none", nil, "", "", false, "", ""},
		{"a bound one", []string{"bound"}, "bound", "", false, "", ""},
		{"a bound one of a class without mode", []string{"odd-bound"}, "odd-bound", "", false, "", ""},
		{"one that waits", []string{"waits"}, "", "waits", false, "late: v1 v2", ""},
		{"two that wait", []string{"waits-too", "waits"}, "", "waits-too waits", false, "late: v1 v2", ""},
		{"one that is said to be complete but has no volume", []string{"noted"}, "", "noted", false, "late: v1 v2", ""},
		{"one that should be bound already", []string{"soon"}, "", "", true, "", ""},
		{"one that names its volume", []string{"named"}, "", "", true, "", ""},
		{"one without class", []string{"unset"}, "", "", true, "", ""},
		{"all kinds", []string{"waits", "bound", "soon"}, "bound", "waits", true, "late: v1 v2", ""},
		{"one that is missing", []string{"gone"}, "", "", false, "", `error getting PVC "default/gone": persistentvolumeclaim "gone" not found`},
		{"one of another namespace", []string{"elsewhere"}, "", "", false, "", `error getting PVC "default/elsewhere": persistentvolumeclaim "elsewhere" not found`},
		{"one of a class without mode", []string{"odd"}, "", "", false, "", `VolumeBindingMode not set for StorageClass "odd"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, nil, known)
			pod := testPod("p")
			for _, n := range test.names {
				usingClaim(n)(pod)
			}
			got, err := s.volumes.claimsOf(pod)
			if (err != nil) != (test.fail != "") || err != nil && err.Error() != test.fail {
				t.Fatalf("error %v, want %q", err, test.fail)
			}
			if err != nil {
				return
			}
			names := func(claims []*corev1.PersistentVolumeClaim) string {
				var all []string
				for _, c := range claims {
					all = append(all, c.Name)
				}
				return strings.Join(all, " ")
			}
			volumes := ""
			for _, class := range slices.Sorted(maps.Keys(got.byClass)) {
				volumes += class + ":"
				for _, v := range got.byClass[class] {
					volumes += " " + v.Name
				}
			}
			if names(got.bound) != test.bound || names(got.waiting) != test.waiting || got.immediate != test.immediate || volumes != test.volumes {
				t.Errorf("bound %q, waiting %q, immediate %t, volumes %q", names(got.bound), names(got.waiting), got.immediate, volumes)
			}
		})
	}
}

func TestTopologyAllows(t *testing.T) {
	set := map[string]string{"zone": "za", "rack": "1", "empty": ""}
	for _, test := range []struct {
		what  string
		terms []corev1.TopologySelectorTerm
		want  bool
	}{
		{"no terms", nil, true},
		{"an empty list", []corev1.TopologySelectorTerm{}, true},
		{"an empty term", []corev1.TopologySelectorTerm{{}}, false},
		{"an empty term beside one that fits", []corev1.TopologySelectorTerm{{}, allowedPlace("zone", "za")}, true},
		{"the value", []corev1.TopologySelectorTerm{allowedPlace("zone", "za")}, true},
		{"one of the values", []corev1.TopologySelectorTerm{allowedPlace("zone", "zb,za")}, true},
		{"another value", []corev1.TopologySelectorTerm{allowedPlace("zone", "zb")}, false},
		{"a key that is missing", []corev1.TopologySelectorTerm{allowedPlace("room", "za")}, false},
		{"a key that is missing, and no value", []corev1.TopologySelectorTerm{allowedPlace("room", "")}, false},
		{"a key with an empty value", []corev1.TopologySelectorTerm{allowedPlace("empty", "")}, true},
		{"no values at all", []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone"}}}}, false},
		{"both of two", []corev1.TopologySelectorTerm{allowedPlace("zone", "za", "rack", "1")}, true},
		{"one of two", []corev1.TopologySelectorTerm{allowedPlace("zone", "za", "rack", "2")}, false},
		{"either of two terms", []corev1.TopologySelectorTerm{allowedPlace("zone", "zb"), allowedPlace("rack", "1")}, true},
		{"neither of two terms", []corev1.TopologySelectorTerm{allowedPlace("zone", "zb"), allowedPlace("rack", "2")}, false},
	} {
		if got := topologyAllows(test.terms, set); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

func TestCanProvision(t *testing.T) {
	node := testNode("a", zone("za"))
	for _, test := range []struct {
		what             string
		known            objects
		claim            *corev1.PersistentVolumeClaim
		capacity, reason string
		fail             string
	}{
		{"no class", nil, storageClaim("c", claimClass("")), "", "", `no class for claim "default/c"`},
		{"a class that is missing", nil, storageClaim("c"), "", "", `failed to find storage class "late"`},
		{"nobody makes volumes", objects{lateClass("late", "")}, storageClaim("c"), "", reasonBindConflict, ""},
		{"nobody may make volumes", objects{lateClass("late", volume.NotSupportedProvisioner)}, storageClaim("c"), "", reasonBindConflict, ""},
		{"not here", objects{lateClass("late", csiName, allowedPlace(corev1.LabelTopologyZone, "zb"))}, storageClaim("c"), "", reasonBindConflict, ""},
		{"nobody tracks room", objects{lateClass("late", csiName)}, storageClaim("c"), "", "", ""},
		{"no room is known", objects{lateClass("late", csiName), storageDriver(csiName, ptr.To(true), nil)}, storageClaim("c"), "", reasonNotEnoughSpace, ""},
		{"room", objects{lateClass("late", csiName), storageDriver(csiName, ptr.To(true), nil), room("x", "late", "za", "1Gi", "")}, storageClaim("c"), "x", "", ""},
		{"no size asked", objects{lateClass("late", csiName), storageDriver(csiName, ptr.To(true), nil)}, storageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = corev1.ResourceList{} }), "", "", ""},
		{"a size of nothing still needs a place", objects{lateClass("late", csiName), storageDriver(csiName, ptr.To(true), nil)}, storageClaim("c", claimSize("0")), "", reasonNotEnoughSpace, ""},
		{"a size beyond all numbers", objects{lateClass("late", csiName), storageDriver(csiName, ptr.To(true), nil), room("x", "late", "za", "8Ei", "")}, storageClaim("c", claimSize("7Ei")), "x", "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, []*corev1.Node{node}, test.known)
			capacity, reason, err := s.volumes.canProvision(test.claim, node)
			name := ""
			if capacity != nil {
				name = capacity.Name
			}
			if (err != nil) != (test.fail != "") || err != nil && err.Error() != test.fail || name != test.capacity || reason != test.reason {
				t.Errorf("capacity %q, reason %q, error %v", name, reason, err)
			}
		})
	}
}

// What is decided about a volume or a claim counts until the API server tells something newer, and no longer.
func TestAssumedVolumes(t *testing.T) {
	const none, taken, sent = "free", "taken", "sent to a"
	known := objects{lateClass("late", csiName), storageClaim("bind"), storageClaim("make", claimSize("9Gi")), storageVolume("v")}
	look := func(s *Snapshot) [2]string {
		got := [2]string{none, none}
		if pv := s.volumes.volume("v"); pv == nil {
			got[0] = "gone"
		} else if pv.Spec.ClaimRef != nil {
			got[0] = taken
		}
		if c := s.volumes.claim("default", "make"); c == nil {
			got[1] = "gone"
		} else if n := c.Annotations[volume.AnnSelectedNode]; n != "" {
			got[1] = "sent to " + n
		}
		return got
	}
	for _, test := range []struct {
		what  string
		after func(s *Snapshot, plan *volumePlan)
		want  [2]string
	}{
		{"decided", func(*Snapshot, *volumePlan) {}, [2]string{taken, sent}},
		{"taken back", func(s *Snapshot, plan *volumePlan) { s.volumes.revert(plan) }, [2]string{none, none}},
		{"taken back twice", func(s *Snapshot, plan *volumePlan) { s.volumes.revert(plan); s.volumes.revert(plan) }, [2]string{none, none}},
		{"told of as they were", func(s *Snapshot, plan *volumePlan) {
			s.SetObject(storageVolume("v"))
			s.SetObject(storageClaim("make"))
		}, [2]string{taken, sent}},
		{"told of as they were long ago", func(s *Snapshot, plan *volumePlan) {
			s.SetObject(storageVolume("v", volumeVersion("9")))
			s.SetObject(storageClaim("make", claimVersion("9")))
		}, [2]string{taken, sent}},
		{"something newer is told", func(s *Snapshot, plan *volumePlan) {
			s.SetObject(storageVolume("v", volumeVersion("11")))
			s.SetObject(storageClaim("make", claimVersion("11")))
		}, [2]string{none, none}},
		{"versions are numbers, not words", func(s *Snapshot, plan *volumePlan) {
			s.SetObject(storageVolume("v", volumeVersion("100")))
			s.SetObject(storageClaim("make", claimVersion("100")))
		}, [2]string{none, none}},
		{"another volume and another claim are told of", func(s *Snapshot, plan *volumePlan) {
			s.SetObject(storageVolume("w", volumeVersion("99")))
			s.SetObject(storageClaim("make", claimIn("other"), claimVersion("99")))
		}, [2]string{taken, sent}},
		{"deleted", func(s *Snapshot, plan *volumePlan) {
			s.DeleteObject(storageVolume("v"))
			s.DeleteObject(storageClaim("make"))
		}, [2]string{"gone", "gone"}},
		{"deleted and made again", func(s *Snapshot, plan *volumePlan) {
			s.DeleteObject(storageVolume("v"))
			s.DeleteObject(storageClaim("make"))
			s.SetObject(storageVolume("v", volumeVersion("12")))
			s.SetObject(storageClaim("make", claimVersion("12")))
		}, [2]string{none, none}},
		{"written: what is taken back then is the API server's to tell", func(s *Snapshot, plan *volumePlan) {
			plan.bindings[0].volume = storageVolume("v", volumeOf("default", "bind", "bind"), volumeVersion("11"))
			plan.provisions[0].claim = storageClaim("make", claimFor("a"), claimVersion("11"))
			s.volumes.revert(plan)
		}, [2]string{taken, sent}},
		{"one written, the other taken back", func(s *Snapshot, plan *volumePlan) {
			plan.bindings[0].volume = storageVolume("v", volumeOf("default", "bind", "bind"), volumeVersion("11"))
			s.volumes.revert(plan)
		}, [2]string{taken, none}},
		{"another pod of the claim is taken back", func(s *Snapshot, plan *volumePlan) {
			second, _ := planFor(t, s, testPod("q", usingClaim("bind"), usingClaim("make")), "a")
			if err := s.volumes.assume(&second, "a"); err != nil || planned(&second) != "bind=v make+" {
				t.Fatalf("plan %s, %v", planned(&second), err)
			}
			s.volumes.revert(&second)
		}, [2]string{taken, sent}},
		{"decided by another since", func(s *Snapshot, plan *volumePlan) {
			old := volumePlan{bindings: slices.Clone(plan.bindings), provisions: slices.Clone(plan.provisions)}
			s.volumes.revert(plan)
			again, _ := planFor(t, s, testPod("q", usingClaim("bind"), usingClaim("make")), "a")
			if err := s.volumes.assume(&again, "a"); err != nil {
				t.Fatal(err)
			}
			s.volumes.revert(&old)
		}, [2]string{taken, sent}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, twoZones(), known)
			plan, _ := planFor(t, s, testPod("p", usingClaim("bind"), usingClaim("make")), "a")
			if got := planned(&plan); got != "bind=v make+" {
				t.Fatalf("plan %s", got)
			}
			if err := s.volumes.assume(&plan, "a"); err != nil {
				t.Fatal(err)
			}
			test.after(s, &plan)
			if got := look(s); got != test.want {
				t.Errorf("volume and claim are %v, want %v", got, test.want)
			}
			// What the API server has told is never changed by a decision.
			for _, o := range known {
				switch o := o.(type) {
				case *corev1.PersistentVolume:
					if o.Spec.ClaimRef != nil || o.Annotations != nil {
						t.Error("the volume itself was changed")
					}
				case *corev1.PersistentVolumeClaim:
					if o.Annotations != nil {
						t.Error("the claim itself was changed")
					}
				}
			}
		})
	}
}

// What is written for a claim is what the volume controller looks for.
func TestWhatIsAssumedIsWhatIsWritten(t *testing.T) {
	s := knowing(t, twoZones(), objects{lateClass("late", csiName), storageClaim("bind"), storageClaim("kept"), storageClaim("make", claimSize("9Gi"), claimNote("mine", "stays")), storageVolume("v"), storageVolume("w", volumeOf("default", "kept", "kept"))})
	plan, _ := planFor(t, s, testPod("p", usingClaim("bind"), usingClaim("kept"), usingClaim("make")), "b")
	if err := s.volumes.assume(&plan, "b"); err != nil {
		t.Fatal(err)
	}
	for _, b := range plan.bindings {
		ref, noted := b.volume.Spec.ClaimRef, b.volume.Annotations[volume.AnnBoundByController]
		if ref == nil || ref.Kind != "PersistentVolumeClaim" || ref.APIVersion != "v1" || ref.Namespace != "default" || ref.Name != b.claim.Name || ref.UID != types.UID(b.claim.Name) || b.volume.ResourceVersion != "10" {
			t.Errorf("volume %s is for %+v", b.volume.Name, ref)
		}
		// Who was bound by hand is not said to be bound by us.
		if want := map[string]string{"v": "yes", "w": ""}[b.volume.Name]; noted != want {
			t.Errorf("volume %s is noted %q, want %q", b.volume.Name, noted, want)
		}
	}
	if _, assumed := s.volumes.assumedPV["w"]; assumed {
		t.Error("a volume that needs no change is assumed to change")
	}
	if got := plan.provisions[0].claim.Annotations; !maps.Equal(got, map[string]string{volume.AnnSelectedNode: "b", "mine": "stays"}) {
		t.Errorf("the claim says %v", got)
	}
}

func TestNewerAndOlder(t *testing.T) {
	at := func(version string) metav1.Object { return storageVolume("v", volumeVersion(version)) }
	for _, test := range []struct {
		now, than    string
		newer, older bool
	}{
		{"1", "1", false, false}, {"2", "1", true, false}, {"1", "2", false, true}, {"10", "9", true, false}, {"9", "10", false, true},
		{"18446744073709551616", "18446744073709551615", true, false}, {"", "1", true, false}, {"x", "1", true, false}, {"1", "", true, false}, {"", "", true, false},
	} {
		if got := newer(at(test.now), at(test.than)); got != test.newer {
			t.Errorf("newer(%q, %q) is %t", test.now, test.than, got)
		}
		if got := older(at(test.now), at(test.than)); got != test.older {
			t.Errorf("older(%q, %q) is %t", test.now, test.than, got)
		}
	}
}

func TestNamesOfClaims(t *testing.T) {
	pod := testPod("p", usingClaim("x"), inline(ebsDisk("d", false)), usingOwn("v"), usingClaim("x"))
	if got := claimNames(pod); !slices.Equal(got, []string{"x", "p-v", "x"}) {
		t.Errorf("names %v", got)
	}
	for _, test := range []struct {
		claim       *corev1.PersistentVolumeClaim
		uses, names bool
	}{
		{nil, false, false}, {storageClaim("x"), true, true}, {storageClaim("p-v"), true, false}, {storageClaim("y"), false, false},
		{storageClaim("x", claimIn("other")), false, false}, {storageClaim("p-v", claimIn("other")), false, false},
	} {
		if got := usesClaim(pod, test.claim); got != test.uses {
			t.Errorf("uses %v: %t", test.claim, got)
		}
		if got := namedClaimHelps(nil, pod, nil, test.claim); got != test.names {
			t.Errorf("names %v: %t", test.claim, got)
		}
	}
}

// Every object of storage is known from the moment it is told of until it is gone, and attachments by the node they are of.
func TestObjectsOfStorage(t *testing.T) {
	s := NewSnapshot()
	count := func() map[string]int {
		v := &s.volumes
		return map[string]int{
			"claims": len(v.claims), "volumes": len(v.volumes), "classes": len(v.classes), "drivers": len(v.drivers), "capacities": len(v.capacities),
			"attachments": len(v.attachments), "nodes with attachments": len(v.attachedTo), "nodes": len(s.nodeNumber),
		}
	}
	all := objects{
		storageClaim("c"), storageClaim("c", claimIn("other")), storageVolume("v"), lateClass("late", csiName), storageDriver(csiName, nil, nil),
		room("r", "late", "za", "1Gi", ""), attachedAs("x", "a", csiName, "v"), attachedAs("y", "a", csiName, "v"), attachedAs("z", "b", csiName, "v"), driversOn("a", nil),
	}
	for range 2 {
		for _, o := range all {
			s.SetObject(o)
		}
	}
	want := map[string]int{"claims": 2, "volumes": 1, "classes": 1, "drivers": 1, "capacities": 1, "attachments": 3, "nodes with attachments": 2, "nodes": 1}
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("knows of %v, want %v", got, want)
	}
	// An attachment that moves is of its new node only.
	s.SetObject(attachedAs("z", "a", csiName, "v"))
	if n := len(s.volumes.attachedTo["a"]); n != 3 || s.volumes.attachedTo["b"] != nil {
		t.Errorf("%d attachments to a, %v to b", n, s.volumes.attachedTo["b"])
	}
	for range 2 {
		for _, o := range all {
			s.DeleteObject(o)
		}
	}
	for what, n := range count() {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
}

// A node's drivers may be told of before the node and after it is gone.
func TestDriversBeforeTheirNode(t *testing.T) {
	s := NewSnapshot()
	s.SetObject(driversOn("a", map[string]int32{csiName: 0}))
	if s.Nodes() != 0 {
		t.Error("a node that is only spoken of counts")
	}
	for _, o := range (objects{storageClaim("c", claimHas("v")), storageVolume("v")}) {
		s.SetObject(o)
	}
	refused := func() bool { return heard(t, s, nodeVolumeLimits{}, testPod("p", usingClaim("c")))["a"] != "" }
	s.SetNode(testNode("a"))
	if !refused() {
		t.Error("the limit is forgotten when the node comes")
	}
	s.DeleteNode("a")
	s.SetNode(testNode("a"))
	if !refused() {
		t.Error("the limit is forgotten when the node goes and comes")
	}
	s.DeleteObject(driversOn("a", nil))
	if refused() {
		t.Error("the limit outlives the drivers")
	}
	s.DeleteNode("a")
	if len(s.nodeNumber) != 0 {
		t.Error("a node nobody speaks of is kept")
	}
	s.DeleteObject(driversOn("never", nil))
	if len(s.nodeNumber) != 0 {
		t.Error("a node was made by forgetting it")
	}
}

// volumeModel decides about volumes the slow way: it knows sizes in units and nodes as letters.
type volumeModel struct {
	claims  []modelClaim
	volumes []modelVolume
	// makes says on which nodes new volumes can be made; rooms how large they may be there, when that is tracked.
	makes string
	rooms map[string]int
}

type modelClaim struct {
	name string
	size int
	sent string
}

type modelVolume struct {
	name  string
	size  int
	nodes string
	taken string // a claim
}

// decide tells the plan for claims on a node, as planned writes it, and the reason against it.
func (m *volumeModel) decide(node string, claims []modelClaim) (plan, reason string) {
	var words, makes []string
	sizes := map[string]int{}
	used := map[string]bool{}
	rest := slices.Clone(claims)
	for _, c := range claims {
		sizes[c.name] = c.size
		if c.sent != "" && c.sent != node {
			return "", reasonBindConflict
		}
		if c.sent != "" {
			makes = append(makes, c.name)
		}
	}
	rest = slices.DeleteFunc(rest, func(c modelClaim) bool { return c.sent != "" })
	slices.SortStableFunc(rest, func(a, b modelClaim) int { return a.size - b.size })
	for _, c := range rest {
		best := -1
		for i, v := range m.volumes {
			if v.size < c.size || !strings.Contains(v.nodes, node) || used[v.name] || v.taken != "" && v.taken != c.name {
				continue
			}
			if v.taken == c.name {
				best = i
				break
			}
			if best < 0 || v.size < m.volumes[best].size {
				best = i
			}
		}
		// What is kept for the claim and cannot be had here leaves it nothing.
		kept := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.taken == c.name && v.size >= c.size && !used[v.name] })
		if kept >= 0 && !strings.Contains(m.volumes[kept].nodes, node) {
			best = -1
		}
		if best < 0 {
			makes = append(makes, c.name)
			continue
		}
		used[m.volumes[best].name] = true
		words = append(words, c.name+"="+m.volumes[best].name)
	}
	for _, name := range makes {
		if !strings.Contains(m.makes, node) {
			return strings.Join(words, " "), reasonBindConflict
		}
		if size, tracked := m.rooms[node]; m.rooms != nil && (!tracked || size < sizes[name]) {
			return strings.Join(words, " "), reasonNotEnoughSpace
		}
		words = append(words, name+"+")
	}
	return strings.Join(words, " "), ""
}

func (m *volumeModel) objects() objects {
	all := objects{}
	size := func(n int) string { return fmt.Sprintf("%dGi", n) }
	if m.makes == "" {
		all = append(all, lateClass("late", volume.NotSupportedProvisioner))
	} else {
		all = append(all, lateClass("late", csiName, allowedPlace(corev1.LabelHostname, strings.Join(strings.Split(m.makes, ""), ","))))
	}
	if m.rooms != nil {
		all = append(all, storageDriver(csiName, ptr.To(true), nil))
		for node, n := range m.rooms {
			c := room("room-"+node, "late", "", size(n), "")
			c.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}}
			all = append(all, c)
		}
	}
	for _, c := range m.claims {
		options := []claimOption{claimSize(size(c.size))}
		if c.sent != "" {
			options = append(options, claimFor(c.sent))
		}
		all = append(all, storageClaim(c.name, options...))
	}
	for _, v := range m.volumes {
		options := []volumeOption{volumeSize(size(v.size)), volumeNear(corev1.LabelHostname, strings.Split(v.nodes, "")...)}
		if v.taken != "" {
			options = append(options, volumeOf("default", v.taken, types.UID(v.taken)))
		}
		all = append(all, storageVolume(v.name, options...))
	}
	return all
}

func randomVolumeModel(random *rand.Rand) *volumeModel {
	m := &volumeModel{makes: []string{"", "a", "ab", "abc"}[random.IntN(4)]}
	if random.IntN(2) == 0 {
		m.rooms = map[string]int{}
		for _, n := range []string{"a", "b", "c"} {
			if random.IntN(3) > 0 {
				m.rooms[n] = 1 + random.IntN(5)
			}
		}
	}
	for i := range 1 + random.IntN(4) {
		c := modelClaim{name: fmt.Sprint("c", i), size: 1 + random.IntN(4)}
		if random.IntN(8) == 0 {
			c.sent = []string{"a", "b"}[random.IntN(2)]
		}
		m.claims = append(m.claims, c)
	}
	for i := range random.IntN(6) {
		v := modelVolume{name: fmt.Sprint("v", i), size: 1 + random.IntN(5), nodes: []string{"a", "b", "ab", "abc", "bc"}[random.IntN(5)]}
		if random.IntN(5) == 0 {
			v.taken = []string{"c0", "c1", "other"}[random.IntN(3)]
			if slices.ContainsFunc(m.volumes, func(o modelVolume) bool { return o.taken == v.taken }) {
				v.taken = "other"
			}
		}
		m.volumes = append(m.volumes, v)
	}
	return m
}

// Plans on random clusters are the model's, for one pod after another, each on what the last has left.
func TestPlansAreAsTheModelSays(t *testing.T) {
	const seed = 21
	random := rand.New(rand.NewPCG(seed, 4))
	kinds := map[string]int{}
	for round := range 1500 {
		m := randomVolumeModel(random)
		all := m.objects()
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		s := knowing(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}, all)
		for pod := range 3 {
			var claims []modelClaim
			p := testPod(fmt.Sprint("p", pod))
			for _, i := range random.Perm(len(m.claims))[:1+random.IntN(len(m.claims))] {
				claims = append(claims, m.claims[i])
				usingClaim(m.claims[i].name)(p)
			}
			said := heard(t, s, bindingRule(t), p)
			for _, node := range []string{"a", "b", "c"} {
				want, reason := m.decide(node, claims)
				plan, reasons := planFor(t, s, p, node)
				got := planned(&plan)
				if m.rooms != nil {
					got = strings.ReplaceAll(got, "room-"+node, "")
				}
				if got != want || strings.Join(reasons, " ") != reason {
					t.Fatalf("seed %d, round %d: %+v: claims %v on %s: plan %q %v, want %q %q", seed, round, m, claims, node, got, reasons, want, reason)
				}
				if (said[node] != "") != (reason != "") {
					t.Fatalf("seed %d, round %d: the rule says %q, the plan %q", seed, round, said[node], reason)
				}
				kinds[reason]++
			}
			node := []string{"a", "b", "c"}[random.IntN(3)]
			plan, reasons := planFor(t, s, p, node)
			if len(reasons) > 0 {
				continue
			}
			before := snapshotOfStorage(s)
			if err := s.volumes.assume(&plan, node); err != nil {
				t.Fatal(err)
			}
			if random.IntN(3) == 0 {
				s.volumes.revert(&plan)
				if after := snapshotOfStorage(s); after != before {
					t.Fatalf("seed %d, round %d: taking back leaves %s, was %s", seed, round, after, before)
				}
				continue
			}
			for _, b := range plan.bindings {
				i := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.name == b.volume.Name })
				m.volumes[i].taken = b.claim.Name
			}
			for _, made := range plan.provisions {
				i := slices.IndexFunc(m.claims, func(c modelClaim) bool { return c.name == made.claim.Name })
				m.claims[i].sent = node
			}
		}
	}
	for _, reason := range []string{"", reasonBindConflict, reasonNotEnoughSpace} {
		if kinds[reason] < 300 {
			t.Errorf("only %d times %q", kinds[reason], reason)
		}
	}
}

// snapshotOfStorage is all that is assumed, as text.
func snapshotOfStorage(s *Snapshot) string {
	var words []string
	for name, pv := range s.volumes.assumedPV {
		words = append(words, name+"="+pv.Spec.ClaimRef.Name)
	}
	for key, claim := range s.volumes.assumedClaim {
		words = append(words, key+"@"+claim.Annotations[volume.AnnSelectedNode])
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// No volume is ever promised to two claims, and none to a claim it is too small for or on a node that does not reach it.
func TestVolumesAreNeverPromisedTwice(t *testing.T) {
	const seed = 22
	random := rand.New(rand.NewPCG(seed, 5))
	promises := 0
	for round := range 400 {
		m := randomVolumeModel(random)
		for i := range m.volumes {
			m.volumes[i].taken = ""
		}
		for i := range m.claims {
			m.claims[i].sent = ""
		}
		s := knowing(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}, m.objects())
		promised := map[string]string{}
		for _, c := range m.claims {
			p := testPod("p-"+c.name, usingClaim(c.name))
			d, err := Schedule(s, infoOf(t, p), DefaultProfile())
			if err != nil {
				continue
			}
			plan, reasons := planFor(t, s, p, d.Node)
			if len(reasons) > 0 {
				t.Fatalf("seed %d, round %d: goes to %s in spite of %v", seed, round, d.Node, reasons)
			}
			if err := s.volumes.assume(&plan, d.Node); err != nil {
				t.Fatal(err)
			}
			s.Assume(d.Pod, d.Node)
			for _, b := range plan.bindings {
				i := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.name == b.volume.Name })
				if v := m.volumes[i]; promised[v.name] != "" || v.size < c.size || !strings.Contains(v.nodes, d.Node) {
					t.Fatalf("seed %d, round %d: %s gets %+v on %s, which is promised to %q", seed, round, c.name, v, d.Node, promised[v.name])
				}
				promised[b.volume.Name] = c.name
				promises++
			}
		}
	}
	if promises < 200 {
		t.Errorf("only %d promises", promises)
	}
}
