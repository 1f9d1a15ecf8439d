package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	kubeletSigner   = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner   = certificatesv1.KubeletServingSignerName
	apiClientSigner = certificatesv1.KubeAPIServerClientSignerName
	signature       = certificatesv1.UsageDigitalSignature
	encipher        = certificatesv1.UsageKeyEncipherment
	forClients      = certificatesv1.UsageClientAuth
	forServers      = certificatesv1.UsageServerAuth
)

var nodeSubject = pkix.Name{CommonName: "system:node:one", Organization: []string{"system:nodes"}}

type (
	csr       = certificatesv1.CertificateSigningRequest
	csrChange = func(*x509.CertificateRequest)
)

func usages(all ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage { return all }

// requestOf is a certificate signing request with a fresh key.
func requestOf(t *testing.T, template x509.CertificateRequest, signer string, usages ...certificatesv1.KeyUsage) *csr {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &csr{ObjectMeta: named("", "request"), Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages,
	}}
}

// is gives a request conditions.
func is(conditions ...certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var all []certificatesv1.CertificateSigningRequestCondition
	for _, c := range conditions {
		all = append(all, certificatesv1.CertificateSigningRequestCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return all
}

func changed(r x509.CertificateRequest, changes ...csrChange) x509.CertificateRequest {
	for _, c := range changes {
		c(&r)
	}
	return r
}

var (
	withDNS    = func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} }
	withIP     = func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{{127, 0, 0, 1}} }
	withIPv6   = func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.ParseIP("fd00::1")} }
	withMail   = func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }
	withURI    = func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }
	calledName = func(name string) csrChange { return func(r *x509.CertificateRequest) { r.Subject.CommonName = name } }
	inGroups   = func(groups ...string) csrChange {
		return func(r *x509.CertificateRequest) { r.Subject.Organization = groups }
	}
)

