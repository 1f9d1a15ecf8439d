package network

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// at makes addresses of the words: "10.0.0.1" or "10.0.0.1/UID".
func at(wordsOf ...string) (list []corev1.EndpointAddress) {
	for _, word := range wordsOf {
		ip, uid, target := strings.Cut(word, "/")
		a := corev1.EndpointAddress{IP: ip}
		if target {
			a.TargetRef = &corev1.ObjectReference{UID: types.UID(uid)}
		}
		list = append(list, a)
	}
	return list
}

// onPorts makes ports of numbers.
func onPorts(numbers ...int32) (list []corev1.EndpointPort) {
	for _, n := range numbers {
		list = append(list, corev1.EndpointPort{Port: n})
	}
	return list
}

// shortSubsets writes subsets down: "a/u !b :1 :2; c :3".
func shortSubsets(subsets []corev1.EndpointSubset) string {
	var all []string
	for _, s := range subsets {
		var words []string
		for i, list := range [][]corev1.EndpointAddress{s.Addresses, s.NotReadyAddresses} {
			for _, a := range list {
				word := []string{"", "!"}[i] + a.IP
				if a.TargetRef != nil {
					word += "/" + string(a.TargetRef.UID)
				}
				words = append(words, word)
			}
		}
		for _, p := range s.Ports {
			word := fmt.Sprint(":", p.Port)
			if p.Name != "" || p.Protocol != "" {
				word = fmt.Sprintf(":%s=%d/%s", p.Name, p.Port, p.Protocol)
			}
			if p.AppProtocol != nil {
				word += "(" + *p.AppProtocol + ")"
			}
			words = append(words, word)
		}
		all = append(all, strings.Join(words, " "))
	}
	return strings.Join(all, "; ")
}

func TestRepackRules(t *testing.T) {
	subset := func(ready, waiting []corev1.EndpointAddress, ports ...corev1.EndpointPort) corev1.EndpointSubset {
		return corev1.EndpointSubset{Addresses: ready, NotReadyAddresses: waiting, Ports: ports}
	}
	named := func(name string, port int32, protocol corev1.Protocol, app *string) corev1.EndpointPort {
		return corev1.EndpointPort{Name: name, Port: port, Protocol: protocol, AppProtocol: app}
	}
	for _, test := range []struct {
		what string
		in   []corev1.EndpointSubset
		want string
	}{
		{"nothing", nil, ""},
		{"same ports go together", []corev1.EndpointSubset{{Addresses: at("b"), Ports: onPorts(1)}, {Addresses: at("a"), Ports: onPorts(1)}}, "a b :1"},
		{"same addresses go together", []corev1.EndpointSubset{{Addresses: at("a"), Ports: onPorts(2)}, {Addresses: at("a"), Ports: onPorts(1)}}, "a :1 :2"},
		{"different ones stay apart", []corev1.EndpointSubset{{Addresses: at("a"), Ports: onPorts(2)}, {Addresses: at("b"), Ports: onPorts(1)}}, "a :2; b :1"},
		{"no ports", []corev1.EndpointSubset{{Addresses: at("a", "a")}}, "a"},
		{"a subset without addresses vanishes", []corev1.EndpointSubset{subset(nil, nil, onPorts(1)...)}, ""},
		{"addresses are sorted as text", []corev1.EndpointSubset{subset(at("10.0.0.9", "10.0.0.10"), nil, onPorts(1)...)}, "10.0.0.10 10.0.0.9 :1"},
		{"addresses of several pods on one node stay apart", []corev1.EndpointSubset{subset(at("a/2", "a/1"), nil, onPorts(1)...)}, "a/1 a/2 :1"},
		{"an address without a pod is not that of a pod", []corev1.EndpointSubset{subset(at("a/1", "a"), nil, onPorts(1)...)}, "a a/1 :1"},
		{"the same address of the same pod is one", []corev1.EndpointSubset{subset(at("a/1", "a/1"), nil, onPorts(1)...)}, "a/1 :1"},
		{"not ready wins within a subset", []corev1.EndpointSubset{subset(at("a"), at("a"), onPorts(1)...)}, "!a :1"},
		{"not ready wins whatever comes first", []corev1.EndpointSubset{subset(nil, at("a"), onPorts(1)...), subset(at("a"), nil, onPorts(1)...)}, "!a :1"},
		{"readiness is of a port: two subsets", []corev1.EndpointSubset{subset(at("a"), nil, onPorts(1)...), subset(nil, at("a"), onPorts(2)...)}, "!a :2; a :1"},
		{"ports with the same addresses, one of them unready", []corev1.EndpointSubset{subset(at("a"), at("b"), onPorts(2)...), subset(at("a"), at("b"), onPorts(1)...)}, "a !b :1 :2"},
		{"a port twice is one", []corev1.EndpointSubset{subset(at("a"), nil, onPorts(1, 1)...)}, "a :1"},
		{"the name makes another port", []corev1.EndpointSubset{subset(at("a"), nil, named("x", 1, "TCP", nil), named("y", 1, "TCP", nil))}, "a :x=1/TCP :y=1/TCP"},
		{"so does the protocol", []corev1.EndpointSubset{subset(at("a"), nil, named("x", 1, "UDP", nil), named("x", 1, "TCP", nil))}, "a :x=1/TCP :x=1/UDP"},
		{"so does the application's protocol", []corev1.EndpointSubset{subset(at("a"), nil, named("x", 1, "TCP", new("h2")), named("x", 1, "TCP", new("h1")))}, "a :x=1/TCP(h1) :x=1/TCP(h2)"},
		{"an empty application's protocol is kept", []corev1.EndpointSubset{subset(at("a"), nil, named("x", 1, "TCP", new("")))}, "a :x=1/TCP()"},
		{"no ports and some ports are two subsets of one", []corev1.EndpointSubset{subset(at("a"), nil), subset(at("a"), nil, onPorts(1)...)}, "a :1"},
		{"no ports for one, some for another", []corev1.EndpointSubset{subset(at("b"), nil), subset(at("a"), nil, onPorts(1)...)}, "a :1; b"},
		{"ports overlap in part", []corev1.EndpointSubset{subset(at("a", "b"), nil, onPorts(1)...), subset(at("a"), nil, onPorts(2)...)}, "a :2; a b :1"},
	} {
		before := shortSubsets(test.in)
		got := repack(test.in)
		if text := shortSubsets(got); text != test.want {
			t.Errorf("%s: %q, want %q", test.what, text, test.want)
		}
		if shortSubsets(test.in) != before {
			t.Errorf("%s: the caller's subsets were changed", test.what)
		}
		if again := shortSubsets(repack(got)); again != test.want {
			t.Errorf("%s: packing again makes %q", test.what, again)
		}
	}
}

