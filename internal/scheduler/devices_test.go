package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
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

// What a claim holds, in every form an allocation may have.
func TestTakenDevices(t *testing.T) {
	share := func(id string, capacity string) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			r := &c.Status.Allocation.Devices.Results[0]
			r.ShareID = ptr.To(types.UID(id))
			if capacity != "" {
				r.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(capacity)}
			}
		}
	}
	watching := func(yes bool) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].AdminAccess = &yes }
	}
	for _, test := range []struct {
		what            string
		claims          []*resourcev1.ResourceClaim
		devices, shares string
		memory          string // consumed of device-0 of a
	}{
		{"nothing", nil, "", "", ""},
		{"a claim without devices", []*resourcev1.ResourceClaim{devicesClaim("x", exactly("r", "class", 1, ""))}, "", "", ""},
		{"a device", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"))}, "example.com/a/device-0", "", ""},
		{"devices of two claims", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), holds("r", "a", "device-1")), devicesClaim("y", holds("r", "b", "device-0"))}, "example.com/a/device-0 example.com/a/device-1 example.com/b/device-0", "", ""},
		{"a device that is watched", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), watching(true))}, "", "", ""},
		{"a device that is not watched", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), watching(false))}, "example.com/a/device-0", "", ""},
		{"a share", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), share("s1", "2Gi"))}, "", "example.com/a/device-0/s1", "2Gi"},
		{"two shares", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), share("s1", "2Gi")), devicesClaim("y", holds("r", "a", "device-0"), share("s2", "3Gi"))}, "", "example.com/a/device-0/s1 example.com/a/device-0/s2", "5Gi"},
		{"a share of nothing", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), share("s1", ""))}, "", "example.com/a/device-0/s1", ""},
		{"a share that is watched", []*resourcev1.ResourceClaim{devicesClaim("x", holds("r", "a", "device-0"), share("s1", "2Gi"), watching(true))}, "", "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := newDeviceObjects()
			for _, c := range test.claims {
				d.set(c)
			}
			check := func(devices, shares, memory string) {
				t.Helper()
				state := d.allocated()
				var ids, parts []string
				for id := range state.AllocatedDevices {
					ids = append(ids, id.String())
				}
				for id := range state.AllocatedSharedDeviceIDs {
					parts = append(parts, id.String())
				}
				slices.Sort(ids)
				slices.Sort(parts)
				used := ""
				if c := state.AggregatedCapacity[structured.MakeDeviceID("example.com", "a", "device-0")]; c != nil && c["memory"] != nil {
					used = c["memory"].String()
				}
				if strings.Join(ids, " ") != devices || strings.Join(parts, " ") != shares || used != memory {
					t.Errorf("devices %v, shares %v, memory %q", ids, parts, used)
				}
			}
			check(test.devices, test.shares, test.memory)
			for _, c := range test.claims {
				d.delete(c)
			}
			check("", "", "")
		})
	}
}

