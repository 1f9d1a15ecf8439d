package fairness

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// The paths at which the state of priority and fairness can be read, for debugging.
const (
	DumpPriorityLevelsPath = "/debug/api_priority_and_fairness/dump_priority_levels"
	DumpQueuesPath         = "/debug/api_priority_and_fairness/dump_queues"
)

// DumpPriorityLevels responds with one line for each priority level, in upstream's format.
func (f *Fairness) DumpPriorityLevels(w http.ResponseWriter, _ *http.Request) {
	table := [][]string{{
		"PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests", "DispatchedRequests",
		"RejectedRequests", "TimedoutRequests", "CancelledRequests",
	}}
	f.dump(w, table, (*level).dumpLevel)
}

// DumpQueues responds with one line for each queue, in upstream's format.
func (f *Fairness) DumpQueues(w http.ResponseWriter, _ *http.Request) {
	table := [][]string{{"PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse", "NextDispatchR", "InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum"}}
	f.dump(w, table, (*level).dumpQueues)
}

// dump writes a table with the lines of each level after its header.
func (f *Fairness) dump(w http.ResponseWriter, table [][]string, lines func(l *level, quiescing bool) [][]string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)
	for _, line := range append(table, f.dumpLines(lines)...) {
		fmt.Fprintln(out, strings.Join(line, ",\t"))
	}
	_ = out.Flush() // an error means that the client has disconnected
}

func (f *Fairness) dumpLines(lines func(l *level, quiescing bool) [][]string) [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all [][]string
	for _, name := range slices.Sorted(maps.Keys(f.levels)) {
		all = append(all, lines(f.levels[name], f.levels[name].quiescing)...)
	}
	return all
}

// dumpLevel is the line of a level.
func (l *level) dumpLevel(quiescing bool) [][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	waitingQueues := 0
	for _, q := range l.queues {
		if q.waiting > 0 {
			waitingQueues++
		}
	}
	// Upstream counts requests that waited too long as cancelled, and none as timed out.
	var dispatched, rejected, cancelled uint64
	for _, s := range l.stats {
		dispatched += s.dispatched
		rejected += s.rejected[reasonLimit] + s.rejected[reasonFull]
		cancelled += s.rejected[reasonTimeout]
	}
	idle := l.waiting == 0 && l.executing == 0
	return [][]string{{
		l.name, strconv.Itoa(waitingQueues), strconv.FormatBool(idle), strconv.FormatBool(quiescing), strconv.Itoa(l.waiting), strconv.Itoa(l.executing),
		strconv.FormatUint(dispatched, 10), strconv.FormatUint(rejected, 10), "0", strconv.FormatUint(cancelled, 10),
	}}
}

// dumpQueues are the lines of a level's queues.
func (l *level) dumpQueues(bool) [][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines [][]string
	for i, q := range l.queues {
		initialSeats, maxSeats := 0, 0
		for s := q.first; s != nil; s = s.next {
			initialSeats += s.initial
			maxSeats += s.total
		}
		lines = append(lines, []string{
			l.name, strconv.Itoa(i), strconv.Itoa(q.waiting), strconv.Itoa(q.executing), strconv.Itoa(q.usedSeats),
			formatSeatSeconds(q.nextStart), strconv.Itoa(initialSeats), strconv.Itoa(maxSeats), formatSeatSeconds(q.waitingWork),
		})
	}
	return lines
}

// formatSeatSeconds formats work.
func formatSeatSeconds(work float64) string { return strconv.FormatFloat(work, 'f', 8, 64) + "ss" }
