package admission

import (
	"context"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/diff"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/container"
	"skiff/internal/kind"
)

// nodeRestriction limits the writes of a node to its own Node, lease and CSINode, to the pods bound to it and the tokens of those
// pods, so that a compromised node cannot change others. Upstream disables it by default, and installers enable it; skiff enables
// it by default.
type nodeRestriction struct {
	client     lazyClient
	authorizer authz.Authorizer
}

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

func (*nodeRestriction) Name() string { return "NodeRestriction" }

// Handles writes of nodes, which are recognised by user name and group.
func (*nodeRestriction) Handles(a *Attributes) bool {
	return a.Operation != Connect && strings.HasPrefix(a.User.Username, nodeUserPrefix) && slices.Contains(a.User.Groups, nodesGroup)
}

// nodeName is the node name of a node's user.
func nodeName(user authn.User) string { return strings.TrimPrefix(user.Username, nodeUserPrefix) }

func (r *nodeRestriction) Mutate(ctx context.Context, a *Attributes) error {
	node := nodeName(a.User)
	if node == "" {
		return forbid(a, "could not determine node from user %q", a.User.Username)
	}
	switch a.Resource.GroupResource() {
	case pods:
		switch a.Subresource {
		case "":
			return r.admitPod(ctx, a, node)
		case "status":
			return admitPodStatus(a, node)
		case "eviction":
			return r.admitEviction(ctx, a, node)
		}
		return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
	case nodes:
		return admitNode(a, node)
	case persistentVolumeClaims:
		if a.Subresource == "status" {
			return admitClaimStatus(a, node)
		}
		return forbid(a, "may only update PVC status")
	case serviceAccounts:
		return r.admitTokenRequest(ctx, a, node)
	case podCertificates:
		return r.admitPodCertificate(ctx, a, node)
	case leases:
		if a.Namespace != corev1.NamespaceNodeLease {
			return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
		}
		if writtenName(a) != node {
			return forbid(a, "can only access node lease with the same name as the requesting node")
		}
	case csiNodes:
		return admitCSINode(a, node)
	case resourceSlices:
		return admitResourceSlice(a, node)
	case signingRequests:
		return admitSigningRequest(a, node)
	}
	return nil
}

// writtenName is the name of the written object. The request of a create has no name; the object has.
func writtenName(a *Attributes) string {
	if a.Operation == Create {
		if obj, ok := a.Object.(kind.Object); ok {
			return obj.GetName()
		}
	}
	return a.Name
}

// admitPod allows nodes to create mirror pods for their static pods, and to delete pods that are bound to them.
func (r *nodeRestriction) admitPod(ctx context.Context, a *Attributes, node string) error {
	switch a.Operation {
	case Create:
		return r.admitMirrorPod(ctx, a, node)
	case Delete:
		pod, err := oldOf[*corev1.Pod](a)
		if err != nil {
			return Forbidden(a, err)
		}
		if pod.Spec.NodeName != node {
			return forbid(a, "node %q can only delete pods with spec.nodeName set to itself", node)
		}
		return nil
	}
	return forbid(a, "unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node)
}

func (r *nodeRestriction) admitMirrorPod(ctx context.Context, a *Attributes, node string) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return Forbidden(a, err)
	}
	switch {
	case !isMirror(pod):
		return forbid(a, "pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	case pod.Spec.NodeName != node:
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", node)
	case len(pod.OwnerReferences) > 1:
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", node)
	case len(pod.OwnerReferences) == 0:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	}
	owner := pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	self, err := get[*corev1.Node](ctx, r.client, nodes, "", node)
	switch {
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return forbid(a, "error looking up node %s to verify uid: %v", node, err)
	case owner.UID != self.UID:
		return forbid(a, "node %s UID mismatch: expected %s got %s", node, owner.UID, self.UID)
	}
	// The node authorizer would allow the node to read the objects that the pod refers to.
	referred, err := container.ReferredObject(&pod.Spec)
	if err != nil {
		return forbid(a, "error checking mirror pod for API references: %w", err)
	}
	if referred != "" {
		return forbid(a, "node %q can not create pods that reference %s", node, referred)
	}
	return nil
}

