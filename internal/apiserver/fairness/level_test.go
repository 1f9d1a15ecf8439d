package fairness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/authz"
)

// ownLevel is a level with shares that neither lends nor borrows. Beside the mandatory levels, whose shares are five, it gets as
// many seats as it has shares in a server with five more.
func ownLevel(name string, shares int32, queuing *flowcontrolv1.QueuingConfiguration) *flowcontrolv1.PriorityLevelConfiguration {
	response := flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}
	if queuing != nil {
		response = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: queuing}
	}
	return &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-level"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To(shares), LendablePercent: ptr.To[int32](0), BorrowingLimitPercent: ptr.To[int32](0),
				LimitResponse: response,
			},
		},
	}
}

// everyoneTo is a schema that leads all authenticated users to a level, each as a flow.
func everyoneTo(level string) *flowcontrolv1.FlowSchema {
	s := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
	s.Name, s.UID, s.Spec.MatchingPrecedence, s.Spec.PriorityLevelConfiguration.Name = "everyone", "uid-schema", 100, level
	return s
}

func withSeats(seats int, queuing *flowcontrolv1.QueuingConfiguration) *Fairness {
	f := New(seats + 5)
	f.Configure([]*flowcontrolv1.PriorityLevelConfiguration{ownLevel("own", int32(seats), queuing)}, []*flowcontrolv1.FlowSchema{everyoneTo("own")})
	return f
}

func by(user string) *authz.Attributes {
	return attributes(user, authenticated, "get", "", "pods", "", "ns", "")
}

// request acquires seats, keeps them for a time and reports how long it waited.
func request(f *Fairness, user string, work Work, patience, takes time.Duration) (waited time.Duration, served bool) {
	began := time.Now()
	var seats Seats
	served = f.Acquire(context.Background(), by(user), work, began.Add(patience), &seats)
	waited = time.Since(began)
	if served {
		time.Sleep(takes)
		seats.Release()
	}
	return waited, served
}

func (l *level) counts() (executing, seats, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.executing, l.usedSeats, l.waiting
}

func (f *Fairness) limitOf(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.levels[name]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// checkEmpty fails unless all counts are back at nothing.
func checkEmpty(t *testing.T, f *Fairness) {
	t.Helper()
	for name, l := range f.levels {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.executing != 0 || l.usedSeats != 0 || l.waiting != 0 || l.waitingSeats != 0 || l.activeQueues != 0 || l.queueSeats != 0 || l.demand.seats != 0 {
			t.Errorf("level %s is not empty: executing %d, seats %d, waiting %d (%d seats), activeQueues %d, queued %d, demand %d",
				name, l.executing, l.usedSeats, l.waiting, l.waitingSeats, l.activeQueues, l.queueSeats, l.demand.seats)
		}
		for i, q := range l.queues {
			if q.active() || q.usedSeats != 0 || q.waitingSeats != 0 || q.first != nil || q.last != nil {
				t.Errorf("queue %d of %s is not empty: %+v", i, name, *q)
			}
		}
	}
}

var usual = &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 6, QueueLengthLimit: 50}

func TestSmallFlowIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(10, usual)
		var wg sync.WaitGroup
		began := time.Now()
		for range 250 {
			wg.Go(func() {
				if _, served := request(f, "elephant", Work{}, time.Minute, 100*time.Millisecond); !served {
					t.Error("the elephant was refused")
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		var total time.Duration
		for range 10 {
			// 24 rounds of the elephant are before it. It gets a seat in one of the first rounds that end: which one depends on the order in
			// which the ten requests of a round release their seats, because each is charged for its real duration only then.
			waited, served := request(f, "mouse", Work{}, time.Minute, 100*time.Millisecond)
			if !served || waited > 500*time.Millisecond {
				t.Errorf("the mouse waited %v", waited)
			}
			total += waited
		}
		if total > 2*time.Second {
			t.Errorf("the mouse waited %v on average", total/10)
		}
		wg.Wait()
		if took := time.Since(began); took > 2700*time.Millisecond {
			t.Errorf("all took %v: seats stood empty", took)
		}
		checkEmpty(t, f)
	})
}

func TestFlowsShareEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// With so many queues no two of the three flows meet in one.
		f := withSeats(4, &flowcontrolv1.QueuingConfiguration{Queues: 1024, HandSize: 4, QueueLengthLimit: 100})
		stop := time.Now().Add(20 * time.Second)
		served := map[string]*int{"greedy": new(int), "modest": new(int), "slow": new(int)}
		var mu sync.Mutex
		var wg sync.WaitGroup
		// greedy sends 64 at once, the others 16; what slow sends takes four times as long.
		for user, flow := range map[string]struct {
			clients int
			takes   time.Duration
		}{"greedy": {64, 20 * time.Millisecond}, "modest": {16, 20 * time.Millisecond}, "slow": {16, 80 * time.Millisecond}} {
			for range flow.clients {
				wg.Go(func() {
					for time.Now().Before(stop) {
						if _, ok := request(f, user, Work{}, time.Minute, flow.takes); ok {
							mu.Lock()
							*served[user]++
							mu.Unlock()
						}
					}
				})
			}
		}
		wg.Wait()
		greedy, modest, slow := float64(*served["greedy"]), float64(*served["modest"]), float64(*served["slow"])*4
		t.Logf("seat time: greedy %.0f, modest %.0f, slow %.0f", greedy, modest, slow)
		for _, share := range []float64{greedy, modest, slow} {
			if fair := (greedy + modest + slow) / 3; share < 0.93*fair || share > 1.07*fair {
				t.Errorf("a flow got %.0f of %.0f, where a third is fair", share, 3*fair)
			}
		}
		checkEmpty(t, f)
	})
}

func TestWideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(100, &flowcontrolv1.QueuingConfiguration{Queues: 8, HandSize: 4, QueueLengthLimit: 50})
		l := f.levels["own"]
		var wg sync.WaitGroup
		for range 25 {
			wg.Go(func() { request(f, "lister", Work{InitialSeats: 10}, time.Minute, time.Second) })
		}
		synctest.Wait()
		if running, used, waiting := l.counts(); running != 10 || used != 100 || waiting != 15 {
			t.Errorf("%d running on %d seats, %d waiting", running, used, waiting)
		}
		// A narrow request of another flow does not pass one that waits for its seats for ever, nor does it wait for all of them.
		waited, served := request(f, "getter", Work{}, time.Minute, time.Millisecond)
		if !served || waited > 1100*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
		wg.Wait()
		checkEmpty(t, f)
	})
}

func TestSizes(t *testing.T) {
	for _, test := range []struct {
		name                  string
		work                  Work
		maximum               int
		initial, final, seats int
		additionalLatency     time.Duration
	}{
		{"nothing known", Work{}, 0, 1, 0, 1, 0},
		{"a small list", ListWork(10, 1000), 0, 1, 0, 1, 0},
		{"an empty list", ListWork(0, 0), 0, 1, 0, 1, 0},
		{"a list of 350 kB", ListWork(350, 1000), 0, 4, 0, 4, 0},
		{"a huge list", ListWork(1e6, 1e4), 0, 10, 0, 10, 0},
		{"a huge list in a small level", ListWork(1e6, 1e4), 3, 3, 0, 3, 0},
		{"few watch", WriteWork(9), 0, 1, 0, 1, 0},
		{"ten watch", WriteWork(10), 0, 1, 1, 1, 5 * time.Millisecond},
		{"95 watch", WriteWork(95), 0, 1, 10, 10, 5 * time.Millisecond},
		{"1000 watch: as much work on fewer seats", WriteWork(1000), 0, 1, 10, 10, 50 * time.Millisecond},
		{"100 watch in a small level", WriteWork(100), 2, 1, 2, 2, 25 * time.Millisecond},
	} {
		var seats Seats
		seats.setWork(test.work, test.maximum)
		if seats.initial != test.initial || seats.final != test.final || seats.total != test.seats || seats.additionalLatency() != test.additionalLatency {
			t.Errorf("%s: initial %d, final %d, seats %d, for %v", test.name, seats.initial, seats.final, seats.total, seats.additionalLatency())
		}
	}
}

func TestSeatsAreKeptForWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(10, &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 50})
		l := f.levels["own"]
		request(f, "writer", WriteWork(100), time.Minute, time.Second) // two seats at most, so for 25 ms
		if running, used, _ := l.counts(); running != 0 || used != 2 {
			t.Errorf("afterwards %d running, %d seats used", running, used)
		}
		time.Sleep(25 * time.Millisecond)
		synctest.Wait()
		checkEmpty(t, f)
	})
}

