package fairness

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	apischema "k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authz"
)

// The paths at which the state of priority and fairness can be read, for debugging.
const (
	DumpPriorityLevelsPath = "/debug/api_priority_and_fairness/dump_priority_levels"
	DumpQueuesPath         = "/debug/api_priority_and_fairness/dump_queues"
	DumpRequestsPath       = "/debug/api_priority_and_fairness/dump_requests"
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

// DumpRequests responds with one line for each request that waits or executes, in upstream's format. The requests themselves are described if
// the client asks for details.
func (f *Fairness) DumpRequests(w http.ResponseWriter, r *http.Request) {
	header := []string{
		"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime", "InitialSeats", "FinalSeats",
		"AdditionalLatency", "StartTime",
	}
	details := r.URL.Query().Get("includeRequestDetails") != ""
	if details {
		header = append(header, "UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource")
	}
	f.dump(w, [][]string{header}, func(l *level, _ bool) [][]string { return l.dumpRequests(details) })
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

// dumpRequests are the lines of a level's requests: those that wait, with their position in the queue, then those that execute.
func (l *level) dumpRequests(details bool) [][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines [][]string
	for i, q := range l.queues {
		position := 0
		for s := q.first; s != nil; s = s.next {
			lines = append(lines, l.dumpRequest(s, i, position, details))
			position++
		}
	}
	for s := l.running.first; s != nil; s = s.next {
		lines = append(lines, l.dumpRequest(s, slices.Index(l.queues, s.queue), -1, details))
	}
	return lines
}

func (l *level) dumpRequest(s *Seats, queue, position int, details bool) []string {
	started := time.Time{}
	if s.held {
		started = l.epoch.Add(s.began)
	}
	line := []string{
		l.name, s.schema.name, strconv.Itoa(queue), strconv.Itoa(position), s.schema.distinguisher(s.attributes),
		l.epoch.Add(s.arrived).UTC().Format(time.RFC3339Nano), strconv.Itoa(s.initial), strconv.Itoa(s.final), s.additionalLatency().String(),
		started.UTC().Format(time.RFC3339Nano),
	}
	if a := s.attributes; details {
		version := apischema.GroupVersion{Group: a.Group, Version: a.Version}.String()
		line = append(line, a.User.Username, a.Verb, pathOf(a), a.Namespace, a.Name, version, a.Resource, a.Subresource)
	}
	return line
}

// pathOf is the path of a request.
func pathOf(a *authz.Attributes) string {
	if !a.ResourceRequest {
		return a.Path
	}
	elements := []string{"/api", a.Version}
	if a.Group != "" {
		elements = []string{"/apis", a.Group, a.Version}
	}
	if a.Namespace != "" && a.Resource != "namespaces" {
		elements = append(elements, "namespaces", a.Namespace)
	}
	return path.Join(append(elements, a.Resource, a.Name, a.Subresource)...)
}

// formatSeatSeconds formats work.
func formatSeatSeconds(work float64) string { return strconv.FormatFloat(work, 'f', 8, 64) + "ss" }
