package authn

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func serverPEM(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// provider is an identity provider with one key.
type provider struct {
	*httptest.Server
	key     *signer
	keys    atomic.Pointer[Keys]
	fetches atomic.Int32
	claim   atomic.Pointer[string] // the token at /claims
}

func newProvider(t testing.TB) *provider {
	t.Helper()
	p := &provider{}
	p.sign(t)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration", "/elsewhere":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
		case "/lying/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": "https://somebody.else", "jwks_uri": p.URL + "/keys"})
		case "/plain/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL + "/plain", "jwks_uri": "http://127.0.0.1:1/keys"})
		case "/keys":
			p.fetches.Add(1)
			d, err := NewDiscovery("https://x", "", "x", p.keys.Load())
			if err == nil {
				var document []byte
				if document, err = d.Keys(); err == nil {
					_, _ = w.Write(document)
				}
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		case "/claims":
			if r.Header.Get("Authorization") != "Bearer access" {
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			_, _ = io.WriteString(w, *p.claim.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// sign makes the provider sign with a new key, and publish only that.
func (p *provider) sign(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if p.key, err = newSigner(key); err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	p.keys.Store(keys)
}

func (p *provider) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "skiff", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix(), "jti": "t1"}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	token, err := p.key.sign(all)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (p *provider) providers(t testing.TB, path, rest string) *IdentityProviders {
	t.Helper()
	ca, err := json.Marshal(string(serverPEM(p.Server)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfiguration([]byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: ` + p.URL + path + `
    audiences: [skiff, other]
    audienceMatchPolicy: MatchAny
    certificateAuthority: ` + string(ca) + "\n" + rest))
	if err != nil {
		t.Fatal(err)
	}
	providers, err := NewIdentityProviders(c, IdentityProvidersOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return providers
}

func TestIdentityProviders(t *testing.T) {
	p := newProvider(t)
	const byClaim = `
  claimMappings:
    username: {claim: sub, prefix: "idp:"}
    groups: {claim: groups, prefix: "idp:"}
    uid: {claim: uid}
  claimValidationRules:
  - {claim: hd, requiredValue: example.org}
`
	const byEmail = `
  claimMappings:
    username: {claim: email, prefix: ""}
`
	const byExpression = `
  claimMappings:
    username: {expression: 'claims.sub + "@" + claims.org__dot__name'}
    groups: {expression: 'claims.roles.split(",")'}
    uid: {expression: 'claims.uid'}
    extra:
    - {key: example.org/tenant, valueExpression: 'claims.tenants'}
    - {key: example.org/none, valueExpression: '""'}
  claimValidationRules:
  - {expression: 'claims.exp - claims.iat <= 86400', message: too long}
  userValidationRules:
  - {expression: '!user.username.startsWith("system:")', message: reserved}
  - {expression: 'user.groups.all(g, g != "system:masters")', message: no masters}
`
	now := time.Now().Unix()
	type claims = map[string]any
	good := claims{"hd": "example.org", "groups": []string{"a", "b"}, "uid": "u1"}
	expressive := func(key string, value any) claims {
		c := claims{"org.name": "acme", "roles": "x,y", "uid": "u2", "tenants": []string{"t1", "", "t2"}, "iat": now}
		c[key] = value
		return c
	}
	with := func(key string, value any) claims {
		c := claims{}
		for k, v := range good {
			c[k] = v
		}
		c[key] = value
		return c
	}
	jti := authenticationv1.ExtraValue{"JTI=t1"}
	for _, test := range []struct {
		name, mapping string
		claims        claims
		user          User
		err           string
	}{
		{name: "claims", mapping: byClaim, claims: good, user: User{Username: "idp:jane", UID: "u1", Groups: []string{"idp:a", "idp:b"}, Extra: map[string]authenticationv1.ExtraValue{credentialID: jti}}},
		{name: "one group", mapping: byClaim, claims: with("groups", "a"), user: User{Username: "idp:jane", UID: "u1", Groups: []string{"idp:a"}, Extra: map[string]authenticationv1.ExtraValue{credentialID: jti}}},
		{name: "several audiences", mapping: byClaim, claims: with("aud", []string{"x", "other"}), user: User{Username: "idp:jane", UID: "u1", Groups: []string{"idp:a", "idp:b"}, Extra: map[string]authenticationv1.ExtraValue{credentialID: jti}}},
		{name: "another audience", mapping: byClaim, claims: with("aud", "x"), err: `oidc: verify token: oidc: expected audience in ["skiff" "other"] got ["x"]`},
		{name: "no audience", mapping: byClaim, claims: with("aud", nil), err: `oidc: verify token: oidc: expected audience in ["skiff" "other"] got []`},
		{name: "expired", mapping: byClaim, claims: with("exp", now-1), err: "oidc: verify token: oidc: token is expired"},
		{name: "no expiry", mapping: byClaim, claims: with("exp", nil), err: "oidc: verify token: oidc: token is expired"},
		{name: "not yet valid", mapping: byClaim, claims: with("nbf", now+600), err: "oidc: verify token: oidc: current time"},
		{name: "claim missing", mapping: byClaim, claims: with("hd", nil), err: "oidc: required claim hd not present in ID token"},
		{name: "claim wrong", mapping: byClaim, claims: with("hd", "evil.org"), err: "oidc: required claim hd value does not match. Got = evil.org, want = example.org"},
		{name: "no uid", mapping: byClaim, claims: with("uid", nil), err: `oidc: parse uid claim "uid": claim not present`},
		{name: "name is no text", mapping: byClaim, claims: with("sub", 5), err: `oidc: parse username claims "sub"`},
		{name: "email", mapping: byEmail, claims: claims{"email": "jane@example.org", "email_verified": true, "jti": nil}, user: User{Username: "jane@example.org"}},
		{name: "email not verified", mapping: byEmail, claims: claims{"email": "jane@example.org", "email_verified": false}, err: "oidc: email not verified"},
		{name: "expressions", mapping: byExpression, claims: expressive("jti", nil), user: User{
			Username: "jane@acme", UID: "u2", Groups: []string{"x", "y"}, Extra: map[string]authenticationv1.ExtraValue{"example.org/tenant": {"t1", "t2"}},
		}},
		{name: "claims rule", mapping: byExpression, claims: expressive("iat", now-90000), err: "oidc: error evaluating claim validation expression: validation expression 'claims.exp - claims.iat <= 86400' failed: too long"},
		{name: "user rule", mapping: byExpression, claims: expressive("sub", "system:admin"), err: "oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith(\"system:\")' failed: reserved"},
		{name: "group rule", mapping: byExpression, claims: expressive("roles", "system:masters"), err: "failed: no masters"},
		{name: "uid is no text", mapping: byExpression, claims: expressive("uid", 7), err: "oidc: error evaluating uid claim expression: uid claim expression must return a string"},
		{name: "extra is no text", mapping: byExpression, claims: expressive("tenants", []any{1}), err: "expression must return a string or a list of strings"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := New(Config{Audiences: []string{"api"}, IdentityProviders: p.providers(t, "", test.mapping)})
			if err != nil {
				t.Fatal(err)
			}
			user, _, ok, err := a.AuthenticateToken(t.Context(), p.token(t, test.claims), nil)
			if test.err != "" {
				if ok || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("%+v, %v; want %s", user, err, test.err)
				}
				return
			}
			test.user.Groups = append(test.user.Groups, GroupAuthenticated)
			if err != nil || !ok || !reflect.DeepEqual(user, test.user) {
				t.Fatalf("%+v, %v", user, err)
			}
		})
	}
}

const bySub = `
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {claim: groups, prefix: ""}
`

func TestProviderKeys(t *testing.T) {
	p, other := newProvider(t), newProvider(t)
	providers := p.providers(t, "", bySub)
	find := func(token string) error {
		_, ok, err := providers.authenticate(t.Context(), token)
		if !ok && err == nil {
			err = errBadToken
		}
		return err
	}
	if n := p.fetches.Load(); n != 0 {
		t.Errorf("keys were fetched %d times before the first token", n)
	}
	old := p.token(t, nil)
	for range 3 {
		if err := find(old); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.fetches.Load(); n != 1 {
		t.Errorf("keys were fetched %d times", n)
	}
	// Tokens with unknown keys cause a fetch, but not more than one per minFetchInterval.
	forged := other.token(t, map[string]any{"iss": p.URL})
	for range 5 {
		if err := find(forged); err == nil || !strings.Contains(err.Error(), "failed to verify id token signature") {
			t.Fatalf("another's key: %v", err)
		}
	}
	if n := p.fetches.Load(); n > 2 {
		t.Errorf("forged tokens caused %d fetches", n)
	}
	// The provider changes its key.
	p.sign(t)
	fresh := p.token(t, nil)
	if err := find(fresh); err == nil {
		t.Error("keys were fetched twice within minFetchInterval")
	}
	keys := (*providers.providers.Load())[0].keys
	keys.mu.Lock()
	keys.attempted = keys.attempted.Add(-minFetchInterval)
	keys.mu.Unlock()
	if err := find(fresh); err != nil {
		t.Error(err)
	}
	if err := find(old); err == nil {
		t.Error("a withdrawn key is still accepted")
	}
	// The provider is unreachable: the cached keys are used.
	p.CloseClientConnections()
	p.Close()
	keys.mu.Lock()
	keys.attempted, keys.fetched = keys.attempted.Add(-2*maxKeyAge), keys.fetched.Add(-2*maxKeyAge)
	keys.mu.Unlock()
	if err := find(fresh); err != nil {
		t.Errorf("provider unreachable: %v", err)
	}
}

func TestProviderMetadata(t *testing.T) {
	p := newProvider(t)
	for path, want := range map[string]string{
		"/lying": "issuer did not match the issuer returned by provider", "/plain": "provider did not return an https JWKS URL", "/none": "404",
	} {
		providers := p.providers(t, path, bySub)
		_, _, err := providers.authenticate(t.Context(), p.token(t, map[string]any{"iss": p.URL + path}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// The discovery document may have another URL.
	providers := p.providers(t, "\n    discoveryURL: "+p.URL+"/elsewhere", bySub)
	if _, ok, err := providers.authenticate(t.Context(), p.token(t, nil)); !ok {
		t.Error(err)
	}
	// A provider whose certificate no trusted CA has signed is rejected.
	c := (*providers.providers.Load())[0].config
	c.Issuer.CertificateAuthority = ""
	bare, err := NewIdentityProviders(&Configuration{JWT: []apiserver.JWTAuthenticator{c}}, IdentityProvidersOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := bare.authenticate(t.Context(), p.token(t, nil)); ok || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestDistributedClaims(t *testing.T) {
	p := newProvider(t)
	inner := p.token(t, map[string]any{"groups": []string{"many", "more"}})
	p.claim.Store(&inner)
	away := func(url, access string) map[string]any {
		return map[string]any{
			"_claim_names":   map[string]string{"groups": "src1"},
			"_claim_sources": map[string]any{"src1": map[string]string{"endpoint": url, "access_token": access}},
		}
	}
	providers := p.providers(t, "", bySub)
	user, ok, err := providers.authenticate(t.Context(), p.token(t, away(p.URL+"/claims", "access")))
	if !ok || !reflect.DeepEqual(user.Groups, []string{"many", "more"}) {
		t.Errorf("%+v, %v", user, err)
	}
	for name, claims := range map[string]map[string]any{
		"not let in":  away(p.URL+"/claims", "wrong"),
		"plain http":  away("http://127.0.0.1:1/claims", "access"),
		"no sources":  {"_claim_names": map[string]string{"groups": "src1"}},
		"no endpoint": {"_claim_names": map[string]string{"groups": "src2"}, "_claim_sources": map[string]any{}},
	} {
		if user, ok, err := providers.authenticate(t.Context(), p.token(t, claims)); ok {
			t.Errorf("%s: %+v, %v", name, user, err)
		}
	}
}

func TestInvalidConfigurations(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n"
	for name, test := range map[string]struct{ text, err string }{
		"empty":           {"", "empty config data"},
		"unknown field":   {head + "jvt: []\n", `unknown field "jvt"`},
		"another kind":    {"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n", "expected AuthenticationConfiguration"},
		"our own issuer":  {head + "jwt:\n- issuer: {url: \"" + testIssuer + "\", audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n", "must not overlap with disallowed issuers"},
		"http":            {head + "jwt:\n- issuer: {url: \"http://x\", audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n", "URL scheme must be https"},
		"no audiences":    {head + "jwt:\n- issuer: {url: \"https://x\"}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n", "jwt[0].issuer.audiences: Required value"},
		"bad expression":  {head + "jwt:\n- issuer: {url: \"https://x\", audiences: [a]}\n  claimMappings: {username: {expression: \"claims.(\"}}\n", "jwt[0].claimMappings.username.expression: Invalid value"},
		"egress selector": {head + "jwt:\n- issuer: {url: \"https://x\", audiences: [a], egressSelectorType: cluster}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n", "egress lookup"},
	} {
		c, err := parseConfiguration([]byte(test.text))
		if err == nil {
			_, err = NewIdentityProviders(c, IdentityProvidersOptions{ServiceAccountIssuers: []string{testIssuer}})
		}
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewIdentityProviders(&Configuration{}, IdentityProvidersOptions{Algorithms: []string{"HS256"}}); err == nil {
		t.Error("HS256 was accepted")
	}
}

// TestWatchFile: a valid change of the file is applied, an invalid one is not.
func TestWatchFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := func(url string) string {
			return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: \"" + url +
				"\", audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: \"\"}}\n"
		}
		path := writeFile(t, text("https://one"))
		c, err := ReadConfiguration(path)
		if err != nil {
			t.Fatal(err)
		}
		providers, err := NewIdentityProviders(c, IdentityProvidersOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- providers.WatchFile(ctx, path, slog.New(slog.DiscardHandler)) }()
		for _, step := range []struct{ content, want string }{
			{text("https://two"), "https://two"}, {text("http://bad"), "https://two"}, {"nonsense", "https://two"}, {text("https://three"), "https://three"},
		} {
			if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(configurationPoll + time.Second)
			synctest.Wait()
			if got := (*providers.providers.Load())[0].config.Issuer.URL; got != step.want {
				t.Errorf("provider %s, want %s", got, step.want)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestOIDCFlags(t *testing.T) {
	p := newProvider(t)
	flags := OIDCFlags{
		IssuerURL: p.URL, ClientID: "skiff", CAFile: writeFile(t, string(serverPEM(p.Server))), GroupsClaim: "groups", GroupsPrefix: "g:",
		RequiredClaims: map[string]string{"hd": "example.org"},
	}
	for _, test := range []struct{ claim, prefix, want string }{
		{"", "", p.URL + "#jane"}, {"sub", "-", "jane"}, {"sub", "x:", "x:jane"}, {"email", "", "jane@example.org"},
	} {
		flags.UsernameClaim, flags.UsernamePrefix = test.claim, test.prefix
		c, err := flags.Configuration()
		if err != nil {
			t.Fatal(err)
		}
		providers, err := NewIdentityProviders(c, IdentityProvidersOptions{Algorithms: []string{"RS256"}})
		if err != nil {
			t.Fatal(err)
		}
		user, ok, err := providers.authenticate(t.Context(), p.token(t, map[string]any{"hd": "example.org", "groups": "a", "email": "jane@example.org"}))
		if !ok || user.Username != test.want || !reflect.DeepEqual(user.Groups, []string{"g:a"}) {
			t.Errorf("%+v: %+v, %v", test, user, err)
		}
		if providers, err = NewIdentityProviders(c, IdentityProvidersOptions{Algorithms: []string{"ES256"}}); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := providers.authenticate(t.Context(), p.token(t, nil)); ok || !strings.Contains(err.Error(), "unsupported algorithm") {
			t.Errorf("an algorithm that is not allowed: %v, %v", ok, err)
		}
	}
}

func webhookKubeconfig(t *testing.T, s *httptest.Server, path string) string {
	t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["w"] = &clientcmdapi.Cluster{Server: s.URL + path, CertificateAuthorityData: serverPEM(s)}
	k.AuthInfos["w"] = &clientcmdapi.AuthInfo{Token: "the server's own"}
	k.Contexts["w"] = &clientcmdapi.Context{Cluster: "w", AuthInfo: "w"}
	k.CurrentContext = "w"
	file := filepath.Join(t.TempDir(), "webhook")
	if err := clientcmd.WriteToFile(*k, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWebhook(t *testing.T) {
	var calls, leaked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Add(1) }))
	defer elsewhere.Close()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var review authenticationv1.TokenReview
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &review); err != nil || r.Header.Get("Authorization") != "Bearer the server's own" || review.Kind != "TokenReview" {
			http.Error(w, "bad review", http.StatusBadRequest)
			return
		}
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: User{Username: "jane", Groups: []string{"a"}}, Audiences: []string{"api"}}
		case "unaware":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: User{Username: "joe"}}
		case "explained":
			review.Status.Error = "expired yesterday"
		case "redirect":
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		case "denied":
			http.Error(w, "no", http.StatusForbidden)
			return
		case "flaky":
			if calls.Load()%2 == 1 {
				http.Error(w, "later", http.StatusServiceUnavailable)
				return
			}
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: User{Username: "fay"}}
		case "other version":
			review.APIVersion = "authentication.k8s.io/v2"
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	defer s.Close()
	for _, version := range []string{"v1", "v1beta1"} {
		a, err := New(Config{Audiences: []string{"api", "api2"}, Webhook: &WebhookConfig{Kubeconfig: webhookKubeconfig(t, s, "/hook"), Version: version}})
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			token    string
			wanted   []string
			user     string
			accepted []string
			err      string
			calls    int32
		}{
			{token: "good", user: "jane", accepted: []string{"api"}, calls: 1},
			{token: "good", user: "jane", accepted: []string{"api"}, calls: 0},
			{token: "good", wanted: []string{"vault"}, err: "invalid bearer token", calls: 1},
			{token: "unaware", user: "joe", accepted: []string{"api", "api2"}, calls: 1},
			{token: "unaware", wanted: []string{"vault"}, err: "invalid bearer token", calls: 1},
			{token: "unknown", err: "invalid bearer token", calls: 1},
			{token: "unknown", err: "invalid bearer token", calls: 0},
			{token: "explained", err: "expired yesterday", calls: 1},
			{token: "redirect", err: "the authentication webhook returned status 307 Temporary Redirect", calls: 1},
			{token: "denied", err: "the authentication webhook returned status 403 Forbidden", calls: 1},
			{token: "other version", err: "the authentication webhook returned authentication.k8s.io/v2 TokenReview, want authentication.k8s.io/" + version + " TokenReview", calls: 1},
		} {
			before := calls.Load()
			user, accepted, ok, err := a.AuthenticateToken(t.Context(), test.token, test.wanted)
			if ok != (test.user != "") || user.Username != test.user || !reflect.DeepEqual(accepted, test.accepted) || !ok && err.Error() != test.err {
				t.Errorf("%s %s: %+v, %q, %v, %v", version, test.token, user, accepted, ok, err)
			}
			if n := calls.Load() - before; n != test.calls {
				t.Errorf("%s %s: called %d times, want %d", version, test.token, n, test.calls)
			}
		}
	}
	if leaked.Load() > 0 {
		t.Error("a redirect was followed, with the token")
	}
	calls.Store(0)
	a, err := New(Config{Webhook: &WebhookConfig{Kubeconfig: webhookKubeconfig(t, s, "")}})
	if err != nil {
		t.Fatal(err)
	}
	if user, _, ok, err := a.AuthenticateToken(t.Context(), "flaky", nil); !ok || user.Username != "fay" {
		t.Errorf("%+v, %v", user, err)
	}
	if _, err := New(Config{Webhook: &WebhookConfig{Version: "v2"}}); err == nil || err.Error() != `unsupported authentication webhook version "v2", supported versions are "v1", "v1beta1"` {
		t.Error(err)
	}
	if _, err := New(Config{Webhook: &WebhookConfig{Kubeconfig: filepath.Join(t.TempDir(), "none")}}); err == nil || os.IsExist(err) {
		t.Error(err)
	}
}
