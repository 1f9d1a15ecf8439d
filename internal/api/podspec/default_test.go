package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestDefault compares the defaulted specifications with testdata/default.txt and checks that defaulting is idempotent.
func TestDefault(t *testing.T) {
	checkStories(t, "testdata/default.txt", "defaulted", func(s *story) []string {
		spec := &corev1.PodSpec{}
		text, _ := s.find("")
		if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		Default(spec)
		again := spec.DeepCopy()
		Default(again)
		if !equality.Semantic.DeepEqual(spec, again) {
			t.Errorf("%s: defaults are not idempotent", s.name)
		}
		out, err := yaml.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return []string{string(out[:len(out)-1])}
	})
}

func TestDefaultTemplate(t *testing.T) {
	DefaultTemplate(nil)
	template := &corev1.PodTemplateSpec{}
	DefaultTemplate(template)
	if template.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("scheduler %q", template.Spec.SchedulerName)
	}
}

func TestPullPolicy(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for image, want := range map[string]corev1.PullPolicy{
		"nginx":                             corev1.PullAlways,
		"nginx:latest":                      corev1.PullAlways,
		"nginx:1.2":                         corev1.PullIfNotPresent,
		"localhost:5000/nginx":              corev1.PullAlways,
		"localhost:5000/nginx:v1":           corev1.PullIfNotPresent,
		"nginx" + digest:                    corev1.PullIfNotPresent,
		"nginx:latest" + digest:             corev1.PullAlways,
		"NGINX":                             corev1.PullIfNotPresent,
		"":                                  corev1.PullIfNotPresent,
		"registry.example.com/a/b/c:latest": corev1.PullAlways,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%q: %s, want %s", image, got, want)
		}
	}
}

func TestRoundUpToMilli(t *testing.T) {
	list := corev1.ResourceList{"cpu": resource.MustParse("100u"), "memory": resource.MustParse("1Gi")}
	RoundUpToMilli(list)
	if cpu, memory := list["cpu"], list["memory"]; cpu.String() != "1m" || memory.String() != "1Gi" {
		t.Errorf("rounded to %v and %v", cpu.String(), memory.String())
	}
	RoundUpToMilli(nil)
}