func TestRefusals(t *testing.T) {
	one := &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 2}
	t.Run("a level without queues refuses at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := withSeats(1, nil)
			go request(f, "first", Work{}, time.Minute, time.Second)
			synctest.Wait()
			if waited, served := request(f, "second", Work{}, time.Minute, 0); served || waited != 0 {
				t.Errorf("served %t after %v", served, waited)
			}
			time.Sleep(2 * time.Second)
			if _, served := request(f, "third", Work{}, time.Minute, 0); !served {
				t.Error("refused when there was a seat")
			}
			checkEmpty(t, f)
			checkMetric(t, f, `rejected_requests_total{flow_schema="everyone",priority_level="own",reason="concurrency-limit"} 1`)
		})
	})
	t.Run("a full queue refuses at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := withSeats(1, one)
			var wg sync.WaitGroup
			for range 3 { // one runs, two wait
				wg.Go(func() { request(f, "first", Work{}, time.Minute, time.Second) })
			}
			synctest.Wait()
			if waited, served := request(f, "second", Work{}, time.Minute, 0); served || waited != 0 {
				t.Errorf("served %t after %v", served, waited)
			}
			wg.Wait()
			checkEmpty(t, f)
			checkMetric(t, f, `rejected_requests_total{flow_schema="everyone",priority_level="own",reason="queue-full"} 1`)
		})
	})
	t.Run("nobody waits longer than he may", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := withSeats(1, one)
			go request(f, "first", Work{}, time.Minute, time.Hour)
			synctest.Wait()
			if waited, served := request(f, "second", Work{}, 15*time.Second, 0); served || waited != 15*time.Second {
				t.Errorf("served %t after %v", served, waited)
			}
			time.Sleep(time.Hour)
			checkEmpty(t, f)
			checkMetric(t, f, `rejected_requests_total{flow_schema="everyone",priority_level="own",reason="time-out"} 1`)
		})
	})
	t.Run("a client that goes away leaves the queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := withSeats(1, one)
			go request(f, "first", Work{}, time.Minute, time.Hour)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var seats Seats
			began := time.Now()
			if f.Acquire(ctx, by("second"), Work{}, began.Add(time.Minute), &seats) || time.Since(began) != time.Second {
				t.Errorf("after %v", time.Since(began))
			}
			seats.Release() // does nothing
			if _, _, waiting := f.levels["own"].counts(); waiting != 0 {
				t.Error("it still waits")
			}
			time.Sleep(2 * time.Hour)
			checkEmpty(t, f)
		})
	})
}

// Occupy does not wait, and those that do get the seats when it has released them.
func TestOccupy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, queuing := range []*flowcontrolv1.QueuingConfiguration{nil, {Queues: 2, HandSize: 1, QueueLengthLimit: 5}} {
			f := withSeats(1, queuing)
			var first, second, third Seats
			if !f.Acquire(t.Context(), by("a"), Work{}, time.Now(), &first) {
				t.Fatal("no seat is free")
			}
			f.Occupy(by("a"), Work{}, &second)
			f.Occupy(by("b"), Work{}, &third)
			if executing, seats, _ := f.levels["own"].counts(); executing != 3 || seats != 3 || !second.Held() {
				t.Errorf("%d requests execute with %d seats", executing, seats)
			}
			first.Release()
			second.Release()
			if _, served := request(f, "c", Work{}, time.Second, 0); served {
				t.Error("a request got a seat beyond the limit")
			}
			third.Release()
			if _, served := request(f, "c", Work{}, time.Second, 0); !served {
				t.Error("a request got no seat")
			}
			checkEmpty(t, f)
		}
	})
}

func TestExemptNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(1, nil)
		admin := attributes("admin", []string{"system:masters"}, "list", "", "pods", "", "", "")
		all := make([]Seats, 1000)
		for i := range all {
			if !f.Acquire(t.Context(), admin, Work{InitialSeats: 10}, time.Now(), &all[i]) {
				t.Fatal("refused")
			}
		}
		for i := range all {
			all[i].Release()
			all[i].Release()
		}
		checkEmpty(t, f)
	})
}

