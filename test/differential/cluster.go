package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// randomCluster is a random cluster.
type randomCluster struct {
	random          *rand.Rand
	nodes           []*corev1.Node
	pods            []*corev1.Pod // on nodes
	nominated       []*corev1.Pod // pods nominated to a node
	budgets         []*policyv1.PodDisruptionBudget
	others          []runtime.Object // namespaces, owners, volumes, devices
	claims          []string         // names of persistent volume claims
	exclusiveClaims map[string]int   // ReadWriteOncePod claims: number of pods that use them
	devices         []string         // names of resource claims
}

func newRandomCluster(seed uint64) *randomCluster {
	w := &randomCluster{random: rand.New(rand.NewPCG(seed, 37)), exclusiveClaims: map[string]int{}}
	for i := range 3 + w.random.IntN(14) {
		w.nodes = append(w.nodes, w.node(i))
	}
	w.owners()
	w.storage()
	w.deviceObjects()
	// No two pods started at the same time: upstream would select between them at random.
	order := w.random.Perm(5 * len(w.nodes))
	for i := range w.random.IntN(5 * len(w.nodes)) {
		p := w.pod(fmt.Sprintf("running-%d", i), false)
		p.Spec.NodeName = w.nodes[w.random.IntN(len(w.nodes))].Name
		p.Status.Phase = corev1.PodRunning
		p.Status.StartTime = &metav1.Time{Time: time.Unix(1700000000+int64(order[i]), 0)}
		w.removePortConflicts(p)
		w.resize(p)
		if w.oneIn(15) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1700000100, 0)}
		}
		w.pods = append(w.pods, p)
	}
	if w.oneIn(4) {
		p := w.pod("nominated", false)
		p.Status.NominatedNodeName = w.nodes[w.random.IntN(len(w.nodes))].Name
		w.nominated = append(w.nominated, p)
	}
	if w.oneIn(2) {
		w.budgets = append(w.budgets, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "budget"},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: selects("color", "green")},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(w.random.IntN(2))},
		})
	}
	return w
}

func (w *randomCluster) oneIn(n int) bool { return w.random.IntN(n) == 0 }

func (w *randomCluster) pick(all ...string) string { return all[w.random.IntN(len(all))] }

func selects(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func (w *randomCluster) node(i int) *corev1.Node {
	name := fmt.Sprintf("n%02d", i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelHostname: name, "disk": w.pick("ssd", "hdd"), "size": w.pick("1", "5", "9", "big")}},
		Status: corev1.NodeStatus{
			Allocatable: quantities("cpu", w.pick("2", "4", "8"), "memory", w.pick("4Gi", "16Gi"), "pods", w.pick("4", "12", "30"), "ephemeral-storage", "20Gi"),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if !w.oneIn(6) {
		n.Labels[corev1.LabelTopologyZone] = w.pick("z1", "z2", "z3")
		n.Labels[corev1.LabelTopologyRegion] = w.pick("r1", "r2")
	}
	if w.oneIn(15) {
		n.Labels[corev1.LabelTopologyZone] = ""
	}
	for range 2 {
		if w.oneIn(5) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: w.pick("dedicated", "other"), Value: w.pick("x", "y"), Effect: corev1.TaintEffect(w.pick("NoSchedule", "PreferNoSchedule", "NoExecute"))})
		}
	}
	if w.oneIn(3) {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{"example.com/big:1", "example.com/big@sha256:1"}, SizeBytes: 800 << 20})
	}
	if w.oneIn(3) {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{"example.com/small:latest"}, SizeBytes: 60 << 20})
	}
	if w.oneIn(3) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4")
	}
	if w.oneIn(4) {
		n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse("64Mi")
	}
	n.Status.Capacity = n.Status.Allocatable
	n.Spec.Unschedulable = w.oneIn(12)
	return n
}

