package config

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRuntimeConfig(t *testing.T) {
	versions := []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "batch", Version: "v1beta1"}, {Group: "batch", Version: "v1"}, {Group: "x", Version: "v1alpha1"}}
	for _, test := range []struct {
		value, disabled, err string
	}{
		{"", "", ""},
		{"apps/v1=false", "apps/v1", ""},
		{"apps/v1=false,apps/v1=true", "", ""},
		{"apps/v1", "", ""},
		{"api/beta=false, api/alpha=false", "batch/v1beta1 x/v1alpha1", ""},
		{"api/beta=false,batch/v1beta1=true", "", ""},
		{"api/all=false,api/ga=true", "batch/v1beta1 x/v1alpha1", ""},
		{"api/all=false", "", "invalid runtime-config with only api/all=false"},
		{"api/ga=maybe", "", "invalid value api/ga=maybe"},
		{"apps/v1=maybe", "", "invalid value of apps/v1: maybe, err: "},
		{"v1=false", "", "runtime-config invalid key v1"},
		{"none/v1=false", "", "unknown api groups none/v1"},
		{"apps/v2=false", "", "group version apps/v2 that has not been registered"},
		{"apps/v1/deployments=false", "", "only whole versions can be enabled or disabled"},
	} {
		var c RuntimeConfig
		if err := c.Set(test.value); err != nil {
			t.Fatal(err)
		}
		disabled, err := c.Disabled(versions)
		checkError(t, err, test.err)
		var names []string
		for _, gv := range versions {
			if disabled[gv] {
				names = append(names, gv.String())
			}
		}
		if got := strings.Join(names, " "); got != test.disabled {
			t.Errorf("%q: disabled %q, want %q", test.value, got, test.disabled)
		}
	}
}