// TestRepackBesideAModel: whatever comes in, each port has the same addresses before and after, each once and ready only if it is
// nowhere unready; no two subsets have the same addresses; and the order of what came in does not matter.
func TestRepackBesideAModel(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, seed))
	// byPort is the slow and obvious form: every port with its addresses.
	byPort := func(subsets []corev1.EndpointSubset) string {
		ready := map[string]bool{}
		for _, s := range subsets {
			ports := []string{"none"}
			if len(s.Ports) > 0 {
				ports = nil
				for _, p := range s.Ports {
					ports = append(ports, fmt.Sprint(p.Port, p.Name))
				}
			}
			for _, port := range ports {
				for _, a := range s.Addresses {
					key := port + " " + addressWords(a)
					if was, known := ready[key]; !known || was {
						ready[key] = true
					}
				}
				for _, a := range s.NotReadyAddresses {
					ready[port+" "+addressWords(a)] = false
				}
			}
		}
		var lines []string
		for key, is := range ready {
			lines = append(lines, fmt.Sprint(key, is))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	for round := range 400 {
		var in []corev1.EndpointSubset
		for range random.IntN(6) {
			var s corev1.EndpointSubset
			for range random.IntN(4) {
				a := at(fmt.Sprintf("10.0.0.%d/%d", random.IntN(4), random.IntN(2)))
				if random.IntN(2) == 0 {
					s.Addresses = append(s.Addresses, a...)
				} else {
					s.NotReadyAddresses = append(s.NotReadyAddresses, a...)
				}
			}
			for range random.IntN(3) {
				s.Ports = append(s.Ports, corev1.EndpointPort{Port: 1 + random.Int32N(3), Name: []string{"", "x"}[random.IntN(2)]})
			}
			in = append(in, s)
		}
		got := repack(in)
		// "none" says only that an address has no port of its own; where it has others with the same addresses it is with them.
		if model, packed := byPort(in), byPort(got); withoutNone(model) != withoutNone(packed) {
			t.Fatalf("seed %d, round %d: %s\nbecame %s\n%s\n-- want\n%s", seed, round, shortSubsets(in), shortSubsets(got), packed, model)
		}
		seen := map[string]bool{}
		for _, s := range got {
			key := shortSubsets([]corev1.EndpointSubset{{Addresses: s.Addresses, NotReadyAddresses: s.NotReadyAddresses}})
			if seen[key] || len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
				t.Fatalf("seed %d, round %d: two subsets with %q, or an empty one: %s", seed, round, key, shortSubsets(got))
			}
			seen[key] = true
		}
		random.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		if again := shortSubsets(repack(in)); again != shortSubsets(got) {
			t.Fatalf("seed %d, round %d: another order makes %s, not %s", seed, round, again, shortSubsets(got))
		}
		if again := shortSubsets(repack(got)); again != shortSubsets(got) {
			t.Fatalf("seed %d, round %d: packing again makes %s of %s", seed, round, again, shortSubsets(got))
		}
	}
}

