package decision

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// maxTables bounds the cached tables.
const maxTables = 128

// maxHistory bounds how far back a decision can be explained from its table.
const maxHistory = 4096

// nodeAbsent is the refusal code of a node without Node object. 0 is no refusal.
const nodeAbsent uint16 = 1

// cell has the results of the node-local plugins, those that depend on one node only.
type cell struct {
	refusal uint16
	scores  [plugins.MaxLocalScores]uint8
}

// table has the results of the node-local plugins for all pods with the same LocalKey: a cell for each node, and a tournament tree over
// them. It is updated by the snapshot's log of changed nodes, so that a pod like the last one costs one cell and one path of the tree.
type table struct {
	profile        *plugins.Profile
	filters        []boundFilter
	scorers        []boundScorer
	normalized     []normalizedScorer
	nodeNames      []string
	limitedToNames bool
	// volatile tables are for one pod; shared ones are cached by LocalKey.
	volatile, shared bool
	noRecord         bool

	cells          []cell
	weightedScores []int64 // by node: weighted sum of the cell's scores
	refusals       []*plugins.Refusal
	codes          map[refusalKey]uint16
	pluginOrder    []int   // by refusal code: index of the plugin in Profile.Filters
	refused        []int32 // by refusal code: number of nodes
	feasible       int

	tree tree
	// scoreError is the error of a PreScore plugin.
	scoreError error

	history      []cellChange
	historyStart uint64

	syncedTo uint64
	images   plugins.ImageVersions
	lastUsed uint64
}

type boundFilter struct {
	order int
	check func(int32) *plugins.Refusal
}

type boundScorer struct {
	name   string
	weight int64
	score  func(int32) int64
}

// refusalKey is equal for refusals that say the same.
type refusalKey struct {
	plugin, text string
	unresolvable bool
}

// normalizedScorer has raw scores that are normalized over the feasible nodes.
type normalizedScorer struct {
	boundScorer
	normalization plugins.Normalization
	raw           []int64
	nonzero       int
}

// cellChange is the old value of a changed cell.
type cellChange struct {
	node int32
	old  cell
}

// newTable runs PreFilter and PreScore of the profile's plugins. A Refusal rejects all nodes.
func (m *memo) newTable(s *snapshot.Snapshot, p *snapshot.PodInfo, profile *plugins.Profile) (*table, *plugins.Refusal) {
	t := &table{profile: profile, noRecord: m.NoRecord, refusals: []*plugins.Refusal{nil, nil}, pluginOrder: []int{-1, -1}, refused: []int32{0, 0}}
	for order, plugin := range profile.Filters {
		if plugin == nil {
			continue // PodTopologySpread or InterPodAffinity
		}
		done := m.timing(plugin, "PreFilter")
		f, refusal := plugin.Filter(s, p)
		done(refusal)
		if refusal != nil {
			return nil, refusal
		}
		if f.LimitedToNames {
			if t.limitedToNames {
				f.NodeNames = slices.DeleteFunc(f.NodeNames, func(name string) bool { return !slices.Contains(t.nodeNames, name) })
			}
			t.nodeNames, t.limitedToNames = f.NodeNames, true
		}
		if f.Check != nil {
			t.filters = append(t.filters, boundFilter{order: order, check: f.Check})
		}
		t.volatile = t.volatile || f.Volatile
	}
	for _, plugin := range profile.Scorers {
		done := m.timing(plugin.Plugin, "PreScore")
		x := plugin.Plugin.Score(s, p)
		done(nil)
		if x.Err != nil && t.scoreError == nil {
			t.scoreError = fmt.Errorf("running PreScore plugin %q: %w", plugin.Plugin.Name(), x.Err)
		}
		if x.Score == nil {
			continue
		}
		bound := boundScorer{name: plugin.Plugin.Name(), weight: plugin.Weight, score: x.Score}
		if x.Normalization == plugins.NotNormalized {
			t.scorers = append(t.scorers, bound)
		} else {
			t.normalized = append(t.normalized, normalizedScorer{boundScorer: bound, normalization: x.Normalization})
		}
		t.volatile = t.volatile || x.Volatile
	}
	return t, nil
}

// timing measures a plugin if Options.Timed is set.
func (m *memo) timing(plugin plugins.Plugin, point string) func(*plugins.Refusal) {
	if m.Timed == nil {
		return func(*plugins.Refusal) {}
	}
	return m.Timed(plugin.Name(), point)
}

