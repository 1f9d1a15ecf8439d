package scaling

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	skiffapi "skiff/internal/api"
	"skiff/internal/client"
)

// doorway answers requests without a network, so that it can stand in a bubble of time.
type doorway struct{ handler http.Handler }

func (d doorway) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	d.handler.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// apiAt asks a handler.
func apiAt(t *testing.T, handler http.Handler) *api {
	t.Helper()
	c, err := client.New(&rest.Config{Host: "http://server.invalid", Transport: doorway{handler}}, skiffapi.Scheme(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// apiOf asks a server that has these answers.
func apiOf(t *testing.T, answers map[string]string) (*api, *metricsServer) {
	t.Helper()
	server := &metricsServer{answers: answers}
	return apiAt(t, server), server
}

func resourceList(resources ...string) string {
	var items []string
	for _, r := range resources {
		name, kind, _ := strings.Cut(r, " ")
		items = append(items, fmt.Sprintf(`{"name":%q,"kind":%q,"namespaced":%v}`, name, strings.TrimSuffix(kind, "*"), !strings.HasSuffix(kind, "*")))
	}
	return `{"kind":"APIResourceList","resources":[` + strings.Join(items, ",") + `]}`
}

// TestFindTargets: from a kind to the path of its scale.
func TestFindTargets(t *testing.T) {
	answers := map[string]string{
		"/api/v1":                   resourceList("replicationcontrollers ReplicationController", "replicationcontrollers/scale Scale", "pods Pod", "pods/status Pod"),
		"/apis/apps/v1":             resourceList("deployments Deployment", "deployments/status Deployment", "deployments/scale Scale", "daemonsets DaemonSet"),
		"/apis/apps":                `{"kind":"APIGroup","preferredVersion":{"version":"v1"}}`,
		"/apis/example.com":         `{"kind":"APIGroup","preferredVersion":{"version":"v2"}}`,
		"/apis/example.com/v1":      resourceList("gadgets Gadget"),
		"/apis/example.com/v2":      resourceList("gadgets Gadget", "gadgets/scale Scale", "worlds World*", "worlds/scale Scale", "widgets Widget"),
		"/apis/broken.example.com":  `{"kind":"APIGroup","preferredVersion":{"version":"v9"}}`,
		"/apis/strange.example/v1x": resourceList("scales/scale Scale"),
	}
	for _, test := range []struct {
		what, group, version, kind string
		want                       string
	}{
		{"of the core group", "", "v1", "ReplicationController", "/api/v1/namespaces/default/replicationcontrollers/x/scale true"},
		{"of a group", "apps", "v1", "Deployment", "/apis/apps/v1/namespaces/default/deployments/x/scale true"},
		{"without a scale", "apps", "v1", "DaemonSet", "/apis/apps/v1/namespaces/default/daemonsets/x/scale false"},
		{"a subresource of the same kind is not it", "", "v1", "Pod", "/api/v1/namespaces/default/pods/x/scale false"},
		{"a version nobody serves: the preferred one", "apps", "v1beta1", "Deployment", "/apis/apps/v1/namespaces/default/deployments/x/scale true"},
		{"a version that has it is kept", "example.com", "v1", "Gadget", "/apis/example.com/v1/namespaces/default/gadgets/x/scale false"},
		{"a version that has it not: the preferred one", "example.com", "v1", "Widget", "/apis/example.com/v2/namespaces/default/widgets/x/scale false"},
		{"without a namespace", "example.com", "v2", "World", "/apis/example.com/v2/worlds/x/scale true"},
		{"a kind nobody has", "apps", "v1", "Nothing", `no matches for kind "Nothing" in group "apps"`},
		{"a kind nobody has in the core group", "", "v1", "Nothing", `no matches for kind "Nothing" in group ""`},
		{"a group nobody has", "nobody.example.com", "v1", "Thing", `no matches for kind "Thing" in group "nobody.example.com"`},
		{"a group that prefers what it does not serve", "broken.example.com", "v1", "Thing", `no matches for kind "Thing" in group "broken.example.com"`},
		{"a subresource alone is no resource", "strange.example", "v1x", "Scale", `no matches for kind "Scale" in group "strange.example"`},
	} {
		a, _ := apiOf(t, answers)
		found, err := a.find(t.Context(), schema.GroupVersionKind{Group: test.group, Version: test.version, Kind: test.kind})
		got := errorText(err)
		if err == nil {
			got = fmt.Sprintf("/%s %v", strings.Join(found.path("default", "x"), "/"), found.scalable)
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

// TestDiscoveryIsRemembered: for five minutes, and asked again early only for what was missed, and not at once.
func TestDiscoveryIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, server := apiOf(t, map[string]string{"/apis/apps/v1": resourceList("deployments Deployment")})
		asks := func(kind string) int {
			before := len(server.asked)
			_, _ = a.find(t.Context(), schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind})
			return len(slices.DeleteFunc(slices.Clone(server.asked[before:]), func(path string) bool { return path == "/apis/apps" }))
		}
		for _, step := range []struct {
			what string
			wait time.Duration
			kind string
			want int
		}{
			{"for the first time", 0, "Deployment", 1},
			{"again", 0, "Deployment", 0},
			{"what is missed, just after", time.Second, "StatefulSet", 0},
			{"what is missed, exactly at the wait", 4 * time.Second, "StatefulSet", 0},
			{"what is missed, after the wait", time.Second, "StatefulSet", 1},
			{"what is missed, just after that", time.Second, "StatefulSet", 0},
			{"what is known, after four minutes", 4 * time.Minute, "Deployment", 0},
			{"what is known, after five", time.Minute, "Deployment", 1},
		} {
			time.Sleep(step.wait)
			if got := asks(step.kind); got != step.want {
				t.Errorf("%s: asked %d times", step.what, got)
			}
		}
		// What comes later is found.
		server.answers["/apis/apps/v1"] = resourceList("deployments Deployment", "statefulsets StatefulSet")
		time.Sleep(6 * time.Second)
		if _, err := a.find(t.Context(), schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}); err != nil {
			t.Errorf("what came later: %v", err)
		}
	})
}

// TestScales: reading and writing a scale.
func TestScales(t *testing.T) {
	var put []string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != "/apis/apps/v1/namespaces/default/deployments/web/scale":
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"deployments.apps \"x\" not found","code":404,"details":{"kind":"deployments","name":"x"}}`)
		case r.Method == http.MethodPut:
			body, _ := io.ReadAll(r.Body)
			put = append(put, r.Header.Get("Content-Type")+" "+string(body))
			if strings.Contains(string(body), `"replicas":9`) {
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","message":"changed","code":409}`)
				return
			}
			_, _ = w.Write(body)
		default:
			_, _ = io.WriteString(w, `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web","namespace":"default","uid":"u","resourceVersion":"7"},"spec":{"replicas":3},"status":{"replicas":2,"selector":"app=web"}}`)
		}
	})
	a := apiAt(t, handler)
	where := scaleTarget{GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, namespaced: true, scalable: true}
	scale, err := a.scale(t.Context(), where, "default", "web")
	if err != nil || scale.Spec.Replicas != 3 || scale.Status.Replicas != 2 || scale.Status.Selector != "app=web" || scale.UID != "u" {
		t.Fatalf("scale %+v, %v", scale, err)
	}
	if _, err := a.scale(t.Context(), where, "default", "x"); !apierrors.IsNotFound(err) || err.Error() != `deployments.apps "x" not found` {
		t.Errorf("a scale that is not there: %v", err)
	}
	scale.Spec.Replicas = 5
	if err := a.setScale(t.Context(), where, scale); err != nil {
		t.Errorf("written: %v", err)
	}
	if len(put) != 1 || !strings.HasPrefix(put[0], "application/json {") || !strings.Contains(put[0], `"kind":"Scale"`) || !strings.Contains(put[0], `"apiVersion":"autoscaling/v1"`) ||
		!strings.Contains(put[0], `"resourceVersion":"7"`) || !strings.Contains(put[0], `"replicas":5`) {
		t.Errorf("written %q", put)
	}
	scale.Spec.Replicas = 9
	if err := a.setScale(t.Context(), where, scale); !apierrors.IsConflict(err) {
		t.Errorf("someone was faster: %v", err)
	}
	if err := a.setScale(t.Context(), where, &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}); !apierrors.IsNotFound(err) {
		t.Errorf("a scale that is not there: %v", err)
	}
}

