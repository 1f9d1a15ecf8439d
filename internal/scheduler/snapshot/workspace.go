package snapshot

// workspace holds buffers that are reused from pod to pod.
type workspace struct {
	numbers []int64
	sums    []int64
	nodes   []int32
	marked  []bool
}

// Sized returns the buffer resliced to n elements of any content, reallocating it if it is too small.
func Sized[T any](buffer *[]T, n int) []T {
	if cap(*buffer) < n {
		*buffer = make([]T, n+n/4)
	}
	return (*buffer)[:n]
}

// ScratchBuffer returns a buffer for n numbers, of any content.
func (s *Snapshot) ScratchBuffer(n int) []int64 { return Sized(&s.workspace.numbers, n) }

// TotalsBuffer returns a buffer for n score totals, of any content.
func (s *Snapshot) TotalsBuffer(n int) []int64 { return Sized(&s.workspace.sums, n) }

// NodeBuffer returns an empty slice with capacity for n nodes.
func (s *Snapshot) NodeBuffer(n int) []int32 { return Sized(&s.workspace.nodes, n)[:0] }

// FlagBuffer returns n flags, all false.
func (s *Snapshot) FlagBuffer(n int) []bool {
	marks := Sized(&s.workspace.marked, n)
	clear(marks)
	return marks
}
