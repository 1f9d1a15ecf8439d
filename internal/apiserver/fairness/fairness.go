// Package fairness is API priority and fairness: it limits how many requests execute at once and shares the capacity fairly.
//
// The server has a number of seats. The first matching FlowSchema assigns a request to a flow (the schema together with the user
// or the namespace) and to a priority level (a PriorityLevelConfiguration). Each level has a share of the seats and may borrow
// seats that other levels do not need (borrow.go). A request that finds enough free seats in its level executes at once.
// Otherwise it is rejected or queued: shuffle sharding gives its flow a hand of the level's queues, it joins the one with the
// least work, and the queues are served by fair queuing over the work each has received (level.go). So a flow that sends too
// much waits behind itself, and one that sends little hardly waits.
//
// The seats of a request are estimated before it executes: a list occupies seats by its size, a write keeps seats a little longer
// when many watches receive its event (work.go).
//
// In the usual case nobody waits. Then a request costs the matching of the schemas, two short critical sections of the level's
// mutex, and no allocation.
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

// Fairness assigns seats to requests. Until Configure is called it has the mandatory objects only.
type Fairness struct {
	// Watches counts the watches of each resource: they are part of the work of a write.
	Watches Watches

	seats   int // of the whole server
	epoch   time.Time
	schemas atomic.Pointer[flowSchemas]

	mu           sync.Mutex // guards changes of schemas, and the fields below
	levels       map[string]*level
	nominal      int     // the sum of the levels' nominal seats, which are rounded up
	fairFraction float64 // of its target demand that a level within its bounds gets
}

// flowSchemas are all schemas at one time. They are immutable; a new configuration replaces them.
type flowSchemas struct {
	index    *ruleIndex
	catchAll *schema // for requests that no schema matches
}

// New makes a Fairness for a server with a number of seats.
func New(seats int) *Fairness {
	f := &Fairness{seats: seats, epoch: time.Now(), levels: map[string]*level{}}
	f.Configure(nil, nil)
	return f
}

// Run adjusts the seats of the levels to their demand, every adjustmentPeriod until ctx is done.
func (f *Fairness) Run(ctx context.Context) error {
	ticker := time.NewTicker(adjustmentPeriod)
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

// Acquire waits until the request gets its seats; false means that it is rejected. It waits until the given time at most, and not
// beyond ctx. seats must be a zero value. If Acquire returns true, Release must be called.
func (f *Fairness) Acquire(ctx context.Context, a *authz.Attributes, work Work, until time.Time, seats *Seats) bool {
	schema := f.classify(a)
	seats.describe(schema, a)
	switch schema.level.admit(seats, schema.flow(a), work) {
	case admitted:
		return true
	case rejected:
		return false
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-seats.granted:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return !schema.level.cancelWait(seats)
}

// Occupy is Acquire without waiting, beyond the limit of the level if need be. It is for requests whose number is bounded otherwise.
func (f *Fairness) Occupy(a *authz.Attributes, work Work, seats *Seats) {
	schema := f.classify(a)
	seats.describe(schema, a)
	schema.level.occupy(seats, schema.flow(a), work)
}

// classify returns the schema that a request belongs to.
func (f *Fairness) classify(a *authz.Attributes) *schema {
	all := f.schemas.Load()
	if s := all.index.find(a); s != nil {
		return s
	}
	return all.catchAll
}

// SetHeaders adds the schema and the level of the request to the response's headers. They are given by UID, because their names
// are not public.
func (s *Seats) SetHeaders(header http.Header) {
	header[headerLevel], header[headerSchema] = s.schema.levelUID, s.schema.uid
}

var (
	headerLevel  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	headerSchema = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

// RetryAfter counts a rejected request and returns the seconds after which its client should retry.
func (s *Seats) RetryAfter() int { return s.schema.level.retryAfter.reject(time.Now().Unix()) }

// Configure replaces the configuration. Requests that are executing or waiting keep their level. A schema whose level does not
// exist is ignored; mandatory objects that are missing are used all the same.
func (f *Fairness) Configure(levels []*flowcontrolv1.PriorityLevelConfiguration, schemas []*flowcontrolv1.FlowSchema) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := map[string]*flowcontrolv1.PriorityLevelConfiguration{}
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		wanted[l.Name] = l
	}
	for _, l := range levels {
		if valid(l) {
			wanted[l.Name] = l
		}
	}
	for name, l := range wanted {
		if f.levels[name] == nil {
			f.levels[name] = newLevel(name, f.epoch)
		}
		f.levels[name].object, f.levels[name].quiescing = l, false
	}
	for name, l := range f.levels {
		// A deleted level keeps its share until its last request has ended.
		l.quiescing = wanted[name] == nil
	}
	f.setSchemas(schemas)
	f.assignNominalSeats()
}

// setSchemas compiles the schemas and orders them.
func (f *Fairness) setSchemas(objects []*flowcontrolv1.FlowSchema) {
	byName := map[string]*flowcontrolv1.FlowSchema{}
	for _, s := range slices.Concat(bootstrap.MandatoryFlowSchemas, objects) {
		if l := f.levels[s.Spec.PriorityLevelConfiguration.Name]; l != nil && !l.quiescing {
			byName[s.Name] = s
		}
	}
	next := &flowSchemas{index: newRuleIndex()}
	for _, s := range slices.SortedFunc(maps.Values(byName), compareSchemas) {
		compiled := compile(s, f.levels[s.Spec.PriorityLevelConfiguration.Name])
		next.index.add(compiled, s.Spec.Rules)
		if s.Name == flowcontrolv1.FlowSchemaNameCatchAll {
			next.catchAll = compiled
		}
	}
	f.schemas.Store(next)
}

// valid reports whether a level's fields are consistent. Validation ensures it for stored objects.
func valid(l *flowcontrolv1.PriorityLevelConfiguration) bool {
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

// assignNominalSeats computes the nominal seats of every level, then their current limits. It is called with f.mu held.
func (f *Fairness) assignNominalSeats() {
	var sum float64
	for name, l := range f.levels {
		if l.quiescing && l.idle() {
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
	f.updateLimits()
}

// adjust recomputes the limits of all levels.
func (f *Fairness) adjust() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.levels {
		if l.quiescing && l.idle() {
			f.assignNominalSeats()
			return
		}
	}
	f.updateLimits()
}
