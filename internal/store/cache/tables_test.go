package cache

import (
	"fmt"
	"runtime"
	"testing"

	"skiff/internal/store/memory"
)

func TestTables(t *testing.T) {
	c := New(memory.New(), nil)
	add := func(prefix string) *Table { return c.Add(Resource{Prefix: prefix}) }
	pods, group := add("/registry/pods/"), add("/registry/example.com/")
	foos := add("/registry/example.com/foos/")
	for key, want := range map[string]*Table{
		"/registry/pods/default/a": pods, "/registry/pods/a": pods, "/registry/podsx/a": nil, "/registry/pods": nil, "/registry/": nil,
		"/registry/example.com/foos/default/a": foos, "/registry/example.com/foo/a": group, "/registry/example.com/foos": group,
	} {
		if got := c.tables.route(key); got != want {
			t.Errorf("%s belongs to %v, want %v", key, got, want)
		}
	}
	for prefix, want := range map[string]bool{
		"/registry/pods/": false, "/registry/example.com/": false, "/registry/example.com/foos/": true, "/registry/example.com/bars/": true, "/registry/example.org/foos/": false,
	} {
		if got := c.tables.nests(prefix); got != want {
			t.Errorf("%s is nested: %v", prefix, got)
		}
	}
	c.Remove(foos)
	if got := c.tables.route("/registry/example.com/foos/a"); got != group {
		t.Errorf("after the removal: %v", got)
	}
}

// A table that is added costs the same, however many there are.
func TestAddManyTables(t *testing.T) {
	c := New(memory.New(), nil)
	count := 0
	add := func(n int) uint64 {
		before := allocated()
		for range n {
			c.Add(Resource{Prefix: fmt.Sprintf("/registry/example.com/kind%d/", count)})
			count++
		}
		return allocated() - before
	}
	first := add(500)
	add(7000)
	if last := add(500); last > 3*first {
		t.Errorf("500 tables cost %d bytes when there are few, and %d when there are %d", first, last, count)
	}
}

// allocated is how many bytes were ever allocated.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}
