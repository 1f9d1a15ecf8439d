package match

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// namespaceReader has namespaces by name and counts the reads.
type namespaceReader struct {
	kind.Client
	labels map[string]map[string]string
	broken error
	reads  int
}

func (r *namespaceReader) Get(_ context.Context, resource schema.GroupResource, _, name string) (kind.Object, error) {
	r.reads++
	if r.broken != nil {
		return nil, r.broken
	}
	found, ok := r.labels[name]
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: found}}, nil
}

// equivalents are the versions of a write.
type equivalents struct {
	admission.Versions
	list []admission.Equivalent
}

func (e equivalents) Equivalents() []admission.Equivalent { return e.list }

func gvr(text string) schema.GroupVersionResource {
	parts := strings.Split(text, "/")
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
}

// rule parses "operations groups versions resources", each a list with commas; "-" is an empty element.
func rule(text string, change ...func(*admissionregistrationv1.NamedRuleWithOperations)) admissionregistrationv1.NamedRuleWithOperations {
	fields := strings.Fields(text)
	split := func(i int) []string { return strings.Split(strings.ReplaceAll(fields[i], "-", ""), ",") }
	var r admissionregistrationv1.NamedRuleWithOperations
	for _, operation := range split(0) {
		r.Operations = append(r.Operations, admissionregistrationv1.OperationType(operation))
	}
	r.APIGroups, r.APIVersions, r.Resources = split(1), split(2), split(3)
	for _, c := range change {
		c(&r)
	}
	return r
}

func scope(s admissionregistrationv1.ScopeType) func(*admissionregistrationv1.NamedRuleWithOperations) {
	return func(r *admissionregistrationv1.NamedRuleWithOperations) { r.Scope = &s }
}

// write is a create of a resource "group/version/resource" in namespace "team".
func write(resource string, change ...func(*admission.Attributes)) *admission.Attributes {
	at := gvr(resource)
	a := &admission.Attributes{
		Operation: admission.Create, Resource: at, Kind: at.GroupVersion().WithKind("Thing"), Namespace: "team", Name: "it",
		Object: &corev1.ConfigMap{},
	}
	for _, c := range change {
		c(a)
	}
	return a
}

func on(operation admission.Operation) func(*admission.Attributes) {
	return func(a *admission.Attributes) { a.Operation = operation }
}

func sub(name string) func(*admission.Attributes) {
	return func(a *admission.Attributes) { a.Subresource = name }
}

func in(namespace string) func(*admission.Attributes) {
	return func(a *admission.Attributes) { a.Namespace = namespace }
}

func TestRules(t *testing.T) {
	tests := []struct {
		rule  admissionregistrationv1.NamedRuleWithOperations
		write *admission.Attributes
		want  bool
	}{
		{rule("CREATE - v1 pods"), write("/v1/pods"), true},
		{rule("CREATE - v1 pods"), write("/v1/pods", on(admission.Update)), false},
		{rule("DELETE,CREATE - v1 pods"), write("/v1/pods"), true},
		{rule("* - v1 pods"), write("/v1/pods", on(admission.Connect)), true},
		{rule("CREATE apps v1 pods"), write("/v1/pods"), false},
		{rule("CREATE * * *"), write("/v1/pods"), true},
		{rule("CREATE - v1beta1 pods"), write("/v1/pods"), false},
		{rule("CREATE - v1 pods"), write("/v1/pods", sub("exec")), false},
		{rule("CREATE - v1 pods/exec"), write("/v1/pods", sub("exec")), true},
		{rule("CREATE - v1 pods/exec"), write("/v1/pods"), false},
		{rule("CREATE - v1 pods/*"), write("/v1/pods", sub("exec")), true},
		{rule("CREATE - v1 pods/*"), write("/v1/pods"), true},
		{rule("CREATE - v1 */exec"), write("/v1/pods", sub("exec")), true},
		{rule("CREATE - v1 */exec"), write("/v1/pods", sub("attach")), false},
		{rule("CREATE - v1 *"), write("/v1/pods", sub("exec")), false},
		{rule("CREATE * * */*"), write("/v1/pods", sub("exec")), true},
		{rule("CREATE - v1 pods", scope("Namespaced")), write("/v1/pods"), true},
		{rule("CREATE - v1 pods", scope("Cluster")), write("/v1/pods"), false},
		{rule("CREATE - v1 *", scope("*")), write("/v1/nodes", in("")), true},
		{rule("CREATE - v1 *", scope("Cluster")), write("/v1/nodes", in("")), true},
		{rule("CREATE - v1 *", scope("Namespaced")), write("/v1/nodes", in("")), false},
		{rule("CREATE - v1 *", scope("Cluster")), write("/v1/namespaces"), true},
		{rule("CREATE - v1 *", scope("Namespaced")), write("/v1/namespaces"), false},
		{rule("CREATE - v1 *", scope("Other")), write("/v1/pods"), false},
		{rule("CREATE - v1 *", func(r *admissionregistrationv1.NamedRuleWithOperations) { r.ResourceNames = []string{"it"} }), write("/v1/pods"), true},
		{rule("CREATE - v1 *", func(r *admissionregistrationv1.NamedRuleWithOperations) { r.ResourceNames = []string{"other"} }), write("/v1/pods"), false},
	}
	for _, test := range tests {
		m := Compile(Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{test.rule}})
		as, got, err := m.Match(t.Context(), NewRequest(test.write, nil))
		if err != nil || got != test.want || got && (as.Resource != test.write.Resource || as.Kind != test.write.Kind) {
			t.Errorf("%v for %v %v: %t as %v, %v", test.rule, test.write.Operation, test.write.Resource, got, as, err)
		}
		// The index never loses a match, for the resource of the rule and for every other one.
		index := NewIndex([]*Matcher{m}, func(m *Matcher) *Matcher { return m })
		if test.want && len(index.Candidates(test.write)) != 1 {
			t.Errorf("%v is not a candidate for %v", test.rule, test.write.Resource)
		}
	}
	nothing, everything := Compile(Criteria{}), Compile(Criteria{AllWithoutRules: true})
	if _, ok, _ := nothing.Match(t.Context(), NewRequest(write("/v1/pods"), nil)); ok {
		t.Error("a webhook without rules matches")
	}
	if _, ok, _ := everything.Match(t.Context(), NewRequest(write("/v1/pods"), nil)); !ok {
		t.Error("a policy without rules does not match")
	}
}

