package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func anEndpoint(address string, changes ...change[*discoveryv1.Endpoint]) *discoveryv1.Endpoint {
	return with(&discoveryv1.Endpoint{Addresses: strings.Split(address, "|"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}, changes...)
}

func targeting(name, uid, revision string) change[*discoveryv1.Endpoint] {
	return func(e *discoveryv1.Endpoint) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name, UID: types.UID(uid), ResourceVersion: revision}
	}
}

// TestEndpointIdentity: what makes two endpoints the same one, and what of it may change.
func TestEndpointIdentity(t *testing.T) {
	hosted := func(name string) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.Hostname = &name }
	}
	noded := func(name string) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.NodeName = &name }
	}
	zoned := func(name string) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.Zone = &name }
	}
	ready := func(is *bool) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.Conditions.Ready = is }
	}
	serving := func(is *bool) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.Conditions.Serving = is }
	}
	terminating := func(is *bool) change[*discoveryv1.Endpoint] {
		return func(e *discoveryv1.Endpoint) { e.Conditions.Terminating = is }
	}
	hinted := func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
	}
	plain := anEndpoint("a")
	for _, test := range []struct {
		what            string
		a, b            *discoveryv1.Endpoint
		same, unchanged bool
	}{
		{"itself", plain, anEndpoint("a"), true, true},
		{"another address", plain, anEndpoint("b"), false, true},
		{"addresses in another order", anEndpoint("a|b"), anEndpoint("b|a"), true, true},
		{"one address more", plain, anEndpoint("a|b"), false, true},
		{"addresses that read alike", anEndpoint("a|b"), anEndpoint("a,b"), true, true}, // no address has a comma
		{"a name", plain, anEndpoint("a", hosted("h")), false, true},
		{"another name", anEndpoint("a", hosted("g")), anEndpoint("a", hosted("h")), false, true},
		{"an empty name is none", plain, anEndpoint("a", hosted("")), true, true},
		{"a pod", plain, anEndpoint("a", targeting("p", "", "")), false, false},
		{"another pod", anEndpoint("a", targeting("p", "", "")), anEndpoint("a", targeting("q", "", "")), false, false},
		{"another pod of the same name", anEndpoint("a", targeting("p", "", "")), anEndpoint("a", targeting("p", "y", "")), true, false},
		{"the pod at another revision", anEndpoint("a", targeting("p", "", "1")), anEndpoint("a", targeting("p", "", "2")), true, true},
		{"a node", plain, anEndpoint("a", noded("n")), true, false},
		{"another node", anEndpoint("a", noded("m")), anEndpoint("a", noded("n")), true, false},
		{"a zone", plain, anEndpoint("a", zoned("z")), true, false},
		{"another zone", anEndpoint("a", zoned("y")), anEndpoint("a", zoned("z")), true, false},
		{"an empty zone is not none", plain, anEndpoint("a", zoned("")), true, false},
		{"not ready", plain, anEndpoint("a", ready(new(false))), true, false},
		{"nobody says whether it is ready", plain, anEndpoint("a", ready(nil)), true, false},
		{"serving", plain, anEndpoint("a", serving(new(true))), true, false},
		{"serving and not", anEndpoint("a", serving(new(false))), anEndpoint("a", serving(new(true))), true, false},
		{"terminating", plain, anEndpoint("a", terminating(new(false))), true, false},
		{"terminating and not", anEndpoint("a", terminating(new(false))), anEndpoint("a", terminating(new(true))), true, false},
		{"hints are somebody else's", plain, anEndpoint("a", hinted), true, true},
	} {
		for range 2 {
			if got := keyOfEndpoint(test.a) == keyOfEndpoint(test.b); got != test.same {
				t.Errorf("%s: the same %v", test.what, got)
			}
			if got := sameEndpoint(test.a, test.b); got != test.unchanged {
				t.Errorf("%s: unchanged %v", test.what, got)
			}
			test.a, test.b = test.b, test.a
		}
	}
	order := anEndpoint("b|a")
	keyOfEndpoint(order)
	if order.Addresses[0] != "b" {
		t.Error("asking for the key changed the endpoint")
	}
}

