package volume

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func csi(v *corev1.PersistentVolume) {
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "handle-" + v.Name}
}

func attachment(volume *corev1.PersistentVolume, node string, attached bool) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(volume, node)},
		Spec:   storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name}},
		Status: storagev1.VolumeAttachmentStatus{Attached: attached}}
}

func aNode(changes ...change[*corev1.Node]) *corev1.Node {
	return with(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managedAttachAnnotation: "true"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, changes...)
}

func attachmentsOf(list ...*storagev1.VolumeAttachment) []*storagev1.VolumeAttachment { return list }

// refused is an attachment the driver could not make.
func refused(a *storagev1.VolumeAttachment, message string) *storagev1.VolumeAttachment {
	a.Status.AttachError = &storagev1.VolumeError{Message: message}
	return a
}

func leavingAttachment(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	a.DeletionTimestamp = new(ago(time.Second))
	return a
}

func toldOf(volumes ...*corev1.PersistentVolume) change[*corev1.Node] {
	return func(n *corev1.Node) {
		for _, v := range volumes {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: uniqueName(v)})
		}
	}
}

func using(volumes ...*corev1.PersistentVolume) change[*corev1.Node] {
	return func(n *corev1.Node) {
		for _, v := range volumes {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, uniqueName(v))
		}
	}
}

func silent(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

// attachWords writes a plan down: what the node is reported, what is attached and detached, and what pods are reported.
func attachWords(plan controller.Plan) string {
	var lines []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			switch o := w.Object.(type) {
			case *corev1.Node:
				var list []string
				for _, a := range o.Status.VolumesAttached {
					list = append(list, strings.TrimPrefix(string(a.Name), "kubernetes.io/csi/disk.example.com^handle-"))
				}
				lines = append(lines, fmt.Sprintf("%s %s %v", w.Verb, o.Name, list))
			case *storagev1.VolumeAttachment:
				lines = append(lines, fmt.Sprintf("%s %s on %s by %s", w.Verb, deref(o.Spec.Source.PersistentVolumeName), o.Spec.NodeName, o.Spec.Attacher))
			}
		}
	}
	for _, e := range plan.Events {
		lines = append(lines, fmt.Sprintf("tell %s %s %s: %s", e.Object.GetName(), e.Type, e.Reason, e.Message))
	}
	return strings.Join(lines, "\n")
}

