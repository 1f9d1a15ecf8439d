package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var (
	now     = metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	earlier = metav1.NewTime(now.Add(-time.Hour))
	request = &kind.Request{Now: now, User: authenticationv1.UserInfo{
		Username: "alice", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}}
	_, key, _ = ed25519.GenerateKey(rand.Reader)
)

func stub(key crypto.Signer) []byte {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "c"}}, key)
	if err != nil {
		panic(err)
	}
	return der
}

func certificate(change func(*x509.Certificate)) []byte {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Time, NotAfter: now.Add(2 * time.Hour), BasicConstraintsValid: true, IsCA: true}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return der
}

func block(typ string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}))
}

func csr(change func(*signingRequest)) *signingRequest {
	csr := &signingRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: []byte(block("CERTIFICATE REQUEST", stub(key))), SignerName: "example.com/signer", Usages: []certificatesv1.KeyUsage{"client auth"},
		},
	}
	if change != nil {
		change(csr)
	}
	return csr
}

func condition(typ certificatesv1.RequestConditionType) certificatesv1.CertificateSigningRequestCondition {
	return certificatesv1.CertificateSigningRequestCondition{Type: typ, Status: "True"}
}

func withConditions(given ...certificatesv1.CertificateSigningRequestCondition) *signingRequest {
	return csr(func(c *signingRequest) { c.Status.Conditions = given })
}

