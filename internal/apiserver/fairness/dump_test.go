package fairness

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// dumped returns the fields of the lines of a dump that are about the level own.
func dumped(dump func(http.ResponseWriter, *http.Request)) (header string, own []string) {
	w := httptest.NewRecorder()
	dump(w, httptest.NewRequest(http.MethodGet, "/", nil))
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	for _, line := range lines[1:] {
		if line = strings.ReplaceAll(line, " ", ""); strings.HasPrefix(line, "own,") {
			own = append(own, line)
		}
	}
	return strings.ReplaceAll(lines[0], " ", ""), own
}

// One request executes and one waits; the waiting one then gives up.
func TestDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := withSeats(1, &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 10})
		var executing, waiting Seats
		if !f.Acquire(t.Context(), by("jane"), Work{InitialSeats: 1}, time.Now().Add(time.Minute), &executing) {
			t.Fatal("the first request is rejected")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			done <- f.Acquire(ctx, by("jane"), Work{InitialSeats: 1}, time.Now().Add(time.Minute), &waiting)
		}()
		synctest.Wait()
		header, levels := dumped(f.DumpPriorityLevels)
		if header != "PriorityLevelName,ActiveQueues,IsIdle,IsQuiescing,WaitingRequests,ExecutingRequests,DispatchedRequests,RejectedRequests,TimedoutRequests,CancelledRequests" {
			t.Errorf("header %s", header)
		}
		if len(levels) != 1 || levels[0] != "own,1,false,false,1,1,1,0,0,0" {
			t.Errorf("levels %q", levels)
		}
		header, queues := dumped(f.DumpQueues)
		if header != "PriorityLevelName,Index,PendingRequests,ExecutingRequests,SeatsInUse,NextDispatchR,InitialSeatsSum,MaxSeatsSum,TotalWorkSum" {
			t.Errorf("header %s", header)
		}
		if len(queues) != 1 || !strings.HasPrefix(queues[0], "own,0,1,1,1,") || !strings.Contains(queues[0], "ss,1,1,") {
			t.Errorf("queues %q", queues)
		}
		header, requests := dumped(f.DumpRequests)
		if header != "PriorityLevelName,FlowSchemaName,QueueIndex,RequestIndexInQueue,FlowDistingsher,ArriveTime,InitialSeats,FinalSeats,AdditionalLatency,StartTime" {
			t.Errorf("header %s", header)
		}
		arrived := f.epoch.UTC().Format(time.RFC3339Nano)
		if want := []string{
			"own,everyone,0,0,jane," + arrived + ",1,0,0s,0001-01-01T00:00:00Z", "own,everyone,0,-1,jane," + arrived + ",1,0,0s," + arrived,
		}; !slices.Equal(requests, want) {
			t.Errorf("requests\n%q, want\n%q", requests, want)
		}
		detailed := func(w http.ResponseWriter, r *http.Request) {
			r.URL.RawQuery = "includeRequestDetails=1"
			f.DumpRequests(w, r)
		}
		header, requests = dumped(detailed)
		if !strings.HasSuffix(header, ",UserName,Verb,APIPath,Namespace,Name,APIVersion,Resource,SubResource") || len(requests) != 2 || !strings.Contains(requests[1], ",jane,") {
			t.Errorf("details: %s\n%q", header, requests)
		}
		cancel()
		if <-done {
			t.Error("the waiting request was served")
		}
		executing.Release()
		if _, levels := dumped(f.DumpPriorityLevels); len(levels) != 1 || levels[0] != "own,0,true,false,0,0,1,0,0,1" {
			t.Errorf("levels at the end %q", levels)
		}
	})
}
