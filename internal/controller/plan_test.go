package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/kind"
)

var podResource = schema.GroupResource{Resource: "pods"}

func TestApplyResult(t *testing.T) {
	refused := func(verb Verb) error { return &WriteError{Verb: verb, Object: pod("a"), Err: errors.New("quota")} }
	for _, test := range []struct {
		what    string
		err     error
		failed  Verb
		message string
	}{
		{"nothing failed", nil, "", ""},
		{"a creation", refused(Create), Create, "quota"},
		{"an update", refused(Update), Update, "quota"},
		{"a status", refused(UpdateStatus), UpdateStatus, "quota"},
		{"a patch", refused(Patch), Patch, "quota"},
		{"a status by patch", refused(PatchStatus), PatchStatus, "quota"},
		{"a deletion", refused(Delete), Delete, "quota"},
		{"wrapped", fmt.Errorf("sync: %w", refused(Delete)), Delete, "quota"},
		{"joined with another", errors.Join(errors.New("other"), refused(Create)), Create, "quota"},
		{"no write was tried", errors.New("not confirmed"), "", "not confirmed"},
	} {
		o := ApplyResult{Err: test.err}
		if o.FailedVerb() != test.failed || o.ErrorMessage() != test.message {
			t.Errorf("%s: %q, %q", test.what, o.FailedVerb(), o.ErrorMessage())
		}
	}
	notFound := apierrors.NewNotFound(podResource, "a")
	if err := error(&WriteError{Verb: Patch, Object: pod("a"), Err: notFound}); !apierrors.IsNotFound(err) || err.Error() != `patch Pod default/a: pods "a" not found` {
		t.Errorf("%v", err)
	}
}

