package snapshot

// workspace is memory reused from pod to pod.
type workspace struct {
	numbers []int64
	sums    []int64
	nodes   []int32
	marked  []bool
}

func Sized[T any](buffer *[]T, n int) []T {
	if cap(*buffer) < n {
		*buffer = make([]T, n+n/4)
	}
	return (*buffer)[:n]
}

// Scratch returns memory for n numbers, of any content.
func (s *Snapshot) ScratchBuffer(n int) []int64 { return Sized(&s.workspace.numbers, n) }

// Totals returns memory for n sums, of any content.
func (s *Snapshot) TotalsBuffer(n int) []int64 { return Sized(&s.workspace.sums, n) }

// List returns an empty list with capacity for n nodes.
func (s *Snapshot) NodeBuffer(n int) []int32 { return Sized(&s.workspace.nodes, n)[:0] }

// Marks returns n marks, none set.
func (s *Snapshot) FlagBuffer(n int) []bool {
	marks := Sized(&s.workspace.marked, n)
	clear(marks)
	return marks
}
