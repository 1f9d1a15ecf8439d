package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// with returns the object with the value at the path of keys; nil removes.
func (r result) with(value any, path ...string) string {
	r.t.Helper()
	recorded := map[string]any{}
	if err := json.Unmarshal(r.body, &recorded); err != nil {
		r.t.Fatal(err)
	}
	m := recorded
	for _, key := range path[:len(path)-1] {
		next, ok := m[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[key] = next
		}
		m = next
	}
	last := path[len(path)-1]
	if value == nil {
		delete(m, last)
	} else {
		m[last] = value
	}
	raw, err := json.Marshal(recorded)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(raw)
}

func TestUpdate(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", podsPath, "", podBody).want(201)
	web := podsPath + "/web"

	same := s.send("PUT", web, "", string(made.body)).want(200)
	if same.version() != made.version() {
		t.Errorf("a write that changes nothing made version %s of %s", same.version(), made.version())
	}
	changed := s.send("PUT", web+"?fieldManager=other", "", same.with("yes", "metadata", "labels", "more")).want(200)
	if changed.version() == made.version() || changed.at("metadata", "generation") != float64(1) {
		t.Errorf("metadata %v", changed.at("metadata"))
	}
	changed.owned(
		`other Update v1 {"f:metadata":{"f:labels":{"f:more":{}}}}`,
		`tester Update v1 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}}`,
	)
	spec := s.send("PUT", web, "", changed.with("node", "spec", "nodeName")).want(200)
	if spec.at("metadata", "generation") != float64(2) {
		t.Errorf("generation %v", spec.at("metadata", "generation"))
	}
	status := s.send("PUT", web, "", spec.with("Running", "status", "phase")).want(200)
	if status.at("status", "phase") != nil {
		t.Errorf("a plain write changed the status: %s", status.body)
	}
	kept := s.send("PUT", web, "", status.with("2001-01-01T00:00:00Z", "metadata", "creationTimestamp")).want(200)
	if kept.at("metadata", "creationTimestamp") != made.at("metadata", "creationTimestamp") {
		t.Error("creationTimestamp changed")
	}
	unconditional := s.send("PUT", web, "", kept.with(nil, "metadata", "resourceVersion")).want(200)
	if unconditional.version() != kept.version() {
		t.Errorf("version %s after %s", unconditional.version(), kept.version())
	}
}