func TestDescribe(t *testing.T) {
	named := func(namespace, name, prefix string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, GenerateName: prefix}
	}
	for _, test := range []struct {
		obj  kind.Object
		want string
	}{
		{&corev1.Pod{ObjectMeta: named("default", "web", "")}, "Pod default/web"},
		{&corev1.Pod{ObjectMeta: named("default", "", "web-")}, "Pod default/web-*"},
		{&corev1.Pod{ObjectMeta: named("default", "web-1", "web-")}, "Pod default/web-1"},
		{&corev1.Node{ObjectMeta: named("", "n1", "")}, "Node n1"},
		{&appsv1.ReplicaSet{ObjectMeta: named("a", "b", "")}, "ReplicaSet a/b"},
		{&corev1.Pod{}, "Pod *"},
	} {
		if got := describe(test.obj); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestRequeue(t *testing.T) {
	for _, test := range []struct {
		asked []time.Duration
		want  time.Duration
	}{{nil, 0}, {[]time.Duration{5}, 5}, {[]time.Duration{0}, 0}, {[]time.Duration{-5}, 0}, {[]time.Duration{5, 3}, 3}, {[]time.Duration{3, 5}, 3}, {[]time.Duration{3, 0, -1}, 3}, {[]time.Duration{0, 7}, 7}, {[]time.Duration{5, 5}, 5}} {
		var p Plan
		for _, d := range test.asked {
			p.Requeue(d)
		}
		if p.RequeueAfter != test.want {
			t.Errorf("%v: %v, want %v", test.asked, p.RequeueAfter, test.want)
		}
	}
}

// TestWritesAreValues: the modifiers of a write return a copy.
func TestWritesAreValues(t *testing.T) {
	base := NewDelete(pod("a"))
	told := base.OnSuccess(Event{Reason: "Done"}).OnFailure(Event{Reason: "Failed"}).Ignoring(metav1.StatusReasonConflict).WithoutEventOn(metav1.StatusReasonInvalid)
	if base.SuccessEvent != nil || base.FailureEvent != nil || base.Ignore != nil || base.NoEvent != nil {
		t.Errorf("%+v", base)
	}
	if told.SuccessEvent.Reason != "Done" || told.FailureEvent.Reason != "Failed" || told.Verb != Delete || *told.DeleteOptions.Preconditions.UID != "uid-a" || told.Object != base.Object {
		t.Errorf("%+v", told)
	}
	for _, test := range []struct {
		write Write
		verb  Verb
	}{{NewCreate(pod("a")), Create}, {NewUpdate(pod("a")), Update}, {NewUpdateStatus(pod("a")), UpdateStatus}, {NewPatch(pod("a"), client.MergePatch, []byte("{}")), Patch}, {NewDelete(pod("a")), Delete}} {
		if test.write.Verb != test.verb || test.write.Object.GetName() != "a" || (test.write.Patch != nil) != (test.verb == Patch) {
			t.Errorf("%+v", test.write)
		}
	}
}

// TestEveryVerb: the request each verb sends, and the callbacks.
func TestEveryVerb(t *testing.T) {
	done, failed := Event{Object: pod("owner"), Type: "Normal", Reason: "Did", Message: "did %s"}, Event{Object: pod("owner"), Type: "Warning", Reason: "Failed", Message: "failed: %s"}
	for _, test := range []struct {
		write          Write
		request        string
		wrote, deleted string
	}{
		{NewCreate(pod("a")), "create a", "a", ""},
		{NewUpdate(pod("a")), "update a", "a", ""},
		{NewUpdateStatus(pod("a")), "update status a", "a", ""},
		{NewPatch(pod("a"), client.MergePatch, nil), "patch a", "a", ""},
		{Write{Verb: PatchStatus, Object: pod("a")}, "patch status a", "a", ""},
		{NewDelete(pod("a")), "delete a", "", "a"},
	} {
		for _, refused := range []bool{false, true} {
			s := &fakeWriter{}
			if refused {
				s.refuse = func(string, kind.Object) error { return errors.New("no") }
			}
			var wrote, deleted string
			a := &Applier{Writer: s, Events: s, OnWrite: func(obj kind.Object) { wrote = obj.GetName() }, OnDelete: func(obj kind.Object) { deleted = obj.GetName() }}
			err := a.Apply(t.Context(), Plan{Steps: []Step{{Writes: []Write{test.write.OnSuccess(done).OnFailure(failed)}}}})
			event := "owner Normal Did: did a"
			if refused {
				test.wrote, test.deleted, event = "", "", "owner Warning Failed: failed: no"
			}
			if (err != nil) != refused || !slices.Equal(s.requests, []string{test.request}) || wrote != test.wrote || deleted != test.deleted || !slices.Equal(s.events, []string{event}) {
				t.Errorf("%s, refused %v: %v, %q, wrote %q, deleted %q, events %q", test.write.Verb, refused, err, s.requests, wrote, deleted, s.events)
			}
		}
	}
	// The callbacks are optional.
	if err := (&Applier{Writer: &fakeWriter{}}).Apply(t.Context(), Plan{Steps: []Step{{Writes: []Write{NewCreate(pod("a")).OnSuccess(done), NewDelete(pod("b")).OnSuccess(done)}}}, Events: []Event{done}}); err != nil {
		t.Error(err)
	}
}

func TestEventTexts(t *testing.T) {
	for _, test := range []struct{ message, detail, want string }{
		{"Created pod: %s", "web-1", "Created pod: web-1"},
		{"no place", "web-1", "no place"},
		{"%s and %s", "a", "a and %s"},
		{"100%% of %s", "a", "100%% of a"},
		{"Error: %s", "quota of 5%s reached", "Error: quota of 5%s reached"},
		{"", "a", ""},
	} {
		s := &fakeWriter{}
		(&Applier{Events: s}).recordEvent(&Event{Object: pod("owner"), Type: "Normal", Reason: "R", Message: test.message}, test.detail)
		if want := "owner Normal R: " + test.want; !slices.Equal(s.events, []string{want}) {
			t.Errorf("%q with %q: %q", test.message, test.detail, s.events)
		}
	}
	s := &fakeWriter{}
	(&Applier{Events: s}).recordEvent(nil, "x")
	if len(s.events) != 0 {
		t.Errorf("%q", s.events)
	}
}

// TestWriteErrors: which error of which verb fails the plan, and which is recorded as an event.
func TestWriteErrors(t *testing.T) {
	notFound, conflict, exists := apierrors.NewNotFound(podResource, "a"), apierrors.NewConflict(podResource, "a", errors.New("old")), apierrors.NewAlreadyExists(podResource, "a")
	forbidden, invalid := apierrors.NewForbidden(podResource, "a", errors.New("quota")), apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil)
	ending := apierrors.NewForbidden(podResource, "a", errors.New("ending"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	failed := Event{Object: pod("owner"), Type: "Warning", Reason: "Failed", Message: "%s"}
	for _, test := range []struct {
		what        string
		write       Write
		err         error
		fails, told bool
	}{
		{"a creation that is forbidden", NewCreate(pod("a")), forbidden, true, true},
		{"a creation of what is there", NewCreate(pod("a")), exists, true, true},
		{"a creation of what is there, tolerated", NewCreate(pod("a")).Ignoring(metav1.StatusReasonAlreadyExists), exists, false, false},
		{"a creation of what is there, silent", NewCreate(pod("a")).WithoutEventOn(metav1.StatusReasonAlreadyExists), exists, true, false},
		{"a creation that is forbidden, silent of something else", NewCreate(pod("a")).WithoutEventOn(metav1.StatusReasonAlreadyExists), forbidden, true, true},
		{"a creation in a namespace that ends", NewCreate(pod("a")), ending, false, false},
		{"a patch in a namespace that ends", NewPatch(pod("a"), client.MergePatch, nil), ending, true, true},
		{"a deletion of what is gone", NewDelete(pod("a")), notFound, false, false},
		{"a deletion of another of that name", NewDelete(pod("a")), conflict, true, true},
		{"a deletion of another of that name, tolerated", NewDelete(pod("a")).Ignoring(metav1.StatusReasonConflict), conflict, false, false},
		{"an update of what is gone", NewUpdate(pod("a")), notFound, true, true},
		{"an update of what has changed", NewUpdate(pod("a")), conflict, true, true},
		{"a status of what has changed", NewUpdateStatus(pod("a")), conflict, true, true},
		{"a patch of what is gone", NewPatch(pod("a"), client.MergePatch, nil), notFound, true, true},
		{"a patch of what is gone or invalid, tolerated", NewPatch(pod("a"), client.MergePatch, nil).Ignoring(metav1.StatusReasonNotFound, metav1.StatusReasonInvalid), invalid, false, false},
		{"a server nobody reaches", NewUpdate(pod("a")).Ignoring(metav1.StatusReasonNotFound), errors.New("connection refused"), true, true},
		{"an unknown reason is not tolerated by chance", NewUpdate(pod("a")).Ignoring(metav1.StatusReasonUnknown), forbidden, true, true},
	} {
		s := &fakeWriter{refuse: func(string, kind.Object) error { return test.err }}
		var seen ApplyResult
		plan := Plan{Steps: []Step{{Writes: []Write{test.write.OnFailure(failed)}}}, Status: func(o ApplyResult) kind.Object { seen = o; return nil }}
		err := (&Applier{Writer: s, Events: s}).Apply(t.Context(), plan)
		if (err != nil) != test.fails || (len(s.events) > 0) != test.told || (seen.Err != nil) != test.fails || len(seen.Written) != 0 {
			t.Errorf("%s: %v, events %q, outcome %+v", test.what, err, s.events, seen)
		}
		if test.fails && !errors.Is(err, test.err) {
			t.Errorf("%s: the server's words are lost: %v", test.what, err)
		}
	}
}

// TestStatusComesLast: when the status is calculated and written, and the effect on events and errors.
func TestStatusComesLast(t *testing.T) {
	for _, test := range []struct {
		what           string
		refuse         string // the request that fails
		status, cancel bool
		requests       []string
		events, errs   int
	}{
		{"all is well", "", true, false, []string{"create a", "update status owner"}, 1, 0},
		{"the status stands", "", false, false, []string{"create a"}, 1, 0},
		{"a step failed", "create a", true, false, []string{"create a", "update status owner"}, 0, 1},
		{"a step failed, the status stands", "create a", false, false, []string{"create a"}, 0, 1},
		{"the status was refused", "update status owner", true, false, []string{"create a", "update status owner"}, 0, 1},
		{"everything was refused", "", true, false, []string{"create a", "update status owner"}, 0, 2},
		{"the process ends meanwhile", "", true, true, []string{"create a"}, 1, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &fakeWriter{}
		s.refuse = func(verb string, obj kind.Object) error {
			if test.cancel {
				cancel()
			}
			if test.errs == 2 || verb+" "+obj.GetName() == test.refuse {
				return errors.New("no to " + verb)
			}
			return nil
		}
		plan := Plan{Steps: []Step{{Writes: creating("a")}}, Events: []Event{{Object: pod("owner"), Reason: "Done"}}, Status: func(ApplyResult) kind.Object {
			if test.status {
				return pod("owner")
			}
			return nil
		}}
		err := (&Applier{Writer: s, Events: s}).Apply(ctx, plan)
		errs := 0
		if err != nil {
			errs = strings.Count(err.Error(), "no to")
		}
		if !slices.Equal(s.requests, test.requests) || len(s.events) != test.events || errs != test.errs {
			t.Errorf("%s: requests %q, events %q, %v", test.what, s.requests, s.events, err)
		}
		cancel()
	}
}

// TestSlowStartModel creates and deletes in one step with refusals at random. Creates go out in batches of 1, 2, 4, …; the batch with the first refusal is the
// last; everything else is tried whatever fails; what was written is reported in the order of the plan.
func TestSlowStartModel(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		refused := map[string]bool{}
		var writes []Write
		var creates, deletes []string
		for i := range random.IntN(60) {
			name := fmt.Sprint("p", i)
			if random.IntN(25) == 0 {
				refused[name] = true
			}
			if random.IntN(8) == 0 {
				writes, deletes = append(writes, NewDelete(pod(name))), append(deletes, name)
			} else {
				writes, creates = append(writes, NewCreate(pod(name))), append(creates, name)
			}
		}
		s := &fakeWriter{refuse: func(_ string, obj kind.Object) error {
			if refused[obj.GetName()] {
				return errors.New("no")
			}
			return nil
		}}
		var outcome ApplyResult
		err := (&Applier{Writer: s}).Apply(t.Context(), Plan{Steps: []Step{{Writes: writes}}, Status: func(o ApplyResult) kind.Object { outcome = o; return nil }})
		var want, written []string
		bad := false
		for _, name := range deletes {
			want = append(want, "delete "+name)
			bad = bad || refused[name]
		}
		for size, rest := 1, creates; !bad && len(rest) > 0; size *= 2 {
			batch := rest[:min(size, len(rest))]
			rest = rest[len(batch):]
			for _, name := range batch {
				want = append(want, "create "+name)
				if bad = bad || refused[name]; !refused[name] {
					written = append(written, name)
				}
			}
		}
		got := slices.Sorted(slices.Values(s.requests))
		slices.Sort(want)
		if !slices.Equal(got, want) || (err != nil) != bad {
			t.Fatalf("seed %d: %v\n got %q\nwant %q", seed, err, got, want)
		}
		var names []string
		for _, obj := range outcome.Written {
			names = append(names, obj.GetName())
		}
		if !slices.Equal(names, written) {
			t.Fatalf("seed %d: written %q, want %q", seed, names, written)
		}
	}
}

// TestConcurrently: the number of concurrent calls, the returned error, and that no calls are started after a failure.
func TestConcurrently(t *testing.T) {
	for _, test := range []struct {
		what        string
		n           int
		all         bool
		failing     []int
		err         string
		least, most int // calls
	}{
		{"none", 0, true, nil, "", 0, 0},
		{"one", 1, true, nil, "", 1, 1},
		{"one that fails", 1, false, []int{0}, "0", 1, 1},
		{"many", 250, true, nil, "", 250, 250},
		{"the first failure of several", 50, true, []int{40, 7, 13}, "7", 50, 50},
		{"all are tried", 250, true, []int{0}, "0", 250, 250},
		{"or none more begins", 5 * maxInFlight, false, []int{0}, "0", 1, 3 * maxInFlight},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			calls, under, most := 0, 0, 0
			indexes := make([]int, test.n)
			for i := range indexes {
				indexes[i] = i
			}
			err := runConcurrently(indexes, test.all, func(i int) error {
				mu.Lock()
				calls++
				under++
				most = max(most, under)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				under--
				mu.Unlock()
				if slices.Contains(test.failing, i) {
					return errors.New(fmt.Sprint(i))
				}
				return nil
			})
			if got := fmt.Sprint(err); (err != nil || test.err != "") && got != test.err || calls < test.least || calls > test.most || under != 0 || most > maxInFlight || most < min(test.n, 2) {
				t.Errorf("%s: %v, %d calls, %d at once", test.what, err, calls, most)
			}
		})
	}
}
