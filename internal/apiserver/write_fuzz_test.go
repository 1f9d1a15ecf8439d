package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// serveRaw sends a request to the handler without a connection.
func (s *testServer) serveRaw(method, path, contentType string, body []byte) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(string(body)))
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Content-Type", contentType)
	recorder := httptest.NewRecorder()
	s.Handler().ServeHTTP(recorder, req)
	return recorder
}

// checkResponse: whatever a client sends, it gets a well-formed answer that does not blame the server's own code.
func checkResponse(t *testing.T, got *httptest.ResponseRecorder, body []byte) {
	t.Helper()
	if strings.Contains(got.Body.String(), textPanicked) {
		t.Fatalf("panic for %q", body)
	}
	var object map[string]any
	if err := json.Unmarshal(got.Body.Bytes(), &object); err != nil {
		t.Fatalf("code %d, body %q for %q", got.Code, got.Body.Bytes(), body)
	}
}

func FuzzDecode(f *testing.F) {
	s := newWriteServer(f)
	for _, seed := range []string{podBody, deploymentBody, "{", "", `{"metadata":{"name":"a","labels":{"a":1}}}`, `{"spec":{"spec":{"spec":[[[[]]]]}}}`,
		"kind: Deployment\nspec: &a {x: *a}", yamlBomb, `{"metadata":{"name":"a","name":"b"},"x":1}`, "k8s\x00\x0a\x15\x0a\x07apps/v1\x12\x0aDeployment\x12\x00"} {
		for format := range uint8(3) {
			f.Add([]byte(seed), format)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, format uint8) {
		contentType := mediaTypes[int(format)%len(mediaTypes)]
		got := s.serveRaw("POST", deploymentsPath+"?dryRun=All", contentType, body)
		checkResponse(t, got, body)
		if got.Code == http.StatusInternalServerError && !strings.Contains(got.Body.String(), "resourceVersion") {
			t.Fatalf("code 500 for %q: %s", body, got.Body.Bytes())
		}
	})
}

func fuzzPatch(f *testing.F, contentType, query string, seeds ...string) {
	s := newWriteServer(f)
	s.send("POST", deploymentsPath, "", deploymentBody).want(201)
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := s.serveRaw("PATCH", deploymentsPath+"/web?dryRun=All"+query, contentType, body)
		checkResponse(t, got, body)
		entry := s.find("deployments.apps").table.Get("/registry/deployments/default/web")
		obj, err := entry.Object()
		if err != nil || obj.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image != "i:1" {
			t.Fatalf("a dry run changed the stored object: %v %v", obj, err)
		}
	})
}

func FuzzJSONPatch(f *testing.F) {
	fuzzPatch(f, jsonPatch, "", `[]`, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, `[{"op":"copy","from":"","path":"/spec/template"}]`,
		`[{"op":"move","from":"/spec/replicas","path":"/spec/x"}]`, `[{"op":"test","path":"","value":null}]`, `[{"op":"remove","path":"/spec/template/spec/containers/-1"}]`,
		`[{"op":"replace","path":"/spec","value":[]}]`, `[{}]`, `[null]`, `null`, `[{"op":"test","path":""}]`)
}

func FuzzMergePatch(f *testing.F) {
	fuzzPatch(f, mergePatch, "", `{}`, `null`, `[]`, `{"spec":null}`, `{"metadata":{"labels":{"a":"b","c":null}}}`, `{"spec":{"template":{"spec":{"containers":[{"name":"x"}]}}}}`, `{"kind":"Pod"}`, `{"kind":""}`, `{"kind":null,"apiVersion":null}`)
}

func FuzzStrategicPatch(f *testing.F) {
	fuzzPatch(f, strategicPatch, "", `{}`, `null`, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"x"}],"$setElementOrder/containers":[{"name":"c"}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"$patch":"delete","name":"c"}]}}}}`, `{"spec":{"$patch":"replace"}}`, `{"spec":{"$retainKeys":["replicas"],"replicas":1}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"finalizers":["b"]}}`, `{"spec":{"template":{"spec":{"containers":[[]]}}}}`)
}

func FuzzApply(f *testing.F) {
	fuzzPatch(f, applyPatch, "&fieldManager=f&force=true", strings.ReplaceAll(applied, "%s", "1"), "{}", "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {replicas: null}",
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web, finalizers: [a, a]}", yamlBomb,
		"kind: Deployment\napiVersion: apps/v1\nmetadata: {name: web}\nspec: {template: {spec: {containers: [{image: x}]}}}")
}

// newPod is a pod as a controller creates it.
func newPod() *corev1.Pod {
	p := benchPod(1)
	p.ObjectMeta = metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: p.Labels, OwnerReferences: p.OwnerReferences}
	p.Spec.NodeName, p.Status = "", corev1.PodStatus{}
	return p
}

// BenchmarkWrites measures whole requests without a network: from the handler's first line to the encoded answer.
func BenchmarkWrites(b *testing.B) {
	s := newWriteServer(b)
	serve := func(b *testing.B, method, path, contentType, body string, want int) {
		got := s.serveRaw(method, path, contentType, []byte(body))
		if got.Code != want {
			b.Fatalf("code %d: %s", got.Code, got.Body.Bytes())
		}
	}
	sample := newPod()
	raw, err := json.Marshal(sample)
	if err != nil {
		b.Fatal(err)
	}
	pod := strings.Replace(string(raw), `"name":"web-1"`, `"generateName":"web-"`, 1)
	message := protobufPod(b)
	b.Run("create pod JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			serve(b, "POST", podsPath, mediaJSON, pod, 201)
		}
	})
	b.Run("create pod protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			serve(b, "POST", podsPath, mediaProtobuf, message, 201)
		}
	})
	b.Run("create configmap JSON", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			serve(b, "POST", configMapsPath, mediaJSON, `{"metadata":{"generateName":"c-"},"data":{"a":"1","b":"2"}}`, 201)
		}
	})
	serve(b, "POST", podsPath, mediaJSON, strings.Replace(pod, `"generateName":"web-"`, `"name":"web"`, 1), 201)
	for _, patch := range []struct{ name, contentType, path, one, two string }{
		{"merge", mergePatch, "/web", `{"metadata":{"labels":{"x":"1"}}}`, `{"metadata":{"labels":{"x":"2"}}}`},
		{"strategic status", strategicPatch, "/web/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`},
	} {
		b.Run("patch pod "+patch.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				body := patch.one
				if i%2 == 1 {
					body = patch.two
				}
				serve(b, "PATCH", podsPath+patch.path, patch.contentType, body, 200)
			}
		})
	}
	b.Run("update pod JSON", func(b *testing.B) {
		b.ReportAllocs()
		one := strings.Replace(pod, `"generateName":"web-"`, `"name":"web"`, 1)
		two := strings.Replace(one, `"app":"web"`, `"app":"other"`, 1)
		for i := 0; b.Loop(); i++ {
			body := one
			if i%2 == 0 {
				body = two
			}
			serve(b, "PUT", podsPath+"/web", mediaJSON, body, 200)
		}
	})
}

func protobufPod(b *testing.B) string {
	pod := newPod()
	pod.Name, pod.GenerateName = "", "web-"
	raw, err := appendEnvelope(nil, envelopePrefix(writePods().GVK), kind.Object(pod).(protoMessage))
	if err != nil {
		b.Fatal(err)
	}
	return string(raw)
}
