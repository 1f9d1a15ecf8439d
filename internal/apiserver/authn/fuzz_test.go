package authn

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzToken: only issued tokens are accepted, no modification of them is, and parsing never panics.
func FuzzToken(f *testing.F) {
	w := newWorld(f, testKey)
	good := w.issue(f, nil)
	parts := strings.Split(good, ".")
	other := strings.Split(w.issue(f, nil), ".")
	for _, seed := range []string{
		good, "", ".", "..", "...", parts[0] + "." + parts[1] + ".", "e30.e30.e30", parts[0] + ".e30." + parts[2],
		parts[0] + "." + other[1] + "." + parts[2], parts[0] + "." + parts[1] + "." + other[2], good + "=", good + "\n", "bnVsbA." + parts[1] + "." + parts[2],
		"eyJhbGciOiJub25lIn0." + parts[1] + ".AA", "{\"payload\":1}", "abcdef.0123456789abcdef",
	} {
		f.Add(seed)
	}
	known := map[string]bool{good: true, strings.Join(other, "."): true}
	f.Fuzz(func(t *testing.T, token string) {
		if parsed, err := parseToken(token); err == nil && encoded(t, token, parsed) != token {
			t.Errorf("the token has another encoding")
		}
		if id, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil); ok && !known[token] {
			t.Errorf("accepted as %+v, %v", id, err)
		} else if err != nil && len(token) > 20 && strings.Contains(err.Error(), token) {
			t.Error("the error quotes the token")
		}
	})
}

// encoded is the one spelling of a parsed token.
func encoded(t *testing.T, token string, parsed *unverifiedToken) string {
	header, _, _ := strings.Cut(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		t.Errorf("header: %v", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode(raw) + "." + encode(parsed.claims) + "." + encode(parsed.jws.Signatures[0].Signature)
}

// FuzzClaims: decoding the claims of correctly signed tokens never panics, and no token is accepted without an existing service
// account.
func FuzzClaims(f *testing.F) {
	w := newWorld(f, testKey)
	w.objects.remove(w.account)
	sign := signES256(f, testKey)
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"iss":"` + testIssuer + `"}`, `{"iss":"` + testIssuer + `","aud":["api"],"exp":1e20}`,
		`{"iss":"kubernetes/serviceaccount","sub":"system:serviceaccount:ns:robot","kubernetes.io/serviceaccount/namespace":"ns"}`,
		`{"iss":"` + testIssuer + `","aud":"api","exp":-1,"kubernetes.io":{"pod":null,"serviceaccount":{}}}`,
		`{"iss":"` + testIssuer + `","aud":{"a":1}}`, `{"iss":["x"]}`, `{"iss":"a","iss":"` + testIssuer + `"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, claims string) {
		token := forge(t, map[string]any{"alg": "ES256"}, json.RawMessage(nil), func([]byte) []byte { return []byte{0} })
		header, _, _ := strings.Cut(token, ".")
		signed := header + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		token = signed + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(signed)))
		if id, ok, _ := w.accounts.IdentifyToken(t.Context(), token, nil); ok {
			t.Errorf("accepted as %+v", id)
		}
	})
}

// FuzzHeaders: without a certificate or a valid token, no headers authenticate a user.
func FuzzHeaders(f *testing.F) {
	w := newWorld(f, testKey)
	proxies := newTestCA(f, "proxies")
	a, err := New(Config{
		Audiences: []string{"api"}, FrontProxy: &FrontProxyConfig{CAs: proxies.Pool}, ClientCAs: proxies.Pool,
		ServiceAccounts: w.accounts, BootstrapTokens: NewBootstrapTokens(w.objects), Anonymous: &AnonymousUser{},
	})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][3]string{
		{"Authorization", "Bearer x", ""}, {"Authorization", "Bearer  x", ""}, {"Authorization", "bearer", "X-Remote-User"}, {"X-Remote-User", "admin", "X-Remote-Group"},
		{"X-Remote-Extra-%zz", "v", "X-REMOTE-EXTRA-a"}, {"Authorization", "Basic Og==", "Authorization"}, {"Sec-Websocket-Protocol", "a,base64url.bearer.authorization.k8s.io.eA", "Upgrade"},
		{"Authorization", "\u00a0Bearer\u00a0x", "authorization"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, value, other string) {
		r := mustRequest(t, "/")
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		r.Header[other] = append(r.Header[other], value)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		user, ok, err := a.Authenticate(r)
		if ok && user.Username != Anonymous {
			t.Errorf("%q: %q made %+v", name, value, user)
		}
		if err != nil && len(value) > 30 && utf8.ValidString(value) && strings.Contains(err.Error(), value) {
			t.Errorf("the error quotes the header: %v", err)
		}
		for header := range r.Header {
			if ok && hasPrefixFold(header, "X-Remote-Extra-") {
				t.Errorf("header %q is still there", header)
			}
		}
	})
}
