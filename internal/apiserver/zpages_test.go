package apiserver

import (
	"strings"
	"testing"
)

func TestZPageNegotiation(t *testing.T) {
	page := &zPage{name: "statusz", kind: "Statusz"}
	for _, test := range []struct{ accept, mediaType, version string }{
		{"", mediaText, ""},
		{"*/*", mediaText, ""},
		{"text/plain", mediaText, ""},
		{"application/json", "", ""},
		{"application/json;as=Statusz;v=v1beta1;g=config.k8s.io", mediaJSON, "v1beta1"},
		{"application/yaml;as=Statusz;v=v1alpha1;g=config.k8s.io", mediaYAML, "v1alpha1"},
		{"application/json;as=Statusz;v=v2;g=config.k8s.io", "", ""},
		{"application/json;as=Flagz;v=v1beta1;g=config.k8s.io", "", ""},
		{"application/json;as=Statusz;v=v2;g=config.k8s.io,text/plain;q=0.5", mediaText, ""},
		{"application/vnd.kubernetes.protobuf;as=Statusz;v=v1beta1;g=config.k8s.io", "", ""},
	} {
		mediaType, version, ok := page.negotiate(test.accept)
		if mediaType != test.mediaType || version != test.version || ok != (test.mediaType != "") {
			t.Errorf("%q: %s, %s, %v", test.accept, mediaType, version, ok)
		}
	}
}

func TestDebugPaths(t *testing.T) {
	got := strings.Join(debugPaths([]string{"/", "/api", "/apis/apps", "/healthz", "/healthz/ping", "/metrics", "/.well-known/openid-configuration", "/openapi/v2"}), " ")
	if got != "/healthz /metrics" {
		t.Errorf("paths %s", got)
	}
}
