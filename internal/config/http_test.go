package config

import "testing"

func TestHTTPValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string // substring of the error; empty: valid
	}{
		{"goaway", []string{"--goaway-chance=0.02"}, ""},
		{"goaway too often", []string{"--goaway-chance=0.021"}, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{"goaway negative", []string{"--goaway-chance=-1"}, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{"timeout", []string{"--min-request-timeout=60"}, ""},
		{"negative timeout", []string{"--min-request-timeout=-1"}, "--min-request-timeout can not be negative value"},
		{"no timeout", []string{"--min-request-timeout=0"}, "--min-request-timeout: must be positive"},
		{"HSTS", []string{"--strict-transport-security-directives=max-age=31536000,includeSubDomains,preload"}, ""},
		{"HSTS directive", []string{"--strict-transport-security-directives=forever"}, "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload"},
		{"HSTS empty", []string{"--strict-transport-security-directives=preload, "}, "empty value in strict-transport-security-directives"},
		{"origins", []string{`--cors-allowed-origins=^https://example\.org$,//localhost(:|$)`}, ""},
		{"origin not anchored at the start", []string{"--cors-allowed-origins=example.org$"}, "regular expression does not pin to start/end of host in the origin header"},
		{"origin not anchored at the end", []string{"--cors-allowed-origins=//example.org"}, "regular expression does not pin to start/end of host in the origin header"},
		{"origin not an expression", []string{"--cors-allowed-origins=^($"}, "--cors-allowed-origins has an invalid regular expression"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := DefaultAPIServer()
			checkError(t, parse(&c, test.args...), test.want)
		})
	}
}
