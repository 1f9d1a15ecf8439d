package snapshot

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/resourcename"
)

// Requests that scoring assumes for containers without any, so that such pods spread too.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 * 1024 * 1024
)

// Amount is a quantity of a scalar resource.
type Amount struct {
	Resource corev1.ResourceName
	Value    int64
}

// Request is the sum of a pod's resource requests.
type Request struct {
	MilliCPU, Memory, Storage int64
	// NonZeroMilliCPU and NonZeroMemory are used for scoring: they include defaults for containers without requests.
	NonZeroMilliCPU, NonZeroMemory int64
	Extended                       []Amount // sorted by name
}

// HostPort is a host port of a container.
type HostPort struct {
	ip       string
	protocol corev1.Protocol
	port     int32
}

const anyAddress = "0.0.0.0"

// Conflicts reports whether two host ports cannot be used on the same node.
func (p HostPort) Conflicts(other HostPort) bool {
	return p.port == other.port && p.protocol == other.protocol && (p.ip == other.ip || p.ip == anyAddress || other.ip == anyAddress)
}

// PodInfo is a pod with everything the scheduler derives from it.
type PodInfo struct {
	Pod     *corev1.Pod
	Request Request
	// localKeyCache and topologyKeyCache are computed on first use: pods that have a node never need them.
	localKeyCache, topologyKeyCache string
	HostPorts                       []HostPort
	// Affinity and AntiAffinity are the required terms.
	Affinity, AntiAffinity                   []Term
	PreferredAffinity, PreferredAntiAffinity []weightedTerm
	HasVolumes                               bool
	NeedsFeatures                            bool
}

// NewPodInfo parses a pod. It fails on invalid selectors, which API validation rejects.
func NewPodInfo(pod *corev1.Pod) (*PodInfo, error) {
	p := &PodInfo{Pod: pod, Request: PodRequests(pod, pod.Spec.NodeName != ""), HostPorts: HostPortsOf(pod)}
	if err := p.readAffinity(); err != nil {
		return nil, fmt.Errorf("parsing pod: %w", err)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || NeedsDiskCheck(v) || IsMigratedInline(v) {
			p.HasVolumes = true
		}
	}
	return p, nil
}

// LocalKey is equal for pods that get the same result from all plugins that depend on one node only: it covers requests, tolerations,
// node selection, host ports and images.
func (p *PodInfo) LocalKey() string {
	if p.localKeyCache == "" {
		p.localKeyCache = p.makeLocalKey()
	}
	return p.localKeyCache
}

// TopologyKey is equal for pods that get the same result from PodTopologySpread and InterPodAffinity: it covers namespace, labels,
// affinity, spread constraints and owner.
func (p *PodInfo) TopologyKey() string {
	if p.topologyKeyCache == "" {
		p.topologyKeyCache = p.makeTopologyKey()
	}
	return p.topologyKeyCache
}