// TestAttachRules: what is attached, told and detached, with all that is reported.
func TestAttachRules(t *testing.T) {
	disk, tape := aVolume("disk", csi), aVolume("tape", csi)
	shared := aVolume("disk", csi, allowing(corev1.ReadWriteMany))
	readers := aVolume("disk", csi, allowing(corev1.ReadWriteOnce, corev1.ReadOnlyMany))
	modeless := aVolume("disk", csi, allowing())
	single := aVolume("disk", csi, allowing(corev1.ReadWriteOncePod))
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	needs := func(v *corev1.PersistentVolume, pods ...*corev1.Pod) map[string]neededVolume {
		return map[string]neededVolume{v.Name: {v, pods}}
	}
	on := func(v *corev1.PersistentVolume, attached bool) *storagev1.VolumeAttachment {
		a := attachment(v, "n1", attached)
		a.Spec.Attacher = "disk.example.com"
		return a
	}
	const came = `tell a Normal SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "disk" `
	const create = "create disk on n1 by disk.example.com"
	waits := func(why string) string {
		return `tell a Warning FailedAttachVolume: Waiting for detach for volume "disk" ` + why
	}
	const exclusive = "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
	foreignEntry := func(n *corev1.Node) {
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: "kubernetes.io/iscsi/x"})
	}
	for _, test := range []struct {
		what  string
		view  attachView
		since time.Duration // for how long attachments are not needed
		want  []string
		again time.Duration
	}{
		{"nothing", attachView{node: aNode()}, 0, nil, 0},
		{"needed", attachView{node: aNode(), needed: needs(disk, pod("a"))}, 0, []string{create}, 0},
		{"needed by two pods: once", attachView{node: aNode(), needed: needs(disk, pod("a"), pod("b"))}, 0, []string{create}, 0},
		{"two are needed, by name", attachView{node: aNode(), needed: map[string]neededVolume{"tape": {tape, []*corev1.Pod{pod("a")}}, "disk": {disk, []*corev1.Pod{pod("a")}}}}, 0, []string{create, "create tape on n1 by disk.example.com"}, 0},
		{"a kubelet that attaches itself", attachView{node: aNode(func(n *corev1.Node) { n.Annotations = nil }), needed: needs(disk, pod("a"))}, 0, nil, 0},
		{"whatever the annotation says", attachView{node: aNode(func(n *corev1.Node) { n.Annotations[managedAttachAnnotation] = "" }), needed: needs(disk, pod("a"))}, 0, []string{create}, 0},
		{"a node that is gone gets nothing", attachView{needed: needs(disk, pod("a"))}, 0, nil, 0},
		{"a node that is silent gets it all the same", attachView{node: aNode(silent), needed: needs(disk, pod("a"))}, 0, []string{create}, 0},
		{"being attached: the node is not told yet", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(disk, false))}, 0, nil, 0},
		{"attached: the node and its pods are told", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(disk, true))}, 0, []string{"update status of n1 [disk]", came}, 0},
		{"told already", attachView{node: aNode(toldOf(disk)), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(disk, true))}, 0, nil, 0},
		{"told of too much", attachView{node: aNode(toldOf(disk, tape)), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(disk, true))}, 0, []string{"update status of n1 [disk]"}, 0},
		{"what others attach stays in the list", attachView{node: aNode(foreignEntry), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(disk, true))}, 0, []string{"update status of n1 [disk kubernetes.io/iscsi/x]", came}, 0},
		{"in another order is the same", attachView{node: aNode(toldOf(tape, disk)), needed: map[string]neededVolume{"tape": {tape, nil}, "disk": {disk, nil}}, attachedHere: attachmentsOf(on(disk, true), on(tape, true))}, 0, nil, 0},
		{"it could not be attached", attachView{node: aNode(), needed: needs(disk, pod("a"), pod("b")), attachedHere: attachmentsOf(refused(on(disk, false), "no such disk"))}, 0, []string{
			`tell a Warning FailedAttachVolume: AttachVolume.Attach failed for volume "disk" : no such disk`, `tell b Warning FailedAttachVolume: AttachVolume.Attach failed for volume "disk" : no such disk`}, 0},
		{"it could not be attached before, but is now", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(refused(on(disk, true), "no such disk"))}, 0, []string{"update status of n1 [disk]", came}, 0},
		{"another node has it", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true))}, 0, []string{waits(exclusive)}, 0},
		{"another node is about to have it", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", false))}, 0, []string{waits(exclusive)}, 0},
		{"pods on another node use it", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true)), users: map[string][]string{"disk": {"y", "x"}}}, 0, []string{waits("Volume is already used by pod(s) x, y")}, 0},
		{"another node has another", attachView{node: aNode(), needed: needs(disk, pod("a")), attachedElsewhere: attachmentsOf(attachment(tape, "n2", true))}, 0, []string{create}, 0},
		{"many may have it", attachView{node: aNode(), needed: needs(shared, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true))}, 0, []string{create}, 0},
		{"many may read it", attachView{node: aNode(), needed: needs(readers, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true))}, 0, []string{create}, 0},
		{"nobody says how many: the driver knows", attachView{node: aNode(), needed: needs(modeless, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true))}, 0, []string{create}, 0},
		{"one pod may have it", attachView{node: aNode(), needed: needs(single, pod("a")), attachedElsewhere: attachmentsOf(attachment(disk, "n2", true))}, 0, []string{waits(exclusive)}, 0},
		{"no longer needed: told first, detached then", attachView{node: aNode(toldOf(disk)), attachedHere: attachmentsOf(on(disk, true))}, 0, []string{"update status of n1 []", "delete disk on n1 by disk.example.com"}, 0},
		{"no longer needed, being detached", attachView{node: aNode(), attachedHere: attachmentsOf(leavingAttachment(on(disk, true)))}, time.Minute, nil, 0},
		{"no longer needed, never attached", attachView{node: aNode(), attachedHere: attachmentsOf(on(disk, false))}, 0, []string{"delete disk on n1 by disk.example.com"}, 0},
		{"no longer needed, but in use", attachView{node: aNode(toldOf(disk), using(disk)), attachedHere: attachmentsOf(on(disk, true))}, time.Hour, nil, 0},
		{"no longer needed, another is in use", attachView{node: aNode(toldOf(disk), using(tape)), attachedHere: attachmentsOf(on(disk, true))}, 0, []string{"update status of n1 []", "delete disk on n1 by disk.example.com"}, 0},
		{"in use on a silent node, since now", attachView{node: aNode(toldOf(disk), using(disk), silent), attachedHere: attachmentsOf(on(disk, true))}, 0, nil, 6 * time.Minute},
		{"in use on a silent node, nearly for long enough", attachView{node: aNode(toldOf(disk), using(disk), silent), attachedHere: attachmentsOf(on(disk, true))}, 6*time.Minute - time.Second, nil, time.Second},
		{"in use on a silent node, for long enough", attachView{node: aNode(toldOf(disk), using(disk), silent), attachedHere: attachmentsOf(on(disk, true))}, 6 * time.Minute, []string{"update status of n1 []", "delete disk on n1 by disk.example.com"}, 0},
		{"in use on a node that is off", attachView{node: aNode(toldOf(disk), using(disk), silent, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "x", Effect: "NoExecute"}}
		}), attachedHere: attachmentsOf(on(disk, true))}, 0,
			[]string{"update status of n1 []", "delete disk on n1 by disk.example.com"}, 0},
		{"in use on a node that is reported to be off and answers", attachView{node: aNode(toldOf(disk), using(disk), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} }), attachedHere: attachmentsOf(on(disk, true))}, 0,
			[]string{"update status of n1 []", "delete disk on n1 by disk.example.com"}, 0},
		{"one goes, one comes", attachView{node: aNode(toldOf(tape)), needed: needs(disk, pod("a")), attachedHere: attachmentsOf(on(tape, true))}, 0, []string{"update status of n1 []", create, "delete tape on n1 by disk.example.com"}, 0},
		{"two of which one is in use", attachView{node: aNode(toldOf(disk, tape), using(disk)), attachedHere: attachmentsOf(on(disk, true), on(tape, true))}, 0, []string{"update status of n1 [disk]", "delete tape on n1 by disk.example.com"}, 0},
	} {
		v := test.view
		v.name, v.now, v.maxUnmountWait = "n1", now, DefaultMaxUnmountWait
		v.volumes = map[string]*corev1.PersistentVolume{"disk": disk, "tape": tape}
		v.unneededSince = map[string]time.Time{}
		if test.since > 0 {
			for _, a := range v.attachedHere {
				v.unneededSince[a.Name] = now.Add(-test.since)
			}
		}
		plan, unneeded := v.reconcile()
		if got, want := attachWords(plan), strings.Join(test.want, "\n"); got != want || plan.RequeueAfter != test.again {
			t.Errorf("%s: again %v\n got %s\nwant %s, again %v", test.what, plan.RequeueAfter, got, want, test.again)
		}
		for _, a := range v.attachedHere {
			_, needed := v.needed[deref(a.Spec.Source.PersistentVolumeName)]
			if at, noted := unneeded[a.Name]; noted == needed || noted && !at.Equal(now.Add(-test.since)) {
				t.Errorf("%s: %s is not needed since %v", test.what, deref(a.Spec.Source.PersistentVolumeName), at)
			}
		}
	}
}

