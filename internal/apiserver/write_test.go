package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
	"skiff/internal/openapi"
)

// writeKinds are the kinds the tests of writing serve: one of each sort that is written differently.
func writeKinds() []*kind.Kind {
	configMaps := kind.Of(kind.Definition[*corev1.ConfigMap]{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Namespaced: true, List: &corev1.ConfigMapList{},
		Validate: func(_ *kind.Request, obj, old *corev1.ConfigMap) (errs field.ErrorList) {
			if obj.Data["bad"] != "" {
				errs = append(errs, field.Invalid(field.NewPath("data").Key("bad"), obj.Data["bad"], "must not be"))
			}
			if old != nil && old.Data["fixed"] != obj.Data["fixed"] {
				errs = append(errs, field.Forbidden(field.NewPath("data").Key("fixed"), "field is immutable"))
			}
			return errs
		},
		Warn: func(obj, _ *corev1.ConfigMap) []string {
			if obj.Data["warn"] != "" {
				return []string{"data[warn]: " + obj.Data["warn"]}
			}
			return nil
		},
	})
	namespaces := kind.Of(kind.Definition[*corev1.Namespace]{
		GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Plural: "namespaces", IsNamespace: true, List: &corev1.NamespaceList{}, ReturnDeleted: true,
		Verbs:      []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		CopyStatus: func(to, from *corev1.Namespace) { to.Status = from.Status },
		Prepare: func(_ *kind.Request, obj, old *corev1.Namespace) {
			if old == nil {
				obj.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
				obj.Status.Phase = corev1.NamespaceActive
			}
		},
		HasSpecFinalizers: func(obj *corev1.Namespace) bool { return len(obj.Spec.Finalizers) > 0 },
		MarkTerminating:   func(obj *corev1.Namespace) { obj.Status.Phase = corev1.NamespaceTerminating },
		Subresources: []kind.Subresource{{Name: "finalize", Verbs: []string{"update"}, Update: kind.UpdateStrategyOf(
			func(_ *kind.Request, obj, old *corev1.Namespace) { obj.Status = old.Status }, nil)}},
	})
	leases := kind.Of(kind.Definition[*coordinationv1.Lease]{
		GVK: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Plural: "leases", Namespaced: true, List: &coordinationv1.LeaseList{},
		AllowCreateOnUpdate: true, DenyUnconditionalUpdate: true,
	})
	reviews := kind.Of(kind.Definition[*authorizationv1.SelfSubjectAccessReview]{
		GVK: authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), Plural: "selfsubjectaccessreviews",
		Action: func(_ context.Context, _ kind.Client, req *kind.Request, obj *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
			obj.Status.Allowed = req.User.Username == "admin"
			return obj, nil
		},
	})
	return []*kind.Kind{configMaps, namespaces, leases, reviews, eventKind(), writePods(), writeDeployments(), writeCustom()}
}

func writePods() *kind.Kind {
	return kind.Of(kind.Definition[*corev1.Pod]{
		GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Namespaced: true, List: &corev1.PodList{}, ReturnDeleted: true,
		CopyStatus:  func(to, from *corev1.Pod) { to.Status = from.Status },
		SpecChanged: func(obj, old *corev1.Pod) bool { return !apiequality.Semantic.DeepEqual(obj.Spec, old.Spec) },
		Default: func(obj *corev1.Pod) {
			if obj.Spec.RestartPolicy == "" {
				obj.Spec.RestartPolicy = corev1.RestartPolicyAlways
			}
		},
		CheckGracefulDelete: func(obj *corev1.Pod, options *metav1.DeleteOptions) bool {
			seconds := int64(30)
			if options.GracePeriodSeconds != nil {
				seconds = *options.GracePeriodSeconds
			}
			if obj.Spec.NodeName == "" {
				seconds = 0
			}
			options.GracePeriodSeconds = &seconds
			return true
		},
		Subresources: []kind.Subresource{{
			Name: "eviction", GVK: policyv1.SchemeGroupVersion.WithKind("Eviction"), NewBody: func() kind.Object { return &policyv1.Eviction{} },
			Create: func(ctx context.Context, env kind.Client, _ *kind.Request, parent types.NamespacedName, body kind.Object) (runtime.Object, error) {
				_, err := env.Update(ctx, schema.GroupResource{Resource: "pods"}, parent.Namespace, parent.Name, func(obj kind.Object) error {
					pod := obj.(*corev1.Pod)
					if pod.Annotations["keep"] != "" {
						return errors.New("keep it")
					}
					pod.Status.Reason = "Evicted"
					return nil
				})
				return &metav1.Status{Status: metav1.StatusSuccess}, err
			},
		}},
	})
}

func writeDeployments() *kind.Kind {
	return kind.Of(kind.Definition[*appsv1.Deployment]{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Plural: "deployments", Namespaced: true, List: &appsv1.DeploymentList{},
		CopyStatus:  func(to, from *appsv1.Deployment) { to.Status = from.Status },
		SpecChanged: func(obj, old *appsv1.Deployment) bool { return !apiequality.Semantic.DeepEqual(obj.Spec, old.Spec) },
		Default: func(obj *appsv1.Deployment) {
			if obj.Spec.Replicas == nil {
				one := int32(1)
				obj.Spec.Replicas = &one
			}
		},
		Subresources: []kind.Subresource{{
			Name: "scale", GVK: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), NewBody: func() kind.Object { return &autoscalingv1.Scale{} },
			View: &kind.View{
				From: func(parent kind.Object) (kind.Object, error) {
					d := parent.(*appsv1.Deployment)
					return &autoscalingv1.Scale{
						ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, UID: d.UID, ResourceVersion: d.ResourceVersion, CreationTimestamp: d.CreationTimestamp},
						Spec:       autoscalingv1.ScaleSpec{Replicas: *d.Spec.Replicas}, Status: autoscalingv1.ScaleStatus{Replicas: d.Status.Replicas},
					}, nil
				},
				Apply: func(view, parent kind.Object) error {
					replicas := view.(*autoscalingv1.Scale).Spec.Replicas
					parent.(*appsv1.Deployment).Spec.Replicas = &replicas
					return nil
				},
				Validate: func(view kind.Object) (errs field.ErrorList) {
					if n := view.(*autoscalingv1.Scale).Spec.Replicas; n < 0 {
						errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), n, "must be greater than or equal to 0"))
					}
					return errs
				},
				Paths: map[string]string{"spec.replicas": "spec.replicas"},
			},
		}},
	})
}

