package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// While the rules cannot be applied, Services may change without end: what is kept does not grow, and when the rules are applied the flows are
// compared with the rules that the kernel had.
func TestDatagramChangesWhileRulesFail(t *testing.T) {
	address := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	port := func(frontend string, endpoints ...string) []DatagramPort {
		d := DatagramPort{Frontends: []netip.AddrPort{address(frontend)}, Is4: true}
		for _, e := range endpoints {
			d.Endpoints = append(d.Endpoints, address(e))
		}
		return []DatagramPort{d}
	}
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "team", Name: name} }
	compiled := map[types.NamespacedName]Compiled{
		key("changed"):   {Datagrams: port("10.0.0.1:53", "10.1.0.1:53")},
		key("same"):      {Datagrams: port("10.0.0.2:53", "10.1.0.2:53")},
		key("deleted"):   {Datagrams: port("10.0.0.3:53", "10.1.0.3:53")},
		key("untouched"): {Datagrams: port("10.0.0.4:53", "10.1.0.4:53")},
	}
	changes := datagramChanges{}
	set := func(name string, now []DatagramPort) {
		changes.add(key(name), compiled[key(name)].Datagrams, now)
		compiled[key(name)] = Compiled{Datagrams: now}
	}
	for i := range 1000 {
		set("changed", port("10.0.0.1:53", fmt.Sprintf("10.1.1.1:%d", 1000+i)))
		set("same", port("10.0.0.2:53", fmt.Sprintf("10.1.1.2:%d", 1000+i)))
		short := fmt.Sprint("short-lived-", i)
		set(short, port("10.0.0.9:53", "10.1.0.9:53"))
		set(short, nil)
	}
	set("same", port("10.0.0.2:53", "10.1.0.2:53"))
	set("deleted", nil)
	set("new", port("10.0.0.5:53", "10.1.0.5:53"))
	if len(changes) != 4 {
		t.Errorf("%d Services are kept, want changed, same, deleted and new", len(changes))
	}
	want := append(port("10.0.0.1:53", "10.1.1.1:1999"), port("10.0.0.3:53")...)
	want = append(want, port("10.0.0.5:53", "10.1.0.5:53")...)
	if got := changes.stale(compiled); !reflect.DeepEqual(got, want) {
		t.Errorf("stale %v, want %v", got, want)
	}
}

// Flows that could not be deleted are inspected again, also if nothing changes any more, and the failure is reported once.
func TestFlowsAreCleanedAgainAfterAFailure(t *testing.T) {
	key := types.NamespacedName{Namespace: "team", Name: "dns"}
	frontend := netip.MustParseAddrPort("10.0.0.1:53")
	before := []DatagramPort{{Frontends: []netip.AddrPort{frontend}, Is4: true, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.1:53")}}}
	failure := errors.New("the entry is busy")
	var inspected []bool
	var reported countWarnings
	p := &Proxy{Config: Config{Log: slog.New(&reported)}, compiled: map[types.NamespacedName]Compiled{}, datagrams: datagramChanges{}}
	p.deleteFlows = func(f *flowFilter, _ bool) (int, error) {
		_, ok := f.frontends[frontend]
		inspected = append(inspected, ok)
		return 0, failure
	}
	p.datagrams.add(key, before, nil) // the Service was deleted
	for range 3 {
		if retry := p.cleanFlows(); retry != conntrackRetry {
			t.Fatalf("after a failure: again after %v, want %v", retry, conntrackRetry)
		}
	}
	failure = nil
	if retry := p.cleanFlows(); retry != 0 {
		t.Errorf("after a success: again after %v", retry)
	}
	if retry := p.cleanFlows(); retry != 0 {
		t.Errorf("without a change: again after %v", retry)
	}
	if want := []bool{true, true, true, true}; !reflect.DeepEqual(inspected, want) {
		t.Errorf("the Service's flows were inspected: %v, want %v", inspected, want)
	}
	if reported != 1 {
		t.Errorf("the failure was reported %d times", reported)
	}
	for _, test := range [][3]time.Duration{{0, 0, 0}, {0, 2, 2}, {2, 0, 2}, {3, 2, 2}, {2, 3, 2}} {
		if got := sooner(test[0], test[1]); got != test[2] {
			t.Errorf("sooner(%d, %d) = %d, want %d", test[0], test[1], got, test[2])
		}
	}
}

// countWarnings counts the messages that are logged.
type countWarnings int

func (c *countWarnings) Enabled(context.Context, slog.Level) bool { return true }
func (c *countWarnings) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *countWarnings) WithGroup(string) slog.Handler            { return c }
func (c *countWarnings) Handle(context.Context, slog.Record) error {
	*c++
	return nil
}