// TestSharedAttachment: persistent volumes with the same driver and handle have one attachment, which is kept and reported as long as a pod uses one
// of them, even if the persistent volume it was made for is deleted.
func TestSharedAttachment(t *testing.T) {
	disk, twin := aVolume("disk", csi), aVolume("twin", csi)
	twin.Spec.CSI.VolumeHandle = disk.Spec.CSI.VolumeHandle
	user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}
	for what, volumes := range map[string]map[string]*corev1.PersistentVolume{
		"both exist": {"disk": disk, "twin": twin}, "its own is deleted": {"twin": twin},
	} {
		for _, node := range []*corev1.Node{aNode(toldOf(twin)), aNode(toldOf(twin), using(twin)), aNode(toldOf(twin), silent)} {
			v := attachView{
				name: "n1", node: node, now: now, maxUnmountWait: DefaultMaxUnmountWait, volumes: volumes, unneededSince: map[string]time.Time{},
				needed: map[string]neededVolume{"twin": {twin, []*corev1.Pod{user}}}, attachedHere: attachmentsOf(attachment(disk, "n1", true)),
			}
			if plan, unneeded := v.reconcile(); attachWords(plan) != "" || len(unneeded) > 0 {
				t.Errorf("%s: %s, unneeded %v", what, attachWords(plan), unneeded)
			}
		}
	}
}