func TestUpdateErrors(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"},"data":{"fixed":"1"}}`).want(201)
	s.send("PUT", configMapsPath+"/a", "", made.with("2", "data", "other")).want(200)
	for _, test := range []struct {
		name, path, body string
		code             int
		texts            []string
	}{
		{"modified", "/a", string(made.body), 409, []string{`Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again`, `"reason":"Conflict"`}},
		{"absent", "/b", `{"metadata":{"name":"b"}}`, 404, []string{`configmaps \"b\" not found`}},
		{"name", "/a", `{"metadata":{"name":"b"}}`, 400, []string{"the name of the object (b) does not match the name on the URL (a)"}},
		{"no name", "/a", `{}`, 400, []string{"the name of the object (a based on URL) was undeterminable: name must be provided"}},
		{"namespace", "/a", `{"metadata":{"name":"a","namespace":"b"}}`, 400, []string{"the namespace of the provided object does not match the namespace sent on the request"}},
		{"uid", "/a", `{"metadata":{"name":"a","uid":"x"}}`, 409, []string{"Precondition failed: UID in precondition: x, UID in object meta: "}},
		{"invalid", "/a", `{"metadata":{"name":"a"},"data":{"fixed":"2"}}`, 422, []string{`ConfigMap \"a\" is invalid: data[fixed]: Forbidden: field is immutable`}},
		{"label", "/a", `{"metadata":{"name":"a","labels":{"a b":"c"}},"data":{"fixed":"1"}}`, 422, []string{`metadata.labels: Invalid value: \"a b\"`}},
		{"deletionTimestamp", "/a", `{"metadata":{"name":"a","deletionTimestamp":"2020-01-01T00:00:00Z"},"data":{"fixed":"1"}}`, 422, []string{"metadata.deletionTimestamp", "field is immutable"}},
		{"version", "/a", `{"metadata":{"name":"a","resourceVersion":"x"}}`, 500, []string{"invalid syntax"}},
		{"options", "/a?dryRun=x", `{}`, 422, []string{`UpdateOptions.meta.k8s.io`}},
		{"strict", "/a?fieldValidation=Strict", `{"metadata":{"name":"a"},"x":1}`, 400, []string{`strict decoding error: unknown field \"x\"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("PUT", configMapsPath+test.path, "", test.body).want(test.code, test.texts...)
		})
	}
	s.t = t
	s.send("POST", leasesPath, "", `{"metadata":{"name":"l"}}`).want(201)
	s.send("PUT", leasesPath+"/l", "", `{"metadata":{"name":"l"}}`).want(422, `leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
}

func TestUpdateCreates(t *testing.T) {
	s := newWriteServer(t, func(c *Config) {
		c.Authenticator = authn.Chain{authn.NewTokens(map[string]authn.User{"admin": {Username: "admin"}})}
		c.Authorizer = authorizeFunc(func(a *authz.Attributes) bool { return a.Verb != "create" || a.Name != "no" })
	})
	made := s.send("PUT", leasesPath+"/l", "", `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`).want(201)
	made.owned(`tester Update coordination.k8s.io/v1 {"f:spec":{"f:holderIdentity":{}}}`)
	s.send("PUT", leasesPath+"/no", "", `{"metadata":{"name":"no"}}`).want(403, "cannot create resource")
	s.send("PUT", leasesPath+"/u", "", `{"metadata":{"name":"u","uid":"x"}}`).want(409, "Precondition failed: UID in precondition: x, UID in object meta: ")
}

type authorizeFunc func(*authz.Attributes) bool

func (f authorizeFunc) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	if f(a) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

func TestUpdateDryRun(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"}}`).want(201)
	dry := s.send("PUT", configMapsPath+"/a?dryRun=All", "", made.with("1", "data", "x")).want(200, `"x":"1"`)
	if dry.version() != made.version() {
		t.Errorf("version %s", dry.version())
	}
	if read := s.send("GET", configMapsPath+"/a", "", ""); read.at("data") != nil {
		t.Errorf("the dry run was stored: %s", read.body)
	}
}

func TestUpdateAdmission(t *testing.T) {
	var seen []string
	s := newWriteServer(t, func(c *Config) {
		c.Admission = admission.Chain{stepRule{
			mutate: func(a *admission.Attributes) error {
				if a.Operation == admission.Update {
					old := a.Old.(kind.Object).GetLabels()["x"]
					seen = append(seen, fmt.Sprintf("%s/%s %s old=%s", a.Resource.Resource, a.Subresource, a.Name, old))
				}
				return nil
			},
			validate: func(a *admission.Attributes) error {
				if a.Operation == admission.Update && a.Object.(kind.Object).GetLabels()["x"] == "no" {
					return fmt.Errorf("no")
				}
				return nil
			},
		}}
	})
	made := s.send("POST", podsPath, "", podBody).want(201)
	next := s.send("PUT", podsPath+"/web", "", made.with("1", "metadata", "labels", "x")).want(200)
	s.send("PUT", podsPath+"/web", "", next.with("no", "metadata", "labels", "x")).want(500, "no")
	s.send("PUT", podsPath+"/web/status", "", next.with("Running", "status", "phase")).want(200)
	want := "pods/ web old=|pods/ web old=1|pods/status web old=1"
	if got := strings.Join(seen, "|"); got != want {
		t.Errorf("admission saw %s, want %s", got, want)
	}
}

func TestUpdateStatus(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", podsPath, "", podBody).want(201)
	body := made.with("Running", "status", "phase")
	status := s.send("PUT", podsPath+"/web/status?fieldManager=kubelet", "", strings.Replace(body, `"image":"i:1"`, `"image":"i:2"`, 1)).want(200)
	if status.at("status", "phase") != "Running" || strings.Contains(string(status.body), "i:2") || status.at("metadata", "generation") != float64(1) {
		t.Errorf("object %s", status.body)
	}
	status.owned(
		`kubelet Update v1/status {"f:status":{"f:phase":{}}}`,
		`tester Update v1 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}}`,
	)
	read := s.send("GET", podsPath+"/web/status", "", "").want(200, `"phase":"Running"`)
	if read.version() != status.version() {
		t.Error("status read another version")
	}
	again := s.send("PUT", podsPath+"/web/status", "", status.with("l", "metadata", "labels", "by-status")).want(200)
	if again.at("metadata", "labels", "by-status") != "l" {
		t.Errorf("labels %v", again.at("metadata", "labels"))
	}
	s.send("PUT", podsPath+"/none/status", "", strings.Replace(podBody, "web", "none", 1)).want(404)
}

// TestUpdateRaces lets many writers without resourceVersion change one object: all changes must be there.
func TestUpdateRaces(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"},"data":{"first":"1"}}`).want(201)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				s.send("PATCH", configMapsPath+"/a", mergePatch, fmt.Sprintf(`{"data":{"k%d-%d":"v"}}`, i, j))
			}
		})
	}
	wg.Wait()
	if data := s.send("GET", configMapsPath+"/a", "", "").at("data").(map[string]any); len(data) != 41 {
		t.Errorf("%d keys of 41", len(data))
	}
}

