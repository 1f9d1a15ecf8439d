package system

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skiff/internal/pki"
)

// issueToken requests a token of the service account default/default.
func issueToken(t *testing.T, handler http.Handler) string {
	t.Helper()
	do(handler, "admin", "POST", "/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`)
	w := do(handler, "admin", "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{}}`)
	var response struct{ Status struct{ Token string } }
	if err := json.Unmarshal(w.Body.Bytes(), &response); err != nil || response.Status.Token == "" {
		t.Fatalf("token: status %d, %s", w.Code, w.Body)
	}
	return response.Status.Token
}

// Tokens are signed with --service-account-signing-key-file and verified with every --service-account-key-file. Without its file, the
// tokens of the old key are rejected.
func TestServiceAccountKeyRotation(t *testing.T) {
	dir := t.TempDir()
	keys := pki.Dir(dir)
	for _, name := range []string{"old", "new"} {
		if _, err := keys.SigningKey(name); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	// The verified key is looked up before the service account, which every server here has under another UID.
	const rejectedKey = "no keys found"
	verify := func(token, signing string, files ...string) string {
		c := testConfig(t)
		c.Authentication.ServiceAccounts.SigningKeyFile, c.Authentication.ServiceAccounts.KeyFiles = signing, files
		server, access := startAPIServer(t, c)
		issueToken(t, server.Handler())
		_, _, _, err := access.authenticator.AuthenticateToken(t.Context(), token, nil)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	c := testConfig(t)
	c.Authentication.ServiceAccounts.SigningKeyFile = path("old.key")
	server, access := startAPIServer(t, c)
	token := issueToken(t, server.Handler())
	if user, _, ok, err := access.authenticator.AuthenticateToken(t.Context(), token, nil); !ok || user.Username != "system:serviceaccount:default:default" {
		t.Fatalf("own token: %v, %v", user, err)
	}
	if err := verify(token, path("new.key"), path("new.pub"), path("old.pub")); strings.Contains(err, rejectedKey) || !strings.Contains(err, "UID") {
		t.Errorf("with the old key's file: %s", err)
	}
	if err := verify(token, path("new.key"), path("new.pub")); !strings.Contains(err, rejectedKey) {
		t.Errorf("without the old key's file: %q", err)
	}
	if err := verify(token, ""); !strings.Contains(err, rejectedKey) {
		t.Errorf("with the key of the data directory: %q", err)
	}
	for _, test := range []struct{ signing, file, want string }{
		{path("missing"), "", "--service-account-signing-key-file: "},
		{"", path("missing"), "--service-account-key-file: "},
	} {
		c := testConfig(t)
		accounts := &c.Authentication.ServiceAccounts
		if accounts.SigningKeyFile = test.signing; test.file != "" {
			accounts.KeyFiles = []string{test.file}
		}
		if _, _, err := serviceAccountKeys(*accounts, pki.Dir(t.TempDir())); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%+v: error %v", test, err)
		}
	}
}

// The first issuer issues tokens, and tokens of every issuer are accepted.
func TestServiceAccountIssuers(t *testing.T) {
	c := testConfig(t)
	accounts := &c.Authentication.ServiceAccounts
	accounts.Issuers = []string{"https://old.example.org"}
	accounts.JWKSURI = "https://keys.example.org/jwks"
	key := filepath.Join(c.DataDir, "account.key")
	accounts.SigningKeyFile = key
	if _, err := pki.Dir(c.DataDir).SigningKey("account"); err != nil {
		t.Fatal(err)
	}
	server, _ := startAPIServer(t, c)
	token := issueToken(t, server.Handler())
	w := do(server.Handler(), "admin", "GET", "/.well-known/openid-configuration", "")
	if body := w.Body.String(); !strings.Contains(body, `"issuer":"https://old.example.org"`) || !strings.Contains(body, `"jwks_uri":"https://keys.example.org/jwks"`) {
		t.Errorf("discovery document: %s", body)
	}
	for _, test := range []struct {
		issuers []string
		want    string
	}{
		{[]string{"https://new.example.org", "https://old.example.org"}, "UID"},
		{[]string{"https://new.example.org"}, "invalid bearer token"},
	} {
		c := testConfig(t)
		c.Authentication.ServiceAccounts.Issuers, c.Authentication.ServiceAccounts.SigningKeyFile = test.issuers, key
		server, access := startAPIServer(t, c)
		own := issueToken(t, server.Handler())
		if _, audiences, ok, err := access.authenticator.AuthenticateToken(t.Context(), own, nil); !ok || len(audiences) != len(test.issuers) {
			t.Errorf("%v: own token has audiences %v, error %v", test.issuers, audiences, err)
		}
		if _, _, _, err := access.authenticator.AuthenticateToken(t.Context(), token, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: error %v, want %q", test.issuers, err, test.want)
		}
	}
}

// The --oidc flags configure an identity provider, and exclude the same in the AuthenticationConfiguration.
func TestOIDCFlags(t *testing.T) {
	c := testConfig(t)
	c.Authentication.OIDC.IssuerURL, c.Authentication.OIDC.ClientID = "https://idp.example.org", "skiff"
	_, access := startAPIServer(t, c)
	if access.identityProviders == nil || access.authenticationConfig != "" {
		t.Fatal("there is no identity provider")
	}
	c.Authentication.OIDC.SigningAlgs = []string{"HS256"}
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newAccessControl(c.APIServer, certs, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `unsupported signing alg: "HS256"`) {
		t.Errorf("error %v", err)
	}
	c = testConfig(t)
	c.Authentication.File, c.Authentication.AnonymousGiven = filepath.Join(c.DataDir, "authentication.yaml"), true
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n"
	if err := os.WriteFile(c.Authentication.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newAccessControl(c.APIServer, certs, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--anonymous-auth flag cannot be set when anonymous field is configured") {
		t.Errorf("error %v", err)
	}
}
