package config

import (
	"reflect"
	"testing"
)

func TestTLSFlags(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string // substring of the error; empty: valid
	}{
		{"certificate without key", []string{"--tls-cert-file=c"}, "--tls-cert-file: certificate and key are needed together"},
		{"version", []string{"--tls-min-version=VersionTLS13"}, ""},
		{"unknown version", []string{"--tls-min-version=SSLv3"}, `unknown tls version "SSLv3"`},
		{"cipher suites", []string{"--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"}, ""},
		{"insecure cipher suite", []string{"--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"}, ""},
		{"unknown cipher suite", []string{"--tls-cipher-suites=ROT13"}, "Cipher suite ROT13 not supported or doesn't exist"},
		{"key exchanges", []string{"--tls-curve-preferences=23,29"}, ""},
		{"key exchange out of range", []string{"--tls-curve-preferences=0"}, "curve preference 0 is out of range (must be 1-65535)"},
		{"key exchange twice", []string{"--tls-curve-preferences=29,29"}, "duplicate curve preference 29"},
		{"unknown key exchange", []string{"--tls-curve-preferences=9"}, "curve preference 9 is not supported by the current Go version"},
		{"name list empty", []string{"--tls-sni-cert-key=c,k:"}, "empty names list is not allowed"},
		{"one file", []string{"--tls-sni-cert-key=c"}, "expected comma separated certificate and key file paths"},
		{"three files", []string{"--tls-sni-cert-key=c,k,x"}, "expected comma separated certificate and key file paths"},
		{"empty header", []string{"--requestheader-username-headers=X-User, "}, `empty value in "requestheader-username-headers"`},
		{"UID header", []string{"--requestheader-uid-headers=X-Uid"}, "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header"},
		{"headers", []string{"--requestheader-uid-headers=x-remote-uid", "--requestheader-group-headers=A,B"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := DefaultAPIServer()
			checkError(t, parse(&c, test.args...), test.want)
		})
	}
	c := DefaultAPIServer()
	if err := parse(&c, "--tls-sni-cert-key=a.crt, a.key", "--tls-sni-cert-key=b.crt,b.key:b.org, *.b.org", "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"); err != nil {
		t.Fatal(err)
	}
	want := []NamedCert{{CertFile: "a.crt", KeyFile: "a.key"}, {CertFile: "b.crt", KeyFile: "b.key", Names: []string{"b.org", "*.b.org"}}}
	if !reflect.DeepEqual(c.TLS.SNI, want) {
		t.Errorf("certificates %v", c.TLS.SNI)
	}
	if got := c.TLS.InsecureSuites(); !reflect.DeepEqual(got, []string{"TLS_RSA_WITH_RC4_128_SHA"}) {
		t.Errorf("insecure suites %v", got)
	}
}
