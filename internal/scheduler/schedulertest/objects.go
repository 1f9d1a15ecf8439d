package schedulertest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// The workloads of upstream's scheduler benchmarks, without API server and binding: decide, assume, next pod.
var BenchLoads = []struct {
	Name string
	Pod  func(i int) *corev1.Pod
}{

	{"basic", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"))
	}},
	{"antiaffinity", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"), Labelled("color", "green"), WithAntiAffinity(corev1.LabelHostname, "color", "green"))
	}},
	{"affinity", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"), Labelled("color", "blue"), WithAffinity(corev1.LabelTopologyZone, "color", "blue"))
	}},
	{"preferred-affinity", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"), Labelled("color", "red"), WithPreferredAffinity(1, corev1.LabelHostname, "color", "red"))
	}},
	{"spread", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"), Labelled("color", "blue"),
			Spread(corev1.LabelTopologyZone, 5, corev1.DoNotSchedule, "color=blue"))
	}},
	{"preferred-spread", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU("100m"), RequestingMemory("500Mi"), Labelled("color", "blue"),
			Spread(corev1.LabelTopologyZone, 5, corev1.ScheduleAnyway, "color=blue"), Spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway, "color=blue"))
	}},
	{"distinct", func(i int) *corev1.Pod {
		return TestPod(fmt.Sprint("p", i), RequestingCPU(fmt.Sprintf("%dm", 100+i%1000)), RequestingMemory("500Mi"))
	}},
}

func BenchNodes(n int) []*corev1.Node {
	return TestNodes(n, func(i int) NodeOption { return Zone(fmt.Sprint("zone", i%3)) })
}

func VolumeFor(name, namespace, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "late", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim, UID: types.UID(claim)}
	}
	return pv
}

func UsingClaim(name string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

// Configuration is a configuration file with the given fields.
func Configuration(fields string) []byte {
	return []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + fields)
}

type DeviceClaimOption func(*resourcev1.ResourceClaim)

// DevicesClaim is a resource claim without requests but those of the options.
func DevicesClaim(name string, options ...DeviceClaimOption) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "10"}}
	for _, o := range options {
		o(c)
	}
	return c
}

// Exactly adds a request for devices of a class; the CEL expression may be empty.
func Exactly(request, class string, count int64, expression string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		r := resourcev1.DeviceRequest{Name: request, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}
		if expression != "" {
			r.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
}

// Alternative is a subrequest of FirstAvailable.
type Alternative struct {
	name, class string
	count       int64
	expression  string
}

// NewAlternative makes a subrequest.
func NewAlternative(name, class string, count int64, expression string) Alternative {
	return Alternative{name: name, class: class, count: count, expression: expression}
}

func FirstOf(request string, alternatives ...Alternative) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		r := resourcev1.DeviceRequest{Name: request}
		for _, a := range alternatives {
			sub := resourcev1.DeviceSubRequest{Name: a.name, DeviceClassName: a.class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: a.count}
			if a.expression != "" {
				sub.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: a.expression}}}
			}
			r.FirstAvailable = append(r.FirstAvailable, sub)
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
}

// AllocatedDevice allocates a device of a node's pool to a request.
func AllocatedDevice(request, pool, device string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		if c.Status.Allocation == nil {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: request, Driver: "example.com", Pool: pool, Device: device})
	}
}

// AllocatedNodes limits the allocation to some nodes.
func AllocatedNodes(nodes ...string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{}
		for _, n := range nodes { // a field selects one name
			c.Status.Allocation.NodeSelector.NodeSelectorTerms = append(c.Status.Allocation.NodeSelector.NodeSelectorTerms, Named(n))
		}
	}
}

// BindingCondition gives the allocated devices a binding condition, and the conditions that are true.
func BindingCondition(age time.Duration, has ...string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now().Add(-age)}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			r.BindingConditions, r.BindingFailureConditions = []string{"Attached"}, []string{"Broken"}
			status := resourcev1.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			for _, kind := range has {
				status.Conditions = append(status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Why", Message: "so"})
			}
			c.Status.Devices = append(c.Status.Devices, status)
		}
	}
}

func ReservedFor(pods ...string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
		}
	}
}

func OwnedBy(pod string) DeviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
	}
}

// ExtendedResourceClaim marks a claim as created for extended resources.
func ExtendedResourceClaim(c *resourcev1.ResourceClaim) {
	c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
}

func ClaimBeingDeleted(c *resourcev1.ResourceClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

// ClaimFromTemplate gives a pod a claim from a template: created with a name, not needed ("-"), or not created yet ("").
func ClaimFromTemplate(name, made string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: ptr.To("template")})
		switch made {
		case "":
		case "-":
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name})
		default:
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &made})
		}
	}
}

