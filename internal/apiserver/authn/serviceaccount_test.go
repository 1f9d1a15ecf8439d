package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
	"skiff/test/metrics"
)

// world is an issuer, an authenticator of its tokens, and their objects.
type world struct {
	issuer   *Issuer
	accounts *ServiceAccounts
	keys     *Keys
	objects  *fakeObjects

	account *corev1.ServiceAccount
	pod     *corev1.Pod
	node    *corev1.Node
	secret  *corev1.Secret
}

func newWorld(t testing.TB, key crypto.Signer) *world {
	t.Helper()
	w := &world{
		account: &corev1.ServiceAccount{ObjectMeta: meta("robot", "account-uid")},
		pod:     &corev1.Pod{ObjectMeta: meta("pod", "pod-uid")},
		node:    &corev1.Node{ObjectMeta: meta("node", "node-uid")},
		secret:  &corev1.Secret{ObjectMeta: meta("secret", "secret-uid"), Type: corev1.SecretTypeServiceAccountToken},
	}
	w.node.Namespace = ""
	w.objects = newObjects(w.account, w.pod, w.node, w.secret)
	var err error
	if w.issuer, err = NewIssuer(IssuerConfig{Issuer: testIssuer, Key: key, Audiences: []string{"api", testIssuer}}); err != nil {
		t.Fatal(err)
	}
	if w.keys, err = NewKeys(key); err != nil {
		t.Fatal(err)
	}
	w.accounts, err = NewServiceAccounts(ServiceAccountsConfig{
		Issuers: []string{testIssuer, "https://old.example.org"}, Keys: w.keys, Audiences: []string{"api", testIssuer}, Objects: w.objects,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) issue(t testing.TB, change func(*kind.TokenClaims)) string {
	t.Helper()
	c := kind.TokenClaims{ServiceAccount: w.account, Audiences: []string{"api"}, ExpirationSeconds: 3600}
	if change != nil {
		change(&c)
	}
	token, _, err := w.issuer.IssueToken(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestBoundTokens(t *testing.T) {
	later := func(d time.Duration) func(*world) { return func(*world) { time.Sleep(d) } }
	pod := func(w *world) func(*kind.TokenClaims) {
		return func(c *kind.TokenClaims) { c.Pod, c.Node = w.pod, w.node }
	}
	for _, test := range []struct {
		name   string
		claims func(w *world) func(*kind.TokenClaims)
		then   func(w *world)
		wanted []string
		err    string
	}{
		{name: "plain"},
		{name: "of a pod", claims: pod},
		{name: "for the second of our names", wanted: []string{"x", "api"}},
		{name: "for another audience", wanted: []string{"vault"}, err: `token audiences ["api"] is invalid for the target audiences ["vault"]`},
		{name: "issued for another audience", claims: func(*world) func(*kind.TokenClaims) {
			return func(c *kind.TokenClaims) { c.Audiences = []string{"vault"} }
		}, err: `token audiences ["vault"] is invalid for the target audiences ["api" "https://issuer.example.org"]`},
		{name: "about to expire", then: later(time.Hour + 59*time.Second)},
		{name: "expired", then: later(time.Hour + 2*time.Minute), err: "service account token has expired"},
		{name: "account deleted", then: func(w *world) { w.objects.remove(w.account) }, err: `serviceaccounts "robot" not found`},
		{name: "account made again", then: func(w *world) {
			w.objects.put(&corev1.ServiceAccount{ObjectMeta: meta("robot", "other")})
		}, err: "service account UID (other) does not match claim (account-uid)"},
		{name: "account being deleted", then: func(w *world) {
			a := w.account.DeepCopy()
			a.DeletionTimestamp = deleted(2 * time.Minute)
			w.objects.put(a)
		}, err: "service account ns/robot has been deleted"},
		{name: "pod deleted", claims: pod, then: func(w *world) { w.objects.remove(w.pod) }, err: "service account token has been invalidated"},
		{name: "pod made again", claims: pod, then: func(w *world) {
			w.objects.put(&corev1.Pod{ObjectMeta: meta("pod", "other")})
		}, err: "pod UID (other) does not match service account pod ref claim (pod-uid)"},
		{name: "pod ending, within its grace period", claims: pod, then: func(w *world) {
			p := w.pod.DeepCopy()
			p.DeletionTimestamp = deleted(-20 * time.Second) // the timestamp is the end of the grace period
			w.objects.put(p)
		}},
		{name: "pod ending, just past its grace period", claims: pod, then: func(w *world) {
			p := w.pod.DeepCopy()
			p.DeletionTimestamp = deleted(30 * time.Second)
			w.objects.put(p)
		}},
		{name: "pod ending, long past its grace period", claims: pod, then: func(w *world) {
			p := w.pod.DeepCopy()
			p.DeletionTimestamp = deleted(2 * time.Minute)
			w.objects.put(p)
		}, err: "service account token has been invalidated"},
		{name: "pod's node deleted", claims: pod, then: func(w *world) { w.objects.remove(w.node) }},
		{name: "node deleted", claims: func(w *world) func(*kind.TokenClaims) {
			return func(c *kind.TokenClaims) { c.Node = w.node }
		}, then: func(w *world) { w.objects.remove(w.node) }, err: "service account token has been invalidated"},
		{name: "secret deleted", claims: func(w *world) func(*kind.TokenClaims) {
			return func(c *kind.TokenClaims) { c.Secret = w.secret }
		}, then: func(w *world) { w.objects.remove(w.secret) }, err: "service account token has been invalidated"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, testKey)
				var change func(*kind.TokenClaims)
				if test.claims != nil {
					change = test.claims(w)
				}
				token := w.issue(t, change)
				// Once before, so that the signature is cached: the cache must not outlive the objects.
				_, _, _ = w.accounts.IdentifyToken(t.Context(), token, test.wanted)
				if test.then != nil {
					test.then(w)
				}
				id, ok, err := w.accounts.IdentifyToken(t.Context(), token, test.wanted)
				if test.err != "" {
					if err == nil || err.Error() != test.err || ok {
						t.Fatalf("%v, %v; want %q", ok, err, test.err)
					}
					return
				}
				if err != nil || !ok || id.User.Username != "system:serviceaccount:ns:robot" || len(id.Audiences) == 0 {
					t.Fatalf("%+v, %v, %v", id, ok, err)
				}
			})
		})
	}
}

