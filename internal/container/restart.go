package container

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// IsSidecar reports whether an init container keeps running beside the regular ones.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ShouldRestart reports whether a container that ended with a code is to be started again: by the first of its own rules that
// matches, else by its own policy, else by its pod's.
func ShouldRestart(c *corev1.Container, spec *corev1.PodSpec, code int32) bool {
	policy := string(spec.RestartPolicy)
	if c.RestartPolicy != nil {
		if rule := MatchingRule(c, code); rule != nil {
			return true // both actions there are, Restart and RestartAllContainers, start it again
		}
		policy = string(*c.RestartPolicy)
	}
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	}
	return true
}

// MatchingRule is the first restart rule of a container that an exit code matches, or nil.
func MatchingRule(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
	for i := range c.RestartPolicyRules {
		rule := &c.RestartPolicyRules[i]
		if rule.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(rule.ExitCodes.Values, code)
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn:
			if listed {
				return rule
			}
		case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !listed {
				return rule
			}
		}
	}
	return nil
}

// RestartsAll reports whether a container that ended with a code wants its whole pod to begin anew.
func RestartsAll(c *corev1.Container, code int32) bool {
	rule := MatchingRule(c, code)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// AllMayRestart reports whether any container of a pod has a rule that lets all of them begin anew.
func AllMayRestart(spec *corev1.PodSpec) bool {
	for kind, c := range All(spec) {
		if kind == Ephemeral {
			continue
		}
		for _, rule := range c.RestartPolicyRules {
			if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}
