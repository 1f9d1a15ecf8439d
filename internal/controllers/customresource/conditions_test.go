package customresource

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = metav1.NewTime(time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC))

// newDefinition returns a definition of a plural, as it is created.
func newDefinition(plural string, change ...func(*definition)) *definition {
	kind := strings.ToUpper(plural[:1]) + plural[1:]
	crd := &definition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com", Generation: 1, ResourceVersion: "1"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: plural + "one", Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
		},
	}
	for _, c := range change {
		c(crd)
	}
	return crd
}

// accepted gives a definition its names, some time ago.
func accepted(ago time.Duration) func(*definition) {
	return func(crd *definition) {
		crd.Status.AcceptedNames = crd.Spec.Names
		at := metav1.NewTime(now.Add(-ago))
		crd.Status.Conditions = []condition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found", LastTransitionTime: at},
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "Installing", LastTransitionTime: at},
		}
	}
}

func describe(s *status) []string {
	var all []string
	for _, c := range s.Conditions {
		all = append(all, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(all)
	return all
}

func TestReconcile(t *testing.T) {
	const (
		noConflicts = "NamesAccepted=True NoConflicts: no conflicts found"
		installing  = "Established=False Installing: the initial names have been accepted"
		established = "Established=True InitialNamesAccepted: the initial names have been accepted"
	)
	invalidCA := func(crd *definition) {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: []byte("x")}}}
	}
	protected := func(annotation string) func(*definition) {
		return func(crd *definition) {
			crd.Spec.Group = "example.k8s.io"
			crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: annotation}
		}
	}
	for _, test := range []struct {
		name    string
		view    view
		want    []string
		requeue time.Duration
	}{
		{name: "new", view: view{crd: newDefinition("foos")}, want: []string{installing, noConflicts}},
		{name: "conflicts", view: view{crd: newDefinition("foos", func(crd *definition) { crd.Spec.Names.ShortNames = []string{"a", "b", "c"} }), conflicts: map[name]bool{
			{"example.com", false, "a"}: true, {"example.com", false, "c"}: true}},
			want: []string{"Established=False NotAccepted: not all names are accepted", `NamesAccepted=False ShortNamesConflict: ["a" is already in use, "c" is already in use]`}},
		{name: "the last conflict is reported", view: view{crd: newDefinition("foos"), conflicts: map[name]bool{
			{"example.com", false, "foos"}: true, {"example.com", true, "FoosList"}: true}},
			want: []string{"Established=False NotAccepted: not all names are accepted", `NamesAccepted=False ListKindConflict: "FoosList" is already in use`}},
		{name: "not served yet", view: view{crd: newDefinition("foos", accepted(time.Hour))}, want: []string{"Established=False Installing: ", noConflicts}},
		{name: "served", view: view{crd: newDefinition("foos", accepted(0)), served: true}, want: []string{established, noConflicts}},
		{name: "other servers", view: view{crd: newDefinition("foos", accepted(2*time.Second)), served: true, delay: 5 * time.Second}, want: []string{"Established=False Installing: ", noConflicts}, requeue: 4 * time.Second},
		{name: "other servers serve it too", view: view{crd: newDefinition("foos", accepted(6*time.Second)), served: true, delay: 5 * time.Second}, want: []string{established, noConflicts}},
		{name: "cannot be served", view: view{crd: newDefinition("foos", accepted(0)), servingErr: errors.New("no converter")}, want: []string{"Established=False Installing: no converter", noConflicts}},
		{name: "invalid CA", view: view{crd: newDefinition("foos", accepted(0), invalidCA), served: true}, want: []string{"Established=False InvalidCABundle: The conversion webhook CABundle is invalid", noConflicts}},
		{name: "not structural", view: view{unchecked: true, crd: newDefinition("foos", accepted(0), func(crd *definition) {
			crd.Spec.PreserveUnknownFields = true
			crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Type = ""
		}), served: true}, want: []string{established, noConflicts, `NonStructuralSchema=True Violations: [spec.preserveUnknownFields: Invalid value: true: must be false, ` +
			`spec.versions[0].schema.openAPIV3Schema.type: Required value: must not be empty at the root]`}},
		{name: "structural again", view: view{unchecked: true, crd: newDefinition("foos", accepted(0), func(crd *definition) {
			crd.Status.Conditions = append(crd.Status.Conditions, condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue})
		}), served: true}, want: []string{established, noConflicts}},
		{name: "approved", view: view{unchecked: true, crd: newDefinition("foos", protected("https://example.com/1"))}, want: []string{installing,
			"KubernetesAPIApprovalPolicyConformant=True ApprovedAnnotation: approved in https://example.com/1", noConflicts}},
		{name: "not approved", view: view{unchecked: true, crd: newDefinition("foos", protected("unapproved, just a test"))}, want: []string{installing,
			`KubernetesAPIApprovalPolicyConformant=False UnapprovedAnnotation: not approved: "unapproved, just a test"`, noConflicts}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.view.now = now
			before := test.view.crd.DeepCopy()
			got, requeue := reconcile(test.view)
			if described := describe(&got); !slices.Equal(described, test.want) || requeue != test.requeue {
				t.Errorf("%q, again after %s", described, requeue)
			}
			if test.view.crd.String() != before.String() {
				t.Error("the definition was changed")
			}
		})
	}
}

