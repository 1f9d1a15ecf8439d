package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"skiff/internal/pki"
)

// whoami returns the user a client is authenticated as; empty if it is not authenticated.
func whoami(t *testing.T, c *caller) string {
	t.Helper()
	code, text := c.do(t, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`)
	if code == 401 {
		return ""
	}
	if code == 403 { // anonymous users may not create reviews
		return "system:anonymous"
	}
	var review authenticationv1.SelfSubjectReview
	decode(t, []byte(text), &review)
	return review.Status.UserInfo.Username
}

// The headers of a front proxy are accepted only with the proxy's certificate, issued by the front-proxy CA.
func frontProxyHeaders(t *testing.T, a *target) {
	forged := func(c *caller) *caller {
		return c.with("X-Remote-User", "eve").with("X-Remote-Group", "system:masters").with("X-Remote-Uid", "1").with("X-Remote-Extra-Scopes", "all")
	}
	front, err := pki.ReadCA(filepath.Join(string(a.pki), "front-proxy-ca.crt"), filepath.Join(string(a.pki), "front-proxy-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	untrustedCA, err := pki.NewCA("skiff-front-proxy-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct {
		name string
		c    *caller
		want string
	}{
		{"without a certificate", a.anonymous(), "system:anonymous"},
		{"a user", a.user(t, "bob"), "bob"},
		{"a user called like the proxy", a.user(t, pki.FrontProxyClientName), pki.FrontProxyClientName},
		{"another certificate of the front-proxy CA", a.caller(t, front, pki.User("bob")), ""},
		{"a serving certificate of the front-proxy CA", a.caller(t, front, pki.Leaf{CommonName: pki.FrontProxyClientName, Server: true}), ""},
		{"a CA with the front-proxy CA's name", a.caller(t, untrustedCA, pki.FrontProxyClient()), ""},
		{"an expired proxy", a.caller(t, front, pki.Leaf{CommonName: pki.FrontProxyClientName, Client: true, Lifetime: time.Nanosecond}), ""},
		{"the proxy", a.caller(t, front, pki.FrontProxyClient()), "eve"},
	} {
		if got := whoami(t, forged(who.c)); got != who.want {
			t.Errorf("%s is authenticated as %q, want %q", who.name, got, who.want)
		}
	}
	forged(a.anonymous()).refused(t, 403, "GET", "/api/v1/secrets", "")
	forged(a.user(t, "bob")).refused(t, 403, "GET", "/api/v1/secrets", "")
	// Impersonation without permission is rejected, also if only a user or only a group is given.
	a.user(t, "bob").with("Impersonate-User", "root").refused(t, 403, "GET", "/api/v1/secrets", "")
	a.user(t, "bob").with("Impersonate-Group", "system:masters").refused(t, 400, "GET", "/api/v1/secrets", "")
	a.admin.with("Impersonate-User", "bob").refused(t, 403, "GET", "/api/v1/secrets", "")
}

// A token is valid only as long as all its claims are.
func badTokens(t *testing.T, a *target) {
	a.admin.must(t, "POST", "/api/v1/namespaces/team/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	a.admin.must(t, "POST", "/api/v1/namespaces/team/pods", `{"metadata":{"name":"bearer"},"spec":{"serviceAccountName":"robot","containers":[{"name":"c","image":"i"}]}}`)
	var pod struct{ Metadata struct{ UID string } }
	decode(t, []byte(a.admin.must(t, "GET", "/api/v1/namespaces/team/pods/bearer", "")), &pod)
	request := func(spec string) string {
		t.Helper()
		var response authenticationv1.TokenRequest
		decode(t, []byte(a.admin.must(t, "POST", "/api/v1/namespaces/team/serviceaccounts/robot/token", `{"spec":{`+spec+`}}`)), &response)
		return response.Status.Token
	}
	as := func(token string) string { return whoami(t, a.anonymous().with("Authorization", "Bearer "+token)) }
	const robot = "system:serviceaccount:team:robot"
	bound := `"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"bearer","uid":"` + pod.Metadata.UID + `"}`
	plain, ofPod, elsewhere := request(`"expirationSeconds":3600`), request(bound), request(`"audiences":["vault"]`)
	if got := []string{as(plain), as(ofPod)}; got[0] != robot || got[1] != robot {
		t.Fatalf("valid tokens are authenticated as %q", got)
	}
	for name, token := range map[string]string{
		"another audience": elsewhere, "no token": "x", "two parts": strings.Join(strings.Split(plain, ".")[:2], "."), "no signature": strings.Join(strings.Split(plain, ".")[:2], ".") + ".",
	} {
		if got := as(token); got != "" {
			t.Errorf("%s: authenticated as %q", name, got)
		}
	}
	forgedTokens(t, a, plain, as)

	a.admin.must(t, "DELETE", "/api/v1/namespaces/team/pods/bearer?gracePeriodSeconds=0", "")
	if got := as(ofPod); got != "" {
		t.Errorf("the token of a deleted pod is taken for %q", got)
	}
	a.admin.must(t, "DELETE", "/api/v1/namespaces/team/serviceaccounts/robot", "")
	if got := as(plain); got != "" {
		t.Errorf("the token of a deleted account is taken for %q", got)
	}
	a.admin.must(t, "POST", "/api/v1/namespaces/team/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	if got := as(plain); got != "" {
		t.Errorf("the token of an account before is taken for %q", got)
	}
}

// forgedTokens changes a valid token in every part, and signs as an attacker might.
func forgedTokens(t *testing.T, a *target, good string, as func(string) string) {
	t.Helper()
	signer, err := pki.ReadSigner(filepath.Join(string(a.pki), "service-account.key"))
	if err != nil {
		t.Fatal(err)
	}
	key := signer.(*ecdsa.PrivateKey)
	public, err := os.ReadFile(filepath.Join(string(a.pki), "service-account.pub"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	part := func(text string) map[string]any {
		data, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		decode(t, data, &m)
		return m
	}
	encode := func(value any) string {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	// The server's own key signs tokens that the server never would: only the claims are wrong.
	signed := func(header, claims map[string]any) string {
		text := encode(header) + "." + encode(claims)
		sum := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		return text + "." + base64.RawURLEncoding.EncodeToString(signature)
	}
	header := func(algorithm string) map[string]any {
		h := part(parts[0])
		h["alg"] = algorithm
		return h
	}
	claim := func(name string, value any) map[string]any {
		c := part(parts[1])
		c[name] = value
		return c
	}
	if got := as(signed(part(parts[0]), part(parts[1]))); got == "" {
		t.Fatal("a valid token signed by the test is rejected, so the other cases prove nothing")
	}
	// The token's kubernetes.io claims decide whose it is; other claims change nothing.
	if got := as(signed(part(parts[0]), claim("sub", "system:serviceaccount:kube-system:admin"))); got != "system:serviceaccount:team:robot" {
		t.Errorf("a token with another subject is taken for %q", got)
	}
	now := time.Now().Unix()
	for name, token := range map[string]string{
		"expired":                signed(part(parts[0]), claim("exp", now-60)),
		"expired long ago":       signed(part(parts[0]), claim("exp", 1)),
		"not yet":                signed(part(parts[0]), claim("nbf", now+3600)),
		"another issuer":         signed(part(parts[0]), claim("iss", "https://other.example.com")),
		"another audience":       signed(part(parts[0]), claim("aud", []string{"vault"})),
		"of nothing":             signed(part(parts[0]), claim("kubernetes.io", map[string]any{"namespace": "team"})),
		"changed, not signed":    parts[0] + "." + encode(claim("sub", "system:serviceaccount:kube-system:admin")) + "." + parts[2],
		"alg none":               encode(header("none")) + "." + parts[1] + ".",
		"alg None":               encode(header("None")) + "." + parts[1] + ".",
		"alg none and signature": encode(header("none")) + "." + parts[1] + "." + parts[2],
		"alg empty":              encode(header("")) + "." + parts[1] + "." + parts[2],
		"public key as password": hmacToken(encode(header("HS256"))+"."+parts[1], public),
		"key in the header":      ownKeyToken(t, encode, header("ES256"), parts[1]),
	} {
		if got := as(token); got != "" {
			t.Errorf("%s: authenticated as %q", name, got)
		}
	}
}

// hmacToken signs with the public key as HMAC secret.
func hmacToken(text string, password []byte) string {
	mac := hmac.New(sha256.New, password)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// ownKeyToken carries the key that it was signed with.
func ownKeyToken(t *testing.T, encode func(any) string, header map[string]any, claims string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	encoding := base64.RawURLEncoding
	header["jwk"] = map[string]any{"kty": "EC", "crv": "P-256", "x": encoding.EncodeToString(point[1:33]), "y": encoding.EncodeToString(point[33:])}
	text := encode(header) + "." + claims
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}
