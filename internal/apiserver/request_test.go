package apiserver

import (
	"net/url"
	"strings"
	"testing"
)

func TestParseRequest(t *testing.T) {
	tests := []struct {
		method, url string
		want        requestInfo
	}{
		{"GET", "/api/v1/pods", requestInfo{verb: "list", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/pods/", requestInfo{verb: "list", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/namespaces/n/pods", requestInfo{verb: "list", version: "v1", resource: "pods", namespace: "n"}},
		{"GET", "/api/v1/namespaces/n/pods/p", requestInfo{verb: "get", version: "v1", resource: "pods", namespace: "n", name: "p"}},
		{"HEAD", "/api/v1/namespaces/n/pods/p", requestInfo{verb: "get", version: "v1", resource: "pods", namespace: "n", name: "p"}},
		{"GET", "/api/v1/namespaces/n/pods/p/log", requestInfo{verb: "get", version: "v1", resource: "pods", namespace: "n", name: "p", subresource: "log"}},
		{"POST", "/api/v1/namespaces/n/pods/p/proxy/a/b", requestInfo{verb: "create", version: "v1", resource: "pods", namespace: "n", name: "p", subresource: "proxy", rest: "/a/b"}},
		{"GET", "/api/v1/namespaces", requestInfo{verb: "list", version: "v1", resource: "namespaces"}},
		{"GET", "/api/v1/namespaces/n", requestInfo{verb: "get", version: "v1", resource: "namespaces", namespace: "n", name: "n"}},
		{"PUT", "/api/v1/namespaces/n/status", requestInfo{verb: "update", version: "v1", resource: "namespaces", namespace: "n", name: "n", subresource: "status"}},
		{"PUT", "/api/v1/namespaces/n/finalize", requestInfo{verb: "update", version: "v1", resource: "namespaces", namespace: "n", name: "n", subresource: "finalize"}},
		{"GET", "/api/v1/watch/namespaces/n/pods/p", requestInfo{verb: "watch", version: "v1", resource: "pods", namespace: "n", name: "p"}},
		{"GET", "/api/v1/watch/pods", requestInfo{verb: "watch", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/pods?watch=1", requestInfo{verb: "watch", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/pods?watch", requestInfo{verb: "watch", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/pods?watch=false", requestInfo{verb: "list", version: "v1", resource: "pods"}},
		{"GET", "/api/v1/namespaces/n/pods/p?watch=true", requestInfo{verb: "get", version: "v1", resource: "pods", namespace: "n", name: "p"}},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", requestInfo{verb: "list", version: "v1", resource: "pods", name: "x"}},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Da%2Fb", requestInfo{verb: "list", version: "v1", resource: "pods"}},
		{"DELETE", "/api/v1/namespaces/n/pods", requestInfo{verb: "deletecollection", version: "v1", resource: "pods", namespace: "n"}},
		{"PATCH", "/apis/apps/v1/namespaces/n/deployments/d", requestInfo{verb: "patch", group: "apps", version: "v1", resource: "deployments", namespace: "n", name: "d"}},
		{"OPTIONS", "/apis/apps/v1/deployments", requestInfo{verb: "", group: "apps", version: "v1", resource: "deployments"}},
		{"GET", "/api/v1/namespaces/n/pods//log?fieldSelector=metadata.name%3Dp", requestInfo{verb: "get", version: "v1"}},
		{"GET", "/api/v1//pods", requestInfo{verb: "get", version: "v1"}},
		{"GET", "/apis", requestInfo{verb: "get"}},
		{"GET", "/apis/apps", requestInfo{verb: "get", group: "apps"}},
		{"GET", "/apis/apps/v1", requestInfo{verb: "get", group: "apps", version: "v1"}},
		{"GET", "/api/v1", requestInfo{verb: "get", version: "v1"}},
		{"GET", "/healthz", requestInfo{verb: "get"}},
		{"POST", "/", requestInfo{verb: "post"}},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.url, func(t *testing.T) {
			u, err := url.Parse(test.url)
			if err != nil {
				t.Fatal(err)
			}
			test.want.path = u.Path
			if got := parseRequest(test.method, u.Path, u.Query()); got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{"/api/v1/pods", "/apis/a/v1/namespaces/n/r/x/s/t", "//", "/api//v1", "/api/v1/watch/", "/api/v1/namespaces//pods", "api/0//0", "api/0/0//0"} {
		f.Add("GET", seed, "watch=true&fieldSelector=metadata.name=x")
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		info := parseRequest(method, path, values)
		for _, part := range []string{info.group, info.version, info.resource, info.namespace, info.name, info.subresource} {
			if strings.Contains(part, "/") {
				t.Errorf("%q: a part holds a slash: %+v", path, info)
			}
		}
		if info.resource == "" && (info.name != "" || info.subresource != "" || info.rest != "") {
			t.Errorf("%q: parts without a resource: %+v", path, info)
		}
		if info.subresource != "" && (info.name == "" || info.verb == "list" || info.verb == "deletecollection") {
			t.Errorf("%q: a subresource of nothing: %+v", path, info)
		}
	})
}

func FuzzListOptions(f *testing.F) {
	for _, seed := range []string{
		"labelSelector=a%3Db,c&fieldSelector=metadata.name%3Dx", "limit=10&continue=abc", "resourceVersion=5&resourceVersionMatch=Exact",
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "timeoutSeconds=-1", "fieldSelector=%5C%5C%3D",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		opts, err := parseListOptions(values)
		if err == nil {
			opts.validate()
			if opts.timeout < 0 {
				t.Error("a watch with less than no time")
			}
		}
	})
}

func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue("/registry/pods/ns/a\x00", "/registry/pods/ns/", 5))
	f.Add(encodeContinue("/registry/pods/ns/../x", "/registry/pods/ns/", -1))
	f.Add(encodeContinue("/", "", 6))
	f.Add("e30")
	f.Fuzz(func(t *testing.T, token string) {
		const prefix = "/registry/pods/ns/"
		from, revision, err := decodeContinue(token, prefix)
		if err != nil {
			return
		}
		if !strings.HasPrefix(from, prefix) || strings.Contains(from, "/../") || revision == 0 {
			t.Errorf("token %q leads to %q at %d", token, from, revision)
		}
		if from == prefix {
			return // the list's beginning: a client may ask for it, but no page is continued there
		}
		again, revision2, err := decodeContinue(encodeContinue(from, prefix, revision), prefix)
		if err != nil || again != from || revision2 != revision {
			t.Errorf("%q at %d became %q at %d (%v)", from, revision, again, revision2, err)
		}
	})
}
