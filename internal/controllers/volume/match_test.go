package volume

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

func allowing(modes ...corev1.PersistentVolumeAccessMode) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.AccessModes = modes }
}

func wanting(modes ...corev1.PersistentVolumeAccessMode) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

func asking(size string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = room(size) }
}

func inClass(name string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = name }
}

func withLabels(pairs ...string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) {
		v.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			v.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func selecting(key string, operator metav1.LabelSelectorOperator, values ...string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
}

func ofAttributes(name string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = &name }
}

func wantingAttributes(name string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &name }
}

func TestSatisfies(t *testing.T) {
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   string
	}{
		{"it fits", aVolume("v"), aClaim(), ""},
		{"leaving", aVolume("v", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = new(ago(0)) }), aClaim(), `the volume is marked for deletion "v"`},
		{"too small", aVolume("v", sized("1Mi")), aClaim(), "requested PV is too small"},
		{"another class", aVolume("v", inClass("slow")), aClaim(ofClass("fast")), "storageClassName does not match"},
		{"a class by annotation", aVolume("v", marked(corev1.BetaStorageClassAnnotation, "fast")), aClaim(ofClass("fast")), ""},
		{"another attributes class", aVolume("v", func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = new("gold") }), aClaim(), "volumeAttributesClassName does not match"},
		{"a device for a directory", aVolume("v", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }), aClaim(), "incompatible volumeMode"},
		{"for one node only", aVolume("v"), aClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}), "incompatible accessMode"},
	} {
		got := ""
		if err := checkSatisfies(test.volume, test.claim); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestMatch(t *testing.T) {
	wide := aVolume("wide", func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
	}, sized("1Gi"))
	block := aVolume("block", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
	labelled := aVolume("labelled", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": "b"} })
	selecting := selecting("a", metav1.LabelSelectorOpIn, "b")
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		volumes []*corev1.PersistentVolume
		delayed bool
		want    string
	}{
		{"none", aClaim(), nil, false, ""},
		{"the smallest", aClaim(), []*corev1.PersistentVolume{aVolume("5"), aVolume("2", sized("2Gi")), aVolume("3", sized("3Gi"))}, false, "2"},
		{"large enough", aClaim(), []*corev1.PersistentVolume{aVolume("small", sized("500Mi"))}, false, ""},
		{"with as few modes as possible", aClaim(), []*corev1.PersistentVolume{wide, aVolume("5")}, false, "5"},
		{"but with the modes", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany }), []*corev1.PersistentVolume{wide, aVolume("5")}, false, "wide"},
		{"of the mode", aClaim(), []*corev1.PersistentVolume{block}, false, ""},
		{"of the class", aClaim(ofClass("fast")), []*corev1.PersistentVolume{aVolume("5")}, false, ""},
		{"with the labels", aClaim(selecting), []*corev1.PersistentVolume{aVolume("a", sized("1Gi")), labelled}, false, "labelled"},
		{"not another's", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("other", ""))}, false, ""},
		{"not one that was another's", aClaim(), []*corev1.PersistentVolume{aVolume("5", inPhase(corev1.VolumeReleased))}, false, ""},
		{"the reserved one first", aClaim(), []*corev1.PersistentVolume{aVolume("2", sized("2Gi")), aVolume("5", claimedBy("data", ""))}, false, "5"},
		{"reserved for an earlier claim", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("data", "earlier"))}, false, ""},
		{"when binding waits, none", aClaim(), []*corev1.PersistentVolume{aVolume("5")}, true, ""},
		{"but the one the scheduler chose", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("data", "uid-data"))}, true, "5"},
		{"not one that is leaving", aClaim(), []*corev1.PersistentVolume{aVolume("5", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = new(ago(0)) })}, false, ""},
	} {
		volume, err := match(test.claim, test.volumes, test.delayed)
		got := ""
		if volume != nil {
			got = volume.Name
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %q, want %q; %v", test.what, got, test.want, err)
		}
	}
}

