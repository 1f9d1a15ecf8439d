package apiserver

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// TestWrittenVersions: admission plugins get objects in any served version, of any group, and back.
func TestWrittenVersions(t *testing.T) {
	s := newTestServer(t)
	v := &writtenVersions{ctx: t.Context(), s: s.Server, res: s.find("events")}
	stored, other := corev1.SchemeGroupVersion.WithKind("Event"), eventsv1.SchemeGroupVersion.WithKind("Event")
	if got := v.Equivalents(); len(got) != 2 || got[0].Kind != stored || got[1].Kind != other || got[1].Resource != other.GroupVersion().WithResource("events") {
		t.Errorf("equivalents %v", got)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns"}, Message: "text"}
	for gvk, want := range map[schema.GroupVersionKind]string{stored: `"message":"text"`, other: `"note":"text"`} {
		data, err := v.Encode(event, gvk)
		if err != nil || !strings.Contains(string(data), want) || !strings.HasPrefix(string(data), `{"kind":"Event","apiVersion":"`+gvk.GroupVersion().String()+`"`) {
			t.Errorf("%s %v", data, err)
		}
		back, err := v.Decode([]byte(strings.Replace(string(data), `"text"`, `"changed"`, 1)), gvk)
		if got, ok := back.(*corev1.Event); err != nil || !ok || got.Message != "changed" || got.Kind != "" {
			t.Errorf("%v %v", back, err)
		}
	}
	for name, test := range map[string]struct{ data, err string }{
		"another kind": {`{"kind":"Pod","apiVersion":"v1"}`, "the object was changed from /v1, Kind=Event to /v1, Kind=Pod"},
		"no JSON":      {`{`, "unexpected end of JSON input"},
		"a wrong type": {`{"kind":"Event","apiVersion":"v1","message":1}`, "cannot unmarshal"},
		"too large":    {strings.Repeat(" ", int(s.limits.Body)+1), "limit is 3145728"},
	} {
		if _, err := v.Decode([]byte(test.data), stored); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := v.Encode(event, corev1.SchemeGroupVersion.WithKind("Pod")); err == nil {
		t.Error("an event as pod")
	}
}

// TestWrittenVersionsPrune: fields that the schema of a custom resource does not have are removed.
func TestWrittenVersionsPrune(t *testing.T) {
	widgets := widgetKind()
	widgets.Prune = func(obj kind.Object, _ *kind.Version) ([]string, error) {
		delete(obj.(*unstructured.Unstructured).Object, "unknown")
		return []string{"unknown"}, nil
	}
	widgets.Default = func(obj kind.Object) {
		_ = unstructured.SetNestedField(obj.(*unstructured.Unstructured).Object, "yes", "defaulted")
	}
	s := newTestServer(t)
	if err := s.AddKind(widgets); err != nil {
		t.Fatal(err)
	}
	v := &writtenVersions{ctx: t.Context(), s: s.Server, res: s.find("widgets.example.com")}
	if got := v.Equivalents(); len(got) != 1 {
		t.Errorf("equivalents %v", got)
	}
	data, err := v.Encode(widget("a"), widgets.GVK)
	if err != nil {
		t.Fatal(err)
	}
	back, err := v.Decode([]byte(strings.Replace(string(data), "{", `{"unknown":1,`, 1)), widgets.GVK)
	if err != nil {
		t.Fatal(err)
	}
	content := back.(*unstructured.Unstructured).Object
	if _, found := content["unknown"]; found || content["defaulted"] != "yes" || back.GetObjectKind().GroupVersionKind() != widgets.GVK {
		t.Errorf("%v", content)
	}
}

// TestConnectAdmission: admission sees the options of a connection, in their own kind; reading logs is not a write.
func TestConnectAdmission(t *testing.T) {
	var seen []*admission.Attributes
	s := newTestServer(t, func(c *Config) {
		pods := c.Kinds[1]
		for i := range pods.Subresources {
			if pods.Subresources[i].Name == "exec" {
				pods.Subresources[i].ConnectOptions = func(query url.Values, path string) (runtime.Object, error) {
					return &corev1.PodExecOptions{Command: query["command"], Container: path}, nil
				}
			}
		}
		refuse := connectorFunc(func(http.ResponseWriter, *http.Request, *Connection) error {
			return apierrors.NewBadRequest("connected")
		})
		c.Connectors = map[string]Connector{"pods/exec": refuse, "pods/log": refuse}
		c.Admission = admission.Chain{stepRule{validate: func(a *admission.Attributes) error {
			seen = append(seen, a)
			return nil
		}}}
	})
	for _, path := range []string{"/api/v1/namespaces/ns/pods/p/log", "/api/v1/namespaces/ns/pods/p/exec?command=ls&command=-l"} {
		if got := s.send("GET", path, "", ""); !strings.Contains(string(got.body), "connected") {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if len(seen) != 1 {
		t.Fatalf("%d connections were admitted", len(seen))
	}
	a := seen[0]
	gvk := corev1.SchemeGroupVersion.WithKind("PodExecOptions")
	if a.Operation != admission.Connect || a.Kind != gvk || a.Subresource != "exec" || a.Name != "p" {
		t.Errorf("%+v", a)
	}
	if data, err := a.Versions.Encode(a.Object, gvk); err != nil || string(data) != `{"kind":"PodExecOptions","apiVersion":"v1","command":["ls","-l"]}` {
		t.Errorf("%s %v", data, err)
	}
	if _, err := a.Versions.Decode([]byte(`{}`), gvk); err == nil {
		t.Error("the options of a connection were changed")
	}
	if got := a.Versions.Equivalents(); len(got) != 1 || got[0].Kind != gvk {
		t.Errorf("equivalents %v", got)
	}
}

// connectorFunc is a Connector.
type connectorFunc func(http.ResponseWriter, *http.Request, *Connection) error

func (f connectorFunc) Connect(w http.ResponseWriter, r *http.Request, c *Connection) error {
	return f(w, r, c)
}
