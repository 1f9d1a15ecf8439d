package fairness

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/ptr"
)

func TestNominalSeats(t *testing.T) {
	f := standard(600)
	for name, want := range map[string]bounds{
		"exempt":          {0, 0, 600},
		"catch-all":       {13, 13, 613},
		"global-default":  {49, 24, 649},
		"leader-election": {25, 25, 625},
		"node-high":       {98, 73, 698},
		"system":          {74, 50, 674},
		"workload-high":   {98, 49, 698},
		"workload-low":    {245, 24, 845},
	} {
		if got := f.levels[name].bounds; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	// The seats of one request: 15 % of the level's, or what leaves room for a hand of queues.
	for name, want := range map[string]int{"global-default": 8, "workload-low": 37, "leader-election": 4, "catch-all": 0, "exempt": 0} {
		if got := f.levels[name].maxSeatsPerRequest; got != want {
			t.Errorf("%s: one request may take %d seats, want %d", name, got, want)
		}
	}
}

func TestDivide(t *testing.T) {
	level := func(nominal, least, most, peak int, wanted float64) *allocation {
		return &allocation{bounds: bounds{nominal, least, most}, peak: peak, smoothed: wanted, current: nominal}
	}
	exempt := func(least, peak int) *allocation {
		return &allocation{bounds: bounds{min: least}, exempt: true, peak: peak}
	}
	for _, test := range []struct {
		name        string
		seats       int
		allocations []*allocation
		want        []int
	}{
		{"nobody wants anything: by what is kept", 100, []*allocation{level(50, 50, 150, 0, 0), level(50, 25, 150, 0, 0)}, []int{67, 33}},
		{"one lends to the other", 100, []*allocation{level(50, 50, 150, 80, 80), level(50, 20, 150, 0, 0)}, []int{80, 20}},
		{"the lender wants some back", 100, []*allocation{level(50, 50, 150, 80, 80), level(50, 20, 150, 45, 30)}, []int{55, 45}},
		{"both want more than there is", 100, []*allocation{level(50, 20, 150, 200, 200), level(50, 20, 150, 200, 200)}, []int{50, 50}},
		{"borrowing has a limit", 100, []*allocation{level(50, 50, 60, 200, 200), level(50, 0, 150, 0, 0)}, []int{60, 40}},
		{"exempt requests take from what may be lent", 100, []*allocation{exempt(0, 70), level(50, 10, 150, 50, 50), level(50, 10, 150, 50, 50)}, []int{70, 15, 15}},
		{"and never from what may not", 100, []*allocation{exempt(0, 500), level(50, 10, 150, 50, 50), level(50, 30, 150, 50, 50)}, []int{500, 10, 30}},
	} {
		divide(test.seats, test.allocations)
		for i, c := range test.allocations {
			if c.current != test.want[i] {
				t.Errorf("%s: level %d got %d, want %d", test.name, i, c.current, test.want[i])
			}
		}
	}
}

// TestDivideIsFair: all seats are given, nobody is outside his bounds, and whoever is inside gets the same part of his target.
func TestDivideIsFair(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		var allocations []*allocation
		seats := 0
		for range random.IntN(8) + 1 {
			nominal := random.IntN(200)
			least := random.IntN(nominal + 1)
			c := &allocation{bounds: bounds{nominal, least, nominal + random.IntN(300)}, peak: random.IntN(400)}
			c.smoothed = random.Float64() * float64(c.peak)
			allocations = append(allocations, c)
			seats += nominal
		}
		factor := divide(seats, allocations)
		sum := 0
		for _, c := range allocations {
			sum += c.current
			if c.current < c.min || c.current > c.max {
				t.Fatalf("%+v is outside its bounds", *c)
			}
			if c.current > c.minimum() && c.current < c.max && math.Abs(float64(c.current)-factor*max(c.target, minTarget)) > 0.51 {
				t.Fatalf("%+v does not get %f of its target", *c, factor)
			}
		}
		if difference := sum - seats; factor > 0 && (difference < -len(allocations) || difference > len(allocations)) {
			t.Fatalf("%d seats given of %d", sum, seats)
		}
	}
}

func TestBorrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, lender := ownLevel("busy", 10, usual), ownLevel("lender", 10, usual)
		busy.Spec.Limited.BorrowingLimitPercent = nil
		lender.Spec.Limited.BorrowingLimitPercent = nil
		lender.Spec.Limited.LendablePercent = ptr.To[int32](60)
		toLender := everyoneTo("lender")
		toLender.Name, toLender.Spec.MatchingPrecedence = "lender", 50
		toLender.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "owner"}}},
			ResourceRules: toLender.Spec.Rules[0].ResourceRules,
		}}
		f := New(25)
		f.Configure([]*flowcontrolv1.PriorityLevelConfiguration{busy, lender}, []*flowcontrolv1.FlowSchema{everyoneTo("busy"), toLender})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.Run(ctx) })
		load := func(user string, clients int, end time.Duration) {
			stop := time.Now().Add(end)
			for range clients {
				wg.Go(func() {
					for time.Now().Before(stop) {
						request(f, user, Work{}, time.Minute, 100*time.Millisecond)
					}
				})
			}
		}
		load("borrower", 50, 90*time.Second)
		time.Sleep(25 * time.Second)
		if got := f.limitOf("busy"); got < 15 || got > 16 {
			t.Errorf("with the lender idle the busy level has %d seats", got)
		}
		if got := f.limitOf("lender"); got != 4 {
			t.Errorf("the idle lender keeps %d seats", got)
		}
		load("owner", 50, 60*time.Second)
		time.Sleep(25 * time.Second)
		if got := f.limitOf("lender"); got < 10 {
			t.Errorf("the lender got back only %d seats", got)
		}
		if got := f.limitOf("busy"); got > 11 {
			t.Errorf("the busy level still has %d seats", got)
		}
		time.Sleep(2 * time.Minute)
		cancel()
		wg.Wait()
		checkEmpty(t, f)
	})
}
