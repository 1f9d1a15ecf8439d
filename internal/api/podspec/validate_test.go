package podspec

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// story is one case of a testdata file: a specification, optionally annotations and the stored object, and the expected
// output.
type story struct {
	name     string
	sections []section
}

// section is a part of a story. The first has no name and contains the specification.
type section struct{ name, text string }

func (s *story) find(name string) (string, bool) {
	for _, section := range s.sections {
		if section.name == name {
			return section.text, true
		}
	}
	return "", false
}

func (s *story) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}
	spec, _ := s.find("")
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	annotations, _ := s.find("annotations")
	if err := yaml.UnmarshalStrict([]byte(annotations), &pod.Annotations); err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	if pod.Spec.Containers == nil {
		pod.Spec.Containers = []corev1.Container{{Name: "web", Image: "nginx"}}
	}
	Default(&pod.Spec)
	return pod
}

func readStories(t *testing.T, file string) []story {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var stories []story
	for _, text := range strings.Split("\n"+string(data), "\n=== ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		s := story{name: name}
		for i, part := range strings.Split("\n"+rest, "\n--- ") {
			section := section{text: part}
			if i > 0 {
				section.name, section.text, _ = strings.Cut(part, "\n")
			}
			section.text = strings.Trim(section.text, "\n")
			s.sections = append(s.sections, section)
		}
		stories = append(stories, s)
	}
	return stories
}

// checkStories compares the output for each story with the story's last section, or rewrites the file with -update.
func checkStories(t *testing.T, file, last string, output func(s *story) []string) {
	t.Helper()
	stories := readStories(t, file)
	var rewritten strings.Builder
	for i := range stories {
		s := &stories[i]
		got := strings.Join(output(s), "\n")
		if want, _ := s.find(last); got != want && !*update {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", s.name, got, want)
		}
		s.sections = slices.DeleteFunc(s.sections, func(section section) bool { return section.name == last })
		if got != "" {
			s.sections = append(s.sections, section{last, got})
		}
		rewritten.WriteString("=== " + s.name + "\n")
		for k, section := range s.sections {
			if k > 0 {
				rewritten.WriteString("--- " + section.name + "\n")
			}
			if section.text != "" {
				rewritten.WriteString(section.text + "\n")
			}
		}
		if i < len(stories)-1 {
			rewritten.WriteString("\n")
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(rewritten.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func lines(errs field.ErrorList) []string {
	var lines []string
	for _, err := range errs {
		lines = append(lines, err.Error())
	}
	return lines
}

// TestValidatePod validates the pods of testdata/validate.txt. The errors there are upstream's, in our order.
func TestValidatePod(t *testing.T) {
	checkStories(t, "testdata/validate.txt", "errors", func(s *story) []string {
		pod := s.pod(t)
		if _, stored := s.find("old"); stored {
			return lines(ValidatePod(pod, pod.DeepCopy()))
		}
		return lines(ValidateNewPod(pod))
	})
}
