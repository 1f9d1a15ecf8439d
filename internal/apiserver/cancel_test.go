package apiserver

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// TestWriteStopsWithItsClient: when the client is gone, no further stage of a write begins, and nothing is stored.
func TestWriteStopsWithItsClient(t *testing.T) {
	var stages []string
	var cancel context.CancelFunc
	cancelAt := ""
	stage := func(name string) {
		stages = append(stages, name)
		if name == cancelAt {
			cancel()
		}
	}
	s := newWriteServer(t, func(c *Config) {
		for _, k := range c.Kinds {
			if k.Plural != "configmaps" {
				continue
			}
			k.Default = func(kind.Object) { stage("defaults") }
			k.Validate = func(*kind.Request, kind.Object, kind.Object) field.ErrorList { stage("validation"); return nil }
		}
		c.Admission = admission.Chain{stepRule{
			mutate:   func(*admission.Attributes) error { stage("mutation"); return nil },
			validate: func(*admission.Attributes) error { stage("admission"); return nil },
		}}
	})
	table := s.find("configmaps").table
	for _, name := range []string{"a", "b", "c"} {
		s.add("configmaps", configMap("default", name))
	}
	stored := table.LastChange()
	for _, r := range []struct{ method, path, contentType, body string }{
		{"POST", configMapsPath, mediaJSON, `{"metadata":{"name":"new"}}`},
		{"PUT", configMapsPath + "/a", mediaJSON, `{"metadata":{"name":"a"}}`},
		{"PATCH", configMapsPath + "/a", strategicPatch, `{"data":{"a":"b"}}`},
		{"PATCH", configMapsPath + "/a", mergePatch, `{"data":{"a":"b"}}`},
		{"PATCH", configMapsPath + "/a?fieldManager=m&force=true", applyPatch, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"b"}}`},
		{"DELETE", configMapsPath + "/a", mediaJSON, ""},
		{"DELETE", configMapsPath, mediaJSON, ""},
	} {
		for _, cancelAt = range []string{"defaults", "mutation", "validation", "admission"} {
			if r.method == "DELETE" && (cancelAt == "defaults" || cancelAt == "validation") {
				continue
			}
			stages = nil
			var ctx context.Context
			ctx, cancel = context.WithCancel(t.Context())
			req := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body)).WithContext(ctx)
			req.Header.Set("Authorization", "Bearer admin")
			req.Header.Set("Content-Type", r.contentType)
			recorder := httptest.NewRecorder()
			s.Handler().ServeHTTP(recorder, req)
			cancel()
			if len(stages) == 0 || stages[len(stages)-1] != cancelAt || recorder.Code < 400 {
				t.Errorf("%s %s, cancelled at %s: stages %v, code %d %s", r.method, r.contentType, cancelAt, stages, recorder.Code, recorder.Body)
			}
			if now := table.LastChange(); now != stored {
				t.Errorf("%s %s, cancelled at %s: something was stored", r.method, r.contentType, cancelAt)
				stored = now
			}
		}
	}
}