// TestMatchRules: one rule after the other that a volume must keep.
func TestMatchRules(t *testing.T) {
	const once, pod, many, read = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany
	all := func(v ...*corev1.PersistentVolume) []*corev1.PersistentVolume { return v }
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		volumes []*corev1.PersistentVolume
		delayed bool
		want    string
	}{
		{"exactly as large", aClaim(asking("5Gi")), all(aVolume("a")), false, "a"},
		{"a byte too small", aClaim(asking("5368709121")), all(aVolume("a")), false, ""},
		{"a claim for nothing takes the smallest", aClaim(asking("0")), all(aVolume("a"), aVolume("b", sized("1"))), false, "b"},
		{"a volume without a size serves a claim for nothing", aClaim(asking("0")), all(aVolume("a", func(v *corev1.PersistentVolume) { v.Spec.Capacity = nil })), false, "a"},
		{"of the same size the first by name", aClaim(), all(aVolume("c"), aVolume("a"), aVolume("b")), false, "a"},
		{"one mode of two is enough", aClaim(wanting(read)), all(aVolume("a", allowing(once, read))), false, "a"},
		{"both modes are needed", aClaim(wanting(once, read)), all(aVolume("a", allowing(once)), aVolume("b", allowing(read, once, many))), false, "b"},
		{"no modes wanted", aClaim(wanting()), all(aVolume("a", allowing(once))), false, "a"},
		{"one pod only is a mode of its own", aClaim(wanting(pod)), all(aVolume("a", allowing(once, many))), false, ""},
		{"fewer modes are worth more than a better size", aClaim(), all(aVolume("a", sized("1Gi"), allowing(once, many)), aVolume("b", sized("100Gi"))), false, "b"},
		{"fewer modes are worth more than a reservation", aClaim(), all(aVolume("a", claimedBy("data", ""), allowing(once, many)), aVolume("b")), false, "b"},
		{"a reservation is worth more than a better size", aClaim(), all(aVolume("a", sized("1Gi")), aVolume("b", claimedBy("data", ""))), false, "b"},
		{"a reservation in another class holds", aClaim(ofClass("fast")), all(aVolume("a", claimedBy("data", ""), inClass("slow"))), false, "a"},
		{"a reservation without the labels holds", aClaim(selecting("a", metav1.LabelSelectorOpExists)), all(aVolume("a", claimedBy("data", ""))), false, "a"},
		{"a reservation of what is bound holds", aClaim(), all(aVolume("a", claimedBy("data", "uid-data"), inPhase(corev1.VolumeBound))), false, "a"},
		{"a reservation of what is too small does not", aClaim(), all(aVolume("a", claimedBy("data", ""), sized("1Mi"))), false, ""},
		{"a reservation of blocks does not", aClaim(), all(aVolume("a", claimedBy("data", ""), onBlocks)), false, ""},
		{"a reservation without the mode does not", aClaim(), all(aVolume("a", claimedBy("data", ""), allowing(read))), false, ""},
		{"a reservation of what is leaving does not", aClaim(), all(aVolume("a", claimedBy("data", ""), leavingVolume)), false, ""},
		{"a reservation in another namespace is another's", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Namespace = "other" }), all(aVolume("a", claimedBy("data", ""))), false, ""},
		{"a reservation counts when binding waits", aClaim(), all(aVolume("a"), aVolume("b", claimedBy("data", ""))), true, "b"},
		{"blocks for blocks", aClaim(wantsBlocks), all(aVolume("a"), aVolume("b", onBlocks)), false, "b"},
		{"a filesystem, explicitly", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem) }), all(aVolume("a")), false, "a"},
		{"a class for a class", aClaim(ofClass("fast")), all(aVolume("a"), aVolume("b", inClass("fast"))), false, "b"},
		{"a class by the volume's annotation", aClaim(ofClass("fast")), all(aVolume("a", marked(corev1.BetaStorageClassAnnotation, "fast"))), false, "a"},
		{"the annotation goes before the field", aClaim(ofClass("fast")), all(aVolume("a", inClass("fast"), marked(corev1.BetaStorageClassAnnotation, ""))), false, ""},
		{"no class is none", aClaim(), all(aVolume("a", inClass("fast"))), false, ""},
		{"no class specified is none", aClaim(saysNothing), all(aVolume("a")), false, "a"},
		{"a label among values", aClaim(selecting("zone", metav1.LabelSelectorOpIn, "x", "y")), all(aVolume("a", withLabels("zone", "z")), aVolume("b", withLabels("zone", "y"))), false, "b"},
		{"a label not among values", aClaim(selecting("zone", metav1.LabelSelectorOpNotIn, "z")), all(aVolume("a", withLabels("zone", "z")), aVolume("b")), false, "b"},
		{"a label that must not be", aClaim(selecting("zone", metav1.LabelSelectorOpDoesNotExist)), all(aVolume("a", withLabels("zone", "")), aVolume("b")), false, "b"},
		{"an empty selector is every volume", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }), all(aVolume("a")), false, "a"},
		{"attributes for attributes", aClaim(wantingAttributes("gold")), all(aVolume("a"), aVolume("b", ofAttributes("gold")), aVolume("c", ofAttributes("silver"))), false, "b"},
		{"no attributes are none", aClaim(), all(aVolume("a", ofAttributes("gold"))), false, ""},
		{"empty attributes are none, too", aClaim(wantingAttributes("")), all(aVolume("a")), false, "a"},
		{"pending volumes are not ready", aClaim(), all(aVolume("a", inPhase(corev1.VolumePending))), false, ""},
		{"failed volumes are not", aClaim(), all(aVolume("a", inPhase(corev1.VolumeFailed))), false, ""},
	} {
		for range 2 { // in either order
			volume, err := match(test.claim, test.volumes, test.delayed)
			got := ""
			if volume != nil {
				got = volume.Name
			}
			if err != nil || got != test.want {
				t.Errorf("%s: %q, want %q; %v", test.what, got, test.want, err)
			}
			slices.Reverse(test.volumes)
		}
	}
	if _, err := match(aClaim(selecting("a", "Sometimes")), nil, false); err == nil {
		t.Error("a selector that cannot be: no error")
	}
}

