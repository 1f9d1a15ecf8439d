package webhook

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// configurationKind validates that webhooks have rules.
var configurationKind = kind.Of(kind.Definition[*admissionregistrationv1.ValidatingWebhookConfiguration]{
	GVK:    admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"),
	Plural: "validatingwebhookconfigurations", List: &admissionregistrationv1.ValidatingWebhookConfigurationList{},
	Default: func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			kind.SetDefault(&c.Webhooks[i].MatchPolicy, admissionregistrationv1.Equivalent)
		}
	},
	Validate: func(_ *kind.Request, c, _ *admissionregistrationv1.ValidatingWebhookConfiguration) (errs field.ErrorList) {
		for i := range c.Webhooks {
			if len(c.Webhooks[i].Rules) == 0 {
				errs = append(errs, field.Required(field.NewPath("webhooks").Index(i).Child("rules"), ""))
			}
		}
		return errs
	},
})

// TestManifests: configurations in files are in force before those of the API, also for configurations of the API, and follow the files.
func TestManifests(t *testing.T) {
	h, w, dir := newHooks(t), &world{}, t.TempDir()
	w.set(validating("c", h.hook("api", allow)))
	h.answers["file"] = allow
	document := func(name, change string) string {
		return strings.ReplaceAll("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: "+name+"}\nwebhooks:\n- name: file\n"+
			"  clientConfig: {url: '"+h.server.URL+"/file', caBundle: BUNDLE}\n  sideEffects: None\n  admissionReviewVersions: [v1]\n"+
			"  rules: [{operations: ['*'], apiGroups: ['*'], apiVersions: ['*'], resources: ['*']}]\n", "BUNDLE", base64.StdEncoding.EncodeToString(h.server.CABundle)) + change
	}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options := newOptions(w)
	options.Kind = configurationKind
	p := NewValidating(options)
	write(document("one.static.k8s.io", ""))
	if err := p.Configure(&admission.WebhookConfig{StaticManifestsDir: dir}); err != nil {
		t.Fatal(err)
	}
	call := func(want string, change ...func(*admission.Attributes)) {
		t.Helper()
		if err := try(t.Context(), p, writing(change...).Attributes); err != nil {
			t.Error(err)
		}
		got := strings.Fields(h.calls())
		if len(got) == 2 && got[0] == "api" { // they are called at the same time
			got[0], got[1] = got[1], got[0]
		}
		if strings.Join(got, " ") != want {
			t.Errorf("called %v, want %s", got, want)
		}
	}
	configuration := func(a *admission.Attributes) {
		a.Kind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"}
	}
	call("file api")
	call("file", configuration)
	write("--- \n" + document("one.static.k8s.io", "") + "---\napiVersion: v1\nkind: List\nitems: []\n")
	if failed := p.reload(""); failed != "" {
		t.Error(failed)
	}
	call("file api")
	for name, test := range map[string]struct{ content, want string }{
		"other name":   {document("one", ""), `"one" in file`},
		"no name":      {document("''", ""), "must have a name"},
		"twice":        {document("one.static.k8s.io", "---\n"+document("one.static.k8s.io", "")), `duplicate name "one.static.k8s.io"`},
		"unknown":      {document("one.static.k8s.io", "  unknown: 1\n"), `unknown field "unknown"`},
		"invalid":      {strings.Replace(document("one.static.k8s.io", ""), "  rules:", "  timeoutSeconds: 3 #", 1), "webhooks[0].rules: Required value"},
		"service":      {strings.Replace(document("one.static.k8s.io", ""), "url: '", "service: {name: a, namespace: b}, url: '", 1), "clientConfig.service is not supported for static manifests"},
		"no url":       {strings.Replace(document("one.static.k8s.io", ""), "url: '"+h.server.URL+"/file', ", "", 1), "clientConfig.url is required for static manifests"},
		"another kind": {"apiVersion: v1\nkind: Pod\n", "unsupported resource type /v1, Kind=Pod"},
		"no YAML":      {"{", "error loading"},
	} {
		write(test.content)
		if failed := p.reload(""); !strings.Contains(failed, test.want) {
			t.Errorf("%s: %s", name, failed)
		}
		call("file api") // what was valid last stays in force
	}
	count := func(status string) float64 {
		return testutil.ToFloat64(p.Metrics.reloads.WithLabelValues(status, "ValidatingAdmissionWebhook", p.Metrics.serverHash))
	}
	if success, failure := count("success"), count("failure"); success != 2 || failure != 9 {
		t.Errorf("%v reloads and %v failures counted", success, failure)
	}
	write("")
	if failed := p.reload(""); failed != "" {
		t.Error(failed)
	}
	call("api")
	call("", configuration)
	if err := p.Configure(&admission.WebhookConfig{StaticManifestsDir: "relative"}); err == nil {
		t.Error("a relative path")
	}
}
