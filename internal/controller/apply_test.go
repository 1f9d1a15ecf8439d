package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// fakeWriter records requests and fails the configured ones.
type fakeWriter struct {
	refuse func(verb string, obj kind.Object) error
	live   map[string]kind.Object

	mu       sync.Mutex
	requests []string
	events   []string
	under    int // in-flight requests
	most     int // maximum number of in-flight requests
	gate     chan struct{}
}

func (w *fakeWriter) request(verb string, obj kind.Object) (kind.Object, error) {
	w.mu.Lock()
	w.requests = append(w.requests, verb+" "+obj.GetName())
	w.under++
	w.most = max(w.most, w.under)
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.under--; w.mu.Unlock() }()
	if w.gate != nil {
		<-w.gate
	}
	if w.refuse != nil {
		if err := w.refuse(verb, obj); err != nil {
			return nil, err
		}
	}
	return obj, nil
}

func (w *fakeWriter) Create(_ context.Context, obj kind.Object, _ client.WriteOptions) (kind.Object, error) {
	return w.request("create", obj)
}
func (w *fakeWriter) Update(_ context.Context, obj kind.Object, o client.WriteOptions) (kind.Object, error) {
	return w.request(strings.TrimSpace("update "+o.Subresource), obj)
}
func (w *fakeWriter) Patch(_ context.Context, obj kind.Object, _ client.PatchType, _ []byte, o client.WriteOptions) (kind.Object, error) {
	return w.request(strings.TrimSpace("patch "+o.Subresource), obj)
}
func (w *fakeWriter) Delete(_ context.Context, obj kind.Object, _ metav1.DeleteOptions) error {
	_, err := w.request("delete", obj)
	return err
}
func (w *fakeWriter) GetLive(_ context.Context, obj kind.Object) (kind.Object, error) {
	if live, ok := w.live[obj.GetName()]; ok {
		return live, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, obj.GetName())
}
func (w *fakeWriter) Event(about kind.Object, eventType, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %s %s: %s", about.GetName(), eventType, reason, message))
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
}

func creating(names ...string) (writes []Write) {
	for _, name := range names {
		writes = append(writes, NewCreate(pod(name)))
	}
	return writes
}

func TestApplyKeepsOrder(t *testing.T) {
	s := &fakeWriter{}
	plan := Plan{
		Steps: []Step{{Writes: []Write{NewPatch(pod("a"), client.MergePatch, nil)}}, {Writes: creating("b")}, {Writes: []Write{NewDelete(pod("c"))}}},
		Status: func(o ApplyResult) kind.Object {
			if o.Err != nil || len(o.Written) != 2 || o.Written[0].GetName() != "a" || o.Written[1].GetName() != "b" {
				t.Errorf("outcome %+v", o)
			}
			return pod("owner")
		},
		Events: []Event{{Object: pod("owner"), Type: "Normal", Reason: "Done", Message: "all done"}},
	}
	if err := (&Applier{Writer: s, Events: s}).Apply(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	want := []string{"patch a", "create b", "delete c", "update status owner"}
	if !slices.Equal(s.requests, want) || !slices.Equal(s.events, []string{"owner Normal Done: all done"}) {
		t.Errorf("requests %q, events %q", s.requests, s.events)
	}
}

func TestApplyStopsAfterFailedStep(t *testing.T) {
	s := &fakeWriter{refuse: func(verb string, obj kind.Object) error {
		if obj.GetName() == "b" {
			return errors.New("no room")
		}
		return nil
	}}
	var told error
	plan := Plan{
		Steps: []Step{
			{Writes: []Write{NewDelete(pod("a")), NewDelete(pod("b")).OnFailure(Event{Object: pod("owner"), Type: "Warning", Reason: "FailedDelete", Message: "Error deleting: %s"}),
				NewDelete(pod("c")).OnSuccess(Event{Object: pod("owner"), Type: "Normal", Reason: "Killed", Message: "Deleted pod: %s"})}},
			{Writes: creating("d")},
		},
		Status: func(o ApplyResult) kind.Object {
			if told = o.Err; o.FailedVerb() != Delete || o.ErrorMessage() != "no room" {
				t.Errorf("failed %q, message %q", o.FailedVerb(), o.ErrorMessage())
			}
			return pod("owner")
		},
		Events:       []Event{{Object: pod("owner"), Reason: "Never"}},
		RequeueAfter: 1,
	}
	err := (&Applier{Writer: s, Events: s}).Apply(t.Context(), plan)
	if err == nil || err.Error() != "delete Pod default/b: no room" || !errors.Is(told, err) {
		t.Errorf("error %v, status was told %v", err, told)
	}
	slices.Sort(s.requests)
	if want := []string{"delete a", "delete b", "delete c", "update status owner"}; !slices.Equal(s.requests, want) {
		t.Errorf("requests %q", s.requests)
	}
	slices.Sort(s.events)
	if want := []string{"owner Normal Killed: Deleted pod: c", "owner Warning FailedDelete: Error deleting: no room"}; !slices.Equal(s.events, want) {
		t.Errorf("events %q", s.events)
	}
}

func TestCreatesStartSlowly(t *testing.T) {
	names := strings.Split("abcdefghijklmnopqrstuvwxyz", "")
	for _, test := range []struct {
		refuseFrom int // the first request that fails
		asked      int
	}{{0, 1}, {1, 3}, {3, 7}, {7, 15}, {100, 26}} {
		n := 0
		s := &fakeWriter{}
		var mu sync.Mutex
		s.refuse = func(string, kind.Object) error {
			mu.Lock()
			defer mu.Unlock()
			if n++; n > test.refuseFrom {
				return errors.New("quota")
			}
			return nil
		}
		err := (&Applier{Writer: s}).Apply(t.Context(), Plan{Steps: []Step{{Writes: creating(names...)}}})
		if (err != nil) != (test.refuseFrom < 26) || len(s.requests) != test.asked {
			t.Errorf("refusing from %d: asked %d times, want %d; %v", test.refuseFrom, len(s.requests), test.asked, err)
		}
	}
}

func TestIgnoredErrors(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("ending"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil)
	for _, test := range []struct {
		what  string
		write Write
		err   error
		fails bool
	}{
		{"a deletion of what is gone", NewDelete(pod("a")), notFound, false},
		{"a creation in a namespace that ends", NewCreate(pod("a")), terminating, false},
		{"a patch of what is gone", NewPatch(pod("a"), client.MergePatch, nil), notFound, true},
		{"a patch that may find nothing", NewPatch(pod("a"), client.MergePatch, nil).Ignoring(metav1.StatusReasonNotFound), notFound, false},
		{"another refusal than the tolerated one", NewPatch(pod("a"), client.MergePatch, nil).Ignoring(metav1.StatusReasonNotFound), invalid, true},
		{"an update in a namespace that ends", NewUpdate(pod("a")), terminating, true},
		{"a plan without a verb", Write{Object: pod("a")}, nil, true},
	} {
		wrote := false
		a := &Applier{Writer: &fakeWriter{refuse: func(string, kind.Object) error { return test.err }}, OnWrite: func(kind.Object) { wrote = true }}
		if err := a.Apply(t.Context(), Plan{Steps: []Step{{Writes: []Write{test.write}}}}); (err != nil) != test.fails || wrote {
			t.Errorf("%s: %v, noted as written: %v", test.what, err, wrote)
		}
	}
}

func TestRecheckBeforeAdoption(t *testing.T) {
	now := metav1.Now()
	successor, leaving := pod("owner"), pod("owner")
	successor.UID = "other"
	leaving.DeletionTimestamp = &now
	for _, test := range []struct {
		what string
		live kind.Object
		want string
	}{
		{"still there", pod("owner"), ""},
		{"gone", nil, "recheck Pod default/owner"},
		{"another", successor, "original Pod default/owner is gone: got uid other, wanted uid-owner"},
		{"leaving", leaving, "Pod default/owner has just been deleted at"},
	} {
		s := &fakeWriter{live: map[string]kind.Object{}}
		if test.live != nil {
			s.live["owner"] = test.live
		}
		err := (&Applier{Writer: s}).Apply(t.Context(), Plan{Steps: []Step{{Recheck: pod("owner"), Writes: creating("a")}}})
		if test.want == "" && (err != nil || len(s.requests) != 1) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || len(s.requests) != 0) {
			t.Errorf("%s: %v, requests %q", test.what, err, s.requests)
		}
	}
}

