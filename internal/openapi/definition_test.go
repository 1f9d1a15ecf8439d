package openapi

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const core = "io.k8s.api.core.v1."

// get parses one definition.
func get(t *testing.T, name string) *spec.Schema {
	t.Helper()
	all, err := Definitions(name)
	if err != nil {
		t.Fatal(err)
	}
	return all[name]
}

func TestEveryDefinition(t *testing.T) {
	total := 0
	for pkg, f := range files {
		f.block("")
		for name := range f.blocks {
			total++
			if name[:len(pkg)] != pkg {
				t.Errorf("%s is in the file of %s", name, pkg)
			}
			// It can be parsed, and everything it refers to exists.
			if _, err := Definitions(name); err != nil {
				t.Error(err)
			}
		}
	}
	// The definitions of upstream's stable versions in 1.37, and six for metrics.k8s.io, which skiff serves itself.
	if total != 624+6 {
		t.Errorf("%d definitions", total)
	}
}

func TestExtensions(t *testing.T) {
	for _, c := range []struct {
		definition, property string
		want                 map[string]any
	}{
		{core + "PodSpec", "containers", map[string]any{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"},
			"x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge"}},
		{core + "Container", "ports", map[string]any{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"containerPort", "protocol"},
			"x-kubernetes-patch-merge-key": "containerPort", "x-kubernetes-patch-strategy": "merge"}},
		{core + "ServiceSpec", "ports", map[string]any{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"port", "protocol"},
			"x-kubernetes-patch-merge-key": "port", "x-kubernetes-patch-strategy": "merge"}},
		{core + "Container", "command", map[string]any{"x-kubernetes-list-type": "atomic"}},
		{core + "ServiceSpec", "selector", map[string]any{"x-kubernetes-map-type": "atomic"}},
		{"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", map[string]any{"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}},
	} {
		p := get(t, c.definition).Properties[c.property]
		if got := map[string]any(p.Extensions); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s.%s: got %v, want %v", c.definition, c.property, got, c.want)
		}
	}
	if got := get(t, core+"SecretKeySelector").Extensions["x-kubernetes-map-type"]; got != "atomic" {
		t.Errorf("a selector is one value: %v", got)
	}
	wantKind := []any{map[string]any{"group": "", "kind": "Pod", "version": "v1"}}
	if got := get(t, core+"Pod").Extensions["x-kubernetes-group-version-kind"]; !reflect.DeepEqual(got, wantKind) {
		t.Errorf("Pod is of kind %v", got)
	}
}

func TestValues(t *testing.T) {
	container := get(t, core+"Container")
	policy := container.Properties["imagePullPolicy"]
	if want := []any{"Always", "IfNotPresent", "Never"}; !reflect.DeepEqual(policy.Enum, want) {
		t.Errorf("imagePullPolicy: %v", policy.Enum)
	}
	protocol := get(t, core+"ContainerPort").Properties["protocol"]
	if protocol.Default != "TCP" {
		t.Errorf("protocol defaults to %v", protocol.Default)
	}
	if got := container.Required; !reflect.DeepEqual(got, []string{"name"}) {
		t.Errorf("a container requires %v", got)
	}
	resources := container.Properties["resources"]
	if len(resources.AllOf) != 1 || !reflect.DeepEqual(resources.Default, map[string]any{}) {
		t.Errorf("a struct that is always written defaults to an empty one, next to its reference: %+v", resources.SchemaProps)
	}
	port := get(t, "io.k8s.apimachinery.pkg.util.intstr.IntOrString")
	if port.Format != "int-or-string" || len(port.OneOf) != 2 {
		t.Errorf("IntOrString: %+v", port.SchemaProps)
	}
	data := get(t, core+"Secret").Properties["data"]
	if data.AdditionalProperties.Schema.Format != "byte" {
		t.Errorf("secret data: %+v", data.SchemaProps)
	}
}

func TestName(t *testing.T) {
	for gvk, want := range map[schema.GroupVersionKind]string{
		{Version: "v1", Kind: "Pod"}:                                                     "io.k8s.api.core.v1.Pod",
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}:                "io.k8s.api.rbac.v1.Role",
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
		{Group: "stable.example.com", Version: "v1beta1", Kind: "CronTab"}:               "com.example.stable.v1beta1.CronTab",
		{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}:             "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService",
	} {
		if got := Name(gvk); got != want {
			t.Errorf("%s: got %s, want %s", gvk, got, want)
		}
	}
}
