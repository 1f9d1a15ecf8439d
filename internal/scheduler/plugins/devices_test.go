package plugins

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// Administrators taint devices by rules; what a rule speaks of cannot be had without a toleration.
func TestDeviceTaintRules(t *testing.T) {
	noSchedule := resourcev1.DeviceTaintEffectNoSchedule
	tolerant := resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists}
	for _, test := range []struct {
		what  string
		rule  *resourcev1.DeviceTaintRule
		claim *resourcev1.ResourceClaim
		want  []string // nodes that can be taken, of a with one device and b with two
	}{
		{"no rule", nil, schedulertest.DeviceClaim("claim", 1), []string{"a", "b"}},
		{"more than one node has", nil, schedulertest.DeviceClaim("claim", 2), []string{"b"}},
		{"no selector is no device", schedulertest.TaintRule(nil, noSchedule), schedulertest.DeviceClaim("claim", 1), []string{"a", "b"}},
		{"an empty selector is every device", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{}, noSchedule), schedulertest.DeviceClaim("claim", 1), nil},
		{"which may be tolerated", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{}, noSchedule), schedulertest.DeviceClaim("claim", 1, tolerant), []string{"a", "b"}},
		{"a pool", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{Pool: ptr.To("a")}, noSchedule), schedulertest.DeviceClaim("claim", 1), []string{"b"}},
		{"a driver", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{Driver: ptr.To("example.com")}, resourcev1.DeviceTaintEffectNoExecute), schedulertest.DeviceClaim("claim", 1), nil},
		{"another driver", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{Driver: ptr.To("other")}, noSchedule), schedulertest.DeviceClaim("claim", 1), []string{"a", "b"}},
		{"a device", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{Device: ptr.To("device-0")}, noSchedule), schedulertest.DeviceClaim("claim", 1), []string{"b"}},
		{"a taint without effect", schedulertest.TaintRule(&resourcev1.DeviceTaintSelector{}, resourcev1.DeviceTaintEffectNone), schedulertest.DeviceClaim("claim", 1), []string{"a", "b"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")})
			s.SetObject(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}})
			first := schedulertest.DeviceSlice("a", 1)
			s.SetObject(first)
			s.SetObject(schedulertest.DeviceSlice("b", 2))
			s.SetObject(test.claim)
			if test.rule != nil {
				s.SetObject(test.rule)
			}
			check := func(want []string) {
				t.Helper()
				refused := filterReasons(t, s, schedulertest.TestPod("p", schedulertest.Claiming("claim")), DefaultProfile())
				var fits []string
				for _, n := range []string{"a", "b"} {
					if refused[n] == "" {
						fits = append(fits, n)
					}
				}
				if fmt.Sprint(fits) != fmt.Sprint(want) {
					t.Errorf("fits on %v, want %v; refused %v", fits, want, refused)
				}
			}
			check(test.want)
			if len(first.Spec.Devices[0].Taints) != 0 {
				t.Error("the slice itself was changed")
			}
			if test.rule != nil {
				s.DeleteObject(test.rule)
				if test.claim.Spec.Devices.Requests[0].Exactly.Count == 1 {
					check([]string{"a", "b"})
				}
			}
		})
	}
}
