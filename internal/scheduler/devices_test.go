package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func deviceSlice(node string, devices int, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("device-", i), Taints: taints})
	}
	return slice
}

func deviceClaim(name string, count int64, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "class", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count, Tolerations: tolerations,
		}}},
	}}}
}

func claiming(name string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
}

func taintRule(selector *resourcev1.DeviceTaintSelector, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: selector, Taint: resourcev1.DeviceTaint{Key: "repair", Effect: effect},
	}}
}

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
		{"no rule", nil, deviceClaim("claim", 1), []string{"a", "b"}},
		{"more than one node has", nil, deviceClaim("claim", 2), []string{"b"}},
		{"no selector is no device", taintRule(nil, noSchedule), deviceClaim("claim", 1), []string{"a", "b"}},
		{"an empty selector is every device", taintRule(&resourcev1.DeviceTaintSelector{}, noSchedule), deviceClaim("claim", 1), nil},
		{"which may be tolerated", taintRule(&resourcev1.DeviceTaintSelector{}, noSchedule), deviceClaim("claim", 1, tolerant), []string{"a", "b"}},
		{"a pool", taintRule(&resourcev1.DeviceTaintSelector{Pool: ptr.To("a")}, noSchedule), deviceClaim("claim", 1), []string{"b"}},
		{"a driver", taintRule(&resourcev1.DeviceTaintSelector{Driver: ptr.To("example.com")}, resourcev1.DeviceTaintEffectNoExecute), deviceClaim("claim", 1), nil},
		{"another driver", taintRule(&resourcev1.DeviceTaintSelector{Driver: ptr.To("other")}, noSchedule), deviceClaim("claim", 1), []string{"a", "b"}},
		{"a device", taintRule(&resourcev1.DeviceTaintSelector{Device: ptr.To("device-0")}, noSchedule), deviceClaim("claim", 1), []string{"b"}},
		{"a taint without effect", taintRule(&resourcev1.DeviceTaintSelector{}, resourcev1.DeviceTaintEffectNone), deviceClaim("claim", 1), []string{"a", "b"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")})
			s.SetObject(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}})
			first := deviceSlice("a", 1)
			s.SetObject(first)
			s.SetObject(deviceSlice("b", 2))
			s.SetObject(test.claim)
			if test.rule != nil {
				s.SetObject(test.rule)
			}
			check := func(want []string) {
				t.Helper()
				refused := refusalsOf(t, s, testPod("p", claiming("claim")), DefaultProfile())
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
