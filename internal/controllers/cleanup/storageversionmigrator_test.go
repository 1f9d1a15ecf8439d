package cleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// migrationOf is a migration, created a number of seconds after noon, with conditions that are true.
func migrationOf(name string, age int, resource string, conditions ...storagemigrationv1.MigrationConditionType) *migration {
	gr := schema.ParseGroupResource(resource)
	obj := &migration{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(age) * time.Second))}}
	obj.Spec.Resource = metav1.GroupResource(gr)
	for _, c := range conditions {
		setCondition(obj, c, "R", "")
	}
	return obj
}

func TestSelectMigrations(t *testing.T) {
	const running, succeeded, failed = storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationSucceeded, storagemigrationv1.MigrationFailed
	for _, test := range []struct {
		what  string
		all   []*migration
		ended string
		next  string
	}{
		{"nothing", nil, "", ""},
		{"one waits", []*migration{migrationOf("a", 0, "pods")}, "", "a"},
		{"the oldest is the next", []*migration{migrationOf("a", 9, "pods"), migrationOf("b", 3, "pods"), migrationOf("c", 5, "pods")}, "", "b"},
		{"of the same age, the first by name", []*migration{migrationOf("b", 3, "pods"), migrationOf("a", 3, "pods")}, "", "a"},
		{"one at a time", []*migration{migrationOf("a", 0, "pods"), migrationOf("b", 3, "pods", running)}, "", "b"},
		{"one that is over makes room", []*migration{migrationOf("a", 0, "pods", running, succeeded), migrationOf("b", 3, "pods")}, "a", "b"},
		{"all are over", []*migration{migrationOf("a", 0, "pods", succeeded), migrationOf("b", 3, "pods", failed)}, "", ""},
		{"failed ones are finished too", []*migration{migrationOf("a", 0, "pods", running, failed)}, "a", ""},
	} {
		ended, next := selectMigrations(test.all)
		var names []string
		for _, obj := range ended {
			names = append(names, obj.Name)
		}
		name := ""
		if next != nil {
			name = next.Name
		}
		if strings.Join(names, " ") != test.ended || name != test.next {
			t.Errorf("%s: ended %q, next %q", test.what, names, name)
		}
	}
}