// resize gives a running pod an in-place resize: its allocated resources may differ from its requests, or the resize may be
// infeasible.
func (w *randomCluster) resize(p *corev1.Pod) {
	given := func() corev1.ResourceList {
		return quantities("cpu", w.pick("100m", "700m", "1500m"), "memory", w.pick("64Mi", "1Gi"))
	}
	if w.oneIn(10) {
		c := corev1.ContainerStatus{Name: "c", AllocatedResources: given()}
		if w.oneIn(2) {
			c.Resources = &corev1.ResourceRequirements{Requests: given()}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{c}
	}
	if w.oneIn(20) {
		p.Status.AllocatedResources = given()
		if !w.oneIn(3) {
			p.Status.Resources = &corev1.ResourceRequirements{Requests: given()}
		}
	}
	if w.oneIn(20) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: w.pick(corev1.PodReasonInfeasible, corev1.PodReasonDeferred)}}
	}
}

// owners creates namespaces, services and controllers.
func (w *randomCluster) owners() {
	w.others = append(w.others,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "a"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "side", Labels: map[string]string{"team": w.pick("a", "b")}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"color": "blue"}}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set", UID: "set"}, Spec: appsv1.ReplicaSetSpec{Selector: selects("color", "red")}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set", UID: "stateful"}, Spec: appsv1.StatefulSetSpec{Selector: selects("version", "1")}},
		// It also selects pods of other owners, which the service above selects too.
		&corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set", UID: "controller"}, Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"color": "grey"}}},
	)
}

// pod returns a random pod. A new one may have more kinds of constraints than one that runs.
func (w *randomCluster) pod(name string, isNew bool) *corev1.Pod {
	color := w.pick("green", "blue", "red", "grey")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"color": color, "version": w.pick("1", "2")}},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{w.container("c")}, Priority: ptr.To(int32(w.random.IntN(4)))},
	}
	if w.oneIn(4) {
		p.Namespace = "side"
	}
	if color == "red" && w.oneIn(2) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", UID: "set", Controller: ptr.To(true)}}
	}
	if color == "blue" && w.oneIn(2) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "set", UID: "stateful", Controller: ptr.To(true)}}
		if w.oneIn(2) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ReplicationController", Name: "set", UID: "controller", Controller: ptr.To(true)}}
		}
	}
	if w.oneIn(5) {
		p.Spec.Containers = append(p.Spec.Containers, w.container("d"))
	}
	if w.oneIn(8) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, w.container("i"))
		if w.oneIn(2) {
			p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
	}
	if w.oneIn(10) {
		p.Spec.Overhead = quantities("cpu", "100m", "memory", "50Mi")
	}
	if w.oneIn(12) {
		// The containers together request no more than the pod: the API server validates that.
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources.Requests = quantities("cpu", w.pick("100m", "500m"))
		}
		p.Spec.InitContainers = nil
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: quantities("cpu", "1500m", "memory", "3Gi")}
	}
	if w.oneIn(6) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: w.pick("dedicated", "other"), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(w.pick("", "NoSchedule"))})
	}
	if w.oneIn(8) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "x"})
	}
	w.podAffinity(p, color)
	if !isNew && len(w.claims) > 0 && w.oneIn(6) {
		w.useClaim(p, false)
	}
	if isNew {
		w.constrain(p, color)
	}
	return p
}

func (w *randomCluster) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: w.pick("example.com/big:1", "example.com/small", "example.com/none:1"), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	ask := func(n int, name corev1.ResourceName, amounts ...string) {
		if w.oneIn(n) {
			c.Resources.Requests[name] = resource.MustParse(w.pick(amounts...))
		}
	}
	if !w.oneIn(4) {
		ask(1, corev1.ResourceCPU, "50m", "200m", "500m", "1", "2")
	}
	if !w.oneIn(3) {
		ask(1, corev1.ResourceMemory, "64Mi", "500Mi", "2Gi", "5Gi")
	}
	ask(10, corev1.ResourceEphemeralStorage, "1Gi", "8Gi")
	ask(10, "example.com/gpu", "1", "3")
	ask(20, "hugepages-2Mi", "16Mi", "60Mi")
	if w.oneIn(8) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.Protocol(w.pick("TCP", "UDP")), HostPort: int32(8000 + w.random.IntN(2)), HostIP: w.pick("", "0.0.0.0", "127.0.0.1")}}
	}
	return c
}

