package coordination

import (
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func lease(spec coordinationv1.LeaseSpec) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "ns"}, Spec: spec}
}

func TestLease(t *testing.T) {
	strategy := func(name string) *coordinationv1.CoordinatedLeaseStrategy {
		return ptr.To(coordinationv1.CoordinatedLeaseStrategy(name))
	}
	created, errs := kindtest.Create(Lease, nil, lease(coordinationv1.LeaseSpec{Strategy: strategy("any"), PreferredHolder: ptr.To("a")}))
	kindtest.Errors(t, errs)
	if created.Spec.Strategy != nil || created.Spec.PreferredHolder != nil {
		t.Errorf("kept %+v", created.Spec)
	}
	for _, test := range []struct {
		spec coordinationv1.LeaseSpec
		want []string
	}{
		{coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](15)}, nil},
		{coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](0), LeaseTransitions: ptr.To[int32](-1)}, []string{"spec.leaseDurationSeconds: Invalid value: must be greater than 0", "spec.leaseTransitions: Invalid value: must be greater than or equal to 0"}},
		{coordinationv1.LeaseSpec{Strategy: strategy("Newest")}, []string{"spec.strategy.strategy: Unsupported value"}},
		{coordinationv1.LeaseSpec{Strategy: strategy("example.com/x"), PreferredHolder: ptr.To("b")}, nil},
		{coordinationv1.LeaseSpec{PreferredHolder: ptr.To("b")}, []string{"spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"}},
	} {
		// A lease that already has these fields keeps them.
		old := lease(coordinationv1.LeaseSpec{Strategy: strategy("OldestEmulationVersion"), PreferredHolder: ptr.To("a")})
		_, errs := kindtest.Update(Lease, nil, lease(test.spec), old)
		kindtest.Errors(t, errs, test.want...)
	}
	if Lease.AllowUnconditionalUpdate || !Lease.AllowCreateOnUpdate {
		t.Error("a lease is written by compare and swap, and created by its first holder")
	}
	now := time.Now()
	held := lease(coordinationv1.LeaseSpec{HolderIdentity: ptr.To("me")})
	held.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	if got := Lease.Row(held, now); !reflect.DeepEqual(got, []any{"l", "me", "60m"}) {
		t.Errorf("%#v", got)
	}
}
