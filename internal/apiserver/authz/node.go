package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/apiserver/authn"
)

const (
	nodeUserPrefix = "system:node:"
	groupNodes     = "system:nodes"
)

// NodeName is the node name of a node's user: it is system:node:NAME and a member of system:nodes.
func NodeName(user *authn.User) (string, bool) {
	name, ok := strings.CutPrefix(user.Username, nodeUserPrefix)
	if !ok || !slices.Contains(user.Groups, groupNodes) {
		return "", false
	}
	return name, true
}

// Node allows nodes what kubelets need: each may read the pods bound to it and the objects these refer to, and write its own
// Node, lease and so on. For other resources all nodes have the same rules. What a node may write into an object is checked by
// the admission plugin NodeRestriction.
type Node struct {
	graph *NodeGraph
	rules *ruleSet
}

// NewNode makes the node authorizer.
func NewNode(graph *NodeGraph) *Node {
	return &Node{graph: graph, rules: compile(nodeRules())}
}

// RulesFor implements RuleResolver. What a node may do depends on objects and cannot be listed.
func (n *Node) RulesFor(_ context.Context, user authn.User, _ string) (Rules, error) {
	if _, ok := NodeName(&user); ok {
		return Rules{Incomplete: true}, errors.New("node authorizer does not support user rule resolution")
	}
	return Rules{}, nil
}

// Authorize implements Authorizer.
func (n *Node) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	node, ok := NodeName(&a.User)
	if !ok {
		return NoOpinion, "", nil
	}
	if node == "" {
		return NoOpinion, fmt.Sprintf("unknown node for user %q", a.User.Username), nil
	}
	allowed, reason := n.authorize(a, node)
	if !allowed && n.graph.catchUp(ctx) {
		allowed, reason = n.authorize(a, node)
	}
	if allowed {
		return Allow, "", nil
	}
	return NoOpinion, reason, nil
}

// authorize dispatches by resource.
func (n *Node) authorize(a *Attributes, node string) (allowed bool, reason string) {
	if a.ResourceRequest {
		switch a.Group {
		case "":
			switch a.Resource {
			case "secrets":
				return n.authorizeRead(a, node, relatedSecret)
			case "configmaps":
				return n.authorizeRead(a, node, relatedConfigMap)
			case "persistentvolumeclaims":
				return n.authorizeClaim(a, node)
			case "persistentvolumes":
				return n.authorizeGet(a, node, func() bool { return a.Namespace == "" && n.graph.isVolumeRelated(a.Name, node) })
			case "serviceaccounts":
				return n.authorizeServiceAccount(a, node)
			case "nodes":
				return authorizeNode(a, node)
			case "pods":
				return n.authorizePod(a, node)
			}
		case "storage.k8s.io":
			switch a.Resource {
			case "volumeattachments":
				return n.authorizeGet(a, node, func() bool { return n.isRelated(a, node, relatedAttachment) })
			case "csinodes":
				return authorizeCSINode(a, node)
			}
		case "resource.k8s.io":
			switch a.Resource {
			case "resourceclaims":
				return n.authorizeGet(a, node, func() bool { return n.isRelated(a, node, relatedResourceClaim) })
			case "resourceslices":
				return n.authorizeResourceSlice(a, node)
			}
		case "coordination.k8s.io":
			if a.Resource == "leases" {
				return authorizeLease(a, node)
			}
		case "certificates.k8s.io":
			if a.Resource == "podcertificaterequests" {
				return n.authorizeCertificateRequest(a, node)
			}
		}
	}
	q := newQuery(a)
	return n.rules.allows(&q), ""
}

func (n *Node) isRelated(a *Attributes, node string, kind relatedKind) bool {
	return n.graph.isRelated(related{kind, a.Namespace, a.Name}, node)
}

// authorizeRelated allows a request for a single object if it is related to the node.
func authorizeRelated(a *Attributes, node string, isRelated func() bool) (bool, string) {
	if a.Name == "" {
		return false, "No Object name found"
	}
	if !isRelated() {
		return false, fmt.Sprintf("no relationship found between node '%s' and this object", node)
	}
	return true, ""
}

func (n *Node) authorizeGet(a *Attributes, node string, isRelated func() bool) (bool, string) {
	switch {
	case a.Verb != "get":
		return false, "can only get individual resources of this type"
	case a.Subresource != "":
		return false, "cannot get subresource"
	}
	return authorizeRelated(a, node, isRelated)
}

// authorizeRead also allows list and watch of a single object.
func (n *Node) authorizeRead(a *Attributes, node string, kind relatedKind) (bool, string) {
	switch {
	case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
		return false, "can only read resources of this type"
	case a.Subresource != "":
		return false, "cannot read subresource"
	case a.Namespace == "":
		return false, "can only read namespaced object of this type"
	}
	return authorizeRelated(a, node, func() bool { return n.isRelated(a, node, kind) })
}

