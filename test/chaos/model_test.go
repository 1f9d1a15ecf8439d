package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"k8s.io/apimachinery/pkg/watch"
)

// operation is one attempt of a client to read or change a key. Values are unique.
type operation struct {
	kind    string // "create", "update", "delete", "get"
	key     string
	value   string
	version int64 // the resourceVersion an update or deletion was conditional on
}

// result is the response that the client received. unknown: the connection broke, the write may or may not have happened.
type result string

const (
	ok       result = "ok"
	notFound result = "not found"
	exists   result = "exists"
	conflict result = "conflict"
	unknown  result = "unknown"
)

type outcome struct {
	result  result
	value   string
	version int64
}

// history is the operations of all clients with their outcomes.
type history struct {
	began time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
	// unexpected are responses that no client should get, whatever crashes.
	unexpected []error
}

func (h *history) recordUnexpected(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unexpected = append(h.unexpected, err)
}

func (h *history) record(client int, op operation, called time.Time, out outcome) {
	returned := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.result == unknown {
		if op.kind == "get" {
			return // a failed read has no effect
		}
		// It may still take effect at any later time, so it gets its own client ID.
		returned = math.MaxInt64
		client = 1000 + len(h.operations)
	}
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: op, Call: called.Sub(h.began).Nanoseconds(), Output: out, Return: returned,
	})
}

// register is the state of one key. The value is empty if the key does not exist.
type register struct {
	value string
	// version is 0 when the client that wrote the value received no response. No client has such a version before a read returns it.
	version int64
	// newest is the highest known revision of the key; every write has a higher one.
	newest int64
}

// model defines which outcomes a linearizable store may give.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(operation).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		legal, next := step(state.(register), input.(operation), output.(outcome))
		return legal, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// step returns whether the outcome is possible in a state, and the state after it. An operation with an unknown outcome takes effect
// where it can; one that had no effect is placed after everything else.
func step(s register, op operation, out outcome) (bool, register) {
	if out.result == notFound && op.kind != "create" {
		return s.value == "", s
	}
	here := s.value != ""
	matches := here && s.version == op.version
	written := register{op.value, out.version, max(s.newest, out.version)}
	switch op.kind {
	case "get":
		lastSeen := s.version == out.version || s.version == 0 && out.version > s.newest
		return out.result == ok && here && s.value == out.value && lastSeen, register{out.value, out.version, out.version}
	case "create":
		switch out.result {
		case ok:
			return !here && out.version > s.newest, written
		case exists:
			return here, s
		case unknown:
			if here {
				return true, s
			}
			return true, written
		}
	case "update", "delete":
		if op.kind == "delete" {
			written = register{newest: s.newest + 1}
		}
		switch out.result {
		case ok:
			return matches && (op.kind == "delete" || out.version > s.newest), written
		case conflict:
			return here && !matches, s
		case unknown:
			if !matches {
				return true, s
			}
			return true, written
		}
	}
	return false, s
}

// resolve determines from the events of a watch the outcome of the writes that got no response. It only reduces the work of the
// checker: if the watch were wrong, reads would return values that no client wrote, or miss some.
func (h *history) resolve(events []event) (unacknowledged int) {
	written := map[string]int64{}        // the revision of a value
	next := map[string]map[int64]event{} // by key and revision: the following event
	last := map[string]int64{}           // the newest revision of a key
	for _, e := range events {
		if e.kind == watch.Bookmark {
			continue
		}
		if e.kind != watch.Deleted {
			written[e.key+"="+e.value] = e.revision
		}
		if next[e.key] == nil {
			next[e.key] = map[int64]event{}
		}
		next[e.key][last[e.key]] = e
		last[e.key] = e.revision
	}
	deleted := map[operation]bool{} // deletions that were acknowledged
	for _, o := range h.operations {
		if op := o.Input.(operation); op.kind == "delete" && o.Output.(outcome).result == ok {
			deleted[operation{key: op.key, version: op.version}] = true
		}
	}
	h.operations = slices.DeleteFunc(h.operations, func(o porcupine.Operation) bool {
		op := o.Input.(operation)
		if o.Output.(outcome).result != unknown {
			return false
		}
		unacknowledged++
		if op.kind != "delete" {
			return written[op.key+"="+op.value] == 0
		}
		target := operation{key: op.key, version: op.version}
		if next[op.key][op.version].kind != watch.Deleted || deleted[target] {
			return true
		}
		deleted[target] = true
		return false
	})
	for i, o := range h.operations {
		op := o.Input.(operation)
		if o.Output.(outcome).result == unknown && op.kind != "delete" {
			h.operations[i].Output = outcome{ok, op.value, written[op.key+"="+op.value]}
		}
	}
	return unacknowledged
}

