package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/webhook"
	"skiff/internal/webhook/webhooktest"
)

// world has configurations and the namespace "team".
type world struct {
	kind.Client
	mu       sync.Mutex
	configs  []kind.Object
	revision int64
	lists    int
}

func (w *world) Get(_ context.Context, resource schema.GroupResource, _, name string) (kind.Object, error) {
	if name != "team" {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "yes"}}}, nil
}

// worldObjects are the configurations as the server's cache has them.
type worldObjects struct{ *world }

func (w worldObjects) List(resource schema.GroupResource, _ string, _ labels.Selector) (objs []kind.Object, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	for _, obj := range w.configs {
		_, mutating := obj.(*admissionregistrationv1.MutatingWebhookConfiguration)
		if mutating == (resource.Resource == "mutatingwebhookconfigurations") {
			objs = append(objs, obj)
		}
	}
	return objs, nil
}

// set replaces the configurations.
func (w *world) set(configs ...kind.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision++
	for _, obj := range configs {
		if obj.GetResourceVersion() == "" {
			obj.SetResourceVersion(fmt.Sprint(w.revision))
		}
	}
	w.configs = configs
}

func (w worldObjects) LastChange(schema.GroupResource) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revision
}

// versions serves ConfigMaps as v1 and, with the same fields, as v2. limit bounds the size of objects.
type versions struct{ limit int }

func (versions) Equivalents() []admission.Equivalent {
	return []admission.Equivalent{
		{Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}},
		{Resource: schema.GroupVersionResource{Version: "v2", Resource: "configmaps"}, Kind: schema.GroupVersionKind{Version: "v2", Kind: "ConfigMap"}},
	}
}

func (versions) Convert(obj runtime.Object, _ schema.GroupVersionKind) (runtime.Object, error) {
	return obj, nil
}

func (versions) Encode(obj runtime.Object, gvk schema.GroupVersionKind) ([]byte, error) {
	typed := obj.DeepCopyObject()
	typed.GetObjectKind().SetGroupVersionKind(gvk)
	return json.Marshal(typed)
}

func (v versions) Decode(data []byte, gvk schema.GroupVersionKind) (runtime.Object, error) {
	if v.limit > 0 && len(data) > v.limit {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", v.limit))
	}
	obj := &corev1.ConfigMap{}
	if err := json.Unmarshal(data, obj); err != nil {
		return nil, err
	}
	if obj.GroupVersionKind() != gvk {
		return nil, fmt.Errorf("the object was changed from %s to %s", gvk, obj.GroupVersionKind())
	}
	obj.TypeMeta = metav1.TypeMeta{}
	if obj.Data["default"] == "" {
		if obj.Data == nil {
			obj.Data = map[string]string{}
		}
		obj.Data["default"] = "set"
	}
	return obj, nil
}

// answer is what a webhook responds to a request.
type answer func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

func allow(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
}

// patching allows with a patch.
func patching(patch string) answer {
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
	}
}

// hooks is a webhook server whose paths are webhooks. It records the requests.
type hooks struct {
	t      testing.TB
	server *webhooktest.Server

	mu       sync.Mutex
	answers  map[string]answer
	raw      map[string]http.HandlerFunc
	requests []*admissionv1.AdmissionReview
	called   []string
}

func newHooks(t testing.TB) *hooks {
	h := &hooks{t: t, answers: map[string]answer{}, raw: map[string]http.HandlerFunc{}}
	h.server = webhooktest.NewServer(webhooktest.NewCA(t), h)
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	body, _ := io.ReadAll(r.Body)
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, review); err != nil {
		h.t.Errorf("%s: %v", body, err)
	}
	h.mu.Lock()
	h.requests, h.called = append(h.requests, review), append(h.called, name)
	raw, answer := h.raw[name], h.answers[name]
	h.mu.Unlock()
	if raw != nil {
		raw(w, r)
		return
	}
	response := answer(review.Request).DeepCopy()
	if response != nil && response.UID == "" {
		response.UID = review.Request.UID
	}
	_ = json.NewEncoder(w).Encode(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

// calls returns and forgets the names of the webhooks that were called.
func (h *hooks) calls() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := strings.Join(h.called, " ")
	h.called = nil
	return text
}

