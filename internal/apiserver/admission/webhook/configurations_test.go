package webhook

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
)

// TestConfigurations: a configuration is in force with the next write, is compiled when it changes only, and its connections are closed
// with it.
func TestConfigurations(t *testing.T) {
	h, w := newHooks(t), &world{}
	p := NewValidating(newOptions(w))
	write := func(want string) {
		t.Helper()
		if err := try(t.Context(), p, writing().Attributes); err != nil {
			t.Fatal(err)
		}
		if got := h.calls(); got != want {
			t.Errorf("called %q, want %q", got, want)
		}
	}
	write("")
	first, second := validating("first", h.hook("a", allow)), validating("second", h.hook("a", allow))
	w.set(first, second)
	for range 3 {
		write("a a")
	}
	if w.lists != 2 {
		t.Errorf("configurations were read %d times", w.lists)
	}
	state, _ := p.loader.Current()
	kept := state.byName["second"]
	w.set(second)
	write("a")
	if state, _ = p.loader.Current(); state.byName["second"] != kept || state.byName["first"] != nil {
		t.Error("an unchanged configuration was compiled again, or a deleted one is kept")
	}
	w.set()
	write("")
	waitFor(t, func() bool { return h.server.Open() == 0 })
}

// TestUnconcerned: a write that no webhook is for costs no allocation, and configurations themselves and reviews are never sent.
func TestUnconcerned(t *testing.T) {
	h, w := newHooks(t), &world{}
	everything := h.hook("all", allow)
	pods := h.hook("pods", allow, func(d *definition) { d.Rules[0].Resources = []string{"pods"} })
	p := NewMutating(newOptions(w))
	w.set(mutating("c", pods))
	a := writing().Attributes
	if err := try(t.Context(), p, a); err != nil || p.Handles(a) {
		t.Errorf("a ConfigMap concerns a webhook for pods, %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { p.Handles(a) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	w.set(mutating("c", everything))
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingAdmissionPolicyBinding"} {
		if p.Handles(writing(func(a *admission.Attributes) {
			a.Kind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind}
		}).Attributes) {
			t.Errorf("a webhook is called for %s", kind)
		}
	}
	if p.Handles(writing(func(a *admission.Attributes) { a.Resource.Group = "authentication.k8s.io" }).Attributes) {
		t.Error("a webhook is called for reviews")
	}
}

// TestSelectors: the namespace and the object decide too. A namespace that does not exist is an error only for webhooks that apply.
func TestSelectors(t *testing.T) {
	selects := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	for name, test := range map[string]struct {
		change func(*definition)
		write  func(*admission.Attributes)
		want   string
		err    string
	}{
		"namespace":         {change: func(d *definition) { d.NamespaceSelector = selects("team", "yes") }, want: "a"},
		"other namespace":   {change: func(d *definition) { d.NamespaceSelector = selects("team", "no") }},
		"object":            {change: func(d *definition) { d.ObjectSelector = selects("x", "y") }},
		"missing namespace": {change: func(d *definition) { d.NamespaceSelector = selects("team", "yes") }, write: func(a *admission.Attributes) { a.Namespace = "gone" }, err: `namespaces "gone" not found`},
		"exact, other version": {change: func(d *definition) {
			d.MatchPolicy, d.Rules[0].APIVersions = ptr.To(admissionregistrationv1.Exact), []string{"v2"}
		}},
	} {
		h, w := newHooks(t), &world{}
		w.set(validating("c", h.hook("a", allow, test.change)))
		a := writing()
		if test.write != nil {
			test.write(a.Attributes)
		}
		err := try(t.Context(), NewValidating(newOptions(w)), a.Attributes)
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || h.calls() != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timed out")
		}
	}
}
