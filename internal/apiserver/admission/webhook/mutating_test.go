package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/jsonpatch"
)

func data(t testing.TB, a *recorded) string {
	t.Helper()
	return fmt.Sprint(a.Object.(*corev1.ConfigMap).Data)
}

// TestMutating: what the patches of a mutating webhook do to the object.
func TestMutating(t *testing.T) {
	tooMany := "[" + strings.Repeat(`{"op":"add","path":"/data/b","value":"2"},`, jsonpatch.MaxOperations) + `{"op":"add","path":"/data/b","value":"2"}]`
	for name, test := range map[string]struct {
		answer answer
		change func(*definition)
		write  func(*admission.Attributes)
		data   string
		err    string
		// ignored: failurePolicy Ignore applies to the error.
		ignored     bool
		annotations string
	}{
		"no patch": {answer: allow, data: "map[a:1]", annotations: "mutation.webhook.admission.k8s.io/round_0_index_0"},
		"patch, then defaults": {answer: patching(`[{"op":"add","path":"/data/b","value":"2"}]`), data: "map[a:1 b:2 default:set]",
			annotations: "mutation.webhook.admission.k8s.io/round_0_index_0 patch.webhook.admission.k8s.io/round_0_index_0"},
		"empty patch": {answer: patching(`[]`), data: "map[a:1]", annotations: "mutation.webhook.admission.k8s.io/round_0_index_0"},
		"another version": {answer: patching(`[{"op":"test","path":"/apiVersion","value":"v2"},{"op":"remove","path":"/data/a"}]`),
			change: func(d *definition) { d.Rules[0].APIVersions = []string{"v2"} }, data: "map[default:set]",
			annotations: "mutation.webhook.admission.k8s.io/round_0_index_0 patch.webhook.admission.k8s.io/round_0_index_0"},
		"v1beta1 without type": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[{"op":"remove","path":"/data/a"}]`)}),
			change: func(d *definition) { d.AdmissionReviewVersions = []string{"v1beta1"} }, data: "map[default:set]",
			annotations: "mutation.webhook.admission.k8s.io/round_0_index_0 patch.webhook.admission.k8s.io/round_0_index_0"},
		"denied": {answer: deny(&metav1.Status{Message: "no"}), err: `admission webhook "a" denied the request: no`},
		"patch without type": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[]`)}),
			err: "webhook returned response.patch but not response.patchType", ignored: true},
		"type without patch": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}),
			err: "webhook returned response.patchType but not response.patch", ignored: true},
		"empty type": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[]`), PatchType: ptr.To(admissionv1.PatchType(""))}),
			err: "webhook returned invalid response.patchType of", ignored: true},
		"other type": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[{"op":"remove","path":"/data/a"}]`), PatchType: ptr.To(admissionv1.PatchType("Merge"))}),
			err: `unsupported patch type "Merge"`, ignored: true},
		"garbage":                   {answer: patching(`{}`), err: "received undecodable patch in webhook response", ignored: true},
		"too many operations":       {answer: patching(tooMany), err: "The allowed maximum operations in a JSON patch is 10000, got 10001", ignored: true},
		"patch that does not apply": {answer: patching(`[{"op":"remove","path":"/nothing"}]`), err: "Internal error occurred"},
		"another kind":              {answer: patching(`[{"op":"replace","path":"/kind","value":"Secret"}]`), err: "the object was changed from"},
		"a wrong type":              {answer: patching(`[{"op":"replace","path":"/data","value":7}]`), err: "Internal error occurred: json: cannot unmarshal"},
		"a huge object": {answer: patching(`[{"op":"add","path":"/data/b","value":"` + strings.Repeat("x", 2<<20) + `"}]`),
			err: `admission webhook "a" made the object too large`},
		"an object that doubles": {answer: patching("[" + strings.Repeat(`{"op":"copy","from":"/data","path":"/data/more"},`, 30) + `{"op":"test","path":"/kind","value":"ConfigMap"}]`),
			write: func(a *admission.Attributes) {
				a.Object.(*corev1.ConfigMap).Data["x"] = strings.Repeat("x", 1000)
			}, err: "Internal error occurred"},
		"patch of a deletion": {answer: patching(`[{"op":"remove","path":"/data"}]`), write: deleting,
			err: `admission webhook "a" attempted to modify the object, which is not supported for this operation`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				h, w := newHooks(t), &world{}
				w.set(mutating("c", h.hook("a", test.answer, func(d *definition) {
					if test.change != nil {
						test.change(d)
					}
					if open {
						failOpen(d)
					}
				})))
				a := writing()
				if test.write != nil {
					test.write(a.Attributes)
				}
				err := try(t.Context(), NewMutating(newOptions(w)), a.Attributes)
				if open && test.ignored {
					if err != nil || keys(a.annotations) != "failed-open.mutation.webhook.admission.k8s.io/round_0_index_0 mutation.webhook.admission.k8s.io/round_0_index_0" {
						t.Errorf("open: %v, %v", err, a.annotations)
					}
					continue
				}
				if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("open %t: %.300v, want %s", open, err, test.err)
				}
				if err == nil && (data(t, a) != test.data || keys(a.annotations) != test.annotations) {
					t.Errorf("open %t: data %s, want %s; annotations %s", open, data(t, a), test.data, keys(a.annotations))
				}
			}
		})
	}
}

