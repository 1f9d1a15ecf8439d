package apiserver

import (
	"fmt"
	"strings"
	"testing"
)

func TestPatch(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", podsPath, "", podBody).want(201)
	web := podsPath + "/web"
	s.send("PATCH", web, jsonPatch, `[{"op":"add","path":"/metadata/labels/a","value":"1"},{"op":"test","path":"/metadata/labels/app","value":"web"}]`).want(200, `"a":"1"`)
	s.send("PATCH", web, mergePatch, `{"metadata":{"labels":{"a":null,"b":"2"}}}`).want(200, `"labels":{"app":"web","b":"2"}`)
	patched := s.send("PATCH", web+"?fieldManager=smp", strategicPatch, `{"spec":{"containers":[{"name":"d","image":"j"}]}}`).want(200, `"name":"c"`, `"name":"d"`)
	if patched.at("metadata", "generation") != float64(2) {
		t.Errorf("generation %v", patched.at("metadata", "generation"))
	}
	patched.owned(
		`smp Update v1 {"f:spec":{"f:containers":{"k:{\"name\":\"d\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}}}}`,
		`tester Update v1 {"f:metadata":{"f:labels":{".":{},"f:app":{},"f:b":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}}`,
	)
	none := s.send("PATCH", web, mergePatch, `{}`).want(200)
	if none.version() != patched.version() {
		t.Error("an empty patch made a new version")
	}
	s.send("PATCH", web+"/status", strategicPatch, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`).want(200, `"phase":"Running"`)
	s.send("PATCH", web+"/status", strategicPatch, `{"status":{"conditions":[{"type":"Initialized","status":"True"}]}}`).want(200, `"Ready"`, `"Initialized"`)
	s.send("PATCH", web+"?dryRun=All", mergePatch, `{"metadata":{"labels":{"dry":"run"}}}`).want(200, `"dry":"run"`)
	if read := s.send("GET", web, "", ""); read.at("metadata", "labels", "dry") != nil {
		t.Error("the dry run was stored")
	}
}

func TestPatchErrors(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", podsPath, "", podBody).want(201)
	many := "[" + strings.Repeat(`{"op":"add","path":"/metadata/labels/a","value":"1"},`, 10000) + `{"op":"add","path":"/metadata/labels/a","value":"1"}]`
	for _, test := range []struct {
		name, path, contentType, body string
		code                          int
		texts                         []string
	}{
		{"media type", "/web", "application/json", `{}`, 415, []string{"accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"}},
		{"absent", "/none", mergePatch, `{}`, 404, []string{`pods \"none\" not found`}},
		{"not JSON", "/web", mergePatch, `{`, 400, []string{"invalid JSON patch"}},
		{"not operations", "/web", jsonPatch, `{}`, 400, []string{"error decoding patch: json: cannot unmarshal object into Go value of type []apiserver.jsonPatchOperation"}},
		{"not a merge", "/web?fieldValidation=Ignore", mergePatch, `[]`, 422, []string{"patch: Invalid value: \"[]\": json: cannot unmarshal array into Go value of type v1.Pod"}},
		{"test fails", "/web", jsonPatch, `[{"op":"test","path":"/metadata/labels/app","value":"x"}]`, 422, []string{"the server rejected our request due to an error in our request"}},
		{"no path", "/web", jsonPatch, `[{"op":"remove","path":"/nothing"}]`, 422, []string{"the server rejected our request due to an error in our request"}},
		{"too many", "/web", jsonPatch, many, 413, []string{"The allowed maximum operations in a JSON patch is 10000, got 10001"}},
		{"name", "/web", mergePatch, `{"metadata":{"name":"x"}}`, 400, []string{"the name of the object (x) does not match the name on the URL (web)"}},
		{"namespace", "/web", mergePatch, `{"metadata":{"namespace":"x"}}`, 400, []string{"the namespace of the provided object does not match"}},
		{"type", "/web", mergePatch, `{"spec":{"containers":7}}`, 422, []string{"patch: Invalid value:", "cannot unmarshal number"}},
		{"strategic type", "/web", strategicPatch, `{"spec":{"containers":7}}`, 422, []string{"cannot restore slice from int64"}},
		{"strategic directive", "/web", strategicPatch, `{"spec":{"$patch":"wrong"}}`, 500, []string{"unknown patch type: wrong"}},
		{"version", "/web", mergePatch, `{"metadata":{"resourceVersion":"1"}}`, 409, []string{"the object has been modified"}},
		{"uid", "/web", mergePatch, `{"metadata":{"uid":"x"}}`, 422, []string{"metadata.uid: Invalid value", "field is immutable"}},
		{"strict merge", "/web?fieldValidation=Strict", mergePatch, `{"x":1,"metadata":{"labels":{"a":"1","a":"2"}}}`, 422, []string{`strict decoding error: duplicate field \"metadata.labels.a\", unknown field \"x\"`}},
		{"strict strategic", "/web?fieldValidation=Strict", strategicPatch, `{"spec":{"x":1}}`, 422, []string{`strict decoding error: unknown field \"spec.x\"`}},
		{"strict operations", "/web?fieldValidation=Strict", jsonPatch, `[{"op":"add","path":"/metadata/labels/a","value":"1","foo":"x"}]`, 422, []string{`json patch unknown field \"[0].foo\"`}},
		{"force", "/web?force=true", mergePatch, `{}`, 422, []string{"force: Forbidden: may not be specified for non-apply patch"}},
		{"invalid", "/web", mergePatch, `{"metadata":{"labels":{"a b":"c"}}}`, 422, []string{`Pod \"web\" is invalid`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("PATCH", podsPath+test.path, test.contentType, test.body).want(test.code, test.texts...)
		})
	}
	s.t = t
	s.send("PATCH", podsPath+"/web", mergePatch, `{"x":1}`).want(200).warned(`unknown field "x"`)
}