// TestAttachmentNames: upstream's names, so that either finds the other's.
func TestAttachmentNames(t *testing.T) {
	disk := aVolume("disk", csi)
	if got, want := attachmentName(disk, "n1"), "csi-"; !strings.HasPrefix(got, want) || len(got) != 68 || got == attachmentName(disk, "n2") || got == attachmentName(aVolume("tape", csi), "n1") {
		t.Errorf("name %s", got)
	}
	// By hand: sha256 of "handle-disk" + "disk.example.com" + "n1".
	known := aVolume("x", func(v *corev1.PersistentVolume) {
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "b", VolumeHandle: "a"}
	})
	if got := attachmentName(known, "c"); got != "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" { // of "abc"
		t.Errorf("name %s", got)
	}
	if got := uniqueName(disk); got != "kubernetes.io/csi/disk.example.com^handle-disk" {
		t.Errorf("unique name %s", got)
	}
}

// TestOwnAttachments: which attachments are this controller's to delete.
func TestOwnAttachments(t *testing.T) {
	disk := aVolume("disk", csi)
	plain := aVolume("plain")
	named := func(name, volume string) *storagev1.VolumeAttachment {
		a := attachment(disk, "n1", true)
		a.Name, a.Spec.Source.PersistentVolumeName = name, &volume
		return a
	}
	inline := attachment(disk, "n1", true)
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
	for _, test := range []struct {
		what string
		a    *storagev1.VolumeAttachment
		want bool
	}{
		{"by our name", attachment(disk, "n1", true), true},
		{"by another's name", named("mine", "disk"), false},
		{"by the name of another node", named(attachmentName(disk, "n2"), "disk"), false},
		{"of a volume that is gone, by a name like ours", named(attachmentName(disk, "n9"), "gone"), true},
		{"of a volume that is gone, by another's name", named("csi-abc", "gone"), false},
		{"of a volume that is gone, too long", named(attachmentName(disk, "n1")+"0", "gone"), false},
		{"of a volume that is no CSI driver's", named("mine", "plain"), false},
		{"of no volume", inline, false},
	} {
		v := attachView{name: "n1", volumes: map[string]*corev1.PersistentVolume{"disk": disk, "plain": plain}}
		if got := v.isManagedAttachment(test.a); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestAttachReachesARest: from random states, a driver that does what it is requested and a node that tells the truth: what is needed is
// attached and told, what is not is detached, nothing shares what only one may have; and then nothing more happens.
func TestAttachReachesARest(t *testing.T) {
	const seed = 29
	for round := range 60 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		volumes := map[string]*corev1.PersistentVolume{}
		for i := range 3 {
			v := aVolume(fmt.Sprint("v", i), csi)
			if random.IntN(3) == 0 {
				allowing(corev1.ReadWriteMany)(v)
			}
			volumes[v.Name] = v
		}
		nodes := map[string]*corev1.Node{}
		wanted := map[string][]string{} // by node
		attachments := map[string]*storagev1.VolumeAttachment{}
		unneeded := map[string]time.Time{}
		at := now
		for i := range 3 {
			name := fmt.Sprint("n", i)
			nodes[name] = aNode(func(n *corev1.Node) { n.Name = name })
			for v := range volumes {
				if random.IntN(3) == 0 {
					wanted[name] = append(wanted[name], v)
				}
				if random.IntN(3) == 0 {
					a := attachment(volumes[v], name, random.IntN(2) == 0)
					attachments[a.Name] = a
				}
			}
		}
		idle := 0
		for round := 0; idle < 6; round++ {
			if round > 200 {
				t.Fatalf("seed %d, round %d: no rest", seed, round)
			}
			at = at.Add(time.Minute)
			node := fmt.Sprint("n", round%3)
			v := attachView{name: node, node: nodes[node], needed: map[string]neededVolume{}, volumes: volumes, unneededSince: unneeded, maxUnmountWait: DefaultMaxUnmountWait, now: at}
			for _, name := range wanted[node] {
				v.needed[name] = neededVolume{volumes[name], []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}}
			}
			for _, a := range attachments {
				if a.Spec.NodeName == node {
					v.attachedHere = append(v.attachedHere, a)
				} else if _, needed := v.needed[*a.Spec.Source.PersistentVolumeName]; needed {
					v.attachedElsewhere = append(v.attachedElsewhere, a)
				}
			}
			plan, since := v.reconcile()
			for name, when := range since {
				unneeded[name] = when
			}
			idle++
			for _, step := range plan.Steps {
				for _, w := range step.Writes {
					idle = 0
					switch o := w.Object.(type) {
					case *corev1.Node:
						nodes[node] = o
					case *storagev1.VolumeAttachment:
						if w.Verb == controller.Delete {
							if nodes[node].Status.VolumesAttached != nil && slices.ContainsFunc(nodes[node].Status.VolumesAttached, func(a corev1.AttachedVolume) bool {
								return a.Name == uniqueName(volumes[*o.Spec.Source.PersistentVolumeName])
							}) {
								t.Fatalf("seed %d, round %d: detached before the node was told", seed, round)
							}
							delete(attachments, o.Name)
							continue
						}
						made := o.DeepCopy()
						attachments[made.Name] = made
					}
				}
			}
			for _, a := range attachments {
				if !a.Status.Attached && random.IntN(2) == 0 {
					a.Status.Attached, idle = true, 0
				}
			}
		}
		for node, names := range wanted {
			for _, name := range names {
				a := attachments[attachmentName(volumes[name], node)]
				told := slices.Contains(nodes[node].Status.VolumesAttached, corev1.AttachedVolume{Name: uniqueName(volumes[name])})
				others := 0
				for _, other := range attachments {
					if *other.Spec.Source.PersistentVolumeName == name && other.Spec.NodeName != node {
						others++
					}
				}
				if (a == nil || !told) && others == 0 {
					t.Fatalf("seed %d, round %d: %s is needed on %s and not there", seed, round, name, node)
				}
			}
		}
		for _, a := range attachments {
			if !slices.Contains(wanted[a.Spec.NodeName], *a.Spec.Source.PersistentVolumeName) {
				t.Fatalf("seed %d, round %d: %s stays on %s for nobody", seed, round, *a.Spec.Source.PersistentVolumeName, a.Spec.NodeName)
			}
		}
	}
}

