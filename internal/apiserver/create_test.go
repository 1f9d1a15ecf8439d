package apiserver

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/apiserver/admission"
)

func TestCreate(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", podsPath+"?fieldManager=me", "application/json", strings.Replace(podBody, `"name":"web",`,
		`"name":"web","uid":"mine","creationTimestamp":"2020-01-01T00:00:00Z","deletionTimestamp":"2020-01-01T00:00:00Z","generation":7,"selfLink":"x",`, 1)).want(201)
	if made.at("metadata", "namespace") != "default" || made.at("metadata", "uid") == "mine" || made.at("metadata", "deletionTimestamp") != nil ||
		made.at("metadata", "generation") != float64(1) || made.at("metadata", "selfLink") != nil || made.at("metadata", "creationTimestamp") == "2020-01-01T00:00:00Z" {
		t.Errorf("metadata %v", made.at("metadata"))
	}
	if made.at("kind") != "Pod" || made.at("apiVersion") != "v1" || made.at("spec", "restartPolicy") != "Always" {
		t.Errorf("object %s", made.body)
	}
	made.owned(`me Update v1 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}}`)
	read := s.send("GET", podsPath+"/web", "", "").want(200)
	if read.version() != made.version() {
		t.Errorf("read version %s, made %s", read.version(), made.version())
	}
	s.send("POST", podsPath, "", podBody).want(409, `pods \"web\" already exists`)
}

func TestCreateErrors(t *testing.T) {
	s := newWriteServer(t, func(c *Config) { c.Limits.Body = 2000 })
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"there"}}`).want(201)
	for _, test := range []struct {
		name, path, contentType, body string
		code                          int
		texts                         []string
	}{
		{"defaulted kind", configMapsPath, "", `{"metadata":{"name":"a"}}`, 201, nil},
		{"yaml", configMapsPath, "application/yaml", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\ndata: {x: z}", 201, []string{`"x":"z"`}},
		{"charset", configMapsPath, "application/json; charset=utf-8", `{"metadata":{"name":"c"}}`, 201, nil},
		{"media type", configMapsPath, "text/plain", `{}`, 415, []string{"the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"}},
		{"not JSON", configMapsPath, "", `{"a`, 400, []string{`the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({\"a)`}},
		{"empty", configMapsPath, "", "", 400, []string{"couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"}},
		{"wrong type", configMapsPath, "", `{"data":[]}`, 400, []string{`ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string`}},
		{"other kind", configMapsPath, "", `{"kind":"Secret","apiVersion":"v1"}`, 400, []string{`Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion`}},
		{"other version", deploymentsPath, "", `{"kind":"Deployment","apiVersion":"apps/v1beta1"}`, 400, []string{"the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)"}},
		{"unknown kind", configMapsPath, "", `{"kind":"Foo","apiVersion":"v1"}`, 400, []string{`Foo in version \"v1\" cannot be handled as a ConfigMap: no kind \"Foo\" is registered for version \"v1\" in scheme`}},
		{"namespace", configMapsPath, "", `{"metadata":{"name":"a","namespace":"other"}}`, 400, []string{"the namespace of the provided object does not match the namespace sent on the request"}},
		{"too large", configMapsPath, "", `{"metadata":{"name":"big"},"data":{"x":"` + strings.Repeat("x", 2000) + `"}}`, 413, []string{"Request entity too large: limit is 2000"}},
		{"no name", configMapsPath, "", `{}`, 422, []string{`ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required`}},
		{"bad name", configMapsPath, "", `{"metadata":{"name":"a_b"}}`, 422, []string{`ConfigMap \"a_b\" is invalid: metadata.name: Invalid value: \"a_b\"`, `"field":"metadata.name"`}},
		{"invalid", configMapsPath, "", `{"metadata":{"name":"i"},"data":{"bad":"x"}}`, 422, []string{`data[bad]: Invalid value: \"x\": must not be`, `"reason":"FieldValueInvalid"`, `"kind":"ConfigMap"`}},
		{"exists", configMapsPath, "", `{"metadata":{"name":"there"}}`, 409, []string{`configmaps \"there\" already exists`, `"reason":"AlreadyExists"`}},
		{"exists in dry run", configMapsPath + "?dryRun=All", "", `{"metadata":{"name":"there"}}`, 409, nil},
		{"version set", configMapsPath, "", `{"metadata":{"name":"v","resourceVersion":"7"}}`, 500, []string{"resourceVersion should not be set on objects to be created"}},
		{"dryRun", configMapsPath + "?dryRun=Some", "", `{}`, 422, []string{`CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"`}},
		{"fieldValidation", configMapsPath + "?fieldValidation=Hard", "", `{}`, 422, []string{`fieldValidation: Unsupported value: \"Hard\"`}},
		{"fieldManager", configMapsPath + "?fieldManager=" + strings.Repeat("x", 129), "", `{}`, 422, []string{"fieldManager: Too long: may not be more than 128 bytes"}},
		{"strict", deploymentsPath + "?fieldValidation=Strict", "", `{"metadata":{"name":"s"},"spec":{"unknownField":"x","replicas":1,"replicas":2}}`, 400,
			[]string{`Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: unknown field \"spec.unknownField\", duplicate field \"spec.replicas\"`}},
		{"strict yaml", deploymentsPath + "?fieldValidation=Strict", "application/yaml", "metadata:\n  name: s\nspec:\n  unknownField: x\n  replicas: 1\n  replicas: 2\n", 400,
			[]string{`strict decoding error: yaml: unmarshal errors:\n  line 6: key \"replicas\" already set in map, unknown field \"spec.unknownField\"`}},
		{"not protobuf", podsPath, "application/vnd.kubernetes.protobuf", "abc", 400, []string{"provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (616263)"}},
		{"alias bomb", configMapsPath, "application/yaml", yamlBomb, 400, []string{"excessive aliasing"}},
		{"deep", configMapsPath, "", `{"metadata":` + strings.Repeat(`[`, 900) + strings.Repeat(`]`, 900) + `}`, 400, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.t = t
			s.send("POST", test.path, test.contentType, test.body).want(test.code, test.texts...)
		})
	}
}

