package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"skiff/internal/apiserver/aggregation/aggregationtest"
	"skiff/internal/webhook/webhooktest"
	"skiff/test/cluster"
)

var (
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	flunders    = schema.GroupVersionResource{Group: aggregationtest.Group, Version: aggregationtest.Version, Resource: aggregationtest.Plural}
)

// available is the condition Available of an APIService as text.
func available(ctx context.Context, client dynamic.Interface, name string) (string, error) {
	service, err := client.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	conditions, _, err := unstructured.NestedSlice(service.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == "Available" {
			return fmt.Sprint(c["status"], " ", c["reason"], " ", c["message"]), nil
		}
	}
	return "", err
}

// TestAggregation registers an aggregated server that authenticates the API server by the published CA of front proxies, and uses it as a
// client does, in discovery, OpenAPI and requests for objects; then it fails and is removed.
func TestAggregation(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	client := resources(t, c)
	if got, err := available(t.Context(), client, "v1.apps"); got != "True Local Local APIServices are always available" {
		t.Errorf("local APIService: %q %v", got, err)
	}
	server := startAggregated(t, client, schema.GroupVersion{Group: aggregationtest.Group, Version: aggregationtest.Version}, nil)

	created := parseObject(t, "{apiVersion: sample.example.com/v1, kind: Flunder, metadata: {name: a, namespace: default}}")
	if _, err := client.Resource(flunders).Namespace("default").Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := client.Resource(flunders).Namespace("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "a" {
		t.Errorf("%+v %v", list, err)
	}
	if !server.Requested("POST " + aggregationtest.Root + "/namespaces/default/flunders user=") {
		t.Errorf("%q", server.Requests())
	}
	eventually(t.Context(), t, "discovery lists the resources of the aggregated server", func(context.Context) (bool, error) {
		for _, group := range aggregatedOf(t, c, "/apis") {
			if group.Name == aggregationtest.Group {
				v := group.Versions[0]
				return v.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent && len(v.Resources) == 1, nil
			}
		}
		return false, nil
	})
	eventually(t.Context(), t, "the OpenAPI document is served", func(context.Context) (bool, error) {
		code, _, _ := request(t, c, "/openapi/v3"+aggregationtest.Root, nil)
		return code == http.StatusOK, nil
	})
	server.SetFailing(true)
	// A change of the Service starts a check.
	if _, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace("default").
		Patch(t.Context(), "api", types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/failing":"true"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the APIService is unavailable", func(ctx context.Context) (bool, error) {
		got, err := available(ctx, client, aggregationtest.Name)
		return strings.HasPrefix(got, "False FailedDiscoveryCheck failing or missing response from https://localhost:"), err
	})
	if code, body, _ := request(t, c, aggregationtest.Root+"/namespaces/default/flunders", nil); code != http.StatusServiceUnavailable || string(body) != "service unavailable\n" {
		t.Errorf("%d %s", code, body)
	}
	if err := client.Resource(apiServices).Delete(t.Context(), aggregationtest.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the group is no longer served", func(context.Context) (bool, error) {
		code, _, _ := request(t, c, "/apis/"+aggregationtest.Group, nil)
		return code == http.StatusNotFound, nil
	})
}

// TestMetricsServer: a metrics-server that a user installs takes over metrics.k8s.io from the built-in one, and gives it back when it is
// removed.
func TestMetricsServer(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	client := resources(t, c)
	const path = "/apis/metrics.k8s.io/v1beta1/nodes"
	builtIn := func() bool {
		code, body, _ := request(t, c, path, nil)
		return code == http.StatusOK && strings.Contains(string(body), "NodeMetricsList") && !strings.Contains(string(body), "installed")
	}
	if !builtIn() {
		t.Fatal("the built-in metrics are not served")
	}
	startAggregated(t, client, schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != path {
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[{"name":"nodes","kind":"NodeMetrics","verbs":["list"]}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"NodeMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[{"metadata":{"name":"installed"},"timestamp":"2030-01-01T00:00:00Z","window":"10s","usage":{"cpu":"1500m","memory":"2Gi"}}]}`)
	}))
	eventually(t.Context(), t, "the installed server responds", func(context.Context) (bool, error) {
		code, body, _ := request(t, c, path, nil)
		return code == http.StatusOK && strings.Contains(string(body), `"installed"`), nil
	})
	eventually(t.Context(), t, "discovery lists what the installed server has", func(context.Context) (bool, error) {
		for _, group := range discoveredGroups(t, c, "/apis") {
			if group.Name == "metrics.k8s.io" {
				return len(group.Versions[0].Resources) == 1 && group.Versions[0].Resources[0].Resource == "nodes", nil
			}
		}
		return false, nil
	})
	if got := runCommand(t.TempDir(), c.Kubeconfig, "kubectl top nodes"); !strings.Contains(got, "installed") || !strings.Contains(got, "2048Mi") {
		t.Errorf("kubectl top nodes: %s", got)
	}
	if err := client.Resource(apiServices).Delete(t.Context(), "v1beta1.metrics.k8s.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the built-in metrics are served again", func(context.Context) (bool, error) { return builtIn(), nil })
}

// startAggregated starts an aggregated server that trusts the published CA of front proxies, registers it for a group version and waits until
// it is available. override serves its requests unless it is nil.
func startAggregated(t *testing.T, client dynamic.Interface, gv schema.GroupVersion, override http.Handler) *aggregationtest.Server {
	t.Helper()
	authentication, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("kube-system").
		Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	clientCAs, _, _ := unstructured.NestedString(authentication.Object, "data", "requestheader-client-ca-file")
	ca := webhooktest.NewCA(t)
	server := aggregationtest.Start(t, ca, []byte(clientCAs), "api.default.svc")
	server.SetHandler(override)
	service := parseObject(t, "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: default}, spec: {type: ExternalName, externalName: localhost}}")
	if _, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	registered := parseObject(t, fmt.Sprintf(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  version: %[2]s
  groupPriorityMinimum: 2000
  versionPriority: 15
  caBundle: %[3]s
  service: {namespace: default, name: api, port: %[4]d}
`, gv.Group, gv.Version, base64.StdEncoding.EncodeToString(ca.Bundle), server.Port()))
	if _, err := client.Resource(apiServices).Create(t.Context(), registered, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the APIService is available", func(ctx context.Context) (bool, error) {
		got, err := available(ctx, client, registered.GetName())
		return got == "True Passed all checks passed", err
	})
	return server
}
