package admission

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// mergeTolerations merges two lists and drops tolerations that another one covers. Of equal ones the first is kept; of those that cover each
// other and are not equal, the last.
func mergeTolerations(first, second []corev1.Toleration) (merged []corev1.Toleration) {
	all := slices.Concat(first, second)
	longest := make(map[tolerationScope]tolerationPeriod, len(all))
	kept := make(map[tolerationClass]int, len(all))
	for i := range all {
		t := &all[i]
		scope, class := scopeOf(t), classOf(t)
		longest[scope] = longest[scope].extend(t.TolerationSeconds)
		if k, found := kept[class]; !found || !equalTolerations(&all[k], t) {
			kept[class] = i
		}
	}
	for i := range all {
		if t := &all[i]; kept[classOf(t)] == i && !isCovered(t, longest) {
			merged = append(merged, *t)
		}
	}
	return merged
}

// tolerationScope is the taints that a toleration matches, without how long it does.
type tolerationScope struct {
	key, value string // Exists has no value
	operator   corev1.TolerationOperator
	effect     corev1.TaintEffect
}

func scopeOf(t *corev1.Toleration) tolerationScope {
	scope := tolerationScope{key: t.Key, value: t.Value, operator: t.Operator, effect: t.Effect}
	if t.Operator == corev1.TolerationOpExists {
		scope.value = ""
	}
	return scope
}

// tolerationPeriod is the longest time that the tolerations of a scope last.
type tolerationPeriod struct {
	present, forever bool
	seconds          int64
}

func (p tolerationPeriod) extend(seconds *int64) tolerationPeriod {
	switch {
	case seconds == nil:
		p.forever = true
	case !p.present || *seconds > p.seconds:
		p.seconds = *seconds
	}
	p.present = p.present || seconds != nil
	return p
}

// tolerationClass has tolerations that cover each other. The time matters only for the effect NoExecute, and to operators that cover nothing
// but what is equal.
type tolerationClass struct {
	tolerationScope
	limited bool
	seconds int64
}

func classOf(t *corev1.Toleration) tolerationClass {
	class := tolerationClass{tolerationScope: scopeOf(t)}
	covers := t.Operator == corev1.TolerationOpExists || t.Operator == corev1.TolerationOpEqual
	if t.TolerationSeconds != nil && (t.Effect == corev1.TaintEffectNoExecute || !covers) {
		class.limited, class.seconds = true, *t.TolerationSeconds
	}
	return class
}

func equalTolerations(a, b *corev1.Toleration) bool {
	if (a.TolerationSeconds == nil) != (b.TolerationSeconds == nil) || a.TolerationSeconds != nil && *a.TolerationSeconds != *b.TolerationSeconds {
		return false
	}
	return a.Key == b.Key && a.Value == b.Value && a.Operator == b.Operator && a.Effect == b.Effect
}

// isCovered reports whether a toleration that is not of the same class covers t.
func isCovered(t *corev1.Toleration, longest map[tolerationScope]tolerationPeriod) bool {
	own := scopeOf(t)
	for _, effect := range []corev1.TaintEffect{t.Effect, ""} {
		wider := []tolerationScope{
			{key: t.Key, operator: corev1.TolerationOpExists, effect: effect}, {operator: corev1.TolerationOpExists, effect: effect},
		}
		if t.Operator == corev1.TolerationOpEqual {
			wider = append(wider,
				tolerationScope{key: t.Key, value: t.Value, operator: corev1.TolerationOpEqual, effect: effect},
				tolerationScope{key: t.Key, value: t.Value, effect: effect})
		}
		for _, scope := range wider {
			if period, found := longest[scope]; found && period.outlasts(t, scope.effect, scope == own) {
				return true
			}
		}
	}
	return false
}

// outlasts reports whether one of the tolerations with the period covers t; same: t is one of them.
func (p tolerationPeriod) outlasts(t *corev1.Toleration, effect corev1.TaintEffect, same bool) bool {
	switch seconds := t.TolerationSeconds; {
	case effect != corev1.TaintEffectNoExecute:
		return !same
	case seconds == nil:
		return p.forever && !same
	case same:
		return p.forever || p.seconds > *seconds
	default:
		return p.forever || p.seconds >= *seconds
	}
}
