package scheduler

// workspace is memory used again from decision to decision.
type workspace struct {
	numbers []int64
	sums    []int64
	nodes   []int32
	marked  []bool
	// spare are records of decisions nobody will ask about any more.
	spare [][]besideCell
}

// maxSpare bounds the records kept for use again.
const maxSpare = 4

// besideCells returns a record for n nodes, empty.
func (s *Snapshot) besideCells(n int) []besideCell {
	if last := len(s.work.spare) - 1; last >= 0 {
		cells := s.work.spare[last]
		s.work.spare = s.work.spare[:last]
		if cap(cells) >= n {
			cells = cells[:n]
			clear(cells)
			return cells
		}
	}
	return make([]besideCell, n)
}

// fade drops a decision's record. Explain has nothing to tell then.
func (d *Decision) fade() {
	if work := &d.snapshot.work; d.beside != nil && len(work.spare) < maxSpare {
		work.spare = append(work.spare, d.beside)
	}
	d.beside, d.table, d.faded = nil, nil, true
}

func sized[T any](buffer *[]T, n int) []T {
	if cap(*buffer) < n {
		*buffer = make([]T, n+n/4)
	}
	return (*buffer)[:n]
}

// scratch returns room for n numbers, of any content.
func (s *Snapshot) scratch(n int) []int64 { return sized(&s.work.numbers, n) }

// totals returns room for n sums, of any content.
func (s *Snapshot) totals(n int) []int64 { return sized(&s.work.sums, n) }

// list returns an empty list with room for n nodes.
func (s *Snapshot) list(n int) []int32 { return sized(&s.work.nodes, n)[:0] }

// marks returns n marks, none set.
func (s *Snapshot) marks(n int) []bool {
	marks := sized(&s.work.marked, n)
	clear(marks)
	return marks
}
