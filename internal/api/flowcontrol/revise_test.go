package flowcontrol

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

func TestReviseFlowSchema(t *testing.T) {
	const key = flowcontrolv1.AutoUpdateAnnotationKey
	annotated := func(value string) func(*flowcontrolv1.FlowSchema) {
		return func(s *flowcontrolv1.FlowSchema) { s.Annotations = map[string]string{key: value} }
	}
	changedSpec := func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = 77 }
	generation := func(n int64) func(*flowcontrolv1.FlowSchema) {
		return func(s *flowcontrolv1.FlowSchema) { s.Generation = n }
	}
	type changes = []func(*flowcontrolv1.FlowSchema)
	for _, test := range []struct {
		name       string
		changes    changes
		mandatory  bool
		revised    bool
		precedence int32 // afterwards
		annotation string
	}{
		{"as suggested", changes{annotated("true")}, false, false, 1000, "true"},
		{"changed by the administrator, with the annotation", changes{annotated("false"), changedSpec}, false, false, 77, "false"},
		{"changed, and the server keeps it current", changes{annotated("true"), changedSpec}, false, true, 1000, "true"},
		{"changed, mandatory", changes{annotated("false"), changedSpec}, true, true, 1000, "true"},
		{"new, never touched", changes{generation(1)}, false, true, 1000, "true"},
		{"outdated, never touched", changes{generation(1), changedSpec}, false, true, 1000, "true"},
		{"touched, no annotation", changes{generation(2), changedSpec}, false, true, 77, "false"},
		{"unreadable annotation, touched", changes{generation(2), annotated("perhaps"), changedSpec}, false, true, 77, "false"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wanted := schemaWith(nil)
			current := schemaWith(func(s *flowcontrolv1.FlowSchema) {
				FlowSchema.Default(s)
				for _, change := range test.changes {
					change(s)
				}
			})
			got, revised := ReviseFlowSchema(current, wanted, test.mandatory)
			if revised != test.revised || got.Spec.MatchingPrecedence != test.precedence || got.Annotations[key] != test.annotation {
				t.Errorf("revised %t, precedence %d, annotation %q", revised, got.Spec.MatchingPrecedence, got.Annotations[key])
			}
			if wanted.Spec.MatchingPrecedence != 0 {
				t.Error("what was wanted has been changed")
			}
		})
	}
}

func TestReviseExemptLevel(t *testing.T) {
	var exempt *flowcontrolv1.PriorityLevelConfiguration
	for _, l := range Mandatory().PriorityLevels {
		if l.Name == "exempt" {
			exempt = l
		}
	}
	current := exempt.DeepCopy()
	PriorityLevelConfiguration.Default(current)
	current.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}
	current.Spec.Exempt.NominalConcurrencyShares = ptr.To[int32](10)
	if _, revised := RevisePriorityLevel(current, exempt, true); revised {
		t.Error("the administrator's shares were taken back")
	}
	current.Spec.Exempt = nil
	if got, revised := RevisePriorityLevel(current, exempt, true); !revised || got.Spec.Exempt == nil {
		t.Error("a broken level was not repaired")
	}
}

func TestAutoUpdates(t *testing.T) {
	for value, want := range map[string]bool{"": false, "false": false, "perhaps": false, "true": true} {
		s := schemaWith(nil)
		if value != "" {
			s.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: value}
		}
		if HasAutoUpdateAnnotation(s) != want {
			t.Errorf("%q: %t", value, !want)
		}
	}
}
