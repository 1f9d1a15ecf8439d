package cleanup

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

func aLease(renewed time.Time, seconds int32, changes ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "lease", Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("server"), RenewTime: new(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: &seconds}}
	for _, c := range changes {
		c(l)
	}
	return l
}

func TestServerLeases(t *testing.T) {
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for _, test := range []struct {
		what  string
		lease *coordinationv1.Lease
		over  bool
	}{
		{"past", aLease(ago(2*time.Hour), 3600), true},
		{"current", aLease(ago(0), 3600), false},
		{"a moment before its end", aLease(ago(time.Hour-1000), 3600), false},
		{"at its end", aLease(ago(time.Hour), 3600), false},
		{"a moment after its end", aLease(ago(time.Hour+1000), 3600), true},
		{"renewed in the future", aLease(ago(-time.Hour), 1), false},
		{"for no time", aLease(ago(1000), 0), true},
		{"never renewed", aLease(ago(0), 3600, func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }), true},
		{"for a time nobody knows", aLease(ago(0), 3600, func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }), true},
		{"without labels", aLease(ago(2*time.Hour), 3600, func(l *coordinationv1.Lease) { l.Labels = nil }), false},
		{"of another part", aLease(ago(2*time.Hour), 3600, func(l *coordinationv1.Lease) { l.Labels["apiserver.kubernetes.io/identity"] = "other" }), false},
		{"of another namespace", aLease(ago(2*time.Hour), 3600, func(l *coordinationv1.Lease) { l.Namespace = "default" }), false},
		{"of a node", aLease(ago(2*time.Hour), 40, func(l *coordinationv1.Lease) { l.Namespace, l.Labels = "kube-node-lease", nil }), false},
	} {
		if got := serverLeaseExpired(test.lease, noon); got != test.over {
			t.Errorf("%s: over %v", test.what, got)
		}
	}
}

// TestServerLeasesInAWorld: they are looked at every hour.
func TestServerLeasesInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		named := func(name string) func(*coordinationv1.Lease) { return func(l *coordinationv1.Lease) { l.Name = name } }
		world.Create(w, aLease(time.Now().Add(-2*time.Hour), 3600, named("past")))
		world.Create(w, aLease(time.Now(), 600, named("soon")))
		world.Create(w, aLease(time.Now(), 3*3600, named("later")))
		defer w.Run(ServerLeases)()
		for _, test := range []struct {
			pass time.Duration
			left int
		}{{time.Minute, 2}, {57 * time.Minute, 2}, {3 * time.Minute, 1}, {time.Hour, 1}, {2 * time.Hour, 0}} {
			w.Pass(test.pass)
			if got := len(world.List[*coordinationv1.Lease](w)); got != test.left {
				t.Errorf("%d leases are left, want %d", got, test.left)
			}
		}
	})
}
