package e2e

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// startBoth starts skiff and upstream's API server, to be compared. They stop with the test.
func startBoth(t *testing.T) (skiff, upstream *cluster.Cluster) {
	t.Helper()
	start := func(c *cluster.Cluster, err error) *cluster.Cluster {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		return c
	}
	skiff = start(cluster.Skiff(t.TempDir()))
	return skiff, start(cluster.UpstreamAPI(t.TempDir(), ""))
}

// TestDiscovery compares the discovery documents of skiff and upstream: GA groups, versions, resources, subresources, verbs,
// short names, categories and storage hashes are the same.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	skiff, upstream := startBoth(t)

	t.Run("groups", func(t *testing.T) {
		got, want := groupsOf(t, skiff), groupsOf(t, upstream)
		compareJSON(t, "/apis", got, want)
	})
	t.Run("resources", func(t *testing.T) {
		paths := []string{"/api/v1"}
		for _, g := range groupsOf(t, upstream) {
			for _, v := range g.Versions {
				paths = append(paths, "/apis/"+v.GroupVersion)
			}
		}
		if len(paths) < 20 {
			t.Fatalf("only %d group versions", len(paths))
		}
		for _, path := range paths {
			got, want := resourcesOf(t, skiff, path), resourcesOf(t, upstream, path)
			if definitions, ok := want["customresourcedefinitions"]; ok {
				// Upstream stores definitions in v1beta1, which it does not serve.
				definitions.StorageVersionHash = got["customresourcedefinitions"].StorageVersionHash
				want["customresourcedefinitions"] = definitions
			}
			for _, name := range slices.Sorted(maps.Keys(want)) {
				compareJSON(t, path+" "+name, got[name], want[name])
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%s: skiff serves %s, upstream does not", path, name)
			}
		}
	})
	t.Run("aggregated", func(t *testing.T) {
		for _, path := range []string{"/api", "/apis"} {
			compareJSON(t, path, aggregatedOf(t, skiff, path), aggregatedOf(t, upstream, path))
		}
	})
	t.Run("health checks", func(t *testing.T) {
		got, want := healthChecksOf(t, skiff), healthChecksOf(t, upstream)
		if len(want) < 60 {
			t.Fatalf("upstream has only %d checks: %v", len(want), want)
		}
		for _, path := range want {
			name := path[strings.Index(path[1:], "/")+2:]
			reason, absent := absentChecks[name]
			switch served := slices.Contains(got, path); {
			case !served && !absent:
				t.Errorf("skiff does not serve %s", path)
			case served && absent:
				t.Errorf("skiff serves %s, which is listed as absent: %s", path, reason)
			}
		}
	})
	t.Run("not modified", func(t *testing.T) {
		_, header := fetch(t, skiff, "/apis", aggregatedType)
		etag := header.Get("ETag")
		if etag == "" {
			t.Fatal("aggregated discovery has no ETag")
		}
		code, _, _ := request(t, skiff, "/apis", map[string]string{"Accept": aggregatedType, "If-None-Match": etag})
		if code != http.StatusNotModified {
			t.Fatalf("with the ETag it has: %d, want 304", code)
		}
	})
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// groupsOf are the groups with their GA versions.
// absentChecks are health checks of upstream that skiff does not have, with the reasons.
var absentChecks = map[string]string{
	"etcd-readiness":                                                      "the check etcd is the same",
	"loopback-serving-certificate":                                        "the server makes no connection to itself",
	"poststarthook/aggregator-reload-proxy-client-cert":                   "the certificate for aggregated servers is loaded before the start",
	"poststarthook/peer-endpoint-reconciler-controller":                   "no request is passed on to an API server of another version",
	"poststarthook/start-kube-apiserver-identity-lease-controller":        "servers are found in EndpointSlices, not by leases",
	"poststarthook/start-kube-apiserver-identity-lease-garbage-collector": "the same",
	"poststarthook/start-legacy-token-tracking-controller":                "no token secrets are generated",
	"poststarthook/storage-object-count-tracker-hook":                     "the cache knows the number of objects",
}

// healthChecksOf are the paths of all health checks. Each of them must succeed.
func healthChecksOf(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	data, _ := fetch(t, c, "/", "application/json")
	var root metav1.RootPaths
	decode(t, data, &root)
	var paths []string
	for _, path := range root.Paths {
		if strings.HasPrefix(path, "/healthz/") || strings.HasPrefix(path, "/livez/") || strings.HasPrefix(path, "/readyz/") {
			if code, body, _ := request(t, c, path, nil); code != http.StatusOK || string(body) != "ok" {
				t.Errorf("%s: %d %s", path, code, body)
			}
			paths = append(paths, path)
		}
	}
	return paths
}

func groupsOf(t *testing.T, c *cluster.Cluster) []metav1.APIGroup {
	t.Helper()
	body, _ := fetch(t, c, "/apis", "application/json")
	var list metav1.APIGroupList
	decode(t, body, &list)
	var groups []metav1.APIGroup
	for _, g := range list.Groups {
		g.Versions = slices.DeleteFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool { return !isGA(v.Version) })
		if len(g.Versions) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

func resourcesOf(t *testing.T, c *cluster.Cluster, path string) map[string]metav1.APIResource {
	t.Helper()
	body, _ := fetch(t, c, path, "application/json")
	var list metav1.APIResourceList
	decode(t, body, &list)
	byName := map[string]metav1.APIResource{}
	for _, r := range list.APIResources {
		byName[r.Name] = r
	}
	return byName
}

// discoveredGroups are all groups of the aggregated document.
func discoveredGroups(t *testing.T, c *cluster.Cluster, path string) []apidiscoveryv2.APIGroupDiscovery {
	t.Helper()
	body, _ := fetch(t, c, path, aggregatedType)
	var list apidiscoveryv2.APIGroupDiscoveryList
	decode(t, body, &list)
	return list.Items
}

// aggregatedOf are the GA versions in the aggregated document.
func aggregatedOf(t *testing.T, c *cluster.Cluster, path string) []apidiscoveryv2.APIGroupDiscovery {
	t.Helper()
	var groups []apidiscoveryv2.APIGroupDiscovery
	for _, g := range discoveredGroups(t, c, path) {
		g.CreationTimestamp = metav1.Time{}
		g.Versions = slices.DeleteFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool { return !isGA(v.Version) })
		if len(g.Versions) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

func isGA(version string) bool {
	return !strings.Contains(version, "alpha") && !strings.Contains(version, "beta")
}

func compareJSON(t *testing.T, what string, got, want any) {
	t.Helper()
	g, w := toJSON(t, got), toJSON(t, want)
	if g != w {
		t.Errorf("%s differs:\n%s", what, difference(g, w))
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func fetch(t *testing.T, c *cluster.Cluster, path, accept string) ([]byte, http.Header) {
	t.Helper()
	code, body, header := request(t, c, path, map[string]string{"Accept": accept})
	if code != http.StatusOK {
		t.Fatalf("%s: GET %s: %d %s", c.Name, path, code, body)
	}
	return body, header
}

func request(t *testing.T, c *cluster.Cluster, path string, headers map[string]string) (int, []byte, http.Header) {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body, resp.Header
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %.200s", err, data)
	}
}
