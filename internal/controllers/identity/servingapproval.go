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

// ServingApprovingName is the name of the controller that approves what kubelets serve with. It is off by default, as upstream has none:
// whoever runs the controllers alone, with another server, decides.
const ServingApprovingName = "kubelet-serving-approving-controller"

// ServingApproving approves the certificates that kubelets serve with, for the names and addresses of their own nodes.
//
// A node writes its addresses itself, so they prove little. The authority that signs here signs for the API server too: a node that got
// a certificate for the API server's address could stand in for it. Hence nothing is approved that the API server is known by, or
// another node; what is left is the node's own name and addresses that nothing else claims. The rest is for a person to approve.
//
// server has names and addresses of the API server, besides those of the service kubernetes.
func ServingApproving(server []string) controller.Definition {
	return controller.Definition{
		Name: ServingApprovingName, Queue: "kubelet_serving_approving", DisabledByDefault: true,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			a := &servingApprover{setup: s, requests: client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers), server: server}
			return a, controller.WatchPrimary[*certificatesv1.CertificateSigningRequest](s)
		},
	}
}

type servingApprover struct {
	setup    *controller.Setup
	requests client.Informer[*certificatesv1.CertificateSigningRequest]
	server   []string
}

// Sync approves one request, if it may be.
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
	// Read, not watched: requests are few, and the node may have registered its addresses a moment ago.
	if view.nodes, _, err = client.For[*corev1.Node](a.setup.Client).List(ctx, "", client.Selector{}); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	if view.server, err = a.serverNames(ctx); err != nil {
		return fmt.Errorf("find out what the API server is known by: %w", err)
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

// serverNames are the names and addresses of the API server.
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

// servingView is what a decision about a serving certificate is made from.
type servingView struct {
	nodes  []*corev1.Node
	server []string
}

// objection is why a request is not approved without a person; nil when it may be.
func (v servingView) objection(request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) error {
	if err := kubeletServing(parsed, request.Spec.Usages); err != nil {
		return err
	}
	if request.Spec.Username != parsed.Subject.CommonName || !slices.Contains(request.Spec.Groups, nodesGroup) {
		return fmt.Errorf("%s asks for a certificate of %s: only the node itself may", request.Spec.Username, parsed.Subject.CommonName)
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
			return fmt.Errorf("%s is not an address of one machine alone", ip)
		case v.isServer(ip.String()):
			return fmt.Errorf("%s is an address of the API server", ip)
		case other != "":
			return fmt.Errorf("%s is an address of node %s too", ip, other)
		}
	}
	return nil
}

// isServer reports whether the API server is known by a name or address. Names of the service kubernetes count in every domain, for nothing
// else may look like it.
func (v servingView) isServer(name string) bool {
	if name == "localhost" || name == "kubernetes" || name == "kubernetes.default" || strings.HasPrefix(name, "kubernetes.default.") {
		return true
	}
	ip := net.ParseIP(name)
	return slices.ContainsFunc(v.server, func(known string) bool {
		return strings.EqualFold(known, name) || ip != nil && ip.Equal(net.ParseIP(known))
	})
}

// otherWith is another node that has registered the address.
func (v servingView) otherWith(name string, ip net.IP) string {
	for _, n := range v.nodes {
		if n.Name != name && hasAddress(n, ip) {
			return n.Name
		}
	}
	return ""
}

func hasAddress(node *corev1.Node, ip net.IP) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		return (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) && ip.Equal(net.ParseIP(a.Address))
	})
}