// ModelSlice is a slice of a node's devices, each of a model.
func ModelSlice(node string, models ...string) *resourcev1.ResourceSlice {
	slice := DeviceSlice(node, len(models))
	for i, m := range models {
		slice.Spec.Devices[i].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &m}}
	}
	return slice
}

func ModelIs(model string) string {
	return fmt.Sprintf(`device.attributes["example.com"].model == %q`, model)
}

func DeviceClass(name string, expressions ...string) *resourcev1.DeviceClass {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, e := range expressions {
		class.Spec.Selectors = append(class.Spec.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return class
}

func DeviceSlice(node string, devices int, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("device-", i), Taints: taints})
	}
	return slice
}

func DeviceClaim(name string, count int64, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "class", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count, Tolerations: tolerations,
		}}},
	}}}
}

func Claiming(name string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
}

func TaintRule(selector *resourcev1.DeviceTaintSelector, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: selector, Taint: resourcev1.DeviceTaint{Key: "repair", Effect: effect},
	}}
}

const Gpu = corev1.ResourceName("example.com/gpu")

// ClassForExtendedResource is a class of all devices that backs an extended resource.
func ClassForExtendedResource(name, resource string, age time.Duration) *resourcev1.DeviceClass {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	if resource != "" {
		class.Spec.ExtendedResourceName = &resource
	}
	return class
}

const EbsDriver = "ebs.csi.aws.com"

// EbsVolume is an in-tree volume, in a zone if one is given.
func EbsVolume(name, id, zone string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}},
	}}
	if zone != "" {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{Expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone)}}}
	}
	return pv
}

func InlineDisk(id string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: id, VolumeSource: corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: id, DataDiskURI: id}}})
	}
}

// CSINodeWithLimit is a CSINode with an attach limit and migrated in-tree plugins.
func CSINodeWithLimit(node, driver string, count int32, moved string) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: moved}},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, Allocatable: &storagev1.VolumeNodeResources{Count: &count}}}},
	}
}

func Started(minutesAgo int) PodOption {
	at := metav1.NewTime(time.Unix(100000, 0).Add(-time.Duration(minutesAgo) * time.Minute))
	return func(p *corev1.Pod) { p.Status.StartTime = &at }
}

// BudgetFor is a PodDisruptionBudget for the pods with a label.
func BudgetFor(allowed int32, key, value string, more ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
	for _, m := range more {
		m(b)
	}
	return b
}

// BudgetsOf returns the budgets of a list that select a pod.
func BudgetsOf(all []*policyv1.PodDisruptionBudget) func(*corev1.Pod) []*policyv1.PodDisruptionBudget {
	return func(pod *corev1.Pod) (matching []*policyv1.PodDisruptionBudget) {
		for _, b := range all {
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err == nil && !selector.Empty() && b.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
				matching = append(matching, b)
			}
		}
		return matching
	}
}

func DisruptionTarget(status corev1.ConditionStatus, reason string) PodOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason})
	}
}

func Terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(99000, 0)} }

func TerminatingByPreemption(p *corev1.Pod) {
	Terminating(p)
	DisruptionTarget(corev1.ConditionTrue, corev1.PodReasonPreemptionByScheduler)(p)
}

func NeverPreempting(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }

func WithSchedulingGates(names ...string) PodOption {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	}
}

var ToleratesAll = Tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})

const (
	PodAffinityReason          = UnresolvablePrefix + "node(s) didn't match pod affinity rules"
	PodAntiAffinityReason      = "node(s) didn't match pod anti-affinity rules"
	ExistingAntiAffinityReason = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// RequiredAffinity adds a required pod affinity term; the functions below do so for the other lists.
func RequiredAffinity(t corev1.PodAffinityTerm) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
	}
}

func RequiredAntiAffinity(t corev1.PodAffinityTerm) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
	}
}

func PreferredAffinity(weight int32, t corev1.PodAffinityTerm) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: t})
	}
}

func PreferredAntiAffinity(weight int32, t corev1.PodAffinityTerm) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: t})
	}
}

// PodTerm is an affinity term for pods with a label, in the domains of a topology key.
func PodTerm(topologyKey, key, value string, more ...func(*corev1.PodAffinityTerm)) corev1.PodAffinityTerm {
	t := PodTermOf(topologyKey, map[string]string{key: value})
	for _, m := range more {
		m(&t)
	}
	return t
}