func TestResetManagedFields(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"},"data":{"k":"v"}}`).want(201)
	s.send("PUT", configMapsPath+"/a", "", made.with([]any{map[string]any{}}, "metadata", "managedFields")).want(200).owned()
	s.send("PATCH", configMapsPath+"/a", mergePatch, `{"data":{"k":"w"}}`).want(200).owned() // untracked objects stay so until applied
	s.send("PATCH", configMapsPath+"/a?fieldManager=m&force=true", applyPatch, "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {k: x}").want(200).
		owned(`m Apply v1 {"f:data":{"f:k":{}}}`, `before-first-apply Update v1 {"f:data":{}}`)
}

func TestHooks(t *testing.T) {
	var log []string
	note := func(text string) { log = append(log, text) }
	hooked := kind.Of(kind.Definition[*corev1.ConfigMap]{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Namespaced: true, List: &corev1.ConfigMapList{},
		BeforeCreate: func(_ context.Context, _ kind.Client, _ *kind.Request, obj *corev1.ConfigMap) (func(), error) {
			note("before create " + obj.Name)
			return func() { note("undo create") }, nil
		},
		BeforeUpdate: func(context.Context, kind.Client, *kind.Request, *corev1.ConfigMap, *corev1.ConfigMap) (func(), error) {
			note("before update")
			return func() { note("undo update") }, nil
		},
		AfterUpdate: func(_ context.Context, _ kind.Client, obj, old *corev1.ConfigMap) { note("after update") },
		AfterDelete: func(_ context.Context, _ kind.Client, obj *corev1.ConfigMap) { note("after delete " + obj.Name) },
		Validate: func(_ *kind.Request, obj, _ *corev1.ConfigMap) (errs field.ErrorList) {
			note("validate")
			if obj.Data["bad"] != "" {
				errs = append(errs, field.Required(field.NewPath("data"), ""))
			}
			return errs
		},
	})
	s := newWriteServer(t, func(c *Config) { c.Kinds = []*kind.Kind{hooked} })
	for _, test := range []struct {
		method, path, contentType, body string
		code                            int
		want                            string
	}{
		{"POST", "", "", `{"metadata":{"name":"a"}}`, 201, "before create a, validate"},
		{"POST", "?dryRun=All", "", `{"metadata":{"name":"b"}}`, 201, "before create b, validate, undo create"},
		{"POST", "", "", `{"metadata":{"name":"b"},"data":{"bad":"1"}}`, 422, "before create b, validate, undo create"},
		{"POST", "", "", `{"metadata":{"name":"a"}}`, 409, "before create a, validate, undo create"},
		{"PATCH", "/a", mergePatch, `{"data":{"x":"1"}}`, 200, "before update, validate, after update"},
		{"PATCH", "/a?dryRun=All", mergePatch, `{"data":{"x":"2"}}`, 200, "before update, validate, undo update"},
		{"PATCH", "/a", mergePatch, `{"data":{"bad":"2"}}`, 422, "before update, validate, undo update"},
		{"DELETE", "/a?dryRun=All", "", "", 200, ""},
		{"DELETE", "/a", "", "", 200, "after delete a"},
	} {
		log = nil
		s.send(test.method, configMapsPath+test.path, test.contentType, test.body).want(test.code)
		if got := strings.Join(log, ", "); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.method, test.path, got, test.want)
		}
	}
}

func TestEnv(t *testing.T) {
	s := newWriteServer(t)
	ctx := context.Background()
	made, err := s.KindClient().Create(ctx, s.find("configmaps").groupResource(), &corev1.ConfigMap{ObjectMeta: testMeta("default", "e", nil)})
	if err != nil || made.GetResourceVersion() == "" {
		t.Fatalf("%v %v", made, err)
	}
	if _, err := s.KindClient().Create(ctx, s.find("configmaps").groupResource(), &corev1.ConfigMap{ObjectMeta: testMeta("default", "e_e", nil)}); err == nil {
		t.Error("an invalid object was stored")
	}
	updated, err := s.KindClient().Update(ctx, s.find("configmaps").groupResource(), "default", "e", func(obj kind.Object) error {
		obj.(*corev1.ConfigMap).Data = map[string]string{"a": "b"}
		return nil
	})
	if err != nil || updated.(*corev1.ConfigMap).Data["a"] != "b" {
		t.Fatalf("%v %v", updated, err)
	}
	all, err := s.KindClient().List(ctx, s.find("configmaps").groupResource(), "default")
	if err != nil || len(all) != 1 {
		t.Fatalf("%v %v", all, err)
	}
	if err := s.KindClient().Delete(ctx, s.find("configmaps").groupResource(), "default", "e", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KindClient().Get(ctx, s.find("configmaps").groupResource(), "default", "e"); err == nil {
		t.Error("still there")
	}
}