// upstreamMatch asks upstream's own matching: volumes with the same modes together, those with few modes first.
func upstreamMatch(claim *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume, delayed bool) (found []*corev1.PersistentVolume) {
	for n := range 5 {
		var some []*corev1.PersistentVolume
		for _, v := range volumes {
			if len(v.Spec.AccessModes) == n && storagehelpers.CheckAccessModes(claim, v) {
				some = append(some, v)
			}
		}
		if best, err := storagehelpers.FindMatchingVolume(claim, some, nil, nil, delayed, true); err == nil && best != nil {
			return []*corev1.PersistentVolume{best}
		}
	}
	return nil
}

// TestMatchBesideUpstream: random claims and volumes; what upstream would bind, or one as good, we bind.
func TestMatchBesideUpstream(t *testing.T) {
	const seed = 19
	random := rand.New(rand.NewPCG(seed, seed))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	modes := func() (list []corev1.PersistentVolumeAccessMode) {
		for _, m := range []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany} {
			if random.IntN(2) == 0 {
				list = append(list, m)
			}
		}
		return list
	}
	matched := 0
	for round := range 6000 {
		claim := aClaim(ofClass(pick("", "", "fast")), asking(pick("1Gi", "2Gi", "3Gi")), wanting(modes()...))
		if random.IntN(4) == 0 {
			selecting("zone", metav1.LabelSelectorOpIn, "x")(claim)
		}
		if random.IntN(6) == 0 {
			wantsBlocks(claim)
		}
		if random.IntN(8) == 0 {
			wantingAttributes(pick("", "gold"))(claim)
		}
		var volumes []*corev1.PersistentVolume
		for i := range random.IntN(10) {
			v := aVolume(fmt.Sprint("v", i), inClass(pick("", "", "fast")), sized(pick("1Gi", "2Gi", "3Gi", "4Gi")), allowing(modes()...), withLabels("zone", pick("x", "y")))
			for _, change := range []change[*corev1.PersistentVolume]{onBlocks, leavingVolume, ofAttributes("gold"), inPhase(corev1.VolumePending), claimedBy("other", ""), claimedBy("data", "uid-before")} {
				if random.IntN(12) == 0 {
					change(v)
				}
			}
			volumes = append(volumes, v)
		}
		if len(volumes) > 0 && random.IntN(3) == 0 {
			claimedBy("data", pick("", "uid-data"))(volumes[random.IntN(len(volumes))])
		}
		delayed := random.IntN(4) == 0
		ours, err := match(claim, volumes, delayed)
		theirs := upstreamMatch(claim, volumes, delayed)
		if err != nil || (ours == nil) != (len(theirs) == 0) {
			t.Fatalf("seed %d, round %d: %v, %v; upstream %v", seed, round, ours, err, theirs)
		}
		if ours == nil {
			continue
		}
		matched++
		same := func(v *corev1.PersistentVolume) string {
			return fmt.Sprint(len(v.Spec.AccessModes), storagehelpers.IsVolumeBoundToClaim(v, claim), storageOf(v.Spec.Capacity))
		}
		if ours != theirs[0] && same(ours) != same(theirs[0]) {
			t.Fatalf("seed %d, round %d: %s (%s), upstream %s (%s)", seed, round, ours.Name, same(ours), theirs[0].Name, same(theirs[0]))
		}
	}
	if matched < 1000 {
		t.Errorf("only %d rounds had a match", matched)
	}
}
