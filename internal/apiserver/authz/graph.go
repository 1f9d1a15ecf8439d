package authz

import (
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/kind"
)

// NodeResources are the resources whose objects a NodeGraph needs.
var NodeResources = []schema.GroupResource{
	corev1.Resource("pods"), corev1.Resource("persistentvolumes"), storagev1.Resource("volumeattachments"),
	resourcev1.Resource("resourceslices"), certificatesv1.Resource("podcertificaterequests"),
}

// relatedKind is a kind of object that can be related to a node.
type relatedKind uint8

const (
	relatedPod relatedKind = iota
	relatedAttachment
	relatedSlice
	relatedCertificateRequest
	relatedSecret
	relatedConfigMap
	relatedClaim
	relatedResourceClaim
	relatedServiceAccount
)

type related struct {
	kind            relatedKind
	namespace, name string
}

// NodeGraph relates objects to nodes: a pod to the node it is bound to; the objects a pod refers to, to the pod's node; the
// volume bound to a claim, and the secrets to mount it, to the nodes of the claim. References are counted as objects are added
// and removed, so that a query is a map lookup.
type NodeGraph struct {
	// Objects is the cache that kubelets read from. It is set before the first request; without it the graph never waits for changes.
	Objects interface {
		LastChange(resource schema.GroupResource) int64
	}
	progress graphProgress

	mu sync.RWMutex
	// nodes has the node of objects that belong to exactly one.
	nodes map[related]string
	// references has the number of references to other objects, by node.
	references map[related]map[string]int
	// pods has the references of each pod, volumes those of each bound volume.
	pods    map[related][]related
	volumes map[string]boundVolume
	// volumesByClaim has the volumes whose claimRef is the claim: normally one.
	volumesByClaim map[related]map[string]bool
	// onStep is called for every reference that is counted or looked up, so that tests can compare graphs of different sizes. It is nil
	// otherwise.
	onStep func()
}

// boundVolume is a persistent volume with a claim.
type boundVolume struct {
	claim   related
	secrets []related
}

// NewNodeGraph makes an empty graph.
func NewNodeGraph() *NodeGraph {
	return &NodeGraph{
		nodes: make(map[related]string), references: make(map[related]map[string]int),
		pods: make(map[related][]related), volumes: make(map[string]boundVolume), volumesByClaim: make(map[related]map[string]bool),
	}
}

// Set adds or updates an object of one of NodeResources. Others are ignored.
func (g *NodeGraph) Set(obj kind.Object) {
	switch obj := obj.(type) {
	case *corev1.Pod:
		g.setPod(obj)
	case *corev1.PersistentVolume:
		g.setVolume(obj)
	case *storagev1.VolumeAttachment:
		g.setNode(related{relatedAttachment, "", obj.Name}, obj.Spec.NodeName)
	case *resourcev1.ResourceSlice:
		node := ""
		if obj.Spec.NodeName != nil {
			node = *obj.Spec.NodeName
		}
		g.setNode(related{relatedSlice, "", obj.Name}, node)
	case *certificatesv1.PodCertificateRequest:
		g.setNode(related{relatedCertificateRequest, obj.Namespace, obj.Name}, string(obj.Spec.NodeName))
	}
}

// Delete removes an object.
func (g *NodeGraph) Delete(obj kind.Object) {
	switch obj := obj.(type) {
	case *corev1.Pod:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.removePod(related{relatedPod, obj.Namespace, obj.Name})
	case *corev1.PersistentVolume:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.removeVolume(obj.Name)
	case *storagev1.VolumeAttachment:
		g.setNode(related{relatedAttachment, "", obj.Name}, "")
	case *resourcev1.ResourceSlice:
		g.setNode(related{relatedSlice, "", obj.Name}, "")
	case *certificatesv1.PodCertificateRequest:
		g.setNode(related{relatedCertificateRequest, obj.Namespace, obj.Name}, "")
	}
}

// Retain removes the objects of one of NodeResources that are not listed: those that were deleted while they were not watched.
func (g *NodeGraph) Retain(resource schema.GroupResource, listed map[types.NamespacedName]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if resource == corev1.Resource("persistentvolumes") {
		for name := range g.volumes {
			if !listed[types.NamespacedName{Name: name}] {
				g.removeVolume(name)
			}
		}
		return
	}
	kind := map[schema.GroupResource]relatedKind{
		corev1.Resource("pods"): relatedPod, storagev1.Resource("volumeattachments"): relatedAttachment,
		resourcev1.Resource("resourceslices"): relatedSlice, certificatesv1.Resource("podcertificaterequests"): relatedCertificateRequest,
	}[resource]
	for id := range g.nodes {
		if id.kind == kind && !listed[types.NamespacedName{Namespace: id.namespace, Name: id.name}] {
			g.removePod(id)
		}
	}
}

func (g *NodeGraph) step() {
	if g.onStep != nil {
		g.onStep()
	}
}