// A conflict keeps the names that were accepted, and an established definition stays established.
func TestRename(t *testing.T) {
	crd := newDefinition("foos", accepted(time.Hour))
	find(&crd.Status, apiextensionsv1.Established).Status = apiextensionsv1.ConditionTrue
	crd.Spec.Names.ListKind, crd.Spec.Names.Singular, crd.Spec.Names.Categories = "FooList", "taken", []string{"all"}
	got, _ := reconcile(view{crd: crd, now: now, conflicts: map[name]bool{{"example.com", false, "taken"}: true}})
	if got.AcceptedNames.ListKind != "FooList" || got.AcceptedNames.Singular != "foosone" || len(got.AcceptedNames.Categories) != 1 || !isTrue(&got, apiextensionsv1.Established) || isTrue(&got, apiextensionsv1.NamesAccepted) {
		t.Errorf("%+v", got)
	}
}

func TestNames(t *testing.T) {
	n := newNames()
	conflicts := func(crd *definition) map[name]bool {
		t.Helper()
		found, next := n.reserve(crd)
		if next = append(next, n.release(crd.Name)...); len(next) > 0 {
			t.Errorf("%s: %v can have a name", crd.Name, next)
		}
		return found
	}
	first, second := newDefinition("foos"), newDefinition("bars", func(crd *definition) { crd.Spec.Names.Kind = "Foos" })
	n.record(first)
	n.record(second)
	if got := conflicts(first); len(got) != 0 {
		t.Fatalf("conflicts %v", got)
	}
	written := first.DeepCopy()
	written.ResourceVersion, written.Status.AcceptedNames = "10", first.Spec.Names
	n.record(written)
	if got := conflicts(first); len(got) != 0 {
		t.Errorf("a definition conflicts with itself: %v", got)
	}
	stale := first.DeepCopy()
	stale.ResourceVersion = "9"
	n.record(stale) // the informer is behind the write
	if got := conflicts(second); len(got) != 1 || !got[name{"example.com", true, "Foos"}] {
		t.Errorf("conflicts %v", got)
	}
	other := second.DeepCopy()
	other.Name, other.Spec.Group = "bars.other.example.com", "other.example.com"
	if got := conflicts(other); len(got) != 0 {
		t.Errorf("another group: %v", got)
	}
	written.ResourceVersion, written.Status.AcceptedNames.Kind = "11", "Renamed"
	if next := n.record(written); !slices.Equal(next, []string{second.Name}) {
		t.Errorf("a name is free, but %v can have it", next)
	}
	if got := conflicts(second); len(got) != 0 {
		t.Errorf("conflicts %v", got)
	}
	for _, crd := range []*definition{first, second, other} {
		n.remove(crd.Name)
	}
	if len(n.used)+len(n.waiting)+len(n.held) != 0 {
		t.Errorf("left over: %+v", n)
	}
}