func TestMutationAnnotations(t *testing.T) {
	h, w := newHooks(t), &world{}
	w.set(mutating("config", h.hook("a", patching(`[{"op":"add","path":"/data/b","value":"2"}]`))))
	a := writing()
	if err := try(t.Context(), NewMutating(newOptions(w)), a.Attributes); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"mutation.webhook.admission.k8s.io/round_0_index_0": `{"configuration":"config","webhook":"a","mutated":true}`,
		"patch.webhook.admission.k8s.io/round_0_index_0":    `{"configuration":"config","webhook":"a","patch":[{"op":"add","path":"/data/b","value":"2"}],"patchType":"JSONPatch"}`,
	} {
		if got := a.annotations[key]; got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// TestMutatingOrder: webhooks are called by the names of their configurations and see the changes of those before. Those that want it are
// called again after a later change, once.
func TestMutatingOrder(t *testing.T) {
	add := func(key string) answer {
		return patching(`[{"op":"add","path":"/data/` + key + `","value":"2"}]`)
	}
	seen := map[string]string{}
	recordObject := func(name string, then answer) answer {
		return func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			seen[name] = string(r.Object.Raw)
			return then(r)
		}
	}
	changed := admission.Plugin(inTree{})
	for name, test := range map[string]struct {
		definitions func(h *hooks) []definition
		plugin      admission.Plugin
		want        string
	}{
		"never":            {func(h *hooks) []definition { return []definition{h.hook("a", allow), h.hook("b", add("b"))} }, nil, "a b"},
		"if needed":        {func(h *hooks) []definition { return []definition{h.hook("a", allow, ifNeeded), h.hook("b", add("b"))} }, nil, "a b a"},
		"not after itself": {func(h *hooks) []definition { return []definition{h.hook("a", allow), h.hook("b", add("b"), ifNeeded)} }, nil, "a b"},
		"nothing changed":  {func(h *hooks) []definition { return []definition{h.hook("a", allow, ifNeeded), h.hook("b", allow)} }, nil, "a b"},
		"both": {func(h *hooks) []definition {
			return []definition{h.hook("a", add("a"), ifNeeded), h.hook("b", add("b"), ifNeeded)}
		}, nil, "a b a"},
		"changed by the server": {func(h *hooks) []definition { return []definition{h.hook("a", add("a"), ifNeeded)} }, changed, "a a"},
		"first does not match": {func(h *hooks) []definition {
			return []definition{h.hook("a", allow, ifNeeded, func(d *definition) {
				d.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"b": "2"}}
			}), h.hook("b", patching(`[{"op":"add","path":"/metadata/labels","value":{"b":"2"}}]`))}
		}, nil, "b"},
	} {
		h, w := newHooks(t), &world{}
		w.set(mutating("c", test.definitions(h)...))
		p := NewMutating(newOptions(w))
		chain := admission.Chain{p}
		if test.plugin != nil {
			chain = admission.Chain{test.plugin, p}
		}
		a := writing()
		if err := chain.Mutate(t.Context(), a.Attributes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := h.calls(); got != test.want {
			t.Errorf("%s: called %s, want %s", name, got, test.want)
		}
	}
	h, w := newHooks(t), &world{}
	w.set(mutating("a", h.hook("first", recordObject("first", add("first")))), mutating("b", h.hook("second", recordObject("second", allow))))
	a := writing()
	if err := try(t.Context(), NewMutating(newOptions(w)), a.Attributes); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(seen["first"], "first") || !strings.Contains(seen["second"], `"first":"2"`) || !strings.Contains(seen["second"], `"default":"set"`) {
		t.Errorf("seen %v", seen)
	}
}

// inTree is a plugin that changes the object in the second run only.
type inTree struct{ admission.Mutator }

func (inTree) Name() string                         { return "inTree" }
func (inTree) Handles(a *admission.Attributes) bool { return a.IsReinvocation() }

func (inTree) Mutate(_ context.Context, a *admission.Attributes) error {
	a.Object.(*corev1.ConfigMap).Data["server"] = "changed"
	return nil
}
