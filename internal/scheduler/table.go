package scheduler

import (
	"fmt"
	"slices"
)

// maxTables bounds what is kept for pods that may come again.
const maxTables = 128

// maxUndo bounds how far back a decision can be explained from its table.
const maxUndo = 4096

// maxLocalScores is how many scores of 0 to MaxScore a cell has room for.
const maxLocalScores = 6

// absent is the refusal code of a node that does not exist. 0 is no refusal.
const absent uint16 = 1

// cell is what the rules that look at one node alone say of it.
type cell struct {
	refusal uint16
	scores  [maxLocalScores]uint8
}

// table is the outcome of the node-local rules for all pods of one make: a cell for each node, and a tree of winners above them.
// It follows the snapshot by the log of changed nodes, so that a pod like the last one costs one cell and one path of the tree.
type table struct {
	profile *Profile
	filters []boundFilter
	scorers []boundScorer
	scales  []scaledScorer
	only    []string
	limited bool
	// volatile tables serve one pod; shared ones all pods of one make.
	volatile, shared bool

	cells    []cell
	base     []int64 // by node: weighted sum of the cell's scores
	refusals []*Refusal
	orders   []int   // by refusal code: place of the rule in the profile
	refused  []int32 // by refusal code: nodes
	feasible int

	tree tree
	// unscored is why the pod's nodes cannot be compared.
	unscored error

	undo     []undo
	undoFrom uint64

	seen   uint64
	images imagesSeen
	used   uint64
}

type boundFilter struct {
	order int
	check func(int32) *Refusal
}

type boundScorer struct {
	name   string
	weight int64
	of     func(int32) int64
}

// scaledScorer has numbers that mean something only beside those of the other nodes.
type scaledScorer struct {
	boundScorer
	scale   Scale
	raw     []int64
	nonzero int
}

// undo is what a cell was before a change.
type undo struct {
	node int32
	old  cell
}

// prepare asks the profile's rules about a pod. A Refusal is against all nodes.
func (s *Snapshot) prepare(p *PodInfo, profile *Profile) (*table, *Refusal) {
	t := &table{profile: profile, refusals: []*Refusal{nil, nil}, orders: []int{-1, -1}, refused: []int32{0, 0}}
	for order, rule := range profile.filters {
		if rule == nil {
			continue // a rule about neighbours
		}
		done := s.timing(rule, "PreFilter")
		f, refusal := rule.Filter(s, p)
		done(refusal)
		if refusal != nil {
			return nil, refusal
		}
		if f.Limited {
			if t.limited {
				f.Only = slices.DeleteFunc(f.Only, func(name string) bool { return !slices.Contains(t.only, name) })
			}
			t.only, t.limited = f.Only, true
		}
		if f.Check != nil {
			t.filters = append(t.filters, boundFilter{order: order, check: f.Check})
		}
		t.volatile = t.volatile || f.Volatile
	}
	for _, rule := range profile.scorers {
		done := s.timing(rule.rule, "PreScore")
		x := rule.rule.Score(s, p)
		done(nil)
		if x.Err != nil && t.unscored == nil {
			t.unscored = fmt.Errorf("running PreScore plugin %q: %w", rule.rule.Name(), x.Err)
		}
		if x.Of == nil {
			continue
		}
		bound := boundScorer{name: rule.rule.Name(), weight: rule.weight, of: x.Of}
		if x.Scale == AsIs {
			t.scorers = append(t.scorers, bound)
		} else {
			t.scales = append(t.scales, scaledScorer{boundScorer: bound, scale: x.Scale})
		}
		t.volatile = t.volatile || x.Volatile
	}
	return t, nil
}

// timing measures a rule, if anybody wants to know.
func (s *Snapshot) timing(rule Rule, point string) func(*Refusal) {
	if s.timed == nil {
		return func(*Refusal) {}
	}
	return s.timed(rule.Name(), point)
}

