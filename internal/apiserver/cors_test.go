package apiserver

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

func TestResponseHeaders(t *testing.T) {
	h := ResponseHeaders{
		AllowedOrigins: []*regexp.Regexp{regexp.MustCompile(`^https://example\.org$`), regexp.MustCompile(`//localhost(:|$)`)},
		HSTS:           []string{"max-age=60", "preload"}, GoawayChance: 0.01,
	}
	for _, test := range []struct {
		origin  string
		proto   int
		random  float64
		allowed bool
		goaway  bool
	}{
		{"https://example.org", 2, 0.5, true, false},
		{"http://localhost:8080", 1, 0, true, false},
		{"https://example.org.evil.net", 2, 0.009, false, true},
		{"", 2, 0.01, false, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.ProtoMajor = test.proto
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		header := http.Header{}
		h.set(header, r, func() float64 { return test.random })
		want := map[string]string{"Strict-Transport-Security": "max-age=60; preload"}
		if test.goaway {
			want["Connection"] = "close"
		}
		if test.allowed {
			want["Access-Control-Allow-Origin"] = test.origin
			want["Access-Control-Allow-Methods"] = "POST, GET, OPTIONS, PUT, DELETE, PATCH"
			want["Access-Control-Allow-Headers"] = "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since"
			want["Access-Control-Expose-Headers"] = "Date"
			want["Access-Control-Allow-Credentials"] = "true"
		}
		if len(header) != len(want) {
			t.Errorf("%+v: headers %v", test, header)
		}
		for name, value := range want {
			if header.Get(name) != value {
				t.Errorf("%+v: %s is %q, want %q", test, name, header.Get(name), value)
			}
		}
	}
}
