package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// ServingApprovingName is the name of the controller that approves kubelet serving certificates. It is disabled by default, since
// upstream has none: when the controllers run with another API server, the operator decides.
const ServingApprovingName = "kubelet-serving-approving-controller"

// ServingApproving approves kubelet serving certificates for the names and addresses of their own nodes.
//
// Nodes write their own addresses, so these prove little. The CA also signs the API server's certificate: a node with a
// certificate for the API server's address could impersonate it. So nothing is approved that belongs to the API server or to
// another node; only the node's own name and addresses that no other node has. Everything else requires manual approval.
//
// server are names and addresses of the API server, in addition to those of the service kubernetes.
func ServingApproving(server []string) controller.Definition {
	return controller.Definition{
		Name: ServingApprovingName, Queue: "kubelet_serving_approving", DisabledByDefault: true,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			a := &servingApprover{
				setup: s, requests: client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers),
				nodes: client.InformerFor[*corev1.Node](s.Informers), server: server,
			}
			if err := a.nodes.EnsureIndex(nodesByAddress, addressesOf); err != nil {
				return nil, fmt.Errorf("index nodes by address: %w", err)
			}
			return a, controller.WatchPrimary[*certificatesv1.CertificateSigningRequest](s)
		},
	}
}

type servingApprover struct {
	setup    *controller.Setup
	requests client.Informer[*certificatesv1.CertificateSigningRequest]
	nodes    client.Informer[*corev1.Node]
	server   []string
}

// nodesByAddress is the index of nodes by IP address.
const nodesByAddress = "address"

// addressesOf returns the IP addresses of a node.
func addressesOf(node *corev1.Node) (addresses []string) {
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); ip != nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			addresses = append(addresses, ip.String())
		}
	}
	return addresses
}

// nodesOf returns the node of a request and the nodes that have one of its addresses. The node itself is read live: it may have
// registered its addresses just now.
func (a *servingApprover) nodesOf(ctx context.Context, request *x509.CertificateRequest) (nodes []*corev1.Node, err error) {
	name := strings.TrimPrefix(request.Subject.CommonName, nodeUserPrefix)
	node, err := client.For[*corev1.Node](a.setup.Client).Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	nodes = []*corev1.Node{node}
	for _, ip := range request.IPAddresses {
		// The index exists: New added it.
		others, _ := a.nodes.ByIndex(nodesByAddress, ip.String())
		for _, other := range others {
			if other.Name != name {
				nodes = append(nodes, other)
			}
		}
	}
	return nodes, nil
}

// Sync approves one request if there is no objection.
func (a *servingApprover) Sync(ctx context.Context, key controller.Key) error {
	request, ok := a.requests.Get("", key.Name)
	if !ok || request.Spec.SignerName != certificatesv1.KubeletServingSignerName || len(request.Status.Certificate) > 0 ||
		hasCondition(request, certificatesv1.CertificateApproved) || hasCondition(request, certificatesv1.CertificateDenied) {
		return nil
	}
	parsed, err := parseRequest(request)
	if err != nil {
		return err
	}
	view := servingView{}
	if view.nodes, err = a.nodesOf(ctx, parsed); err != nil {
		return err
	}
	if view.server, err = a.serverNames(ctx); err != nil {
		return fmt.Errorf("get names of the API server: %w", err)
	}
	if objection := view.objection(request, parsed); objection != nil {
		a.setup.Events.Event(request, corev1.EventTypeWarning, "NotAutoApproved", objection.Error())
		a.setup.EnqueueAfter(key, approvalRetryDelay)
		return nil
	}
	next := request.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved",
		Message: "Auto approving kubelet serving certificate for the node's own name and addresses.",
	})
	_, err = client.For[*certificatesv1.CertificateSigningRequest](a.setup.Client).Update(ctx, next, client.WriteOptions{Subresource: "approval"})
	return err
}

// serverNames returns the names and addresses of the API server.
func (a *servingApprover) serverNames(ctx context.Context) ([]string, error) {
	names := slices.Clone(a.server)
	service, err := client.For[*corev1.Service](a.setup.Client).Get(ctx, metav1.NamespaceDefault, "kubernetes")
	if err == nil {
		names = append(names, service.Spec.ClusterIPs...)
	} else if !apierrors.IsNotFound(err) {
		return nil, err
	}
	ofService := client.Selector{Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"})}
	behind, _, err := client.For[*discoveryv1.EndpointSlice](a.setup.Client).List(ctx, metav1.NamespaceDefault, ofService)
	for _, slice := range behind {
		for _, endpoint := range slice.Endpoints {
			names = append(names, endpoint.Addresses...)
		}
	}
	return names, err
}

// servingView is the state that the decision about a serving certificate depends on.
type servingView struct {
	nodes  []*corev1.Node // the node, and those that have one of the requested addresses
	server []string
}

// objection returns why a request requires manual approval; nil if it does not.
func (v servingView) objection(request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) error {
	if err := kubeletServing(parsed, request.Spec.Usages); err != nil {
		return err
	}
	if request.Spec.Username != parsed.Subject.CommonName || !slices.Contains(request.Spec.Groups, nodesGroup) {
		return fmt.Errorf("%s requests a certificate of %s: only the node itself may", request.Spec.Username, parsed.Subject.CommonName)
	}
	name := strings.TrimPrefix(parsed.Subject.CommonName, nodeUserPrefix)
	i := slices.IndexFunc(v.nodes, func(n *corev1.Node) bool { return n.Name == name })
	if i < 0 {
		return fmt.Errorf("node %s does not exist", name)
	}
	for _, dns := range parsed.DNSNames {
		if dns != name {
			return fmt.Errorf("%q is not the node's name", dns)
		}
		if v.isServer(dns) {
			return fmt.Errorf("%q is a name of the API server", dns)
		}
	}
	for _, ip := range parsed.IPAddresses {
		switch other := v.otherWith(name, ip); {
		case !hasAddress(v.nodes[i], ip):
			return fmt.Errorf("%s is not an address that the node has registered", ip)
		case !ip.IsGlobalUnicast():
			return fmt.Errorf("%s is not a unicast address of a single host", ip)
		case v.isServer(ip.String()):
			return fmt.Errorf("%s is an address of the API server", ip)
		case other != "":
			return fmt.Errorf("%s is an address of node %s too", ip, other)
		}
	}
	return nil
}

// isServer reports whether a name or address belongs to the API server. Names of the service kubernetes match in every domain.
func (v servingView) isServer(name string) bool {
	if name == "localhost" || name == "kubernetes" || name == "kubernetes.default" || strings.HasPrefix(name, "kubernetes.default.") {
		return true
	}
	ip := net.ParseIP(name)
	return slices.ContainsFunc(v.server, func(known string) bool {
		return strings.EqualFold(known, name) || ip != nil && ip.Equal(net.ParseIP(known))
	})
}

// otherWith returns another node that has the address.
func (v servingView) otherWith(name string, ip net.IP) string {
	for _, n := range v.nodes {
		if n.Name != name && hasAddress(n, ip) {
			return n.Name
		}
	}
	return ""
}

func hasAddress(node *corev1.Node, ip net.IP) bool {
	return slices.Contains(addressesOf(node), ip.String())
}
