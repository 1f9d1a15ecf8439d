package webhook

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/webhook/webhooktest"
)

var v2 = schema.GroupVersion{Group: "example.com", Version: "v2"}

func widget(version, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/" + version, "kind": "Widget",
		"metadata": map[string]any{
			"name": name, "namespace": "team", "uid": "uid-" + name, "resourceVersion": "5", "labels": map[string]any{"a": "b"},
			"managedFields": []any{map[string]any{"manager": "m"}},
		},
		"size": int64(1),
	}}
}

// converting starts a webhook that sets the version of objects, after which alter may change its response.
func converting(t testing.TB, reviewVersions []string, alter func(*apiextensionsv1.ConversionReview)) (*Converter, *[]int) {
	t.Helper()
	var batches []int
	ca := webhooktest.NewCA(t)
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		request := review.Request
		batches = append(batches, len(request.Objects))
		review.Response = &apiextensionsv1.ConversionResponse{UID: request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, object := range request.Objects {
			text := strings.Replace(string(object.Raw), `"example.com/v1"`, `"`+request.DesiredAPIVersion+`"`, 1)
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: []byte(text)})
		}
		review.Request = nil
		if alter != nil {
			alter(&review)
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &server.URL, CABundle: ca.Bundle}, ConversionReviewVersions: reviewVersions,
	}}
	converter, err := newClients(Options{}).NewConverter(crd)
	if err != nil {
		t.Fatal(err)
	}
	return converter, &batches
}

// object changes the first converted object.
func object(change func(map[string]any)) func(*apiextensionsv1.ConversionReview) {
	return func(review *apiextensionsv1.ConversionReview) {
		var content map[string]any
		raw := &review.Response.ConvertedObjects[0].Raw
		if err := json.Unmarshal(*raw, &content); err != nil {
			panic(err)
		}
		change(content)
		*raw, _ = json.Marshal(content)
	}
}

func metadata(name string, value any) func(*apiextensionsv1.ConversionReview) {
	return object(func(content map[string]any) { content["metadata"].(map[string]any)[name] = value })
}

// TestConversion: what a webhook may return, with upstream's errors for one object and for lists.
func TestConversion(t *testing.T) {
	response := func(change func(*apiextensionsv1.ConversionResponse)) func(*apiextensionsv1.ConversionReview) {
		return func(review *apiextensionsv1.ConversionReview) { change(review.Response) }
	}
	const prefix = "conversion webhook for example.com/v1, Kind=Widget "
	for name, test := range map[string]struct {
		alter        func(*apiextensionsv1.ConversionReview)
		single, list string
		failure      string
	}{
		"right":          {},
		"labels changed": {alter: metadata("labels", map[string]any{"c": "d"})},
		"no response":    {alter: func(r *apiextensionsv1.ConversionReview) { r.Response = nil }, single: "failed: no response provided", failure: failureMalformed},
		"other uid":      {alter: response(func(r *apiextensionsv1.ConversionResponse) { r.UID = "other" }), single: `failed: expected response.uid=`, failure: failureMalformed},
		"other kind of review": {alter: func(r *apiextensionsv1.ConversionReview) { r.Kind = "Review" },
			single: "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1, Kind=Review", failure: failureMalformed},
		"failure": {alter: response(func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: "Failure", Message: "cannot"}
		}), single: "failed: cannot", failure: failureMalformed},
		"failure without message": {alter: response(func(r *apiextensionsv1.ConversionResponse) { r.Result = metav1.Status{} }),
			single: "failed: response.result.status was '', not 'Success'", failure: failureMalformed},
		"too few": {alter: response(func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects = r.ConvertedObjects[1:] }),
			single: "returned 0 objects, expected 1", list: "returned 2 objects, expected 3", failure: failurePartial},
		"other version": {alter: object(func(o map[string]any) { o["apiVersion"] = "example.com/v3" }),
			single: "returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)",
			list:   "returned invalid converted object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v3)", failure: failureInvalid},
		"other kind": {alter: object(func(o map[string]any) { o["kind"] = "Gadget" }),
			single: "returned invalid object at index 0: invalid kind (expected Widget, received Gadget)",
			list:   "returned invalid converted object at index 0: invalid kind (expected Widget, received Gadget)", failure: failureInvalid},
		"other name": {alter: metadata("name", "x"), single: "returned invalid object: must have the same name: a != x",
			list: "returned invalid converted object at index 0: must have the same name: a != x", failure: failureInvalid},
		"other namespace": {alter: metadata("namespace", "x"), single: "returned invalid object: must have the same namespace: team != x",
			list: "returned invalid converted object at index 0: must have the same namespace: team != x", failure: failureInvalid},
		"other UID": {alter: metadata("uid", "x"), single: "returned invalid object: must have the same UID: uid-a != x",
			list: "returned invalid converted object at index 0: must have the same UID: uid-a != x", failure: failureInvalid},
		"invalid label": {alter: metadata("labels", map[string]any{"!": "x"}), single: "returned invalid metadata: metadata.labels: Invalid value",
			list: "returned invalid metadata in object at index 0: metadata.labels: Invalid value", failure: failureInvalid},
		"a label that is a number": {alter: metadata("labels", map[string]any{"a": 1}), single: "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
			list: "returned invalid metadata in object at index 0: metadata.labels[a] must be a string", failure: failureInvalid},
		"no object": {alter: response(func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects[0].Raw = []byte("[]") }),
			single: "returned invalid object: ", list: "returned invalid converted object at index 0: ", failure: failureInvalid},
	} {
		if test.list == "" {
			test.list = test.single
		}
		for _, count := range []int{1, 3} {
			want := test.single
			if count > 1 {
				want = test.list
			}
			converter, _ := converting(t, []string{"v3", "v1"}, test.alter)
			var in []*unstructured.Unstructured
			for i := range count {
				in = append(in, widget("v1", string(rune('a'+i))))
			}
			out, err := converter.Convert(t.Context(), in, v2)
			if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), prefix+want) {
				t.Errorf("%s of %d: %v, want %s", name, count, err, prefix+want)
			}
			if n := testutil.ToFloat64(converter.metrics.conversions.WithLabelValues(result(err), test.failure)); n != 1 {
				t.Errorf("%s: %v conversions counted", name, n)
			}
			if err != nil {
				continue
			}
			for i, obj := range out {
				if obj.GetAPIVersion() != "example.com/v2" || obj.GetName() != in[i].GetName() || obj.GetResourceVersion() != "5" || len(obj.GetManagedFields()) != 1 {
					t.Errorf("%s: %v", name, obj)
				}
			}
			if !reflect.DeepEqual(in[0], widget("v1", "a")) {
				t.Errorf("%s changed its argument", name)
			}
		}
	}
}