// TestVolumesOfPods: which volumes of a pod must be attached.
func TestVolumesOfPods(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(w *stageOfVolumes)
		want   int
	}{
		{"a bound claim of a CSI volume", func(*stageOfVolumes) {}, 1},
		{"a claim that is not bound", func(w *stageOfVolumes) { w.claim.Status.Phase = corev1.ClaimPending }, 0},
		{"a claim that is lost", func(w *stageOfVolumes) { w.claim.Status.Phase = corev1.ClaimLost }, 0},
		{"a volume that forgot its claim", func(w *stageOfVolumes) { w.volume.Spec.ClaimRef = nil }, 0},
		{"a volume of an earlier claim", func(w *stageOfVolumes) { w.volume.Spec.ClaimRef.UID = "uid-before" }, 0},
		{"a volume that is no CSI driver's", func(w *stageOfVolumes) {
			w.volume.Spec.CSI, w.volume.Spec.HostPath = nil, &corev1.HostPathVolumeSource{Path: "/x"}
		}, 0},
		{"a driver that must attach", func(w *stageOfVolumes) { w.attach = new(true) }, 1},
		{"a driver that need not", func(w *stageOfVolumes) { w.attach = new(false) }, 0},
		{"its own claim", func(w *stageOfVolumes) { w.ownClaim() }, 1},
		{"a claim of its own's name that is not its own", func(w *stageOfVolumes) { w.ownClaim(); w.foreign = true }, 0},
		{"two pods of one claim", func(w *stageOfVolumes) { w.second = true }, 1},
		{"a driver that says nothing of it", func(w *stageOfVolumes) { w.attach = new(true); w.silent = true }, 1},
		{"a pod that is over", func(w *stageOfVolumes) { w.pod.Status.Phase = corev1.PodSucceeded }, 0},
		{"a pod on another node", func(w *stageOfVolumes) { w.pod.Spec.NodeName = "n2" }, 0},
		{"a pod that waits", func(w *stageOfVolumes) { w.pod.Spec.NodeName = "" }, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				s := &stageOfVolumes{
					claim:  aClaim(names("disk"), inClaimPhase(corev1.ClaimBound)),
					volume: aVolume("disk", csi, claimedBy("data", "")),
					pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
						Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}},
				}
				s.claim.UID, s.volume.UID = "", ""
				s.volume.Spec.ClaimRef.UID = "the claim's"
				test.change(s)
				phase := s.pod.Status.Phase
				pod := world.Create(w, s.pod)
				if phase != "" {
					world.EditStatus(w, "default", "p", func(p *corev1.Pod) { p.Status.Phase = phase })
				}
				if s.second {
					twin := s.pod.DeepCopy()
					twin.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "twin"}
					world.Create(w, twin)
				}
				if s.claim.Name != "data" && !s.foreign {
					s.claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, podKind)}
				}
				bound := s.claim.Status.Phase
				claim := world.Create(w, s.claim)
				world.EditStatus(w, "default", claim.Name, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = bound })
				if ref := s.volume.Spec.ClaimRef; ref != nil {
					if ref.Name = claim.Name; ref.UID == "the claim's" {
						ref.UID = claim.UID
					}
				}
				world.Create(w, s.volume)
				if s.attach != nil {
					driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: s.attach}}
					if s.silent {
						driver.Spec.AttachRequired = nil
					}
					world.Create(w, driver)
				}
				world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managedAttachAnnotation: "true"}}})
				defer w.Run(AttachDetach(DefaultMaxUnmountWait))()
				w.Pass(time.Second)
				if got := len(world.List[*storagev1.VolumeAttachment](w)); got != test.want {
					t.Errorf("%d attachments, want %d", got, test.want)
				}
			})
		})
	}
}