// tableFor returns the table of a pod, up to date with the snapshot.
func (s *Snapshot) tableFor(p *PodInfo, profile *Profile) (*table, *Refusal) {
	s.clock++
	key := profile.Name + "\x00" + p.localKey()
	// What the key does not cover makes a pod one of its own.
	cacheable := !p.hasVolumes && !s.wantsDevices(p) && !p.needsFeatures
	if cacheable {
		if t := s.tables[key]; t != nil {
			t.used = s.clock
			t.follow(s)
			return t, nil
		}
	}
	t, refusal := s.prepare(p, profile)
	if refusal != nil {
		return nil, refusal
	}
	t.used = s.clock
	if t.limited {
		return t, nil
	}
	t.images = s.imagesOf(p)
	t.fill(s)
	if cacheable && !t.volatile {
		if len(s.tables) >= maxTables {
			s.dropTable()
		}
		t.shared = true
		s.tables[key] = t
	}
	return t, nil
}

// dropTable forgets the table unused longest.
func (s *Snapshot) dropTable() {
	oldest := ""
	for key, t := range s.tables {
		if oldest == "" || t.used < s.tables[oldest].used {
			oldest = key
		}
	}
	if s.dropped != nil {
		s.dropped(s.tables[oldest])
	}
	delete(s.tables, oldest)
}

// fill makes all cells anew.
func (t *table) fill(s *Snapshot) {
	n := len(s.nodes)
	t.cells, t.base = make([]cell, n), make([]int64, n)
	for i := range t.scales {
		t.scales[i].raw, t.scales[i].nonzero = make([]int64, n), 0
	}
	clear(t.refused)
	// Positions before are of another history.
	t.undoFrom = t.position() + 1
	t.feasible, t.tree, t.undo = 0, tree{}, nil
	for node := range int32(n) {
		c := t.evaluate(s, node)
		t.cells[node] = c
		t.note(c, 1)
		t.base[node] = t.weigh(c)
		t.weighScales(s, node)
	}
	t.seen = s.changesEnd()
}

// follow brings the table up to date with the nodes changed since it was last used.
func (t *table) follow(s *Snapshot) {
	if t.seen < s.changesFrom || s.changesEnd()-t.seen > uint64(len(s.nodes)) || !t.images.current(s) {
		t.images.refresh(s)
		t.fill(s)
		return
	}
	for _, node := range s.changes[t.seen-s.changesFrom:] {
		for int(node) >= len(t.cells) {
			t.cells, t.base = append(t.cells, cell{refusal: absent}), append(t.base, 0)
			t.refused[absent]++
			for i := range t.scales {
				t.scales[i].raw = append(t.scales[i].raw, 0)
			}
			t.tree = tree{}
		}
		t.update(s, node)
	}
	t.seen = s.changesEnd()
}

func (t *table) update(s *Snapshot, node int32) {
	c := t.evaluate(s, node)
	if old := t.cells[node]; c != old {
		if !s.unrecorded {
			if len(t.undo) >= 2*maxUndo {
				t.undo = append(t.undo[:0], t.undo[maxUndo:]...)
				t.undoFrom += maxUndo
			}
			t.undo = append(t.undo, undo{node: node, old: old})
		}
		t.note(old, -1)
		t.note(c, 1)
		t.cells[node] = c
		t.base[node] = t.weigh(c)
	}
	t.weighScales(s, node)
	t.tree.update(t, s, node)
}

// evaluate asks the node-local rules about one node.
func (t *table) evaluate(s *Snapshot, node int32) (c cell) {
	if !s.exists[node] {
		c.refusal = absent
		return c
	}
	for i := range t.filters {
		if r := t.filters[i].check(node); r != nil {
			c.refusal = t.code(r, t.filters[i].order)
			return c
		}
	}
	for i := range t.scorers {
		c.scores[i] = uint8(min(max(t.scorers[i].of(node), 0), MaxScore))
	}
	return c
}