func withoutNone(lines string) string {
	kept := slices.DeleteFunc(strings.Split(lines, "\n"), func(line string) bool { return strings.HasPrefix(line, "none ") })
	return strings.Join(kept, "\n")
}

func TestTruncate(t *testing.T) {
	many := func(n int) []corev1.EndpointAddress { return make([]corev1.EndpointAddress, n) }
	for _, test := range []struct {
		ready, waiting           []int
		cut                      bool
		readyAfter, waitingAfter []int
	}{
		{[]int{600, 400}, []int{0, 0}, false, []int{600, 400}, []int{0, 0}},
		{[]int{500, 200}, []int{300, 100}, true, []int{500, 200}, []int{225, 75}},
		{[]int{1500, 500}, []int{10, 0}, true, []int{750, 250}, []int{0, 0}},
		{[]int{334, 334, 334}, []int{1, 1, 1}, true, []int{334, 334, 332}, []int{0, 0, 0}},
	} {
		var subsets []corev1.EndpointSubset
		for i := range test.ready {
			subsets = append(subsets, corev1.EndpointSubset{Addresses: many(test.ready[i]), NotReadyAddresses: many(test.waiting[i])})
		}
		cut := truncate(subsets)
		for i := range subsets {
			if cut != test.cut || len(subsets[i].Addresses) != test.readyAfter[i] || len(subsets[i].NotReadyAddresses) != test.waitingAfter[i] {
				t.Errorf("%v %v: cut %v, subset %d has %d + %d", test.ready, test.waiting, cut, i, len(subsets[i].Addresses), len(subsets[i].NotReadyAddresses))
			}
		}
	}
}

// TestTruncateKeepsItsPromises: never more than a thousand, a thousand whenever there were so many, ready ones before others, and
// each subset about its share.
func TestTruncateKeepsItsPromises(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 300 {
		var subsets []corev1.EndpointSubset
		ready, waiting := 0, 0
		for range 1 + random.IntN(5) {
			s := corev1.EndpointSubset{Addresses: make([]corev1.EndpointAddress, random.IntN(700)), NotReadyAddresses: make([]corev1.EndpointAddress, random.IntN(400))}
			ready, waiting = ready+len(s.Addresses), waiting+len(s.NotReadyAddresses)
			subsets = append(subsets, s)
		}
		before := slices.Clone(subsets)
		cut := truncate(subsets)
		readyAfter, waitingAfter := 0, 0
		for i, s := range subsets {
			readyAfter, waitingAfter = readyAfter+len(s.Addresses), waitingAfter+len(s.NotReadyAddresses)
			if len(s.Addresses) > len(before[i].Addresses) || len(s.NotReadyAddresses) > len(before[i].NotReadyAddresses) {
				t.Fatalf("seed %d, round %d: subset %d grew", seed, round, i)
			}
			if share := float64(len(before[i].Addresses)) / float64(max(ready, 1)) * 1000; ready > 1000 && float64(len(s.Addresses)) > share+1 {
				t.Fatalf("seed %d, round %d: subset %d has %d, its share is %.1f", seed, round, i, len(s.Addresses), share)
			}
		}
		if cut != (ready+waiting > 1000) || readyAfter != min(ready, 1000) || waitingAfter != min(waiting, 1000-readyAfter) {
			t.Fatalf("seed %d, round %d: cut %v; %d + %d became %d + %d", seed, round, cut, ready, waiting, readyAfter, waitingAfter)
		}
	}
}
