package decision

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// Terms nobody carries any more are forgotten once there are many, and those somebody carries never.
func TestDropHolders(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	for i := range 40 {
		s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "k", fmt.Sprint(i)))))
	}
	for i := range 39 {
		s.DeletePod(schedulertest.TestPod(fmt.Sprint(i)).UID)
	}
	s.DropUnusedTerms()
	if got := len(s.ExistingTerms); got != 40 {
		t.Errorf("%d terms are known while there are few, want 40", got)
	}
	s.MaxExistingTerms = 40
	version := s.TopologyVersion
	s.DropUnusedTerms()
	if got := len(s.ExistingTerms); got != 1 || s.TopologyVersion == version || s.MaxExistingTerms != 1026 {
		t.Errorf("%d terms are left, version %d after %d, %d are kept", got, s.TopologyVersion, version, s.MaxExistingTerms)
	}
	for i, want := range map[int]int{39: 1, 38: 0} {
		if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.Labelled("k", fmt.Sprint(i))), plugins.DefaultProfile()); len(got) != want {
			t.Errorf("label %d: refused %v, want %d", i, got, want)
		}
	}
	s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod("38", schedulertest.OnNode("a"), schedulertest.WithAntiAffinity(corev1.LabelHostname, "k", "38"))))
	if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.Labelled("k", "38")), plugins.DefaultProfile()); len(got) != 1 {
		t.Errorf("a term that was forgotten and has come back: %v", got)
	}
}

func TestMovedVolumes(t *testing.T) {
	const full = "node(s) exceed max volume count"
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := func(provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: provisioner, VolumeBindingMode: &wait}
	}
	unbound := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("late")}}
	nativeVolume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "native"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: schedulertest.EbsDriver, VolumeHandle: "vol-1"}},
	}}
	vsphere := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "x"}},
	}}
	for what, test := range map[string]struct {
		objects []metav1.Object
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string // a has a limit; b tells nothing of drivers
	}{
		"a claim's volume counts for its driver": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", ""), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 0, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"a": full},
		},
		"while there are free resources": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", ""), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 1, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{},
		},
		"beside those of pods there": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", ""), schedulertest.BoundClaim("other", "two"), schedulertest.EbsVolume("two", "vol-2", ""), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 1, "")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("other"))}, pod: schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"a": full},
		},
		"the same volume in both words is one": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", ""), schedulertest.BoundClaim("other", "native"), nativeVolume, schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 1, "")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("other"))}, pod: schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{},
		},
		"another driver's limit": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", ""), schedulertest.CSINodeWithLimit("a", "disk.csi.azure.com", 0, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{},
		},
		"a kind whose move does not count": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), vsphere, schedulertest.CSINodeWithLimit("a", "csi.vsphere.vmware.com", 0, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{},
		},
		"a volume still to be made": {
			objects: []metav1.Object{unbound, class("kubernetes.io/aws-ebs"), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 0, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("new")), want: map[string]string{"a": full},
		},
		"to be made by a kind whose move does not count": {
			objects: []metav1.Object{unbound, class("kubernetes.io/vsphere-volume"), schedulertest.CSINodeWithLimit("a", "csi.vsphere.vmware.com", 0, "")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("new")), want: map[string]string{},
		},
		"a volume without a claim": {
			objects: []metav1.Object{schedulertest.CSINodeWithLimit("a", "disk.csi.azure.com", 0, "")}, pod: schedulertest.TestPod("p", schedulertest.InlineDisk("x")), want: map[string]string{"a": full},
		},
		"beside another of a pod there": {
			objects: []metav1.Object{schedulertest.CSINodeWithLimit("a", "disk.csi.azure.com", 1, "")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineDisk("y"))}, pod: schedulertest.TestPod("p", schedulertest.InlineDisk("x")), want: map[string]string{"a": full},
		},
		"the same disk": {
			objects: []metav1.Object{schedulertest.CSINodeWithLimit("a", "disk.csi.azure.com", 1, "")},
			running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.InlineDisk("x"))}, pod: schedulertest.TestPod("p", schedulertest.InlineDisk("x")), want: map[string]string{},
		},
		"a zone, in the old words": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", "zb")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"a": snapshot.ReasonNodeConflict},
		},
		"a zone, in the driver's words where it has moved in": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", "za"), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 5, "kubernetes.io/gce-pd,kubernetes.io/aws-ebs")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"a": snapshot.ReasonNodeConflict, "b": snapshot.ReasonNodeConflict},
		},
		"which the node's driver may know": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", "driver-zone"), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 5, "kubernetes.io/aws-ebs")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"b": snapshot.ReasonNodeConflict},
		},
		"another kind has moved": {
			objects: []metav1.Object{schedulertest.BoundClaim("claim", "one"), schedulertest.EbsVolume("one", "vol-1", "za"), schedulertest.CSINodeWithLimit("a", schedulertest.EbsDriver, 5, "kubernetes.io/gce-pd")},
			pod:     schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), want: map[string]string{"b": snapshot.ReasonNodeConflict},
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za"), schedulertest.NodeLabel("topology.ebs.csi.aws.com/zone", "driver-zone")), schedulertest.TestNode("b", schedulertest.Zone("zb"))}, test.running...)
			for _, o := range test.objects {
				s.SetObject(o)
			}
			if got := refusalsOf(t, s, test.pod, plugins.DefaultProfile()); !maps.Equal(got, test.want) {
				t.Errorf("refused %v, want %v", got, test.want)
			}
		})
	}
}

