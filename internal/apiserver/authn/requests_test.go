package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/pki"
)

// testCA is a CA for client certificates.
type testCA struct {
	*pki.CA
}

func newTestCA(t testing.TB, name string) testCA {
	t.Helper()
	a, err := pki.NewCA(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return testCA{a}
}

func (a testCA) issue(t testing.TB, leaf pki.Leaf) *tls.ConnectionState {
	t.Helper()
	pair, err := a.Issue(leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certs, err := pki.ParseCertificates(pair.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: certs}
}

func writeFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRequests(t *testing.T) {
	clients, proxies, otherCA := newTestCA(t, "clients"), newTestCA(t, "front-proxies"), newTestCA(t, "otherCA")
	w := newWorld(t, testKey)
	token := w.issue(t, nil)
	w.objects.put(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true")},
	})
	authenticators, err := New(Config{
		Audiences:       []string{"api"},
		FrontProxy:      &FrontProxyConfig{CAs: proxies.Pool, AllowedNames: []string{"front-proxy-client"}},
		ClientCAs:       clients.Pool,
		Tokens:          NewTokens(map[string]User{"admin-token": {Username: "admin", Groups: []string{GroupMasters}}}),
		TokenFile:       writeFile(t, "file-token,bob,7,\"a,b\"\nshort,carol,8\n,nobody,9\n"),
		ServiceAccounts: w.accounts,
		BootstrapTokens: NewBootstrapTokens(w.objects),
		Anonymous:       &AnonymousUser{},
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := clients.issue(t, pki.User("admin", "system:masters", "ops"))
	proxy := proxies.issue(t, pki.FrontProxyClient())
	remote := []string{"X-Remote-User", "eve", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes%2fa", "b", "X-Remote-Uid", "42"}
	for _, test := range []struct {
		name    string
		tls     *tls.ConnectionState
		headers []string
		user    string // "" when rejected
		groups  []string
		err     string
	}{
		{name: "nothing", user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "certificate", tls: admin, user: "admin", groups: []string{"ops", GroupMasters, GroupAuthenticated}},
		{name: "certificate of another CA", tls: otherCA.issue(t, pki.User("admin", "system:masters")), err: "certificate signed by unknown authority"},
		{name: "certificate for servers", tls: clients.issue(t, pki.Leaf{CommonName: "admin", Server: true}), err: "incompatible key usage"},
		{name: "certificate without a name", tls: clients.issue(t, pki.Leaf{Organizations: []string{"system:masters"}, Client: true}), user: Anonymous, groups: []string{GroupUnauthenticated}},

		{name: "front proxy", tls: proxy, headers: remote, user: "eve", groups: []string{GroupMasters, GroupAuthenticated}},
		{name: "front-proxy headers without a certificate", headers: remote, user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "front-proxy headers with a user's certificate", tls: clients.issue(t, pki.User("mallory")), headers: remote, user: "mallory", groups: []string{GroupAuthenticated}},
		{name: "front-proxy headers with a user's certificate of the proxy's name", tls: clients.issue(t, pki.FrontProxyClient()), headers: remote, user: "front-proxy-client", groups: []string{GroupAuthenticated}},
		{name: "front-proxy headers with another certificate of the front-proxy CA", tls: proxies.issue(t, pki.User("other")), headers: remote, err: "x509: subject with cn=other is not in the allowed list"},
		{name: "front-proxy headers with a token", headers: append([]string{"Authorization", "Bearer file-token"}, remote...), user: "bob", groups: []string{"a", "b", GroupAuthenticated}},
		{name: "a proxy without a user", tls: proxy, err: "certificate signed by unknown authority"},

		{name: "fixed token", headers: []string{"Authorization", "Bearer admin-token"}, user: "admin", groups: []string{GroupMasters, GroupAuthenticated}},
		{name: "token file without groups", headers: []string{"Authorization", "bearer short"}, user: "carol", groups: []string{GroupAuthenticated}},
		{name: "service account", headers: []string{"Authorization", "Bearer " + token}, user: "system:serviceaccount:ns:robot", groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", GroupAuthenticated}},
		{name: "bootstrap token", headers: []string{"Authorization", "Bearer abcdef.0123456789abcdef"}, user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers", GroupAuthenticated}},
		{name: "unknown token", headers: []string{"Authorization", "Bearer x"}, err: "invalid bearer token"},
		{name: "unknown token, good certificate", tls: admin, headers: []string{"Authorization", "Bearer x"}, user: "admin", groups: []string{"ops", GroupMasters, GroupAuthenticated}},
		{name: "no token", headers: []string{"Authorization", "Bearer"}, user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "two spaces", headers: []string{"Authorization", "Bearer  file-token"}, user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "spaces around", headers: []string{"Authorization", "  Bearer file-token  "}, user: "bob", groups: []string{"a", "b", GroupAuthenticated}},
		{name: "something after the token", headers: []string{"Authorization", "Bearer file-token x"}, user: "bob", groups: []string{"a", "b", GroupAuthenticated}},
		{name: "tab for a space", headers: []string{"Authorization", "Bearer\tfile-token"}, user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "two headers, the first counts", headers: []string{"Authorization", "Bearer x", "Authorization", "Bearer file-token"}, err: "invalid bearer token"},
		{name: "password, which nobody takes", headers: []string{"Authorization", "Basic Ym9iOng="}, user: Anonymous, groups: []string{GroupUnauthenticated}},
		{name: "oversized", headers: []string{"Authorization", "Bearer " + strings.Repeat("a.", maxTokenBytes)}, err: "invalid bearer token"},
		{name: "empty token of the file", headers: []string{"Authorization", "Bearer "}, user: Anonymous, groups: []string{GroupUnauthenticated}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustRequest(t, "/api", test.headers...)
			r.TLS = test.tls
			user, ok, err := authenticators.Authenticate(r)
			if test.user == "" {
				if ok || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("%+v, %v, %v; want error %q", user, ok, err, test.err)
				}
				return
			}
			slices.Sort(user.Groups[:max(len(user.Groups)-1, 0)])
			slices.Sort(test.groups[:max(len(test.groups)-1, 0)])
			if err != nil || !ok || user.Username != test.user || !reflect.DeepEqual(user.Groups, test.groups) {
				t.Fatalf("%+v, %v, %v", user, ok, err)
			}
			for name := range r.Header {
				if strings.HasPrefix(name, "X-Remote") || name == "Authorization" {
					t.Errorf("header %s is still there", name)
				}
			}
		})
	}
}

func TestFrontProxyUser(t *testing.T) {
	proxies := newTestCA(t, "front-proxies")
	p, err := NewFrontProxy(FrontProxyConfig{CAs: proxies.Pool, Headers: ProxyHeaders{
		User: []string{"x-user", "x-other-user"}, Group: []string{"X-Group", "X-More-Groups"}, ExtraPrefix: []string{"X-Extra-"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := mustRequest(t, "/", "X-Other-User", "jane", "X-Group", "a", "X-Group", "", "X-More-Groups", "b", "X-Remote-Uid", "u1",
		"X-Extra-Acme.com%2fProject", "p1", "X-Extra-Acme.com%2fproject", "p2", "X-Extra-Bad%zz", "v", "X-Remote-User", "nobody")
	r.TLS = proxies.issue(t, pki.User("any"))
	got, ok, err := Chain{p}.Authenticate(r)
	slices.Sort(got.Extra["acme.com/project"])
	want := User{Username: "jane", UID: "u1", Groups: []string{"a", "b", GroupAuthenticated}, Extra: map[string]authenticationv1.ExtraValue{
		"acme.com/project": {"p1", "p2"}, "bad%zz": {"v"},
	}}
	if err != nil || !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if len(r.Header) != 0 {
		t.Errorf("headers left: %v", r.Header)
	}
	if _, err := NewFrontProxy(FrontProxyConfig{Headers: ProxyHeaders{User: []string{" "}}}); err == nil {
		t.Error("an empty header name was accepted")
	}
}

func TestCertificateExpiresOnOpenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := newTestCA(t, "clients")
		c := NewCertificates(clients.Pool)
		r := mustRequest(t, "/")
		r.TLS = clients.issue(t, pki.Leaf{CommonName: "jane", Client: true, Lifetime: time.Hour})
		check := func(want bool) {
			t.Helper()
			if _, ok, err := c.Authenticate(r); ok != want {
				t.Fatalf("accepted %v, %v", ok, err)
			}
		}
		check(true)
		time.Sleep(59 * time.Minute)
		check(true)
		time.Sleep(2 * time.Minute)
		check(false)
	})
}

func TestClientCAsChange(t *testing.T) {
	old, next := newTestCA(t, "old"), newTestCA(t, "next")
	pool := old.Pool()
	c := NewCertificates(func() *x509.CertPool { return pool })
	r := mustRequest(t, "/")
	r.TLS = old.issue(t, pki.User("jane"))
	if _, ok, err := c.Authenticate(r); !ok {
		t.Fatal(err)
	}
	pool = next.Pool()
	if _, ok, err := c.Authenticate(r); ok || !strings.HasPrefix(err.Error(), "verifying certificate SN=") {
		t.Fatalf("a certificate of a removed CA: %v, %v", ok, err)
	}
	pool = nil
	if _, ok, _ := c.Authenticate(r); ok {
		t.Fatal("without CAs a certificate was accepted")
	}
}

func TestCertificateUID(t *testing.T) {
	name := func(values ...any) *x509.Certificate {
		cert := &x509.Certificate{}
		cert.Subject.CommonName = "jane"
		for _, v := range values {
			cert.Subject.Names = append(cert.Subject.Names, attribute(v))
		}
		return cert
	}
	for _, test := range []struct {
		cert *x509.Certificate
		uid  string
		err  string
	}{
		{name(), "", ""},
		{name("u1"), "u1", ""},
		{name("u1", "u2"), "", "expected 1 UID, but found multiple: [u1 u2]"},
		{name(""), "", "UID cannot be an empty string"},
		{name(5), "", "unable to parse UID into a string"},
	} {
		user, ok, err := certificateUser(test.cert)
		if test.err != "" {
			if ok || err == nil || err.Error() != test.err {
				t.Errorf("%v, want %s", err, test.err)
			}
		} else if !ok || user.UID != test.uid {
			t.Errorf("%+v, %v", user, err)
		}
	}
}

func attribute(value any) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: uidAttribute, Value: value}
}

func TestWebSocketProtocol(t *testing.T) {
	a, err := New(Config{Tokens: NewTokens(map[string]User{"secret": {Username: "jane"}})})
	if err != nil {
		t.Fatal(err)
	}
	encode := func(s string) string { return bearerProtocolPrefix + base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for _, test := range []struct {
		name, protocols, left, err string
		plain, ok                  bool
	}{
		{name: "good", protocols: "v4.channel.k8s.io, " + encode("secret"), left: "v4.channel.k8s.io", ok: true},
		{name: "wrong", protocols: "v4.channel.k8s.io," + encode("x"), err: "invalid bearer token"},
		{name: "alone", protocols: encode("secret"), err: "missing additional subprotocol"},
		{name: "twice", protocols: "x," + encode("secret") + "," + encode("secret"), err: "multiple base64.bearer.authorization tokens specified"},
		{name: "bad encoding", protocols: "x," + bearerProtocolPrefix + "?", err: "invalid base64.bearer.authorization token encoding"},
		{name: "not text", protocols: "x," + encode("\xff"), err: "invalid base64.bearer.authorization token"},
		{name: "no token", protocols: "x"},
		{name: "no WebSocket", protocols: "x," + encode("secret"), plain: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustRequest(t, "/", "Sec-WebSocket-Protocol", test.protocols)
			if !test.plain {
				r.Header.Set("Connection", "keep-alive, Upgrade")
				r.Header.Set("Upgrade", "websocket")
			}
			user, ok, err := a.Authenticate(r)
			if ok != test.ok || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Fatalf("%+v, %v, %v", user, ok, err)
			}
			if ok && (user.Username != "jane" || r.Header.Get("Sec-WebSocket-Protocol") != test.left) {
				t.Errorf("%+v, %q", user, r.Header)
			}
		})
	}
}

func TestBootstrapTokens(t *testing.T) {
	good := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
			Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true")},
		}
	}
	with := func(key, value string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
	}
	in := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }
	for _, test := range []struct {
		name   string
		token  string
		change func(*corev1.Secret)
		groups []string
	}{
		{name: "good", groups: []string{"system:bootstrappers"}},
		{name: "more groups", change: with("auth-extra-groups", "system:bootstrappers:b,system:bootstrappers:a"), groups: []string{"system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"}},
		{name: "group ends in a dash", change: with("auth-extra-groups", "system:bootstrappers:a-")},
		{name: "group too long", change: with("auth-extra-groups", "system:bootstrappers:"+strings.Repeat("a", 257))},
		{name: "group without a name", change: with("auth-extra-groups", "system:bootstrappers:")},
		{name: "group with dashes", change: with("auth-extra-groups", "system:bootstrappers:a-b:c"), groups: []string{"system:bootstrappers", "system:bootstrappers:a-b:c"}},
		{name: "foreign group", change: with("auth-extra-groups", "system:masters")},
		{name: "not expired", change: with("expiration", in(time.Hour)), groups: []string{"system:bootstrappers"}},
		{name: "expired", change: with("expiration", in(-time.Hour))},
		{name: "unreadable expiration", change: with("expiration", "tomorrow")},
		{name: "not for authentication", change: with("usage-bootstrap-authentication", "false")},
		{name: "another secret", change: with("token-secret", "0123456789abcdeg")},
		{name: "another id", change: with("token-id", "abcdeg")},
		{name: "another type", change: func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }},
		{name: "being deleted", change: func(s *corev1.Secret) { s.DeletionTimestamp = deleted(0) }},
		{name: "no data", change: func(s *corev1.Secret) { s.Data = nil }},
		{name: "unknown", token: "aaaaaa.0123456789abcdef"},
		{name: "too short", token: "abcdef.0123456789abcde"},
		{name: "upper case", token: "ABCDEF.0123456789abcdef"},
		{name: "path", token: "../../.0123456789abcdef"},
	} {
		t.Run(test.name, func(t *testing.T) {
			secret := good()
			if test.change != nil {
				test.change(secret)
			}
			if test.token == "" {
				test.token = "abcdef.0123456789abcdef"
			}
			user, ok, err := NewBootstrapTokens(newObjects(secret)).authenticate(t.Context(), test.token)
			if err != nil || ok != (test.groups != nil) || ok && (user.Username != "system:bootstrap:abcdef" || !reflect.DeepEqual(user.Groups, test.groups)) {
				t.Errorf("%+v, %v, %v", user, ok, err)
			}
		})
	}
}

