package fairness

import (
	"fmt"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Dangling returns the Dangling condition of a FlowSchema, and whether it differs from the one in its status.
func Dangling(s *flowcontrolv1.FlowSchema, levels []*flowcontrolv1.PriorityLevelConfiguration, now time.Time) (flowcontrolv1.FlowSchemaCondition, bool) {
	name := s.Spec.PriorityLevelConfiguration.Name
	wanted := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionTrue, Reason: "NotFound",
		Message:            fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", name),
		LastTransitionTime: metav1.NewTime(now),
	}
	if slices.ContainsFunc(levels, func(l *flowcontrolv1.PriorityLevelConfiguration) bool { return l.Name == name && valid(l) }) {
		wanted.Status, wanted.Reason = flowcontrolv1.ConditionFalse, "Found"
		wanted.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", name)
	}
	current := slices.ContainsFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == wanted.Type && c.Status == wanted.Status && c.Reason == wanted.Reason && c.Message == wanted.Message
	})
	return wanted, !current
}