// tableFor returns the table of a pod, up to date with the snapshot.
func tableFor(s *snapshot.Snapshot, p *snapshot.PodInfo, profile *plugins.Profile) (*table, *plugins.Refusal) {
	m := memoOf(s)
	s.UseClock++
	key := profile.Name + "\x00" + p.LocalKey()
	// Results that depend on volumes, devices or features are not covered by the key.
	cacheable := !p.HasVolumes && !s.WantsDevices(p) && !p.NeedsFeatures
	if cacheable {
		if t := m.tables[key]; t != nil {
			t.lastUsed = s.UseClock
			t.sync(s)
			return t, nil
		}
	}
	t, refusal := m.newTable(s, p, profile)
	if refusal != nil {
		return nil, refusal
	}
	t.lastUsed = s.UseClock
	if t.limitedToNames {
		return t, nil
	}
	t.images = plugins.NewImageVersions(s, p)
	t.fill(s)
	if cacheable && !t.volatile {
		if len(m.tables) >= maxTables {
			m.dropTable()
		}
		t.shared = true
		m.tables[key] = t
	}
	return t, nil
}

// dropTable drops the least recently used table.
func (m *memo) dropTable() {
	oldest := ""
	for key, t := range m.tables {
		if oldest == "" || t.lastUsed < m.tables[oldest].lastUsed {
			oldest = key
		}
	}
	m.Log.tableDropped(m.tables[oldest])
	delete(m.tables, oldest)
}

// fill computes all cells.
func (t *table) fill(s *snapshot.Snapshot) {
	n := len(s.NodeInfos)
	t.cells, t.weightedScores = make([]cell, n), make([]int64, n)
	for i := range t.normalized {
		t.normalized[i].raw, t.normalized[i].nonzero = make([]int64, n), 0
	}
	clear(t.refused)
	// Earlier positions cannot be restored.
	t.historyStart = t.position() + 1
	t.feasible, t.tree, t.history = 0, tree{}, nil
	for node := range int32(n) {
		c := t.evaluate(s, node)
		t.cells[node] = c
		t.countCell(c, 1)
		t.weightedScores[node] = t.weightedScore(c)
		t.updateNormalized(s, node)
	}
	t.syncedTo = s.ChangesEnd()
}

// sync updates the cells of the nodes that changed since the table was last used.
func (t *table) sync(s *snapshot.Snapshot) {
	if t.syncedTo < s.ChangesFrom || s.ChangesEnd()-t.syncedTo > uint64(len(s.NodeInfos)) || !t.images.Current(s) {
		t.images.Refresh(s)
		t.fill(s)
		return
	}
	for _, node := range s.Changes[t.syncedTo-s.ChangesFrom:] {
		for int(node) >= len(t.cells) {
			t.cells, t.weightedScores = append(t.cells, cell{refusal: nodeAbsent}), append(t.weightedScores, 0)
			t.refused[nodeAbsent]++
			for i := range t.normalized {
				t.normalized[i].raw = append(t.normalized[i].raw, 0)
			}
			t.tree = tree{}
		}
		t.update(s, node)
	}
	t.syncedTo = s.ChangesEnd()
}

func (t *table) update(s *snapshot.Snapshot, node int32) {
	c := t.evaluate(s, node)
	if old := t.cells[node]; c != old {
		if !t.noRecord {
			if len(t.history) >= 2*maxHistory {
				t.history = append(t.history[:0], t.history[maxHistory:]...)
				t.historyStart += maxHistory
			}
			t.history = append(t.history, cellChange{node: node, old: old})
		}
		t.countCell(old, -1)
		t.countCell(c, 1)
		t.cells[node] = c
		t.weightedScores[node] = t.weightedScore(c)
	}
	t.updateNormalized(s, node)
	t.tree.update(t, s, node)
}

// evaluate runs the node-local plugins on one node.
func (t *table) evaluate(s *snapshot.Snapshot, node int32) (c cell) {
	if !s.Exists[node] {
		c.refusal = nodeAbsent
		return c
	}
	for i := range t.filters {
		if r := t.filters[i].check(node); r != nil {
			c.refusal = t.code(r, t.filters[i].order)
			return c
		}
	}
	for i := range t.scorers {
		c.scores[i] = uint8(min(max(t.scorers[i].score(node), 0), plugins.MaxScore))
	}
	return c
}

// commonRefusals is how many refusals are compared by pointer: plugins have few, which they make once.
const commonRefusals = 8

