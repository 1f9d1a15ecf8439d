package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/yaml"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/policy"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/store"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

var converter = sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() })

// server is the real server with all built-in kinds and the policy plugins, on a store in memory.
type server struct {
	t           testing.TB
	server      *apiserver.Server
	handler     http.Handler
	annotations *annotations
	validating  *policy.Validating
}

// annotations is a plugin that records the audit annotations of those after it.
type annotations struct{ made map[string]string }

func (*annotations) Name() string                       { return "annotations" }
func (*annotations) Handles(*admission.Attributes) bool { return true }

func (r *annotations) Validate(_ context.Context, a *admission.Attributes) error {
	r.made = map[string]string{}
	a.Annotate = func(key, value string) { r.made[key] = value }
	return nil
}

// onlyPods allows jane to create pods, in addition to what administrators may do.
type onlyPods struct{}

func (onlyPods) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	if a.User.Username == "jane" && a.Resource == "pods" {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "only pods", nil
}

// permissive answers access reviews.
type permissive struct{}

func (permissive) Authorize(context.Context, authenticationv1.UserInfo, *authorizationv1.ResourceAttributes, *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error) {
	return true, false, "", nil
}

func (permissive) RulesFor(context.Context, authenticationv1.UserInfo, string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	return nil, nil, false, nil
}

// newServer starts a server with the namespace team.
func newServer(t testing.TB) *server {
	t.Helper()
	s := newServerOn(t, memory.New(), nil)
	s.makeNamespace()
	return s
}

func (s *server) makeNamespace() {
	s.t.Helper()
	s.must("POST", "/api/v1/namespaces", `{metadata: {name: team, labels: {env: test}}}`)
}

// newServerOn starts a server on a store. Resources of disabled are not served.
func newServerOn(t testing.TB, backend store.Store, disabled map[schema.GroupVersionResource]bool) *server {
	t.Helper()
	s := &server{t: t, annotations: &annotations{}}
	objects := cache.New(backend, nil)
	authorizer := authz.Chain{authz.Masters{}, onlyPods{}}
	options := policy.Options{
		Client:  func() kind.Client { return s.server.KindClient() },
		Objects: func() policy.Objects { return s.server.Cached() },
		Kinds: func(gvk schema.GroupVersionKind) (*kind.Kind, *kind.Version) {
			return s.server.KindOf(gvk)
		},
		Authorizer: authorizer, TypeConverter: converter, Conditions: cel.NewMetrics(), Log: slog.New(slog.DiscardHandler),
	}
	mutating, err := policy.NewMutating(options)
	if err != nil {
		t.Fatal(err)
	}
	if s.validating, err = policy.NewValidating(options); err != nil {
		t.Fatal(err)
	}
	s.server, err = apiserver.New(apiserver.Config{
		Kinds: api.Kinds(api.Settings{Authorizer: permissive{}}), Scheme: api.Scheme(), Cache: objects, Authorizer: authorizer, TypeConverter: converter,
		Admission: admission.Chain{s.annotations, mutating, s.validating}, Disabled: disabled,
		Authenticator: authn.NewTokens(map[string]authn.User{
			"admin": {Username: "admin", Groups: []string{authn.GroupMasters}}, "jane": {Username: "jane"},
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = objects.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-objects.Ready()
	s.handler = s.server.Handler()
	return s
}

// response is a response with its warnings.
type response struct {
	code     int
	body     []byte
	warnings []string
}

func (r *response) status(t testing.TB) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(r.body, &status); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return status
}

// message is the message of the Status of a rejected request, "" for one that succeeded.
func (r *response) message(t testing.TB) string {
	t.Helper()
	if r.code < 300 {
		return ""
	}
	return r.status(t).Message
}

// as sends a request of a user. The body is YAML.
func (s *server) as(user, method, path, body string) *response {
	s.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(body))
	if err != nil {
		s.t.Fatalf("%v:\n%s", err, body)
	}
	r := httptest.NewRequest(method, path, strings.NewReader(string(data)))
	r.Header.Set("Authorization", "Bearer "+user)
	r.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return &response{w.Code, w.Body.Bytes(), w.Header().Values("Warning")}
}

// must sends a request of the administrator that must succeed, and returns the object.
func (s *server) must(method, path, body string) map[string]any {
	s.t.Helper()
	r := s.as("admin", method, path, body)
	if r.code >= 300 {
		s.t.Fatalf("%s %s: %d %s", method, path, r.code, r.body)
	}
	var obj map[string]any
	if err := json.Unmarshal(r.body, &obj); err != nil {
		s.t.Fatal(err)
	}
	return obj
}

const group = "/apis/admissionregistration.k8s.io/v1/"

// validate creates a ValidatingAdmissionPolicy with the spec, about creates and updates of config maps unless it has matchConstraints, and
// a binding for each of the others.
func (s *server) validate(name, spec string, bindings ...string) {
	s.t.Helper()
	s.create("validatingadmissionpolic", name, spec, bindings)
}

// mutate does the same with a MutatingAdmissionPolicy.
func (s *server) mutate(name, spec string, bindings ...string) {
	s.t.Helper()
	s.create("mutatingadmissionpolic", name, spec, bindings)
}

const configMaps = `{resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]}`

func (s *server) create(resource, name, spec string, bindings []string) {
	s.t.Helper()
	if !strings.Contains(spec, "matchConstraints:") {
		spec = "matchConstraints: " + configMaps + "\n" + spec
	}
	s.must("POST", group+resource+"ies", fmt.Sprintf("metadata: {name: %s}\nspec:\n%s", name, indent(spec)))
	if len(bindings) == 0 {
		bindings = []string{""}
	}
	for i, b := range bindings {
		if resource == "validatingadmissionpolic" && !strings.Contains(b, "validationActions:") {
			b += "\nvalidationActions: [Deny]"
		}
		s.must("POST", group+resource+"ybindings", fmt.Sprintf("metadata: {name: %s-%d}\nspec:\n  policyName: %s\n%s", name, i, name, indent(b)))
	}
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// configMap creates a config map with the data, as the administrator.
func (s *server) configMap(name, data string) *response {
	s.t.Helper()
	return s.as("admin", "POST", "/api/v1/namespaces/team/configmaps", fmt.Sprintf("metadata: {name: '%s', labels: {app: '%s'}}\ndata: {%s}", name, name, data))
}