const applied = `kind: Deployment
apiVersion: apps/v1
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: %s
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: c
        image: %s
`

func TestApply(t *testing.T) {
	s := newWriteServer(t)
	web := deploymentsPath + "/web"
	made := s.send("PATCH", web+"?fieldManager=one", applyPatch, fmt.Sprintf(applied, "2", "i:1")).want(201)
	const owned = `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}}}}}}}`
	made.owned("one Apply apps/v1 " + owned)
	again := s.send("PATCH", web+"?fieldManager=one", applyPatch, fmt.Sprintf(applied, "2", "i:1")).want(200)
	if again.version() != made.version() {
		t.Error("applying the same made a new version")
	}
	conflict := s.send("PATCH", web+"?fieldManager=two", applyPatch, fmt.Sprintf(applied, "3", "i:1")).want(409,
		`Apply failed with 1 conflict: conflict with \"one\": .spec.replicas`, `"reason":"FieldManagerConflict"`, `"field":".spec.replicas"`)
	_ = conflict
	forced := s.send("PATCH", web+"?fieldManager=two&force=true", applyPatch, "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {replicas: 3}").want(200, `"replicas":3`)
	forced.owned("one Apply apps/v1 "+strings.Replace(owned, `"f:replicas":{},`, "", 1), `two Apply apps/v1 {"f:spec":{"f:replicas":{}}}`)
	less := s.send("PATCH", web+"?fieldManager=one", applyPatch, strings.Replace(strings.Replace(fmt.Sprintf(applied, "2", "i:1"), "  replicas: 2\n", "", 1), "  labels: {app: web}\n", "", 1)).want(200)
	if less.at("metadata", "labels") != nil || less.at("spec", "replicas") != float64(3) {
		t.Errorf("what was applied no longer is still there: %s", less.body)
	}
	status := s.send("PATCH", web+"/status?fieldManager=ctl", applyPatch, "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {replicas: 9}\nstatus: {replicas: 3}").want(200, `"status":{"replicas":3}`)
	if status.at("spec", "replicas") != float64(3) {
		t.Error("an apply of the status changed the spec")
	}
	if !strings.Contains(status.managed(), `ctl Apply apps/v1/status {"f:status":{"f:replicas":{}}}`) {
		t.Errorf("managedFields %s", status.managed())
	}
	s.send("PATCH", deploymentsPath+"/none/status?fieldManager=ctl", applyPatch, "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: none}\nstatus: {replicas: 3}").want(404)
	s.send("PATCH", deploymentsPath+"/dry?fieldManager=ctl&dryRun=All", applyPatch, strings.ReplaceAll(fmt.Sprintf(applied, "2", "i:1"), "name: web", "name: dry")).want(201)
	s.send("GET", deploymentsPath+"/dry", "", "").want(404)
}

func TestApplyErrors(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", deploymentsPath, "", deploymentBody).want(201)
	body := fmt.Sprintf(applied, "2", "i:1")
	for _, test := range []struct {
		name, path, body string
		code             int
		texts            []string
	}{
		{"no manager", "/web", body, 422, []string{"PatchOptions.meta.k8s.io", "fieldManager: Required value: is required for apply patch"}},
		{"not YAML", "/web?fieldManager=m", "{", 400, []string{"error decoding patch: error converting YAML to JSON: yaml: line 1: did not find expected node content"}},
		{"no kind", "/web?fieldManager=m", "metadata: {name: web}", 400, []string{"invalid object type: /, Kind="}},
		{"other kind", "/web?fieldManager=m", strings.Replace(body, "kind: Deployment", "kind: Pod", 1), 400, []string{"invalid object type: apps/v1, Kind=Pod"}},
		{"name", "/other?fieldManager=m", body, 400, []string{"the name of the object (web) does not match the name on the URL (other)"}},
		{"namespace", "/web?fieldManager=m&force=true", strings.Replace(body, "name: web\n", "name: web\n  namespace: x\n", 1), 400, []string{"the namespace of the provided object does not match"}},
		{"managedFields", "/web?fieldManager=m", strings.Replace(body, "name: web\n", "name: web\n  managedFields: [{manager: x}]\n", 1), 400, []string{"metadata.managedFields must be nil"}},
		{"unknown field", "/web?fieldManager=m&fieldValidation=Strict", strings.Replace(body, "spec:\n", "spec:\n  unknownField: x\n", 1), 500, []string{"failed to create typed patch object (/web; apps/v1, Kind=Deployment): .spec.unknownField: field not declared in schema"}},
		{"duplicate field", "/web?fieldManager=m&force=true&fieldValidation=Strict", strings.Replace(body, "spec:\n", "foo: 1\nfoo: 2\nspec:\n", 1), 500, []string{"foo: field not declared in schema"}},
		{"duplicate known field", "/web?fieldManager=m&force=true&fieldValidation=Strict", strings.Replace(body, "  replicas: 2\n", "  replicas: 2\n  replicas: 2\n", 1), 400, []string{`error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n  line 8: key \"replicas\" already set in map`}},
		{"version", "/web?fieldManager=m&force=true", strings.Replace(body, "name: web\n", "name: web\n  resourceVersion: \"1\"\n", 1), 409, []string{"the object has been modified"}},
		{"uid of none", "/new?fieldManager=m", strings.ReplaceAll(body, "name: web\n", "name: new\n  uid: x\n"), 409, []string{"uid mismatch: the provided object specified uid x, and no existing object was found"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("PATCH", deploymentsPath+test.path, applyPatch, test.body).want(test.code, test.texts...)
		})
	}
	s.t = t
	s.send("PATCH", deploymentsPath+"/web?fieldManager=m&force=true", applyPatch, strings.Replace(body, "  replicas: 2\n", "  replicas: 2\n  replicas: 2\n", 1)).
		want(200).warned(`line 8: key "replicas" already set in map`)
}

