package config

import (
	"maps"
	"slices"
	"testing"
)

func TestAuthenticationValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string // substring of the error; empty: valid
	}{
		{"issuers", []string{"--service-account-issuer=https://a", "--service-account-issuer=https://b"}, ""},
		{"issuer twice", []string{"--service-account-issuer=https://a", "--service-account-issuer=https://a"}, `service-account-issuer "https://a" is already specified`},
		{"empty issuer", []string{"--service-account-issuer="}, "service-account-issuer should not be an empty string"},
		{"issuer that is not a URL", []string{"--service-account-issuer=:a"}, `service-account-issuer ":a" contained a ':' but was not a valid URL`},
		{"keys without TLS", []string{"--service-account-jwks-uri=http://a/"}, "service-account-jwks-uri requires https scheme, parsed as: http://a/"},
		{"keys at no URL", []string{"--service-account-jwks-uri=:"}, "service-account-jwks-uri must be a valid URL"},
		{"OIDC", []string{"--oidc-issuer-url=https://a", "--oidc-client-id=b"}, ""},
		{"OIDC without client", []string{"--oidc-issuer-url=https://a"}, "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"},
		{"OIDC with a default only", []string{"--oidc-username-claim=sub"}, "oidc-issuer-url and oidc-client-id must be specified together"},
		{"OIDC and file", []string{"--oidc-issuer-url=https://a", "--oidc-client-id=b", "--authentication-config=f"}, "authentication-config file and oidc-* flags are mutually exclusive"},
		{"claim without value", []string{"--oidc-required-claim=hd"}, "malformed pair, expect string=string"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := DefaultAPIServer()
			checkError(t, parse(&c, test.args...), test.want)
		})
	}
}

func TestAuthenticationFlags(t *testing.T) {
	c := DefaultAPIServer()
	if err := parse(&c, "--service-account-issuer=https://a,b", "--service-account-issuer=https://c", "--service-account-key-file=k1", "--service-account-key-file=k2",
		"--oidc-issuer-url=https://i", "--oidc-client-id=c", "--oidc-required-claim=hd=example.org,x", "--oidc-required-claim=a=b", "--oidc-signing-algs=ES256,RS256",
		"--anonymous-auth=true"); err != nil {
		t.Fatal(err)
	}
	a := &c.Authentication
	if !slices.Equal(a.ServiceAccounts.Issuers, []string{"https://a,b", "https://c"}) || !slices.Equal(a.ServiceAccounts.KeyFiles, []string{"k1", "k2"}) {
		t.Errorf("issuers %q, key files %q", a.ServiceAccounts.Issuers, a.ServiceAccounts.KeyFiles)
	}
	if !maps.Equal(a.OIDC.RequiredClaims, map[string]string{"hd": "example.org,x", "a": "b"}) || !slices.Equal(a.OIDC.SigningAlgs, []string{"ES256", "RS256"}) {
		t.Errorf("OIDC %+v", a.OIDC)
	}
	if !a.AnonymousGiven {
		t.Error("--anonymous-auth was given")
	}
}