// removePortConflicts removes the host ports of a pod that another pod of its node has: no scheduler would allow them.
func (w *randomCluster) removePortConflicts(p *corev1.Pod) {
	held := map[int32]bool{}
	for _, other := range w.pods {
		if other.Spec.NodeName == p.Spec.NodeName {
			for _, c := range append(slices.Clone(other.Spec.Containers), other.Spec.InitContainers...) {
				for _, port := range c.Ports {
					held[port.HostPort] = true
				}
			}
		}
	}
	for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if held[port.HostPort] {
					containers[i].Ports = nil
				}
				held[port.HostPort] = true
			}
		}
	}
}

func (w *randomCluster) podAffinity(p *corev1.Pod, color string) {
	term := func(color string) corev1.PodAffinityTerm {
		t := corev1.PodAffinityTerm{TopologyKey: w.pick(corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion), LabelSelector: selects("color", color)}
		switch w.random.IntN(8) {
		case 4:
			t.Namespaces = []string{"side", "side"}
		case 5:
			t.LabelSelector = []*metav1.LabelSelector{nil, {}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "color", Operator: metav1.LabelSelectorOpNotIn, Values: []string{color}}}}}[w.random.IntN(3)]
		case 0:
			t.Namespaces = []string{"default", "side"}
		case 1:
			t.NamespaceSelector = selects("team", "a")
		case 2:
			t.NamespaceSelector = &metav1.LabelSelector{}
		case 3:
			// The API server merges these keys into the selector when a pod is created.
			t.MatchLabelKeys = []string{"version"}
			t.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "version", Operator: metav1.LabelSelectorOpIn, Values: []string{p.Labels["version"]}}}
		}
		return t
	}
	a := &corev1.Affinity{}
	if w.oneIn(8) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(w.pick("green", "red"))}}
	}
	if w.oneIn(8) {
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{Weight: int32(1 + w.random.IntN(50)), PodAffinityTerm: term("blue")}}
	}
	if w.oneIn(8) {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(color)}}
		if w.oneIn(3) {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, term(w.pick("green", "red")))
		}
	}
	if w.oneIn(8) {
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{
			{Weight: int32(1 + w.random.IntN(50)), PodAffinityTerm: term("grey")}, {Weight: int32(1 + w.random.IntN(50)), PodAffinityTerm: term("red")},
		}
	}
	p.Spec.Affinity = a
}

// constrain adds constraints that only apply to a pod without a node.
func (w *randomCluster) constrain(p *corev1.Pod, color string) {
	if w.oneIn(6) {
		p.Spec.NodeSelector = map[string]string{"disk": w.pick("ssd", "hdd", "tape")}
	}
	w.nodeAffinity(p)
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if w.oneIn(5) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, w.spread(p, key, color))
		}
	}
	if len(w.claims) > 0 && w.oneIn(3) {
		w.useClaim(p, true)
		if w.oneIn(3) {
			w.useClaim(p, true)
		}
	}
	if len(w.devices) > 0 && w.oneIn(6) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimName: ptr.To(w.pick(w.devices...))}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
	}
	if w.oneIn(8) {
		p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
	}
	if w.oneIn(2) {
		p.Spec.Priority = ptr.To(int32(5))
	}
	if w.oneIn(25) {
		p.Spec.NodeName = "" // as all new pods
		p.Spec.HostNetwork = true
	}
	if w.oneIn(10) {
		p.Status.NominatedNodeName = w.nodes[w.random.IntN(len(w.nodes))].Name
	}
}

