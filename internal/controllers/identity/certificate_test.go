package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/pki"
	"skiff/test/inprocess"
)

var nodeSubject = pkix.Name{CommonName: "system:node:one", Organization: []string{"system:nodes"}}

// requestOf is a certificate signing request with a fresh key.
func requestOf(t *testing.T, template x509.CertificateRequest, signer string, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: named("", "request"), Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer, Usages: usages,
	}}
}

func TestWhatSignersSign(t *testing.T) {
	const (
		kubelet   = certificatesv1.KubeAPIServerClientKubeletSignerName
		serving   = certificatesv1.KubeletServingSignerName
		client    = certificatesv1.KubeAPIServerClientSignerName
		signature = certificatesv1.UsageDigitalSignature
		encipher  = certificatesv1.UsageKeyEncipherment
		forClient = certificatesv1.UsageClientAuth
		forServer = certificatesv1.UsageServerAuth
	)
	uri, err := url.Parse("spiffe://x")
	if err != nil {
		t.Fatal(err)
	}
	node := x509.CertificateRequest{Subject: nodeSubject}
	host := x509.CertificateRequest{Subject: nodeSubject, IPAddresses: []net.IP{{127, 0, 0, 1}}}
	with := func(r x509.CertificateRequest, change func(*x509.CertificateRequest)) x509.CertificateRequest {
		change(&r)
		return r
	}
	for _, test := range []struct {
		what     string
		signer   string
		template x509.CertificateRequest
		usages   []certificatesv1.KeyUsage
		want     string
	}{
		{"kubelet client", kubelet, node, []certificatesv1.KeyUsage{signature, encipher, forClient}, ""},
		{"kubelet client without RSA", kubelet, node, []certificatesv1.KeyUsage{forClient, signature}, ""},
		{"kubelet client for serving", kubelet, node, []certificatesv1.KeyUsage{signature, forServer}, "usages did not match [client auth digital signature key encipherment]"},
		{"kubelet client with address", kubelet, host, []certificatesv1.KeyUsage{signature, forClient}, "IP subjectAltNames are not allowed"},
		{"kubelet client with name", kubelet, with(node, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} }), []certificatesv1.KeyUsage{signature, forClient}, "DNS subjectAltNames are not allowed"},
		{"kubelet client with mail", kubelet, with(node, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), []certificatesv1.KeyUsage{signature, forClient}, "Email subjectAltNames are not allowed"},
		{"kubelet client with URI", kubelet, with(node, func(r *x509.CertificateRequest) { r.URIs = []*url.URL{uri} }), []certificatesv1.KeyUsage{signature, forClient}, "URI subjectAltNames are not allowed"},
		{"another group", kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:one", Organization: []string{"system:masters"}}}, []certificatesv1.KeyUsage{signature, forClient}, "subject organization is not system:nodes"},
		{"another user", kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:nodes"}}}, []certificatesv1.KeyUsage{signature, forClient}, "subject common name does not begin with system:node:"},
		{"kubelet serving", serving, host, []certificatesv1.KeyUsage{signature, forServer}, ""},
		{"kubelet serving nowhere", serving, node, []certificatesv1.KeyUsage{signature, forServer}, "DNS or IP subjectAltName is required"},
		{"kubelet serving for client", serving, host, []certificatesv1.KeyUsage{signature, forClient}, "usages did not match [digital signature key encipherment server auth]"},
		{"kubelet serving, another group", serving, with(host, func(r *x509.CertificateRequest) { r.Subject.Organization = nil }), []certificatesv1.KeyUsage{signature, forServer}, "subject organization is not system:nodes"},
		{"kubelet serving, another user", serving, with(host, func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }), []certificatesv1.KeyUsage{signature, forServer}, "subject common name does not begin with system:node:"},
		{"kubelet serving with mail", serving, with(host, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), []certificatesv1.KeyUsage{signature, forServer}, "Email subjectAltNames are not allowed"},
		{"kubelet serving with URI", serving, with(host, func(r *x509.CertificateRequest) { r.URIs = []*url.URL{uri} }), []certificatesv1.KeyUsage{signature, forServer}, "URI subjectAltNames are not allowed"},
		{"client", client, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, []certificatesv1.KeyUsage{forClient}, ""},
		{"client without purpose", client, node, []certificatesv1.KeyUsage{signature}, "missing required usage for client certificate: client auth"},
		{"client that serves", client, node, []certificatesv1.KeyUsage{forClient, forServer}, "invalid usage for client certificate: server auth"},
		{"legacy", legacyUnknownSigner, host, []certificatesv1.KeyUsage{forServer, certificatesv1.UsageCodeSigning}, ""},
		{"another signer", "example.com/mine", node, nil, `unrecognized signerName: "example.com/mine"`},
	} {
		parsed, err := parseRequest(requestOf(t, test.template, test.signer, test.usages...))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := allowed(test.signer, parsed, test.usages); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	now := time.Now()
	authority, err := pki.NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	signing := SigningAuthorities{KubeletServing: authority, Life: 100 * time.Hour}
	request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"one"}}, certificatesv1.KubeletServingSignerName,
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
	if answer, err := signing.answer(request, now); answer != nil || err != nil {
		t.Errorf("signed without approval: %v %v", answer, err)
	}
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	seconds := func(n int32) *int32 { return &n }
	for _, test := range []struct {
		asked *int32
		end   time.Duration
	}{{nil, 100*time.Hour - backdating}, {seconds(60), 10 * time.Minute}, {seconds(3600), time.Hour}, {seconds(10 * 3600), 10*time.Hour - backdating}, {seconds(1 << 30), 100*time.Hour - backdating}} {
		request.Spec.ExpirationSeconds = test.asked
		answer, err := signing.answer(request, now)
		if err != nil {
			t.Fatal(err)
		}
		certs, err := pki.ParseCertificates(answer.Status.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		cert := certs[0]
		if _, err := cert.Verify(x509.VerifyOptions{Roots: authority.Pool(), DNSName: "one", CurrentTime: now}); err != nil {
			t.Error(err)
		}
		if got := cert.NotAfter.Sub(now).Round(time.Minute); got != test.end || cert.IsCA || cert.Subject.CommonName != nodeSubject.CommonName || len(cert.ExtKeyUsage) != 1 {
			t.Errorf("asked for %v seconds: ends after %v, want %v; %+v", test.asked, got, test.end, cert.Subject)
		}
	}
	request.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}
	answer, err := signing.answer(request, now)
	if err != nil || len(answer.Status.Certificate) > 0 || !has(answer, certificatesv1.CertificateFailed) || answer.Status.Conditions[1].Reason != "SignerValidationFailure" {
		t.Errorf("%+v, %v", answer, err)
	}
	if again, err := signing.answer(answer, now); again != nil || err != nil {
		t.Errorf("failed twice: %+v, %v", again, err)
	}
	request.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
	if answer, err := signing.answer(request, now); answer != nil || err != nil {
		t.Errorf("signed for a signer that is nobody's: %v %v", answer, err)
	}
}