// hook defines a webhook at the path of its name, for all writes.
func (h *hooks) hook(name string, a answer, change ...func(*definition)) definition {
	h.answers[name] = a
	d := definition{
		Name: name, ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(h.server.URL + "/" + name), CABundle: h.server.CABundle},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{"*"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}},
		SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		FailurePolicy: ptr.To(admissionregistrationv1.Fail), MatchPolicy: ptr.To(admissionregistrationv1.Equivalent), TimeoutSeconds: ptr.To[int32](10),
	}
	for _, c := range change {
		c(&d)
	}
	return d
}

func failOpen(d *definition) { d.FailurePolicy = ptr.To(admissionregistrationv1.Ignore) }

func ifNeeded(d *definition) {
	d.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
}

func mutating(name string, definitions ...definition) *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Webhooks: definitions}
}

func validating(name string, definitions ...definition) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for _, d := range definitions {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: d.Name, ClientConfig: d.ClientConfig, Rules: d.Rules, FailurePolicy: d.FailurePolicy, MatchPolicy: d.MatchPolicy,
			NamespaceSelector: d.NamespaceSelector, ObjectSelector: d.ObjectSelector, SideEffects: d.SideEffects,
			TimeoutSeconds: d.TimeoutSeconds, AdmissionReviewVersions: d.AdmissionReviewVersions, MatchConditions: d.MatchConditions,
		})
	}
	return c
}

// newOptions makes plugins that read from the world.
func newOptions(w *world) Options {
	return Options{
		Clients: webhook.New(webhook.Options{Metrics: webhook.NewMetrics()}), Client: func() kind.Client { return w }, Objects: func() Objects { return worldObjects{w} },
		Authorizer: allowAll{}, Metrics: NewMetrics("server"), ConditionMetrics: cel.NewMetrics(), Log: slog.New(slog.DiscardHandler),
	}
}

// allowAll allows everything.
type allowAll struct{}

func (allowAll) Authorize(context.Context, *authz.Attributes) (authz.Decision, string, error) {
	return authz.Allow, "", nil
}

// recorded is a write with its audit annotations and warnings.
type recorded struct {
	*admission.Attributes
	annotations map[string]string
	warnings    []string
}

// writing is a create of the ConfigMap team/it.
func writing(change ...func(*admission.Attributes)) *recorded {
	r := &recorded{annotations: map[string]string{}}
	annotate := func(key, value string) { r.annotations[key] = value }
	r.Attributes = &admission.Attributes{
		Operation: admission.Create, Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Namespace: "team", Name: "it", Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "it", Namespace: "team"}, Data: map[string]string{"a": "1"}},
		Options: &metav1.CreateOptions{TypeMeta: metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"}, FieldManager: "m"},
		User:    authn.User{Username: "jane", UID: "7", Groups: []string{"devs"}}, Versions: versions{limit: 1 << 20},
		Warn: func(text string) { r.warnings = append(r.warnings, text) }, Annotate: annotate, AnnotateRequest: annotate,
	}
	for _, c := range change {
		c(r.Attributes)
	}
	return r
}

func deleting(a *admission.Attributes) {
	a.Operation, a.Old, a.Object = admission.Delete, a.Object, nil
	a.Options = &metav1.DeleteOptions{}
}

func dryRun(a *admission.Attributes) { a.DryRun = true }

// try runs a plugin as the chain does.
func try(ctx context.Context, p admission.Plugin, a *admission.Attributes) error {
	chain := admission.Chain{p}
	return errors.Join(chain.Mutate(ctx, a), chain.Validate(ctx, a))
}

// keys are the sorted keys of annotations.
func keys(annotations map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(annotations)), " ")
}