func OfNamespaces(names ...string) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.Namespaces = names }
}

func OfNamespacesLike(selector *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.NamespaceSelector = selector }
}

func WithSelector(selector *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.LabelSelector = selector }
}

func Matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func AffinityNamespace(name string, set map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
}

const (
	OpIn, OpNotIn       = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn
	OpExists, OpAbsent  = corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist
	OpGt, OpLt          = corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt
	NoSchedule          = corev1.TaintEffectNoSchedule
	NoExecute           = corev1.TaintEffectNoExecute
	PreferNo            = corev1.TaintEffectPreferNoSchedule
	TolExists, TolEqual = corev1.TolerationOpExists, corev1.TolerationOpEqual
	NodeAffinityReason  = UnresolvablePrefix + "node(s) didn't match Pod's node affinity/selector"
	EnforcedReason      = UnresolvablePrefix + "node(s) didn't match scheduler-enforced node affinity"
	ConflictReason      = UnresolvablePrefix + "pod affinity terms conflict"
	TaintReason         = UnresolvablePrefix + "node(s) had untolerated taint(s)"
	UnschedulableReason = UnresolvablePrefix + "node(s) were unschedulable"
	OtherNodeReason     = UnresolvablePrefix + "node(s) didn't match the requested node name"
	TakenPortReason     = "node(s) didn't have free ports for the requested pod ports"
	UnschedulableTaint  = corev1.TaintNodeUnschedulable
	NotReadyTaint       = corev1.TaintNodeNotReady
)

// NodeRequirement is one requirement of a selector term.
func NodeRequirement(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// NodeTerm is a term of several label requirements.
func NodeTerm(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

// NodeFieldTerm is a term of several field requirements.
func NodeFieldTerm(fields ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: fields}
}

func PrefersNode(weight int32, term corev1.NodeSelectorTerm) PodOption {
	return func(p *corev1.Pod) {
		a := AffinityOf(p)
		if a.NodeAffinity == nil {
			a.NodeAffinity = &corev1.NodeAffinity{}
		}
		a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: weight, Preference: term})
	}
}

func Unlabelled(key string) NodeOption { return func(n *corev1.Node) { delete(n.Labels, key) } }

func Toleration(key string, operator corev1.TolerationOperator, value string, effect corev1.TaintEffect) PodOption {
	return Tolerating(corev1.Toleration{Key: key, Operator: operator, Value: value, Effect: effect})
}

const (
	FitCPU, FitMemory, FitStorage = corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage
	FitFPGA                       = corev1.ResourceName("example.com/fpga")
	FitNIC                        = corev1.ResourceName("other.org/nic")
	FitPages                      = corev1.ResourceName("hugepages-2Mi")
)

// ParseResources parses "cpu=1 memory=2Gi".
func ParseResources(text string) corev1.ResourceList {
	if text == "" {
		return nil
	}
	list := corev1.ResourceList{}
	for _, part := range strings.Fields(text) {
		name, quantity, _ := strings.Cut(part, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	return list
}

// AddContainer adds a container. The first letter of its name is the kind: c for container, i for init, s for sidecar.
func AddContainer(name, requests string) PodOption {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: ParseResources(requests)}}
		switch name[0] {
		case 's':
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			fallthrough
		case 'i':
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
}

func Overhead(text string) PodOption {
	return func(p *corev1.Pod) { p.Spec.Overhead = ParseResources(text) }
}

func PodLevelRequests(requests string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: ParseResources(requests)}
	}
}

// PodWithoutContainers has only the containers its options add.
func PodWithoutContainers(name string, options ...PodOption) *corev1.Pod {
	p := TestPod(name)
	p.Spec.Containers = nil
	for _, o := range options {
		o(p)
	}
	return p
}

const (
	SpreadHost, SpreadZone = corev1.LabelHostname, corev1.LabelTopologyZone
	SpreadHard, SpreadSoft = corev1.DoNotSchedule, corev1.ScheduleAnyway
	SkewReason             = "node(s) didn't match pod topology spread constraints"
	KeyReason              = UnresolvablePrefix + SkewReason + " (missing required label)"
)

func SpreadMinDomains(n int32) func(*corev1.TopologySpreadConstraint) {
	return func(c *corev1.TopologySpreadConstraint) { c.MinDomains = &n }
}

func SpreadPolicies(affinity, taints corev1.NodeInclusionPolicy) func(*corev1.TopologySpreadConstraint) {
	return func(c *corev1.TopologySpreadConstraint) {
		if affinity != "" {
			c.NodeAffinityPolicy = &affinity
		}
		if taints != "" {
			c.NodeTaintsPolicy = &taints
		}
	}
}

