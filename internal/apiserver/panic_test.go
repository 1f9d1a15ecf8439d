package apiserver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// TestPanicInWrite: a panic in validation or admission gives upstream's response, releases what was reserved, and ends nothing else.
func TestPanicInWrite(t *testing.T) {
	where, undone := "", 0
	crash := func(at string) {
		if at == where {
			panic("oh")
		}
	}
	s := newWriteServer(t, func(c *Config) {
		c.Kinds = writeKinds()
		for _, k := range c.Kinds {
			if k.Plural != "configmaps" {
				continue
			}
			k.Validate = func(*kind.Request, kind.Object, kind.Object) field.ErrorList { crash("validation"); return nil }
			k.Default = func(kind.Object) { crash("defaults") }
			k.Canonicalize = func(kind.Object) { crash("canonicalization") }
		}
		c.Admission = admission.Chain{
			stepRule{undone: &undone, mutate: func(*admission.Attributes) error { crash("mutation"); return nil }},
			stepRule{validate: func(*admission.Attributes) error { crash("admission"); return nil }},
		}
	})
	s.add("configmaps", configMap("default", "old"))
	requests := map[string][]string{
		"POST": {configMapsPath, mediaJSON, `{"metadata":{"name":"new"}}`}, "PUT": {configMapsPath + "/old", mediaJSON, `{"metadata":{"name":"old"}}`},
		"PATCH": {configMapsPath + "/old", strategicPatch, `{"data":{"a":"b"}}`}, "DELETE": {configMapsPath + "/old", mediaJSON, ""},
	}
	for _, where = range []string{"defaults", "mutation", "validation", "canonicalization", "admission"} {
		for method, r := range requests {
			if method == "DELETE" && where != "mutation" && where != "admission" {
				continue
			}
			before := s.countPanics()
			got := s.serveRaw(method, r[0], r[1], []byte(r[2]))
			if got.Code != 500 || got.Body.String() != textPanicked+"\n" || !strings.HasPrefix(got.Header().Get("Content-Type"), "text/plain") {
				t.Errorf("%s with a panic in %s: code %d: %s", method, where, got.Code, got.Body)
			}
			if n := s.countPanics() - before; n != 1 {
				t.Errorf("%v panics counted", n)
			}
		}
	}
	where = ""
	if n := s.mutating.inFlight.Load(); n != 0 {
		t.Errorf("%d requests still in flight", n)
	}
	s.send("POST", configMapsPath, "", `{"metadata":{"name":"new"}}`).want(201)
	s.send("DELETE", configMapsPath+"/old", "", "").want(200)
}

// TestPanicUndoesReservations: what admission has reserved is released when the write panics later.
func TestPanicUndoesReservations(t *testing.T) {
	undone := 0
	s := newWriteServer(t, func(c *Config) {
		c.Admission = admission.Chain{stepRule{undone: &undone}}
	})
	res := s.find("configmaps")
	w := s.ownWrite(t.Context(), res, "default", "a")
	w.chain = s.config.Admission
	table := res.table
	res.table = nil // storing the object panics
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = w.createOnce(&corev1.ConfigMap{ObjectMeta: testMeta("default", "a", nil)}, nil)
	}()
	res.table = table
	if undone != 1 {
		t.Errorf("undone %d times", undone)
	}
}
