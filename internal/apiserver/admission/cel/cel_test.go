package cel

import (
	"context"
	"errors"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiservercel "k8s.io/apiserver/pkg/cel"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authz"
)

// oneVersion are the versions of a kind that has one, and counts conversions.
type oneVersion struct {
	admission.Versions
	converted int
}

func (v *oneVersion) Convert(obj runtime.Object, _ schema.GroupVersionKind) (runtime.Object, error) {
	v.converted++
	return obj, nil
}

// counting is an authorizer that allows gets and counts its calls.
type counting struct {
	calls int
	last  *authz.Attributes
}

func (c *counting) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	c.calls++
	c.last = a
	if a.Verb == "get" {
		return authz.Allow, "gets are allowed", nil
	}
	return authz.NoOpinion, "", errors.New("unknown verb")
}

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func podRequest(authorizer authz.Authorizer) (*Request, *oneVersion) {
	versions := &oneVersion{}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main:1"}}},
	}
	return NewRequest(&admission.Attributes{
		Operation: admission.Create, Kind: podKind, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: "team", Name: "web",
		Object: pod, Versions: versions, Options: &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"}},
		User: authenticationv1.UserInfo{Username: "jane", Groups: []string{"a"}, Extra: map[string]authenticationv1.ExtraValue{"e": {"v"}}},
	}, authorizer), versions
}

func mustVersion(t testing.TB, r *Request) *Version {
	t.Helper()
	v, err := r.Version(podKind)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestExpressions: what expressions evaluate to, with typed objects and as plain maps.
func TestExpressions(t *testing.T) {
	r, versions := podRequest(&counting{})
	r.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"env": "test"}}})
	compiler := NewCompiler([]admissionregistrationv1.Variable{
		{Name: "images", Expression: "object.spec.containers.map(c, c.image)"}, {Name: "first", Expression: "variables.images[0]"},
		{Name: "broken", Expression: "object.nosuch"}, {Name: "invalid", Expression: "nosuch("},
	}, Scope{Params: true, Authorizer: true})
	params := NewParams(&corev1.ConfigMap{Data: map[string]string{"a": "b"}}, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	for _, copied := range []bool{false, true} {
		for _, test := range []struct{ text, want string }{
			{"object.metadata.name == 'web' && object.kind == 'Pod' && object.apiVersion == 'v1'", "true"},
			{"oldObject == null", "true"},
			{"has(object.metadata.labels.app) && !has(object.metadata.labels.other) && !has(object.spec.nodeName)", "true"},
			{"object.spec.containers.all(c, c.image.startsWith('main'))", "true"},
			{"variables.first == 'main:1' && variables.images.size() == 1", "true"},
			{"variables.broken == ''", `error: composited variable "broken" fails to evaluate: no such key: nosuch`},
			{"variables.invalid == ''", `error: composited variable "invalid" fails to compile: compilation failed`},
			{"params.data.a == 'b' && params.kind == 'ConfigMap' && params.apiVersion == 'v1'", "true"},
			{"namespaceObject.metadata.labels.env == 'test'", "true"},
			{"request.userInfo.username == 'jane' && request.userInfo.extra.e == ['v'] && request.operation == 'CREATE' && request.options.kind == 'CreateOptions'", "true"},
			{"request.kind.kind == 'Pod' && request.resource.resource == 'pods' && !has(request.subResource) && request.dryRun == false", "true"},
			{"authorizer.group('').resource('pods').check('get').reason() == 'gets are allowed'", "true"},
			{"authorizer.requestResource.check('delete').errored()", "true"},
			{"object.nosuch == 1", "error: expression 'object.nosuch == 1' resulted in error: no such key: nosuch"},
			{"1 == 1 ? 2 : 3", "compile: must evaluate to bool but got int"},
			{"nosuch", "compile: compilation failed: ERROR: <input>:1:1: undeclared reference to 'nosuch'"},
		} {
			x := compiler.Compile(test.text, Scope{Params: true, Authorizer: true}, celgo.BoolType)
			e := &Evaluation{
				Version: mustVersion(t, r), Resource: r.attributes.Resource, Params: params, Budget: 1e7, Variables: compiler.Variables(), Copied: copied,
			}
			result, err := e.Evaluate(t.Context(), x)
			got := ""
			switch {
			case err != nil:
				got = "fatal: " + err.Error()
			case x.Err() != nil:
				got = "compile: " + x.Err().Error()
				if !strings.HasPrefix(result.Err.Error(), "compilation error: ") {
					t.Errorf("%s: %v", test.text, result.Err)
				}
			case result.Err != nil:
				got = "error: " + result.Err.Error()
			default:
				got = "value"
				if result.Value == types.True {
					got = "true"
				}
			}
			if !strings.Contains(got, test.want) && !strings.Contains(strings.ReplaceAll(got, "expression '"+test.text+"' resulted in error: ", ""), test.want) {
				t.Errorf("copied %t: %s: %s", copied, test.text, got)
			}
		}
	}
	if versions.converted != 1 {
		t.Errorf("the object was converted %d times", versions.converted)
	}
}