func (n *Node) authorizeClaim(a *Attributes, node string) (bool, string) {
	isRelated := func() bool { return n.isRelated(a, node, relatedClaim) }
	if a.Subresource != "status" {
		return n.authorizeGet(a, node, isRelated)
	}
	if a.Verb != "update" && a.Verb != "patch" {
		return false, "can only get/update/patch this type"
	}
	return authorizeRelated(a, node, isRelated)
}

// authorizeServiceAccount: kubelets read the accounts of their pods and create tokens for them.
func (n *Node) authorizeServiceAccount(a *Attributes, node string) (bool, string) {
	switch {
	case a.Verb == "get" && a.Subresource == "":
		return n.authorizeRead(a, node, relatedServiceAccount)
	case a.Verb != "create" || a.Name == "":
		return false, "can only create tokens for individual service accounts"
	case a.Subresource != "token":
		return false, "can only create token subresource of serviceaccount"
	}
	return authorizeRelated(a, node, func() bool { return n.isRelated(a, node, relatedServiceAccount) })
}

// authorizeNode compares names, so that a kubelet can read its Node before it exists.
func authorizeNode(a *Attributes, node string) (bool, string) {
	switch a.Subresource {
	case "":
		switch a.Verb {
		case "create", "update", "patch":
			return true, ""
		case "get", "list", "watch":
			switch a.Name {
			case node:
				return true, ""
			case "":
				return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
			}
			return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.Name)
		}
	case "status":
		return a.Verb == "update" || a.Verb == "patch", ""
	}
	return false, ""
}

// authorizePod: NodeRestriction limits creating and changing pods to the node's own.
func (n *Node) authorizePod(a *Attributes, node string) (bool, string) {
	switch a.Subresource {
	case "":
		isRelated := func() bool { return n.isRelated(a, node, relatedPod) }
		switch a.Verb {
		case "get":
			return authorizeRelated(a, node, isRelated)
		case "list", "watch":
			if a.selects("spec.nodeName", node) {
				return true, ""
			}
			if a.Name != "" {
				return authorizeRelated(a, node, isRelated)
			}
			return false, "can only list/watch pods with spec.nodeName field selector"
		case "create", "delete":
			return true, ""
		}
	case "status":
		return a.Verb == "update" || a.Verb == "patch", ""
	case "eviction":
		return a.Verb == "create", ""
	}
	return false, ""
}

func authorizeLease(a *Attributes, node string) (bool, string) {
	switch a.Verb {
	case "get", "create", "update", "patch", "delete":
	default:
		return false, "can only get, create, update, patch, or delete a node lease"
	}
	if a.Namespace != corev1.NamespaceNodeLease {
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if a.Verb != "create" && a.Name != node {
		return false, "can only access node lease with the same name as the requesting node"
	}
	return true, ""
}

func authorizeCSINode(a *Attributes, node string) (bool, string) {
	switch a.Subresource {
	case "":
	case "status":
		return false, "CSINode status access requires CSIVolumeHealth feature"
	default:
		return false, "cannot authorize CSINode subresources"
	}
	switch a.Verb {
	case "get", "create", "update", "patch", "delete":
	default:
		return false, "can only get, create, update, patch, or delete a CSINode"
	}
	if a.Verb != "create" && a.Name != node {
		return false, "can only access CSINode with the same name as the requesting node"
	}
	return true, ""
}

// authorizeResourceSlice: NodeRestriction checks that a new slice has the name of the node.
func (n *Node) authorizeResourceSlice(a *Attributes, node string) (bool, string) {
	if a.Subresource != "" {
		return false, "cannot authorize ResourceSlice subresources"
	}
	switch a.Verb {
	case "create":
		return true, ""
	case "get", "update", "patch", "delete":
		return authorizeRelated(a, node, func() bool { return n.isRelated(a, node, relatedSlice) })
	case "watch", "list", "deletecollection":
		if a.selects("spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

func (n *Node) authorizeCertificateRequest(a *Attributes, node string) (bool, string) {
	if a.Subresource != "" {
		return false, "nodes may not access the status subresource of PodCertificateRequests"
	}
	switch a.Verb {
	case "create":
		return true, ""
	case "get":
		return authorizeRelated(a, node, func() bool { return n.isRelated(a, node, relatedCertificateRequest) })
	case "list", "watch":
		if a.selects("spec.nodeName", node) {
			return true, ""
		}
		return false, "can only list/watch podcertificaterequests with nodeName field selector"
	}
	return false, fmt.Sprintf("nodes may not %s podcertificaterequests", a.Verb)
}
