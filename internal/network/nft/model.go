// Package nft keeps one nftables table as skiff wants it to be. A component describes the table as a Model, which is plain data with a canonical
// text, and a Writer sends the kernel what has changed in one netlink transaction.
//
// A Model is composed of parts, each with an owner: a Service, a NetworkPolicy, or the component itself for the chains that always exist. An
// owner's part is replaced as a whole, and the cost of that depends on the sizes of the old and the new part only. Chains and sets may be
// in several parts; they exist while one part has them. An element that several parts have with different values has the value of the
// owner whose name sorts first.
//
// The order of a transaction is in Writer.send. After a failed transaction the whole table is replaced, again in one transaction: packets see
// the old table or the new one, never a half of each.
package nft

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"
)

// Hook makes a chain a base chain, which the kernel calls for packets.
type Hook struct {
	// Type is filter, nat or route.
	Type string
	// Point is prerouting, input, forward, output or postrouting.
	Point    string
	Priority int32
}

// Chain is a list of rules. A chain without hook is only jumped to.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// equal reports whether two chains have the same content.
func (c Chain) equal(other Chain) bool {
	return c.sameHook(other) && slices.EqualFunc(c.Rules, other.Rules, func(a, b Rule) bool { return a.text == b.text })
}

func (c Chain) sameHook(other Chain) bool {
	if c.Hook == nil || other.Hook == nil {
		return c.Hook == other.Hook
	}
	return *c.Hook == *other.Hook
}

// Set is a set, or a map if its elements have values. Its elements are in the parts of a Model.
type Set struct {
	Name string
	Key  []Type
	// Value is empty for sets. The value of a verdict map is Verdict alone.
	Value []Type
	// Interval sets have elements with an end: ranges of keys.
	Interval bool
	// Timeout makes a set whose elements are added by rules and expire. It has no elements in the Model, and at most Size in the kernel.
	Timeout time.Duration
	Size    uint32
}

func (s Set) equal(other Set) bool {
	return s.Name == other.Name && slices.Equal(s.Key, other.Key) && slices.Equal(s.Value, other.Value) && s.Interval == other.Interval &&
		s.Timeout == other.Timeout && s.Size == other.Size
}

// Element is an element of a set.
type Element struct {
	Set string
	// Key and Value are the bytes of their fields, each padded to four bytes: see Bytes. The value of an element of a verdict map is the text of the
	// verdict, such as "goto reject". End is the last key of a range.
	Key, End, Value string
}

// Part is what one owner adds to a table.
type Part struct {
	Chains   []Chain
	Sets     []Set
	Elements []Element
}

// shared is a chain or a set and the number of parts that have it.
type shared[T any] struct {
	content T
	parts   int
}

// Model is the desired content of a table. It is not safe for concurrent use.
type Model struct {
	// Table is the name of the table. Its family is inet.
	Table string

	parts  map[string]*ownedPart
	chains map[string]*shared[Chain]
	sets   map[string]*shared[Set]
	// numbered are the parts that have elements, by their numbers; nil: the number is free.
	numbered        []*ownedPart
	freePartNumbers []uint32
	// setNames are the names of the elements' sets, by their numbers.
	setNames                         []setName
	setNumbers                       map[string]int
	unusedSetNumbers, freeSetNumbers []int
	// elements are the places of elements by the hashes of their IDs. contested are those with the same hash, sorted by the names of their owners: several
	// parts have the element, or different elements have the hash.
	elements  map[uint64]elementPlace
	contested map[uint64][]elementPlace
	hash      func(elementID) uint64
	// buffer is memory for encoding elements.
	buffer []byte
	// touched is what may differ from the kernel, with the content it had when the kernel was last equal to the model; nil: none. Nothing is
	// recorded before the first Commit, because the whole table is sent then.
	touched   touched
	committed bool
}

type touched struct {
	chains   map[string]*Chain
	sets     map[string]*Set
	elements map[elementID]*string
}

func newTouched() touched {
	return touched{chains: map[string]*Chain{}, sets: map[string]*Set{}, elements: map[elementID]*string{}}
}

// NewModel returns an empty model of a table.
func NewModel(table string) *Model {
	seed := maphash.MakeSeed()
	return &Model{
		Table: table, parts: map[string]*ownedPart{}, chains: map[string]*shared[Chain]{}, sets: map[string]*shared[Set]{}, setNumbers: map[string]int{},
		elements: map[uint64]elementPlace{}, contested: map[uint64][]elementPlace{}, touched: newTouched(),
		hash: func(id elementID) uint64 { return maphash.String(seed, string(id)) },
	}
}

// Replace replaces the part of an owner.
func (m *Model) Replace(owner string, part Part) {
	added := &ownedPart{owner: owner}
	// The new part is added first, so that what both have stays.
	for i := range part.Chains {
		added.chains = append(added.chains, m.addChain(part.Chains[i]))
	}
	for i := range part.Sets {
		added.sets = append(added.sets, m.addSet(part.Sets[i]))
	}
	if old := m.parts[owner]; old != nil {
		m.remove(old)
	}
	if len(part.Chains)+len(part.Sets)+len(part.Elements) > 0 {
		m.parts[owner] = added
		m.addElements(added, part.Elements)
	}
}

// remove removes a part.
func (m *Model) remove(part *ownedPart) {
	for _, name := range part.chains {
		m.removeChain(name)
	}
	for _, name := range part.sets {
		m.removeSet(name)
	}
	m.removeElements(part)
	delete(m.parts, part.owner)
}