// Expressions that cannot be read end the attempt; those that fail on a device end it as well.
func TestDeviceExpressionsThatFail(t *testing.T) {
	for what, test := range map[string]struct {
		known schedulertest.Objects
		want  string // part of what is said
	}{
		"in a claim":                {schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "device.")), schedulertest.ModelSlice("a", "small")}, "claim default/x: selector #0: CEL compile error"},
		"in a class":                {schedulertest.Objects{schedulertest.DeviceClass("bad", "device."), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "bad", 1, ""))}, "class bad: selector #0: CEL compile error"},
		"an attribute that is none": {schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, `device.attributes["example.com"].size == "large"`))}, "no such key: size"},
	} {
		t.Run(what, func(t *testing.T) {
			s := threeNodes(t, test.known...)
			_, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.Claiming("x"))), plugins.DefaultProfile())
			if err == nil || IsUnschedulable(err) || !strings.HasPrefix(err.Error(), `running "DynamicResources" filter plugin: `) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// Of two nodes that both can serve a pod, it goes where what it would rather have is.
func TestBetterDevicesWin(t *testing.T) {
	for _, test := range []struct {
		first, second schedulertest.Alternative
		want          string
	}{
		{schedulertest.NewAlternative("l", "class", 1, schedulertest.ModelIs("large")), schedulertest.NewAlternative("s", "class", 1, schedulertest.ModelIs("small")), "b"},
		{schedulertest.NewAlternative("s", "class", 2, schedulertest.ModelIs("small")), schedulertest.NewAlternative("l", "class", 1, schedulertest.ModelIs("large")), "b"},
	} {
		s := snapshottest.NewWithObjects(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.ModelSlice("a", "small"), schedulertest.ModelSlice("b", "large"), schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", test.first, test.second))})
		d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.Claiming("x"))), plugins.DefaultProfile())
		if err != nil || d.Node != test.want {
			t.Errorf("%v: goes to %q, %v", test, d.Node, err)
		}
	}
}

// The API server lets preferences in whose values no label can have: such a pod is scheduled where it has no choice, and nowhere else.
func TestNodeAffinityPreferencesThatCannotBeRead(t *testing.T) {
	const why = `running PreScore plugin "NodeAffinity": [1].matchExpressions[0].values[0][x]: Invalid value: "a value!": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`
	odd := []schedulertest.PodOption{schedulertest.PrefersNode(1, schedulertest.Expression("x", schedulertest.OpExists)), schedulertest.PrefersNode(1, schedulertest.Expression("x", schedulertest.OpIn, "a value!"))}
	for _, test := range []struct {
		what  string
		nodes []*corev1.Node
		pod   *corev1.Pod
		node  string
		fail  string
	}{
		{"two nodes", []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("p", odd...), "", why},
		{"one node", []*corev1.Node{schedulertest.TestNode("a")}, schedulertest.TestPod("p", odd...), "a", ""},
		{"two nodes, one of them closed", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b")}, schedulertest.TestPod("p", odd...), "b", ""},
		{"two nodes, neither of them open", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.TestNode("b", schedulertest.Cordoned)}, schedulertest.TestPod("p", odd...), "", "0/2 nodes are available: 2 node(s) were unschedulable."},
		{"two nodes of which the pod names one", []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("p", append([]schedulertest.PodOption{schedulertest.RequiresNodes(schedulertest.Named("b"))}, odd...)...), "b", ""},
		{"two nodes of which the pod names both", []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("p", append([]schedulertest.PodOption{schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))}, odd...)...), "", why},
		{"two nodes, nominated to one", []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("p", append([]schedulertest.PodOption{schedulertest.NominatedTo("b")}, odd...)...), "b", ""},
		{"two nodes that differ for neighbours", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b")}, schedulertest.TestPod("p", append([]schedulertest.PodOption{schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.ScheduleAnyway, "a=b")}, odd...)...), "", why},
	} {
		d, err := Schedule(snapshottest.New(t, test.nodes), snapshottest.PodInfo(t, test.pod), plugins.DefaultProfile())
		fail := ""
		if err != nil {
			fail = err.Error()
		}
		if d.Node != test.node || fail != test.fail {
			t.Errorf("%s: %q, %s, want %q, %s", test.what, d.Node, fail, test.node, test.fail)
		}
	}
}