func result(err error) string {
	if err != nil {
		return "failure"
	}
	return "success"
}

// TestConversionRestoresMetadata: a webhook can change labels and annotations, and nothing else of metadata.
func TestConversionRestoresMetadata(t *testing.T) {
	converter, _ := converting(t, []string{"v1"}, object(func(content map[string]any) {
		content["metadata"] = map[string]any{
			"name": "a", "namespace": "team", "uid": "uid-a", "resourceVersion": "99", "finalizers": []any{"x"}, "annotations": map[string]any{"note": "1"},
		}
	}))
	out, err := converter.Convert(t.Context(), []*unstructured.Unstructured{widget("v1", "a")}, v2)
	if err != nil {
		t.Fatal(err)
	}
	got := out[0]
	if got.GetResourceVersion() != "5" || len(got.GetFinalizers()) != 0 || got.GetAnnotations()["note"] != "1" || got.GetLabels() != nil {
		t.Errorf("%v", got.Object["metadata"])
	}
}

// TestConversionBatches: a list is converted in bounded batches and keeps its order; objects that have the version are not sent.
func TestConversionBatches(t *testing.T) {
	converter, batches := converting(t, []string{"v1beta1"}, nil)
	var in []*unstructured.Unstructured
	for i := range 2*maxBatchObjects + 10 {
		version := "v1"
		if i%2 == 1 {
			version = "v2"
		}
		in = append(in, widget(version, fmt.Sprint("w", i)))
	}
	out, err := converter.Convert(t.Context(), in, v2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if out[i].GetName() != in[i].GetName() || out[i].GetAPIVersion() != "example.com/v2" {
			t.Fatalf("object %d is %s", i, out[i].GetName())
		}
	}
	if fmt.Sprint(*batches) != fmt.Sprint([]int{maxBatchObjects, 5}) {
		t.Errorf("batches of %v objects", *batches)
	}
	*batches = nil
	large := []*unstructured.Unstructured{widget("v1", "a"), widget("v1", "b"), widget("v1", "c")}
	for _, obj := range large {
		obj.Object["data"] = strings.Repeat("x", maxBatchBytes/2)
	}
	if _, err := converter.Convert(t.Context(), large, v2); err != nil || fmt.Sprint(*batches) != "[1 1 1]" {
		t.Errorf("batches of %v large objects, %v", *batches, err)
	}
	*batches = nil
	empty := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	if out, err := converter.Convert(t.Context(), []*unstructured.Unstructured{empty}, v2); err != nil || out[0].GetAPIVersion() != "example.com/v2" || len(*batches) != 0 {
		t.Errorf("an empty object: %v %v, %v", out, err, *batches)
	}
	if empty.GetAPIVersion() != "example.com/v1" {
		t.Error("the argument was changed")
	}
}

// TestConversionFailures: a webhook that cannot be called, or has no version of the review in common, is an error.
func TestConversionFailures(t *testing.T) {
	ca := webhooktest.NewCA(t)
	server := webhooktest.NewServer(ca, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "garbage") }))
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	if _, err := newClients(Options{}).NewConverter(crd); err == nil {
		t.Error("a converter without webhook")
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &server.URL, CABundle: ca.Bundle}, ConversionReviewVersions: []string{"v7"},
	}}
	if _, err := newClients(Options{}).NewConverter(crd); err == nil || !strings.Contains(err.Error(), "no supported conversion review versions") {
		t.Errorf("%v", err)
	}
	crd.Spec.Conversion.Webhook.ConversionReviewVersions = []string{"v1"}
	converter, err := newClients(Options{}).NewConverter(crd)
	if err != nil {
		t.Fatal(err)
	}
	objects := []*unstructured.Unstructured{widget("v1", "a")}
	if _, err := converter.Convert(t.Context(), objects, v2); err == nil || !strings.Contains(err.Error(), "json parse error") {
		t.Errorf("garbage: %v", err)
	}
	server.Close()
	if _, err := converter.Convert(t.Context(), objects, v2); err == nil || !strings.Contains(err.Error(), "conversion webhook for example.com/v1, Kind=Widget failed: Post") {
		t.Errorf("no server: %v", err)
	}
	if n := testutil.ToFloat64(converter.metrics.conversions.WithLabelValues("failure", failureCall)); n != 1 {
		t.Errorf("%v failed calls counted", n)
	}
}
