// Package bootstrap creates the objects that every cluster has from the start: the system namespaces and priority classes, the roles that
// nodes join with, and the service `kubernetes` with its endpoints.
package bootstrap

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api/core"
	"skiff/internal/api/scheduling"
	"skiff/internal/kind"
)

// Cluster is what the objects depend on.
type Cluster struct {
	ServiceCIDRs []netip.Prefix
	// APIServer is the address and port at which pods and nodes reach this API server.
	APIServer netip.AddrPort
	// SharesEndpoints is set if other API servers use the same store. Then the endpoints of the service `kubernetes` are not written here.
	SharesEndpoints bool
	// NodeGroup is the group of the bootstrap tokens with which nodes join, and ServerGroup of those with which servers join; empty: none can.
	NodeGroup, ServerGroup string
	// Network has the settings of the cluster's network, which nodes read before they start; nil: it is not skiff's.
	Network *corev1.ConfigMap
}

// object is one object the cluster needs.
type object struct {
	resource schema.GroupResource
	value    kind.Object
}

// EnsureObjects creates the objects and writes the server's own address into the endpoints of the service `kubernetes`. Other objects that
// exist are not changed: an administrator may have edited them.
func EnsureObjects(ctx context.Context, client kind.Client, c Cluster) error {
	var objects []object
	for _, n := range core.SystemNamespaces() {
		objects = append(objects, object{schema.GroupResource{Resource: "namespaces"}, n})
	}
	for _, p := range scheduling.SystemPriorityClasses() {
		objects = append(objects, object{schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}, p})
	}
	objects = append(objects, object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, metricsReader()},
		object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, nodeDNSReader()},
		object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, nodePolicyReader()})
	if c.ServerGroup != "" {
		objects = append(objects, object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}, serverJoiner()})
	}
	for _, b := range bindings(c.NodeGroup, c.ServerGroup) {
		objects = append(objects, object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, b})
	}
	for _, m := range nodeConfigMaps {
		objects = append(objects, object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, nodeConfigReader(m.role, m.configMap)},
			object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "rolebindings"}, nodeConfigBinding(m.role)})
	}
	if c.Network != nil {
		objects = append(objects, object{schema.GroupResource{Resource: "configmaps"}, c.Network})
	}
	for _, o := range objects {
		if err := Ensure(ctx, client, o.resource, o.value); err != nil {
			return err
		}
	}
	if err := ensureServiceCIDR(ctx, client, c); err != nil {
		return err
	}
	return ensureKubernetesService(ctx, client, c)
}

// metricsReader lets everybody who may read pods read their metrics. Upstream's metrics-server has a role of this name.
func metricsReader() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-view":  "true",
			"rbac.authorization.k8s.io/aggregate-to-edit":  "true",
			"rbac.authorization.k8s.io/aggregate-to-admin": "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
	}
}

// bindings allow hosts with a bootstrap token of the groups to join as nodes and as servers, nodes to renew their certificates without manual
// approval, and nodes to run the Service proxy and the cluster's DNS and to enforce network policies. The roles are upstream's, except the last
// three; kubeadm binds those of certificates in the same way.
func bindings(nodeGroup, serverGroup string) []*rbacv1.ClusterRoleBinding {
	var bindings []*rbacv1.ClusterRoleBinding
	for _, b := range []struct{ name, role, group string }{
		{"skiff:node-bootstrapper", "system:node-bootstrapper", nodeGroup},
		{"skiff:node-autoapprove", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", nodeGroup},
		{"skiff:node-autoapprove-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"},
		// Nodes run the service proxy and the cluster's DNS, and enforce network policies.
		{"skiff:node-proxier", "system:node-proxier", "system:nodes"},
		{nodeDNS, nodeDNS, "system:nodes"},
		{nodePolicy, nodePolicy, "system:nodes"},
		{serverJoin, serverJoin, serverGroup},
	} {
		if b.group == "" {
			continue
		}
		bindings = append(bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: b.group}},
		})
	}
	return bindings
}

// nodeDNS is the name of the roles with which nodes serve the cluster's DNS.
const nodeDNS = "skiff:node-dns"

// nodeDNSReader lets nodes read what the cluster's DNS needs besides Services and endpoints.
func nodeDNSReader() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: nodeDNS},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"get"}},
		},
	}
}

// serverJoin is the name of the role with which servers join.
const serverJoin = "skiff:server-join"

// serverJoiner lets hosts with the token of a server join as servers.
func serverJoiner() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: serverJoin},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"cluster.skiff.io"}, Resources: []string{"servers"}, Verbs: []string{"create"}}},
	}
}

