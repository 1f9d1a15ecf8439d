package scaling

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// recommendation is a number of replicas proposed by the metrics at a time.
type recommendation struct {
	replicas int32
	at       time.Time
}

// scaleEvent is a change of the scale.
type scaleEvent struct {
	change int32 // positive when pods were added
	at     time.Time
}

// scaleHistory is the history of one autoscaler.
type scaleHistory struct {
	recommendations []recommendation
	scaleEvents     []scaleEvent
}

// prune drops entries older than the window.
func (h *scaleHistory) prune(window time.Duration, now time.Time) {
	h.recommendations = slices.DeleteFunc(h.recommendations, func(a recommendation) bool { return a.at.Before(now.Add(-window)) })
	h.scaleEvents = slices.DeleteFunc(h.scaleEvents, func(s scaleEvent) bool { return s.at.Before(now.Add(-window)) })
}

// maxStabilizationWindow is the maximum the API allows for windows and periods.
const maxStabilizationWindow = time.Hour

// replicaBounds are the minimum and maximum replicas. Reasons and messages are those of the ScalingLimited condition.
type replicaBounds struct{ min, max int32 }

const (
	inRange       = "DesiredWithinRange"
	inRangeText   = "the desired count is within the acceptable range"
	upLimit       = "ScaleUpLimit"
	upLimitText   = "the desired replica count is increasing faster than the maximum scale rate"
	downLimit     = "ScaleDownLimit"
	downLimitText = "the desired replica count is decreasing faster than the maximum scale rate"
	tooMany       = "TooManyReplicas"
	tooManyText   = "the desired replica count is more than the maximum replica count"
	tooFew        = "TooFewReplicas"
	tooFewText    = "the desired replica count is less than the minimum replica count"
)

// limit applies the limits of an autoscaler without behavior: at most twice the current replicas, or four.
func (b replicaBounds) limit(current, desired int32) (replicas int32, reason, message string) {
	most, reason, message := b.max, tooMany, tooManyText
	if byRate := bounded(max(2*float64(current), 4)); b.max > byRate {
		most, reason, message = byRate, upLimit, upLimitText
	}
	switch {
	case desired < b.min:
		return b.min, tooFew, tooFewText
	case desired > most:
		return most, reason, message
	}
	return desired, inRange, inRangeText
}

// limitBy applies the limits of a behavior.
func (b replicaBounds) limitBy(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired int32, steps []scaleEvent, now time.Time) (replicas int32, reason, message string) {
	switch {
	case desired > current:
		byRate := max(current, rate(behavior.ScaleUp, current, steps, now, true))
		most, reason, message := b.max, tooMany, tooManyText
		if most > byRate {
			most, reason, message = byRate, upLimit, upLimitText
		}
		if desired > most {
			return most, reason, message
		}
	case desired < current:
		byRate := min(current, rate(behavior.ScaleDown, current, steps, now, false))
		least, reason, message := b.min, tooFew, tooFewText
		if least < byRate {
			least, reason, message = byRate, downLimit, downLimitText
		}
		if desired < least {
			return least, reason, message
		}
	}
	return desired, inRange, inRangeText
}

// rate is the number of replicas the policies allow: the largest or smallest change, according to selectPolicy.
func rate(rules *autoscalingv2.HPAScalingRules, current int32, steps []scaleEvent, now time.Time, up bool) int32 {
	choice := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		choice = *rules.SelectPolicy
	}
	if choice == autoscalingv2.DisabledPolicySelect {
		return current
	}
	highest := (choice != autoscalingv2.MinChangePolicySelect) == up
	result := int32(math.MaxInt32)
	if highest {
		result = math.MinInt32
	}
	for _, policy := range rules.Policies {
		start := current
		for _, s := range steps {
			if s.at.After(now.Add(-time.Duration(policy.PeriodSeconds) * time.Second)) {
				start -= s.change
			}
		}
		if proposed := allowed(policy, start, up); highest {
			result = max(result, proposed)
		} else {
			result = min(result, proposed)
		}
	}
	return result
}

// allowed is the number of replicas one policy allows from the start of its period. Percentages are rounded up when scaling up: a
// small target could never grow otherwise.
func allowed(policy autoscalingv2.HPAScalingPolicy, start int32, up bool) int32 {
	switch {
	case policy.Type == autoscalingv2.PodsScalingPolicy && up:
		return start + policy.Value
	case policy.Type == autoscalingv2.PodsScalingPolicy:
		return start - policy.Value
	case up:
		return int32(math.Ceil(float64(start) * (1 + float64(policy.Value)/100)))
	default:
		return int32(float64(start) * (1 - float64(policy.Value)/100))
	}
}

const (
	downStable     = "ScaleDownStabilized"
	downStableText = "recent recommendations were higher than current one, applying the highest recent recommendation"
	upStable       = "ScaleUpStabilized"
	upStableText   = "recent recommendations were lower than current one, applying the lowest recent recommendation"
)

// stabilize returns the highest recommendation of the window, to avoid scaling down too early.
func (h *scaleHistory) stabilize(desired int32, window time.Duration, now time.Time) (replicas int32, reason, message string) {
	replicas = desired
	for _, a := range h.recommendations {
		if !a.at.Before(now.Add(-window)) {
			replicas = max(replicas, a.replicas)
		}
	}
	return replicas, downStable, downStableText
}

// stabilizeBy applies the stabilization windows of a behavior in both directions.
func (h *scaleHistory) stabilizeBy(behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired int32, window time.Duration, now time.Time) (replicas int32, reason, message string) {
	seconds := func(rules *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
		if rules.StabilizationWindowSeconds != nil {
			return time.Duration(*rules.StabilizationWindowSeconds) * time.Second
		}
		return otherwise
	}
	lowest, highest := desired, desired
	upWindow, downWindow := seconds(behavior.ScaleUp, 0), seconds(behavior.ScaleDown, window)
	for _, a := range h.recommendations {
		if a.at.After(now.Add(-upWindow)) {
			lowest = min(lowest, a.replicas)
		}
		if a.at.After(now.Add(-downWindow)) {
			highest = max(highest, a.replicas)
		}
	}
	replicas = min(max(current, lowest), highest)
	if desired >= current {
		return replicas, upStable, upStableText
	}
	return replicas, downStable, downStableText
}