func TestGrounds(t *testing.T) {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	for _, test := range []struct {
		what, username, signer string
		want                   string
	}{
		{"a node for itself", "system:node:one", certificatesv1.KubeAPIServerClientKubeletSignerName, "selfnodeclient,nodeclient"},
		{"a bootstrap token for a node", "system:bootstrap:abc", certificatesv1.KubeAPIServerClientKubeletSignerName, "nodeclient"},
		{"another signer", "system:node:one", certificatesv1.KubeAPIServerClientSignerName, ""},
	} {
		request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, test.signer, usages...)
		request.Spec.Username = test.username
		parsed, err := parseRequest(request)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ground := range groundsFor(request, parsed) {
			got = append(got, ground.subresource)
		}
		if text := strings.Join(got, ","); text != test.want {
			t.Errorf("%s: %q, want %q", test.what, text, test.want)
		}
	}
}

// TestCertificateOfANode goes the whole way: asked for, approved, signed.
func TestCertificateOfANode(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	authority, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	approving := controller.Definition{Name: "approving", New: func(s *controller.Setup) (controller.Syncer, error) {
		a := &approver{
			requests: client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers),
			write:    client.For[*certificatesv1.CertificateSigningRequest](s.Client), later: func(controller.Key) {},
			may: func(_ context.Context, review *authorizationv1.SubjectAccessReview) (bool, error) {
				return review.Spec.User == "test" && review.Spec.ResourceAttributes.Subresource == "nodeclient", nil
			},
		}
		return a, controller.WatchOwn[*certificatesv1.CertificateSigningRequest](s)
	}}
	run(t, c, approving, CertificateSigning(SigningAuthorities{KubeletClient: authority}))
	create(t, c, requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth))
	request := await(t, c, "", "request", func(r *certificatesv1.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	if len(request.Status.Conditions) != 1 || request.Status.Conditions[0].Message != "Auto approving kubelet client certificate after SubjectAccessReview." {
		t.Errorf("%+v", request.Status.Conditions)
	}
}

func TestTrustBundle(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	authority, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	former, err := pki.NewAuthority("former", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old := &trustBundle{content: string(former.Cert)}
	create(t, c, old.Reconcile(nil).Steps[0].Writes[0].Object.(*certificatesv1.ClusterTrustBundle))
	now := &trustBundle{content: string(authority.Cert)}
	run(t, c, TrustBundle(authority.Cert))
	await(t, c, "", now.name(), func(b *certificatesv1.ClusterTrustBundle) bool {
		return b.Spec.TrustBundle == now.content && strings.HasPrefix(b.Name, "kubernetes.io:kube-apiserver-serving:")
	})
	awaitGone[*certificatesv1.ClusterTrustBundle](t, c, "", old.name())
}
