package webhook

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission"
)

// TestReview: what webhooks get for each operation.
func TestReview(t *testing.T) {
	h, w := newHooks(t), &world{}
	p := NewValidating(newOptions(w))
	beta := func(d *definition) { d.AdmissionReviewVersions = []string{"v0", "v1beta1", "v1"} }
	inV2 := func(d *definition) { d.Rules[0].APIVersions = []string{"v2"} }
	const user = `"uid":"","userInfo":{"groups":["devs"],"uid":"7","username":"jane"}`
	const object = `{"apiVersion":"v1","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"it","namespace":"team"}}`
	const objectV2 = `{"apiVersion":"v2","data":{"a":"1"},"kind":"ConfigMap","metadata":{"name":"it","namespace":"team"}}`
	const kind, kindV2 = `{"group":"","kind":"ConfigMap","version":"v1"}`, `{"group":"","kind":"ConfigMap","version":"v2"}`
	const resource, resourceV2 = `{"group":"","resource":"configmaps","version":"v1"}`, `{"group":"","resource":"configmaps","version":"v2"}`
	for name, test := range map[string]struct {
		hook   func(*definition)
		write  *recorded
		review string
		want   string
	}{
		"create": {write: writing(), review: "admission.k8s.io/v1", want: `{"dryRun":false,"kind":` + kind + `,"name":"it","namespace":"team","object":` + object +
			`,"oldObject":null,"operation":"CREATE","options":{"apiVersion":"meta.k8s.io/v1","fieldManager":"m","kind":"CreateOptions"},"requestKind":` + kind + `,"requestResource":` + resource + `,"resource":` + resource + `,` + user + `}`},
		"v1beta1, dry run": {hook: beta, write: writing(dryRun), review: "admission.k8s.io/v1beta1", want: `{"dryRun":true,"kind":` + kind + `,"name":"it","namespace":"team","object":` + object +
			`,"oldObject":null,"operation":"CREATE","options":{"apiVersion":"meta.k8s.io/v1","fieldManager":"m","kind":"CreateOptions"},"requestKind":` + kind + `,"requestResource":` + resource + `,"resource":` + resource + `,` + user + `}`},
		"another version": {hook: inV2, write: writing(), review: "admission.k8s.io/v1", want: `{"dryRun":false,"kind":` + kindV2 + `,"name":"it","namespace":"team","object":` + objectV2 +
			`,"oldObject":null,"operation":"CREATE","options":{"apiVersion":"meta.k8s.io/v1","fieldManager":"m","kind":"CreateOptions"},"requestKind":` + kind + `,"requestResource":` + resource + `,"resource":` + resourceV2 + `,` + user + `}`},
		"delete": {write: writing(deleting), review: "admission.k8s.io/v1", want: `{"dryRun":false,"kind":` + kind + `,"name":"it","namespace":"team","object":null` +
			`,"oldObject":` + object + `,"operation":"DELETE","options":{},"requestKind":` + kind + `,"requestResource":` + resource + `,"resource":` + resource + `,` + user + `}`},
		"connect": {write: writing(func(a *admission.Attributes) {
			a.Operation, a.Object, a.Options, a.Subresource = admission.Connect, &corev1.PodExecOptions{Command: []string{"ls"}}, nil, "exec"
			a.Kind, a.Resource = corev1.SchemeGroupVersion.WithKind("PodExecOptions"), schema.GroupVersionResource{Version: "v1", Resource: "pods"}
		}), review: "admission.k8s.io/v1", want: `{"dryRun":false,"kind":{"group":"","kind":"PodExecOptions","version":"v1"},"name":"it","namespace":"team","object":{"apiVersion":"v1","command":["ls"],"kind":"PodExecOptions"}` +
			`,"oldObject":null,"operation":"CONNECT","options":null,"requestKind":{"group":"","kind":"PodExecOptions","version":"v1"},"requestResource":{"group":"","resource":"pods","version":"v1"},"requestSubResource":"exec","resource":{"group":"","resource":"pods","version":"v1"},"subResource":"exec",` + user + `}`},
	} {
		change := test.hook
		if change == nil {
			change = func(*definition) {}
		}
		h.requests = nil
		w.set(validating("c", h.hook("a", allow, change)))
		if err := try(t.Context(), p, test.write.Attributes); err != nil || len(h.requests) != 1 {
			t.Errorf("%s: %v, %d requests", name, err, len(h.requests))
			continue
		}
		review := h.requests[0]
		if review.APIVersion != test.review || review.Kind != "AdmissionReview" || review.Request.UID == "" {
			t.Errorf("%s: %v %s", name, review.TypeMeta, review.Request.UID)
		}
		review.Request.UID = ""
		if got := canonical(t, review.Request); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
}

// canonical is JSON with sorted keys.
func canonical(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		t.Fatal(err)
	}
	removeNull(plain, "creationTimestamp")
	if data, err = json.Marshal(plain); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func removeNull(value any, key string) {
	if object, ok := value.(map[string]any); ok {
		if v, found := object[key]; found && v == nil {
			delete(object, key)
		}
		for _, below := range object {
			removeNull(below, key)
		}
	}
}
