package scheduler

// workspace is memory used again from decision to decision.
type workspace struct {
	numbers []int64
	sums    []int64
	nodes   []int32
	marked  []bool
	// spare are records of decisions nobody will ask about any more.
	spare []*besideRecord
}

// maxSpare bounds the records kept for use again.
const maxSpare = 4

// besideRecord returns a record for n nodes, empty.
func (s *Snapshot) besideRecord(n int) *besideRecord {
	r := &besideRecord{}
	if last := len(s.work.spare) - 1; last >= 0 {
		r = s.work.spare[last]
		s.work.spare = s.work.spare[:last]
	}
	r.refusals = sized(&r.refusals, n)
	clear(r.refusals)
	return r
}

// slot returns the place for the scores of one rule. Without a record there is none.
func (r *besideRecord) slot(i int) *besideScores {
	if r == nil {
		return nil
	}
	return &r.scores[i]
}

// byNode returns room for scores by node, of any content, or nil when nobody keeps them.
func (x *besideScores) byNode(nodes int) []uint8 {
	if x == nil {
		return nil
	}
	x.values, x.domainOf = sized(&x.values, nodes), nil
	return x.values
}

// byDomain keeps scores of domains, which are numbers from 0 to MaxScore, and of the nodes that are in none, last.
func (x *besideScores) byDomain(label *labelColumn, scores []int64) {
	if x == nil {
		return
	}
	x.values, x.domainOf = sized(&x.values, len(scores)), label.lend()
	for i, score := range scores {
		x.values[i] = uint8(score)
	}
}

// KeepNoRecord makes decisions on the snapshot keep nothing that only Explain needs. It is there to measure what the record costs.
func (s *Snapshot) KeepNoRecord() { s.unrecorded = true }

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
