package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// recordingWriter accepts all writes and records them. Writes that it does not implement panic.
type recordingWriter struct {
	Writer
	writes []string
	// bindError is the result of Bind.
	bindError error
}

func (w *recordingWriter) Bind(_ context.Context, pod *corev1.Pod, node string) error {
	w.writes = append(w.writes, "bind "+pod.Name+" "+node)
	return w.bindError
}

func (w *recordingWriter) PatchStatus(_ context.Context, pod *corev1.Pod, _ []byte) error {
	w.writes = append(w.writes, "patch "+pod.Name)
	return nil
}

func (w *recordingWriter) UpdatePersistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	w.writes = append(w.writes, "update claim "+claim.Name)
	claim = claim.DeepCopy()
	claim.ResourceVersion = "99" // newer than what the snapshot has
	return claim, nil
}

func (w *recordingWriter) UpdateResourceClaimStatus(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	users := ""
	for _, r := range claim.Status.ReservedFor {
		users += " " + r.Name
	}
	w.writes = append(w.writes, "reserve "+claim.Name+" for"+users)
	return claim, nil
}

// decided is the decision to run a pod on node a.
func decided(t *testing.T, cluster *snapshot.Snapshot, pod *corev1.Pod) *decision.Decision {
	t.Helper()
	return &decision.Decision{Pod: snapshottest.PodInfo(t, pod), Node: "a", NodeNumber: cluster.NodeNumbers["a"], Snapshot: cluster, Profile: plugins.DefaultProfile()}
}

// assumed reserves what a pod needs and assumes the pod, as the scheduling loop does.
func assumed(t *testing.T, cluster *snapshot.Snapshot, d *decision.Decision) *Reservation {
	t.Helper()
	r, err := Reserve(cluster, d)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Assume(d.Pod, d.Node)
	return r
}

func TestBindCallsExtenderOrWriter(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		what          string
		handled       bool
		extenderError error
		writerError   error
		writes        string
		want          string
	}{
		{"no extender", false, nil, nil, "bind p a", "<nil>"},
		{"no extender, the write fails", false, nil, broken, "bind p a", `running Bind plugin "DefaultBinder": broken`},
		{"an extender binds", true, nil, broken, "", "<nil>"},
		{"an extender fails", true, broken, nil, "", "broken"},
	} {
		t.Run(test.what, func(t *testing.T) {
			cluster := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
			w := &recordingWriter{bindError: test.writerError}
			b := newTestBinder(cluster, w)
			b.BindWithExtender = func(context.Context, *corev1.Pod, string) (bool, error) { return test.handled, test.extenderError }
			var timed []string
			b.Timed = func(extensionPoint string, _ *plugins.Profile) func(error) {
				return func(err error) { timed = append(timed, fmt.Sprint(extensionPoint, " ", err)) }
			}
			d := decided(t, cluster, schedulertest.TestPod("p"))
			if err := b.Bind(t.Context(), d, assumed(t, cluster, d)); fmt.Sprint(err) != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
			if got := strings.Join(w.writes, ", "); got != test.writes {
				t.Errorf("writes %q, want %q", got, test.writes)
			}
			if want := []string{"Bind " + test.want}; !slices.Equal(timed, want) {
				t.Errorf("timed %q, want %q", timed, want)
			}
		})
	}
}

// Cancel ends the wait for a volume with its cause. Before and after the wait it has no effect.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := snapshottest.NewWithObjects(t, []*corev1.Node{schedulertest.TestNode("a")},
			schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("c")})
		w := &recordingWriter{}
		b := newTestBinder(cluster, w)
		d := decided(t, cluster, schedulertest.TestPod("p", schedulertest.UsingClaim("c")))
		r := assumed(t, cluster, d)
		cause := errors.New("preempted")
		if b.Cancel("p", cause) {
			t.Error("a pod is cancelled before it is bound")
		}
		result := make(chan error, 1)
		go func() { result <- b.Bind(t.Context(), d, r) }()
		time.Sleep(time.Minute)
		if !b.Cancel("p", cause) {
			t.Fatal("the pod does not wait for its volume")
		}
		if err := <-result; !errors.Is(err, cause) {
			t.Errorf("Bind returned %v", err)
		}
		if b.Cancel("p", cause) {
			t.Error("a pod is cancelled after Bind has returned")
		}
		if got, want := strings.Join(w.writes, ", "), "patch p, update claim c"; got != want {
			t.Errorf("writes %q, want %q", got, want)
		}
		// The claim was written, so Release keeps it assumed until the watch delivers it.
		b.Release(t.Context(), cluster, d.Pod.Pod, r)
		if n := len(cluster.Volumes.AssumedClaims); n != 1 {
			t.Errorf("%d claims are assumed after Release, want the written one", n)
		}
		cluster.SetObject(schedulertest.StorageClaim("c", schedulertest.ClaimVersion("99")))
		if n := len(cluster.Volumes.AssumedClaims); n != 0 {
			t.Errorf("%d claims are assumed after the watch has delivered the write", n)
		}
	})
}

// Release starts its writes with Background, and removes only the pod's own reservation.
func TestReleaseWritesInBackground(t *testing.T) {
	claim := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a"), schedulertest.ReservedFor("p", "q"))
	cluster := snapshottest.NewWithObjects(t, []*corev1.Node{schedulertest.TestNode("a")}, schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.DeviceSlice("a", 1), claim})
	w := &recordingWriter{}
	b := newTestBinder(cluster, w)
	var background []func()
	b.Background = func(write func()) { background = append(background, write) }
	d := decided(t, cluster, schedulertest.TestPod("p", schedulertest.Claiming("x")))
	b.Release(t.Context(), cluster, d.Pod.Pod, assumed(t, cluster, d))
	if len(background) != 1 || len(w.writes) != 0 {
		t.Fatalf("%d writes in the background, done at once: %v", len(background), w.writes)
	}
	background[0]()
	if !slices.Equal(w.writes, []string{"reserve x for q"}) || len(cluster.Devices.Assumed) != 0 {
		t.Errorf("writes %v, %d claims assumed", w.writes, len(cluster.Devices.Assumed))
	}
}