// code gives a refusal its number.
func (t *table) code(r *Refusal, order int) uint16 {
	for i := 2; i < len(t.refusals); i++ {
		if other := t.refusals[i]; other == r || other.Rule == r.Rule && other.Unresolvable == r.Unresolvable && slices.Equal(other.Reasons, r.Reasons) && other.Err == r.Err {
			return uint16(i)
		}
	}
	t.refusals, t.orders, t.refused = append(t.refusals, r), append(t.orders, order), append(t.refused, 0)
	return uint16(len(t.refusals) - 1)
}

func (t *table) note(c cell, delta int32) {
	if c.refusal == 0 {
		t.feasible += int(delta)
	} else {
		t.refused[c.refusal] += delta
	}
}

func (t *table) weigh(c cell) (sum int64) {
	if c.refusal != 0 {
		return 0
	}
	for i := range t.scorers {
		sum += t.scorers[i].weight * int64(c.scores[i])
	}
	return sum
}

func (t *table) weighScales(s *Snapshot, node int32) {
	for i := range t.scales {
		x := &t.scales[i]
		var raw int64
		if s.exists[node] {
			raw = x.of(node)
		}
		if x.raw[node] != 0 {
			x.nonzero--
		}
		if raw != 0 {
			x.nonzero++
		}
		x.raw[node] = raw
	}
}

// even reports whether the scaled rules say the same of all nodes, so that they do not change the order.
func (t *table) even() bool {
	for i := range t.scales {
		if t.scales[i].nonzero > 0 {
			return false
		}
	}
	return true
}

// position is the point in the table's history a decision was made at.
func (t *table) position() uint64 { return t.undoFrom + uint64(len(t.undo)) }

// restore returns the cells as they were at a position, or false when that is too long ago.
func (t *table) restore(position uint64) ([]cell, bool) {
	if position < t.undoFrom || position > t.position() {
		return nil, false
	}
	cells := slices.Clone(t.cells)
	for i := len(t.undo) - 1; i >= int(position-t.undoFrom); i-- {
		cells[t.undo[i].node] = t.undo[i].old
	}
	return cells, true
}

// tree finds the best node in one step, and takes in a changed node in as many steps as the number of nodes has digits.
type tree struct {
	size int     // a power of two, 0 while the tree is not grown
	wins []int32 // wins[1] is the best node; the children of i are 2i and 2i+1
	keys []int64 // by node
}

const refusedKey = -1

// key orders nodes: the better score first, then the node that waited longest for a pod.
func (t *table) key(s *Snapshot, node int32) int64 {
	if t.cells[node].refusal != 0 {
		return refusedKey
	}
	return orderKey(t.base[node], s.served[node])
}

func orderKey(score int64, served uint32) int64 { return score<<32 | int64(^served) }

func (x *tree) grow(t *table, s *Snapshot) {
	n := len(t.cells)
	x.size = 1
	for x.size < n {
		x.size *= 2
	}
	x.wins, x.keys = make([]int32, 2*x.size), make([]int64, x.size)
	for i := range x.size {
		x.wins[x.size+i] = int32(i)
		x.keys[i] = refusedKey
		if i < n {
			x.keys[i] = t.key(s, int32(i))
		}
	}
	for i := x.size - 1; i > 0; i-- {
		x.wins[i] = x.better(x.wins[2*i], x.wins[2*i+1])
	}
}

func (x *tree) better(a, b int32) int32 {
	if x.keys[b] > x.keys[a] {
		return b
	}
	return a
}

func (x *tree) update(t *table, s *Snapshot, node int32) {
	if x.size > 0 {
		x.set(node, t.key(s, node))
	}
}

func (x *tree) set(node int32, key int64) {
	if x.keys[node] == key {
		return
	}
	x.keys[node] = key
	for i := (x.size + int(node)) / 2; i > 0; i /= 2 {
		x.wins[i] = x.better(x.wins[2*i], x.wins[2*i+1])
	}
}

// best is the best node, or false when all are refused.
func (x *tree) best() (int32, bool) {
	best := x.wins[1]
	return best, x.keys[best] != refusedKey
}