// isRelated reports whether an object is related to a node.
func (g *NodeGraph) isRelated(to related, node string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	g.step()
	if to.kind <= relatedCertificateRequest {
		return g.nodes[to] == node
	}
	return g.references[to][node] > 0
}

// isVolumeRelated reports whether a volume is related to a node: it is to the nodes of its claim.
func (g *NodeGraph) isVolumeRelated(name, node string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	g.step()
	volume, ok := g.volumes[name]
	return ok && g.references[volume.claim][node] > 0
}

func (g *NodeGraph) setNode(of related, node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if node == "" {
		delete(g.nodes, of)
	} else {
		g.nodes[of] = node
	}
}

func (g *NodeGraph) setPod(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	id := related{relatedPod, pod.Namespace, pod.Name}
	var refs []related
	// A node can create mirror pods, so they must not give it access to anything.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
		refs = podReferences(pod)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nodes[id] == pod.Spec.NodeName && slices.Equal(g.pods[id], refs) {
		return
	}
	g.removePod(id)
	g.nodes[id] = pod.Spec.NodeName
	if len(refs) > 0 {
		g.pods[id] = refs
	}
	for _, to := range refs {
		g.count(to, pod.Spec.NodeName, +1)
	}
}

// removePod removes a pod, or another object that belongs to one node.
func (g *NodeGraph) removePod(id related) {
	for _, to := range g.pods[id] {
		g.count(to, g.nodes[id], -1)
	}
	delete(g.pods, id)
	delete(g.nodes, id)
}

// count adds to the references from a node to an object. A reference to a claim is also one to the secrets of its volumes.
func (g *NodeGraph) count(to related, node string, by int) {
	g.step()
	from := g.references[to]
	if from == nil {
		from = make(map[string]int, 1)
		g.references[to] = from
	}
	before := from[node]
	from[node] += by
	if from[node] == 0 {
		if delete(from, node); len(from) == 0 {
			delete(g.references, to)
		}
	}
	if to.kind != relatedClaim || (before > 0) == (before+by > 0) {
		return
	}
	for volume := range g.volumesByClaim[to] {
		for _, secret := range g.volumes[volume].secrets {
			g.count(secret, node, by)
		}
	}
}

func (g *NodeGraph) setVolume(volume *corev1.PersistentVolume) {
	g.mu.Lock()
	defer g.mu.Unlock()
	claim := volume.Spec.ClaimRef
	if claim == nil {
		g.removeVolume(volume.Name)
		return
	}
	bound := boundVolume{claim: related{relatedClaim, claim.Namespace, claim.Name}, secrets: volumeSecrets(volume)}
	if previous, ok := g.volumes[volume.Name]; ok && previous.claim == bound.claim && slices.Equal(previous.secrets, bound.secrets) {
		return
	}
	g.removeVolume(volume.Name)
	g.volumes[volume.Name] = bound
	if g.volumesByClaim[bound.claim] == nil {
		g.volumesByClaim[bound.claim] = make(map[string]bool, 1)
	}
	g.volumesByClaim[bound.claim][volume.Name] = true
	for node := range g.references[bound.claim] {
		for _, secret := range bound.secrets {
			g.count(secret, node, +1)
		}
	}
}

func (g *NodeGraph) removeVolume(name string) {
	previous, ok := g.volumes[name]
	if !ok {
		return
	}
	for node := range g.references[previous.claim] {
		for _, secret := range previous.secrets {
			g.count(secret, node, -1)
		}
	}
	delete(g.volumes, name)
	if delete(g.volumesByClaim[previous.claim], name); len(g.volumesByClaim[previous.claim]) == 0 {
		delete(g.volumesByClaim, previous.claim)
	}
}

