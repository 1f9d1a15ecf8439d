package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// A pod that a rule has refused is tried again after the changes that may help it, and after no others.
func TestHints(t *testing.T) {
	host := corev1.LabelHostname
	noSchedule := corev1.TaintEffectNoSchedule
	nodeAdded := func(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Add, New: n} }
	nodeUpdated := func(old, now *corev1.Node) Event {
		return Event{Resource: NodeResource, Action: NodeUpdateActions(old, now), Old: old, New: now}
	}
	podGone := func(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Delete, Old: p} }
	podCame := func(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Add, New: p} }
	podUpdated := func(old, now *corev1.Pod) Event {
		return Event{Resource: AssignedPod, Action: PodUpdateActions(old, now), Old: old, New: now}
	}
	itself := func(old, now *corev1.Pod) Event {
		return Event{Resource: TargetPod, Action: PodUpdateActions(old, now), Old: old, New: now}
	}
	object := func(r Resource, a Action, now any) Event { return Event{Resource: r, Action: a, New: now} }
	detached := func(driver string) Event {
		return Event{Resource: VolumeAttachmentResource, Action: Delete, Old: &storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{Attacher: driver}}}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim"}}
	otherClaim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}}

	for _, test := range []struct {
		rule, what string
		pod        *corev1.Pod
		event      Event
		helps      bool
	}{
		{NodeResourcesFitName, "a large enough node", schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), nodeAdded(schedulertest.TestNode("n")), true},
		{NodeResourcesFitName, "a node that is too small", schedulertest.TestPod("p", schedulertest.RequestingCPU("9")), nodeAdded(schedulertest.TestNode("n")), false},
		{NodeResourcesFitName, "a node that has grown", schedulertest.TestPod("p", schedulertest.RequestingCPU("9")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "16"))), true},
		{NodeResourcesFitName, "a node that has not grown enough", schedulertest.TestPod("p", schedulertest.RequestingCPU("90")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "16"))), false},
		{NodeResourcesFitName, "a node that has another label", schedulertest.TestPod("p", schedulertest.RequestingCPU("9")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeLabel("x", "y"))), false},
		{NodeResourcesFitName, "a pod that is gone", schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.RequestingCPU("1"))), true},
		{NodeResourcesFitName, "a pod that asks less now", schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), podUpdated(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.RequestingCPU("2")), schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.RequestingCPU("1"))), true},
		{NodeResourcesFitName, "a pod that asks less of something else", schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), podUpdated(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.RequestingMemory("2Gi")), schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.RequestingMemory("1Gi"))), false},
		{NodeResourcesFitName, "a pod that came", schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), podCame(schedulertest.TestPod("x", schedulertest.OnNode("n"))), false},
		{NodeResourcesFitName, "the pod asks less itself", schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), itself(schedulertest.TestPod("p", schedulertest.RequestingCPU("2")), schedulertest.TestPod("p", schedulertest.RequestingCPU("1"))), true},

		{NodeAffinityName, "a node that is selected", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodeAdded(schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "ssd"))), true},
		{NodeAffinityName, "a node that is not", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodeAdded(schedulertest.TestNode("n")), false},
		{NodeAffinityName, "the label that was missing", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "ssd"))), true},
		{NodeAffinityName, "another label", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "hdd"))), false},
		{NodeAffinityName, "more free resources", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "9"))), false},
		{NodeAffinityName, "a pod that is gone", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"))), false},

		{TaintTolerationName, "a node without taints", schedulertest.TestPod("p"), nodeAdded(schedulertest.TestNode("n")), true},
		{TaintTolerationName, "a node with one", schedulertest.TestPod("p"), nodeAdded(schedulertest.TestNode("n", schedulertest.Taint("k", "v", noSchedule))), false},
		{TaintTolerationName, "a taint taken off", schedulertest.TestPod("p"), nodeUpdated(schedulertest.TestNode("n", schedulertest.Taint("k", "v", noSchedule)), schedulertest.TestNode("n")), true},
		{TaintTolerationName, "a taint put on", schedulertest.TestPod("p"), nodeUpdated(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Taint("k", "v", noSchedule))), false},
		{TaintTolerationName, "a toleration", schedulertest.TestPod("p"), itself(schedulertest.TestPod("p"), schedulertest.TestPod("p", schedulertest.Tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}))), true},

		{NodeUnschedulableName, "an open node", schedulertest.TestPod("p"), nodeAdded(schedulertest.TestNode("n")), true},
		{NodeUnschedulableName, "a closed one", schedulertest.TestPod("p"), nodeAdded(schedulertest.TestNode("n", schedulertest.Cordoned)), false},
		{NodeUnschedulableName, "opening", schedulertest.TestPod("p"), nodeUpdated(schedulertest.TestNode("n", schedulertest.Cordoned), schedulertest.TestNode("n")), true},

		{NodeNameName, "a node", schedulertest.TestPod("p"), nodeAdded(schedulertest.TestNode("n")), true},

		{NodePortsName, "the port is free", schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP)), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Port(80, "", corev1.ProtocolTCP))), true},
		{NodePortsName, "another port is free", schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP)), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Port(81, "", corev1.ProtocolTCP))), false},
		{NodePortsName, "the port of another protocol", schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP)), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Port(80, "", corev1.ProtocolUDP))), false},
		{NodePortsName, "a node", schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP)), nodeAdded(schedulertest.TestNode("n")), true},

		{InterPodAffinityName, "who is wanted came", schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), podCame(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "db"))), true},
		{InterPodAffinityName, "somebody came", schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), podCame(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "web"))), false},
		{InterPodAffinityName, "who was in the way is gone", schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "db"))), true},
		{InterPodAffinityName, "somebody is gone", schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "web"))), false},
		{InterPodAffinityName, "who did not want it is gone", schedulertest.TestPod("p", schedulertest.Labelled("app", "db")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.WithAntiAffinity(host, "app", "db"))), true},
		{InterPodAffinityName, "somebody has become who is wanted", schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), podUpdated(schedulertest.TestPod("x", schedulertest.OnNode("n")), schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "db"))), true},
		{InterPodAffinityName, "another node", schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db"), schedulertest.Labelled("app", "db")), nodeAdded(schedulertest.TestNode("n")), true},

		{PodTopologySpreadName, "one of those counted came", schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.Spread(host, 1, corev1.DoNotSchedule, "app=x")), podCame(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "x"))), true},
		{PodTopologySpreadName, "somebody else came", schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.Spread(host, 1, corev1.DoNotSchedule, "app=x")), podCame(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "y"))), false},
		{PodTopologySpreadName, "one of those counted is gone", schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.Spread(host, 1, corev1.DoNotSchedule, "app=x")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("app", "x"))), true},
		{PodTopologySpreadName, "a node of a domain", schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), schedulertest.Spread(host, 1, corev1.DoNotSchedule, "app=x")), nodeAdded(schedulertest.TestNode("n")), true},

		{VolumeRestrictionsName, "a pod with the same claim is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.UsingClaim("claim"))), true},
		{VolumeRestrictionsName, "its claim", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(PersistentVolumeClaim, Add, claim), true},
		{VolumeRestrictionsName, "another claim", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(PersistentVolumeClaim, Add, otherClaim), false},
		{VolumeBindingName, "its claim", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(PersistentVolumeClaim, Add, claim), true},
		{VolumeBindingName, "another claim", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(PersistentVolumeClaim, Add, otherClaim), false},
		{VolumeBindingName, "a volume", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(PersistentVolumeResource, Add, schedulertest.VolumeFor("v", "", "")), true},
		{NodeVolumeLimitsName, "a node's drivers", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(CSINodeResource, Add, &storagev1.CSINode{}), true},
		{NodeVolumeLimitsName, "a node", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), nodeAdded(schedulertest.TestNode("n")), false},
		{SchedulingGatesName, "the gates are gone", schedulertest.TestPod("p"), itself(schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), schedulertest.TestPod("p")), true},
		{NodeVolumeLimitsName, "a disk of a pod is free", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.InlineDisk("d"))), true},
		{NodeVolumeLimitsName, "a pod without volumes is gone", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), podGone(schedulertest.TestPod("x", schedulertest.OnNode("n"))), false},
		{NodeVolumeLimitsName, "a volume of its driver is detached", schedulertest.TestPod("p", schedulertest.InlineDisk("d")), detached("disk.csi.azure.com"), true},
		{NodeVolumeLimitsName, "a volume of another driver", schedulertest.TestPod("p", schedulertest.InlineDisk("d")), detached(schedulertest.EbsDriver), false},
		{NodeVolumeLimitsName, "a volume of any driver, for a claim", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), detached(schedulertest.EbsDriver), true},
		{NodeVolumeLimitsName, "a volume, for a pod without any", schedulertest.TestPod("p"), detached(schedulertest.EbsDriver), false},
		{VolumeBindingName, "a node's drivers", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), object(CSINodeResource, Add, &storagev1.CSINode{}), true},
		{VolumeBindingName, "a kind has moved to a driver", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), Event{Resource: CSINodeResource, Action: UpdateOther, Old: schedulertest.CSINodeWithLimit("n", "x", 1, ""), New: schedulertest.CSINodeWithLimit("n", "x", 1, "kubernetes.io/aws-ebs")}, true},
		{VolumeBindingName, "a limit has changed", schedulertest.TestPod("p", schedulertest.UsingClaim("claim")), Event{Resource: CSINodeResource, Action: UpdateOther, Old: schedulertest.CSINodeWithLimit("n", "x", 1, ""), New: schedulertest.CSINodeWithLimit("n", "x", 2, "")}, false},
		{NodeResourcesFitName, "a class for what it asks", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), object(DeviceClassResource, Add, schedulertest.ClassForExtendedResource("c", string(schedulertest.Gpu), 0)), true},
		{NodeResourcesFitName, "a class for something else", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), object(DeviceClassResource, Add, schedulertest.ClassForExtendedResource("c", "example.com/nic", 0)), false},
		{NodeResourcesFitName, "a class asked for by its own name", schedulertest.TestPod("p", schedulertest.Requesting("deviceclass.resource.kubernetes.io/c", "1")), object(DeviceClassResource, Add, schedulertest.ClassForExtendedResource("c", "", 0)), true},
		{NodeResourcesFitName, "a class that has come to stand for it", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), Event{Resource: DeviceClassResource, Action: UpdateOther, Old: schedulertest.ClassForExtendedResource("c", "", 0), New: schedulertest.ClassForExtendedResource("c", string(schedulertest.Gpu), 0)}, true},
		{NodeResourcesFitName, "a class that stood for it before", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), Event{Resource: DeviceClassResource, Action: UpdateOther, Old: schedulertest.ClassForExtendedResource("c", string(schedulertest.Gpu), 0), New: schedulertest.ClassForExtendedResource("c", string(schedulertest.Gpu), 0)}, false},
		{DynamicResourcesName, "devices became free", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), Event{Resource: ResourceClaimResource, Action: Delete, Old: schedulertest.AllocatedClaim("x", "n", "device-0")}, true},
		{DynamicResourcesName, "a claim without devices is gone", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), Event{Resource: ResourceClaimResource, Action: Delete, Old: schedulertest.DeviceClaim("x", 1)}, false},
		{DynamicResourcesName, "devices", schedulertest.TestPod("p", schedulertest.Claiming("claim")), object(ResourceSliceResource, Add, schedulertest.DeviceSlice("n", 1)), true},
		{DynamicResourcesName, "a class", schedulertest.TestPod("p", schedulertest.Claiming("claim")), object(DeviceClassResource, Add, &resourcev1.DeviceClass{}), true},
		{DynamicResourcesName, "a taint of devices is gone", schedulertest.TestPod("p", schedulertest.Claiming("claim")), Event{Resource: DeviceTaintRuleResource, Action: Delete, Old: schedulertest.TaintRule(nil, "")}, true},
		{DynamicResourcesName, "a taint of devices came", schedulertest.TestPod("p", schedulertest.Claiming("claim")), object(DeviceTaintRuleResource, Add, schedulertest.TaintRule(nil, "")), false},
	} {
		t.Run(test.rule+"/"+test.what, func(t *testing.T) {
			profile := DefaultProfile()
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("n")})
			if n := asNode(test.event.New); n != nil {
				s.SetNode(n)
			}
			if got := profile.MayHelp(s, test.pod, []string{test.rule}, &test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}