func TestInFlightRequestsAreLimited(t *testing.T) {
	s := &fakeWriter{gate: make(chan struct{})}
	var writes []Write
	for i := range 3 * maxInFlight {
		writes = append(writes, NewDelete(pod(fmt.Sprint(i))))
	}
	done := make(chan error)
	go func() { done <- (&Applier{Writer: s}).Apply(t.Context(), Plan{Steps: []Step{{Writes: writes}}}) }()
	for range writes {
		s.gate <- struct{}{}
	}
	if err := <-done; err != nil || len(s.requests) != 3*maxInFlight || s.most > maxInFlight || s.most < 2 {
		t.Errorf("%v: %d requests, %d at once", err, len(s.requests), s.most)
	}
}

// After slow start the remaining creates are limited by maxInFlight only, and none is started after a failure.
func TestCreatesStopAfterFailure(t *testing.T) {
	const failing = 5 * maxInFlight
	var writes []Write
	for i := range 10 * maxInFlight {
		writes = append(writes, NewCreate(pod(fmt.Sprint(i))))
	}
	synctest.Test(t, func(t *testing.T) {
		unfinished := make(chan struct{}) // creates after the failing one
		s := &fakeWriter{refuse: func(_ string, obj kind.Object) error {
			switch i, _ := strconv.Atoi(obj.GetName()); {
			case i == failing:
				return errors.New("the quota is used up")
			case i > failing:
				<-unfinished
			}
			return nil
		}}
		result := make(chan error)
		go func() { result <- (&Applier{Writer: s}).Apply(t.Context(), Plan{Steps: []Step{{Writes: writes}}}) }()
		synctest.Wait() // the failure is known, and the others that were started are in flight
		close(unfinished)
		if err := <-result; err == nil || !strings.Contains(err.Error(), "the quota is used up") {
			t.Errorf("%v", err)
		}
		if n := len(s.requests); n <= failing || n > failing+maxInFlight || s.most > maxInFlight {
			t.Errorf("%d requests, %d at once", n, s.most)
		}
	})
}

func TestPlan(t *testing.T) {
	var p Plan
	p.AddStep()
	if !p.IsEmpty() || len(p.Steps) != 0 {
		t.Errorf("no writes made a step: %+v", p)
	}
	p.Requeue(0)
	p.Requeue(5)
	p.Requeue(7)
	p.Requeue(3)
	if p.RequeueAfter != 3 {
		t.Errorf("again after %v", p.RequeueAfter)
	}
	p.Status = func(ApplyResult) kind.Object { return nil }
	if !p.IsEmpty() {
		t.Error("a status that stands is no change")
	}
	p.Status = func(ApplyResult) kind.Object { return pod("a") }
	if p.IsEmpty() {
		t.Error("a status is a change")
	}
}
