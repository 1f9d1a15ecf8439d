package differential

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const csiDriver, ebsDriver = "csi.example.com", "ebs.csi.aws.com"

// newStorageCluster is a random cluster where only volumes and devices constrain pods: of every kind, valid and invalid.
func newStorageCluster(seed uint64) *randomCluster {
	w := &randomCluster{random: rand.New(rand.NewPCG(seed, 73)), exclusiveClaims: map[string]int{}}
	w.others = append(w.others, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	for i := range 2 + w.random.IntN(4) {
		w.nodes = append(w.nodes, w.storageNode(i))
	}
	w.classes()
	w.drivers()
	for i := range 4 + w.random.IntN(8) {
		w.anyVolume(i)
	}
	for i := range 4 + w.random.IntN(6) {
		w.anyClaim(i)
	}
	w.addDevices()
	for i := range w.random.IntN(3 * len(w.nodes)) {
		p := w.storagePod(fmt.Sprintf("running-%d", i), false)
		p.Spec.NodeName = w.nodes[w.random.IntN(len(w.nodes))].Name
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &metav1.Time{Time: time.Unix(1700000000+int64(i), 0)}
		w.pods = append(w.pods, p)
	}
	return w
}

func (w *randomCluster) storageNode(i int) *corev1.Node {
	name := fmt.Sprintf("n%02d", i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelHostname: name}},
		Status:     corev1.NodeStatus{Allocatable: quantities("cpu", "8", "memory", "16Gi", "pods", "30"), Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	switch w.random.IntN(4) {
	case 0:
		n.Labels[corev1.LabelFailureDomainBetaZone], n.Labels[corev1.LabelFailureDomainBetaRegion] = w.pick("z1", "z2"), w.pick("r1", "r2")
	case 1, 2:
		n.Labels[corev1.LabelTopologyZone] = w.pick("z1", "z2")
		if w.oneIn(2) {
			n.Labels[corev1.LabelTopologyRegion] = w.pick("r1", "r2")
		}
	}
	if w.oneIn(2) {
		n.Labels["topology.ebs.csi.aws.com/zone"] = w.pick("z1", "z2")
	}
	for _, r := range []string{"example.com/gpu", "example.com/nic"} {
		if w.oneIn(3) {
			n.Status.Allocatable[corev1.ResourceName(r)] = resource.MustParse(w.pick("0", "1", "4"))
		}
	}
	n.Status.Capacity = n.Status.Allocatable
	return n
}

func (w *randomCluster) classes() {
	for _, c := range [][2]string{{"late", csiDriver}, {"static", "kubernetes.io/no-provisioner"}, {"old", "kubernetes.io/aws-ebs"}, {"sphere", "kubernetes.io/vsphere-volume"}, {"now", csiDriver}} {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		if c[0] == "now" {
			mode = storagev1.VolumeBindingImmediate
		}
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: c[0]}, Provisioner: c[1], VolumeBindingMode: &mode}
		if w.oneIn(40) {
			class.VolumeBindingMode = nil
		}
		if w.oneIn(3) {
			class.AllowedTopologies = []corev1.TopologySelectorTerm{{}, {MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: w.pick(corev1.LabelTopologyZone, corev1.LabelHostname), Values: []string{"z1", "n00"}}}}}
		}
		if !w.oneIn(20) {
			w.others = append(w.others, class)
		}
	}
}