// A name that nobody uses any more is for one of those that wait for it, until one has taken it. Nobody is woken while it is in use.
func TestWaitingForNames(t *testing.T) {
	n := newNames()
	requests := func(plural string, short ...string) *definition {
		crd := newDefinition(plural, func(crd *definition) { crd.Spec.Names.ShortNames = short })
		n.record(crd)
		return crd
	}
	accept := func(crd *definition, resourceVersion string, short ...string) []string {
		crd = crd.DeepCopy()
		crd.ResourceVersion, crd.Status.AcceptedNames = resourceVersion, crd.Spec.Names
		crd.Status.AcceptedNames.ShortNames = short
		return n.record(crd)
	}
	expect := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v can have a name, want %v", what, got, want)
		}
	}
	user := requests("users", "x", "y")
	n.reserve(user)
	waits := map[string]*definition{}
	for _, plural := range []string{"a", "b", "c"} {
		crd := requests(plural, "x")
		waits[crd.Name] = crd
		if found, _ := n.reserve(crd); len(found) != 1 { // the name is only reserved
			t.Errorf("%s: conflicts %v", plural, found)
		}
		expect("release of "+plural, n.release(crd.Name), nil)
	}
	expect("acceptance", accept(user, "2", "x", "y"), nil)
	expect("release of the user", n.release(user.Name), nil)
	expect("change of another name", accept(user, "3", "x"), nil)
	// One after the other is the next, and is deleted, no longer requests the name, or cannot be written.
	next := n.remove(user.Name)
	if len(next) != 1 {
		t.Fatalf("%v can have the name", next)
	}
	deleted := waits[next[0]]
	if next = n.remove(deleted.Name); len(next) != 1 || next[0] == deleted.Name {
		t.Fatalf("%v can have the name of one that was deleted", next)
	}
	renamed := waits[next[0]]
	renamed.Spec.Names.ShortNames = nil
	found, next := n.reserve(renamed)
	if len(found) != 0 || len(next) != 1 || next[0] == renamed.Name {
		t.Fatalf("conflicts %v, %v can have the name of one that does not want it", found, next)
	}
	last := waits[next[0]]
	if found, next := n.reserve(last); len(found)+len(next) != 0 {
		t.Errorf("the last one: conflicts %v, next %v", found, next)
	}
	late := requests("late", "x")
	n.reserve(late)
	n.release(late.Name)
	expect("failed write", n.release(last.Name), []string{late.Name})
}

// After a restart the conditions are computed for those definitions that the last process may have left with old ones.
func TestConditionsAfterRestart(t *testing.T) {
	approved := func(annotation string) func(*definition) {
		return func(crd *definition) {
			crd.Spec.Group = "example.k8s.io"
			crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: annotation}
		}
	}
	with := func(c condition) func(*definition) {
		return func(crd *definition) { setCondition(&crd.Status, c, now) }
	}
	established := with(condition{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue})
	conformant := with(condition{
		Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionTrue, Reason: "ApprovedAnnotation", Message: "approved in https://example.com/1",
	})
	for name, test := range map[string]struct {
		changes []func(*definition)
		checked bool
	}{
		"established":                {[]func(*definition){established}, true},
		"not established":            {nil, false},
		"approved":                   {[]func(*definition){established, approved("https://example.com/1"), conformant}, true},
		"approved without condition": {[]func(*definition){established, approved("https://example.com/1")}, false},
		"approved by another change": {[]func(*definition){established, approved("https://example.com/2"), conformant}, false},
		"not approved any more":      {[]func(*definition){established, approved("unapproved"), conformant}, false},
		"not structural":             {[]func(*definition){established, with(condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue})}, false},
	} {
		c := &conditions{names: newNames(), checked: map[string]checked{}}
		crd := trimmed(newDefinition("foos", test.changes...))
		c.record(crd)
		if got := c.checked[crd.Name] == checkedOf(crd); got != test.checked {
			t.Errorf("%s: checked %v, want %v", name, got, test.checked)
		}
	}
}