func SpreadByLabels(keys ...string) func(*corev1.TopologySpreadConstraint) {
	return func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = keys }
}

func SpreadSelector(selector *metav1.LabelSelector) func(*corev1.TopologySpreadConstraint) {
	return func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = selector }
}

// PodsOn makes a pod for each node named in the text, with unique names.
func PodsOn(text string, options ...PodOption) (pods []*corev1.Pod) {
	for _, node := range strings.Fields(text) {
		podsMade++
		pods = append(pods, TestPod(fmt.Sprintf("%s-%d", node, podsMade), append([]PodOption{OnNode(node)}, options...)...))
	}
	return pods
}

var podsMade int

// SpreadService is a Service, from which default spread constraints are derived.
func SpreadService(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
}

func SpreadOwned(apiVersion, kind, name string) PodOption {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: ptr.To(true)}}
	}
}

// UnresolvablePrefix precedes refusals that are unresolvable.
const UnresolvablePrefix = "! "

// OneOf draws a random element.
func OneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func OneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func SomeOf[T any](r *rand.Rand, most int, draw func() T) (drawn []T) {
	for range r.IntN(most + 1) {
		drawn = append(drawn, draw())
	}
	return drawn
}

// RandomLabels draws a value for some of the keys.
func RandomLabels(r *rand.Rand, keys []string, values ...string) labels.Set {
	set := labels.Set{}
	for _, key := range keys {
		if !OneIn(r, 3) {
			set[key] = OneOf(r, values...)
		}
	}
	return set
}

func InPhase(phase corev1.PodPhase) PodOption {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// CsiName is the CSI driver of the class "late", and the default of volumes.
const CsiName = "csi.example.com"

type Objects = []metav1.Object

// Verdicts are a plugin's refusals by node; feasible nodes are missing. "*" is a refusal of all nodes. Unresolvable refusals begin with
// "never", others with "no"; "error" is the error of a plugin.
type Verdicts = map[string]string

// TwoZones are nodes a in zone za and b in zone zb.
func TwoZones() []*corev1.Node {
	return []*corev1.Node{TestNode("a", Zone("za")), TestNode("b", Zone("zb"))}
}

type ClaimOption func(*corev1.PersistentVolumeClaim)

// StorageClaim is an unbound claim for 1Gi of the class "late".
func StorageClaim(name string, options ...ClaimOption) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "10"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, o := range options {
		o(c)
	}
	return c
}

func ClaimClass(name string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func ClaimSize(size string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

// ClaimBoundTo binds a claim to a volume; ClaimVolumeName only sets spec.volumeName.
func ClaimBoundTo(pv string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = pv
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
}

func ClaimVolumeName(pv string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv }
}

func ClaimAnnotation(key, value string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

func ClaimSelectedNode(node string) ClaimOption { return ClaimAnnotation(volume.AnnSelectedNode, node) }

func ClaimNamespace(namespace string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Namespace = namespace }
}

func ClaimVersion(version string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = version }
}

// ClaimOwnedBy makes a pod the claim's owner.
func ClaimOwnedBy(pod string) ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
	}
}

func ClaimLost(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }

func ClaimTerminating(c *corev1.PersistentVolumeClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

type VolumeOption func(*corev1.PersistentVolume)

// StorageVolume is an available volume of 5Gi of the class "late"; its handle is its name.
func StorageVolume(name string, options ...VolumeOption) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "10"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "late", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: CsiName, VolumeHandle: name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, o := range options {
		o(v)
	}
	return v
}

func VolumeSource(source corev1.PersistentVolumeSource) VolumeOption {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeSource = source }
}

func VolumeHandle(driver, handle string) VolumeOption {
	return VolumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}})
}

func VolumeClass(name string) VolumeOption {
	return func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = name }
}

func VolumeSize(size string) VolumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

func VolumeNodeAffinity(key string, values ...string) VolumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{Expression(key, corev1.NodeSelectorOpIn, values...)}}}
	}
}

// VolumeOnNode limits a volume to one node.
func VolumeOnNode(node string) VolumeOption { return VolumeNodeAffinity(corev1.LabelHostname, node) }

func VolumeLabel(key, value string) VolumeOption {
	return func(v *corev1.PersistentVolume) { metav1.SetMetaDataLabel(&v.ObjectMeta, key, value) }
}

// VolumeClaimRef sets spec.claimRef; without uid the volume is only reserved for a claim of that name.
func VolumeClaimRef(namespace, claim string, uid types.UID) VolumeOption {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: claim, UID: uid}
	}
}