// TestUnserved: nothing serves the path, or there is nothing at it.
func TestUnserved(t *testing.T) {
	groupResource := schema.GroupResource{Group: "metrics.k8s.io", Resource: "pods"}
	for what, test := range map[string]struct {
		err  error
		want bool
	}{
		"no such path":         {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "404 page not found", 0, true), true},
		"no such object":       {apierrors.NewNotFound(groupResource, "x"), false},
		"a path of a resource": {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", groupResource, "", "", 0, true), false},
		"another refusal":      {apierrors.NewForbidden(groupResource, "x", nil), false},
		"no refusal":           {fmt.Errorf("broken"), false},
		"nothing":              {nil, false},
	} {
		if got := isNotServed(test.err); got != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// TestUsageRules: what a pod is taken to use, by its containers.
func TestUsageRules(t *testing.T) {
	const path = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"
	cpu := func(name, q string) string { return fmt.Sprintf(`{"name":%q,"usage":{"cpu":%q}}`, name, q) }
	for _, test := range []struct {
		what, container string
		containers      []string
		want            string
	}{
		{"no containers", "", nil, ""},
		{"a whole core", "", []string{cpu("a", "1")}, "a=1000"},
		{"nanocores are rounded up", "", []string{cpu("a", "1500001n")}, "a=2"},
		{"a sum, each rounded up", "", []string{cpu("a", "1n"), cpu("b", "1n")}, "a=2"},
		{"nothing used is something known", "", []string{cpu("a", "0")}, "a=0"},
		{"the first says nothing", "", []string{`{"name":"a","usage":{}}`, cpu("b", "1")}, ""},
		{"the last says nothing", "", []string{cpu("b", "1"), `{"name":"a","usage":{}}`}, ""},
		{"one container, others do not matter", "b", []string{`{"name":"a","usage":{}}`, cpu("b", "1")}, "a=1000"},
		{"one container that says nothing", "a", []string{`{"name":"a","usage":{}}`, cpu("b", "1")}, ""},
		{"one container that is not there", "x", []string{cpu("b", "1")}, ""},
	} {
		a, _ := apiOf(t, map[string]string{path: podUsage(usageOf("a", test.containers...))})
		samples, err := a.usage(t.Context(), "default", labels.Everything(), "cpu", test.container)
		if got := sampleWords(samples); err != nil || got != test.want {
			t.Errorf("%s: %q, %v", test.what, got, err)
		}
	}
}