func TestWhatSignersSign(t *testing.T) {
	node := x509.CertificateRequest{Subject: nodeSubject}
	const notNodes, notNode = "subject organization is not system:nodes", "subject common name does not begin with system:node:"
	const dns, mail, ip, uri, none = "DNS subjectAltNames are not allowed", "Email subjectAltNames are not allowed", "IP subjectAltNames are not allowed", "URI subjectAltNames are not allowed", "DNS or IP subjectAltName is required"
	const clientUsages, servingUsages = "usages did not match [client auth digital signature key encipherment]", "usages did not match [digital signature key encipherment server auth]"
	client, serving := usages(signature, forClients), usages(signature, forServers)
	for _, test := range []struct {
		what    string
		signer  string
		changes []csrChange
		usages  []certificatesv1.KeyUsage
		want    string
	}{
		{"kubelet client", kubeletSigner, nil, usages(signature, encipher, forClients), ""},
		{"kubelet client without RSA", kubeletSigner, nil, client, ""},
		{"kubelet client, in another order", kubeletSigner, nil, usages(forClients, encipher, signature), ""},
		{"kubelet client, a usage twice", kubeletSigner, nil, usages(signature, signature, forClients), ""},
		{"kubelet client for serving", kubeletSigner, nil, serving, clientUsages},
		{"kubelet client for serving too", kubeletSigner, nil, usages(signature, forClients, forServers), clientUsages},
		{"kubelet client without signature", kubeletSigner, nil, usages(encipher, forClients), clientUsages},
		{"kubelet client without purpose", kubeletSigner, nil, usages(signature, encipher), clientUsages},
		{"kubelet client without usages", kubeletSigner, nil, nil, clientUsages},
		{"kubelet client, an older word for signature", kubeletSigner, nil, usages(certificatesv1.UsageSigning, forClients), clientUsages},
		{"kubelet client with an address", kubeletSigner, []csrChange{withIP}, client, ip},
		{"kubelet client with a name", kubeletSigner, []csrChange{withDNS}, client, dns},
		{"kubelet client with mail", kubeletSigner, []csrChange{withMail}, client, mail},
		{"kubelet client with URI", kubeletSigner, []csrChange{withURI}, client, uri},
		{"kubelet client of another group", kubeletSigner, []csrChange{inGroups("system:masters")}, client, notNodes},
		{"kubelet client of no group", kubeletSigner, []csrChange{inGroups()}, client, notNodes},
		{"kubelet client of a further group", kubeletSigner, []csrChange{inGroups("system:nodes", "system:masters")}, client, notNodes},
		{"kubelet client of the group twice", kubeletSigner, []csrChange{inGroups("system:nodes", "system:nodes")}, client, notNodes},
		{"kubelet client of another user", kubeletSigner, []csrChange{calledName("admin")}, client, notNode},
		{"kubelet client of no user", kubeletSigner, []csrChange{calledName("")}, client, notNode},
		{"kubelet client of almost a node", kubeletSigner, []csrChange{calledName("system:nodes:one")}, client, notNode},
		{"kubelet client of a node without a name", kubeletSigner, []csrChange{calledName("system:node:")}, client, ""},
		{"kubelet client: the group is asked about first", kubeletSigner, []csrChange{inGroups(), withDNS, calledName("admin")}, nil, notNodes},
		{"kubelet client: names before mail before addresses", kubeletSigner, []csrChange{withDNS, withMail, withIP, withURI}, nil, dns},
		{"kubelet client: mail before addresses", kubeletSigner, []csrChange{withMail, withIP, withURI}, nil, mail},
		{"kubelet client: addresses before URIs", kubeletSigner, []csrChange{withIP, withURI}, nil, ip},
		{"kubelet client: the user before usages", kubeletSigner, []csrChange{calledName("admin")}, nil, notNode},
		{"kubelet serving at an address", servingSigner, []csrChange{withIP}, serving, ""},
		{"kubelet serving at a name", servingSigner, []csrChange{withDNS}, serving, ""},
		{"kubelet serving at an address of IPv6", servingSigner, []csrChange{withIPv6}, serving, ""},
		{"kubelet serving with RSA", servingSigner, []csrChange{withIP, withDNS}, usages(signature, encipher, forServers), ""},
		{"kubelet serving nowhere", servingSigner, nil, serving, none},
		{"kubelet serving for clients", servingSigner, []csrChange{withIP}, client, servingUsages},
		{"kubelet serving without usages", servingSigner, []csrChange{withIP}, nil, servingUsages},
		{"kubelet serving of another group", servingSigner, []csrChange{withIP, inGroups()}, serving, notNodes},
		{"kubelet serving of another user", servingSigner, []csrChange{withIP, calledName("admin")}, serving, notNode},
		{"kubelet serving with mail", servingSigner, []csrChange{withIP, withMail}, serving, mail},
		{"kubelet serving with URI", servingSigner, []csrChange{withIP, withURI}, serving, uri},
		{"kubelet serving: usages before the user", servingSigner, []csrChange{withIP, calledName("admin")}, client, servingUsages},
		{"client", apiClientSigner, []csrChange{calledName("jane"), inGroups("anything")}, usages(forClients), ""},
		{"client with all it may", apiClientSigner, []csrChange{withDNS, withIP, withMail, withURI}, usages(signature, encipher, forClients), ""},
		{"client without purpose", apiClientSigner, nil, usages(signature), "missing required usage for client certificate: client auth"},
		{"client without usages", apiClientSigner, nil, nil, "missing required usage for client certificate: client auth"},
		{"client that serves", apiClientSigner, nil, usages(forClients, forServers), "invalid usage for client certificate: server auth"},
		{"client that signs", apiClientSigner, nil, usages(certificatesv1.UsageCertSign), "invalid usage for client certificate: cert sign"},
		{"legacy", legacyUnknownSigner, []csrChange{withIP}, usages(forServers, certificatesv1.UsageCodeSigning), ""},
		{"legacy, anything", legacyUnknownSigner, []csrChange{withURI, inGroups("system:masters")}, nil, ""},
		{"another signer", "example.com/mine", nil, nil, `unrecognized signerName: "example.com/mine"`},
		{"another signer of Kubernetes", "kubernetes.io/other", nil, nil, `unrecognized signerName: "kubernetes.io/other"`},
	} {
		template := changed(node, test.changes...)
		got := ""
		if err := validateForSigner(test.signer, &template, test.usages); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestParseRequest(t *testing.T) {
	good := requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"a"}}, kubeletSigner)
	block, _ := pem.Decode(good.Spec.Request)
	for _, test := range []struct {
		what  string
		bytes []byte
		want  string // of the error
	}{
		{"a request", good.Spec.Request, ""},
		{"something behind it", append(slices.Clone(good.Spec.Request), "rest"...), ""},
		{"nothing", nil, `unable to parse csr "request": PEM block type must be CERTIFICATE REQUEST`},
		{"no PEM", block.Bytes, `unable to parse csr "request": PEM block type must be CERTIFICATE REQUEST`},
		{"another type", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}), `unable to parse csr "request": PEM block type must be CERTIFICATE REQUEST`},
		{"an older name of the type", pem.EncodeToMemory(&pem.Block{Type: "NEW CERTIFICATE REQUEST", Bytes: block.Bytes}), `unable to parse csr "request": PEM block type must be CERTIFICATE REQUEST`},
		{"nonsense", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")}), `unable to parse csr "request": `},
	} {
		parsed, err := parseRequest(&csr{ObjectMeta: named("", "request"), Spec: certificatesv1.CertificateSigningRequestSpec{Request: test.bytes}})
		if (err == nil) != (test.want == "") || err != nil && !strings.HasPrefix(err.Error(), test.want) || err == nil && (parsed.Subject.CommonName != "system:node:one" || parsed.DNSNames[0] != "a") {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}

func TestConditionsOfRequests(t *testing.T) {
	const approved, denied, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
	for _, of := range []certificatesv1.RequestConditionType{approved, denied, failed} {
		for status, counts := range map[corev1.ConditionStatus]bool{"True": true, "": true, "False": of != failed, "Unknown": of != failed} {
			request := &csr{Status: certificatesv1.CertificateSigningRequestStatus{Conditions: []certificatesv1.CertificateSigningRequestCondition{{Type: "Other"}, {Type: of, Status: status}}}}
			if got := hasCondition(request, of); got != counts {
				t.Errorf("%s is %q: %v", of, status, got)
			}
			for _, other := range []certificatesv1.RequestConditionType{approved, denied, failed} {
				if other != of && hasCondition(request, other) {
					t.Errorf("%s stands for %s", of, other)
				}
			}
		}
	}
}

// TestEveryUsage: each as X.509 has it.
func TestEveryUsage(t *testing.T) {
	for usage, want := range map[certificatesv1.KeyUsage]x509.KeyUsage{
		"signing": x509.KeyUsageDigitalSignature, "digital signature": x509.KeyUsageDigitalSignature, "content commitment": x509.KeyUsageContentCommitment, "key encipherment": x509.KeyUsageKeyEncipherment,
		"key agreement": x509.KeyUsageKeyAgreement, "data encipherment": x509.KeyUsageDataEncipherment, "cert sign": x509.KeyUsageCertSign, "crl sign": x509.KeyUsageCRLSign,
		"encipher only": x509.KeyUsageEncipherOnly, "decipher only": x509.KeyUsageDecipherOnly,
	} {
		if plain, extended, err := translateUsages(usages(usage)); plain != want || len(extended) != 0 || err != nil {
			t.Errorf("%s: %v %v %v", usage, plain, extended, err)
		}
	}
	for usage, want := range map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		"any": x509.ExtKeyUsageAny, "server auth": x509.ExtKeyUsageServerAuth, "client auth": x509.ExtKeyUsageClientAuth, "code signing": x509.ExtKeyUsageCodeSigning,
		"email protection": x509.ExtKeyUsageEmailProtection, "s/mime": x509.ExtKeyUsageEmailProtection, "ipsec end system": x509.ExtKeyUsageIPSECEndSystem, "ipsec tunnel": x509.ExtKeyUsageIPSECTunnel,
		"ipsec user": x509.ExtKeyUsageIPSECUser, "timestamping": x509.ExtKeyUsageTimeStamping, "ocsp signing": x509.ExtKeyUsageOCSPSigning,
		"microsoft sgc": x509.ExtKeyUsageMicrosoftServerGatedCrypto, "netscape sgc": x509.ExtKeyUsageNetscapeServerGatedCrypto,
	} {
		if plain, extended, err := translateUsages(usages(usage)); plain != 0 || !slices.Equal(extended, []x509.ExtKeyUsage{want}) || err != nil {
			t.Errorf("%s: %v %v %v", usage, plain, extended, err)
		}
	}
	for _, test := range []struct {
		what     string
		usages   []certificatesv1.KeyUsage
		plain    x509.KeyUsage
		extended []x509.ExtKeyUsage
		err      string
	}{
		{"none", nil, 0, nil, ""},
		{"several, in order", usages("ocsp signing", "crl sign", "any", "signing"), x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageAny, x509.ExtKeyUsageOCSPSigning}, ""},
		{"twice", usages("s/mime", "email protection", "signing", "digital signature"), x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection}, ""},
		{"one nobody knows", usages("signing", "flying"), 0, nil, `unrecognized usage values: ["flying"]`},
		{"two nobody knows", usages("flying", "any", "Signing"), 0, nil, `unrecognized usage values: ["flying" "Signing"]`},
	} {
		plain, extended, err := translateUsages(test.usages)
		if plain != test.plain || !slices.Equal(extended, test.extended) || (err != nil || test.err != "") && fmt.Sprint(err) != test.err {
			t.Errorf("%s: %v %v %v", test.what, plain, extended, err)
		}
	}
}