type stageOfVolumes struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	pod    *corev1.Pod
	attach *bool
	// foreign: the claim is not the pod's own. second: another pod has the claim, too. silent: the driver does not say whether it attaches.
	foreign, second, silent bool
}

// ownClaim makes the volume an ephemeral one.
func (s *stageOfVolumes) ownClaim() {
	s.claim.Name, s.pod.Spec.Volumes = "p-v", []corev1.Volume{usesEphemeral("v")}
}

// TestMovingAVolume: a pod moves to another node; the volume follows when the first node has let go.
func TestMovingAVolume(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(AttachDetach(DefaultMaxUnmountWait))()
		claim := aClaim(names("disk"))
		claim.UID = ""
		made := world.Create(w, claim)
		world.EditStatus(w, "default", "data", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
		disk := aVolume("disk", csi, claimedBy("data", string(made.UID)))
		disk.UID = ""
		world.Create(w, disk)
		for _, name := range []string{"n1", "n2"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{managedAttachAnnotation: "true"}}})
			world.EditStatus(w, "", name, func(n *corev1.Node) { n.Status.Conditions = aNode().Status.Conditions })
		}
		pod := func(name, node string) *corev1.Pod {
			return world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}})
		}
		where := func() (nodes []string) {
			w.Pass(time.Second)
			for _, a := range world.List[*storagev1.VolumeAttachment](w) {
				nodes = append(nodes, a.Spec.NodeName)
				if !a.Status.Attached {
					world.EditStatus(w, "", a.Name, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
				}
			}
			w.Pass(time.Second)
			return nodes
		}
		first := pod("first", "n1")
		if got := fmt.Sprint(where()); got != "[n1]" {
			t.Fatalf("the first pod: %s", got)
		}
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(disk)} })
		pod("second", "n2")
		if got := fmt.Sprint(where()); got != "[n1]" {
			t.Errorf("the second pod waits: %s", got)
		}
		if told := w.Events("second"); !slices.Contains(told, `FailedAttachVolume: Waiting for detach for volume "disk" Volume is already used by pod(s) first`) {
			t.Errorf("told %q", told)
		}
		w.Remove(first)
		if got := fmt.Sprint(where()); got != "[n1]" {
			t.Errorf("the first node has not let go: %s", got)
		}
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		where()
		if got := fmt.Sprint(where()); got != "[n2]" {
			t.Errorf("the first node has let go: %s", got)
		}
		if n := world.Get[*corev1.Node](w, "", "n2"); len(n.Status.VolumesAttached) != 1 {
			t.Errorf("the second node is told %v", n.Status.VolumesAttached)
		}
		// The second node is lost with the volume in use: it is waited for, and then no more.
		world.EditStatus(w, "", "n2", func(n *corev1.Node) {
			n.Status.VolumesInUse, n.Status.Conditions[0].Status = []corev1.UniqueVolumeName{uniqueName(disk)}, corev1.ConditionUnknown
		})
		w.Remove(world.Get[*corev1.Pod](w, "default", "second"))
		w.Pass(5 * time.Minute)
		if got := fmt.Sprint(where()); got != "[n2]" {
			t.Errorf("after five minutes: %s", got)
		}
		w.Pass(2 * time.Minute)
		if got := fmt.Sprint(where()); got != "[]" {
			t.Errorf("after more than six: %s", got)
		}
	})
}

func TestAttachDetachInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(AttachDetach(DefaultMaxUnmountWait), Binder)()
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managedAttachAnnotation: "true"}}})
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.Conditions = aNode().Status.Conditions })
		disk := aVolume("disk", csi)
		world.Create(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: disk.Spec})
		world.Create(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: aClaim().Spec})
		pod := world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1", TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}})
		w.Pass(time.Second)
		name := attachmentName(disk, "n1")
		world.EditStatus(w, "", name, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true }) // as the attacher would
		w.Pass(time.Second)
		if n := world.Get[*corev1.Node](w, "", "n1"); len(n.Status.VolumesAttached) != 1 || n.Status.VolumesAttached[0].Name != uniqueName(disk) {
			t.Fatalf("attached %v", n.Status.VolumesAttached)
		}
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(disk)} })
		w.Remove(pod)
		w.Pass(time.Minute)
		if world.Gone[*storagev1.VolumeAttachment](w, "", name) {
			t.Fatal("a mounted volume was detached")
		}
		world.EditStatus(w, "", "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		w.Pass(time.Second)
		if !world.Gone[*storagev1.VolumeAttachment](w, "", name) || len(world.Get[*corev1.Node](w, "", "n1").Status.VolumesAttached) != 0 {
			t.Error("a volume nobody needs stays attached")
		}
	})
}

// TestNoForcedDetach: where nothing may be forced, a node that is silent or gone is waited for, however long.
func TestNoForcedDetach(t *testing.T) {
	disk := aVolume("disk", csi)
	for what, node := range map[string]*corev1.Node{"silent": aNode(toldOf(disk), using(disk), silent), "gone": nil} {
		v := attachView{name: "n1", node: node, attachedHere: attachmentsOf(attachment(disk, "n1", true)), volumes: map[string]*corev1.PersistentVolume{"disk": disk}, now: now,
			unneededSince: map[string]time.Time{attachmentName(disk, "n1"): now.Add(-24 * time.Hour)}}
		if plan, _ := v.reconcile(); !plan.IsEmpty() || plan.RequeueAfter != 0 {
			t.Errorf("%s: %s, again %v", what, attachWords(plan), plan.RequeueAfter)
		}
	}
}
