package container

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// IsSidecar reports whether an init container is a sidecar, which keeps running while the regular containers do.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsRegularInit reports whether a container is an init container that runs to completion before the next one starts, not a sidecar.
func IsRegularInit(spec *corev1.PodSpec, name string) bool {
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == name {
			return !IsSidecar(&spec.InitContainers[i])
		}
	}
	return false
}

// ShouldRestart reports whether a container is restarted after it exited with a code: according to the first of its
// restart rules that matches, else its own restart policy, else its pod's.
func ShouldRestart(c *corev1.Container, spec *corev1.PodSpec, code int32) bool {
	policy := string(spec.RestartPolicy)
	if c.RestartPolicy != nil {
		if rule := MatchingRestartRule(c, code); rule != nil {
			return true // both actions, Restart and RestartAllContainers, restart it
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

// MatchingRestartRule returns the first restart rule that matches an exit code, or nil.
func MatchingRestartRule(c *corev1.Container, code int32) *corev1.ContainerRestartRule {
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

// RestartsAllContainers reports whether all containers of the pod are restarted after a container exited with a code.
func RestartsAllContainers(c *corev1.Container, code int32) bool {
	rule := MatchingRestartRule(c, code)
	return rule != nil && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// HasRestartAllRule reports whether a container of the pod has a restart rule with the action RestartAllContainers.
func HasRestartAllRule(spec *corev1.PodSpec) bool {
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