func TestScale(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", deploymentsPath+"?fieldManager=maker", "", deploymentBody).want(201)
	scale := s.send("GET", deploymentsPath+"/web/scale", "", "").want(200, `"kind":"Scale"`, `"apiVersion":"autoscaling/v1"`, `"replicas":2`)
	if scale.version() != made.version() {
		t.Error("scale has another version")
	}
	for include, want := range map[string]string{"Object": `"object":{"kind":"Scale",`, "Metadata": `"object":{"kind":"PartialObjectMetadata",`} {
		if table := s.get(deploymentsPath+"/web/scale?includeObject="+include, kubectlAccept); table.code != 200 || !strings.Contains(string(table.body), want) {
			t.Errorf("%d %s", table.code, table.body)
		}
	}
	s.send("PUT", deploymentsPath+"/web/scale?fieldManager=scaler", "", scale.with(5, "spec", "replicas")).want(200, `"spec":{"replicas":5}`)
	read := s.send("GET", deploymentsPath+"/web", "", "").want(200)
	if read.at("spec", "replicas") != float64(5) || read.at("metadata", "generation") != float64(2) {
		t.Errorf("object %s", read.body)
	}
	if managed := read.managed(); !strings.Contains(managed, `scaler Update apps/v1/scale {"f:spec":{"f:replicas":{}}}`) || strings.Count(managed, "f:replicas") != 1 {
		t.Errorf("managedFields %s", managed)
	}
	s.send("PUT", deploymentsPath+"/web/scale", "", string(scale.body)).want(409, "the object has been modified")
	s.send("PATCH", deploymentsPath+"/web/scale", mergePatch, `{"spec":{"replicas":6}}`).want(200, `"spec":{"replicas":6}`)
	s.send("PATCH", deploymentsPath+"/web/scale", strategicPatch, `{"spec":{"replicas":7}}`).want(200, `"spec":{"replicas":7}`)
	s.send("PATCH", deploymentsPath+"/web/scale", mergePatch, `{"spec":{"replicas":-1}}`).want(422, `Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0`)
	s.send("PATCH", deploymentsPath+"/web/scale", mergePatch, `{"metadata":{"uid":"x"}}`).want(409, `Operation cannot be fulfilled on deployments/scale.apps \"web\": Precondition failed: UID in precondition: x`)
	s.send("PATCH", deploymentsPath+"/web/scale?fieldManager=app&force=true", applyPatch, "kind: Scale\napiVersion: autoscaling/v1\nmetadata: {name: web}\nspec: {replicas: 8}").want(200, `"spec":{"replicas":8}`)
	if managed := s.send("GET", deploymentsPath+"/web", "", "").managed(); !strings.Contains(managed, `app Apply apps/v1/scale {"f:spec":{"f:replicas":{}}}`) {
		t.Errorf("managedFields %s", managed)
	}
	s.send("PUT", deploymentsPath+"/none/scale", "", `{"metadata":{"name":"none"}}`).want(404)
}

func TestCreateSubresource(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", podsPath, "", podBody).want(201)
	s.send("POST", podsPath+"/web/eviction", "", `{"kind":"Eviction","apiVersion":"policy/v1","metadata":{"name":"web"}}`).want(201, `"status":"Success"`, `"code":201`)
	s.send("GET", podsPath+"/web", "", "").want(200, `"reason":"Evicted"`)
	s.send("POST", podsPath+"/none/eviction", "", `{"metadata":{"name":"none"}}`).want(404)
	s.send("POST", podsPath+"/web/eviction", "", `{"kind":"Pod","apiVersion":"v1"}`).want(400, `Pod in version \"v1\" cannot be handled as a Eviction`)
}