// TestMigrationOfOldObjects: only objects that were not written since are written, each in its state; one that has changed or is gone is done.
func TestMigrationOfOldObjects(t *testing.T) {
	page := func(next string, items ...string) string {
		var all []string
		for _, item := range items {
			name, version, _ := strings.Cut(item, "@")
			all = append(all, fmt.Sprintf(`{"metadata":{"namespace":"work","name":%q,"resourceVersion":%q}}`, name, version))
		}
		return fmt.Sprintf(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"continue":%q},"items":[%s]}`, next, strings.Join(all, ","))
	}
	const path = "PATCH /apis/example.com/v1/namespaces/work/widgets/"
	metadataClient, heard := playing(t, map[string][]string{
		"GET /apis/example.com/v1/widgets": {page("x", "a@5", "b@12"), page("", "c@10", "d@7"), page("", "a@x")},
		path + "a":                         {`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}`},
		path + "c":                         {refusal(409, metav1.StatusReasonConflict, "changed")},
		path + "d":                         {refusal(404, metav1.StatusReasonNotFound, "gone")},
		path + "e":                         {refusal(429, metav1.StatusReasonTooManyRequests, "later")},
		path + "f":                         {refusal(422, metav1.StatusReasonInvalid, "invalid")},
	})
	m := &migrator{metadataClient: metadataClient}
	objects, total, err := m.outdated(t.Context(), widgets, "10")
	if want := []storedObject{{"work", "a", "5"}, {"work", "c", "10"}, {"work", "d", "7"}}; err != nil || total != 4 || !slices.Equal(objects, want) {
		t.Fatalf("%v of %d, %v", objects, total, err)
	}
	r := &resource{GroupVersionResource: widgets, kind: "Widget"}
	for _, one := range objects {
		if err := m.rewrite(t.Context(), r, one); err != nil {
			t.Errorf("%s: %v", one.name, err)
		}
	}
	if err := m.rewrite(t.Context(), r, storedObject{"work", "e", "5"}); !isTransient(err) {
		t.Errorf("throttled: %v", err)
	}
	if err := m.rewrite(t.Context(), r, storedObject{"work", "f", "5"}); !apierrors.IsInvalid(err) || isTransient(err) {
		t.Errorf("refused: %v", err)
	}
	if !slices.Contains(heard.asked, path+"a") || slices.Contains(heard.asked, path+"b") {
		t.Errorf("%q", heard.asked)
	}
	var invalid *invalidVersionError
	if _, _, err := m.outdated(t.Context(), widgets, "10"); !errors.As(err, &invalid) {
		t.Errorf("a resource version without order: %v", err)
	}
}

// migrationStatus is the conditions of a migration as text.
func migrationStatus(t *testing.T, c *client.Client, name string) string {
	t.Helper()
	obj, err := client.For[*migration](c).Get(t.Context(), "", name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, condition := range obj.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message))
	}
	return strings.Join(all, "; ")
}

func TestMigrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := inprocess.Start(t, t.Context())
		for i := range 3 {
			create(t, c, thing("default", fmt.Sprint("thing-", i)))
		}
		create(t, c, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
				}},
			},
		})
		for name, resource := range map[string]string{"things": "configmaps", "things-again": "configmaps", "statuses": "componentstatuses", "widgets": "widgets.example.com"} {
			create(t, c, &migration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource(schema.ParseGroupResource(resource))}})
		}
		run(t, c, StorageVersionMigrator)
		const completed = "Running=False MigrationCompleted: Migration completed"
		for name, want := range map[string]string{
			"things":       completed + "; Succeeded=True StorageVersionMigrationSucceeded: Migration completed",
			"things-again": completed + "; Succeeded=True StorageVersionMigrationSucceeded: Migration completed",
			"statuses":     completed + `; Failed=True StorageVersionMigrationFailed: resource "/v1, Resource=componentstatuses" does not support discovery operations: [update patch list]`,
			"widgets":      completed + "; Failed=True StorageVersionMigrationFailed: resource does not exist in discovery",
		} {
			got := ""
			for end := time.Now().Add(time.Hour); got != want && time.Now().Before(end); time.Sleep(time.Second) {
				got = migrationStatus(t, c, name)
			}
			if got != want {
				t.Errorf("%s: %s\nwant %s", name, got, want)
			}
		}
		crd, err := client.For[*apiextensionsv1.CustomResourceDefinition](c).Get(t.Context(), "", "widgets.example.com")
		if err != nil {
			t.Fatal(err)
		}
		if len(crd.Status.Conditions) != 1 || crd.Status.Conditions[0].Type != apiextensionsv1.StorageMigrating || crd.Status.Conditions[0].Status != apiextensionsv1.ConditionFalse ||
			crd.Status.Conditions[0].Reason != "MigrationFailed" || !slices.Equal(crd.Status.StoredVersions, []string{"v1"}) {
			t.Errorf("%+v", crd.Status)
		}
		if obj, err := client.For[*corev1.ConfigMap](c).Get(t.Context(), "default", "thing-1"); err != nil || len(obj.ManagedFields) > 1 {
			t.Errorf("a migration changes the object: %+v %v", obj, err)
		}
	})
}

// widgetServer is the transport of a client whose server serves widgets, too: one object, stored as the hash says.
type widgetServer struct {
	http.RoundTripper
	mu    sync.Mutex
	hash  string
	lists int
	patch func() string // the response to the next patch
}

func (s *widgetServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, code := "", http.StatusOK
	switch r.Method + " " + r.URL.Path {
	case "GET /api":
		body = `{"kind":"APIVersions","versions":[]}`
	case "GET /apis":
		body = `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}]}`
	case "GET /apis/example.com/v1":
		body = fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[{"name":"widgets","kind":"Widget","namespaced":true,"verbs":["list","patch","update"],"storageVersionHash":%q}]}`, s.hash)
	case "GET /apis/example.com/v1/widgets":
		s.lists++
		body = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"default","name":"a","resourceVersion":"5"}}]}`
	case "PATCH /apis/example.com/v1/namespaces/default/widgets/a":
		body = s.patch()
		var status metav1.Status
		if json.Unmarshal([]byte(body), &status) == nil && status.Code != 0 {
			code = int(status.Code)
		}
	default:
		return s.RoundTripper.RoundTrip(r)
	}
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Content-Type", "application/json")
	recorder.WriteHeader(code)
	_, _ = recorder.WriteString(body)
	return recorder.Result(), nil
}

func (s *widgetServer) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// startWidgets runs a server with the definition of widgets, stored as v2, and a migration of them.
func startWidgets(t *testing.T, s *widgetServer) *client.Client {
	t.Helper()
	c := inprocess.Start(t, t.Context())
	c.Config.Wrap(func(over http.RoundTripper) http.RoundTripper {
		s.RoundTripper = over
		return s
	})
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	create(t, c, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Schema: schema}, {Name: "v2", Served: true, Storage: true, Schema: schema}},
		},
	})
	crds := client.For[*apiextensionsv1.CustomResourceDefinition](c)
	crd, err := crds.Get(t.Context(), "", "widgets.example.com")
	if err != nil {
		t.Fatal(err)
	}
	crd = crd.DeepCopy()
	crd.Status.AcceptedNames, crd.Status.StoredVersions = crd.Spec.Names, []string{"v1", "v2"}
	if _, err := crds.UpdateStatus(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	create(t, c, &migration{ObjectMeta: metav1.ObjectMeta{Name: "widgets"}, Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: "widgets"}}})
	run(t, c, StorageVersionMigrator)
	return c
}

// untilSucceeded waits for the end of a migration, in the bubble's time.
func untilSucceeded(t *testing.T, c *client.Client, name string) {
	t.Helper()
	for end := time.Now().Add(time.Hour); !strings.Contains(migrationStatus(t, c, name), "Succeeded=True"); time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("the migration does not succeed: %s", migrationStatus(t, c, name))
		}
	}
}

func widgetHash(version string) string {
	return kind.StorageVersionHash(schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"})
}

// TestMigrationWaitsForDefinition: objects that a server stores while it does not serve the definition yet have the old version. They would be
// taken for migrated, because they are newer than the migration.
func TestMigrationWaitsForDefinition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &widgetServer{hash: widgetHash("v1"), patch: func() string {
			return `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"namespace":"default","name":"a"}}`
		}}
		c := startWidgets(t, s)
		time.Sleep(time.Minute)
		if n := s.listed(); n != 0 || !strings.HasPrefix(migrationStatus(t, c, "widgets"), "Running=True") {
			t.Fatalf("%d lists before the definition is served: %s", n, migrationStatus(t, c, "widgets"))
		}
		s.mu.Lock()
		s.hash = widgetHash("v2")
		s.mu.Unlock()
		untilSucceeded(t, c, "widgets")
	})
}

// TestMigrationBackoff: a transient error delays the next attempt, also if its text is a new one each time.
func TestMigrationBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Time
		s := &widgetServer{hash: widgetHash("v2"), patch: func() string {
			if attempts = append(attempts, time.Now()); len(attempts) <= 12 {
				return refusal(503, metav1.StatusReasonServiceUnavailable, fmt.Sprintf("attempt %d", len(attempts)))
			}
			return `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"namespace":"default","name":"a"}}`
		}}
		c := startWidgets(t, s)
		untilSucceeded(t, c, "widgets")
		// 5 ms, doubled eleven times.
		if elapsed := attempts[12].Sub(attempts[0]); elapsed < 10*time.Second {
			t.Errorf("12 attempts failed within %v", elapsed)
		}
	})
}