const yamlBomb = `
a: &a [x,x,x,x,x,x,x,x,x]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]
`

func TestCreateWarnings(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"w"},"data":{"warn":"careful"},"one":1,"two":2}`).want(201).
		warned(`unknown field "one"`, `unknown field "two"`, "data[warn]: careful")
	s.send("POST", configMapsPath+"?fieldValidation=Ignore", "", `{"metadata":{"name":"x"},"one":1}`).want(201).warned()
	s.send("POST", configMapsPath, "application/yaml", "metadata:\n  name: yy\ndata: {a: b}\ndata: {a: c}\n").want(201).
		warned(`line 4: key "data" already set in map`)
	owner := `{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}`
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"z","ownerReferences":[`+owner+","+owner+`]}}`).want(201).
		warned(".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u")
}

func TestGenerateName(t *testing.T) {
	s := newWriteServer(t)
	pattern := regexp.MustCompile(`^web-[bcdfghjklmnpqrstvwxz2456789]{5}$`)
	made := s.send("POST", podsPath, "", strings.Replace(podBody, `"name":"web"`, `"generateName":"web-"`, 1)).want(201)
	if name := made.at("metadata", "name").(string); !pattern.MatchString(name) {
		t.Errorf("name %q", name)
	}
	long := strings.Repeat("x", 70)
	made = s.send("POST", configMapsPath, "", `{"metadata":{"generateName":"`+long+`"}}`).want(201)
	if name := made.at("metadata", "name").(string); len(name) != 63 {
		t.Errorf("name of %d: %q", len(name), name)
	}
}

func TestCreateDryRun(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", podsPath+"?dryRun=All", "", podBody).want(201)
	if made.at("metadata", "uid") == nil || made.at("metadata", "resourceVersion") != nil {
		t.Errorf("metadata %v", made.at("metadata"))
	}
	s.send("GET", podsPath+"/web", "", "").want(404)
	s.send("POST", podsPath+"?dryRun=All", "", strings.Replace(podBody, `"web"`, `"not_valid"`, 1)).want(422)
}

func TestCreateAdmission(t *testing.T) {
	undone := 0
	refuse := false
	rule := stepRule{undone: &undone,
		mutate: func(a *admission.Attributes) error {
			if a.Operation == admission.Create && a.Resource.Resource == "configmaps" {
				if a.Old != nil || a.Namespace != "default" || a.User.Username != "admin" || a.Kind.Kind != "ConfigMap" {
					t.Errorf("attributes %+v", a)
				}
				a.Object.(*corev1.ConfigMap).Labels = map[string]string{"mutated": "yes"}
				a.Warn("mutated")
			}
			if a.Operation == admission.Create && a.Resource.Resource == "namespaces" && a.Namespace != a.Name {
				t.Errorf("namespace %q is not in itself: %q", a.Name, a.Namespace)
			}
			return nil
		},
		validate: func(a *admission.Attributes) error {
			if refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, a.Name, errors.New("refused"))
			}
			return nil
		},
	}
	s := newWriteServer(t, func(c *Config) { c.Admission = admission.Chain{rule} })
	made := s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"},"data":{"k":"v"}}`).want(201).warned("mutated")
	if made.at("metadata", "labels", "mutated") != "yes" {
		t.Errorf("labels %v", made.at("metadata", "labels"))
	}
	made.owned(`tester Update v1 {"f:data":{".":{},"f:k":{}}}`) // nobody owns what admission adds
	s.send("POST", "/api/v1/namespaces", "", `{"metadata":{"name":"n"}}`).want(201)
	if undone != 0 {
		t.Errorf("%d undone", undone)
	}
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"a"}}`).want(http.StatusConflict)
	s.send("POST", configMapsPath+"?dryRun=All", "", `{"metadata":{"name":"b"}}`).want(201)
	if undone != 2 {
		t.Errorf("%d undone after a failed write and a dry run", undone)
	}
	refuse = true
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"b"}}`).want(403, "refused")
	s.send("GET", configMapsPath+"/b", "", "").want(404)
}

func TestAction(t *testing.T) {
	s := newWriteServer(t)
	s.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "", `{"spec":{}}`).want(201, `"allowed":true`, `"kind":"SelfSubjectAccessReview"`)
}

func TestCreateCustom(t *testing.T) {
	s := newWriteServer(t)
	made := s.send("POST", widgetsPath, "", `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"a"},"spec":{"size":3},"unknown":1}`).want(201).
		warned(`unknown field "unknown"`)
	if made.at("spec", "size") != float64(3) || made.at("unknown") != nil {
		t.Errorf("object %s", made.body)
	}
	made.owned(`tester Update example.com/v1 {"f:spec":{".":{},"f:size":{}}}`)
	s.send("POST", widgetsPath+"?fieldValidation=Strict", "", `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"b"},"unknown":1}`).
		want(400, `strict decoding error: unknown field \"unknown\"`)
	s.send("PATCH", widgetsPath+"/a", strategicPatch, `{}`).want(415, "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")
	s.send("PATCH", widgetsPath+"/a", mergePatch, `{"spec":{"size":4}}`).want(200, `"size":4`)
	s.send("PATCH", widgetsPath+"/a?fieldManager=me", applyPatch, "kind: Widget\napiVersion: example.com/v1\nmetadata: {name: a}\nspec: {color: red}").want(200, `"color":"red"`, `"size":4`)
}