// writeCustom is a kind without a Go type.
func writeCustom() *kind.Kind {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	empty := func() kind.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		return u
	}
	return &kind.Kind{
		GVK: gvk, Plural: "widgets", Singular: "widget", ListKind: "WidgetList", Namespaced: true, Verbs: kind.AllVerbs, Prefix: "example.com/widgets",
		Versions: []kind.Version{{GVK: gvk}}, New: empty, AllowUnconditionalUpdate: true,
		ValidateName:  func(string, bool) []string { return nil },
		TypeConverter: func() (managedfields.TypeConverter, error) { return managedfields.NewDeducedTypeConverter(), nil },
		Prune: func(obj kind.Object, _ *kind.Version) (unknown []string, err error) {
			content := obj.(*unstructured.Unstructured).Object
			if _, ok := content["unknown"]; ok {
				delete(content, "unknown")
				unknown = append(unknown, "unknown")
			}
			return unknown, nil
		},
	}
}

func newWriteServer(t testing.TB, change ...func(*Config)) *testServer {
	return newTestServer(t, append([]func(*Config){func(c *Config) {
		c.Kinds = writeKinds()
		c.TypeConverter = openapi.TypeConverter
	}}, change...)...)
}

// result is what came back for a request.
type result struct {
	t        testing.TB
	code     int
	body     []byte
	warnings []string
	object   map[string]any
}

// send sends a request as the administrator. The content type may be empty.
func (s *testServer) send(method, path, contentType, body string) result {
	s.t.Helper()
	req, err := http.NewRequest(method, s.http.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("User-Agent", "tester/1.0")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := s.http.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	a := result{t: s.t, code: res.StatusCode, warnings: res.Header.Values("Warning")}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(a.body, &a.object); err != nil {
		s.t.Fatalf("%s %s: %d %q", method, path, a.code, a.body)
	}
	return a
}

// want fails the test unless the answer has the code, and the text in its body.
func (r result) want(code int, texts ...string) result {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("code %d, want %d: %s", r.code, code, r.body)
	}
	message, _ := r.object["message"].(string)
	for _, text := range texts {
		if !strings.Contains(message, text) && !bytes.Contains(r.body, []byte(text)) {
			r.t.Fatalf("want %s\nin   %s", text, r.body)
		}
	}
	return r
}

func (r result) warned(texts ...string) result {
	r.t.Helper()
	if len(r.warnings) != len(texts) {
		r.t.Fatalf("warnings %q, want %q", r.warnings, texts)
	}
	for i, text := range texts {
		if want := fmt.Sprintf("299 - %q", text); r.warnings[i] != want {
			r.t.Fatalf("warning %s, want %s", r.warnings[i], want)
		}
	}
	return r
}

// at is the value below a path of keys.
func (r result) at(path ...string) any {
	var v any = r.object
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

func (r result) version() string { return fmt.Sprint(r.at("metadata", "resourceVersion")) }

// managed describes managedFields without times, sorted: entries are stored in the order of their times, and a test may take
// longer than a second.
func (r result) managed() string {
	raw, _ := json.Marshal(r.at("metadata", "managedFields"))
	var entries []metav1.ManagedFieldsEntry
	if err := json.Unmarshal(raw, &entries); err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	for _, e := range entries {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s%s %s", e.Manager, e.Operation, e.APIVersion, strings.TrimSuffix("/"+e.Subresource, "/"), e.FieldsV1.GetRawString())))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (r result) owned(want ...string) result {
	r.t.Helper()
	slices.Sort(want)
	if got := r.managed(); got != strings.Join(want, "\n") {
		r.t.Fatalf("managedFields\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	return r
}

const (
	configMapsPath  = "/api/v1/namespaces/default/configmaps"
	podsPath        = "/api/v1/namespaces/default/pods"
	deploymentsPath = "/apis/apps/v1/namespaces/default/deployments"
	leasesPath      = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	widgetsPath     = "/apis/example.com/v1/namespaces/default/widgets"

	applyPatch     = "application/apply-patch+yaml"
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

const podBody = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`

const deploymentBody = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i:1"}]}}}}`

// stepRule is an admission rule made of functions.
type stepRule struct {
	mutate, validate func(*admission.Attributes) error
	undone           *int
}

func (stepRule) Name() string                       { return "Step" }
func (stepRule) Handles(*admission.Attributes) bool { return true }
func (r stepRule) Mutate(_ context.Context, a *admission.Attributes) error {
	if r.mutate == nil {
		return nil
	}
	return r.mutate(a)
}
func (r stepRule) Validate(_ context.Context, a *admission.Attributes) error {
	if r.validate == nil {
		return nil
	}
	return r.validate(a)
}
func (r stepRule) Undo(context.Context, *admission.Attributes) {
	if r.undone != nil {
		*r.undone++
	}
}