func TestSigningRequestSpec(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*signingRequest)
		want   []string
	}{
		{name: "valid"},
		{name: "request", change: func(c *signingRequest) { c.Spec.Request = []byte("x") }, want: []string{"spec.request: Invalid value: PEM block type must be CERTIFICATE REQUEST"}},
		{name: "usages", change: func(c *signingRequest) { c.Spec.Usages = nil }, want: []string{"spec.usages: Required value"}},
		{name: "unknown usage", change: func(c *signingRequest) { c.Spec.Usages = []certificatesv1.KeyUsage{"fun", "fun"} }, want: []string{"spec.usages[0]: Unsupported value", "spec.usages[1]: Unsupported value", "spec.usages[1]: Duplicate value"}},
		{name: "legacy signer", change: func(c *signingRequest) { c.Spec.SignerName = "kubernetes.io/legacy-unknown" }, want: []string{"spec.signerName: Invalid value: the legacy signerName is not allowed"}},
		{name: "no signer", change: func(c *signingRequest) { c.Spec.SignerName = "" }, want: []string{"spec.signerName: Required value"}},
		{name: "signer without domain", change: func(c *signingRequest) { c.Spec.SignerName = "signer" }, want: []string{"spec.signerName: Invalid value: must be a fully qualified domain and path"}},
		{name: "short domain", change: func(c *signingRequest) { c.Spec.SignerName = "com/signer" }, want: []string{"spec.signerName: Invalid value: should be a domain with at least two segments"}},
		{name: "bad labels", change: func(c *signingRequest) { c.Spec.SignerName = "A.com/B" }, want: []string{"spec.signerName: Invalid value: validating label \"A\"", "spec.signerName: Invalid value: validating label \"B\""}},
		{name: "long signer", change: func(c *signingRequest) {
			c.Spec.SignerName = "a.com/" + strings.Repeat("a", 253) + "." + strings.Repeat("a", 253) + "." + strings.Repeat("a", 253)
		}, want: []string{"spec.signerName: Too long"}},
		{name: "short life", change: func(c *signingRequest) { c.Spec.ExpirationSeconds = ptr.To[int32](599) }, want: []string{"spec.expirationSeconds: Invalid value: may not specify a duration less than 600 seconds"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(CertificateSigningRequest, request, csr(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestSigningRequestKeepsWhoAsked(t *testing.T) {
	forged := csr(func(c *signingRequest) {
		c.Spec.Username, c.Spec.Extra = "root", map[string]certificatesv1.ExtraValue{"x": nil}
		c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{condition("Approved")}
	})
	created, errs := kindtest.Create(CertificateSigningRequest, request, forged)
	kindtest.Errors(t, errs)
	if spec := created.Spec; spec.Username != "alice" || spec.UID != "1" || !reflect.DeepEqual(spec.Groups, []string{"g"}) || !reflect.DeepEqual(spec.Extra, map[string]certificatesv1.ExtraValue{"k": {"v"}}) {
		t.Errorf("spec = %+v", spec)
	}
	if len(created.Status.Conditions) != 0 {
		t.Errorf("a request approved itself: %v", created.Status.Conditions)
	}
	updated, errs := kindtest.Update(CertificateSigningRequest, request, forged, created)
	kindtest.Errors(t, errs)
	if !reflect.DeepEqual(updated.Spec, created.Spec) {
		t.Errorf("spec changed to %+v", updated.Spec)
	}
}

func TestApproval(t *testing.T) {
	approved := condition("Approved")
	approved.LastUpdateTime, approved.LastTransitionTime = earlier, earlier
	falseApproval := condition("Approved")
	falseApproval.Status = "False"
	for _, test := range []struct {
		name     string
		obj, old *signingRequest
		want     []string
	}{
		{name: "approve", obj: withConditions(condition("Approved")), old: csr(nil)},
		{name: "deny", obj: withConditions(condition("Denied")), old: csr(nil)},
		{name: "both", obj: withConditions(condition("Approved"), condition("Denied")), old: csr(nil), want: []string{"status.conditions: Invalid value: must specify at most one of"}},
		{name: "both before", obj: withConditions(condition("Approved"), condition("Denied")), old: withConditions(condition("Approved"), condition("Denied"))},
		{name: "false", obj: withConditions(falseApproval), old: csr(nil), want: []string{"status.conditions[0].status: Unsupported value"}},
		{name: "empty", obj: withConditions(certificatesv1.CertificateSigningRequestCondition{}), old: csr(nil), want: []string{"status.conditions[0].type: Required value", "status.conditions[0].status: Required value"}},
		{name: "twice", obj: withConditions(approved, approved), old: csr(nil), want: []string{"status.conditions[1].type: Duplicate value"}},
		{name: "withdraw", obj: csr(nil), old: withConditions(approved), want: []string{"status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.UpdateSubresource(CertificateSigningRequest, "approval", request, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}

	old := withConditions(condition("Failed"))
	old.Status.Certificate = []byte("kept")
	obj := withConditions(condition("Failed"), condition("Approved"))
	obj.Spec.SignerName = "other.com/x"
	got, errs := kindtest.UpdateSubresource(CertificateSigningRequest, "approval", request, obj, old)
	kindtest.Errors(t, errs)
	if got.Spec.SignerName != old.Spec.SignerName || string(got.Status.Certificate) != "kept" {
		t.Error("approval changed more than the conditions")
	}
	if c := got.Status.Conditions[1]; !c.LastUpdateTime.Equal(&now) || !c.LastTransitionTime.Equal(&now) {
		t.Errorf("times were not set: %+v", c)
	}
}

func TestSigningRequestStatus(t *testing.T) {
	issued := func(data string) *signingRequest {
		return csr(func(c *signingRequest) { c.Status.Certificate = []byte(data) })
	}
	good := block("CERTIFICATE", certificate(nil))
	for _, test := range []struct {
		name     string
		obj, old *signingRequest
		want     []string
	}{
		{name: "issue", obj: issued(good), old: csr(nil)},
		{name: "fail", obj: withConditions(condition("Failed")), old: csr(nil)},
		{name: "no pem", obj: issued("x"), old: csr(nil), want: []string{"status.certificate: Invalid value: must contain at least one CERTIFICATE PEM block"}},
		{name: "key", obj: issued(block("PRIVATE KEY", nil)), old: csr(nil), want: []string{"status.certificate: Invalid value: only CERTIFICATE PEM blocks are allowed"}},
		{name: "reissue", obj: issued(block("CERTIFICATE", certificate(nil)) + good), old: issued(good), want: []string{"status.certificate: Forbidden: updates may not modify existing certificate content"}},
		{name: "approve", obj: withConditions(condition("Approved")), old: csr(nil), want: []string{"status.conditions: Forbidden: updates may not add a condition of type \"Approved\""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.UpdateSubresource(CertificateSigningRequest, "status", request, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}

	stored, stale := condition("Approved"), condition("Approved")
	stored.Reason, stored.LastUpdateTime, stored.LastTransitionTime = "Good", earlier, earlier
	got, errs := kindtest.UpdateSubresource(CertificateSigningRequest, "status", request, withConditions(stale), withConditions(stored))
	kindtest.Errors(t, errs)
	if !reflect.DeepEqual(got.Status.Conditions[0], stored) {
		t.Errorf("the approver's condition changed: %+v", got.Status.Conditions[0])
	}
}

func TestSigningRequestRow(t *testing.T) {
	for _, test := range []struct {
		change func(*signingRequest)
		want   []any
	}{
		{nil, []any{"r", "<unknown>", "example.com/signer", "", "<none>", "Pending"}},
		{func(c *signingRequest) {
			c.CreationTimestamp, c.Spec.Username, c.Spec.ExpirationSeconds = earlier, "alice", ptr.To[int32](3600)
			c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{condition("Approved"), condition("Failed")}
			c.Status.Certificate = []byte("x")
		}, []any{"r", "60m", "example.com/signer", "alice", "60m", "Approved,Failed,Issued"}},
		{func(c *signingRequest) {
			c.Spec.SignerName, c.Status.Conditions = "", []certificatesv1.CertificateSigningRequestCondition{condition("Approved"), condition("Denied")}
		}, []any{"r", "<unknown>", "<none>", "", "<none>", "Denied"}},
	} {
		if got := CertificateSigningRequest.Row(csr(test.change), now.Time); !reflect.DeepEqual(got, test.want) {
			t.Errorf("row = %q, want %q", got, test.want)
		}
	}
	if got := CertificateSigningRequest.Fields["spec.signerName"](csr(nil)); got != "example.com/signer" {
		t.Errorf("selector = %q", got)
	}
}

func TestTrustBundles(t *testing.T) {
	anchor := block("CERTIFICATE", certificate(nil))
	leaf := block("CERTIFICATE", certificate(func(c *x509.Certificate) { c.IsCA = false }))
	bundle := func(name, signer, anchors string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchors}}
	}
	for _, test := range []struct {
		name     string
		obj, old *certificatesv1.ClusterTrustBundle
		want     []string
	}{
		{name: "plain", obj: bundle("b", "", anchor)},
		{name: "of a signer", obj: bundle("example.com:x:b", "example.com/x", anchor)},
		{name: "colon", obj: bundle("a:b", "", anchor), want: []string{"metadata.name: Invalid value: ClusterTrustBundle without signer name must not have \":\""}},
		{name: "prefix", obj: bundle("b", "example.com/x", anchor), want: []string{"metadata.name: Invalid value: must be named with prefix example.com:x:"}},
		{name: "signer", obj: bundle("com:x:b", "com/x", anchor), want: []string{"spec.signerName: Invalid value: should be a domain"}},
		{name: "empty", obj: bundle("b", "", ""), want: []string{"spec.trustBundle: Invalid value: at least one trust anchor must be provided"}},
		{name: "leaf", obj: bundle("b", "", anchor+leaf), want: []string{"spec.trustBundle: Invalid value: entry 1 does not have the CA bit set"}},
		{name: "type", obj: bundle("b", "", block("KEY", nil)), want: []string{"spec.trustBundle: Invalid value: entry 0 has bad block type: KEY"}},
		{name: "garbage", obj: bundle("b", "", block("CERTIFICATE", []byte("x"))), want: []string{"spec.trustBundle: Invalid value: entry 0 does not parse as X.509"}},
		{name: "twice", obj: bundle("b", "", anchor+anchor), want: []string{"spec.trustBundle: Invalid value: duplicate trust anchor (indices [0 1])"}},
		{name: "large", obj: bundle("b", "", strings.Repeat("x", maxTrustBundleSize+1)), want: []string{"spec.trustBundle: Too long"}},
		{name: "old garbage", obj: bundle("b", "", "x"), old: bundle("b", "", "x")},
		{name: "other signer", obj: bundle("example.com:x:b", "example.com/x", anchor), old: bundle("example.com:x:b", "", anchor), want: []string{"spec.signerName: Invalid value: field is immutable"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.old != nil {
				_, errs := kindtest.Update(ClusterTrustBundle, request, test.obj, test.old)
				kindtest.Errors(t, errs, test.want...)
				return
			}
			_, errs := kindtest.Create(ClusterTrustBundle, request, test.obj)
			kindtest.Errors(t, errs, test.want...)
		})
	}
	if got := ClusterTrustBundle.Row(bundle("b", "", ""), now.Time); !reflect.DeepEqual(got, []any{"b", "<none>"}) {
		t.Errorf("row = %v", got)
	}
}

func podReq(change func(*podRequest)) *podRequest {
	req := &podRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "ns"},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/signer", PodName: "p", PodUID: "1", ServiceAccountName: "s", ServiceAccountUID: "2", NodeName: "n", NodeUID: "3",
			StubPKCS10Request: stub(key),
		},
	}
	if change != nil {
		change(req)
	}
	return req
}

func TestPodCertificateRequests(t *testing.T) {
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tampered := stub(key)
	tampered[len(tampered)-1] ^= 1
	for _, test := range []struct {
		name   string
		change func(*podRequest)
		want   []string
	}{
		{name: "valid"},
		{name: "nothing", change: func(r *podRequest) { r.Spec = certificatesv1.PodCertificateRequestSpec{} }, want: []string{
			"spec.signerName: Required value", "spec.podName: Invalid value", "spec.podUID: Invalid value: must not be empty",
			"spec.serviceAccountName: Invalid value", "spec.serviceAccountUID: Invalid value", "spec.nodeName: Invalid value", "spec.nodeUID: Invalid value",
			"spec: Invalid value: exactly one of (stubPKCS10Request)"}},
		{name: "short", change: func(r *podRequest) { r.Spec.MaxExpirationSeconds = ptr.To[int32](3599) }, want: []string{"spec.maxExpirationSeconds: Invalid value: must be in the range [3600, 7862400]"}},
		{name: "long for Kubernetes", change: func(r *podRequest) {
			r.Spec.SignerName, r.Spec.MaxExpirationSeconds = "kubernetes.io/x", ptr.To[int32](86401)
		}, want: []string{"spec.maxExpirationSeconds: Invalid value: must be in the range [3600, 86400]"}},
		{name: "garbage", change: func(r *podRequest) { r.Spec.StubPKCS10Request = []byte("x") }, want: []string{"spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR"}},
		{name: "tampered", change: func(r *podRequest) { r.Spec.StubPKCS10Request = tampered }, want: []string{"spec.stubPKCS10Request: Invalid value: invalid signature"}},
		{name: "curve", change: func(r *podRequest) { r.Spec.StubPKCS10Request = stub(p224) }, want: []string{"spec.stubPKCS10Request: Invalid value: elliptic public keys must use curve"}},
		{name: "large", change: func(r *podRequest) { r.Spec.StubPKCS10Request = make([]byte, maxStubSize+1) }, want: []string{"spec.stubPKCS10Request: Too long"}},
		{name: "annotations", change: func(r *podRequest) { r.Spec.UnverifiedUserAnnotations = map[string]string{"plain": ""} }, want: []string{"spec.unverifiedUserAnnotations: Invalid value: must be a domain-prefixed key"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(PodCertificateRequest, request, podReq(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	_, errs := kindtest.Update(PodCertificateRequest, request, podReq(func(r *podRequest) { r.Spec.PodUID = "9" }), podReq(nil))
	if len(errs) == 0 || errs[0].Field != "spec" {
		t.Errorf("errors = %v, want an immutable spec", errs)
	}
}

func TestPodCertificateOutcomes(t *testing.T) {
	base := podReq(nil)
	outcome := func(typ string, change func(*podRequest)) *podRequest {
		req := base.DeepCopy()
		req.Status.Conditions = []metav1.Condition{{Type: typ, Status: "True", Reason: "R", LastTransitionTime: now}}
		if change != nil {
			change(req)
		}
		return req
	}
	issued := func(template func(*x509.Certificate), change func(*podRequest)) *podRequest {
		return outcome("Issued", func(r *podRequest) {
			r.Status.CertificateChain = block("CERTIFICATE", certificate(template))
			r.Status.NotBefore, r.Status.NotAfter = ptr.To(now), ptr.To(metav1.NewTime(now.Add(2*time.Hour)))
			r.Status.BeginRefreshAt = ptr.To(metav1.NewTime(now.Add(time.Hour)))
			if change != nil {
				change(r)
			}
		})
	}
	_, otherKey, _ := ed25519.GenerateKey(rand.Reader)
	for _, test := range []struct {
		name     string
		obj, old *podRequest
		want     []string
	}{
		{name: "issued", obj: issued(nil, nil), old: base},
		{name: "denied", obj: outcome("Denied", nil), old: base},
		{name: "denied with more", obj: outcome("Denied", func(r *podRequest) { r.Status.CertificateChain = "x" }), old: base, want: []string{"status: Invalid value: non-condition status fields must be empty"}},
		{name: "again", obj: outcome("Failed", nil), old: outcome("Denied", nil), want: []string{"status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed"}},
		{name: "no outcome", obj: podReq(func(r *podRequest) { r.Status.CertificateChain = "x" }), old: base, want: []string{"status: Invalid value: status is immutable unless transitioning"}},
		{name: "unknown condition", obj: outcome("Lost", nil), old: base, want: []string{"status.conditions.[0].type: Unsupported value"}},
		{name: "false condition", obj: outcome("Failed", func(r *podRequest) { r.Status.Conditions[0].Status = "False" }), old: base, want: []string{"status.conditions.[0].status: Unsupported value"}},
		{name: "two outcomes", obj: outcome("Failed", func(r *podRequest) {
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: "Denied", Status: "True", Reason: "R", LastTransitionTime: now})
		}), old: base, want: []string{"status.conditions.[1].type: Invalid value: There may be at most one condition"}},
		{name: "no chain", obj: outcome("Issued", nil), old: base, want: []string{"status.certificateChain: Invalid value: must contain at least one certificate"}},
		{name: "no times", obj: issued(nil, func(r *podRequest) { r.Status.NotBefore, r.Status.NotAfter, r.Status.BeginRefreshAt = nil, nil, nil }), old: base,
			want: []string{"status.notBefore: Required value", "status.notAfter: Required value", "status.beginRefreshAt: Required value"}},
		{name: "other key", obj: issued(nil, nil), old: podReq(func(r *podRequest) { r.Spec.StubPKCS10Request = stub(otherKey) }), want: []string{"status.certificateChain: Invalid value: leaf certificate was not issued to the requested public key"}},
		{name: "bad name", obj: issued(func(c *x509.Certificate) { c.DNSNames = []string{"a..b."} }, nil), old: base, want: []string{
			"status.certificateChain: Invalid value: should not contain '..'", "status.certificateChain: Invalid value: should not start or end with '.'"}},
		{name: "wrong start", obj: issued(nil, func(r *podRequest) { r.Status.NotBefore = &earlier }), old: base, want: []string{"status.notBefore: Invalid value: must be set to the NotBefore time"}},
		{name: "old certificate", obj: issued(func(c *x509.Certificate) { c.NotBefore = earlier.Time }, func(r *podRequest) { r.Status.NotBefore = &earlier }), old: base, want: []string{"status.notBefore: Invalid value: must be set to within 5 minutes"}},
		{name: "wrong end", obj: issued(nil, func(r *podRequest) { r.Status.NotAfter = &now }), old: base, want: []string{"status.notAfter: Invalid value: must be set to the NotAfter time"}},
		{name: "short", obj: issued(func(c *x509.Certificate) { c.NotAfter = now.Add(time.Minute) }, func(r *podRequest) { r.Status.NotAfter = ptr.To(metav1.NewTime(now.Add(time.Minute))) }), old: base,
			want: []string{"status.certificateChain: Invalid value: leaf certificate lifetime must be >= 1 hour"}},
		{name: "long", obj: issued(func(c *x509.Certificate) { c.NotAfter = now.Add(48 * time.Hour) }, func(r *podRequest) { r.Status.NotAfter = ptr.To(metav1.NewTime(now.Add(48 * time.Hour))) }), old: base,
			want: []string{"status.certificateChain: Invalid value: leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"}},
		{name: "early refresh", obj: issued(nil, func(r *podRequest) { r.Status.BeginRefreshAt = &now }), old: base, want: []string{"status.beginRefreshAt: Invalid value: must be at least 10 minutes after"}},
		{name: "late refresh", obj: issued(nil, func(r *podRequest) { r.Status.BeginRefreshAt = r.Status.NotAfter }), old: base, want: []string{"status.beginRefreshAt: Invalid value: must be at least 10 minutes before"}},
		{name: "intermediate", obj: issued(nil, func(r *podRequest) { r.Status.CertificateChain += block("CERTIFICATE", []byte("x")) }), old: base, want: []string{"status.certificateChain: Invalid value: intermediate certificate does not parse"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.obj.Spec = *test.old.Spec.DeepCopy()
			_, errs := kindtest.UpdateSubresource(PodCertificateRequest, "status", request, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}
	got := PodCertificateRequest.Row(outcome("Denied", nil), now.Time)
	if want := []any{"r", "p", "s", "n", "example.com/signer", "Denied", "<none>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
}