// TestHiddenVariables: what an expression may not use does not resolve, also within variables.
func TestHiddenVariables(t *testing.T) {
	r, _ := podRequest(&counting{})
	r.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	compiler := NewCompiler([]admissionregistrationv1.Variable{{Name: "may", Expression: "authorizer.path('/').check('get').allowed()"}}, Scope{Authorizer: true})
	e := &Evaluation{Version: mustVersion(t, r), Budget: 1e7, Variables: compiler.Variables(), WithoutAuthorizer: true, WithoutNamespace: true}
	result, err := e.Evaluate(t.Context(), compiler.Compile("variables.may", Scope{}, celgo.BoolType))
	if err != nil || result.Err == nil || !strings.Contains(result.Err.Error(), "no such attribute") {
		t.Errorf("%v %v", result.Err, err)
	}
	if result, err = e.Evaluate(t.Context(), compiler.Compile("namespaceObject == null", Scope{}, celgo.BoolType)); err != nil || result.Value != types.True {
		t.Errorf("%+v %v", result, err)
	}
}

// TestBudget: the costs of all expressions and of the variables they read are subtracted from the budget. A variable is paid for once.
func TestBudget(t *testing.T) {
	r, _ := podRequest(&counting{})
	compiler := NewCompiler([]admissionregistrationv1.Variable{{Name: "v", Expression: "[1, 2, 3].map(x, x * 2).all(x, x > 0)"}}, Scope{})
	x := compiler.Compile("variables.v", Scope{}, celgo.BoolType)
	e := &Evaluation{Version: mustVersion(t, r), Budget: 1000, Variables: compiler.Variables()}
	costs := []int64{}
	for range 3 {
		before := e.Budget
		if _, err := e.Evaluate(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		costs = append(costs, before-e.Budget)
	}
	if costs[0] <= costs[1] || costs[1] != costs[2] || costs[2] == 0 {
		t.Errorf("costs %d", costs)
	}
	for _, budget := range []int64{costs[0] - 1, costs[0] - costs[1] - 1} { // too little for the expression, or already for the variable
		e = &Evaluation{Version: mustVersion(t, r), Budget: budget, Variables: compiler.Variables()}
		if _, err := e.Evaluate(t.Context(), x); !errors.Is(err, apiservercel.ErrOutOfBudget) || e.Budget != -1 {
			t.Errorf("budget %d: %v, %d left", budget, err, e.Budget)
		}
	}
	e = &Evaluation{Version: mustVersion(t, r), Budget: costs[0], Variables: compiler.Variables()}
	if _, err := e.Evaluate(t.Context(), x); err != nil || e.Budget != 0 {
		t.Errorf("%v, %d left", err, e.Budget)
	}
}

// TestMatchConditions: a false condition decides; else an error.
func TestMatchConditions(t *testing.T) {
	for _, test := range []struct {
		name       string
		conditions []string
		want       bool
		err        string
	}{
		{name: "none", want: true},
		{name: "true", conditions: []string{"true", "object.metadata.name == 'web'"}, want: true},
		{name: "false", conditions: []string{"true", "false"}},
		{name: "error", conditions: []string{"true", "object.nosuch == 1", "object.none == 2"}, err: "[expression 'object.nosuch == 1' resulted in error: no such key: nosuch, expression 'object.none == 2' resulted in error: no such key: none]"},
		{name: "error and false", conditions: []string{"object.nosuch == 1", "false"}},
		{name: "not compiled", conditions: []string{"nosuch"}, err: "compilation error: compilation failed"},
		{name: "namespace is hidden", conditions: []string{"namespaceObject == null"}, want: true},
		{name: "budget", conditions: strings.Split(strings.Repeat("authorizer.path('/x').check('get').allowed() && authorizer.path('/y').check('get').allowed();", 4), ";")[:4], err: "running out of cost budget"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var conditions []admissionregistrationv1.MatchCondition
			for _, expression := range test.conditions {
				conditions = append(conditions, admissionregistrationv1.MatchCondition{Name: "c", Expression: expression})
			}
			r, _ := podRequest(&counting{})
			r.SetNamespace(&corev1.Namespace{})
			compiled := CompileConditions(conditions, false, Owner{Name: "o", Kind: "policy", Type: "validate"}, NewMetrics())
			got, err := compiled.Match(t.Context(), mustVersion(t, r), nil)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %t, %v", got, err)
			}
		})
	}
}