// TestAllSeatsAreReleased: whatever happens, in the end nothing is running, waiting or used.
func TestAllSeatsAreReleased(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			f := withSeats(8, &flowcontrolv1.QueuingConfiguration{Queues: 16, HandSize: 3, QueueLengthLimit: 4})
			var wg sync.WaitGroup
			for range 400 {
				user, patience, takes := fmt.Sprint(random.IntN(12)), time.Duration(random.IntN(400))*time.Millisecond, time.Duration(random.IntN(90))*time.Millisecond
				work := Work{InitialSeats: random.IntN(4), FinalSeats: random.IntN(3)}
				start := time.Duration(random.IntN(2000)) * time.Millisecond
				wg.Go(func() {
					time.Sleep(start)
					request(f, user, work, patience, takes)
				})
			}
			// Meanwhile the objects change.
			for i := range 20 {
				time.Sleep(100 * time.Millisecond)
				queuing := &flowcontrolv1.QueuingConfiguration{Queues: random.Int32N(30) + 1, QueueLengthLimit: random.Int32N(6) + 1}
				queuing.HandSize = random.Int32N(min(queuing.Queues, 6)) + 1
				if i%7 == 3 {
					queuing = nil
				}
				levels := []*flowcontrolv1.PriorityLevelConfiguration{ownLevel("own", random.Int32N(10)+1, queuing)}
				if i%5 == 2 {
					levels = nil // gone while in use
				}
				f.Configure(levels, []*flowcontrolv1.FlowSchema{everyoneTo("own")})
				f.adjust()
			}
			wg.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			checkEmpty(t, f)
		})
	}
}

func TestDeletedLevelDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(1, usual)
		var wg sync.WaitGroup
		var served [3]bool
		for i := range served {
			wg.Go(func() { _, served[i] = request(f, "a", Work{}, time.Minute, time.Second) })
		}
		synctest.Wait()
		f.Configure(nil, []*flowcontrolv1.FlowSchema{everyoneTo("own")})
		if got := f.classify(by("a")).name; got != "catch-all" {
			t.Errorf("requests still go to %s", got)
		}
		f.adjust()
		if f.levels["own"] == nil {
			t.Error("the level was forgotten while requests waited in it")
		}
		wg.Wait()
		if slices.Contains(served[:], false) {
			t.Errorf("served: %v", served)
		}
		f.adjust()
		if f.levels["own"] != nil {
			t.Error("the level is still there")
		}
		if got := f.limitOf("catch-all"); got != 6 {
			t.Errorf("its seats went elsewhere: catch-all has %d of 6", got)
		}
	})
}

func TestHands(t *testing.T) {
	seen := map[int]int{}
	for flow := range uint64(20000) {
		var cards [maxHandSize]int
		s := schema{seed: flow, byUser: true}
		hand := dealHand(s.flow(by(fmt.Sprint(flow))), 64, 6, cards[:0])
		if len(hand) != 6 || !slices.IsSorted(hand) || len(slices.Compact(slices.Clone(hand))) != 6 || hand[0] < 0 || hand[5] > 63 {
			t.Fatalf("hand %v", hand)
		}
		for _, card := range hand {
			seen[card]++
		}
	}
	for card := range 64 {
		if n := seen[card]; n < 1600 || n > 2150 { // 1875 on average
			t.Errorf("card %d was dealt %d times", card, n)
		}
	}
	var cards [maxHandSize]int
	if hand := dealHand(12345, 3, 3, cards[:0]); !slices.Equal(hand, []int{0, 1, 2}) {
		t.Errorf("the whole deck: %v", hand)
	}
}

func TestRetryAfter(t *testing.T) {
	var r retryAfter
	second := int64(1000)
	reject := func(perSecond int, seconds int) (last int) {
		for range seconds {
			for range perSecond {
				last = r.reject(second)
			}
			second++
		}
		return last
	}
	for _, step := range []struct{ perSecond, seconds, want int }{
		{1, 1, 1}, // the first
		{5, 1, 1}, // the second before was quiet
		{5, 1, 2}, // five in the last second: twice as long
		{5, 1, 2}, // not again before two seconds have passed
		{5, 1, 4}, // ten in the last two
		{5, 100, 32},
	} {
		if got := reject(step.perSecond, step.seconds); got != step.want {
			t.Errorf("second %d: %d, want %d", second-1, got, step.want)
		}
	}
	second += 100
	if got := reject(1, 1); got != 31 {
		t.Errorf("after a quiet time: %d", got)
	}
}

