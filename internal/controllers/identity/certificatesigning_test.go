package identity

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"reflect"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/pki"
)

// clerk signs by noting what it was to sign.
type clerk struct {
	signed []x509.Certificate
	err    error
}

func (c *clerk) Sign(template x509.Certificate, _ crypto.PublicKey, _ time.Time) ([]byte, error) {
	c.signed = append(c.signed, template)
	return []byte("certificate"), c.err
}

func TestWhichRequestsAreAnswered(t *testing.T) {
	const approved, denied, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
	good := func(signer string) *csr {
		return requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"one"}}, signer, signature, forServers)
	}
	node := requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients)
	not := certificatesv1.CertificateSigningRequestCondition{Type: failed, Status: corev1.ConditionFalse}
	broken := good(servingSigner)
	broken.Spec.Request = []byte("x")
	forged := good(servingSigner)
	block, _ := pem.Decode(forged.Spec.Request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	forged.Spec.Request = pem.EncodeToMemory(block)
	odd := good(legacyUnknownSigner)
	odd.Spec.Usages = usages("flying")
	for _, test := range []struct {
		what       string
		request    *csr
		conditions []certificatesv1.CertificateSigningRequestCondition
		issued     bool
		want       string // "": nothing, "signed", a failure, or "error: …"
	}{
		{"not approved", good(servingSigner), nil, false, ""},
		{"approved", good(servingSigner), is(approved), false, "signed"},
		{"a kubelet's", node, is(approved), false, "signed"},
		{"a client's", requestOf(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, apiClientSigner, forClients), is(approved), false, "signed"},
		{"a legacy one", good(legacyUnknownSigner), is(approved), false, "signed"},
		{"denied", good(servingSigner), is(denied), false, ""},
		{"approved and denied", good(servingSigner), is(approved, denied), false, ""},
		{"failed", good(servingSigner), is(approved, failed), false, ""},
		{"not failed, in words", good(servingSigner), append(is(approved), not), false, "signed"},
		{"issued", good(servingSigner), is(approved), true, ""},
		{"of a signer that is nobody's", good("example.com/mine"), is(approved), false, ""},
		{"against the signer's rules", good(kubeletSigner), is(approved), false, "DNS subjectAltNames are not allowed"},
		{"against the signer's rules, not approved", good(kubeletSigner), nil, false, ""},
		{"one nobody can read", broken, is(approved), false, `error: unable to parse csr "request": PEM block type must be CERTIFICATE REQUEST`},
		{"one with another's signature", forged, is(approved), false, "error: error auto signing csr: unable to verify certificate request signature: x509: ECDSA verification failure"},
		{"one with a usage nobody knows", odd, is(approved), false, `error: error auto signing csr: unrecognized usage values: ["flying"]`},
	} {
		authority := &clerk{}
		signing := SigningCAs{KubeletServing: authority, KubeletClient: authority, APIServerClient: authority, LegacyUnknown: authority, MaxTTL: time.Hour}
		test.request.Status.Conditions = test.conditions
		if test.issued {
			test.request.Status.Certificate = []byte("x")
		}
		before := test.request.DeepCopy()
		answer, err := signing.signRequest(test.request, newYear)
		got := ""
		switch {
		case err != nil:
			got = "error: " + err.Error()
		case answer != nil && string(answer.Status.Certificate) == "certificate":
			got = "signed"
		case answer != nil:
			last := answer.Status.Conditions[len(answer.Status.Conditions)-1]
			if got = last.Message; last.Type != failed || last.Status != corev1.ConditionTrue || last.Reason != "SignerValidationFailure" || !last.LastUpdateTime.Equal(new(metav1.NewTime(newYear))) {
				t.Errorf("%s: %+v", test.what, last)
			}
			if again, err := signing.signRequest(answer, newYear); again != nil || err != nil {
				t.Errorf("%s: it fails twice: %+v, %v", test.what, again, err)
			}
		}
		if got != test.want || (len(authority.signed) == 1) != (test.want == "signed") {
			t.Errorf("%s: %q, signed %d times; want %q", test.what, got, len(authority.signed), test.want)
		}
		if !reflect.DeepEqual(before, test.request) {
			t.Errorf("%s: the request of the cache has changed", test.what)
		}
	}
}

// TestEachSignerHasItsAuthority: nothing signs with another's.
func TestEachSignerHasItsAuthority(t *testing.T) {
	signers := []string{servingSigner, kubeletSigner, apiClientSigner, legacyUnknownSigner, "example.com/mine"}
	for i := range 4 {
		one := &clerk{}
		all := []SigningCAs{{KubeletServing: one}, {KubeletClient: one}, {APIServerClient: one}, {LegacyUnknown: one}}
		for j, signer := range signers {
			if got := all[i].forSigner(signer); (got != nil) != (i == j) {
				t.Errorf("the authority of %s signs for %s", signers[i], signer)
			}
		}
	}
}