// TestDecisionsAreKept: the same question is asked once per request, and a service account's is not the requester's.
func TestDecisionsAreKept(t *testing.T) {
	authorizer := &counting{}
	r, _ := podRequest(authorizer)
	e := &Evaluation{Version: mustVersion(t, r), Budget: 1e7}
	var compiler Compiler
	for _, step := range []struct {
		text  string
		calls int
	}{
		{"authorizer.group('apps').resource('deployments').namespace('n').name('d').subresource('scale').check('get').allowed()", 1},
		{"authorizer.group('apps').resource('deployments').namespace('n').name('d').subresource('scale').check('get').allowed()", 1},
		{"authorizer.group('apps').resource('deployments').namespace('n').name('d').check('get').allowed()", 2},
		{"authorizer.group('apps').resource('deployments').fieldSelector('a=b').check('get').allowed()", 3},
		{"authorizer.group('apps').resource('deployments').fieldSelector('a=c').check('get').allowed()", 4},
		{"authorizer.group('apps').resource('deployments').labelSelector('a=c').check('get').allowed()", 5},
		{"authorizer.serviceAccount('n', 'a').group('apps').resource('deployments').check('get').allowed()", 6},
		{"authorizer.path('/a').check('get').allowed()", 7},
		{"!authorizer.path('/a').check('post').allowed()", 8},
	} {
		result, err := e.Evaluate(t.Context(), compiler.Compile(step.text, Scope{Authorizer: true}, celgo.BoolType))
		if err != nil || result.Value != types.True || authorizer.calls != step.calls {
			t.Errorf("%s: %+v, %v, %d calls", step.text, result, err, authorizer.calls)
		}
		e.Budget = 1e7
	}
	if a := authorizer.last; a.User.Username != "jane" || a.User.Extra["e"][0] != "v" || a.Path != "/a" || a.ResourceRequest {
		t.Errorf("%+v", a)
	}
}

// TestUnstructuredObjects: custom resources are not copied, and get the version they are seen in.
func TestUnstructuredObjects(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Widget"}
	stored := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "spec": map[string]any{"size": int64(3)}}}
	r := NewRequest(&admission.Attributes{Object: stored, Kind: gvk, Versions: &oneVersion{}}, &counting{})
	v, err := r.Version(gvk)
	if err != nil {
		t.Fatal(err)
	}
	var compiler Compiler
	result, err := (&Evaluation{Version: v, Budget: 1e6}).Evaluate(t.Context(), compiler.Compile("object.apiVersion == 'example.com/v2' && object.spec.size == 3", Scope{}, celgo.BoolType))
	if err != nil || result.Value != types.True {
		t.Errorf("%+v %v", result, err)
	}
	if stored.GetAPIVersion() != "example.com/v1" {
		t.Error("the stored object was changed")
	}
}