func TestWatches(t *testing.T) {
	var w Watches
	var ends []func()
	begin := func(n int, namespace, name string) {
		for range n {
			ends = append(ends, w.Register(attributes("u", nil, "watch", "", "pods", "", namespace, name)))
		}
	}
	begin(4, "", "")
	begin(8, "ns", "")
	begin(2, "ns", "p")
	begin(16, "other", "")
	for _, test := range []struct {
		namespace, name string
		want            int
	}{{"ns", "", 12}, {"ns", "p", 14}, {"ns", "q", 12}, {"other", "", 20}, {"third", "x", 4}} {
		if got := w.InterestedCount(attributes("u", nil, "update", "", "pods", "", test.namespace, test.name)); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	if got := w.InterestedCount(attributes("u", nil, "update", "", "nodes", "", "", "n")); got != 0 {
		t.Errorf("nobody watches nodes, but %d do", got)
	}
	for _, end := range ends {
		end()
	}
	if got := w.InterestedCount(attributes("u", nil, "update", "", "pods", "", "ns", "p")); got != 0 || len(w.byTarget) != 0 {
		t.Errorf("%d are left, %v", got, w.byTarget)
	}
}

func TestDangling(t *testing.T) {
	s := everyoneTo("own")
	levels := []*flowcontrolv1.PriorityLevelConfiguration{ownLevel("own", 1, nil)}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	condition, needed := Dangling(s, levels, now)
	if !needed || condition.Status != "False" || condition.Reason != "Found" || !condition.LastTransitionTime.Time.Equal(now) ||
		condition.Message != `This FlowSchema references the PriorityLevelConfiguration object named "own" and it exists` {
		t.Errorf("%t %+v", needed, condition)
	}
	s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{condition}
	if _, needed = Dangling(s, levels, now.Add(time.Hour)); needed {
		t.Error("it says so already")
	}
	condition, needed = Dangling(s, nil, now)
	if !needed || condition.Status != "True" || condition.Reason != "NotFound" ||
		condition.Message != `This FlowSchema references the PriorityLevelConfiguration object named "own" but there is no such object` {
		t.Errorf("%t %+v", needed, condition)
	}
	broken := ownLevel("own", 1, nil)
	broken.Spec.Limited = nil
	if condition, _ = Dangling(s, []*flowcontrolv1.PriorityLevelConfiguration{broken}, now); condition.Status != "True" {
		t.Error("a broken level counts as one")
	}
}

// checkMetric fails unless the line is among the metrics.
func checkMetric(t *testing.T, f *Fairness, line string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, family := range families {
		for _, metric := range family.Metric {
			var labels []string
			for _, label := range metric.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", *label.Name, *label.Value))
			}
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			fmt.Fprintf(&all, "%s{%s} %v\n", strings.TrimPrefix(*family.Name, "apiserver_flowcontrol_"), strings.Join(labels, ","), value)
		}
	}
	if !strings.Contains(all.String(), line+"\n") {
		t.Errorf("no %s among\n%s", line, all.String())
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(2, usual)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { request(f, "a", Work{}, time.Minute, time.Second) })
		}
		synctest.Wait()
		const of = `{flow_schema="everyone",priority_level="own"}`
		for _, line := range []string{
			"current_executing_requests" + of + " 2", "current_executing_seats" + of + " 2", "current_inqueue_requests" + of + " 3",
			"current_inqueue_seats" + of + " 3", "dispatched_requests_total" + of + " 2", "work_estimated_seats" + of + " 5",
			`nominal_limit_seats{priority_level="own"} 2`, `current_limit_seats{priority_level="own"} 2`,
		} {
			checkMetric(t, f, line)
		}
		wg.Wait()
		checkMetric(t, f, "dispatched_requests_total"+of+" 5")
		checkMetric(t, f, `request_wait_duration_seconds{execute="true",flow_schema="everyone",priority_level="own"} 5`)
		checkMetric(t, f, `request_execution_seconds{flow_schema="everyone",priority_level="own",type="regular"} 5`)
	})
}