// nodePolicy is the name of the role with which nodes enforce network policies.
const nodePolicy = "skiff:node-policy"

// nodePolicyReader lets nodes read what network policies depend on: the labels and addresses of all pods.
func nodePolicyReader() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: nodePolicy},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"namespaces", "pods"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list", "watch"}},
		},
	}
}

// nodeConfigMaps are the ConfigMaps that nodes read, with the roles that let them: the settings of the cluster's DNS and of its network.
var nodeConfigMaps = []struct{ role, configMap string }{{nodeDNS, "kube-dns"}, {"skiff:node-network", "skiff-network"}}

// nodeConfigReader lets nodes read a ConfigMap.
func nodeConfigReader(role, configMap string) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: role},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{configMap}, Verbs: []string{"get", "list", "watch"}},
		},
	}
}

func nodeConfigBinding(role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	}
}

// Ensure creates an object unless it exists.
func Ensure(ctx context.Context, client kind.Client, resource schema.GroupResource, obj kind.Object) error {
	_, err := client.Get(ctx, resource, obj.GetNamespace(), obj.GetName())
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, resource, obj)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s %s: %w", resource, obj.GetName(), err)
	}
	return nil
}

// ensureServiceCIDR creates the default ServiceCIDR and marks it ready.
func ensureServiceCIDR(ctx context.Context, client kind.Client, c Cluster) error {
	resource := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	now := metav1.NewTime(time.Now())
	var cidrs []string
	for _, p := range c.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	if err := Ensure(ctx, client, resource, core.NewDefaultServiceCIDR(cidrs, now)); err != nil {
		return err
	}
	_, err := client.Update(ctx, resource, "", core.DefaultServiceCIDR, func(obj kind.Object) error {
		cidr := obj.(*networkingv1.ServiceCIDR)
		if len(cidr.Status.Conditions) == 0 {
			cidr.Status.Conditions = []metav1.Condition{core.DefaultServiceCIDRReady(now)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mark the default service CIDR ready: %w", err)
	}
	return nil
}

// ensureKubernetesService creates the service `kubernetes`, its Endpoints and its EndpointSlice.
func ensureKubernetesService(ctx context.Context, client kind.Client, c Cluster) error {
	first, err := core.FirstServiceIP(c.ServiceCIDRs[0].String())
	if err != nil {
		return err
	}
	port := int32(c.APIServer.Port())
	if err := Ensure(ctx, client, schema.GroupResource{Resource: "services"}, core.NewKubernetesService(first, port)); err != nil {
		return err
	}
	// Endpoints must not be loopback addresses: a server that only listens there has none.
	if c.SharesEndpoints || c.APIServer.Addr().IsLoopback() {
		return nil
	}
	return EnsureEndpoints(ctx, client, []netip.Addr{c.APIServer.Addr()}, port)
}

// EnsureEndpoints makes servers with one port the Endpoints and the EndpointSlice of the service `kubernetes`.
func EnsureEndpoints(ctx context.Context, client kind.Client, servers []netip.Addr, port int32) error {
	endpoints := object{schema.GroupResource{Resource: "endpoints"}, core.NewKubernetesEndpoints(servers, port)}
	if err := ensureEqual(ctx, client, endpoints, func(to, from kind.Object) {
		to.(*corev1.Endpoints).Subsets = from.(*corev1.Endpoints).Subsets
	}); err != nil {
		return err
	}
	slice := object{schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, core.NewKubernetesEndpointSlice(servers, port)}
	return ensureEqual(ctx, client, slice, func(to, from kind.Object) {
		t, f := to.(*discoveryv1.EndpointSlice), from.(*discoveryv1.EndpointSlice)
		t.Endpoints, t.Ports, t.AddressType = f.Endpoints, f.Ports, f.AddressType
	})
}

// ensureEqual creates an object, or assigns the wanted fields to the one that exists.
func ensureEqual(ctx context.Context, client kind.Client, o object, assign func(to, from kind.Object)) error {
	wanted := o.value.DeepCopyObject().(kind.Object)
	if err := Ensure(ctx, client, o.resource, o.value); err != nil {
		return err
	}
	_, err := client.Update(ctx, o.resource, wanted.GetNamespace(), wanted.GetName(), func(obj kind.Object) error {
		assign(obj, wanted)
		return nil
	})
	if err != nil {
		return fmt.Errorf("update %s %s: %w", o.resource, wanted.GetName(), err)
	}
	return nil
}