func TestLifeOfCertificates(t *testing.T) {
	const hour = time.Hour
	for _, test := range []struct {
		longest time.Duration
		asked   *int32
		want    time.Duration // from now to the end
	}{
		{100 * hour, nil, 100*hour - backdating},
		{100 * hour, new(int32(600)), 10 * time.Minute},
		{100 * hour, new(int32(599)), 10 * time.Minute},
		{100 * hour, new(int32(60)), 10 * time.Minute},
		{100 * hour, new(int32(3600)), hour},
		{100 * hour, new(int32(8*3600 - 1)), 8*hour - time.Second},
		{100 * hour, new(int32(8 * 3600)), 8*hour - backdating},
		{100 * hour, new(int32(10 * 3600)), 10*hour - backdating},
		{100 * hour, new(int32(100 * 3600)), 100*hour - backdating},
		{100 * hour, new(int32(101 * 3600)), 100*hour - backdating},
		{100 * hour, new(int32(1 << 30)), 100*hour - backdating},
		{hour, nil, hour},
		{hour, new(int32(7200)), hour},
	} {
		authority := &clerk{}
		request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients)
		request.Status.Conditions, request.Spec.ExpirationSeconds = is(certificatesv1.CertificateApproved), test.asked
		if _, err := (SigningCAs{KubeletClient: authority, MaxTTL: test.longest}).signRequest(request, newYear); err != nil {
			t.Fatal(err)
		}
		got := authority.signed[0]
		if !got.NotBefore.Equal(newYear.Add(-5*time.Minute)) || got.NotAfter.Sub(newYear) != test.want {
			t.Errorf("of %s, asked for %v seconds: from %v to %v, want until %v", test.longest, test.asked, got.NotBefore, got.NotAfter, newYear.Add(test.want))
		}
	}
}

// TestWhatIsSigned: what was requested, and nothing that a request could slip in.
func TestWhatIsSigned(t *testing.T) {
	authority := &clerk{}
	asked := x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}}, DNSNames: []string{"x.example"}, IPAddresses: []net.IP{net.ParseIP("fd00::1")},
		EmailAddresses: []string{"jane@example"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "x"}},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}, // "is an authority"
	}
	request := requestOf(t, asked, legacyUnknownSigner, signature, forClients, certificatesv1.UsageTimestamping)
	request.Status.Conditions = is(certificatesv1.CertificateApproved)
	if _, err := (SigningCAs{LegacyUnknown: authority, MaxTTL: time.Hour}).signRequest(request, newYear); err != nil {
		t.Fatal(err)
	}
	got := authority.signed[0]
	if got.Subject.CommonName != "jane" || !slices.Equal(got.Subject.Organization, []string{"a", "b"}) || got.DNSNames[0] != "x.example" || !got.IPAddresses[0].Equal(net.ParseIP("fd00::1")) ||
		got.EmailAddresses[0] != "jane@example" || got.URIs[0].String() != "spiffe://x" {
		t.Errorf("%+v", got)
	}
	if got.IsCA || !got.BasicConstraintsValid || len(got.ExtraExtensions) != 0 || got.KeyUsage != x509.KeyUsageDigitalSignature || !slices.Equal(got.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageTimeStamping}) {
		t.Errorf("an authority: %v, extensions %v, usages %v %v", got.IsCA, got.ExtraExtensions, got.KeyUsage, got.ExtKeyUsage)
	}
	authority.err = errors.New("no key")
	if answer, err := (SigningCAs{LegacyUnknown: authority, MaxTTL: time.Hour}).signRequest(request, newYear); answer != nil || err == nil || err.Error() != "error auto signing csr: no key" {
		t.Errorf("%v, %v", answer, err)
	}
}

// TestSignedCertificatesVerify with a real authority.
func TestSignedCertificatesVerify(t *testing.T) {
	authority, err := pki.NewCA("test", newYear)
	if err != nil {
		t.Fatal(err)
	}
	request := requestOf(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"one"}}, servingSigner, signature, forServers)
	request.Status.Conditions = is(certificatesv1.CertificateApproved)
	answer, err := (SigningCAs{KubeletServing: authority, MaxTTL: 100 * time.Hour}).signRequest(request, newYear)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := pki.ParseCertificates(answer.Status.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	for name, right := range map[string]bool{"one": true, "two": false} {
		if _, err := certificates[0].Verify(x509.VerifyOptions{Roots: authority.Pool(), DNSName: name, CurrentTime: newYear}); (err == nil) != right {
			t.Errorf("%s: %v", name, err)
		}
	}
}
