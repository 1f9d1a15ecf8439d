// Package fairness decides whose turn it is when more is asked of the server than it can do at once.
//
// The server has a number of seats. A request is sorted by the first FlowSchema that matches it into a flow (the schema, and
// with it the user or the namespace) and into a priority level (a PriorityLevelConfiguration). Each level owns a share of the
// seats and may borrow what others do not need (borrow.go). A request that finds enough free seats in its level starts at
// once. Otherwise it is refused, or it waits in one of the level's queues: its flow is dealt a hand of queues, it joins the one
// with the least work, and the queues get seats in turn by the work they have had (level.go). So a flow that sends too much
// waits behind itself, and one that sends little hardly waits at all.
//
// What a request weighs is known before it runs: a list takes seats by its size, a write holds seats a little longer when many
// watch (work.go).
//
// The usual case is that nobody waits. Then a turn costs the comparison with the schemas, two short critical sections of one
// mutex per level, and no memory.
package fairness

import (
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/apiserver/authz"
)

// Fairness gives requests their turns. Make one with New; it obeys the mandatory objects alone until Configure is called.
type Fairness struct {
	// Watches counts who watches what, which is part of the work of a write.
	Watches Watches

	seats int // of the whole server
	epoch time.Time
	rules atomic.Pointer[rules]

	mu      sync.Mutex // guards changes of rules, and the fields below
	levels  map[string]*level
	nominal int     // the sum of the levels' nominal seats, which are rounded up
	fair    float64 // how much of its demand a level gets that is within its bounds
}

// rules sort requests. They never change; new ones take their place.
type rules struct {
	schemas  []*schema // in the order in which they are tried
	fallback *schema   // for what none of them matches
}

// New makes a Fairness for a server with a number of seats. It starts nothing.
func New(seats int) *Fairness {
	f := &Fairness{seats: seats, epoch: time.Now(), levels: map[string]*level{}}
	f.Configure(nil, nil)
	return f
}

// Run lends the seats that levels do not need to those that do, every few seconds until ctx ends.
func (f *Fairness) Run(ctx context.Context) error {
	ticker := time.NewTicker(adjustment)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.adjust()
		}
	}
}

// Enter waits until the request may run, and reports whether it may: false means that it is to be refused. It waits until the
// given time at most, and not beyond ctx. The turn must be new; after true it must be left.
func (f *Fairness) Enter(ctx context.Context, a *authz.Attributes, work Work, until time.Time, turn *Turn) bool {
	schema := f.classify(a)
	turn.schema, turn.watch = schema, a.ResourceRequest && a.Verb == "watch"
	switch schema.level.enter(turn, schema.flow(a), work) {
	case admitted:
		return true
	case refused:
		return false
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-turn.granted:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return !schema.level.abandon(turn)
}

// classify finds the schema that a request belongs to.
func (f *Fairness) classify(a *authz.Attributes) *schema {
	r := f.rules.Load()
	for _, s := range r.schemas {
		if s.matches(a) {
			return s
		}
	}
	return r.fallback
}

// Headers says in an answer which schema and level the request belonged to. They are named by UID: what administrators call
// them is not everybody's to know.
func (t *Turn) Headers(header http.Header) {
	header[headerLevel], header[headerSchema] = t.schema.levelUID, t.schema.uid
}

var (
	headerLevel  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	headerSchema = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

// RetryAfter counts a refused request and says in how many seconds its client should try again.
func (t *Turn) RetryAfter() int { return t.schema.level.retry.after(time.Now().Unix()) }

// Configure obeys these objects from now on. Requests that are running or waiting stay where they are. A schema without a level
// is not obeyed; mandatory objects that are missing are obeyed all the same.
func (f *Fairness) Configure(levels []*flowcontrolv1.PriorityLevelConfiguration, schemas []*flowcontrolv1.FlowSchema) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		wanted[l.Name] = l
	}
	for _, l := range levels {
		if usable(l) {
			wanted[l.Name] = l
		}
	}
	for name, l := range wanted {
		if f.levels[name] == nil {
			f.levels[name] = newLevel(name, f.epoch)
		}
		f.levels[name].object, f.levels[name].leaving = l, false
	}
	for name, l := range f.levels {
		// A level that is gone keeps its share until the last of its requests has ended.
		l.leaving = wanted[name] == nil
	}
	f.setRules(schemas)
	f.share()
}

// setRules compiles the schemas and puts them in order.
func (f *Fairness) setRules(objects []*flowcontrolv1.FlowSchema) {
	byName := map[string]*flowcontrolv1.FlowSchema{}
	for _, s := range slices.Concat(bootstrap.MandatoryFlowSchemas, objects) {
		if l := f.levels[s.Spec.PriorityLevelConfiguration.Name]; l != nil && !l.leaving {
			byName[s.Name] = s
		}
	}
	next := &rules{}
	for _, s := range slices.SortedFunc(maps.Values(byName), compareSchemas) {
		compiled := compile(s, f.levels[s.Spec.PriorityLevelConfiguration.Name])
		next.schemas = append(next.schemas, compiled)
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			next.fallback = compiled
		}
	}
	f.rules.Store(next)
}

// usable reports whether a level's parts fit together; validation sees to it that they do.
func usable(l *flowcontrolv1.PriorityLevelConfiguration) bool {
	limited := l.Spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	exempt := l.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if limited != (l.Spec.Limited != nil) || exempt != (l.Spec.Exempt != nil) ||
		exempt != (l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		return false
	}
	if !limited {
		return exempt
	}
	response := &l.Spec.Limited.LimitResponse
	return (response.Type == flowcontrolv1.LimitResponseTypeReject) == (response.Queuing == nil)
}

// share gives every level its nominal seats and then what it needs of the others'. It is called with f.mu held.
func (f *Fairness) share() {
	var sum float64
	for name, l := range f.levels {
		if l.leaving && l.idle() {
			delete(f.levels, name)
			continue
		}
		sum += float64(sharesOf(l.object).nominal)
	}
	f.nominal = 0
	for _, l := range f.levels {
		shares := sharesOf(l.object)
		seats := 0
		if sum > 0 {
			seats = int(math.Ceil(float64(f.seats) * float64(shares.nominal) / sum))
		}
		l.bounds = shares.bounds(seats, f.seats)
		l.configure()
		f.nominal += seats
	}
	f.borrow()
}

// adjust divides the seats anew.
func (f *Fairness) adjust() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.levels {
		if l.leaving && l.idle() {
			f.share()
			return
		}
	}
	f.borrow()
}