func TestEquivalent(t *testing.T) {
	versions := equivalents{list: []admission.Equivalent{
		{Resource: gvr("apps/v1/deployments"), Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}},
		{Resource: gvr("apps/v1beta1/deployments"), Kind: schema.GroupVersionKind{Group: "apps", Version: "v1beta1", Kind: "Deployment"}},
		{Resource: gvr("extensions/v1beta1/deployments"), Kind: schema.GroupVersionKind{Group: "extensions", Version: "v1beta1", Kind: "Deployment"}},
	}}
	exact, equivalent := admissionregistrationv1.Exact, admissionregistrationv1.Equivalent
	for _, test := range []struct {
		rules  []string
		policy *admissionregistrationv1.MatchPolicyType
		want   string
	}{
		{[]string{"CREATE extensions v1beta1 deployments"}, &equivalent, "extensions/v1beta1, Kind=Deployment"},
		{[]string{"CREATE extensions v1beta1 deployments"}, &exact, ""},
		{[]string{"CREATE extensions v1beta1 deployments"}, nil, ""},
		{[]string{"CREATE extensions v1beta1 deployments", "CREATE apps v1 deployments"}, &equivalent, "apps/v1, Kind=Thing"},
		{[]string{"CREATE extensions v1beta1 deployments", "CREATE apps v1beta1 deployments"}, &equivalent, "extensions/v1beta1, Kind=Deployment"},
		{[]string{"CREATE apps v2 deployments"}, &equivalent, ""},
		{[]string{"UPDATE apps v1beta1 deployments"}, &equivalent, ""},
	} {
		criteria := Criteria{MatchPolicy: test.policy}
		for _, text := range test.rules {
			criteria.Rules = append(criteria.Rules, rule(text))
		}
		a := write("apps/v1/deployments", func(a *admission.Attributes) { a.Versions = versions })
		as, ok, err := Compile(criteria).Match(t.Context(), NewRequest(a, nil))
		got := ""
		if ok {
			got = as.Kind.String()
		}
		if got != test.want || err != nil {
			t.Errorf("%v: %q %v, want %q", test.rules, got, err, test.want)
		}
	}
	criteria := Criteria{
		MatchPolicy: &equivalent, Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("* apps * *")},
		Exclude: []admissionregistrationv1.NamedRuleWithOperations{rule("* extensions * deployments")},
	}
	a := write("apps/v1/deployments", func(a *admission.Attributes) { a.Versions = versions })
	if _, ok, _ := Compile(criteria).Match(t.Context(), NewRequest(a, nil)); ok {
		t.Error("an excluded equivalent resource matches")
	}
}

