package apiserver

import (
	"net/http"
	"net/url"
	"testing"
)

func TestNegotiate(t *testing.T) {
	all := offer{protobuf: true, partial: true, tables: true}
	tests := []struct {
		accept string
		offer  offer
		want   output
		ok     bool
	}{
		{"", all, output{}, true},
		{"*/*", all, output{}, true},
		{"application/*", all, output{}, true},
		{"application/json", all, output{}, true},
		{"application/vnd.kubernetes.protobuf,application/json", all, output{format: formatProtobuf}, true},
		{"application/vnd.kubernetes.protobuf,application/json", offer{}, output{}, true},
		{"application/json;q=0.5,application/yaml;q=0.9", all, output{format: formatYAML}, true},
		{"application/vnd.kubernetes.protobuf;stream=watch", all, output{format: formatProtobuf}, true},
		{"application/yaml;stream=watch", all, output{}, false},
		{"application/json;stream=other", all, output{}, false},
		{"application/cbor,application/json", all, output{}, true},
		{"application/cbor", all, output{}, false},
		{"text/html", all, output{}, false},
		{"application/json;as=Table;v=v1;g=meta.k8s.io", all, output{transform: transformTable, metaVersion: "v1"}, true},
		{"application/json;as=Table;v=v2;g=meta.k8s.io, application/json;as=Table;v=v1beta1;g=meta.k8s.io", all, output{transform: transformTable, metaVersion: "v1beta1"}, true},
		{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", offer{protobuf: true, partial: true}, output{}, true},
		{"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", all, output{}, false},
		{"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", offer{partial: true}, output{format: formatProtobuf, transform: transformPartial, metaVersion: "v1"}, true},
		{"application/json;as=Hat;v=v1;g=meta.k8s.io", all, output{}, false},
		{"application/json;as=Table;v=v1", all, output{}, false},
		{"application/json;pretty=1", all, output{pretty: true}, true},
		{"application/json;sv=v2", all, output{}, false},
		{"application/json;unknown=x", all, output{}, true},
	}
	for _, test := range tests {
		r := &http.Request{Header: http.Header{"Accept": {test.accept}}, URL: &url.URL{}}
		got, ok := negotiate(r, test.offer)
		if ok != test.ok || (ok && got != test.want) {
			t.Errorf("%q: %+v %v, want %+v %v", test.accept, got, ok, test.want, test.ok)
		}
	}
}

func FuzzAccept(f *testing.F) {
	for _, seed := range []string{"*/*", kubectlAccept, "application/json;q=2;as=", ";;,,", "a/b;c=d,application/yaml;q=x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		for _, c := range parseClauses(accept) {
			if len(c.formats) == 0 {
				t.Error("a clause that matches nothing")
			}
		}
	})
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{"gzip": true, "deflate, gzip": true, "": false, "identity": false, "gzipped": false} {
		if got := acceptsGzip(&http.Request{Header: http.Header{"Accept-Encoding": {header}}}); got != want {
			t.Errorf("%q: %v", header, got)
		}
	}
}