func admitPodStatus(a *Attributes, node string) error {
	if a.Operation != Update {
		return forbid(a, "unexpected operation %q", a.Operation)
	}
	old, err := oldOf[*corev1.Pod](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if old.Spec.NodeName != node {
		return forbid(a, "node %q can only update pod status for pods with spec.nodeName set to itself", node)
	}
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return Forbidden(a, err)
	}
	same := equality.Semantic.DeepEqual
	switch {
	case !labels.Equals(old.Labels, pod.Labels):
		return forbid(a, "node %q cannot update labels through pod status", node)
	case !same(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return forbid(a, "node %q cannot update resource claim statues", node)
	case !same(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return forbid(a, "node %q cannot update extended resource claim status", node)
	case !same(old.Status.NodeAllocatableResourceClaimStatuses, pod.Status.NodeAllocatableResourceClaimStatuses):
		return forbid(a, "node %q cannot update node allocatable resource claim statuses", node)
	}
	return nil
}

func (r *nodeRestriction) admitEviction(ctx context.Context, a *Attributes, node string) error {
	if a.Operation != Create {
		return forbid(a, "unexpected operation %s", a.Operation)
	}
	// The evicted pod is that of the path, whatever the body contains.
	if a.Name == "" {
		return forbid(a, "could not determine pod from request data")
	}
	pod, err := r.podNamed(ctx, a, a.Name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return nil
}

// podNamed gets a pod of the write's namespace. A not-found error is returned as it is.
func (r *nodeRestriction) podNamed(ctx context.Context, a *Attributes, name string) (*corev1.Pod, error) {
	pod, err := get[*corev1.Pod](ctx, r.client, pods, a.Namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		err = Forbidden(a, err)
	}
	return pod, err
}

// admitClaimStatus allows a node to report the expansion of a volume, and to change nothing else.
func admitClaimStatus(a *Attributes, node string) error {
	if a.Operation != Update {
		return forbid(a, "unexpected operation %q", a.Operation)
	}
	old, err := oldOf[*corev1.PersistentVolumeClaim](a)
	if err != nil {
		return Forbidden(a, err)
	}
	claim, err := objectOf[*corev1.PersistentVolumeClaim](a)
	if err != nil {
		return Forbidden(a, err)
	}
	old, claim = old.DeepCopy(), claim.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{old, claim} {
		c.ResourceVersion = "" // optional in an update
		c.ManagedFields = nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
	}
	if !equality.Semantic.DeepEqual(old, claim) {
		return forbid(a, "node %q is not allowed to update fields other than status.quantity and status.conditions: %v", node, diff.Diff(old, claim))
	}
	return nil
}

func admitNode(a *Attributes, name string) error {
	if own := writtenName(a); own != name {
		return forbid(a, "node %q is not allowed to modify node %q", name, own)
	}
	if !a.changes() {
		return nil
	}
	node, err := objectOf[*corev1.Node](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if a.Operation == Create {
		if node.Spec.ConfigSource != nil {
			return forbid(a, "node %q is not allowed to create pods with a non-nil configSource", name)
		}
		if bad := restrictedLabels(node.Labels, nil); len(bad) > 0 {
			return forbid(a, "node %q is not allowed to set the following labels: %s", name, strings.Join(bad, ", "))
		}
		return nil
	}
	old, err := oldOf[*corev1.Node](a)
	if err != nil {
		return Forbidden(a, err)
	}
	same := equality.Semantic.DeepEqual
	switch {
	case node.Spec.ConfigSource != nil && !same(node.Spec.ConfigSource, old.Spec.ConfigSource):
		return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", name)
	// With taints and labels a node could attract pods that are not meant for it.
	case !same(node.Spec.Taints, old.Spec.Taints):
		return forbid(a, "node %q is not allowed to modify taints", name)
	// With an owner that does not exist, the node could be deleted and register again with other labels.
	case !same(node.OwnerReferences, old.OwnerReferences):
		return forbid(a, "node %q is not allowed to modify ownerReferences", name)
	}
	if bad := restrictedLabels(node.Labels, old.Labels); len(bad) > 0 {
		return forbid(a, "is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// kubeletLabels are the labels in Kubernetes' namespaces that a node may set on itself.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable,
	corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// restrictedLabels are the changed labels that a node must not change.
func restrictedLabels(now, before map[string]string) (restricted []string) {
	check := func(key string) {
		prefix, _, qualified := strings.Cut(key, "/")
		inDomain := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
		switch {
		case !qualified:
		case inDomain(corev1.LabelNamespaceNodeRestriction):
			restricted = append(restricted, key)
		case !inDomain("kubernetes.io") && !inDomain("k8s.io"), slices.Contains(kubeletLabels, key):
		case inDomain(corev1.LabelNamespaceSuffixKubelet), inDomain(corev1.LabelNamespaceSuffixNode):
		default:
			restricted = append(restricted, key)
		}
	}
	for key, value := range now {
		if old, ok := before[key]; !ok || old != value {
			check(key)
		}
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			check(key)
		}
	}
	slices.Sort(restricted)
	return restricted
}

func admitCSINode(a *Attributes, node string) error {
	if writtenName(a) != node {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	if a.Subresource != "status" {
		return nil
	}
	if a.Operation != Update {
		return forbid(a, "unexpected operation %q", a.Operation)
	}
	old, err := oldOf[*storagev1.CSINode](a)
	if err != nil {
		return Forbidden(a, err)
	}
	obj, err := objectOf[*storagev1.CSINode](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if !equality.Semantic.DeepEqual(old.Spec, obj.Spec) {
		return forbid(a, "node %q is not allowed to modify CSINode spec via status", node)
	}
	return nil
}

// admitResourceSlice checks creation and deletion of ResourceSlices. The authorizer restricts reads and updates.
func admitResourceSlice(a *Attributes, node string) error {
	obj, verb := a.Object, "create"
	switch a.Operation {
	case Update:
		return nil
	case Delete:
		obj, verb = a.Old, "delete"
	}
	slice, err := typed[*resourcev1.ResourceSlice](obj)
	if err != nil {
		return Forbidden(a, err)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return forbid(a, "can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

// admitSigningRequest allows kubelet certificates only for the node itself.
func admitSigningRequest(a *Attributes, node string) error {
	if a.Operation != Create {
		return nil
	}
	request, err := objectOf[*certificatesv1.CertificateSigningRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if s := request.Spec.SignerName; s != certificatesv1.KubeletServingSignerName && s != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := parseRequest(request.Spec.Request)
	if err != nil {
		return forbid(a, "unable to parse csr: %w", err)
	}
	if wanted := nodeUserPrefix + node; parsed.Subject.CommonName != wanted {
		return forbid(a, "can only create a node CSR with CN=%s", wanted)
	}
	return nil
}

// authorized authorizes a verb that an administrator can grant to nodes.
func (r *nodeRestriction) authorized(ctx context.Context, a *Attributes, verb, resource, name string) (bool, error) {
	decision, _, err := r.authorizer.Authorize(ctx, &authz.Attributes{
		User: a.User, Verb: verb, Group: a.Resource.Group, Version: a.Resource.Version, Resource: resource, Namespace: a.Namespace,
		Name: name, ResourceRequest: true,
	})
	// An authorizer may return an error and still allow.
	return decision == authz.Allow, err
}