func (w *randomCluster) nodeAffinity(p *corev1.Pod) {
	need := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	expressions := func(all ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: all}
	}
	var required []corev1.NodeSelectorTerm
	switch w.random.IntN(12) {
	case 0:
		required = []corev1.NodeSelectorTerm{expressions(need("size", corev1.NodeSelectorOpGt, w.pick("3", "7"))), {MatchFields: []corev1.NodeSelectorRequirement{need("metadata.name", corev1.NodeSelectorOpIn, "n02")}}}
	case 1:
		required = []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{need("metadata.name", corev1.NodeSelectorOpIn, w.pick("n01", "n02", "n99"))}}, {MatchFields: []corev1.NodeSelectorRequirement{need("metadata.name", corev1.NodeSelectorOpIn, "n00")}}}
	case 2:
		required = []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{need("metadata.name", corev1.NodeSelectorOpNotIn, "n00")}}}
	case 3:
		required = []corev1.NodeSelectorTerm{expressions(need("size", corev1.NodeSelectorOpNotIn, "1", "9"), need(corev1.LabelTopologyZone, corev1.NodeSelectorOpExists))}
	case 5:
		// Older API servers accepted such values.
		required = []corev1.NodeSelectorTerm{expressions(need("disk", corev1.NodeSelectorOpNotIn, "a tape")), expressions(need("disk", corev1.NodeSelectorOpIn, "ssd"))}
	case 4:
		required = []corev1.NodeSelectorTerm{{}, expressions(need(corev1.LabelTopologyZone, corev1.NodeSelectorOpDoesNotExist))}
	}
	affinity := &corev1.NodeAffinity{}
	if required != nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: required}
	}
	if w.oneIn(5) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 30, Preference: expressions(need("disk", corev1.NodeSelectorOpIn, "ssd"))},
			{Weight: 7, Preference: expressions(need("size", corev1.NodeSelectorOpLt, "6"))},
		}
	}
	if w.oneIn(40) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: expressions(need("disk", corev1.NodeSelectorOpIn, "a tape"))}}
	}
	p.Spec.Affinity.NodeAffinity = affinity
}

func (w *randomCluster) spread(p *corev1.Pod, key, color string) corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		TopologyKey: key, MaxSkew: int32(1 + w.random.IntN(2)), WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(w.pick("DoNotSchedule", "ScheduleAnyway")), LabelSelector: selects("color", color),
	}
	if w.oneIn(3) {
		c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor)
	}
	if w.oneIn(3) {
		c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
	}
	if w.oneIn(4) && c.WhenUnsatisfiable == corev1.DoNotSchedule {
		c.MinDomains = ptr.To(int32(1 + w.random.IntN(4)))
	}
	if w.oneIn(12) {
		c.LabelSelector = []*metav1.LabelSelector{nil, {}}[w.random.IntN(2)]
		return c
	}
	if w.oneIn(4) {
		c.MatchLabelKeys = []string{"version"}
		c.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "version", Operator: metav1.LabelSelectorOpIn, Values: []string{p.Labels["version"]}}}
	}
	return c
}

func (w *randomCluster) useClaim(p *corev1.Pod, isNew bool) {
	p.Namespace = "default"
	name := w.pick(w.claims...)
	if users, exclusiveClaims := w.exclusiveClaims[name]; exclusiveClaims && !isNew {
		if users > 0 {
			return
		}
		w.exclusiveClaims[name]++
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name {
			return
		}
	}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
}

// storage creates classes, volumes, claims and the volume limits of nodes.
func (w *randomCluster) storage() {
	if w.oneIn(3) {
		return
	}
	class := func(name string, mode storagev1.VolumeBindingMode, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
	}
	late := class("late", storagev1.VolumeBindingWaitForFirstConsumer, "example.com/csi")
	if w.oneIn(2) {
		late.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{"z1", "z2"}}}}}
	}
	w.others = append(w.others, late, class("now", storagev1.VolumeBindingImmediate, "example.com/csi"), class("static", storagev1.VolumeBindingWaitForFirstConsumer, "kubernetes.io/no-provisioner"))
	if w.oneIn(2) {
		w.others = append(w.others, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "example.com/csi"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(w.oneIn(2))}})
		for _, zone := range []string{"z1", "z2", "z3"} {
			w.others = append(w.others, &storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "capacity-" + zone}, NodeTopology: selects(corev1.LabelTopologyZone, zone),
				StorageClassName: "late", Capacity: ptr.To(resource.MustParse(w.pick("1Gi", "100Gi"))),
			})
		}
	}
	for _, n := range w.nodes {
		if w.oneIn(2) {
			w.others = append(w.others, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: "example.com/csi", NodeID: n.Name, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(1 + w.random.IntN(2)))}}}}})
		}
	}
	for i := range 4 + w.random.IntN(5) {
		w.claim(i)
	}
}