func TestSelectors(t *testing.T) {
	selects := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	labelled := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}
	objects := func(obj, old kind.Object) func(*admission.Attributes) {
		return func(a *admission.Attributes) {
			a.Object, a.Old = nil, nil
			if obj != nil {
				a.Object = obj
			}
			if old != nil {
				a.Old = old
			}
		}
	}
	for _, test := range []struct {
		name     string
		criteria Criteria
		write    *admission.Attributes
		want     bool
		err      string
		reads    int
	}{
		{"object", Criteria{ObjectSelector: selects}, write("/v1/things", objects(labelled, nil)), true, "", 0},
		{"no labels", Criteria{ObjectSelector: selects}, write("/v1/things"), false, "", 0},
		{"old object", Criteria{ObjectSelector: selects}, write("/v1/things", objects(&corev1.ConfigMap{}, labelled)), true, "", 0},
		{"deletion", Criteria{ObjectSelector: selects}, write("/v1/things", on(admission.Delete), objects(nil, labelled)), true, "", 0},
		{"connection without metadata", Criteria{ObjectSelector: selects}, write("/v1/things", func(a *admission.Attributes) { a.Object = &corev1.PodExecOptions{} }), false, "", 0},
		{"namespace", Criteria{NamespaceSelector: selects}, write("/v1/things"), true, "", 1},
		{"other namespace", Criteria{NamespaceSelector: selects}, write("/v1/things", in("other")), false, "", 1},
		{"missing namespace", Criteria{NamespaceSelector: selects}, write("/v1/things", in("gone")), false, `namespaces "gone" not found`, 1},
		{"no namespace", Criteria{NamespaceSelector: selects}, write("/v1/things", in("")), true, "", 0},
		{"new namespace", Criteria{NamespaceSelector: selects}, write("/v1/namespaces", in("it"), objects(labelled, nil)), true, "", 0},
		{"new namespace without labels", Criteria{NamespaceSelector: selects}, write("/v1/namespaces", in("team")), false, "", 0},
		{"deleted namespace", Criteria{NamespaceSelector: selects}, write("/v1/namespaces", on(admission.Delete), objects(nil, &corev1.ConfigMap{})), true, "", 1},
		{"finalized namespace", Criteria{NamespaceSelector: selects}, write("/v1/namespaces", on(admission.Update), sub("finalize")), true, "", 1},
		{"no rule matches", Criteria{NamespaceSelector: selects}, write("/v2/things", in("gone")), false, "", 0},
		{"invalid selector", Criteria{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "!"}}}, write("/v1/things"), false, "Internal error occurred", 0},
	} {
		reader := &namespaceReader{labels: map[string]map[string]string{"team": {"a": "b"}, "other": {}}}
		test.criteria.Rules = []admissionregistrationv1.NamedRuleWithOperations{rule("* * v1 */*")}
		m, r := Compile(test.criteria), NewRequest(test.write, reader)
		for range 2 { // the second time nothing is read again
			_, got, err := m.Match(t.Context(), r)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %t %v, want %t %s", test.name, got, err, test.want, test.err)
			}
		}
		if reader.reads != test.reads {
			t.Errorf("%s: %d reads, want %d", test.name, reader.reads, test.reads)
		}
	}
	m := Compile(Criteria{NamespaceSelector: selects, Rules: []admissionregistrationv1.NamedRuleWithOperations{rule("* * * *")}})
	_, _, err := m.Match(t.Context(), NewRequest(write("/v1/things"), &namespaceReader{broken: errors.New("no store")}))
	if !apierrors.IsInternalError(err) {
		t.Errorf("a failed read: %v", err)
	}
}

// TestIndex: candidates keep their order, and a write that no rule is for has none.
func TestIndex(t *testing.T) {
	var items []string
	matchers := map[string]*Matcher{}
	for _, text := range []string{"CREATE - v1 pods", "* * * */*", "UPDATE apps v1 deployments/scale,replicasets", "CREATE,DELETE - v1 pods/exec"} {
		items = append(items, text)
		matchers[text] = Compile(Criteria{Rules: []admissionregistrationv1.NamedRuleWithOperations{rule(text)}})
	}
	find := func(items []string, a *admission.Attributes) []string {
		return NewIndex(items, func(text string) *Matcher { return matchers[text] }).Candidates(a)
	}
	for _, test := range []struct {
		write *admission.Attributes
		want  []int
	}{
		{write("/v1/pods"), []int{0, 1, 3}},
		{write("/v1/pods", on(admission.Delete)), []int{1, 3}},
		{write("apps/v1/deployments", on(admission.Update)), []int{1, 2}},
		{write("/v1/secrets"), []int{1}},
	} {
		var want []string
		for _, i := range test.want {
			want = append(want, items[i])
		}
		if got := find(items, test.write); !slices.Equal(got, want) {
			t.Errorf("%v %v: %v, want %v", test.write.Operation, test.write.Resource, got, want)
		}
	}
	if got := find(items[:1], write("/v1/secrets")); len(got) != 0 {
		t.Errorf("candidates %v for secrets", got)
	}
	index := NewIndex(items[:1], func(text string) *Matcher { return matchers[text] })
	a := write("/v1/secrets")
	if n := testing.AllocsPerRun(100, func() { index.Candidates(a) }); n != 0 {
		t.Errorf("%v allocations for a write that no webhook is for", n)
	}
}

func TestExempt(t *testing.T) {
	for resource, want := range map[string]bool{
		"admissionregistration.k8s.io/v1/validatingwebhookconfigurations": true, "authentication.k8s.io/v1/tokenreviews": true,
		"authorization.k8s.io/v1/subjectaccessreviews": true, "/v1/pods": false,
	} {
		a := write(resource, func(a *admission.Attributes) {
			if a.Resource.Group == "admissionregistration.k8s.io" {
				a.Kind.Kind = "ValidatingWebhookConfiguration"
			}
		})
		if got := IsConfiguration(a) || IsReview(a); got != want {
			t.Errorf("%s is exempt: %t", resource, got)
		}
	}
}
