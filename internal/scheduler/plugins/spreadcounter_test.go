package plugins

import (
	"testing"

	"skiff/internal/scheduler/snapshot"
)

func TestFewest(t *testing.T) {
	for _, test := range []struct {
		what          string
		pods, domains []int32
		fewest        int32
		found         int
	}{
		{"no domains", nil, nil, 1<<31 - 1, 0},
		{"one domain nobody is in", nil, []int32{1}, 0, 1},
		{"one domain", []int32{4}, []int32{2}, 4, 1},
		{"the last has fewest", []int32{4, 3, 2}, []int32{1, 1, 1}, 2, 3},
		{"the first has fewest", []int32{1, 3, 2}, []int32{1, 1, 1}, 1, 3},
		{"a domain without nodes does not count", []int32{0, 3, 2}, []int32{0, 1, 1}, 2, 2},
		{"a domain nobody ever came to", []int32{4, 3}, []int32{1, 1, 1}, 0, 3},
		{"a domain without nodes nobody ever came to", []int32{4, 3}, []int32{1, 1, 0}, 3, 2},
		{"all domains lost their nodes", []int32{4, 3}, []int32{0, 0}, 1<<31 - 1, 0},
	} {
		c := &snapshot.Counter{Pods: test.pods, Domains: test.domains}
		if fewest, found := c.MinPods(); fewest != test.fewest || found != test.found {
			t.Errorf("%s: %d in %d, want %d in %d", test.what, fewest, found, test.fewest, test.found)
		}
	}
	for _, test := range []struct {
		what       string
		minDomains int
		want       int32
	}{{"enough domains", 2, 3}, {"more than enough", 1, 3}, {"too few", 3, 0}} {
		l := RequiredSpread{Counter: &snapshot.Counter{Pods: []int32{4, 3}, Domains: []int32{1, 1}}, minDomains: test.minDomains}
		if got := l.minMatch(); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}