// Rules taint the devices they speak of, each one after the last, and leave the slices themselves alone.
func TestTaintedSlices(t *testing.T) {
	rule := func(name string, selector *resourcev1.DeviceTaintSelector, key string) *resourcev1.DeviceTaintRule {
		r := taintRule(selector, resourcev1.DeviceTaintEffectNoSchedule)
		r.Name, r.Spec.Taint.Key = name, key
		return r
	}
	all := &resourcev1.DeviceTaintSelector{}
	for _, test := range []struct {
		what  string
		rules []*resourcev1.DeviceTaintRule
		want  string // taints by device
	}{
		{"no rule", nil, "a/0: own a/1: own b/0:"},
		{"no selector", []*resourcev1.DeviceTaintRule{rule("x", nil, "k")}, "a/0: own a/1: own b/0:"},
		{"everything", []*resourcev1.DeviceTaintRule{rule("x", all, "k")}, "a/0: own,k a/1: own,k b/0: k"},
		{"a pool", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Pool: ptr.To("b")}, "k")}, "a/0: own a/1: own b/0: k"},
		{"a device of every pool", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Device: ptr.To("device-0")}, "k")}, "a/0: own,k a/1: own b/0: k"},
		{"a device of a pool", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Pool: ptr.To("a"), Device: ptr.To("device-1")}, "k")}, "a/0: own a/1: own,k b/0:"},
		{"another driver", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Driver: ptr.To("other")}, "k")}, "a/0: own a/1: own b/0:"},
		{"the driver, but another pool", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Driver: ptr.To("example.com"), Pool: ptr.To("c")}, "k")}, "a/0: own a/1: own b/0:"},
		{"two rules, by name", []*resourcev1.DeviceTaintRule{rule("y", all, "second"), rule("x", all, "first")}, "a/0: own,first,second a/1: own,first,second b/0: first,second"},
		{"two rules for different devices", []*resourcev1.DeviceTaintRule{rule("x", &resourcev1.DeviceTaintSelector{Pool: ptr.To("a")}, "k"), rule("y", &resourcev1.DeviceTaintSelector{Device: ptr.To("device-0")}, "l")}, "a/0: own,k,l a/1: own,k b/0: l"},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := newDeviceObjects()
			own := deviceSlice("a", 2, resourcev1.DeviceTaint{Key: "own"})
			plain := deviceSlice("b", 1)
			for _, s := range []*resourcev1.ResourceSlice{plain, own} {
				d.set(s)
			}
			for _, r := range test.rules {
				d.set(r)
			}
			for range 2 { // asking twice taints once
				var words []string
				for _, s := range d.sliceList() {
					for i, device := range s.Spec.Devices {
						var keys []string
						for _, taint := range device.Taints {
							keys = append(keys, taint.Key)
						}
						words = append(words, strings.TrimSpace(fmt.Sprintf("%s/%d: %s", s.Spec.Pool.Name, i, strings.Join(keys, ","))))
					}
				}
				if got := strings.Join(words, " "); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
			}
			if len(own.Spec.Devices[0].Taints) != 1 || len(plain.Spec.Devices[0].Taints) != 0 {
				t.Error("the slices themselves were changed")
			}
			for _, r := range test.rules {
				d.delete(r)
			}
			if got := d.sliceList(); got[0] != own || got[1] != plain {
				t.Error("without rules the slices are not the API server's own")
			}
			d.delete(own)
			if got := d.sliceList(); len(got) != 1 || got[0] != plain {
				t.Errorf("a slice that is gone is still there: %v", got)
			}
		})
	}
}

func TestClassLister(t *testing.T) {
	d := newDeviceObjects()
	l := classLister{&d}
	if all, err := l.List(); err != nil || len(all) != 0 {
		t.Errorf("list %v, %v", all, err)
	}
	d.set(deviceClass("x"))
	d.set(deviceClass("y"))
	if all, err := l.List(); err != nil || len(all) != 2 {
		t.Errorf("list %v, %v", all, err)
	}
	if c, err := l.Get("x"); err != nil || c.Name != "x" {
		t.Errorf("get %v, %v", c, err)
	}
	d.delete(deviceClass("x"))
	if c, err := l.Get("x"); !apierrors.IsNotFound(err) || c != nil {
		t.Errorf("get %v, %v", c, err)
	}
}

