package proxy

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

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
