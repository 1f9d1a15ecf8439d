package cache

import (
	"slices"
	"strings"
	"sync/atomic"
)

// fanout bounds the children of a node. A write copies one node per level, so small nodes make writes cheap and large
// nodes make reads cheap; with 32, 10,000 entries need three levels and a write allocates about 700 bytes.
const fanout = 32

// tree is a copy-on-write B+ tree of entries ordered by key. A tree never changes: an edit makes a new one that shares all
// nodes it did not change, so an old tree is a snapshot. Every node counts the entries below it, so counting a range costs
// as little as finding its ends. docs/decisions/0012-btree.md has the reasons for writing it.
type tree struct {
	root *node // nil when empty
}

// node is a leaf when it has entries and an inner node when it has children; it is never empty.
type node struct {
	// owner is the edit that made the node and may change it.
	owner uint64
	size  int
	// low is not greater than any key of this node and greater than every key of its left sibling.
	low      string
	entries  []*Entry
	children []*node
}

func (t tree) len() int {
	if t.root == nil {
		return 0
	}
	return t.root.size
}

func (t tree) get(key string) *Entry {
	n := t.root
	if n == nil {
		return nil
	}
	for n.children != nil {
		n = n.children[n.child(key)]
	}
	if i, found := n.find(key); found {
		return n.entries[i]
	}
	return nil
}

// rank counts the entries before the key.
func (t tree) rank(key string) int {
	n, before := t.root, 0
	if n == nil {
		return 0
	}
	for n.children != nil {
		i := n.child(key)
		for _, left := range n.children[:i] {
			before += left.size
		}
		n = n.children[i]
	}
	i, _ := n.find(key)
	return before + i
}

// count counts the entries whose keys have the prefix.
func (t tree) count(prefix string) int {
	end := prefixEnd(prefix)
	if end == "" {
		return t.len() - t.rank(prefix)
	}
	return t.rank(end) - t.rank(prefix)
}

// ascend yields the entries from the key on until yield returns false.
func (t tree) ascend(from string, yield func(*Entry) bool) {
	if t.root != nil {
		t.root.ascend(from, yield)
	}
}

func (n *node) ascend(from string, yield func(*Entry) bool) bool {
	if n.children == nil {
		start := 0
		if from > n.low {
			start, _ = n.find(from)
		}
		for _, entry := range n.entries[start:] {
			if !yield(entry) {
				return false
			}
		}
		return true
	}
	for _, child := range n.children[n.child(from):] {
		if !child.ascend(from, yield) {
			return false
		}
	}
	return true
}

