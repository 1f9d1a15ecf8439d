package scaling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

const (
	byPods    = autoscalingv2.PodsScalingPolicy
	byPercent = autoscalingv2.PercentScalingPolicy
	theMost   = autoscalingv2.MaxChangePolicySelect
	theLeast  = autoscalingv2.MinChangePolicySelect
	switchOff = autoscalingv2.DisabledPolicySelect
)

func policy(kind autoscalingv2.HPAScalingPolicyType, value, period int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: period}
}

func rules(choice autoscalingv2.ScalingPolicySelect, policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{SelectPolicy: &choice, Policies: policies}
}

// window adds a stabilization window to rules.
func window(seconds int32, r *autoscalingv2.HPAScalingRules) *autoscalingv2.HPAScalingRules {
	r.StabilizationWindowSeconds = &seconds
	return r
}

func both(up, down *autoscalingv2.HPAScalingRules) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}
}

// TestLimitsWithoutBehavior: at most twice as many, or four, within the bounds.
func TestLimitsWithoutBehavior(t *testing.T) {
	texts := map[string]string{
		"DesiredWithinRange": "the desired count is within the acceptable range", "TooFewReplicas": "the desired replica count is less than the minimum replica count",
		"TooManyReplicas": "the desired replica count is more than the maximum replica count", "ScaleUpLimit": "the desired replica count is increasing faster than the maximum scale rate",
	}
	for _, test := range []struct {
		least, most, current, desired, want int32
		reason                              string
	}{
		{1, 10, 3, 3, 3, "DesiredWithinRange"},
		{1, 10, 3, 6, 6, "DesiredWithinRange"},
		{1, 10, 3, 7, 6, "ScaleUpLimit"},
		{1, 10, 1, 4, 4, "DesiredWithinRange"},
		{1, 10, 1, 5, 4, "ScaleUpLimit"},
		{0, 10, 0, 5, 4, "ScaleUpLimit"},
		{1, 10, 2, 5, 4, "ScaleUpLimit"},
		{1, 10, 5, 10, 10, "DesiredWithinRange"},
		{1, 10, 5, 11, 10, "TooManyReplicas"},
		{1, 10, 6, 100, 10, "TooManyReplicas"},
		{1, 4, 1, 9, 4, "TooManyReplicas"}, // the limit and the bound are the same: the bound is reported
		{2, 10, 5, 2, 2, "DesiredWithinRange"},
		{2, 10, 5, 1, 2, "TooFewReplicas"},
		{0, 10, 5, 0, 0, "DesiredWithinRange"},
		{1, 10, 5, 0, 1, "TooFewReplicas"},
		{5, 10, 1, 3, 5, "TooFewReplicas"},
		{1, math.MaxInt32, 2000000000, math.MaxInt32, math.MaxInt32, "DesiredWithinRange"},
	} {
		got, reason, message := (replicaBounds{min: test.least, max: test.most}).limit(test.current, test.desired)
		if got != test.want || reason != test.reason || message != texts[test.reason] {
			t.Errorf("%+v: %d %s: %s", test, got, reason, message)
		}
	}
}

