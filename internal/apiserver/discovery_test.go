package apiserver

import (
	"fmt"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDiscovery(t *testing.T) {
	s := newTestServer(t)
	var versions metav1.APIVersions
	s.get("/api").into(&versions)
	if got := fmt.Sprint(versions.Kind, versions.Versions, versions.ServerAddressByClientCIDRs); got != "APIVersions[v1] [{0.0.0.0/0 10.0.0.1:6443}]" {
		t.Errorf("/api: %s", got)
	}
	var groups metav1.APIGroupList
	s.get("/apis").into(&groups)
	if len(groups.Groups) != 2 || groups.Groups[0].Name != "events.k8s.io" || groups.Groups[1].Name != "authorization.k8s.io" || groups.APIVersion != "v1" {
		t.Errorf("/apis: %+v", groups)
	}
	var group metav1.APIGroup
	s.get("/apis/events.k8s.io").into(&group)
	if group.PreferredVersion.GroupVersion != "events.k8s.io/v1" || group.Kind != "APIGroup" {
		t.Errorf("group: %+v", group)
	}
	var resources metav1.APIResourceList
	s.get("/api/v1").into(&resources)
	var names []string
	for _, r := range resources.APIResources {
		names = append(names, r.Name)
	}
	if got := strings.Join(names, " "); got != "componentstatuses configmaps events namespaces namespaces/status nodes pods pods/exec pods/log pods/status" {
		t.Errorf("resources: %s", got)
	}
	if got := resources.APIResources[1]; got.StorageVersionHash != "qFsyl6wFWjQ=" || got.SingularName != "configmap" || !got.Namespaced {
		t.Errorf("configmaps: %+v", got)
	}
	if got := resources.APIResources[7]; got.Kind != "PodExecOptions" || got.Group != "" || fmt.Sprint(got.Verbs) != "[create get]" || got.SingularName != "" {
		t.Errorf("pods/exec: %+v", got)
	}
	resources = metav1.APIResourceList{}
	s.get("/apis/events.k8s.io/v1").into(&resources)
	if len(resources.APIResources) != 1 || resources.APIResources[0].StorageVersionHash != "r2yiGXH7wu8=" || resources.GroupVersion != "events.k8s.io/v1" {
		t.Errorf("events: %+v", resources)
	}
	for _, path := range []string{"/apis/x", "/apis/events.k8s.io/v2", "/api/v2"} {
		if got := s.get(path); got.code != 404 || string(got.body) != "404 page not found\n" {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	if envelope, err := parseEnvelope(s.get("/apis", "Accept: "+mediaProtobuf).body); err != nil || envelope.kind != "APIGroupList" {
		t.Errorf("%+v %v", envelope, err)
	}
}

func TestAggregatedDiscovery(t *testing.T) {
	s := newTestServer(t)
	const accept = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
	var list apidiscoveryv2.APIGroupDiscoveryList
	answer := s.get("/apis", accept)
	answer.into(&list)
	if got := answer.header.Get("Content-Type"); got != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
		t.Errorf("content type %s", got)
	}
	if len(list.Items) != 2 || list.Items[0].Name != "events.k8s.io" || list.Kind != "APIGroupDiscoveryList" || list.Items[0].Versions[0].Freshness != "Current" {
		t.Errorf("%s", answer.body)
	}
	etag := answer.header.Get("ETag")
	if len(etag) != 130 || answer.header.Get("Vary") != "Accept" {
		t.Errorf("headers %v", answer.header)
	}
	if again := s.get("/apis", accept, "If-None-Match: "+etag); again.code != 304 || len(again.body) != 0 {
		t.Errorf("%d %s", again.code, again.body)
	}
	list = apidiscoveryv2.APIGroupDiscoveryList{}
	s.get("/api", accept).into(&list)
	var pods *apidiscoveryv2.APIResourceDiscovery
	for i, r := range list.Items[0].Versions[0].Resources {
		if r.Resource == "pods" {
			pods = &list.Items[0].Versions[0].Resources[i]
		}
	}
	if pods == nil || pods.Scope != "Namespaced" || pods.ResponseKind.Kind != "Pod" || len(pods.Subresources) != 3 || pods.Subresources[2].Subresource != "status" || pods.SingularResource != "pod" {
		t.Errorf("pods: %+v", pods)
	}
	if err := s.AddKind(widgetKind()); err != nil {
		t.Fatal(err)
	}
	changed := s.get("/apis", accept, "If-None-Match: "+etag)
	if changed.code != 200 || changed.header.Get("ETag") == etag {
		t.Errorf("%d %v", changed.code, changed.header)
	}
}