// drivers creates CSINodes, CSIDrivers and CSIStorageCapacities.
func (w *randomCluster) drivers() {
	if !w.oneIn(3) {
		driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csiDriver}}
		if w.oneIn(2) {
			driver.Spec.StorageCapacity = ptr.To(!w.oneIn(4))
		}
		if w.oneIn(3) {
			driver.Spec.PreventPodSchedulingIfMissing = ptr.To(!w.oneIn(3))
		}
		w.others = append(w.others, driver)
	}
	for _, zone := range []string{"z1", "z2"} {
		c := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "capacity-" + zone}, StorageClassName: "late", NodeTopology: selects(corev1.LabelTopologyZone, zone)}
		if !w.oneIn(6) {
			c.Capacity = ptr.To(resource.MustParse(w.pick("500Mi", "1Gi", "4Gi", "20Gi")))
		}
		if w.oneIn(3) && c.Capacity != nil {
			c.MaximumVolumeSize = ptr.To(resource.MustParse(w.pick("1Gi", "3Gi")))
		}
		if w.oneIn(8) {
			c.NodeTopology = nil
		}
		w.others = append(w.others, c)
	}
	for _, n := range w.nodes {
		if w.oneIn(4) {
			continue
		}
		csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{}}}
		if w.oneIn(2) {
			csi.Annotations[corev1.MigratedPluginsAnnotationKey] = w.pick("kubernetes.io/aws-ebs", "kubernetes.io/gce-pd,kubernetes.io/aws-ebs", "kubernetes.io/vsphere-volume")
		}
		for _, name := range []string{csiDriver, ebsDriver, "disk.csi.azure.com", "csi.vsphere.vmware.com", "pd.csi.storage.gke.io"} {
			if w.oneIn(3) {
				continue
			}
			driver := storagev1.CSINodeDriver{Name: name, NodeID: n.Name}
			if !w.oneIn(4) {
				driver.Allocatable = &storagev1.VolumeNodeResources{}
				if !w.oneIn(5) {
					driver.Allocatable.Count = ptr.To(int32(w.random.IntN(4)))
				}
			}
			csi.Spec.Drivers = append(csi.Spec.Drivers, driver)
		}
		w.others = append(w.others, csi)
	}
}

func (w *randomCluster) anyVolume(i int) {
	name := fmt.Sprintf("pv-%d", i)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"kind": w.pick("fast", "slow")}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: w.pick("late", "static", "static", "old"), Capacity: quantities("storage", w.pick("1Gi", "2Gi", "3Gi", "10Gi")), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.PersistentVolumePhase(w.pick("Available", "Available", "Available", "Released", "Bound"))},
	}
	switch w.random.IntN(6) {
	case 0, 1:
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: w.pick("h1", "h2", name)}
	case 2:
		pv.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: w.pick("vol-1", "vol-2", "aws://z1/vol-1")}
	case 3:
		pv.Spec.AzureDisk = &corev1.AzureDiskVolumeSource{DiskName: name, DataDiskURI: name}
	case 4:
		pv.Spec.VsphereVolume = &corev1.VsphereVirtualDiskVolumeSource{VolumePath: name}
	case 5:
		pv.Spec.NFS = &corev1.NFSVolumeSource{Server: "s", Path: "/"}
	}
	switch w.random.IntN(4) {
	case 0:
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: w.pick(corev1.LabelTopologyZone, corev1.LabelHostname), Operator: corev1.NodeSelectorOperator(w.pick("In", "NotIn")), Values: []string{"z1", "n00"}}}}}}}
	case 1:
		pv.Labels[w.pick(corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaRegion)] = w.pick("z1", "z1__z2", "z2__", "r1", "r1__r2")
	}
	if w.oneIn(10) {
		pv.DeletionTimestamp = &metav1.Time{Time: time.Unix(1700000000, 0)}
		pv.Finalizers = []string{"kubernetes.io/pv-protection"}
	}
	if w.oneIn(8) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: fmt.Sprintf("claim-%d", w.random.IntN(8))}
	}
	w.others = append(w.others, pv)
	if w.oneIn(4) {
		w.others = append(w.others, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attachment-" + name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.pick(csiDriver, ebsDriver), NodeName: w.nodes[w.random.IntN(len(w.nodes))].Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}})
	}
}

func (w *randomCluster) anyClaim(i int) {
	w.claimNamed(fmt.Sprintf("claim-%d", i))
	w.claims = append(w.claims, fmt.Sprintf("claim-%d", i))
}