func TestPasswords(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("open sesame"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{PasswordFile: writeFile(t, string(hash)+`,jane,7,"a,b"`+"\n"), Anonymous: &AnonymousUser{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, user, password string
		ok                   bool
	}{
		{"right", "jane", "open sesame", true},
		{"right again", "jane", "open sesame", true},
		{"wrong", "jane", "open barley", false},
		{"nobody", "joe", "open sesame", false},
		{"name and password shifted", "jan", "eopen sesame", false},
		{"too long", "jane", strings.Repeat("x", 100), false},
		{"empty", "jane", "", false},
	} {
		r := mustRequest(t, "/")
		r.SetBasicAuth(test.user, test.password)
		user, ok, err := a.Authenticate(r)
		if ok != test.ok || ok && user.UID != "7" || !ok && (err == nil || err.Error() != "invalid username or password") {
			t.Errorf("%s: %+v, %v, %v", test.name, user, ok, err)
		}
	}
	// An invalid hash would fail fast, and the time would reveal which users exist.
	if err := bcrypt.CompareHashAndPassword([]byte(unknownUserHash), []byte("x")); !errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
		t.Error(err)
	}
	for _, file := range []string{"open sesame,jane,7\n", string(hash) + ",jane\n", string(hash) + ",jane,7\n" + string(hash) + ",jane,8\n"} {
		if _, err := ReadPasswordFile(writeFile(t, file)); err == nil || strings.Contains(err.Error(), string(hash)) {
			t.Errorf("%q: %v", file, err)
		}
	}
}

func TestAnonymousPaths(t *testing.T) {
	c, err := parseConfiguration([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous:\n  enabled: true\n  conditions: [{path: /livez}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Anonymous: AnonymousFrom(c, true)})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/livez": true, "/livez/": false, "/api": false} {
		if _, ok, err := a.Authenticate(mustRequest(t, path)); ok != want || err != nil {
			t.Errorf("%s: %v, %v", path, ok, err)
		}
	}
	if AnonymousFrom(nil, false) != nil || AnonymousFrom(nil, true) == nil || AnonymousFrom(&Configuration{}, true) == nil {
		t.Error("without a configuration the flag decides")
	}
}

func TestWarnings(t *testing.T) {
	a, err := New(Config{Anonymous: &AnonymousUser{}})
	if err != nil {
		t.Fatal(err)
	}
	id, ok, err := a.Identify(mustRequest(t, "/", "Authorization", "Bearer  x"))
	if err != nil || !ok || !slices.Equal(id.Warnings, []string{warningSpaceBeforeToken}) {
		t.Errorf("%+v, %v, %v", id, ok, err)
	}
}

func TestInvalidTokenFiles(t *testing.T) {
	path := writeFile(t, "token,user\n")
	if _, err := ReadTokenFile(path); err == nil || err.Error() != "token file '"+path+"' must have at least 3 columns (token, user name, user uid), found 2" {
		t.Error(err)
	}
	if _, err := ReadTokenFile(path + "x"); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestTokenReviews covers audiences, and errors that do not contain the token.
func TestTokenReviews(t *testing.T) {
	w := newWorld(t, testKey)
	a, err := New(Config{Audiences: []string{"api", testIssuer}, ServiceAccounts: w.accounts, Tokens: NewTokens(map[string]User{"fixed": {Username: "jane"}}), Anonymous: &AnonymousUser{}})
	if err != nil {
		t.Fatal(err)
	}
	token := w.issue(t, nil)
	for _, test := range []struct {
		name, token      string
		wanted, accepted []string
		err              string
	}{
		{"ours by default", token, nil, []string{"api"}, ""},
		{"named", token, []string{"x", "api"}, []string{"api"}, ""},
		{"another", token, []string{"x"}, nil, `token audiences ["api"] is invalid for the target audiences ["x"]`},
		{"unbound", "fixed", nil, []string{"api", testIssuer}, ""},
		{"unbound, named", "fixed", []string{"api"}, []string{"api"}, ""},
		{"unbound, another", "fixed", []string{"x"}, nil, "invalid bearer token"},
		{"unknown", "nonsense", nil, nil, "invalid bearer token"},
	} {
		user, accepted, ok, err := a.AuthenticateToken(t.Context(), test.token, test.wanted)
		if ok != (test.err == "") || !reflect.DeepEqual(accepted, test.accepted) || !ok && err.Error() != test.err {
			t.Errorf("%s: %+v, %q, %v, %v", test.name, user, accepted, ok, err)
		}
		if ok && !slices.Contains(user.Groups, GroupAuthenticated) {
			t.Errorf("%s: groups %q", test.name, user.Groups)
		}
	}
}

func TestTokenCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &countingTokens{}
		c := newTokenCache(fake, 10*time.Second, 5*time.Second)
		ask := func(token string, wanted ...string) (bool, error) {
			_, ok, err := c.IdentifyToken(t.Context(), token, wanted)
			return ok, err
		}
		steps := []struct {
			token, audience string
			wait            time.Duration
			ok, fails       bool
			asked           int32
		}{
			{token: "good", ok: true, asked: 1},
			{token: "good", ok: true, asked: 1},
			{token: "good", audience: "x", ok: true, asked: 2},
			{token: "good", wait: 11 * time.Second, ok: true, asked: 3},
			{token: "bad", asked: 4},
			{token: "bad", asked: 4},
			{token: "bad", wait: 6 * time.Second, asked: 5},
			{token: "error", fails: true, asked: 6},
			{token: "error", fails: true, asked: 7},
			{token: "panic", fails: true, asked: 8},
		}
		for i, step := range steps {
			time.Sleep(step.wait)
			ok, err := ask(step.token, step.audience)
			if ok != step.ok || (err != nil) != step.fails || fake.calls.Load() != step.asked {
				t.Fatalf("step %d: %v, %v, called %d times", i, ok, err, fake.calls.Load())
			}
		}
		// Concurrent lookups, one of which is cancelled.
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		fake.calls.Store(0)
		results := make(chan error, 11)
		for range 10 {
			go func() { _, err := ask("slow", ""); results <- err }()
		}
		go func() {
			_, _, err := c.IdentifyToken(impatient, "slow", []string{""})
			if err == nil {
				t.Error("the cancelled lookup got a result")
			}
			results <- nil
		}()
		for range 11 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if n := fake.calls.Load(); n != 1 {
			t.Errorf("called %d times", n)
		}
	})
}

func TestDigestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r digestCache[int]
		d := newDigester()
		for i := range 3 * generationEntries {
			r.set(d.sum(string(rune(i)), []string{"x", string(rune(i / 7))}), i)
		}
		if n := len(r.young) + len(r.old); n > 2*generationEntries {
			t.Errorf("%d entries", n)
		}
		key := d.sum("kept", nil)
		r.set(key, 1)
		for range 10 {
			time.Sleep(generationAge / 2)
			if _, ok := r.get(key); !ok {
				t.Fatal("an entry in use was dropped")
			}
			r.set(d.sum("other", nil), 2)
		}
		time.Sleep(generationAge + time.Second)
		r.set(d.sum("other", nil), 2)
		time.Sleep(generationAge + time.Second)
		r.set(d.sum("other", nil), 2)
		if _, ok := r.get(key); ok {
			t.Error("an unused entry was kept")
		}
	})
}

type countingTokens struct{ calls atomic.Int32 }

func (c *countingTokens) IdentifyToken(_ context.Context, token string, wanted []string) (Identity, bool, error) {
	c.calls.Add(1)
	switch token {
	case "good":
		return Identity{User: User{Username: "jane"}, Audiences: wanted}, true, nil
	case "error":
		return Identity{}, false, errBadPassword
	case "panic":
		panic("bug")
	case "slow":
		time.Sleep(5 * time.Second)
		return Identity{User: User{Username: "joe"}}, true, nil
	}
	return Identity{}, false, nil
}

func BenchmarkCertificate(b *testing.B) {
	clients := newTestCA(b, "clients")
	a, err := New(Config{ClientCAs: clients.Pool, FrontProxy: &FrontProxyConfig{CAs: clients.Pool}})
	if err != nil {
		b.Fatal(err)
	}
	r := mustRequest(b, "/api", "Accept", "x", "User-Agent", "y", "Accept-Encoding", "z")
	r.TLS = clients.issue(b, pki.User("admin", "system:masters"))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := a.Authenticate(r); !ok {
			b.Fatal(err)
		}
	}
}
