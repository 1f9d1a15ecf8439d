package volume

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	return with(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managedAttach: "true"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, changes...)
}

func TestAttachDetach(t *testing.T) {
	disk := aVolume("disk", csi)
	shared := aVolume("disk", csi, func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	needs := func(v *corev1.PersistentVolume) map[string]need {
		return map[string]need{v.Name: {v, []*corev1.Pod{pod}}}
	}
	inUse := func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(disk)} }
	told := func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: uniqueName(disk)}} }
	lost := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	off := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} }
	name := attachmentName(disk, "n1")
	others, ofGone := attachment(disk, "n1", true), attachment(disk, "n1", true)
	others.Name = "mine"
	ofGone.Spec.Source.PersistentVolumeName = new("gone")
	if !strings.HasPrefix(name, "csi-") || len(name) != 4+64 {
		t.Errorf("name %s", name)
	}
	for _, test := range []struct {
		what   string
		view   attachView
		since  time.Duration // for how long it is no longer needed
		want   string
		waited time.Duration
	}{
		{"needed", attachView{node: aNode(), needed: needs(disk)}, 0, "create VolumeAttachment NAME", 0},
		{"needed, by a kubelet that attaches itself", attachView{node: aNode(func(n *corev1.Node) { n.Annotations = nil }), needed: needs(disk)}, 0, "", 0},
		{"being attached", attachView{node: aNode(), needed: needs(disk), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", false)}}, 0, "", 0},
		{"attached", attachView{node: aNode(), needed: needs(disk), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 0, "update status of Node n1, tell SuccessfulAttachVolume", 0},
		{"attached and told", attachView{node: aNode(told), needed: needs(disk), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 0, "", 0},
		{"attached to another", attachView{node: aNode(), needed: needs(disk), elsewhere: []*storagev1.VolumeAttachment{attachment(disk, "n2", true)}}, 0, "tell FailedAttachVolume", 0},
		{"attached to another, which may be", attachView{node: aNode(), needed: needs(shared), elsewhere: []*storagev1.VolumeAttachment{attachment(disk, "n2", true)}}, 0, "create VolumeAttachment NAME", 0},
		{"no longer needed, mounted", attachView{node: aNode(told, inUse), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, time.Hour, "", 0},
		{"no longer needed", attachView{node: aNode(told), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 0, "update status of Node n1, delete VolumeAttachment NAME", 0},
		{"no longer needed, the node is lost", attachView{node: aNode(told, inUse, lost), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, time.Minute, "", 5 * time.Minute},
		{"for long", attachView{node: aNode(told, inUse, lost), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 7 * time.Minute, "update status of Node n1, delete VolumeAttachment NAME", 0},
		{"no longer needed, the node is off", attachView{node: aNode(told, inUse, lost, off), here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 0, "update status of Node n1, delete VolumeAttachment NAME", 0},
		{"made by others", attachView{node: aNode(), here: []*storagev1.VolumeAttachment{others}}, time.Hour, "", 0},
		{"made by others, the node is gone", attachView{here: []*storagev1.VolumeAttachment{others}}, time.Hour, "", 0},
		{"the volume is gone", attachView{node: aNode(), here: []*storagev1.VolumeAttachment{ofGone}}, 0, "delete VolumeAttachment NAME", 0},
		{"the node is gone: it may still run", attachView{here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, time.Minute, "", 5 * time.Minute},
		{"the node is gone for long", attachView{here: []*storagev1.VolumeAttachment{attachment(disk, "n1", true)}}, 7 * time.Minute, "delete VolumeAttachment NAME", 0},
	} {
		v := test.view
		v.name, v.now, v.unmountWait = "n1", now, DefaultUnmountWait
		v.volumes = map[string]*corev1.PersistentVolume{"disk": disk}
		v.unneeded = map[string]time.Time{name: now.Add(-test.since)}
		plan, _ := v.reconcile()
		if got := strings.ReplaceAll(words(plan), name, "NAME"); got != test.want || plan.RequeueAfter != test.waited {
			t.Errorf("%s: %s, again %v\nwant %s, %v", test.what, got, plan.RequeueAfter, test.want, test.waited)
		}
	}
}

func TestAttachDetachInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(AttachDetach(DefaultUnmountWait), Binder)()
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managedAttach: "true"}}})
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