// podReferences are the objects a kubelet must read to run a pod. An object occurs once per reference.
func podReferences(pod *corev1.Pod) []related {
	var found []related
	add := func(kind relatedKind, name string) {
		if name != "" {
			found = append(found, related{kind, pod.Namespace, name})
		}
	}
	spec := &pod.Spec
	add(relatedServiceAccount, spec.ServiceAccountName)
	for _, secret := range spec.ImagePullSecrets {
		add(relatedSecret, secret.Name)
	}
	for i := range spec.InitContainers {
		environmentReferences(spec.InitContainers[i].EnvFrom, spec.InitContainers[i].Env, add)
	}
	for i := range spec.Containers {
		environmentReferences(spec.Containers[i].EnvFrom, spec.Containers[i].Env, add)
	}
	for i := range spec.EphemeralContainers {
		environmentReferences(spec.EphemeralContainers[i].EnvFrom, spec.EphemeralContainers[i].Env, add)
	}
	for i := range spec.Volumes {
		volumeReferences(&spec.Volumes[i].VolumeSource, add)
		if spec.Volumes[i].Ephemeral != nil && spec.Volumes[i].PersistentVolumeClaim == nil {
			add(relatedClaim, ephemeral.VolumeClaimName(pod, &spec.Volumes[i]))
		}
	}
	for i := range spec.ResourceClaims {
		// A claim that has not been created yet, or never will be, has no name.
		if name, _, err := resourceclaim.Name(pod, &spec.ResourceClaims[i]); err == nil && name != nil {
			add(relatedResourceClaim, *name)
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		add(relatedResourceClaim, extended.ResourceClaimName)
	}
	return found
}

func environmentReferences(from []corev1.EnvFromSource, env []corev1.EnvVar, add func(relatedKind, string)) {
	for i := range from {
		if from[i].SecretRef != nil {
			add(relatedSecret, from[i].SecretRef.Name)
		}
		if from[i].ConfigMapRef != nil {
			add(relatedConfigMap, from[i].ConfigMapRef.Name)
		}
	}
	for i := range env {
		source := env[i].ValueFrom
		if source == nil {
			continue
		}
		if source.SecretKeyRef != nil {
			add(relatedSecret, source.SecretKeyRef.Name)
		}
		if source.ConfigMapKeyRef != nil {
			add(relatedConfigMap, source.ConfigMapKeyRef.Name)
		}
	}
}

func volumeReferences(source *corev1.VolumeSource, add func(relatedKind, string)) {
	secret := func(ref *corev1.LocalObjectReference) {
		if ref != nil {
			add(relatedSecret, ref.Name)
		}
	}
	switch {
	case source.Secret != nil:
		add(relatedSecret, source.Secret.SecretName)
	case source.ConfigMap != nil:
		add(relatedConfigMap, source.ConfigMap.Name)
	case source.PersistentVolumeClaim != nil:
		add(relatedClaim, source.PersistentVolumeClaim.ClaimName)
	case source.Projected != nil:
		for i := range source.Projected.Sources {
			if projected := source.Projected.Sources[i].Secret; projected != nil {
				add(relatedSecret, projected.Name)
			}
			if projected := source.Projected.Sources[i].ConfigMap; projected != nil {
				add(relatedConfigMap, projected.Name)
			}
		}
	case source.AzureFile != nil:
		add(relatedSecret, source.AzureFile.SecretName)
	case source.CephFS != nil:
		secret(source.CephFS.SecretRef)
	case source.Cinder != nil:
		secret(source.Cinder.SecretRef)
	case source.FlexVolume != nil:
		secret(source.FlexVolume.SecretRef)
	case source.RBD != nil:
		secret(source.RBD.SecretRef)
	case source.ScaleIO != nil:
		secret(source.ScaleIO.SecretRef)
	case source.ISCSI != nil:
		secret(source.ISCSI.SecretRef)
	case source.StorageOS != nil:
		secret(source.StorageOS.SecretRef)
	case source.CSI != nil:
		secret(source.CSI.NodePublishSecretRef)
	}
}

// volumeSecrets are the secrets a kubelet needs to mount a volume. References without a namespace mean the claim's, except in
// volume sources whose references always have one. Secrets that only controllers need are not included.
func volumeSecrets(volume *corev1.PersistentVolume) []related {
	var found []related
	add := func(namespace, name string) {
		if name != "" {
			found = append(found, related{relatedSecret, namespace, name})
		}
	}
	claimNamespace := volume.Spec.ClaimRef.Namespace
	addRef := func(ref *corev1.SecretReference, namespace string) {
		if ref == nil {
			return
		}
		if ref.Namespace != "" {
			namespace = ref.Namespace
		}
		add(namespace, ref.Name)
	}
	source := &volume.Spec.PersistentVolumeSource
	switch {
	case source.AzureFile != nil:
		if source.AzureFile.SecretNamespace != nil && *source.AzureFile.SecretNamespace != "" {
			claimNamespace = *source.AzureFile.SecretNamespace
		}
		add(claimNamespace, source.AzureFile.SecretName)
	case source.CephFS != nil:
		addRef(source.CephFS.SecretRef, claimNamespace)
	case source.Cinder != nil:
		addRef(source.Cinder.SecretRef, "")
	case source.FlexVolume != nil:
		addRef(source.FlexVolume.SecretRef, claimNamespace)
	case source.RBD != nil:
		addRef(source.RBD.SecretRef, claimNamespace)
	case source.ScaleIO != nil:
		addRef(source.ScaleIO.SecretRef, claimNamespace)
	case source.ISCSI != nil:
		addRef(source.ISCSI.SecretRef, claimNamespace)
	case source.StorageOS != nil:
		if source.StorageOS.SecretRef != nil {
			add(source.StorageOS.SecretRef.Namespace, source.StorageOS.SecretRef.Name)
		}
	case source.CSI != nil:
		addRef(source.CSI.NodePublishSecretRef, "")
		addRef(source.CSI.NodeStageSecretRef, "")
		addRef(source.CSI.NodeExpandSecretRef, "")
	}
	return found
}