// Owners are the owners of parts.
func (m *Model) Owners() []string { return slices.Sorted(maps.Keys(m.parts)) }

// addChain adds a chain of a part and returns its name, in memory that all parts share.
func (m *Model) addChain(c Chain) string {
	entry := m.chains[c.Name]
	if entry == nil {
		m.touchChain(c.Name)
		m.chains[c.Name] = &shared[Chain]{content: c, parts: 1}
		return c.Name
	}
	entry.parts++
	if !entry.content.equal(c) {
		m.touchChain(c.Name)
		c.Name = entry.content.Name
		entry.content = c
	}
	return entry.content.Name
}

func (m *Model) removeChain(name string) {
	entry := m.chains[name]
	if entry.parts--; entry.parts == 0 {
		m.touchChain(name)
		delete(m.chains, name)
	}
}

func (m *Model) touchChain(name string) {
	if _, ok := m.touched.chains[name]; ok || !m.committed {
		return
	}
	m.touched.chains[name] = nil
	if entry := m.chains[name]; entry != nil {
		content := entry.content
		m.touched.chains[name] = &content
	}
}

// addSet adds a set of a part and returns its name, in memory that all parts share.
func (m *Model) addSet(s Set) string {
	entry := m.sets[s.Name]
	if entry == nil {
		m.touchSet(s.Name)
		m.sets[s.Name] = &shared[Set]{content: s, parts: 1}
		return s.Name
	}
	entry.parts++
	if !entry.content.equal(s) {
		m.touchSet(s.Name)
		s.Name = entry.content.Name
		entry.content = s
	}
	return entry.content.Name
}

func (m *Model) removeSet(name string) {
	entry := m.sets[name]
	if entry.parts--; entry.parts == 0 {
		m.touchSet(name)
		delete(m.sets, name)
	}
}

func (m *Model) touchSet(name string) {
	if _, ok := m.touched.sets[name]; ok || !m.committed {
		return
	}
	m.touched.sets[name] = nil
	if entry := m.sets[name]; entry != nil {
		content := entry.content
		m.touched.sets[name] = &content
	}
}

// Changes is the difference between two states of a table.
type Changes struct {
	// ChangedChains exist and get other rules. Everything is ordered by name.
	AddedChains, ChangedChains, RemovedChains []Chain

	AddedSets                      []Set
	RemovedSets                    []string
	AddedElements, RemovedElements []Element
}

// IsEmpty reports whether nothing has changed.
func (c Changes) IsEmpty() bool {
	return len(c.AddedChains)+len(c.ChangedChains)+len(c.RemovedChains)+len(c.AddedSets)+len(c.RemovedSets)+len(c.AddedElements)+len(c.RemovedElements) == 0
}

// needsRebuild reports changes that cannot be made in a transaction together with everything that refers to them: a base chain or a set that
// changes its definition.
func (m *Model) needsRebuild() bool {
	for name, old := range m.touched.sets {
		if entry := m.sets[name]; entry != nil && old != nil && !entry.content.equal(*old) {
			return true
		}
	}
	for name, old := range m.touched.chains {
		if entry := m.chains[name]; entry != nil && old != nil && !entry.content.sameHook(*old) {
			return true
		}
	}
	return false
}

// Changes are what has changed since the last call of Commit, of which there must have been one.
func (m *Model) Changes() Changes {
	var c Changes
	for _, name := range slices.Sorted(maps.Keys(m.touched.sets)) {
		entry, old := m.sets[name], m.touched.sets[name]
		switch {
		case entry != nil && old == nil:
			c.AddedSets = append(c.AddedSets, entry.content)
		case entry == nil && old != nil:
			c.RemovedSets = append(c.RemovedSets, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.touched.chains)) {
		entry, old := m.chains[name], m.touched.chains[name]
		switch {
		case entry != nil && old == nil:
			c.AddedChains = append(c.AddedChains, entry.content)
		case entry == nil && old != nil:
			c.RemovedChains = append(c.RemovedChains, *old)
		case entry != nil && !entry.content.equal(*old):
			c.ChangedChains = append(c.ChangedChains, entry.content)
		}
	}
	for id, old := range m.touched.elements {
		_, current, exists := m.find(id)
		if old != nil && exists && *old == current {
			continue
		}
		// The kernel cannot change an element: it is removed and added. A removed set takes its elements along.
		if old != nil && m.sets[m.setNames[id.set()].name] != nil {
			c.RemovedElements = append(c.RemovedElements, m.element(id, *old))
		}
		if exists {
			c.AddedElements = append(c.AddedElements, m.element(id, current))
		}
	}
	slices.SortFunc(c.AddedElements, compareElements)
	slices.SortFunc(c.RemovedElements, compareElements)
	return c
}

// Commit records that the kernel is equal to the model.
func (m *Model) Commit() {
	m.touched, m.committed = newTouched(), true
	m.freeUnusedSetNumbers()
}

// All is the whole content of the table, as the changes of an empty one. The elements are in the order of their sets.
func (m *Model) All() Changes {
	var c Changes
	for _, name := range slices.Sorted(maps.Keys(m.sets)) {
		c.AddedSets = append(c.AddedSets, m.sets[name].content)
	}
	for _, name := range slices.Sorted(maps.Keys(m.chains)) {
		c.AddedChains = append(c.AddedChains, m.chains[name].content)
	}
	c.AddedElements = m.allElements()
	return c
}

func compareElements(a, b Element) int {
	return cmp.Or(strings.Compare(a.Set, b.Set), strings.Compare(a.Key, b.Key), strings.Compare(a.End, b.End))
}
