package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod that a rule has refused is tried again after the changes that may help it, and after no others.
func TestHints(t *testing.T) {
	host := corev1.LabelHostname
	noSchedule := corev1.TaintEffectNoSchedule
	nodeAdded := func(n *corev1.Node) Event { return Event{Resource: NodeResource, Action: Add, New: n} }
	nodeUpdated := func(old, now *corev1.Node) Event {
		return Event{Resource: NodeResource, Action: nodeChanges(old, now), Old: old, New: now}
	}
	podGone := func(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Delete, Old: p} }
	podCame := func(p *corev1.Pod) Event { return Event{Resource: AssignedPod, Action: Add, New: p} }
	podUpdated := func(old, now *corev1.Pod) Event {
		return Event{Resource: AssignedPod, Action: podChanges(old, now), Old: old, New: now}
	}
	itself := func(old, now *corev1.Pod) Event {
		return Event{Resource: TargetPod, Action: podChanges(old, now), Old: old, New: now}
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
		{nodeResourcesFitName, "a large enough node", testPod("p", asksCPU("2")), nodeAdded(testNode("n")), true},
		{nodeResourcesFitName, "a node that is too small", testPod("p", asksCPU("9")), nodeAdded(testNode("n")), false},
		{nodeResourcesFitName, "a node that has grown", testPod("p", asksCPU("9")), nodeUpdated(testNode("n"), testNode("n", nodeHas(corev1.ResourceCPU, "16"))), true},
		{nodeResourcesFitName, "a node that has not grown enough", testPod("p", asksCPU("90")), nodeUpdated(testNode("n"), testNode("n", nodeHas(corev1.ResourceCPU, "16"))), false},
		{nodeResourcesFitName, "a node that has another label", testPod("p", asksCPU("9")), nodeUpdated(testNode("n"), testNode("n", nodeLabel("x", "y"))), false},
		{nodeResourcesFitName, "a pod that is gone", testPod("p", asksCPU("2")), podGone(testPod("x", on("n"), asksCPU("1"))), true},
		{nodeResourcesFitName, "a pod that asks less now", testPod("p", asksCPU("2")), podUpdated(testPod("x", on("n"), asksCPU("2")), testPod("x", on("n"), asksCPU("1"))), true},
		{nodeResourcesFitName, "a pod that asks less of something else", testPod("p", asksCPU("2")), podUpdated(testPod("x", on("n"), asksMemory("2Gi")), testPod("x", on("n"), asksMemory("1Gi"))), false},
		{nodeResourcesFitName, "a pod that came", testPod("p", asksCPU("2")), podCame(testPod("x", on("n"))), false},
		{nodeResourcesFitName, "the pod asks less itself", testPod("p", asksCPU("1")), itself(testPod("p", asksCPU("2")), testPod("p", asksCPU("1"))), true},

		{nodeAffinityName, "a node that is selected", testPod("p", selecting("disk", "ssd")), nodeAdded(testNode("n", nodeLabel("disk", "ssd"))), true},
		{nodeAffinityName, "a node that is not", testPod("p", selecting("disk", "ssd")), nodeAdded(testNode("n")), false},
		{nodeAffinityName, "the label that was missing", testPod("p", selecting("disk", "ssd")), nodeUpdated(testNode("n"), testNode("n", nodeLabel("disk", "ssd"))), true},
		{nodeAffinityName, "another label", testPod("p", selecting("disk", "ssd")), nodeUpdated(testNode("n"), testNode("n", nodeLabel("disk", "hdd"))), false},
		{nodeAffinityName, "room", testPod("p", selecting("disk", "ssd")), nodeUpdated(testNode("n"), testNode("n", nodeHas(corev1.ResourceCPU, "9"))), false},
		{nodeAffinityName, "a pod that is gone", testPod("p", selecting("disk", "ssd")), podGone(testPod("x", on("n"))), false},

		{taintTolerationName, "a node without taints", testPod("p"), nodeAdded(testNode("n")), true},
		{taintTolerationName, "a node with one", testPod("p"), nodeAdded(testNode("n", taint("k", "v", noSchedule))), false},
		{taintTolerationName, "a taint taken off", testPod("p"), nodeUpdated(testNode("n", taint("k", "v", noSchedule)), testNode("n")), true},
		{taintTolerationName, "a taint put on", testPod("p"), nodeUpdated(testNode("n"), testNode("n", taint("k", "v", noSchedule))), false},
		{taintTolerationName, "a toleration", testPod("p"), itself(testPod("p"), testPod("p", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}))), true},

		{nodeUnschedulableName, "an open node", testPod("p"), nodeAdded(testNode("n")), true},
		{nodeUnschedulableName, "a closed one", testPod("p"), nodeAdded(testNode("n", cordoned)), false},
		{nodeUnschedulableName, "opening", testPod("p"), nodeUpdated(testNode("n", cordoned), testNode("n")), true},

		{nodeNameName, "a node", testPod("p"), nodeAdded(testNode("n")), true},

		{nodePortsName, "the port is free", testPod("p", port(80, "", corev1.ProtocolTCP)), podGone(testPod("x", on("n"), port(80, "", corev1.ProtocolTCP))), true},
		{nodePortsName, "another port is free", testPod("p", port(80, "", corev1.ProtocolTCP)), podGone(testPod("x", on("n"), port(81, "", corev1.ProtocolTCP))), false},
		{nodePortsName, "the port of another protocol", testPod("p", port(80, "", corev1.ProtocolTCP)), podGone(testPod("x", on("n"), port(80, "", corev1.ProtocolUDP))), false},
		{nodePortsName, "a node", testPod("p", port(80, "", corev1.ProtocolTCP)), nodeAdded(testNode("n")), true},

		{interPodAffinityName, "who is wanted came", testPod("p", near(host, "app", "db")), podCame(testPod("x", on("n"), labelled("app", "db"))), true},
		{interPodAffinityName, "somebody came", testPod("p", near(host, "app", "db")), podCame(testPod("x", on("n"), labelled("app", "web"))), false},
		{interPodAffinityName, "who was in the way is gone", testPod("p", away(host, "app", "db")), podGone(testPod("x", on("n"), labelled("app", "db"))), true},
		{interPodAffinityName, "somebody is gone", testPod("p", away(host, "app", "db")), podGone(testPod("x", on("n"), labelled("app", "web"))), false},
		{interPodAffinityName, "who did not want it is gone", testPod("p", labelled("app", "db")), podGone(testPod("x", on("n"), away(host, "app", "db"))), true},
		{interPodAffinityName, "somebody has become who is wanted", testPod("p", near(host, "app", "db")), podUpdated(testPod("x", on("n")), testPod("x", on("n"), labelled("app", "db"))), true},
		{interPodAffinityName, "another node", testPod("p", near(host, "app", "db"), labelled("app", "db")), nodeAdded(testNode("n")), true},

		{podTopologySpreadName, "one of those counted came", testPod("p", labelled("app", "x"), spread(host, 1, corev1.DoNotSchedule, "app", "x")), podCame(testPod("x", on("n"), labelled("app", "x"))), true},
		{podTopologySpreadName, "somebody else came", testPod("p", labelled("app", "x"), spread(host, 1, corev1.DoNotSchedule, "app", "x")), podCame(testPod("x", on("n"), labelled("app", "y"))), false},
		{podTopologySpreadName, "one of those counted is gone", testPod("p", labelled("app", "x"), spread(host, 1, corev1.DoNotSchedule, "app", "x")), podGone(testPod("x", on("n"), labelled("app", "x"))), true},
		{podTopologySpreadName, "a node of a domain", testPod("p", labelled("app", "x"), spread(host, 1, corev1.DoNotSchedule, "app", "x")), nodeAdded(testNode("n")), true},

		{volumeRestrictionsName, "a pod with the same claim is gone", testPod("p", usingClaim("claim")), podGone(testPod("x", on("n"), usingClaim("claim"))), true},
		{volumeRestrictionsName, "its claim", testPod("p", usingClaim("claim")), object(PersistentVolumeClaim, Add, claim), true},
		{volumeRestrictionsName, "another claim", testPod("p", usingClaim("claim")), object(PersistentVolumeClaim, Add, otherClaim), false},
		{volumeBindingName, "its claim", testPod("p", usingClaim("claim")), object(PersistentVolumeClaim, Add, claim), true},
		{volumeBindingName, "another claim", testPod("p", usingClaim("claim")), object(PersistentVolumeClaim, Add, otherClaim), false},
		{volumeBindingName, "a volume", testPod("p", usingClaim("claim")), object(PersistentVolumeResource, Add, volumeFor("v", "", "")), true},
		{nodeVolumeLimitsName, "a node's drivers", testPod("p", usingClaim("claim")), object(CSINodeResource, Add, &storagev1.CSINode{}), true},
		{nodeVolumeLimitsName, "a node", testPod("p", usingClaim("claim")), nodeAdded(testNode("n")), false},
		{schedulingGatesName, "the gates are gone", testPod("p"), itself(testPod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), testPod("p")), true},
		{nodeVolumeLimitsName, "a disk of a pod is free", testPod("p", usingClaim("claim")), podGone(testPod("x", on("n"), inlineDisk("d"))), true},
		{nodeVolumeLimitsName, "a pod without volumes is gone", testPod("p", usingClaim("claim")), podGone(testPod("x", on("n"))), false},
		{nodeVolumeLimitsName, "a volume of its driver is detached", testPod("p", inlineDisk("d")), detached("disk.csi.azure.com"), true},
		{nodeVolumeLimitsName, "a volume of another driver", testPod("p", inlineDisk("d")), detached(ebsDriver), false},
		{nodeVolumeLimitsName, "a volume of any driver, for a claim", testPod("p", usingClaim("claim")), detached(ebsDriver), true},
		{nodeVolumeLimitsName, "a volume, for a pod without any", testPod("p"), detached(ebsDriver), false},
		{volumeBindingName, "a node's drivers", testPod("p", usingClaim("claim")), object(CSINodeResource, Add, &storagev1.CSINode{}), true},
		{volumeBindingName, "a kind has moved to a driver", testPod("p", usingClaim("claim")), Event{Resource: CSINodeResource, Action: updateOther, Old: driverLimit("n", "x", 1, ""), New: driverLimit("n", "x", 1, "kubernetes.io/aws-ebs")}, true},
		{volumeBindingName, "a limit has changed", testPod("p", usingClaim("claim")), Event{Resource: CSINodeResource, Action: updateOther, Old: driverLimit("n", "x", 1, ""), New: driverLimit("n", "x", 2, "")}, false},
		{nodeResourcesFitName, "a class for what it asks", testPod("p", asks(gpu, "1")), object(DeviceClassResource, Add, classStandingFor("c", string(gpu), 0)), true},
		{nodeResourcesFitName, "a class for something else", testPod("p", asks(gpu, "1")), object(DeviceClassResource, Add, classStandingFor("c", "example.com/nic", 0)), false},
		{nodeResourcesFitName, "a class asked for by its own name", testPod("p", asks("deviceclass.resource.kubernetes.io/c", "1")), object(DeviceClassResource, Add, classStandingFor("c", "", 0)), true},
		{nodeResourcesFitName, "a class that has come to stand for it", testPod("p", asks(gpu, "1")), Event{Resource: DeviceClassResource, Action: updateOther, Old: classStandingFor("c", "", 0), New: classStandingFor("c", string(gpu), 0)}, true},
		{nodeResourcesFitName, "a class that stood for it before", testPod("p", asks(gpu, "1")), Event{Resource: DeviceClassResource, Action: updateOther, Old: classStandingFor("c", string(gpu), 0), New: classStandingFor("c", string(gpu), 0)}, false},
		{dynamicResourcesName, "devices became free", testPod("p", asks(gpu, "1")), Event{Resource: ResourceClaimResource, Action: Delete, Old: claimHolding("x", "n", "device-0")}, true},
		{dynamicResourcesName, "a claim without devices is gone", testPod("p", asks(gpu, "1")), Event{Resource: ResourceClaimResource, Action: Delete, Old: deviceClaim("x", 1)}, false},
		{dynamicResourcesName, "devices", testPod("p", claiming("claim")), object(ResourceSliceResource, Add, deviceSlice("n", 1)), true},
		{dynamicResourcesName, "a class", testPod("p", claiming("claim")), object(DeviceClassResource, Add, &resourcev1.DeviceClass{}), true},
		{dynamicResourcesName, "a taint of devices is gone", testPod("p", claiming("claim")), Event{Resource: DeviceTaintRuleResource, Action: Delete, Old: taintRule(nil, "")}, true},
		{dynamicResourcesName, "a taint of devices came", testPod("p", claiming("claim")), object(DeviceTaintRuleResource, Add, taintRule(nil, "")), false},
	} {
		t.Run(test.rule+"/"+test.what, func(t *testing.T) {
			profile := DefaultProfile()
			q := NewQueue(map[string]*Profile{profile.Name: profile}, 0, 0)
			s := cluster(t, []*corev1.Node{testNode("n")})
			if n := asNode(test.event.New); n != nil {
				s.SetNode(n)
			}
			p := &queued{info: infoOf(t, test.pod), rules: []string{test.rule}}
			if got := q.helps(s, p, &test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}