// claimNamed creates a claim that may be bound, pending, lost or inconsistent.
func (w *randomCluster) claimNamed(name string, owners ...metav1.OwnerReference) {
	class := w.pick("late", "static", "late", "static", "old", "sphere", "now", "unknown", "")
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Annotations: map[string]string{}, OwnerReferences: owners},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(w.pick("ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"))},
			Resources: corev1.VolumeResourceRequirements{Requests: quantities("storage", w.pick("1Gi", "2Gi", "3Gi"))}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if w.oneIn(5) {
		claim.Spec.Selector = selects("kind", "fast")
	}
	switch w.random.IntN(10) {
	case 0, 1, 2, 3:
		claim.Spec.VolumeName, claim.Annotations["pv.kubernetes.io/bind-completed"] = fmt.Sprintf("pv-%d", w.random.IntN(12)), "yes"
		claim.Status.Phase = corev1.ClaimBound
	case 4:
		if w.oneIn(3) {
			claim.Spec.VolumeName = "pv-1"
		}
	case 5:
		claim.Annotations["volume.kubernetes.io/selected-node"] = w.nodes[w.random.IntN(len(w.nodes))].Name
	}
	switch w.random.IntN(30) {
	case 0:
		claim.Status.Phase = corev1.ClaimLost
	case 1:
		claim.DeletionTimestamp, claim.Finalizers = &metav1.Time{Time: time.Unix(1700000000, 0)}, []string{"kubernetes.io/pvc-protection"}
	case 2:
		delete(claim.Spec.Resources.Requests, "storage")
	}
	if claim.Spec.AccessModes[0] == corev1.ReadWriteOncePod {
		w.exclusiveClaims[name] = 0
	}
	if !w.oneIn(25) {
		w.others = append(w.others, claim)
	}
}

func (w *randomCluster) storagePod(name string, isNew bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Priority: ptr.To(int32(w.random.IntN(3))), Containers: []corev1.Container{{Name: "c", Image: "pause"}}},
	}
	if isNew {
		p.Spec.Priority = ptr.To(int32(10)) // it may preempt others
	}
	add := func(source corev1.VolumeSource) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", len(p.Spec.Volumes)), VolumeSource: source})
	}
	for range w.random.IntN(3) {
		switch w.random.IntN(8) {
		case 0, 1, 2, 3:
			w.useClaim(p, isNew)
		case 4:
			add(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: w.pick("vol-1", "vol-2", "vol-3", "aws://z1/vol-1", "aws:///bad/")}})
		case 5:
			add(corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: w.pick("d1", "d2"), ReadOnly: w.oneIn(2)}})
		case 6:
			add(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: []string{w.pick("m1", "m2"), w.pick("m2", "m3")}, RBDImage: w.pick("i1", "i2"), RBDPool: "p", ReadOnly: w.oneIn(2)}})
		case 7:
			if w.oneIn(2) {
				add(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: w.pick("q1", "q2"), ReadOnly: w.oneIn(2)}})
				continue
			}
			add(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}})
			if !isNew || !w.oneIn(4) {
				owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID, Controller: ptr.To(true)}
				if isNew && w.oneIn(6) {
					owner.UID = "another"
				}
				w.claimNamed(name+"-"+p.Spec.Volumes[len(p.Spec.Volumes)-1].Name, owner)
			}
		}
	}
	if isNew && w.oneIn(2) {
		w.useDevices(p)
	}
	return p
}