// code returns the code of a refusal, allocating one if it is new. The refusals that a plugin makes for every node share one if they say
// the same, and when there are no codes left.
func (t *table) code(r *plugins.Refusal, order int) uint16 {
	for i := 2; i < min(len(t.refusals), 2+commonRefusals); i++ {
		if t.refusals[i] == r {
			return uint16(i)
		}
	}
	key := refusalKey{plugin: r.Plugin, text: strings.Join(r.Reasons, "\x00"), unresolvable: r.Unresolvable}
	if r.Err != nil {
		key.text += "\x01" + r.Err.Error()
	}
	if code, ok := t.codes[key]; ok {
		return code
	}
	code := uint16(len(t.refusals))
	if len(t.refusals) > math.MaxUint16 {
		for code = math.MaxUint16; code > 2; code-- {
			if other := t.refusals[code]; other.Plugin == r.Plugin && (other.Err != nil) == (r.Err != nil) {
				break
			}
		}
	} else {
		t.refusals, t.pluginOrder, t.refused = append(t.refusals, r), append(t.pluginOrder, order), append(t.refused, 0)
	}
	if t.codes == nil {
		t.codes = map[refusalKey]uint16{}
	}
	t.codes[key] = code
	return code
}

func (t *table) countCell(c cell, delta int32) {
	if c.refusal == 0 {
		t.feasible += int(delta)
	} else {
		t.refused[c.refusal] += delta
	}
}

func (t *table) weightedScore(c cell) (sum int64) {
	if c.refusal != 0 {
		return 0
	}
	for i := range t.scorers {
		sum += t.scorers[i].weight * int64(c.scores[i])
	}
	return sum
}

func (t *table) updateNormalized(s *snapshot.Snapshot, node int32) {
	for i := range t.normalized {
		x := &t.normalized[i]
		var raw int64
		if s.Exists[node] {
			raw = x.score(node)
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

// normalizedScoresEqual reports whether normalized plugins score all nodes the same, so that they do not change the order.
func (t *table) normalizedScoresEqual() bool {
	for i := range t.normalized {
		if t.normalized[i].nonzero > 0 {
			return false
		}
	}
	return true
}

// position returns the present position in the table's history.
func (t *table) position() uint64 { return t.historyStart + uint64(len(t.history)) }

// restore returns the cells as they were at a position, or false if the history does not reach back to it.
func (t *table) restore(position uint64) ([]cell, bool) {
	if position < t.historyStart || position > t.position() {
		return nil, false
	}
	cells := slices.Clone(t.cells)
	for i := len(t.history) - 1; i >= int(position-t.historyStart); i-- {
		cells[t.history[i].node] = t.history[i].old
	}
	return cells, true
}

// tree is a tournament tree over nodes: the best node is found in constant time, a node is updated in logarithmic time.
type tree struct {
	size    int     // a power of two, 0 while the tree is not built
	winners []int32 // winners[1] is the best node; the children of i are 2i and 2i+1
	keys    []int64 // by node
}

const refusedKey = -1

// key orders nodes by score, then by the oldest last placement.
func (t *table) key(s *snapshot.Snapshot, node int32) int64 {
	if t.cells[node].refusal != 0 {
		return refusedKey
	}
	return orderKey(t.weightedScores[node], s.LastPlacement[node])
}

func orderKey(score int64, lastPlacement uint32) int64 { return score<<32 | int64(^lastPlacement) }

func (x *tree) grow(t *table, s *snapshot.Snapshot) {
	n := len(t.cells)
	x.size = 1
	for x.size < n {
		x.size *= 2
	}
	x.winners, x.keys = make([]int32, 2*x.size), make([]int64, x.size)
	for i := range x.size {
		x.winners[x.size+i] = int32(i)
		x.keys[i] = refusedKey
		if i < n {
			x.keys[i] = t.key(s, int32(i))
		}
	}
	for i := x.size - 1; i > 0; i-- {
		x.winners[i] = x.better(x.winners[2*i], x.winners[2*i+1])
	}
}

func (x *tree) better(a, b int32) int32 {
	if x.keys[b] > x.keys[a] {
		return b
	}
	return a
}

func (x *tree) update(t *table, s *snapshot.Snapshot, node int32) {
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
		x.winners[i] = x.better(x.winners[2*i], x.winners[2*i+1])
	}
}

// best returns the best node, or false if all are rejected.
func (x *tree) best() (int32, bool) {
	best := x.winners[1]
	return best, x.keys[best] != refusedKey
}