func (p *PodInfo) readAffinity() (err error) {
	a := p.Pod.Spec.Affinity
	if a == nil {
		return nil
	}
	if pa := a.PodAffinity; pa != nil {
		if p.Affinity, err = termsOf(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("requiredAffinityTerms: %w", err)
		}
		if p.PreferredAffinity, err = weightedTermsOf(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferredAffinityTerms: %w", err)
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if p.AntiAffinity, err = termsOf(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("requiredAntiAffinityTerms: %w", err)
		}
		if p.PreferredAntiAffinity, err = weightedTermsOf(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("preferredAntiAffinityTerms: %w", err)
		}
	}
	return nil
}

// PodRequests returns the sum of a pod's requests. For a running pod that is being resized in place, the allocated and actual resources
// in its status are taken into account.
func PodRequests(pod *corev1.Pod, running bool) Request {
	if r, ok := PlainRequest(pod, running); ok {
		return r
	}
	options := resourcehelper.PodResourcesOptions{UseStatusResources: running, InPlacePodLevelResourcesVerticalScalingEnabled: running}
	requested := resourcehelper.PodRequests(pod, options)
	var r Request
	for name, quantity := range requested {
		switch {
		case name == corev1.ResourceCPU:
			r.MilliCPU = quantity.MilliValue()
		case name == corev1.ResourceMemory:
			r.Memory = quantity.Value()
		case name == corev1.ResourceEphemeralStorage:
			r.Storage = quantity.Value()
		case isScalarResource(name):
			r.Extended = append(r.Extended, Amount{name, quantity.Value()})
		}
	}
	slices.SortFunc(r.Extended, func(a, b Amount) int { return strings.Compare(string(a.Resource), string(b.Resource)) })
	// A pod-level request replaces the default for containers without one.
	missing := corev1.ResourceList{}
	podLevel := resourcehelper.IsPodLevelRequestsSet(pod)
	if _, has := requested[corev1.ResourceCPU]; !has || !podLevel {
		missing[corev1.ResourceCPU] = *resource.NewMilliQuantity(defaultMilliCPU, resource.DecimalSI)
	}
	if _, has := requested[corev1.ResourceMemory]; !has || !podLevel {
		missing[corev1.ResourceMemory] = *resource.NewQuantity(defaultMemory, resource.DecimalSI)
	}
	options.NonMissingContainerRequests = missing
	nonZero := resourcehelper.PodRequests(pod, options)
	r.NonZeroMilliCPU, r.NonZeroMemory = nonZero.Cpu().MilliValue(), nonZero.Memory().Value()
	return r
}

// PlainRequest is PodRequests without allocations, for the common pods without init containers, overhead, pod-level resources or resize.
func PlainRequest(pod *corev1.Pod, running bool) (r Request, ok bool) {
	spec := &pod.Spec
	if len(spec.InitContainers) > 0 || spec.Overhead != nil || spec.Resources != nil {
		return r, false
	}
	if running && hasResizeStatus(pod) {
		return r, false
	}
	for i := range spec.Containers {
		cpu, memory := int64(defaultMilliCPU), int64(defaultMemory)
		for name, quantity := range spec.Containers[i].Resources.Requests {
			// Fractions of a byte are rounded after the sum: leave those to PodRequests.
			bytes, whole := quantity.AsInt64()
			switch {
			case name == corev1.ResourceCPU:
				cpu = quantity.MilliValue()
				r.MilliCPU += cpu
			case name == corev1.ResourceMemory && whole:
				memory = bytes
				r.Memory += memory
			case name == corev1.ResourceEphemeralStorage && whole:
				r.Storage += bytes
			default:
				return r, false
			}
		}
		r.NonZeroMilliCPU += cpu
		r.NonZeroMemory += memory
	}
	return r, true
}

// hasResizeStatus reports whether a pod's status affects its effective requests.
func hasResizeStatus(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Resources != nil || c.AllocatedResources != nil {
			return true
		}
	}
	return pod.Status.Resources != nil || pod.Status.AllocatedResources != nil || resourcehelper.IsPodResizeInfeasible(pod)
}

// isScalarResource reports whether the scheduler accounts for a resource besides CPU, memory and ephemeral storage: extended resources,
// huge pages, resources with the kubernetes.io prefix and attachable volumes.
func isScalarResource(name corev1.ResourceName) bool {
	s := string(name)
	return strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, corev1.ResourceAttachableVolumesPrefix) ||
		strings.Contains(s, corev1.ResourceDefaultNamespacePrefix) || resourcename.IsExtended(name)
}