// TestRateOfPolicies: how far policies let the number of pods go.
func TestRateOfPolicies(t *testing.T) {
	added := func(n int32, before time.Duration) scaleEvent { return scaleEvent{n, now.Add(-before)} }
	for _, test := range []struct {
		what    string
		rules   *autoscalingv2.HPAScalingRules
		up      bool
		current int32
		steps   []scaleEvent
		want    int32
	}{
		{"pods up", rules(theMost, policy(byPods, 4, 60)), true, 10, nil, 14},
		{"pods down", rules(theMost, policy(byPods, 4, 60)), false, 10, nil, 6},
		{"more down than there are", rules(theMost, policy(byPods, 40, 60)), false, 10, nil, -30},
		{"percent up, rounded up", rules(theMost, policy(byPercent, 10, 60)), true, 11, nil, 13},
		{"percent up of one", rules(theMost, policy(byPercent, 1, 60)), true, 1, nil, 2},
		{"percent up of none", rules(theMost, policy(byPercent, 100, 60)), true, 0, nil, 0},
		{"percent down: what stays is rounded down", rules(theMost, policy(byPercent, 10, 60)), false, 11, nil, 9},
		{"all down", rules(theMost, policy(byPercent, 100, 60)), false, 11, nil, 0},
		{"more than all up", rules(theMost, policy(byPercent, 900, 60)), true, 10, nil, 100},
		{"the further of two, up", rules(theMost, policy(byPods, 4, 60), policy(byPercent, 10, 60)), true, 10, nil, 14},
		{"the nearer of two, up", rules(theLeast, policy(byPods, 4, 60), policy(byPercent, 10, 60)), true, 10, nil, 11},
		{"the further of two, down", rules(theMost, policy(byPods, 4, 60), policy(byPercent, 10, 60)), false, 10, nil, 6},
		{"the nearer of two, down", rules(theLeast, policy(byPods, 4, 60), policy(byPercent, 10, 60)), false, 10, nil, 9},
		{"off, up", rules(switchOff, policy(byPods, 4, 60)), true, 10, nil, 10},
		{"off, down", rules(switchOff, policy(byPods, 4, 60)), false, 10, nil, 10},
		{"nobody chose: the further", &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{policy(byPods, 1, 60), policy(byPods, 2, 60)}}, true, 10, nil, 12},
		{"what was added in the period counts", rules(theMost, policy(byPods, 4, 60)), true, 10, []scaleEvent{added(3, 30*time.Second)}, 11},
		{"what was added before does not", rules(theMost, policy(byPods, 4, 60)), true, 10, []scaleEvent{added(3, 61*time.Second)}, 14},
		{"exactly a period ago does not", rules(theMost, policy(byPods, 4, 60)), true, 10, []scaleEvent{added(3, time.Minute)}, 14},
		{"all that was added in the period", rules(theMost, policy(byPods, 4, 60)), true, 10, []scaleEvent{added(3, time.Second), added(2, 2*time.Second)}, 9},
		{"what was removed meanwhile gives room", rules(theMost, policy(byPods, 4, 60)), true, 10, []scaleEvent{added(3, time.Second), added(-2, 2*time.Second)}, 13},
		{"percents of where the period began", rules(theMost, policy(byPercent, 100, 60)), true, 10, []scaleEvent{added(5, time.Second)}, 10},
		{"down, what was removed counts", rules(theMost, policy(byPods, 4, 60)), false, 10, []scaleEvent{added(-3, time.Second)}, 9},
		{"down, what was added gives room", rules(theMost, policy(byPods, 4, 60)), false, 10, []scaleEvent{added(3, time.Second)}, 3},
		{"every policy has its own period", rules(theMost, policy(byPods, 4, 60), policy(byPods, 5, 600)), true, 10, []scaleEvent{added(3, 2*time.Minute)}, 14},
		{"the nearer by its own period", rules(theLeast, policy(byPods, 4, 60), policy(byPods, 5, 600)), true, 10, []scaleEvent{added(3, 2*time.Minute)}, 12},
	} {
		if got := rate(test.rules, test.current, test.steps, now, test.up); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

// TestLimitsWithBehavior: rates and bounds together, and what is reported.
func TestLimitsWithBehavior(t *testing.T) {
	slow := both(rules(theMost, policy(byPods, 2, 60)), rules(theMost, policy(byPods, 2, 60)))
	for _, test := range []struct {
		what                                string
		behavior                            *autoscalingv2.HorizontalPodAutoscalerBehavior
		least, most, current, desired, want int32
		steps                               []scaleEvent
		reason                              string
	}{
		{"as it is", slow, 1, 10, 5, 5, 5, nil, inRange},
		{"as it is, although out of bounds: others see to that", slow, 1, 4, 5, 5, 5, nil, inRange},
		{"up within the rate", slow, 1, 10, 5, 7, 7, nil, inRange},
		{"up beyond the rate", slow, 1, 10, 5, 8, 7, nil, upLimit},
		{"up beyond both, the bound is nearer", slow, 1, 6, 5, 8, 6, nil, tooMany},
		{"up beyond both at once: the bound is told", slow, 1, 7, 5, 8, 7, nil, tooMany},
		{"up, the rate is used up", slow, 1, 10, 5, 8, 5, []scaleEvent{{3, now.Add(-time.Second)}}, upLimit},
		{"down within the rate", slow, 1, 10, 5, 3, 3, nil, inRange},
		{"down beyond the rate", slow, 1, 10, 5, 1, 3, nil, downLimit},
		{"down beyond the bound", slow, 4, 10, 5, 1, 4, nil, tooFew},
		{"down beyond both at once: the bound is told", slow, 3, 10, 5, 1, 3, nil, tooFew},
		{"down, the rate is used up", slow, 1, 10, 5, 1, 5, []scaleEvent{{-3, now.Add(-time.Second)}}, downLimit},
		{"to zero", both(nil, rules(theMost, policy(byPercent, 100, 15))), 0, 10, 5, 0, 0, nil, inRange},
	} {
		got, reason, _ := (replicaBounds{min: test.least, max: test.most}).limitBy(test.behavior, test.current, test.desired, test.steps, now)
		if got != test.want || reason != test.reason {
			t.Errorf("%s: %d %s, want %d %s", test.what, got, reason, test.want, test.reason)
		}
	}
}

// TestStabilizationWindows: the highest and the lowest of recent advice, and where windows end.
func TestStabilizationWindows(t *testing.T) {
	at := func(n int32, before time.Duration) recommendation { return recommendation{n, now.Add(-before)} }
	for _, test := range []struct {
		what   string
		advice []recommendation
		window time.Duration
		want   int32
	}{
		{"nothing was recommended before", nil, time.Minute, 5},
		{"more was recommended before", []recommendation{at(9, 30*time.Second)}, time.Minute, 9},
		{"less was recommended before", []recommendation{at(2, 30*time.Second)}, time.Minute, 5},
		{"the most of several", []recommendation{at(7, 10*time.Second), at(9, 20*time.Second), at(8, 30*time.Second)}, time.Minute, 9},
		{"before the window", []recommendation{at(9, 61*time.Second)}, time.Minute, 5},
		{"exactly at its beginning", []recommendation{at(9, time.Minute)}, time.Minute, 9},
		{"no window", []recommendation{at(9, time.Second)}, 0, 5},
		{"no window, now", []recommendation{at(9, 0)}, 0, 9},
	} {
		h := scaleHistory{recommendations: test.advice}
		if got, reason, text := h.stabilize(5, test.window, now); got != test.want || reason != "ScaleDownStabilized" ||
			text != "recent recommendations were higher than current one, applying the highest recent recommendation" {
			t.Errorf("%s: %d %s %s", test.what, got, reason, text)
		}
	}
	for _, test := range []struct {
		what                   string
		advice                 []recommendation
		up, down               int32 // seconds; negative: not set
		current, desired, want int32
		reason                 string
	}{
		{"up at once", []recommendation{at(3, time.Second)}, 0, 300, 5, 9, 9, upStable},
		{"up after a window in which less was recommended", []recommendation{at(7, 30*time.Second)}, 60, 0, 5, 9, 7, upStable},
		{"less than there are was recommended: they stay", []recommendation{at(3, 30*time.Second)}, 60, 0, 5, 9, 5, upStable},
		{"before the window, up", []recommendation{at(7, 61*time.Second)}, 60, 0, 5, 9, 9, upStable},
		{"exactly at its beginning is before it, up", []recommendation{at(7, 60*time.Second)}, 60, 0, 5, 9, 9, upStable},
		{"down at once", []recommendation{at(9, time.Second)}, 0, 0, 5, 2, 2, downStable},
		{"down after a window in which more was recommended", []recommendation{at(4, 30*time.Second)}, 0, 60, 5, 2, 4, downStable},
		{"more than there are was recommended: they stay", []recommendation{at(9, 30*time.Second)}, 0, 60, 5, 2, 5, downStable},
		{"before the window, down", []recommendation{at(4, 61*time.Second)}, 0, 60, 5, 2, 2, downStable},
		{"exactly at its beginning is before it, down", []recommendation{at(4, 60*time.Second)}, 0, 60, 5, 2, 2, downStable},
		{"as it is, told as if up", nil, 0, 300, 5, 5, 5, upStable},
		{"the program's window, where the rules say none", []recommendation{at(4, 4*time.Minute)}, -1, -1, 5, 2, 4, downStable},
		{"no window up, where the rules say none", []recommendation{at(7, time.Second)}, -1, -1, 5, 9, 9, upStable},
		{"both windows: between the two", []recommendation{at(8, 10*time.Second), at(6, 20*time.Second)}, 60, 60, 7, 12, 7, upStable},
	} {
		behavior := both(&autoscalingv2.HPAScalingRules{}, &autoscalingv2.HPAScalingRules{})
		if test.up >= 0 {
			window(test.up, behavior.ScaleUp)
		}
		if test.down >= 0 {
			window(test.down, behavior.ScaleDown)
		}
		h := scaleHistory{recommendations: test.advice}
		if got, reason, _ := h.stabilizeBy(behavior, test.current, test.desired, 5*time.Minute, now); got != test.want || reason != test.reason {
			t.Errorf("%s: %d %s, want %d %s", test.what, got, reason, test.want, test.reason)
		}
	}
}

// TestPrune: what no window reaches is forgotten, and nothing else.
func TestPrune(t *testing.T) {
	h := scaleHistory{}
	for i := range 10 {
		at := now.Add(-time.Duration(i) * time.Minute)
		h.recommendations, h.scaleEvents = append(h.recommendations, recommendation{int32(i), at}), append(h.scaleEvents, scaleEvent{int32(i), at})
	}
	h.prune(5*time.Minute, now)
	if got := fmt.Sprint(len(h.recommendations), len(h.scaleEvents), h.recommendations[5].replicas, h.scaleEvents[5].change); got != "6 6 5 5" {
		t.Errorf("after five minutes: %s", got)
	}
	h.prune(0, now.Add(time.Second))
	if len(h.recommendations)+len(h.scaleEvents) != 0 {
		t.Errorf("after all: %+v", h)
	}
}

// TestLimitsKeepTheirPromises: whatever is desired, the answer lies between what there is and what is desired, or in the bounds; nothing
// moves against the wish; and switched off means that nothing moves.
func TestLimitsKeepTheirPromises(t *testing.T) {
	const seed = 23
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 5000 {
		b := replicaBounds{min: random.Int32N(5), max: 5 + random.Int32N(30)}
		current, desired := b.min+random.Int32N(b.max-b.min+1), random.Int32N(60)
		side := func() *autoscalingv2.HPAScalingRules {
			r := rules([]autoscalingv2.ScalingPolicySelect{theMost, theLeast, switchOff}[random.IntN(3)])
			for range 1 + random.IntN(3) {
				r.Policies = append(r.Policies, policy([]autoscalingv2.HPAScalingPolicyType{byPods, byPercent}[random.IntN(2)], 1+random.Int32N(100), 1+random.Int32N(120)))
			}
			return r
		}
		behavior := both(side(), side())
		var steps []scaleEvent
		for range random.IntN(4) {
			steps = append(steps, scaleEvent{random.Int32N(9) - 4, now.Add(-time.Duration(random.IntN(150)) * time.Second)})
		}
		got, reason, message := b.limitBy(behavior, current, desired, steps, now)
		fail := func(why string) {
			t.Fatalf("seed %d, round %d: %s: %d of %d, desired %d, within %+v: %s", seed, round, why, got, current, desired, b, reason)
		}
		switch {
		case message == "":
			fail("nothing is told")
		case got != desired && reason == inRange || got == desired && reason != inRange:
			fail("it is told wrongly")
		case desired > current && (got < current || got > desired || got > b.max):
			fail("up")
		case desired < current && (got > current || got < desired || got < b.min):
			fail("down")
		case desired > current && *behavior.ScaleUp.SelectPolicy == switchOff && got != current:
			fail("up is off")
		case desired < current && *behavior.ScaleDown.SelectPolicy == switchOff && got != current:
			fail("down is off")
		}
		if again, _, _ := b.limitBy(behavior, current, got, steps, now); again != got {
			fail("its own answer is limited again")
		}
	}
}

// TestHistoryBesideUpstreamsBuffers: upstream keeps advice in a list whose outdated places are used again; ours forgets. The answers are
// the same, sync after sync.
func TestHistoryBesideUpstreamsBuffers(t *testing.T) {
	const seed = 3
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 200 {
		windows := []int32{0, 15, 60, 300, 3600}
		up, down := windows[random.IntN(len(windows))], windows[random.IntN(len(windows))]
		behavior := both(window(up, rules(theMost)), window(down, rules(theMost)))
		var h scaleHistory
		type timestamped struct {
			n  int32
			at time.Time
		}
		var buffer []timestamped
		at := now
		for step := range 60 {
			at = at.Add(time.Duration(1+random.IntN(40)) * time.Second)
			current, desired := random.Int32N(12), random.Int32N(12)
			h.prune(maxStabilizationWindow, at)
			got, _, _ := h.stabilizeBy(behavior, current, desired, 5*time.Minute, at)
			h.recommendations = append(h.recommendations, recommendation{desired, at})
			// The buffer.
			low, high, free := desired, desired, -1
			upCut, downCut := at.Add(-time.Duration(up)*time.Second), at.Add(-time.Duration(down)*time.Second)
			for i, s := range buffer {
				if s.at.After(upCut) {
					low = min(low, s.n)
				}
				if s.at.After(downCut) {
					high = max(high, s.n)
				}
				if s.at.Before(upCut) && s.at.Before(downCut) {
					free = i
				}
			}
			want := current
			if want < low {
				want = low
			}
			if want > high {
				want = high
			}
			if free >= 0 {
				buffer[free] = timestamped{desired, at}
			} else {
				buffer = append(buffer, timestamped{desired, at})
			}
			if got != want {
				t.Fatalf("seed %d, round %d, step %d: windows %d and %d: %d, upstream %d", seed, round, step, up, down, got, want)
			}
		}
	}
}