// TestPortsKey: sets of ports, in whatever order; nothing is not the same as empty.
func TestPortsKey(t *testing.T) {
	port := func(name string, number int32, protocol corev1.Protocol, app *string) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol, AppProtocol: app}
	}
	http, dns := port("http", 80, "TCP", nil), port("dns", 53, "UDP", nil)
	list := func(p ...discoveryv1.EndpointPort) []discoveryv1.EndpointPort { return p }
	for _, test := range []struct {
		what string
		a, b []discoveryv1.EndpointPort
		same bool
	}{
		{"none and none", nil, list(), true},
		{"one and none", list(http), nil, false},
		{"the same", list(http), list(port("http", 80, "TCP", nil)), true},
		{"in another order", list(http, dns), list(dns, http), true},
		{"one twice is not one", list(http, http), list(http), false},
		{"another name", list(http), list(port("www", 80, "TCP", nil)), false},
		{"another number", list(http), list(port("http", 81, "TCP", nil)), false},
		{"another protocol", list(http), list(port("http", 80, "SCTP", nil)), false},
		{"an application protocol", list(http), list(port("http", 80, "TCP", new("h2c"))), false},
		{"an empty application protocol is not none", list(http), list(port("http", 80, "TCP", new(""))), false},
		{"an empty name is not none", list(port("", 80, "TCP", nil)), list(discoveryv1.EndpointPort{Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}), false},
		{"no number is not zero", list(port("http", 0, "TCP", nil)), list(discoveryv1.EndpointPort{Name: new("http"), Protocol: new(corev1.ProtocolTCP)}), false},
		{"names that read like separators", list(port(`a" "1`, 1, "TCP", nil)), list(port("a", 1, "TCP", nil)), false},
	} {
		if got := portsKey(test.a) == portsKey(test.b); got != test.same {
			t.Errorf("%s: the same %v", test.what, got)
		}
	}
}

// holding makes a slice "name" with endpoints.
func holding(name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": "1"}}, AddressType: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, *anEndpoint(a))
	}
	return s
}

// TestPack: where endpoints go, so that few slices change. A slice holds three.
func TestPack(t *testing.T) {
	all := func(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }
	for _, test := range []struct {
		what     string
		existing []*discoveryv1.EndpointSlice
		want     string // addresses; "x!" is to be unready
		labels   string
		result   string
	}{
		{"nothing", nil, "", "1", ""},
		{"new ones: full slices first", nil, "a b c d", "1", "create[a b c] create[d]"},
		{"exactly full", nil, "a b c", "1", "create[a b c]"},
		{"as it is", all(holding("s", "a", "b")), "a b", "1", ""},
		{"one more, into the room there is", all(holding("s", "a", "b")), "a b c", "1", "update s[a b c]"},
		{"one more, and no room", all(holding("s", "a", "b", "c")), "a b c d", "1", "create[d]"},
		{"two more, room for one: they stay together", all(holding("s", "a", "b")), "a b c d", "1", "create[c d]"},
		{"three more never go into what does not change", all(holding("s")), "a b c", "1", "create[a b c]"},
		{"into the fullest that has room", all(holding("s", "a"), holding("t", "b", "c")), "a b c d", "1", "update t[b c d]"},
		{"into the only one with room for both", all(holding("s", "a"), holding("t", "b", "c")), "a b c d e", "1", "update s[a d e]"},
		{"one less", all(holding("s", "a", "b", "c")), "a c", "1", "update s[a c]"},
		{"one changes", all(holding("s", "a", "b")), "a b!", "1", "update s[a !b]"},
		{"all go", all(holding("s", "a", "b")), "", "1", "delete s"},
		{"an empty slice stays as it is", all(holding("s")), "", "1", ""},
		{"one goes, one comes: in its place", all(holding("s", "a", "b", "c")), "a b d", "1", "update s[a b d]"},
		{"what changes anyway is filled first", all(holding("s", "a", "b"), holding("t", "c", "d")), "a c d e", "1", "update s[a e]"},
		{"the fullest of those first", all(holding("s", "a", "b"), holding("t", "c", "d", "e")), "a! c d! f", "1", "update s[!a] update t[c !d f]"},
		{"what is left goes into new ones", all(holding("s", "a", "b")), "a c d e f g", "1", "update s[a c d] create[e f g]"},
		{"labels that changed are a change", all(holding("s", "a")), "a", "2", "update s[a]"},
		{"and room, then", all(holding("s", "a")), "a b c d", "2", "update s[a b c] create[d]"},
		{"a slice that loses all is not filled", all(holding("s", "a"), holding("t", "b")), "b c", "1", "update t[b c] delete s"},
		{"an endpoint in two slices stays in the first", all(holding("s", "a", "b"), holding("t", "a")), "a b", "1", "delete t"},
	} {
		var set endpointSet
		for word := range strings.FieldsSeq(test.want) {
			address, unready := strings.CutSuffix(word, "!")
			e := anEndpoint(address)
			*e.Conditions.Ready = !unready
			set.add(e)
		}
		before := fmt.Sprint(test.existing)
		p := slicePacker{maxEndpoints: 3, newSlice: func() *discoveryv1.EndpointSlice { return holding("") },
			relabel: func(s *discoveryv1.EndpointSlice) (map[string]string, bool) {
				return map[string]string{"l": test.labels}, s.Labels["l"] != test.labels
			}}
		changes := p.pack(test.existing, &set)
		var got []string
		for _, s := range changes.update {
			got = append(got, "update "+s.Name+addressList(s))
			if s.Labels["l"] != test.labels {
				t.Errorf("%s: labels %v", test.what, s.Labels)
			}
		}
		for _, s := range changes.create {
			got = append(got, "create"+addressList(s))
		}
		for _, s := range changes.remove {
			got = append(got, "delete "+s.Name)
		}
		if strings.Join(got, " ") != test.result {
			t.Errorf("%s: %v, want %s", test.what, got, test.result)
		}
		if fmt.Sprint(test.existing) != before || set.len() != 0 {
			t.Errorf("%s: what came from the cache was changed, or something is left: %d", test.what, set.len())
		}
	}
}

