package apiserver

import (
	"bytes"
	"encoding/binary"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// TestDecodeLimits: what could make decoding expensive is refused with upstream's errors.
func TestDecodeLimits(t *testing.T) {
	s := newGrowthServer(t)
	pod := func(cpu string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":` + cpu + `}}}]}}`
	}
	s.send("POST", podsPath, mediaJSON, pod(`"1"`)).want(201)
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	body := int(defaultLimits.Body)
	const digits = "10000000"
	for _, test := range []struct {
		name, method, path, contentType, body string
		code                                  int
		text                                  string
	}{
		{"nested JSON", "POST", podsPath, mediaJSON, `{"spec":` + deep(10001) + `}`, 400, "exceeded max depth"},
		{"nested objects", "POST", podsPath, mediaJSON, strings.Repeat(`{"spec":`, 20000) + strings.Repeat("}", 20000), 400, "exceeded max depth"},
		{"nested YAML", "POST", podsPath, mediaYAML, "spec: " + deep(10001), 400, "exceeded max depth of 10000"},
		{"nested unknown field", "POST", podsPath, mediaJSON, `{"metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]},"x":` + deep(9000) + `}`, 201, ""},
		{"nested merge patch", "PATCH", podsPath + "/a", mergePatch, `{"spec":` + deep(10001) + `}`, 400, ""},
		{"nested strategic patch", "PATCH", podsPath + "/a", strategicPatch, `{"spec":` + deep(10001) + `}`, 400, ""},
		{"nested JSON patch", "PATCH", podsPath + "/a", jsonPatch, `[{"op":"add","path":"/spec/x","value":` + deep(10001) + `}]`, 400, ""},
		{"nested apply", "PATCH", podsPath + "/a?fieldManager=m", applyPatch, "spec: " + deep(10001), 400, "exceeded max depth"},
		{"apply with aliases", "PATCH", podsPath + "/a?fieldManager=m", applyPatch, yamlBomb, 400, "excessive aliasing"},
		{"large body", "POST", podsPath, mediaJSON, strings.Repeat(" ", body+1), 413, "Request entity too large: limit is 3145728"},
		{"large body of spaces", "POST", podsPath, mediaJSON, strings.Repeat(" ", body), 400, ""},
		{"large patch", "PATCH", podsPath + "/a", mergePatch, strings.Repeat(" ", body+1), 413, "Request entity too large: limit is 3145728"},
		{"large number", "POST", podsPath, mediaJSON, `{"spec":{"priority":1e400}}`, 400, "cannot be handled as a Pod"},
		{"long number", "POST", podsPath, mediaJSON, `{"spec":{"priority":` + strings.Repeat("9", 1<<20) + `}}`, 400, "cannot be handled as a Pod"},
		{"duplicate keys", "POST", podsPath + "?fieldValidation=Strict", mediaJSON, `{"metadata":{"name":"d","name":"d"},"spec":{"containers":[{"name":"c","image":"i"}]}}`, 400, `duplicate field \"metadata.name\"`},
		{"small quantity", "POST", podsPath, mediaJSON, pod(`"1e-` + digits + `"`), 400, "must not have an exponent of more than 3 digits"},
		{"small quantity as a number", "POST", podsPath, mediaJSON, pod(`1e-` + digits), 400, "must not have an exponent of more than 3 digits"},
		{"small quantity with escapes", "POST", podsPath, mediaJSON, pod(`"1\u0065-` + digits + `"`), 400, "must not have an exponent of more than 3 digits"},
		{"large quantity", "POST", podsPath, mediaJSON, pod(`"1E` + digits + `"`), 400, "must not have an exponent of more than 3 digits"},
		{"long quantity", "POST", podsPath, mediaJSON, pod(`"0.` + strings.Repeat("1", 1<<20) + `"`), 400, "must not have more than 256 characters"},
		{"quantity in YAML", "POST", podsPath, mediaYAML, pod(`"1e-` + digits + `"`), 400, "must not have an exponent of more than 3 digits"},
		{"quantity in a merge patch", "PATCH", podsPath + "/a", mergePatch, `{"spec":{"overhead":{"cpu":"1e-` + digits + `"}}}`, 422, "must not have an exponent of more than 3 digits"},
		{"quantity in a JSON patch", "PATCH", podsPath + "/a", jsonPatch, `[{"op":"add","path":"/spec/overhead","value":{"cpu":"1e-` + digits + `"}}]`, 422, "must not have an exponent of more than 3 digits"},
		{"quantity in a strategic patch", "PATCH", podsPath + "/a", strategicPatch, `{"spec":{"overhead":{"cpu":"1e-` + digits + `"}}}`, 422, "must not have an exponent of more than 3 digits"},
		{"quantity in an apply patch", "PATCH", podsPath + "/a?fieldManager=m&force=true", applyPatch, pod(`"1e-` + digits + `"`), 400, "must not have an exponent of more than 3 digits"},
		{"apply of a long list", "PATCH", podsPath + "/a?fieldManager=m&force=true", applyPatch, `{"spec":{"containers":[{"name":"c","args":["` + strings.Repeat(`a","`, 10001) + `"]}]}}`, 413,
			"The allowed maximum items in a list or map of an applied configuration is 10000, got 10002"},
		{"text like a quantity", "POST", podsPath, mediaJSON, `{"metadata":{"name":"e","annotations":{"a":"1e-` + digits + `"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`, 201, ""},
		{"ordinary quantities", "POST", podsPath, mediaJSON, strings.Replace(pod(`"1e-3"`), `"name":"a"`, `"name":"f"`, 1), 201, ""},
	} {
		var got *httptest.ResponseRecorder
		if took := cpuTime(t, func() { got = s.serveRaw(test.method, test.path, test.contentType, []byte(test.body)) }); took > 5*time.Second {
			t.Errorf("%s: %v of CPU time", test.name, took)
		}
		if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) {
			t.Errorf("%s: code %d, want %d %s: %.300s", test.name, got.Code, test.code, test.text, got.Body)
		}
	}
}

