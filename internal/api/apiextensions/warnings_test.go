package apiextensions

import (
	"fmt"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestCostOfWarnings: the warnings of a change take time that grows with the number of fields, not with its square.
func TestCostOfWarnings(t *testing.T) {
	withFormats := func(n int, prefix string) *definition {
		crd := crontab(t)
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		for i := range n {
			properties[fmt.Sprint("a", i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Format: fmt.Sprint(prefix, i)}
		}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
		return crd
	}
	// took is the least time of some attempts: a busy machine makes others longer.
	took := func(n int) time.Duration {
		crd, old := withFormats(n, "new"), withFormats(n, "old")
		least := time.Hour
		for range 3 {
			began := time.Now()
			if got := warnings(crd, old); len(got) != n {
				t.Fatalf("%d warnings of %d fields", len(got), n)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	const fields, factor, allowed = 2000, 8, 24
	var ratio float64
	for range 5 {
		if ratio = float64(took(fields*factor)) / float64(took(fields)); ratio <= allowed {
			return
		}
	}
	t.Errorf("%d times the fields take %.0f times as long", factor, ratio)
}
