package apiserver

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

func TestDelete(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"}}`).want(201)
	gone := s.send("DELETE", configMapsPath+"/a", "", "").want(200, `"status":"Success"`)
	if gone.at("details", "name") != "a" || gone.at("details", "kind") != "configmaps" || gone.at("details", "uid") != made.at("metadata", "uid") || gone.at("code") != nil {
		t.Errorf("answer %s", gone.body)
	}
	s.send("DELETE", configMapsPath+"/a", "", "").want(404, `configmaps \"a\" not found`)
}

func TestDeleteOptions(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"}}`).want(201)
	for _, test := range []struct {
		name, query, body string
		code              int
		texts             []string
	}{
		{"uid", "", `{"preconditions":{"uid":"x"}}`, 409, []string{`Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x) does not match the UID in record (`, "). The object might have been deleted and then recreated"}},
		{"version", "", `{"preconditions":{"resourceVersion":"1"}}`, 409, []string{"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (" + made.version() + "). The object might have been modified"}},
		{"both policies", "", `{"orphanDependents":true,"propagationPolicy":"Orphan"}`, 422, []string{"orphanDependents and deletionPropagation cannot be both set"}},
		{"policy", "?propagationPolicy=Never", "", 422, []string{`DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Never\"`}},
		{"dryRun", "?dryRun=x", "", 422, []string{"dryRun: Unsupported value"}},
		{"body", "", `[]`, 400, []string{"cannot unmarshal array"}},
		{"kind", "", `{"kind":"Pod","apiVersion":"v1"}`, 400, []string{"decoded object cannot be converted to DeleteOptions"}},
		{"grace", "?gracePeriodSeconds=x", "", 400, []string{"invalid syntax"}},
		{"dry run", "?dryRun=All", "", 200, []string{`"status":"Success"`}},
		{"all right", "", `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"` + made.at("metadata", "uid").(string) + `"}}`, 200, []string{`"status":"Success"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("DELETE", configMapsPath+"/a"+test.query, "application/json", test.body).want(test.code, test.texts...)
		})
	}
}

func TestDeleteFinalizers(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", deploymentsPath, "", strings.Replace(deploymentBody, `"name":"web"`, `"name":"web","finalizers":["a.b/c"]`, 1)).want(201)
	marked := s.send("DELETE", deploymentsPath+"/web", "", "").want(200, `"kind":"Deployment"`)
	if marked.at("metadata", "deletionTimestamp") == nil || marked.at("metadata", "deletionGracePeriodSeconds") != float64(0) || marked.at("metadata", "generation") != float64(2) {
		t.Errorf("metadata %v of %v", marked.at("metadata"), made.at("metadata"))
	}
	again := s.send("DELETE", deploymentsPath+"/web", "", "").want(200)
	if again.version() != marked.version() {
		t.Errorf("the second request changed the object: %s", again.body)
	}
	s.send("PATCH", deploymentsPath+"/web", mergePatch, `{"metadata":{"finalizers":["a.b/c","d.e/f"]}}`).want(422, "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted")
	s.send("POST", deploymentsPath, "", deploymentBody).want(409, `object is being deleted: deployments.apps \"web\" already exists`)
	s.send("PATCH", deploymentsPath+"/web?dryRun=All", mergePatch, `{"metadata":{"finalizers":null}}`).want(200)
	s.send("GET", deploymentsPath+"/web", "", "").want(200)
	s.send("PATCH", deploymentsPath+"/web", mergePatch, `{"metadata":{"finalizers":null}}`).want(200, `"kind":"Deployment"`)
	s.send("GET", deploymentsPath+"/web", "", "").want(404)
}

func TestDeletePropagation(t *testing.T) {
	s := newWriteServer(t)
	for _, test := range []struct {
		name, query, body, finalizer string
		code                         int
	}{
		{"background", "?propagationPolicy=Background", "", "", 200},
		{"foreground", "?propagationPolicy=Foreground", "", "foregroundDeletion", 200},
		{"orphan", "", `{"propagationPolicy":"Orphan"}`, "orphan", 200},
		{"old orphan", "", `{"orphanDependents":true}`, "orphan", 200},
		{"old background", "", `{"orphanDependents":false}`, "", 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"}}`).want(201)
			deleted := s.send("DELETE", configMapsPath+"/a"+test.query, "application/json", test.body).want(test.code)
			if test.finalizer == "" {
				s.send("GET", configMapsPath+"/a", "", "").want(404)
				return
			}
			finalizers, _ := deleted.at("metadata", "finalizers").([]any)
			if len(finalizers) != 1 || finalizers[0] != test.finalizer {
				t.Errorf("finalizers %v", finalizers)
			}
			s.send("PATCH", configMapsPath+"/a", mergePatch, `{"metadata":{"finalizers":null}}`).want(200)
		})
	}
	s.t = t
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"b","finalizers":["a.b/c"]}}`).want(201)
	s.send("DELETE", configMapsPath+"/b", "application/json", `{"orphanDependents":false}`).want(202)
}

func TestDeleteGracefully(t *testing.T) {
	s := newWriteServer(t)
	onNode := strings.Replace(podBody, `"spec":{`, `"spec":{"nodeName":"n",`, 1)
	web := podsPath + "/web"

	s.send("POST", podsPath, "", podBody).want(201)
	s.send("DELETE", web, "", "").want(200, `"kind":"Pod"`)
	s.send("GET", web, "", "").want(404) // nobody has to let go of a pod without a node

	s.send("POST", podsPath, "", onNode).want(201)
	marked := s.send("DELETE", web, "", "").want(200, `"kind":"Pod"`)
	if marked.at("metadata", "deletionGracePeriodSeconds") != float64(30) || marked.at("metadata", "generation") != float64(2) {
		t.Errorf("metadata %v", marked.at("metadata"))
	}
	until, err := time.Parse(time.RFC3339, marked.at("metadata", "deletionTimestamp").(string))
	if err != nil || time.Until(until) < 20*time.Second || time.Until(until) > 31*time.Second {
		t.Errorf("deletion at %v", until)
	}
	if again := s.send("DELETE", web, "", "").want(200); again.version() != marked.version() {
		t.Error("asking again changed the object")
	}
	if longer := s.send("DELETE", web+"?gracePeriodSeconds=60", "", "").want(200); longer.version() != marked.version() {
		t.Error("grace became longer")
	}
	shorter := s.send("DELETE", web+"?gracePeriodSeconds=5", "", "").want(200)
	if shorter.at("metadata", "deletionGracePeriodSeconds") != float64(5) || shorter.at("metadata", "generation") != float64(2) {
		t.Errorf("metadata %v", shorter.at("metadata"))
	}
	s.send("PATCH", web, mergePatch, `{"metadata":{"labels":{"x":"y"}}}`).want(200, `"deletionGracePeriodSeconds":5`)
	s.send("DELETE", web+"?gracePeriodSeconds=0", "", "").want(200, `"kind":"Pod"`)
	s.send("GET", web, "", "").want(404)

	s.send("POST", podsPath, "", onNode).want(201)
	dry := s.send("DELETE", web+"?dryRun=All", "", "").want(200)
	if dry.at("metadata", "deletionTimestamp") == nil {
		t.Errorf("dry run %s", dry.body)
	}
	if read := s.send("GET", web, "", ""); read.at("metadata", "deletionTimestamp") != nil {
		t.Error("the dry run was stored")
	}
	s.send("DELETE", web+"?gracePeriodSeconds=0", "", "").want(200)
	s.send("GET", web, "", "").want(404)
}

func TestDeleteHeld(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", "/api/v1/namespaces", "", `{"metadata":{"name":"n"}}`).want(201, `"phase":"Active"`, `"finalizers":["kubernetes"]`)
	marked := s.send("DELETE", "/api/v1/namespaces/n", "", "").want(200, `"phase":"Terminating"`)
	if marked.at("metadata", "deletionTimestamp") == nil {
		t.Error("no deletionTimestamp")
	}
	if again := s.send("DELETE", "/api/v1/namespaces/n", "", "").want(200); again.version() != marked.version() {
		t.Error("asking again changed the namespace")
	}
	s.send("PUT", "/api/v1/namespaces/n/finalize", "", marked.with([]any{}, "spec", "finalizers")).want(200)
	s.send("GET", "/api/v1/namespaces/n", "", "").want(404)
}

func TestDeleteCollection(t *testing.T) {
	var seen []string
	s := newWriteServer(t, func(c *Config) {
		c.Admission = admission.Chain{stepRule{validate: func(a *admission.Attributes) error {
			if a.Operation != admission.Delete {
				return nil
			}
			name := a.Old.(kind.Object).GetName()
			seen = append(seen, name)
			if name == "keep" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, name, errors.New("kept"))
			}
			return nil
		}}}
	})
	for _, name := range []string{"a", "b", "c"} {
		s.send("POST", configMapsPath, "", `{"metadata":{"name":"`+name+`","labels":{"l":"`+name+`"}}}`).want(201)
	}
	deleted := s.send("DELETE", configMapsPath+"?labelSelector=l+in+(a,b)", "", "").want(200, `"kind":"ConfigMapList"`)
	if items := deleted.at("items").([]any); len(items) != 2 {
		t.Errorf("answer %s", deleted.body)
	}
	if strings.Join(seen, "") != "ab" {
		t.Errorf("admission saw %v", seen)
	}
	s.send("GET", configMapsPath+"/c", "", "").want(200)
	s.send("DELETE", configMapsPath+"?dryRun=All", "", "").want(200)
	s.send("GET", configMapsPath+"/c", "", "").want(200)
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"keep"}}`).want(201)
	s.send("DELETE", configMapsPath, "", "").want(403, "kept")
	s.send("GET", configMapsPath+"/c", "", "").want(404)
	s.send("DELETE", configMapsPath+"?labelSelector=(", "", "").want(400)
}