// TestProtobufQuantities: quantities in protobuf have the same bounds as in JSON.
func TestProtobufQuantities(t *testing.T) {
	s := newGrowthServer(t)
	const valid, expensive = "12345678901", "1e-20000000"
	for _, test := range []struct {
		cpu, annotation string
		code            int
	}{{valid, expensive, 201}, {expensive, "b", 400}} {
		pod := &corev1.Pod{}
		pod.Name, pod.Annotations = "a", map[string]string{"a": test.annotation}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse(valid)}
		raw, err := appendEnvelope(nil, envelopePrefix(corev1.SchemeGroupVersion.WithKind("Pod")), kind.Object(pod).(protoMessage))
		if err != nil {
			t.Fatal(err)
		}
		raw = bytes.ReplaceAll(raw, []byte(valid), []byte(test.cpu))
		if got := s.serveRaw("POST", podsPath+"?dryRun=All", mediaProtobuf, raw); got.Code != test.code {
			t.Errorf("cpu %s: code %d, want %d: %.300s", test.cpu, got.Code, test.code, got.Body)
		}
	}
}

// TestNestedDefinitions: schemas that would be read again at each level, or overflow the stack, are refused before they are decoded.
func TestNestedDefinitions(t *testing.T) {
	s := newGrowthServer(t)
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	definition := func(schema string) string {
		return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
			`"names":{"plural":"foos","singular":"foo","kind":"Foo","listKind":"FooList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + `}}]}}`
	}
	nested := func(levels, leaf int) string {
		return definition(`{"type":"object","properties":{"a":` + strings.Repeat(`{"type":"array","items":`, levels) +
			`{"type":"string","description":"` + strings.Repeat("x", leaf) + `"}` + strings.Repeat(`}`, levels+2))
	}
	const refused = "exceeded the maximum depth"
	for _, test := range []struct {
		name, method, contentType, body string
		code                            int
		text                            string
	}{
		{"JSON", "POST", mediaJSON, nested(4000, 2<<20), 400, refused},
		{"YAML", "POST", mediaYAML, nested(1000, 300_000), 400, refused},
		{"apply", "PATCH", applyPatch, nested(1000, 300_000), 400, refused},
		{"protobuf", "POST", mediaProtobuf, nestedProtobuf(400_000), 400, refused},
		{"ordinary", "POST", mediaJSON, nested(20, 100_000), 201, ""},
		{"merge patch", "PATCH", mergePatch, nested(1000, 1<<20), 422, refused},
		{"strategic patch", "PATCH", strategicPatch, nested(1000, 1<<20), 422, refused},
	} {
		at := path
		if test.method == "PATCH" {
			at += "/foos.example.com?fieldManager=m"
		}
		var got *httptest.ResponseRecorder
		if took := cpuTime(t, func() { got = s.serveRaw(test.method, at, test.contentType, []byte(test.body)) }); took > 5*time.Second {
			t.Errorf("%s: %v of CPU time", test.name, took)
		}
		if got.Code != test.code || !strings.Contains(got.Body.String(), test.text) {
			t.Errorf("%s: code %d, want %d %s: %.300s", test.name, got.Code, test.code, test.text, got.Body)
		}
	}
}

// nestedProtobuf is a definition whose schema has levels of "not".
func nestedProtobuf(levels int) string {
	field := func(number int, message []byte) []byte {
		header := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(number<<3|2)), uint64(len(message)))
		return append(header, message...)
	}
	const not = 28
	lengths := make([]int, levels)
	length := 0
	for i := range lengths {
		lengths[i] = length
		length += len(binary.AppendUvarint(binary.AppendUvarint(nil, not<<3|2), uint64(length)))
	}
	var schemas []byte
	for i := range lengths {
		schemas = binary.AppendUvarint(binary.AppendUvarint(schemas, not<<3|2), uint64(lengths[levels-1-i]))
	}
	const spec, versions, versionSchema, openAPIV3Schema = 2, 7, 4, 1
	raw := field(spec, field(versions, field(versionSchema, field(openAPIV3Schema, schemas))))
	prefix := envelopePrefix(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return string(append(append(append([]byte{}, prefix...), field(2, raw)...), envelopeTail...))
}
