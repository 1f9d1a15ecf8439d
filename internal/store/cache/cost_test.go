package cache

import (
	"fmt"
	"testing"
	"testing/synctest"

	"skiff/internal/store"
)

// nodesOf adds the nodes of a tree to a set and returns how many were not in it.
func nodesOf(n *node, set map[*node]bool) (added int) {
	if n == nil || set[n] {
		return 0 // the nodes below are in the set too
	}
	set[n] = true
	added = 1
	for _, child := range n.children {
		added += nodesOf(child, set)
	}
	return added
}

// cost is what the writes of one object after the other cost the cache.
type cost struct {
	nodes       int     // made for the trees, per write
	woken       int     // watchers, per write
	allocations float64 // by the watch feed, per write
	visited     int     // entries, by a page of ten
}

// measure counts the cost with n objects, n watchers of nodes, n of namespaces, n of objects and n waiting reads.
func measure(t *testing.T, n int) (c cost) {
	story(t, func(t *testing.T, _ *shaky, cache *Cache, pods *Table) {
		value := must((&podCodec{}).Encode(newPod("default", "a"))) // on node-1
		batch := func(keys ...string) {
			revision := cache.Revision() + 1
			b := store.Batch{Revision: revision}
			for _, key := range keys {
				b.Events = append(b.Events, store.Event{KeyValue: store.KeyValue{Key: key, Value: value, Modified: revision}})
			}
			cache.apply(b)
		}
		var keys []string
		for i := range n {
			keys = append(keys, podKey(fmt.Sprint("ns-", i%50), fmt.Sprintf("pod-%06d", i)))
		}
		batch(keys...)
		var changed []<-chan struct{}
		for i := range n {
			for _, scope := range []Scope{{ByIndex, fmt.Sprint("node-", i)}, {ByNamespace, podPrefix + fmt.Sprint("other-", i, "/")}, {ByKey, keys[i]}} {
				cursor, err := pods.Watch(cache.Revision(), scope)
				if err != nil {
					t.Fatal(err)
				}
				defer cursor.Close()
				changed = append(changed, cursor.Changed())
			}
			waiting := cache.waiters.add(cache.Revision() + 1<<30)
			defer cache.waiters.remove(waiting)
		}
		synctest.Wait()
		set := map[*node]bool{}
		nodesOf(pods.state.Load().tree.root, set)
		const writes = 50
		write := func(i int) {
			key := keys[(i*7919)%n]
			switch i % 3 {
			case 0: // update
				batch(key)
			case 1: // delete
				revision := cache.Revision() + 1
				cache.apply(store.Batch{Revision: revision, Events: []store.Event{{KeyValue: store.KeyValue{Key: key, Modified: revision}, Deleted: true}}})
			case 2: // create
				batch(key + "-new")
			}
		}
		for i := range writes {
			write(i)
			c.nodes += nodesOf(pods.state.Load().tree.root, set)
		}
		for _, channel := range changed {
			if isClosed(channel) {
				c.woken++
			}
		}
		i := writes
		c.allocations = testing.AllocsPerRun(writes, func() { write(i); i++ })
		pods.Snapshot().Ascend(podPrefix+"ns-7/", "", func(*Entry) bool { c.visited++; return c.visited < 10 })
	})
	return c
}

// What a write costs depends on the number of objects by the depth of the tree, and not on the number of watchers.
func TestCostOfWrites(t *testing.T) {
	small, large := measure(t, 1000), measure(t, 4000)
	t.Logf("1000: %+v, 4000: %+v", small, large)
	if large.nodes > small.nodes*3/2 {
		t.Errorf("50 writes make %d nodes with 1000 objects, %d with 4000", small.nodes, large.nodes)
	}
	// The watchers of the node of all pods, and of the 50 objects.
	if small.woken > 51 || large.woken > 51 {
		t.Errorf("50 writes wake %d of 3000 watchers, %d of 12000", small.woken, large.woken)
	}
	if large.allocations > small.allocations*3/2 {
		t.Errorf("a write allocates %v times with 1000 objects, %v with 4000", small.allocations, large.allocations)
	}
	if small.visited != 10 || large.visited != 10 {
		t.Errorf("a page of ten visits %d and %d entries", small.visited, large.visited)
	}
}
