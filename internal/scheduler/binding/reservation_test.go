package binding

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// What cannot be reserved is reported as upstream's Reserve does, and leaves nothing assumed.
func TestReserveFails(t *testing.T) {
	static := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner)
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		fail  string
	}{
		{"nothing to reserve", nil, schedulertest.TestPod("p"), ""},
		{"a bound volume", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), ""},
		{"a volume to bind", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), ""},
		{"a claim that does not exist", nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": error getting PVC "default/c": persistentvolumeclaim "c" not found`},
		{"no available volume", schedulertest.Objects{static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": volumes on node a: [node(s) didn't find available persistent volumes to bind]`},
		{"a class without a binding mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": VolumeBindingMode not set for StorageClass "late"`},
		{"a resource claim that does not exist", nil, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": devices on node a: [could not find ResourceClaim "default/x"]`},
		{"no available devices", schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": devices on node a: [cannot allocate all claims]`},
		{"devices whose class has an invalid selector", schedulertest.Objects{schedulertest.DeviceSlice("a", 1), schedulertest.DeviceClass("class", "device."), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": `},
		{"devices, but no volume", schedulertest.Objects{schedulertest.DeviceSlice("a", 1), schedulertest.DeviceClass("class"), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")), static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": volumes on node a: [node(s) didn't find available persistent volumes to bind]`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshot.NewSnapshot()
			s.SetNode(schedulertest.TestNode("a"))
			for _, o := range test.known {
				s.SetObject(o)
			}
			r, err := Reserve(s, &decision.Decision{Pod: snapshottest.PodInfo(t, test.pod), Node: "a", NodeNumber: s.NodeNumbers["a"], Snapshot: s, Profile: plugins.DefaultProfile()})
			if (err != nil) != (test.fail != "") || err != nil && !strings.HasPrefix(err.Error(), test.fail) {
				t.Fatalf("%v, want %q", err, test.fail)
			}
			if err == nil {
				r.revert(s)
			}
			if n := len(s.Volumes.AssumedVolumes) + len(s.Volumes.AssumedClaims) + len(s.Devices.Assumed); n != 0 {
				t.Errorf("%d things are still assumed", n)
			}
		})
	}
}