// child returns the index of the child that may contain the key.
func (n *node) child(key string) int {
	low, high := 0, len(n.children)
	for low+1 < high {
		middle := (low + high) / 2
		if n.children[middle].low <= key {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// find returns the index of the key in a leaf, or where it would be inserted.
func (n *node) find(key string) (int, bool) {
	low, high := 0, len(n.entries)
	for low < high {
		middle := (low + high) / 2
		switch strings.Compare(n.entries[middle].key, key) {
		case 0:
			return middle, true
		case -1:
			low = middle + 1
		default:
			high = middle
		}
	}
	return low, false
}

// edit makes a new tree from an old one. It changes only the nodes that it made itself.
type edit struct {
	id   uint64
	root *node
}

var lastEdit atomic.Uint64

func (t tree) edit() *edit {
	return &edit{id: lastEdit.Add(1), root: t.root}
}

// done returns the edited tree. The edit must not be used afterwards.
func (e *edit) done() tree {
	e.id = 0
	return tree{root: e.root}
}

// set stores the entry under its key and returns the replaced one.
func (e *edit) set(entry *Entry) *Entry {
	if e.root == nil {
		e.root = &node{owner: e.id, size: 1, low: entry.key, entries: []*Entry{entry}}
		return nil
	}
	root, right, old := e.insert(e.root, entry)
	if right != nil {
		root = &node{owner: e.id, size: root.size + right.size, low: root.low, children: []*node{root, right}}
	}
	e.root = root
	return old
}

// delete removes the key and returns its entry, nil when there is none.
func (e *edit) delete(key string) *Entry {
	if (tree{root: e.root}).get(key) == nil {
		return nil
	}
	root, old := e.remove(e.root, key)
	for root != nil && len(root.children) == 1 {
		root = root.children[0]
	}
	e.root = root
	return old
}

// own returns the node, or a copy with capacity for one more, so that this edit may change it.
func (e *edit) own(n *node) *node {
	if n.owner == e.id {
		return n
	}
	c := &node{owner: e.id, size: n.size, low: n.low}
	if n.children != nil {
		c.children = append(make([]*node, 0, len(n.children)+1), n.children...)
	} else {
		c.entries = append(make([]*Entry, 0, len(n.entries)+1), n.entries...)
	}
	return c
}

// insert returns the changed node, its new right sibling if it was split, and the replaced entry.
func (e *edit) insert(n *node, entry *Entry) (left, right *node, old *Entry) {
	n = e.own(n)
	if entry.key < n.low {
		n.low = entry.key
	}
	if n.children == nil {
		i, found := n.find(entry.key)
		if found {
			old, n.entries[i] = n.entries[i], entry
			return n, nil, old
		}
		n.entries = slices.Insert(n.entries, i, entry)
		n.size++
	} else {
		i := n.child(entry.key)
		var split *node
		n.children[i], split, old = e.insert(n.children[i], entry)
		if split != nil {
			n.children = slices.Insert(n.children, i+1, split)
		}
		if old != nil {
			return n, nil, old
		}
		n.size++
	}
	return n, e.split(n), nil
}

// split moves the upper half of a node that exceeds the fanout into a new one. Most keys are inserted in random order, or
// at the end of their namespace, so no split point is better than the middle.
func (e *edit) split(n *node) *node {
	switch {
	case len(n.entries) > fanout:
		middle := len(n.entries) / 2
		right := &node{owner: e.id, low: n.entries[middle].key, entries: slices.Clone(n.entries[middle:])}
		right.size = len(right.entries)
		clear(n.entries[middle:])
		n.entries = n.entries[:middle]
		n.size -= right.size
		return right
	case len(n.children) > fanout:
		middle := len(n.children) / 2
		right := &node{owner: e.id, low: n.children[middle].low, children: slices.Clone(n.children[middle:])}
		for _, child := range right.children {
			right.size += child.size
		}
		clear(n.children[middle:])
		n.children = n.children[:middle]
		n.size -= right.size
		return right
	}
	return nil
}

// remove deletes an existing key; it returns nil when the node becomes empty.
func (e *edit) remove(n *node, key string) (*node, *Entry) {
	if n.size == 1 {
		return nil, tree{root: n}.get(key)
	}
	n = e.own(n)
	n.size--
	if n.children == nil {
		i, _ := n.find(key)
		old := n.entries[i]
		n.entries = slices.Delete(n.entries, i, i+1)
		return n, old
	}
	i := n.child(key)
	child, old := e.remove(n.children[i], key)
	if child == nil {
		n.children = slices.Delete(n.children, i, i+1)
		return n, old
	}
	n.children[i] = child
	if child.width() < fanout/4 && len(n.children) > 1 {
		if i == len(n.children)-1 {
			i--
		}
		e.merge(n, i)
	}
	return n, old
}

func (n *node) width() int { return len(n.entries) + len(n.children) }

// merge joins children i and i+1 if they fit into one node.
func (e *edit) merge(n *node, i int) {
	if n.children[i].width()+n.children[i+1].width() > fanout {
		return
	}
	left, right := e.own(n.children[i]), n.children[i+1]
	left.entries = append(left.entries, right.entries...)
	left.children = append(left.children, right.children...)
	left.size += right.size
	n.children[i] = left
	n.children = slices.Delete(n.children, i+1, i+2)
}

// newTree builds a tree from entries ordered by key.
func newTree(entries []*Entry) tree {
	if len(entries) == 0 {
		return tree{}
	}
	// Three quarters full, so that the first writes after the load do not split nodes.
	const width = fanout * 3 / 4
	var level []*node
	for part := range slices.Chunk(entries, width) {
		level = append(level, &node{size: len(part), low: part[0].key, entries: slices.Clone(part)})
	}
	for len(level) > 1 {
		var upper []*node
		for part := range slices.Chunk(level, width) {
			n := &node{low: part[0].low, children: slices.Clone(part)}
			for _, child := range part {
				n.size += child.size
			}
			upper = append(upper, n)
		}
		level = upper
	}
	return tree{root: level[0]}
}

// prefixEnd returns the first key after all those with the prefix, "" when there is none.
func prefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}