func TestTokenUser(t *testing.T) {
	w := newWorld(t, testKey)
	token := w.issue(t, func(c *kind.TokenClaims) { c.Pod, c.Node = w.pod, w.node })
	id, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil)
	if err != nil || !ok {
		t.Fatal(err)
	}
	jti := id.User.Extra[credentialID]
	want := User{
		Username: "system:serviceaccount:ns:robot", UID: "account-uid",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{
			"authentication.kubernetes.io/pod-name": {"pod"}, "authentication.kubernetes.io/pod-uid": {"pod-uid"},
			"authentication.kubernetes.io/node-name": {"node"}, "authentication.kubernetes.io/node-uid": {"node-uid"},
			"authentication.kubernetes.io/credential-id": jti,
		},
	}
	if !reflect.DeepEqual(id.User, want) || len(jti) != 1 || !strings.HasPrefix(jti[0], "JTI=") {
		t.Errorf("user %+v, want %+v", id.User, want)
	}
}

func TestExpirationIsExtended(t *testing.T) {
	for _, test := range []struct {
		name               string
		config             IssuerConfig
		asked              int64
		audiences          []string
		noPod              bool
		reported, lifetime int64
		warned, invalid    bool
	}{
		{name: "mounted", asked: 3607, reported: 3607, lifetime: 365 * 24 * 3600, warned: true},
		{name: "mounted, switched off", config: IssuerConfig{KeepExpiration: true}, asked: 3607, reported: 3607, lifetime: 3607},
		{name: "mounted for another audience", asked: 3607, audiences: []string{"api", "vault"}, reported: 3607, lifetime: 3607},
		{name: "not of a pod", asked: 3607, noPod: true, reported: 3607, lifetime: 3607},
		{name: "another time", asked: 3600, reported: 3600, lifetime: 3600},
		{name: "too long", config: IssuerConfig{MaxExpiration: 2 * time.Hour}, asked: 86400, reported: 7200, lifetime: 7200},
		{name: "mounted, shortened first", config: IssuerConfig{MaxExpiration: time.Hour}, asked: 3607, reported: 3600, lifetime: 3600},
		{name: "limit too low", config: IssuerConfig{MaxExpiration: time.Minute}, invalid: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, testKey)
				test.config.Issuer, test.config.Key, test.config.Audiences = testIssuer, testKey, []string{"api"}
				issuer, err := NewIssuer(test.config)
				if test.invalid {
					if err == nil {
						t.Fatal("accepted")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if test.audiences == nil {
					test.audiences = []string{"api"}
				}
				c := kind.TokenClaims{ServiceAccount: w.account, Pod: w.pod, Audiences: test.audiences, ExpirationSeconds: test.asked}
				if test.noPod {
					c.Pod = nil
				}
				now := time.Now()
				token, reported, err := issuer.IssueToken(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				_, claims := decodeToken(t, token)
				if lifetime := int64(claims["exp"].(float64)) - now.Unix(); reported != test.reported || lifetime != test.lifetime {
					t.Errorf("reported %d, lifetime %d", reported, lifetime)
				}
				if _, warned := claims["kubernetes.io"].(map[string]any)["warnafter"]; warned != test.warned {
					t.Errorf("warnafter: %v", warned)
				}
				if !test.warned {
					return
				}
				if _, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil); err != nil || !ok {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				id, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil)
				if err != nil || !ok {
					t.Fatal(err)
				}
				if got, want := id.Annotations["authentication.k8s.io/stale-token"], "subject: system:serviceaccount:ns:robot, seconds after warning threshold: 3593"; got != want {
					t.Errorf("annotation %q, want %q", got, want)
				}
				registry := prometheus.NewRegistry()
				registry.MustRegister(w.accounts)
				metrics.Check(t, registry, map[string]float64{
					"serviceaccount_valid_tokens_total{}": 1, "serviceaccount_stale_tokens_total{}": 1, "serviceaccount_legacy_tokens_total{}": 0,
				})
			})
		})
	}
}