func VolumePhase(phase corev1.PersistentVolumePhase) VolumeOption {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func VolumeTerminating(v *corev1.PersistentVolume) {
	v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

func VolumeVersion(version string) VolumeOption {
	return func(v *corev1.PersistentVolume) { v.ResourceVersion = version }
}

// WaitForConsumerClass has volumeBindingMode WaitForFirstConsumer; ImmediateClass has Immediate.
func WaitForConsumerClass(name, provisioner string, allowed ...corev1.TopologySelectorTerm) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), AllowedTopologies: allowed}
}

func ImmediateClass(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: CsiName, VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate)}
}

func ClassWithoutBindingMode(name string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: CsiName}
}

// AllowedTopology is a term of allowed topologies, given keys and values separated by commas.
func AllowedTopology(pairs ...string) (term corev1.TopologySelectorTerm) {
	for i := 0; i < len(pairs); i += 2 {
		term.MatchLabelExpressions = append(term.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: pairs[i], Values: strings.Split(pairs[i+1], ",")})
	}
	return term
}

// StorageDriver is a CSIDriver with storageCapacity and preventPodSchedulingIfMissing.
func StorageDriver(name string, tracks, must *bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{StorageCapacity: tracks, PreventPodSchedulingIfMissing: must}}
}

// StorageCapacity is the capacity for new volumes of a class in a zone. Sizes may be empty.
func StorageCapacity(name, class, zone, capacity, largest string) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, StorageClassName: class}
	if zone != "" {
		c.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: zone}}
	}
	if capacity != "" {
		c.Capacity = ptr.To(resource.MustParse(capacity))
	}
	if largest != "" {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(largest))
	}
	return c
}

// CSINodeWithDrivers is a node's CSINode. A count below 0 means no limit.
func CSINodeWithDrivers(node string, counts map[string]int32, moved ...string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if len(moved) > 0 {
		n.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: strings.Join(moved, ",")}
	}
	for name, count := range counts {
		d := storagev1.CSINodeDriver{Name: name, NodeID: node}
		if count >= 0 {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
		}
		n.Spec.Drivers = append(n.Spec.Drivers, d)
	}
	return n
}

// Attachment is a VolumeAttachment.
func Attachment(name, node, driver, pv string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node}}
	if pv != "" {
		a.Spec.Source.PersistentVolumeName = &pv
	}
	return a
}

// InlineVolumeSource gives a pod an inline volume.
func InlineVolumeSource(source corev1.VolumeSource) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "inline-" + string(rune('a'+len(p.Spec.Volumes))), VolumeSource: source})
	}
}

// UsingEphemeralVolume gives a pod a generic ephemeral volume.
func UsingEphemeralVolume(name string) PodOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}})
	}
}

func GceDisk(name string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}}
}

func EbsDisk(id string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: readOnly}}
}

func IscsiDisk(iqn string, readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: iqn, ReadOnly: readOnly}}
}

func RbdDisk(pool, image string, readOnly bool, monitors ...string) corev1.VolumeSource {
	return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: pool, RBDImage: image, ReadOnly: readOnly}}
}

func AzureDisk(uri string) corev1.VolumeSource {
	return corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: uri, DataDiskURI: uri}}
}

// BoundClaim is a claim that is bound to a volume.
func BoundClaim(name, pv string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{volume.AnnBindCompleted: "yes"}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: pv},
	}
}

// NodeWithAllocatable has exactly the given allocatable resources, and 110 pods.
func NodeWithAllocatable(name, allocatable string) *corev1.Node {
	n := TestNode(name)
	n.Status.Allocatable = ParseResources("pods=110 " + allocatable)
	return n
}

func NonZeroRequest(p map[corev1.ResourceName]int64, name corev1.ResourceName, assume bool) int64 {
	amount, named := p[name]
	if !named && assume {
		return map[corev1.ResourceName]int64{FitCPU: 100, FitMemory: 200 << 20}[name]
	}
	return amount
}

func ProfileWith(plugin, arguments string) configv1.KubeSchedulerProfile {
	c := configv1.KubeSchedulerProfile{PluginConfig: []configv1.PluginConfig{{Name: plugin}}}
	c.PluginConfig[0].Args.Raw = []byte(arguments)
	return c
}

// AllocatedClaim is a claim with some of a node's devices allocated.
func AllocatedClaim(name, node string, devices ...string) *resourcev1.ResourceClaim {
	claim := DeviceClaim(name, int64(len(devices)))
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "example.com", Pool: node, Device: d})
	}
	return claim
}
