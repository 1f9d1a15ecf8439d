package config

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRuntimeConfig(t *testing.T) {
	resources := []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"}, {Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "batch", Version: "v1beta1", Resource: "cronjobs"}, {Group: "batch", Version: "v1", Resource: "cronjobs"}, {Group: "x", Version: "v1alpha1", Resource: "ys"},
	}
	for _, test := range []struct {
		value, disabled, err string
	}{
		{"", "", ""},
		{"apps/v1=false", "apps/v1/deployments apps/v1/daemonsets", ""},
		{"apps/v1=false,apps/v1=true", "", ""},
		{"apps/v1", "", ""},
		{"api/v1=false", "", "unknown api groups api/v1"},
		{"api/beta=false, api/alpha=false", "batch/v1beta1/cronjobs x/v1alpha1/ys", ""},
		{"api/beta=false,batch/v1beta1=true", "", ""},
		{"api/all=false,api/ga=true", "batch/v1beta1/cronjobs x/v1alpha1/ys", ""},
		{"apps/v1/deployments=false", "apps/v1/deployments", ""},
		{"apps/v1/deployments=true,apps/v1=false", "apps/v1/daemonsets", ""},
		{"api/all=false,apps/v1/daemonsets", "/v1/pods apps/v1/deployments batch/v1beta1/cronjobs batch/v1/cronjobs x/v1alpha1/ys", ""},
		{"api/all=false", "", "invalid runtime-config with only api/all=false"},
		{"api/ga=maybe", "", "invalid value api/ga=maybe"},
		{"apps/v1=maybe", "", "invalid value of apps/v1: maybe, err: "},
		{"v1=false", "", "runtime-config invalid key v1"},
		{"apps/v1/deployments/status=false", "", "runtime-config invalid key apps/v1/deployments/status"},
		{"none/v1=false", "", "unknown api groups none/v1"},
		{"apps/v2=false", "", "group version apps/v2 that has not been registered"},
		{"apps/v1/Deployments=false", "", "resource is always lowercase plural"},
		{"apps/v1/things=false", "", `there is no resource "things" in apps/v1`},
	} {
		var c RuntimeConfig
		if err := c.Set(test.value); err != nil {
			t.Fatal(err)
		}
		disabled, err := c.Disabled(resources)
		checkError(t, err, test.err)
		var names []string
		for _, r := range resources {
			if disabled[r] {
				names = append(names, r.Group+"/"+r.Version+"/"+r.Resource)
			}
		}
		if got := strings.Join(names, " "); got != test.disabled {
			t.Errorf("%q: disabled %q, want %q", test.value, got, test.disabled)
		}
	}
}
