package volume

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// issuer responds to token requests with numbered tokens.
type issuer struct {
	issued int
	fails  error
	asked  *authenticationv1.TokenRequest
}

func (i *issuer) request(_ context.Context, _, _ string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	i.asked = r
	if i.fails != nil {
		return nil, i.fails
	}
	i.issued++
	answer := r.DeepCopy()
	answer.Status.Token = strings.Repeat("t", i.issued)
	answer.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*r.Spec.ExpirationSeconds) * time.Second))
	return answer, nil
}

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &issuer{}
		all := newTokens(nil)
		all.request = api.request
		pod := testPod()
		source := &corev1.ServiceAccountTokenProjection{Audience: "a", ExpirationSeconds: pointer(int64(1000))}
		get := func(step, want, failure string) {
			t.Helper()
			got, err := all.get(t.Context(), pod, source, true)
			if got.text != want || failure == "" && !got.expires.After(time.Now()) || !strings.Contains(errorText(err), failure) || failure == "" && err != nil {
				t.Errorf("%s: %q, %v", step, got.text, err)
			}
		}
		get("first", "t", "")
		if r := api.asked.Spec; r.Audiences[0] != "a" || r.BoundObjectRef.UID != pod.UID || r.BoundObjectRef.Kind != "Pod" {
			t.Errorf("asked for %+v", r)
		}
		time.Sleep(780 * time.Second)
		get("not due", "t", "")
		time.Sleep(25 * time.Second)
		get("a fifth is left", "tt", "")
		api.fails = errors.New("down")
		time.Sleep(850 * time.Second)
		get("due and the server is down", "tt", "")
		time.Sleep(200 * time.Second)
		get("too old", "", "token expired and refresh failed: down")
		all.forget(pod.UID)
		get("forgotten", "", "failed to fetch token: down")
		api.fails = nil
		source.ExpirationSeconds = pointer(int64(30 * 24 * 3600))
		get("long", "ttt", "")
		time.Sleep(24*time.Hour + time.Second)
		get("a day old", "tttt", "")
	})
}

// TestTokenUsedOnce: a pod is not synced again for the token of a volume that gets no other, such as of a CSI driver without requiresRepublish.
func TestTokenUsedOnce(t *testing.T) {
	v := testVolumes(t.TempDir(), &fakeObjects{})
	api := &issuer{}
	v.tokens.request = api.request
	pod := testPod()
	for _, use := range []struct{ renewed, synced bool }{{false, false}, {true, true}, {false, true}} {
		if _, err := v.tokens.get(t.Context(), pod, &corev1.ServiceAccountTokenProjection{Audience: "a", ExpirationSeconds: pointer(int64(1000))}, use.renewed); err != nil {
			t.Fatal(err)
		}
		if at := v.RefreshAt(pod.UID); at.IsZero() == use.synced {
			t.Errorf("used by a volume that renews it %t: the pod is synced again at %v", use.renewed, at)
		}
	}
	if api.issued != 1 {
		t.Errorf("%d tokens were requested", api.issued)
	}
}

func TestOnlyUser(t *testing.T) {
	user := func(ids ...*int64) *corev1.Pod {
		pod := &corev1.Pod{}
		for _, id := range ids {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{SecurityContext: &corev1.SecurityContext{RunAsUser: id}})
		}
		return pod
	}
	one, two := pointer(int64(1)), pointer(int64(2))
	for _, test := range []struct {
		pod  *corev1.Pod
		want *int64
	}{{user(one, one), one}, {user(one, two), nil}, {user(one, nil), nil}, {user(nil), nil}} {
		if got := onlyUser(test.pod); (got == nil) != (test.want == nil) || got != nil && *got != *test.want {
			t.Errorf("%v", got)
		}
	}
}

func TestTrustAnchors(t *testing.T) {
	anchor := func(text string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
	}
	bundle := func(name, signer, label, text string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		}
	}
	v := testVolumes(t.TempDir(), &fakeObjects{bundles: []*certificatesv1.ClusterTrustBundle{
		bundle("plain", "", "", "a comment\n"+anchor("b")+"another\n"+anchor("a")+anchor("b")),
		bundle("s:1", "s", "live", anchor("c")+anchor("a")), bundle("s:2", "s", "live", anchor("b")+anchor("c")), bundle("s:3", "s", "old", anchor("z")),
		bundle("o:1", "o", "live", anchor("y")),
	}})
	live := &metav1.LabelSelector{MatchLabels: map[string]string{"l": "live"}}
	for name, test := range map[string]struct {
		source corev1.ClusterTrustBundleProjection
		want   string
	}{
		"by name":                {corev1.ClusterTrustBundleProjection{Name: pointer("plain")}, anchor("a") + anchor("b")},
		"by signer":              {corev1.ClusterTrustBundleProjection{SignerName: pointer("s"), LabelSelector: live}, anchor("a") + anchor("b") + anchor("c")},
		"by signer, all":         {corev1.ClusterTrustBundleProjection{SignerName: pointer("s"), LabelSelector: &metav1.LabelSelector{}}, anchor("a") + anchor("b") + anchor("c") + anchor("z")},
		"by signer, no selector": {corev1.ClusterTrustBundleProjection{SignerName: pointer("s"), Optional: pointer(true)}, ""},
		"optional":               {corev1.ClusterTrustBundleProjection{Name: pointer("absent"), Optional: pointer(true)}, ""},
	} {
		got, err := v.trustAnchors(&test.source)
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := v.trustAnchors(&corev1.ClusterTrustBundleProjection{}); err == nil {
		t.Error("a projection of nothing succeeds")
	}
}