// Claims of a pod, in the order it names them.
func TestResourceClaimsOf(t *testing.T) {
	d := newDeviceObjects()
	for _, c := range []*resourcev1.ResourceClaim{devicesClaim("x"), devicesClaim("y"), devicesClaim("p-d", ownedBy("p")), devicesClaim("leaving", leavingDevices), devicesClaim("q-d", ownedBy("q"))} {
		d.set(c)
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want string
		fail string
	}{
		{"none", testPod("p"), "", ""},
		{"in order", testPod("p", claiming("y"), claimingMade("d", "p-d"), claiming("x")), "y p-d x", ""},
		{"one that is not needed", testPod("p", claimingMade("d", "-"), claiming("x")), "x", ""},
		{"one twice", testPod("p", claiming("x"), claiming("x")), "x x", ""},
		{"another pod's, by name", testPod("p", claiming("q-d")), "q-d", ""},
		{"another pod's, as its own", testPod("p", claimingMade("d", "q-d")), "", "ResourceClaim default/q-d was not created for Pod default/p (Pod is not owner)"},
		{"on its way out", testPod("p", claiming("leaving")), "", `resourceclaim "leaving" is being deleted`},
		{"missing", testPod("p", claiming("z")), "", `could not find ResourceClaim "default/z"`},
		{"elsewhere", testPod("p", namespace("other"), claiming("x")), "", `could not find ResourceClaim "other/x"`},
		{"not made yet", testPod("p", claimingMade("d", "")), "", `pod "default/p": ResourceClaim not created yet`},
	} {
		t.Run(test.what, func(t *testing.T) {
			claims, err := d.claimsOf(test.pod)
			var names []string
			for _, c := range claims {
				names = append(names, c.Name)
			}
			if (err != nil) != (test.fail != "") || err != nil && err.Error() != test.fail || strings.Join(names, " ") != test.want {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}

// assumption is the model of one claim: what the API server has told, and what we have decided or been answered since.
type assumption struct {
	told, answered int // versions; answered is 0 when nothing stands
	pending        bool
	devices        map[int]string // by version
}

// Through any course of telling, deciding, writing and taking back, exactly the devices of what stands are taken.
func TestAssumptionsAreAsTheModelSays(t *testing.T) {
	const seed = 41
	for round := range 300 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		d := newDeviceObjects()
		version := 1
		m := &assumption{told: 1, devices: map[int]string{}}
		claim := func(v int) *resourcev1.ResourceClaim {
			c := devicesClaim("x", exactly("r", "class", 1, ""))
			c.ResourceVersion = strconv.Itoa(v)
			if device := m.devices[v]; device != "" {
				holds("r", "a", device)(c)
			}
			return c
		}
		d.set(claim(1))
		var grant *claimGrant
		var log []string
		for step := range 12 {
			switch random.IntN(5) {
			case 0: // decide
				if m.pending || m.answered > 0 && m.devices[m.answered] != "" || m.answered == 0 && m.devices[m.told] != "" {
					continue
				}
				grant = &claimGrant{claim: d.claim("default/x"), allocation: claimHolding("x", "a", fmt.Sprint("device-", step)).Status.Allocation}
				d.assume([]claimGrant{*grant})
				m.pending = true
				log = append(log, "decide")
			case 1: // write
				if !m.pending {
					continue
				}
				version++
				m.devices[version] = grant.allocation.Devices.Results[0].Device
				m.pending, m.answered = false, version
				d.write(grant, claim(version))
				log = append(log, "write")
			case 2: // take back
				if !m.pending {
					continue
				}
				d.revert([]claimGrant{*grant})
				m.pending = false
				log = append(log, "take back")
			case 3: // free: somebody else writes, and it is told at once
				if m.pending {
					continue
				}
				version++
				m.told = version
				m.answered = 0
				d.set(claim(version))
				log = append(log, "free")
			case 4: // tell, perhaps late
				next := m.told + random.IntN(version-m.told+1)
				m.told = next
				d.set(claim(next))
				if m.answered > 0 && next >= m.answered {
					m.answered = 0
				}
				log = append(log, fmt.Sprint("tell ", next))
			}
			want := m.devices[m.told]
			if m.answered > 0 {
				want = m.devices[m.answered]
			}
			if m.pending {
				want = grant.allocation.Devices.Results[0].Device
			}
			got := ""
			for id := range d.allocated().AllocatedDevices {
				got += strings.TrimPrefix(id.String(), "example.com/a/")
			}
			if got != want || d.pending("default/x") != m.pending {
				t.Fatalf("seed %d, round %d: after %v %q is taken, want %q; pending %t", seed, round, log, got, want, d.pending("default/x"))
			}
		}
	}
}