// check fails the test when a response was impossible, or the history is not linearizable.
func (h *history) check(t *testing.T) {
	t.Helper()
	for _, err := range h.unexpected {
		t.Errorf("unexpected response: %v", err)
	}
	if len(h.operations) < 100 {
		t.Fatalf("only %d operations", len(h.operations))
	}
	for _, part := range model.Partition(h.operations) {
		verdict, info := porcupine.CheckOperationsVerbose(model, part, 2*time.Minute)
		switch verdict {
		case porcupine.Illegal:
			t.Errorf("the history is not linearizable:\n%s", explain(part, info))
		case porcupine.Unknown:
			t.Error("the history could not be checked in time")
		}
	}
}

// explain returns the operations around the first one that cannot be linearized.
func explain(part []porcupine.Operation, info porcupine.LinearizationInfo) string {
	placed := map[string]bool{}
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	name := func(o porcupine.Operation) string {
		return fmt.Sprintf("%9d-%9d µs client %4d %+v → %+v", o.Call/1000, o.Return/1000, o.ClientId, o.Input, o.Output)
	}
	for _, o := range longest {
		placed[name(o)] = true
	}
	slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	misfit := slices.IndexFunc(part, func(o porcupine.Operation) bool { return !placed[name(o)] && o.Return < math.MaxInt64 })
	var text strings.Builder
	for i := max(0, misfit-15); i < min(len(part), misfit+10); i++ {
		fmt.Fprintf(&text, "placed: %-5v %s\n", placed[name(part[i])], name(part[i]))
	}
	return text.String()
}

// TestModel tests the model itself.
func TestModel(t *testing.T) {
	a7 := register{"a", 7, 7}
	unacknowledged := register{"a", 0, 7}
	for _, test := range []struct {
		name   string
		before register
		op     operation
		out    outcome
		legal  bool
		after  register
	}{
		{"create", register{}, operation{kind: "create", value: "a"}, outcome{ok, "a", 7}, true, a7},
		{"create over another", a7, operation{kind: "create", value: "b"}, outcome{ok, "b", 8}, false, a7},
		{"create rejected", a7, operation{kind: "create", value: "b"}, outcome{result: exists}, true, a7},
		{"create rejected without reason", register{}, operation{kind: "create", value: "b"}, outcome{result: exists}, false, register{}},
		{"create without namespace", register{}, operation{kind: "create", value: "b"}, outcome{result: notFound}, false, register{}},
		{"create at an old revision", register{newest: 9}, operation{kind: "create", value: "a"}, outcome{ok, "a", 7}, false, register{newest: 9}},
		{"create without response", register{newest: 7}, operation{kind: "create", value: "a"}, outcome{result: unknown}, true, unacknowledged},
		{"read", a7, operation{kind: "get"}, outcome{ok, "a", 7}, true, a7},
		{"read something else", a7, operation{kind: "get"}, outcome{ok, "b", 7}, false, a7},
		{"read another version", a7, operation{kind: "get"}, outcome{ok, "a", 8}, false, a7},
		{"read nothing", a7, operation{kind: "get"}, outcome{result: notFound}, false, a7},
		{"read nothing where nothing is", register{}, operation{kind: "get"}, outcome{result: notFound}, true, register{}},
		{"read after a write without response", unacknowledged, operation{kind: "get"}, outcome{ok, "a", 8}, true, register{"a", 8, 8}},
		{"read after a write without response, at an old revision", unacknowledged, operation{kind: "get"}, outcome{ok, "a", 6}, false, unacknowledged},
		{"update", a7, operation{"update", "", "b", 7}, outcome{ok, "b", 8}, true, register{"b", 8, 8}},
		{"update of another version", a7, operation{"update", "", "b", 6}, outcome{ok, "b", 8}, false, a7},
		{"update after a write without response", unacknowledged, operation{"update", "", "b", 7}, outcome{ok, "b", 9}, false, unacknowledged},
		{"update rejected", a7, operation{"update", "", "b", 6}, outcome{result: conflict}, true, a7},
		{"update rejected without reason", a7, operation{"update", "", "b", 7}, outcome{result: conflict}, false, a7},
		{"update of nothing", register{newest: 8}, operation{"update", "", "b", 7}, outcome{result: notFound}, true, register{newest: 8}},
		{"update without response", a7, operation{"update", "", "b", 7}, outcome{result: unknown}, true, register{"b", 0, 7}},
		{"update without response, rejected", a7, operation{"update", "", "b", 6}, outcome{result: unknown}, true, a7},
		{"delete", a7, operation{"delete", "", "", 7}, outcome{result: ok}, true, register{newest: 8}},
		{"delete of another version", a7, operation{"delete", "", "", 6}, outcome{result: ok}, false, a7},
		{"delete rejected", a7, operation{"delete", "", "", 6}, outcome{result: conflict}, true, a7},
		{"delete without response", a7, operation{"delete", "", "", 7}, outcome{result: unknown}, true, register{newest: 8}},
		{"delete twice", register{newest: 8}, operation{"delete", "", "", 7}, outcome{result: ok}, false, register{newest: 8}},
	} {
		legal, after := step(test.before, test.op, test.out)
		if legal != test.legal || legal && after != test.after {
			t.Errorf("%s: %v, then %+v; want %v, %+v", test.name, legal, after, test.legal, test.after)
		}
	}
}