func TestKeyTypes(t *testing.T) {
	for _, kind := range []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		key, proof, err := newKey(kind)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		request, err := x509.ParseCertificateRequest(proof)
		if err != nil || request.CheckSignature() != nil {
			t.Errorf("%s: the proof is none: %v", kind, err)
		}
		block, rest := pem.Decode(key)
		if block == nil || block.Type != "PRIVATE KEY" || len(rest) != 0 {
			t.Fatalf("%s: no key in %q", kind, key)
		}
		if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, _, err := newKey("DSA"); err == nil {
		t.Error("an unknown type of key is made")
	}
}

// signer is a fake API with a signer whose result the test sets.
type signer struct {
	requests  []*certificatesv1.PodCertificateRequest
	condition string
	refreshAt time.Time
}

func (s *signer) api() certificateAPI {
	return certificateAPI{
		account: func(context.Context, string, string) (*corev1.ServiceAccount, error) {
			return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "account"}}, nil
		},
		node: func(context.Context, string) (*corev1.Node, error) {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "node-uid"}}, nil
		},
		create: func(_ context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error) {
			r = r.DeepCopy()
			r.Name = strings.Repeat("r", len(s.requests)+1)
			s.requests = append(s.requests, r)
			return r, nil
		},
		get: func(_ context.Context, _, name string) (*certificatesv1.PodCertificateRequest, error) {
			if len(name) > len(s.requests) {
				return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequests"), name)
			}
			r := s.requests[len(name)-1].DeepCopy()
			if s.condition != "" {
				r.Status.Conditions = []metav1.Condition{{Type: s.condition, Reason: "R", Message: "M"}}
				r.Status.CertificateChain = "comment\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)}))
				r.Status.BeginRefreshAt = &metav1.Time{Time: s.refreshAt}
			}
			return r, nil
		},
	}
}

func TestPodCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &signer{condition: certificatesv1.PodCertificateRequestConditionTypeIssued, refreshAt: time.Now().Add(time.Hour)}
		all := newCertificates(nil, "node")
		all.api = api.api()
		pod, source := testPod(), &corev1.PodCertificateProjection{SignerName: "s/x", KeyType: "ED25519", UserAnnotations: map[string]string{"a": "b"}}
		get := func() ([]byte, []byte, error) { return all.get(t.Context(), pod, "v", 0, source) }
		key, chain, err := get()
		if err != nil || !bytes.HasPrefix(key, []byte("-----BEGIN PRIVATE KEY")) || !bytes.HasPrefix(chain, []byte("-----BEGIN CERTIFICATE")) {
			t.Fatalf("%s %s %v", key, chain, err)
		}
		spec := api.requests[0].Spec
		if spec.PodUID != pod.UID || spec.ServiceAccountUID != "account" || spec.NodeUID != "node-uid" || spec.NodeName != "node" || spec.SignerName != "s/x" || spec.UnverifiedUserAnnotations["a"] != "b" {
			t.Errorf("asked for %+v", spec)
		}
		if again, _, _ := get(); !bytes.Equal(again, key) || len(api.requests) != 1 {
			t.Error("a certificate that is good is replaced")
		}
		// Renewal is due, but not signed yet: the old one is used.
		api.condition = ""
		time.Sleep(2 * time.Hour)
		if old, _, err := get(); err != nil || !bytes.Equal(old, key) || len(api.requests) != 2 {
			t.Errorf("%v, %d requests", err, len(api.requests))
		}
		api.condition, api.refreshAt = certificatesv1.PodCertificateRequestConditionTypeIssued, time.Now().Add(time.Hour)
		fresh, newChain, err := get()
		if err != nil || bytes.Equal(fresh, key) || bytes.Equal(newChain, chain) || len(api.requests) != 2 {
			t.Errorf("not replaced: %v, %d requests", err, len(api.requests))
		}
		for condition, want := range map[string]string{
			"": "credential bundle is not issued yet",
			certificatesv1.PodCertificateRequestConditionTypeDenied: `PodCertificateRequest was permanently denied: reason="R" message="M"`,
			certificatesv1.PodCertificateRequestConditionTypeFailed: `PodCertificateRequest was permanently failed: reason="R" message="M"`,
		} {
			all.forget(pod.UID)
			api.condition = condition
			if _, _, err := get(); errorText(err) != want {
				t.Errorf("%q: %v", condition, err)
			}
		}
	})
}
