package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
	"skiff/test/inprocess"
)

// nodeWith is a node with addresses, as it has registered them itself.
func nodeWith(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: named("", name)}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "host-of-" + name})
	return n
}

func ips(texts ...string) (all []net.IP) {
	for _, text := range texts {
		all = append(all, net.ParseIP(text))
	}
	return all
}

func TestWhichServingCertificatesAreApproved(t *testing.T) {
	view := servingView{
		nodes: []*corev1.Node{
			nodeWith("one", "10.0.0.1", "fd00::1", "10.0.0.9", "10.96.0.1", "127.0.0.1", "10.0.0.2"), nodeWith("two", "10.0.0.2"),
			nodeWith("kubernetes.default.svc", "10.0.0.4"), nodeWith("master", "10.0.0.5"), nodeWith("localhost", "10.0.0.6"),
		},
		server: []string{"master", "10.0.0.9", "10.96.0.1", "localhost"},
	}
	forServer := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for _, test := range []struct {
		what     string
		subject  string // and who asks
		names    []string
		ips      []net.IP
		change   func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
		objected string // empty: approved
	}{
		{what: "its name and address", subject: "one", names: []string{"one"}, ips: ips("10.0.0.1")},
		{what: "both families", subject: "one", names: []string{"one"}, ips: ips("10.0.0.1", "fd00::1")},
		{what: "its name alone", subject: "one", names: []string{"one"}},
		{what: "its address alone", subject: "one", ips: ips("fd00:0::1")},
		{what: "nothing", subject: "one", objected: "DNS or IP subjectAltName is required"},
		{what: "another node's name", subject: "one", names: []string{"one", "two"}, ips: ips("10.0.0.1"), objected: `"two" is not the node's name`},
		{what: "a host name it gave itself", subject: "one", names: []string{"host-of-one"}, objected: "is not the node's name"},
		{what: "a wildcard", subject: "one", names: []string{"*"}, objected: "is not the node's name"},
		{what: "an address it has not registered", subject: "one", ips: ips("10.0.0.1", "10.0.0.7"), objected: "10.0.0.7 is not an address that the node has registered"},
		{what: "an address of another node that it claims", subject: "one", ips: ips("10.0.0.2"), objected: "is an address of node two too"},
		{what: "the API server's address, claimed", subject: "one", ips: ips("10.0.0.9"), objected: "10.0.0.9 is an address of the API server"},
		{what: "the service's address, claimed", subject: "one", ips: ips("10.96.0.1"), objected: "is an address of the API server"},
		{what: "the API server's address, written otherwise", subject: "one", ips: ips("::ffff:10.0.0.9"), objected: "is an address of the API server"},
		{what: "loopback, claimed", subject: "one", ips: ips("127.0.0.1"), objected: "not an address of one machine"},
		{what: "a node named like the service", subject: "kubernetes.default.svc", names: []string{"kubernetes.default.svc"}, objected: "name of the API server"},
		{what: "a node named like the server's machine", subject: "master", names: []string{"master"}, ips: ips("10.0.0.5"), objected: "name of the API server"},
		{what: "a node named localhost", subject: "localhost", names: []string{"localhost"}, objected: "name of the API server"},
		{what: "a node that does not exist", subject: "three", names: []string{"three"}, objected: "node three does not exist"},
		{what: "asked by another node", subject: "one", names: []string{"one"}, objected: "only the node itself may", change: func(r *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			r.Spec.Username = "system:node:two"
		}},
		{what: "asked by a token", subject: "one", names: []string{"one"}, objected: "only the node itself may", change: func(r *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			r.Spec.Username, r.Spec.Groups = "system:bootstrap:abcdef", []string{"system:bootstrappers"}
		}},
		{what: "asked by who is called like a node", subject: "one", names: []string{"one"}, objected: "only the node itself may", change: func(r *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			r.Spec.Groups = []string{"system:authenticated"}
		}},
		{what: "for clients", subject: "one", names: []string{"one"}, objected: "usages did not match", change: func(r *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			r.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
		}},
		{what: "with mail", subject: "one", names: []string{"one"}, objected: "Email subjectAltNames are not allowed", change: func(_ *certificatesv1.CertificateSigningRequest, p *x509.CertificateRequest) {
			p.EmailAddresses = []string{"a@b"}
		}},
		{what: "with another group", subject: "one", names: []string{"one"}, objected: "subject organization is not system:nodes", change: func(_ *certificatesv1.CertificateSigningRequest, p *x509.CertificateRequest) {
			p.Subject.Organization = []string{"system:nodes", "system:masters"}
		}},
	} {
		parsed := &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:node:" + test.subject, Organization: []string{"system:nodes"}}, DNSNames: test.names, IPAddresses: test.ips,
		}
		request := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Usages: forServer, Username: "system:node:" + test.subject, Groups: []string{"system:nodes", "system:authenticated"},
		}}
		if test.change != nil {
			test.change(request, parsed)
		}
		err := view.objection(request, parsed)
		if (err == nil) != (test.objected == "") || err != nil && !strings.Contains(err.Error(), test.objected) {
			t.Errorf("%s: %v, want %q", test.what, err, test.objected)
		}
	}
}

// What a node does not ask for itself stays for a person, who reads why.
func TestServingCertificateIsLeftToAPerson(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	authority, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	run(t, c, ServingApproving(nil), CertificateSigning(SigningAuthorities{KubeletServing: authority}))
	create(t, c, nodeWith("one"))
	// In this server everybody is called test.
	create(t, c, requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"one"}}, certificatesv1.KubeletServingSignerName,
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth))
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		events, _, err := client.For[*corev1.Event](c).List(t.Context(), "", client.Match{})
		if err != nil || time.Now().After(end) {
			t.Fatalf("nobody says why it is not approved: %v", err)
		}
		if len(events) > 0 {
			if e := events[0]; e.Reason != "NotAutoApproved" || e.InvolvedObject.Name != "request" || !strings.Contains(e.Message, "test asks for a certificate of system:node:one") {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	request, err := client.For[*certificatesv1.CertificateSigningRequest](c).Get(t.Context(), "", "request")
	if err != nil || len(request.Status.Conditions) > 0 || len(request.Status.Certificate) > 0 {
		t.Errorf("%+v, %v", request.Status, err)
	}
}
