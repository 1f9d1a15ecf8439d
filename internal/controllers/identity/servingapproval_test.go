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
	discoveryv1 "k8s.io/api/discovery/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
	"skiff/test/inprocess"
	"skiff/test/world"
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
		{what: "loopback, claimed", subject: "one", ips: ips("127.0.0.1"), objected: "not a unicast address"},
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
	authority, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	run(t, c, ServingApproving(nil), CertificateSigning(SigningCAs{KubeletServing: authority}))
	create(t, c, nodeWith("one"))
	// In this server everybody is called test.
	create(t, c, requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"one"}}, certificatesv1.KubeletServingSignerName,
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth))
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		events, _, err := client.For[*corev1.Event](c).List(t.Context(), "", client.Selector{})
		if err != nil || time.Now().After(end) {
			t.Fatalf("nobody says why it is not approved: %v", err)
		}
		if len(events) > 0 {
			if e := events[0]; e.Reason != "NotAutoApproved" || e.InvolvedObject.Name != "request" || !strings.Contains(e.Message, "test requests a certificate of system:node:one") {
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

func TestWhatTheServerIsKnownBy(t *testing.T) {
	view := servingView{server: []string{"Master.example", "10.0.0.9", "fd00::9", "2001:db8::0:1"}}
	for name, want := range map[string]bool{
		"localhost": true, "kubernetes": true, "kubernetes.default": true, "kubernetes.default.svc": true, "kubernetes.default.svc.cluster.local": true, "kubernetes.default.anything": true,
		"kubernetes-default": false, "kubernetes.other": false, "mykubernetes": false, "kubernetes.defaults": false,
		"master.example": true, "MASTER.EXAMPLE": true, "master": false, "master.example.com": false,
		"10.0.0.9": true, "::ffff:10.0.0.9": true, "10.0.0.90": false, "fd00::9": true, "fd00:0:0::9": true, "FD00::9": true, "fd00::90": false, "2001:db8::1": true, "": false,
	} {
		if got := view.isServer(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestAddressesOfNodes(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
		{Type: corev1.NodeHostName, Address: "10.0.0.2"}, {Type: corev1.NodeInternalDNS, Address: "10.0.0.3"}, {Type: corev1.NodeExternalDNS, Address: "10.0.0.4"}, {Type: corev1.NodeInternalIP, Address: "nonsense"},
	}}}
	for address, want := range map[string]bool{"10.0.0.1": true, "203.0.113.1": true, "fd00::1": true, "fd00:0::1": true, "::ffff:10.0.0.1": true, "10.0.0.2": false, "10.0.0.3": false, "10.0.0.4": false, "fd00::2": false} {
		if got := hasAddress(node, net.ParseIP(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	view := servingView{nodes: []*corev1.Node{nodeWith("one", "10.0.0.1"), nodeWith("two", "10.0.0.1", "10.0.0.2"), nodeWith("three", "fd00::3")}}
	for _, test := range []struct{ name, address, want string }{
		{"one", "10.0.0.1", "two"}, {"two", "10.0.0.1", "one"}, {"two", "10.0.0.2", ""}, {"one", "10.0.0.2", "two"}, {"one", "fd00::3", "three"}, {"three", "fd00::3", ""}, {"four", "10.0.0.9", ""},
	} {
		if got := view.otherWith(test.name, net.ParseIP(test.address)); got != test.want {
			t.Errorf("%s of %s is of %q, want %q", test.address, test.name, got, test.want)
		}
	}
}

// TestServingCertificates goes the whole way for nodes that ask for themselves: what is theirs is approved and signed, what the API server
// is known by, in this process, by its service or behind it, is not.
func TestServingCertificates(t *testing.T) {
	authority, err := pki.NewCA("test", time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		what     string
		names    []string
		ips      []net.IP
		before   func(*csr)
		approved bool
		told     string
	}{
		{"its name and address", []string{"one"}, ips("10.0.0.1"), nil, true, ""},
		{"the address of the server's process", nil, ips("10.0.0.9"), nil, false, "10.0.0.9 is an address of the API server"},
		{"the address of the server's service", nil, ips("10.96.0.1"), nil, false, "10.96.0.1 is an address of the API server"},
		{"the address behind the server's service", nil, ips("10.0.0.8"), nil, false, "10.0.0.8 is an address of the API server"},
		{"an address of nobody", nil, ips("10.0.0.77"), nil, false, "10.0.0.77 is not an address that the node has registered"},
		{"another signer's request is left alone", []string{"one"}, nil, func(r *csr) { r.Spec.SignerName = "example.com/mine" }, false, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				defer w.Run(ServingApproving([]string{"10.0.0.9"}), CertificateSigning(SigningCAs{KubeletServing: authority}))()
				node := world.Create(w, &corev1.Node{ObjectMeta: named("", "one")})
				world.EditStatus(w, "", node.Name, func(n *corev1.Node) {
					n.Status.Addresses = nodeWith("one", "10.0.0.1", "10.0.0.9", "10.96.0.1", "10.0.0.8").Status.Addresses
				})
				world.Create(w, &corev1.Service{ObjectMeta: named("default", "kubernetes"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 443}}}})
				slice := &discoveryv1.EndpointSlice{ObjectMeta: named("default", "kubernetes"), AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.8"}}}}
				slice.Labels = map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
				world.Create(w, slice)
				request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: test.names, IPAddresses: test.ips}, servingSigner, signature, forServers)
				if test.before != nil {
					test.before(request)
				}
				world.CreateAs(w, "system:node:one", []string{"system:nodes"}, request)
				w.Pass(time.Second)
				got := world.Get[*csr](w, "", "request")
				if hasCondition(got, certificatesv1.CertificateApproved) != test.approved || (len(got.Status.Certificate) > 0) != test.approved {
					t.Errorf("%+v", got.Status)
				}
				var told []string
				for _, e := range w.Events("request") {
					told = append(told, strings.TrimPrefix(e, "NotAutoApproved: "))
				}
				if text := strings.Join(told, "; "); text != test.told {
					t.Errorf("told %q, want %q", text, test.told)
				}
			})
		})
	}
}

// TestANodeThatRegistersItsAddressLater is approved at the next sync.
func TestANodeThatRegistersItsAddressLater(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(ServingApproving(nil))()
		world.Create(w, &corev1.Node{ObjectMeta: named("", "one")})
		request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject, IPAddresses: ips("10.0.0.1")}, servingSigner, signature, forServers)
		world.CreateAs(w, "system:node:one", []string{"system:nodes"}, request)
		w.Pass(time.Second)
		if hasCondition(world.Get[*csr](w, "", "request"), certificatesv1.CertificateApproved) {
			t.Error("it was approved at once")
		}
		world.EditStatus(w, "", "one", func(n *corev1.Node) { n.Status.Addresses = nodeWith("one", "10.0.0.1").Status.Addresses })
		w.Pass(approvalRetryDelay)
		got := world.Get[*csr](w, "", "request")
		if len(got.Status.Conditions) != 1 || got.Status.Conditions[0].Reason != "AutoApproved" || got.Status.Conditions[0].Message != "Auto approving kubelet serving certificate for the node's own name and addresses." {
			t.Errorf("%+v", got.Status.Conditions)
		}
	})
}