// HostPortsOf returns the host ports of a pod's containers and restartable init containers.
func HostPortsOf(pod *corev1.Pod) (ports []HostPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := HostPort{ip: p.HostIP, protocol: p.Protocol, port: p.HostPort}
			if port.ip == "" {
				port.ip = anyAddress
			}
			if port.protocol == "" {
				port.protocol = corev1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// marshaller is implemented by all API types.
type marshaller interface{ Marshal() ([]byte, error) }

// keyWriter builds keys that are equal for equivalent pods. Every part is preceded by its length, so that different pods never share a key.
type keyWriter []byte

func (k *keyWriter) text(s string) {
	*k = binary.AppendUvarint(*k, uint64(len(s)))
	*k = append(*k, s...)
}

func (k *keyWriter) number(n int64) { *k = binary.AppendVarint(*k, n) }

func (k *keyWriter) object(m marshaller) {
	// Encoding sorts maps, and it fails on nothing these types can hold.
	data, err := m.Marshal()
	if err != nil {
		panic(fmt.Sprintf("scheduler: encode part of a pod: %v", err))
	}
	k.text(string(data))
}

func (k *keyWriter) pairs(m map[string]string) {
	k.number(int64(len(m)))
	switch len(m) {
	case 0:
	case 1:
		for name, value := range m {
			k.text(name)
			k.text(value)
		}
	default:
		names := make([]string, 0, len(m))
		for name := range m {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			k.text(name)
			k.text(m[name])
		}
	}
}

func (k *keyWriter) request(r *Request) {
	for _, n := range []int64{r.MilliCPU, r.Memory, r.Storage, r.NonZeroMilliCPU, r.NonZeroMemory, int64(len(r.Extended))} {
		k.number(n)
	}
	for _, a := range r.Extended {
		k.text(string(a.Resource))
		k.number(a.Value)
	}
}

// WithoutPodLevelResources returns the pod with its pod-level resources ignored.
func (p *PodInfo) WithoutPodLevelResources() *PodInfo {
	if p.Pod.Spec.Resources == nil {
		return p
	}
	pod := *p.Pod
	pod.Spec.Resources = nil
	return &PodInfo{Pod: &pod, Request: PodRequests(&pod, false)}
}

func (p *PodInfo) makeLocalKey() string {
	spec := &p.Pod.Spec
	k := make(keyWriter, 0, 160)
	k.request(&p.Request)
	if parts := p.WithoutPodLevelResources(); parts != p {
		k.request(&parts.Request)
	}
	k.text(spec.NodeName)
	k.pairs(spec.NodeSelector)
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		k.object(spec.Affinity.NodeAffinity)
	} else {
		k.text("")
	}
	k.number(int64(len(spec.Tolerations)))
	for i := range spec.Tolerations {
		t := &spec.Tolerations[i]
		for _, part := range []string{t.Key, string(t.Operator), t.Value, string(t.Effect)} {
			k.text(part)
		}
	}
	k.number(int64(len(p.HostPorts)))
	for _, port := range p.HostPorts {
		k.text(port.ip)
		k.text(string(port.protocol))
		k.number(int64(port.port))
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		k.number(int64(len(containers)))
		for i := range containers {
			k.text(containers[i].Image)
		}
	}
	for i := range spec.Volumes {
		if spec.Volumes[i].Image != nil {
			k.text(spec.Volumes[i].Image.Reference)
		}
	}
	needed, err := RequiredFeatures(p.Pod)
	p.NeedsFeatures = err != nil || !needed.IsEmpty()
	return string(k)
}

func (p *PodInfo) makeTopologyKey() string {
	pod := p.Pod
	k := make(keyWriter, 0, 128)
	k.text(pod.Namespace)
	k.pairs(pod.Labels)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		k.text(owner.APIVersion)
		k.text(owner.Kind)
		k.text(owner.Name)
	}
	if a := pod.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		k.object(a)
	}
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		for i := range pod.Spec.TopologySpreadConstraints {
			k.object(&pod.Spec.TopologySpreadConstraints[i])
		}
	}
	// Which nodes are eligible for spreading depends on the pod's node selection and tolerations.
	k.text(p.SelectionKey())
	k.text(p.TolerationKey())
	return string(k)
}

// SelectionKey is equal for pods that select the same nodes.
func (p *PodInfo) SelectionKey() string {
	var k keyWriter
	spec := &p.Pod.Spec
	if len(spec.NodeSelector) == 0 && (spec.Affinity == nil || spec.Affinity.NodeAffinity == nil) {
		return ""
	}
	k.pairs(spec.NodeSelector)
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil && spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		k.object(spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return string(k)
}

// TolerationKey is equal for pods with the same tolerations.
func (p *PodInfo) TolerationKey() string {
	if len(p.Pod.Spec.Tolerations) == 0 {
		return ""
	}
	var k keyWriter
	for i := range p.Pod.Spec.Tolerations {
		k.object(&p.Pod.Spec.Tolerations[i])
	}
	return string(k)
}
