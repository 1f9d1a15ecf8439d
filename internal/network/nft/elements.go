package nft

import (
	"slices"
	"strings"
)

// A table has many elements, so that they are kept in few objects of memory: those of a part are encoded one after the other in one string, and the
// model finds an element by the hash of its ID.

// elementID identifies an element in a table: the number of its set, the sizes of its key and its end, the key and the end, as they are encoded.
type elementID string

// elementPlace is where an element is encoded: the number of its part and the offset there.
type elementPlace struct{ part, offset uint32 }

// ownedPart is what the model remembers of a part.
type ownedPart struct {
	owner        string
	number       uint32
	chains, sets []string
	// elements are those of the part: of each its ID, the size of its value, and the value.
	elements string
}

// setName is the name of a set that elements belong to, whether the set is there or not, and the number of them.
type setName struct {
	name     string
	elements int
	unused   bool // in unusedSetNumbers
}

// maxBuffer bounds the memory that is kept for encoding elements.
const maxBuffer = 64 << 10

// appendSize appends a number in seven bits per byte.
func appendSize(b []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// readSize reads a number that appendSize has written, and returns the offset after it.
func readSize(text string, offset int) (n, next int) {
	for shift := 0; ; shift += 7 {
		b := text[offset]
		n |= int(b&0x7f) << shift
		if offset++; b < 0x80 {
			return n, offset
		}
	}
}

// appendElement encodes an element of the set with a number.
func appendElement(b []byte, set int, e *Element) []byte {
	b = appendSize(appendSize(appendSize(b, set), len(e.Key)), len(e.End))
	b = append(append(b, e.Key...), e.End...)
	return append(appendSize(b, len(e.Value)), e.Value...)
}

// readElement reads the element at an offset, and returns the offset of the next one.
func readElement(elements string, offset int) (id elementID, value string, next int) {
	_, at := readSize(elements, offset)
	keySize, at := readSize(elements, at)
	endSize, at := readSize(elements, at)
	at += keySize + endSize
	id = elementID(elements[offset:at])
	valueSize, at := readSize(elements, at)
	return id, elements[at : at+valueSize], at + valueSize
}

// set is the number of the element's set.
func (id elementID) set() int {
	n, _ := readSize(string(id), 0)
	return n
}

// element is the element with an ID and a value.
func (m *Model) element(id elementID, value string) Element {
	set, at := readSize(string(id), 0)
	keySize, at := readSize(string(id), at)
	_, at = readSize(string(id), at)
	return Element{Set: m.setNames[set].name, Key: string(id[at : at+keySize]), End: string(id[at+keySize:]), Value: value}
}

// setNumber returns the number of a set's name, and counts an element that belongs to it.
func (m *Model) setNumber(name string) int {
	number, ok := m.setNumbers[name]
	if !ok {
		if last := len(m.freeSetNumbers) - 1; last >= 0 {
			number, m.freeSetNumbers = m.freeSetNumbers[last], m.freeSetNumbers[:last]
		} else {
			number, m.setNames = len(m.setNames), append(m.setNames, setName{})
		}
		m.setNames[number].name, m.setNumbers[name] = strings.Clone(name), number
	}
	m.setNames[number].elements++
	return number
}

// releaseSetNumber is called when an element of a set was removed. IDs of the changes since the last Commit have the number, so that it can be used
// for another set only after the next one.
func (m *Model) releaseSetNumber(number int) {
	s := &m.setNames[number]
	if s.elements--; s.elements == 0 && !s.unused {
		s.unused = true
		m.unusedSetNumbers = append(m.unusedSetNumbers, number)
	}
}

// freeUnusedSetNumbers makes the numbers of sets without elements available.
func (m *Model) freeUnusedSetNumbers() {
	for _, number := range m.unusedSetNumbers {
		s := &m.setNames[number]
		if s.unused = false; s.elements == 0 && s.name != "" {
			delete(m.setNumbers, s.name)
			s.name, m.freeSetNumbers = "", append(m.freeSetNumbers, number)
		}
	}
	m.unusedSetNumbers = nil
}

// addElements adds the elements of a part that has none yet.
func (m *Model) addElements(part *ownedPart, elements []Element) {
	if len(elements) == 0 {
		return
	}
	if last := len(m.freePartNumbers) - 1; last >= 0 {
		part.number, m.freePartNumbers = m.freePartNumbers[last], m.freePartNumbers[:last]
		m.numbered[part.number] = part
	} else {
		part.number, m.numbered = uint32(len(m.numbered)), append(m.numbered, part)
	}
	m.buffer = m.buffer[:0]
	for i := range elements {
		m.buffer = appendElement(m.buffer, m.setNumber(elements[i].Set), &elements[i])
	}
	part.elements = string(m.buffer)
	if cap(m.buffer) > maxBuffer {
		m.buffer = nil
	}
	for offset := 0; offset < len(part.elements); {
		id, _, next := readElement(part.elements, offset)
		m.addPlace(id, elementPlace{part.number, uint32(offset)})
		offset = next
	}
}

// removeElements removes the elements of a part.
func (m *Model) removeElements(part *ownedPart) {
	if part.elements == "" {
		return
	}
	for offset := 0; offset < len(part.elements); {
		id, _, next := readElement(part.elements, offset)
		m.removePlace(id, elementPlace{part.number, uint32(offset)})
		m.releaseSetNumber(id.set())
		offset = next
	}
	m.numbered[part.number] = nil
	m.freePartNumbers = append(m.freePartNumbers, part.number)
}

// read returns the ID and the value of the element at a place.
func (m *Model) read(at elementPlace) (elementID, string) {
	id, value, _ := readElement(m.numbered[at.part].elements, int(at.offset))
	return id, value
}

// find returns the place of the element that is in the table: of those with the ID, the one whose owner's name sorts first.
func (m *Model) find(id elementID) (at elementPlace, value string, ok bool) {
	hash := m.hash(id)
	if at, ok = m.elements[hash]; !ok {
		return at, "", false
	}
	places := m.contested[hash]
	if places == nil {
		found, value := m.read(at)
		return at, value, found == id
	}
	for _, at := range places {
		if found, value := m.read(at); found == id {
			return at, value, true
		}
	}
	return elementPlace{}, "", false
}

// touchElement records the value of an element before its first change.
func (m *Model) touchElement(id elementID) {
	if !m.committed {
		return
	}
	if _, ok := m.touched.elements[id]; ok {
		return
	}
	m.touched.elements[id] = nil
	if _, value, ok := m.find(id); ok {
		m.touched.elements[id] = &value
	}
}

// addPlace adds the place of an element of a part. If the part has the element already, the new value replaces the old one.
func (m *Model) addPlace(id elementID, at elementPlace) {
	m.touchElement(id)
	hash := m.hash(id)
	first, exists := m.elements[hash]
	if !exists {
		m.elements[hash] = at
		return
	}
	places := m.contested[hash]
	if places == nil {
		places = []elementPlace{first}
	}
	i := m.firstPlace(places, at)
	for n := i; n < len(places) && places[n].part == at.part; n++ {
		if other, _ := m.read(places[n]); other == id {
			places[n] = at
			m.setPlaces(hash, places)
			return
		}
	}
	m.setPlaces(hash, slices.Insert(places, i, at))
}

// removePlace removes the place of an element of a part, unless a later element of the part has replaced it.
func (m *Model) removePlace(id elementID, at elementPlace) {
	m.touchElement(id)
	hash := m.hash(id)
	places := m.contested[hash]
	if places == nil {
		if m.elements[hash] == at {
			delete(m.elements, hash)
		}
		return
	}
	for n := m.firstPlace(places, at); n < len(places) && places[n].part == at.part; n++ {
		if places[n] == at {
			m.setPlaces(hash, slices.Delete(places, n, n+1))
			return
		}
	}
}

// firstPlace is the index of the first place in the same part, or where it belongs.
func (m *Model) firstPlace(places []elementPlace, at elementPlace) int {
	i, _ := slices.BinarySearchFunc(places, m.numbered[at.part].owner, func(other elementPlace, owner string) int {
		return strings.Compare(m.numbered[other.part].owner, owner)
	})
	return i
}

// setPlaces sets the places of the elements with a hash, of which there is at least one. They are sorted by the names of their owners.
func (m *Model) setPlaces(hash uint64, places []elementPlace) {
	if m.elements[hash] = places[0]; len(places) > 1 {
		m.contested[hash] = places
	} else {
		delete(m.contested, hash)
	}
}

// allElements are the elements of the table, in the order of the names of their sets. Of those of a set only intervals are sorted, because sorting many
// elements takes longer than sending them.
func (m *Model) allElements() []Element {
	counts := make([]int, len(m.setNames))
	m.eachElement(func(id elementID, _ string) { counts[id.set()]++ })
	numbers := make([]int, 0, len(counts))
	for number, count := range counts {
		if count > 0 {
			numbers = append(numbers, number)
		}
	}
	slices.SortFunc(numbers, func(a, b int) int { return strings.Compare(m.setNames[a].name, m.setNames[b].name) })
	// Each set has a range of the list. next are where the next element of a set belongs.
	next, total := make([]int, len(counts)), 0
	for _, number := range numbers {
		next[number], total = total, total+counts[number]
	}
	all := make([]Element, total)
	m.eachElement(func(id elementID, value string) {
		number := id.set()
		all[next[number]] = m.element(id, value)
		next[number]++
	})
	for _, number := range numbers {
		if set := m.sets[m.setNames[number].name]; set != nil && set.content.Interval {
			slices.SortFunc(all[next[number]-counts[number]:next[number]], compareElements)
		}
	}
	return all
}

// eachElement calls a function for each element of the table.
func (m *Model) eachElement(visit func(elementID, string)) {
	for number, part := range m.numbered {
		if part == nil {
			continue
		}
		for offset := 0; offset < len(part.elements); {
			id, value, next := readElement(part.elements, offset)
			if at, _, _ := m.find(id); at == (elementPlace{uint32(number), uint32(offset)}) {
				visit(id, value)
			}
			offset = next
		}
	}
}