func addressList(s *discoveryv1.EndpointSlice) string {
	var list []string
	for _, e := range s.Endpoints {
		word := e.Addresses[0]
		if !*e.Conditions.Ready {
			word = "!" + word
		}
		list = append(list, word)
	}
	return fmt.Sprint(list)
}

// TestRecycle: a slice that would go becomes one that would come.
func TestRecycle(t *testing.T) {
	six := func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		s.AddressType = discoveryv1.AddressTypeIPv6
		return s
	}
	fresh := func(address string) *discoveryv1.EndpointSlice {
		s := holding("", address)
		s.GenerateName, s.Labels, s.Annotations = "web-", map[string]string{"l": "new"}, map[string]string{"n": "new"}
		s.OwnerReferences, s.Ports = []metav1.OwnerReference{{Name: "new"}}, []discoveryv1.EndpointPort{{Name: new("new")}}
		return s
	}
	list := func(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }
	for _, test := range []struct {
		what           string
		create, remove []*discoveryv1.EndpointSlice
		mine           func(*discoveryv1.EndpointSlice) bool
		want           string
	}{
		{"nothing", nil, nil, nil, "create 0 update [] remove []"},
		{"only new ones", list(fresh("a")), nil, nil, "create 1 update [] remove []"},
		{"only old ones", nil, list(holding("s", "x")), nil, "create 0 update [] remove [s]"},
		{"one for one", list(fresh("a")), list(holding("s", "x")), nil, "create 0 update [s] remove []"},
		{"two for one", list(fresh("a"), fresh("b")), list(holding("s", "x")), nil, "create 1 update [s] remove []"},
		{"one for two", list(fresh("a")), list(holding("s", "x"), holding("t", "y")), nil, "create 0 update [s] remove [t]"},
		{"of another family", list(six(fresh("a"))), list(holding("s", "x")), nil, "create 1 update [] remove [s]"},
		{"each to its family", list(six(fresh("a")), fresh("b")), list(holding("s", "x"), six(holding("t", "y"))), nil, "create 0 update [s t] remove []"},
		{"not another's", list(fresh("a")), list(holding("s", "x"), holding("t", "y")), func(s *discoveryv1.EndpointSlice) bool { return s.Name == "t" }, "create 0 update [t] remove [s]"},
	} {
		if test.mine == nil {
			test.mine = func(*discoveryv1.EndpointSlice) bool { return true }
		}
		c := sliceChanges{create: slices.Clone(test.create), remove: test.remove}
		c.recycle(test.mine)
		names := func(list []*discoveryv1.EndpointSlice) (names []string) {
			for _, s := range list {
				names = append(names, s.Name)
			}
			return names
		}
		if got := fmt.Sprintf("create %d update %v remove %v", len(c.create), names(c.update), names(c.remove)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
		for _, s := range c.update {
			if s.Labels["l"] != "new" || s.Annotations["n"] != "new" || s.OwnerReferences[0].Name != "new" || *s.Ports[0].Name != "new" || len(s.Endpoints) != 1 || strings.Contains("x y", s.Endpoints[0].Addresses[0]) {
				t.Errorf("%s: %+v keeps something of what it was", test.what, s)
			}
		}
		for _, s := range test.remove {
			if s.Labels["l"] != "1" {
				t.Errorf("%s: what came from the cache was changed", test.what)
			}
		}
	}
}

// TestUntouched: the slices that stay as they are.
func TestUntouched(t *testing.T) {
	a, b, c := holding("a"), holding("b"), holding("c")
	changes := sliceChanges{update: []*discoveryv1.EndpointSlice{holding("b")}, remove: []*discoveryv1.EndpointSlice{c}}
	if got := changes.unchanged([]*discoveryv1.EndpointSlice{a, b, c}); len(got) != 1 || got[0] != a {
		t.Errorf("%v", got)
	}
}

// TestEndpointSet: in the order they came, each once, the last word counts.
func TestEndpointSet(t *testing.T) {
	var s endpointSet
	s.add(anEndpoint("b"))
	s.add(anEndpoint("a"))
	again := anEndpoint("b")
	*again.Conditions.Ready = false
	s.add(again)
	if s.len() != 2 {
		t.Errorf("%d endpoints", s.len())
	}
	slice := holding("s")
	s.fill(slice, 1)
	if got := addressList(slice); got != "[!b]" || s.len() != 1 {
		t.Errorf("first %s, %d left", got, s.len())
	}
	if s.take(anEndpoint("x")) != nil || s.take(anEndpoint("a")) == nil || s.take(anEndpoint("a")) != nil {
		t.Error("what is taken is gone, what is not there cannot be taken")
	}
	s.fill(slice, 9)
	if got := addressList(slice); got != "[!b]" {
		t.Errorf("what was taken came again: %s", got)
	}
}