// addDevices creates devices of single nodes and of all, classes with extended resource names, and claims in every state.
func (w *randomCluster) addDevices() {
	for i, name := range []string{"gpu", "nic", "spare"} {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1700000000+int64(w.random.IntN(2)), 0)}}
		if w.oneIn(3) {
			class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["example.com"].model == "large"`}}}
		}
		if w.oneIn(2) {
			class.Spec.ExtendedResourceName = ptr.To([]string{"example.com/gpu", "example.com/nic", "example.com/gpu"}[i])
		}
		if !w.oneIn(12) {
			w.others = append(w.others, class)
		}
	}
	for i, n := range w.nodes {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + n.Name}, Spec: resourcev1.ResourceSliceSpec{Driver: "example.com", Pool: resourcev1.ResourcePool{Name: n.Name, ResourceSliceCount: 1}}}
		switch {
		case w.oneIn(4):
			continue
		case i == 0 && w.oneIn(3):
			slice.Spec.AllNodes = ptr.To(true)
		case w.oneIn(6):
			slice.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}}}}
		default:
			slice.Spec.NodeName = ptr.To(n.Name)
		}
		if w.oneIn(10) {
			slice.Spec.Pool.ResourceSliceCount = 2
		}
		for i := range 1 + w.random.IntN(3) {
			device := resourcev1.Device{Name: fmt.Sprintf("device-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To(w.pick("small", "large"))}}}
			if w.oneIn(6) {
				device.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			}
			slice.Spec.Devices = append(slice.Spec.Devices, device)
		}
		w.others = append(w.others, slice)
	}
	for i := range 5 {
		w.anyDeviceClaim(fmt.Sprintf("device-claim-%d", i))
	}
}

func (w *randomCluster) anyDeviceClaim(name string, owners ...metav1.OwnerReference) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), OwnerReferences: owners}}
	class := func() string { return w.pick("gpu", "gpu", "nic", "spare") }
	request := resourcev1.DeviceRequest{Name: "r"}
	if w.oneIn(2) {
		request.Exactly = &resourcev1.ExactDeviceRequest{DeviceClassName: class(), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(1 + w.random.IntN(2))}
		if w.oneIn(6) {
			request.Exactly.AllocationMode, request.Exactly.Count = resourcev1.DeviceAllocationModeAll, 0
		}
	} else {
		for i := range 1 + w.random.IntN(3) {
			sub := resourcev1.DeviceSubRequest{Name: fmt.Sprintf("s%d", i), DeviceClassName: class(), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(3 - i)}
			if w.oneIn(2) {
				sub.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["example.com"].model == "large"`}}}
			}
			request.FirstAvailable = append(request.FirstAvailable, sub)
		}
	}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{request}
	if w.oneIn(3) {
		n := w.nodes[w.random.IntN(len(w.nodes))].Name
		result := resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "example.com", Pool: n, Device: "device-0"}
		if request.Exactly == nil {
			result.Request = "r/s0"
		}
		if w.oneIn(4) {
			result.BindingConditions, result.BindingFailureConditions = []string{"Attached"}, []string{"Broken"}
			if w.oneIn(2) {
				claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "example.com", Pool: n, Device: "device-0", Conditions: []metav1.Condition{{Type: w.pick("Attached", "Broken"), Status: metav1.ConditionTrue}}}}
			}
		}
		allocation := &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{result}}, AllocationTimestamp: &metav1.Time{Time: time.Now().Add(-time.Duration(w.random.IntN(20)) * time.Minute)}}
		if !w.oneIn(3) {
			allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n}}}}}}
		}
		claim.Status.Allocation = allocation
	}
	if w.oneIn(20) {
		claim.DeletionTimestamp, claim.Finalizers = &metav1.Time{Time: time.Unix(1700000000, 0)}, []string{resourcev1.Finalizer}
	}
	if !w.oneIn(20) {
		w.others = append(w.others, claim)
	}
	w.devices = append(w.devices, name)
}

// useDevices makes a pod request devices: by claims, by claim templates, or by extended resources.
func (w *randomCluster) useDevices(p *corev1.Pod) {
	for i := range w.random.IntN(3) {
		reference := corev1.PodResourceClaim{Name: fmt.Sprintf("d%d", i)}
		switch name := w.pick(w.devices...); {
		case !w.oneIn(4):
			reference.ResourceClaimName = &name
		default:
			reference.ResourceClaimTemplateName = ptr.To("template")
			made := p.Name + "-" + reference.Name
			status := corev1.PodResourceClaimStatus{Name: reference.Name}
			if !w.oneIn(6) {
				status.ResourceClaimName = &made
			}
			if !w.oneIn(6) {
				p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, status)
			}
			owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(!w.oneIn(8))}
			devices := w.devices
			w.anyDeviceClaim(made, owner)
			w.devices = devices
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, reference)
	}
	for range w.random.IntN(3) {
		c := &p.Spec.Containers[0]
		if w.oneIn(4) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: fmt.Sprintf("i%d", len(p.Spec.InitContainers)), Image: "pause"})
			c = &p.Spec.InitContainers[len(p.Spec.InitContainers)-1]
			if w.oneIn(2) {
				c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			}
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		name := corev1.ResourceName(w.pick("example.com/gpu", "example.com/nic", "deviceclass.resource.kubernetes.io/gpu", "example.com/nobody"))
		c.Resources.Requests[name] = resource.MustParse(w.pick("0", "1", "1", "2"))
		c.Resources.Limits = c.Resources.Requests
	}
	if w.oneIn(12) {
		w.others = append(w.others, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.Name + "-extended-resources-x", UID: types.UID(p.Name + "-x"),
			Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}},
		}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}}}})
	}
}