// forge makes a token of any header and claims.
func forge(t testing.TB, header, claims any, sign func(signed []byte) []byte) string {
	t.Helper()
	encode := func(v any) string {
		data, ok := v.([]byte)
		if !ok {
			var err error
			if data, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	signed := encode(header) + "." + encode(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(signed)))
}

func signES256(t testing.TB, key *ecdsa.PrivateKey) func([]byte) []byte {
	return func(signed []byte) []byte {
		sum := sha256.Sum256(signed)
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature := make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return signature
	}
}

// strayBits is the base64url character after c: the same bytes with an unused bit set, if c is the last character of an
// encoding with unused bits.
func strayBits(c byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[(strings.IndexByte(alphabet, c)+1)%len(alphabet)])
}

func TestForgedTokens(t *testing.T) {
	w := newWorld(t, testKey)
	id, err := keyID(testKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(testKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	type object = map[string]any
	good := func() object {
		return object{"iss": testIssuer, "sub": "system:serviceaccount:ns:robot", "aud": "api", "exp": now + 600, "nbf": now, "iat": now,
			"kubernetes.io": object{"namespace": "ns", "serviceaccount": object{"name": "robot", "uid": "account-uid"}}}
	}
	with := func(key string, value any) object {
		c := good()
		c[key] = value
		return c
	}
	es256 := object{"alg": "ES256", "kid": id}
	sign := signES256(t, testKey)
	secret := func(key []byte) func([]byte) []byte {
		return func(signed []byte) []byte {
			mac := hmac.New(sha256.New, key)
			mac.Write(signed)
			return mac.Sum(nil)
		}
	}
	raw, err := json.Marshal(good())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	valid := forge(t, es256, good(), sign)
	headerKey := mustKey()
	parts := strings.Split(valid, ".")
	for _, test := range []struct {
		name  string
		token string
		ok    bool
	}{
		{"good", valid, true},
		{"without kid", forge(t, object{"alg": "ES256"}, good(), sign), true},
		{"of an issuer of before", forge(t, es256, with("iss", "https://old.example.org"), sign), true},
		{"dates with fractions", forge(t, es256, with("exp", float64(now)+600.5), sign), true},
		{"alg none, no signature", forge(t, object{"alg": "none"}, good(), func([]byte) []byte { return nil }), false},
		{"alg none, signature", forge(t, object{"alg": "none", "kid": id}, good(), sign), false},
		{"alg None", forge(t, object{"alg": "None", "kid": id}, good(), sign), false},
		{"alg missing", forge(t, object{"kid": id}, good(), sign), false},
		{"HMAC with the public key, DER", forge(t, object{"alg": "HS256", "kid": id}, good(), secret(der)), false},
		{"HMAC with the public key, PEM", forge(t, object{"alg": "HS256", "kid": id}, good(), secret(public)), false},
		{"HMAC called ES256", forge(t, es256, good(), secret(der)), false},
		{"RSA named for an EC key", forge(t, object{"alg": "RS256", "kid": id}, good(), sign), false},
		{"another curve named", forge(t, object{"alg": "ES384", "kid": id}, good(), sign), false},
		{"another's key, our kid", forge(t, es256, good(), signES256(t, mustKey())), false},
		{"another's key, no kid", forge(t, object{"alg": "ES256"}, good(), signES256(t, mustKey())), false},
		{"wrong kid", forge(t, object{"alg": "ES256", "kid": "other"}, good(), sign), false},
		{"kid is a path", forge(t, object{"alg": "ES256", "kid": "../../dev/null"}, good(), secret(nil)), false},
		{"key in the header", forge(t, object{"alg": "ES256", "jwk": jose.JSONWebKey{KeyID: "x", Key: headerKey.Public()}}, good(), signES256(t, headerKey)), false},
		{"all zero signature", forge(t, es256, good(), func([]byte) []byte { return make([]byte, 64) }), false},
		{"DER signature", forge(t, es256, good(), func(signed []byte) []byte {
			sum := sha256.Sum256(signed)
			der, _ := ecdsa.SignASN1(rand.Reader, testKey, sum[:])
			return der
		}), false},
		{"unknown issuer", forge(t, es256, with("iss", "https://evil.example.org"), sign), false},
		{"crit", forge(t, object{"alg": "ES256", "kid": id, "crit": []string{"exp"}}, good(), sign), false},
		{"b64", forge(t, object{"alg": "ES256", "kid": id, "b64": false}, good(), sign), false},
		{"not yet valid", forge(t, es256, with("nbf", now+300), sign), false},
		{"issued in the future", forge(t, es256, with("iat", now+300), sign), false},
		{"expired", forge(t, es256, with("exp", now-300), sign), false},
		{"expiry is text", forge(t, es256, with("exp", "never"), sign), false},
		{"expiry beyond all time", forge(t, es256, with("exp", 1e300), sign), false},
		{"no account", forge(t, es256, with("kubernetes.io", object{}), sign), false},
		{"no claims of ours", forge(t, es256, with("kubernetes.io", nil), sign), false},
		{"issuer twice", forge(t, es256, []byte(`{"iss":"x",`+string(raw[1:])), sign), false},
		{"names in other case", forge(t, es256, []byte(strings.Replace(string(raw), `"iss"`, `"ISS"`, 1)), sign), false},
		{"claims are a list", forge(t, es256, []byte(`[1]`), sign), false},
		{"claims are nothing", forge(t, es256, []byte(`null`), sign), false},
		{"two parts", parts[0] + "." + parts[1], false},
		{"four parts", valid + "." + parts[2], false},
		{"empty signature", parts[0] + "." + parts[1] + ".", false},
		{"padding", valid + "=", false},
		{"line break", valid[:20] + "\n" + valid[20:], false},
		{"stray bits at the end", valid[:len(valid)-1] + strayBits(valid[len(valid)-1]), false},
		{"stray bits in the claims", parts[0] + "." + parts[1][:len(parts[1])-1] + strayBits(parts[1][len(parts[1])-1]) + "." + parts[2], false},
		{"EdDSA named for an EC key", forge(t, object{"alg": "EdDSA", "kid": id}, good(), sign), false},
		{"space in front", " " + valid, false},
		{"JSON form", `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, false},
		{"many dots", strings.Repeat(".", 100000), false},
		{"oversized", parts[0] + "." + strings.Repeat("A", 2*maxTokenBytes) + "." + parts[2], false},
		{"signature of another token", parts[0] + "." + strings.Split(forge(t, es256, with("aud", "vault"), sign), ".")[1] + "." + parts[2], false},
		{"empty", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 2 { // also when it is cached
				id, ok, err := w.accounts.IdentifyToken(t.Context(), test.token, nil)
				if ok != test.ok || ok && err != nil {
					t.Fatalf("%+v, %v, %v", id, ok, err)
				}
				if err != nil && test.token != "" && strings.Contains(err.Error(), test.token) {
					t.Errorf("the error quotes the token: %v", err)
				}
			}
		})
	}
}

func TestKeyKinds(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := []crypto.Signer{testKey, rsaKey}
	for _, curve := range []elliptic.Curve{elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		w := newWorld(t, key)
		token := w.issue(t, nil)
		if _, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil); err != nil || !ok {
			t.Errorf("%T: %v", key, err)
		}
		// The published keys must verify the tokens.
		d, err := NewDiscovery(testIssuer, "", "api.example.org:6443", w.keys)
		if err != nil {
			t.Fatal(err)
		}
		document, err := d.Keys()
		if err != nil {
			t.Fatal(err)
		}
		set, err := parseKeys(document)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parseToken(token)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyWith(set, parsed); err != nil {
			t.Errorf("%T: published keys: %v", key, err)
		}
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewIssuer(IssuerConfig{Issuer: testIssuer, Key: small}); err == nil {
		t.Error("a P-224 key was accepted")
	}
}

// TestParseKeys: only public keys that verify an accepted algorithm are taken from a key set. A shared secret never is.
func TestParseKeys(t *testing.T) {
	public, err := json.Marshal(jose.JSONWebKey{Key: testKey.Public(), KeyID: "public"})
	if err != nil {
		t.Fatal(err)
	}
	private, err := json.Marshal(jose.JSONWebKey{Key: testKey, KeyID: "private"})
	if err != nil {
		t.Fatal(err)
	}
	encryption, err := json.Marshal(jose.JSONWebKey{Key: testKey.Public(), KeyID: "encryption", Use: "enc"})
	if err != nil {
		t.Fatal(err)
	}
	others := `{"kty":"oct","kid":"secret","alg":"HS256","k":"AAAA"},{"kty":"OKP","crv":"Ed448","x":"AA"},{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},5`
	set, err := parseKeys([]byte(`{"keys":[` + others + "," + string(private) + "," + string(encryption) + "," + string(public) + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Keys) != 1 || set.Keys[0].KeyID != "public" {
		t.Errorf("%+v", set.Keys)
	}
	for _, document := range []string{``, `5`, `{}`, `{"keys":[` + others + `]}`} {
		if set, err := parseKeys([]byte(document)); err == nil {
			t.Errorf("%s: %+v", document, set)
		}
	}
	w := newWorld(t, testKey)
	secret := &jose.JSONWebKey{Key: []byte("secret")}
	parsed, err := parseToken(w.issue(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if parsed.verify(secret) == nil || parsed.verify(&jose.JSONWebKey{Key: mustKey().Public()}) == nil {
		t.Error("another key verifies the token")
	}
}

// TestKeyRotation: tokens of the old key are accepted as long as it is in the set.
func TestKeyRotation(t *testing.T) {
	w := newWorld(t, testKey)
	old := w.issue(t, nil)
	check := func(token string, want bool) {
		t.Helper()
		if _, ok, err := w.accounts.IdentifyToken(t.Context(), token, nil); ok != want {
			t.Fatalf("accepted: %v (%v)", ok, err)
		}
	}
	check(old, true)
	next := mustKey()
	if err := w.keys.Replace(next, testKey); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.issuer, err = NewIssuer(IssuerConfig{Issuer: testIssuer, Key: next, Audiences: []string{"api"}}); err != nil {
		t.Fatal(err)
	}
	fresh := w.issue(t, nil)
	check(old, true)
	check(fresh, true)
	if err := w.keys.Replace(next); err != nil {
		t.Fatal(err)
	}
	check(old, false)
	check(fresh, true)
	if err := w.keys.Replace(); err == nil {
		t.Error("no keys at all were accepted")
	}
}

func TestLegacyTokens(t *testing.T) {
	today := time.Now().UTC().Format(time.DateOnly)
	for _, test := range []struct {
		name     string
		then     func(w *world)
		wanted   []string
		err      string
		warned   bool
		lastUsed string
	}{
		{name: "good", lastUsed: today},
		{name: "for another audience", wanted: []string{"vault"}, err: `token audiences ["api" "https://issuer.example.org"] is invalid for the target audiences ["vault"]`},
		{name: "auto-generated", then: func(w *world) {
			a := w.account.DeepCopy()
			a.Secrets = []corev1.ObjectReference{{Name: "secret"}}
			w.objects.put(a)
		}, warned: true, lastUsed: today},
		{name: "used today", then: func(w *world) { w.label(legacyLastUsed, today) }, lastUsed: today},
		{name: "used long ago", then: func(w *world) { w.label(legacyLastUsed, "2020-01-01") }, lastUsed: today},
		{name: "invalidated", then: func(w *world) { w.label(legacyInvalidSince, "2020-01-01") }, lastUsed: today,
			err: "the token in secret ns/secret for service account ns/robot has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the 'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"},
		{name: "secret deleted", then: func(w *world) { w.objects.remove(w.secret) }, err: "Token has been invalidated"},
		{name: "secret deleted, without lookup", then: func(w *world) {
			w.accounts.config.SkipLookup = true
			w.objects.remove(w.secret)
		}},
		{name: "another token in the secret", then: func(w *world) {
			s := w.secret.DeepCopy()
			s.Data = map[string][]byte{"token": []byte("other")}
			w.objects.put(s)
		}, err: "Token does not match server's copy"},
		{name: "account deleted", then: func(w *world) { w.objects.remove(w.account) }, err: `serviceaccounts "robot" not found`},
		{name: "account made again", then: func(w *world) {
			a := w.account.DeepCopy()
			a.UID = types.UID("other")
			w.objects.put(a)
		}, err: "ServiceAccount UID (other) does not match claim (account-uid)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, testKey)
			token, err := w.issuer.LegacyToken(w.account, w.secret)
			if err != nil {
				t.Fatal(err)
			}
			w.secret = w.secret.DeepCopy()
			w.secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
			w.objects.put(w.secret)
			if test.then != nil {
				test.then(w)
			}
			id, ok, err := w.accounts.IdentifyToken(t.Context(), token, test.wanted)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("error %v, want %s", err, test.err)
				}
			} else if err != nil || !ok || id.User.Username != "system:serviceaccount:ns:robot" || (len(id.Warnings) == 1) != test.warned {
				t.Fatalf("%+v, %v, %v", id, ok, err)
			}
			if test.lastUsed != "" {
				obj, err := w.objects.Get(t.Context(), corev1.Resource("secrets"), "ns", "secret")
				if err != nil || obj.GetLabels()[legacyLastUsed] != test.lastUsed {
					t.Errorf("labels %v, %v", obj.GetLabels(), err)
				}
			}
		})
	}
}

func (w *world) label(key, value string) {
	s := w.secret.DeepCopy()
	s.Labels = map[string]string{key: value}
	w.objects.put(s)
}

// TestLegacyClaimsDoNotMix: a legacy token is not accepted as a bound one, nor the other way round.
func TestLegacyClaimsDoNotMix(t *testing.T) {
	w := newWorld(t, testKey)
	sign := signES256(t, testKey)
	header := map[string]any{"alg": "ES256"}
	bound := map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "account-uid"}}
	legacy := func(issuer, subject string) map[string]any {
		return map[string]any{"iss": issuer, "sub": subject, "aud": "api",
			"kubernetes.io/serviceaccount/namespace": "ns", "kubernetes.io/serviceaccount/service-account.name": "robot",
			"kubernetes.io/serviceaccount/service-account.uid": "account-uid", "kubernetes.io/serviceaccount/secret.name": "secret"}
	}
	for _, test := range []struct {
		name   string
		claims map[string]any
		err    string
	}{
		{"bound claims, legacy issuer", map[string]any{"iss": legacyIssuer, "sub": "system:serviceaccount:ns:robot", "kubernetes.io": bound}, "namespace claim is missing"},
		{"legacy claims, our issuer", legacy(testIssuer, "system:serviceaccount:ns:robot"), `serviceaccounts "" not found`},
		{"subject of another", legacy(legacyIssuer, "system:serviceaccount:kube-system:admin"), "sub claim is invalid"},
		{"subject of a user", legacy(legacyIssuer, "admin"), "sub claim is invalid"},
		{"not in the secret", legacy(legacyIssuer, "system:serviceaccount:ns:robot"), "Token does not match server's copy"},
	} {
		if id, ok, err := w.accounts.IdentifyToken(t.Context(), forge(t, header, test.claims, sign), nil); ok || err == nil || err.Error() != test.err {
			t.Errorf("%s: %+v, %v", test.name, id, err)
		}
	}
}

func TestSplitServiceAccountName(t *testing.T) {
	for name, want := range map[string]bool{
		"system:serviceaccount:ns:robot": true, "system:serviceaccount:ns:ro.bot": true, "system:serviceaccount:ns": false,
		"system:serviceaccount:ns:": false, "system:serviceaccount::robot": false, "system:serviceaccount:ns:robot:x": false,
		"system:serviceaccount:NS:robot": false, "robot": false,
	} {
		if _, _, ok := SplitServiceAccountName(name); ok != want {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

func TestDeferredObjects(t *testing.T) {
	late := &DeferredObjects{}
	if _, err := late.Get(t.Context(), corev1.Resource("pods"), "ns", "pod"); !errors.Is(err, errNotStarted) {
		t.Errorf("error %v", err)
	}
	w := newWorld(t, testKey)
	late.Set(w.objects)
	if obj, err := late.Get(t.Context(), corev1.Resource("pods"), "ns", "pod"); err != nil || obj.GetUID() != "pod-uid" {
		t.Errorf("%v, %v", obj, err)
	}
	if _, err := late.Update(t.Context(), corev1.Resource("pods"), "ns", "pod", func(kind.Object) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestInvalidDiscovery(t *testing.T) {
	w := newWorld(t, testKey)
	for _, test := range []struct{ issuer, keysURL, address, err string }{
		{"http://x", "", "a", "issuer URL must use https scheme, got: http://x"},
		{"kubernetes/serviceaccount", "", "a", "issuer URL must use https scheme, got: kubernetes/serviceaccount"},
		{"https://x?q", "", "a", "issuer URL may not include a query, got: https://x?q"},
		{"https://x#f", "", "a", "issuer URL may not include a fragment, got: https://x#f"},
		{"https://x", "", "", "either the JWKS URI or the default external address, or both, must be set"},
		{"https://x", "http://y", "", "jwksURI requires https scheme, parsed as: http://y"},
	} {
		if _, err := NewDiscovery(test.issuer, test.keysURL, test.address, w.keys); err == nil || err.Error() != test.err {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// BenchmarkServiceAccountToken measures a token whose signature is cached, one whose signature must be verified, and issuing one.
func BenchmarkServiceAccountToken(b *testing.B) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ES256": testKey, "RS256": rsaKey} {
		w := newWorld(b, key)
		token := w.issue(b, func(c *kind.TokenClaims) { c.Pod, c.Node = w.pod, w.node })
		wanted := []string{"api", testIssuer}
		verify := func(b *testing.B, forget bool) {
			b.ReportAllocs()
			for b.Loop() {
				if forget {
					w.accounts.verified.young, w.accounts.verified.old = nil, nil
				}
				if _, ok, err := w.accounts.IdentifyToken(context.Background(), token, wanted); !ok {
					b.Fatal(err)
				}
			}
		}
		b.Run(name+"/cached", func(b *testing.B) { verify(b, false) })
		b.Run(name+"/uncached", func(b *testing.B) { verify(b, true) })
		b.Run(name+"/issue", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.issue(b, nil)
			}
		})
	}
}