// claim creates a claim of some class, bound or not, and volumes that are or could be bound to it.
func (w *randomCluster) claim(i int) {
	name, class := fmt.Sprintf("claim-%d", i), w.pick("late", "now", "static", "static")
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(w.pick("ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"))},
			Resources: corev1.VolumeResourceRequirements{Requests: quantities("storage", w.pick("1Gi", "10Gi"))}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume-" + name, UID: types.UID("volume-" + name), Labels: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce", "ReadWriteOncePod"}, Capacity: quantities("storage", w.pick("1Gi", "20Gi")), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com/csi", VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	switch w.random.IntN(3) {
	case 0:
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{w.pick("z1", "z2"), "z3"}}}}}}}
	case 1:
		pv.Labels[corev1.LabelTopologyZone] = w.pick("z1", "z2", "z1__z3")
	}
	bound := w.oneIn(2) || class == "now"
	if bound {
		claim.Spec.VolumeName, claim.Status.Phase, pv.Status.Phase = pv.Name, corev1.ClaimBound, corev1.VolumeBound
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: name, UID: claim.UID}
	}
	if bound || !w.oneIn(3) {
		w.others = append(w.others, pv)
	}
	if !w.oneIn(20) {
		w.others = append(w.others, claim)
	}
	w.claims = append(w.claims, name)
	if claim.Spec.AccessModes[0] == corev1.ReadWriteOncePod {
		w.exclusiveClaims[name] = 0
	}
}

// deviceObjects creates devices on nodes and claims of them.
func (w *randomCluster) deviceObjects() {
	if !w.oneIn(3) {
		return
	}
	w.others = append(w.others, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "example.com"`}}}}})
	for _, n := range w.nodes {
		if w.oneIn(2) {
			continue
		}
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + n.Name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "example.com", NodeName: ptr.To(n.Name), Pool: resourcev1.ResourcePool{Name: n.Name, ResourceSliceCount: 1},
		}}
		for i := range 1 + w.random.IntN(3) {
			device := resourcev1.Device{Name: fmt.Sprintf("device-%d", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To(w.pick("small", "large"))}}}
			if w.oneIn(6) {
				device.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			}
			slice.Spec.Devices = append(slice.Spec.Devices, device)
		}
		w.others = append(w.others, slice)
	}
	if w.oneIn(2) {
		rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"}, Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{}, Taint: resourcev1.DeviceTaint{Key: "repair", Effect: resourcev1.DeviceTaintEffect(w.pick("NoSchedule", "NoExecute", "None"))},
		}}
		switch w.random.IntN(3) {
		case 0:
			rule.Spec.DeviceSelector.Pool = ptr.To(w.nodes[w.random.IntN(len(w.nodes))].Name)
		case 1:
			rule.Spec.DeviceSelector.Driver, rule.Spec.DeviceSelector.Device = ptr.To("example.com"), ptr.To("device-0")
		case 2:
			rule.Spec.DeviceSelector.Driver = ptr.To("another.example.com")
		}
		w.others = append(w.others, rule)
	}
	for i := range 3 {
		name := fmt.Sprintf("device-claim-%d", i)
		request := resourcev1.DeviceRequest{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: w.pick("gpu", "gpu", "gpu", "unknown"), AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(1 + w.random.IntN(2))}}
		if w.oneIn(2) {
			request.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["example.com"].model == "large"`}}}
		}
		if w.oneIn(3) {
			request.Exactly.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists}}
		}
		w.others = append(w.others, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request}}}})
		w.devices = append(w.devices, name)
	}
}
