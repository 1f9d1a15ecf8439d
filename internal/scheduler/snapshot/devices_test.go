package snapshot

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

	"skiff/internal/scheduler/schedulertest"
)

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
		{"a claim without devices", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, "", "", ""},
		{"a device", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"))}, "example.com/a/device-0", "", ""},
		{"devices of two claims", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedDevice("r", "a", "device-1")), schedulertest.DevicesClaim("y", schedulertest.AllocatedDevice("r", "b", "device-0"))}, "example.com/a/device-0 example.com/a/device-1 example.com/b/device-0", "", ""},
		{"a device that is watched", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), watching(true))}, "", "", ""},
		{"a device that is not watched", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), watching(false))}, "example.com/a/device-0", "", ""},
		{"a share", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), share("s1", "2Gi"))}, "", "example.com/a/device-0/s1", "2Gi"},
		{"two shares", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), share("s1", "2Gi")), schedulertest.DevicesClaim("y", schedulertest.AllocatedDevice("r", "a", "device-0"), share("s2", "3Gi"))}, "", "example.com/a/device-0/s1 example.com/a/device-0/s2", "5Gi"},
		{"a share of nothing", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), share("s1", ""))}, "", "example.com/a/device-0/s1", ""},
		{"a share that is watched", []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), share("s1", "2Gi"), watching(true))}, "", "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := NewDeviceObjects()
			for _, c := range test.claims {
				d.SetObject(c)
			}
			check := func(devices, shares, memory string) {
				t.Helper()
				state := d.Allocated()
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
				d.DeleteObject(c)
			}
			check("", "", "")
		})
	}
}

// Rules taint the devices they speak of, each one after the last, and leave the slices themselves alone.
func TestTaintedSlices(t *testing.T) {
	rule := func(name string, selector *resourcev1.DeviceTaintSelector, key string) *resourcev1.DeviceTaintRule {
		r := schedulertest.TaintRule(selector, resourcev1.DeviceTaintEffectNoSchedule)
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
			d := NewDeviceObjects()
			own := schedulertest.DeviceSlice("a", 2, resourcev1.DeviceTaint{Key: "own"})
			plain := schedulertest.DeviceSlice("b", 1)
			for _, s := range []*resourcev1.ResourceSlice{plain, own} {
				d.SetObject(s)
			}
			for _, r := range test.rules {
				d.SetObject(r)
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
				d.DeleteObject(r)
			}
			if got := d.sliceList(); got[0] != own || got[1] != plain {
				t.Error("without rules the slices are not the API server's own")
			}
			d.DeleteObject(own)
			if got := d.sliceList(); len(got) != 1 || got[0] != plain {
				t.Errorf("a slice that is gone is still there: %v", got)
			}
		})
	}
}

func TestClassLister(t *testing.T) {
	d := NewDeviceObjects()
	l := classLister{&d}
	if all, err := l.List(); err != nil || len(all) != 0 {
		t.Errorf("list %v, %v", all, err)
	}
	d.SetObject(schedulertest.DeviceClass("x"))
	d.SetObject(schedulertest.DeviceClass("y"))
	if all, err := l.List(); err != nil || len(all) != 2 {
		t.Errorf("list %v, %v", all, err)
	}
	if c, err := l.Get("x"); err != nil || c.Name != "x" {
		t.Errorf("get %v, %v", c, err)
	}
	d.DeleteObject(schedulertest.DeviceClass("x"))
	if c, err := l.Get("x"); !apierrors.IsNotFound(err) || c != nil {
		t.Errorf("get %v, %v", c, err)
	}
}

// Claims of a pod, in the order it names them.
func TestResourceClaimsOf(t *testing.T) {
	d := NewDeviceObjects()
	for _, c := range []*resourcev1.ResourceClaim{schedulertest.DevicesClaim("x"), schedulertest.DevicesClaim("y"), schedulertest.DevicesClaim("p-d", schedulertest.OwnedBy("p")), schedulertest.DevicesClaim("leaving", schedulertest.ClaimBeingDeleted), schedulertest.DevicesClaim("q-d", schedulertest.OwnedBy("q"))} {
		d.SetObject(c)
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want string
		fail string
	}{
		{"none", schedulertest.TestPod("p"), "", ""},
		{"in order", schedulertest.TestPod("p", schedulertest.Claiming("y"), schedulertest.ClaimFromTemplate("d", "p-d"), schedulertest.Claiming("x")), "y p-d x", ""},
		{"one that is not needed", schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "-"), schedulertest.Claiming("x")), "x", ""},
		{"one twice", schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("x")), "x x", ""},
		{"another pod's, by name", schedulertest.TestPod("p", schedulertest.Claiming("q-d")), "q-d", ""},
		{"another pod's, as its own", schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "q-d")), "", "ResourceClaim default/q-d was not created for Pod default/p (Pod is not owner)"},
		{"on its way out", schedulertest.TestPod("p", schedulertest.Claiming("leaving")), "", `resourceclaim "leaving" is being deleted`},
		{"missing", schedulertest.TestPod("p", schedulertest.Claiming("z")), "", `could not find ResourceClaim "default/z"`},
		{"elsewhere", schedulertest.TestPod("p", schedulertest.Namespace("other"), schedulertest.Claiming("x")), "", `could not find ResourceClaim "other/x"`},
		{"not made yet", schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), "", `pod "default/p": ResourceClaim not created yet`},
	} {
		t.Run(test.what, func(t *testing.T) {
			claims, err := d.PodResourceClaims(test.pod)
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

// Through any course of telling, deciding, writing and taking back, exactly the devices of what stands are taken.
func TestAssumptionsAreAsTheModelSays(t *testing.T) {
	const seed = 41
	for round := range 300 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		d := NewDeviceObjects()
		version := 1
		m := &assumption{told: 1, devices: map[int]string{}}
		claim := func(v int) *resourcev1.ResourceClaim {
			c := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))
			c.ResourceVersion = strconv.Itoa(v)
			if device := m.devices[v]; device != "" {
				schedulertest.AllocatedDevice("r", "a", device)(c)
			}
			return c
		}
		d.SetObject(claim(1))
		var grant *ClaimAllocation
		var log []string
		for step := range 12 {
			switch random.IntN(5) {
			case 0: // decide
				if m.pending || m.answered > 0 && m.devices[m.answered] != "" || m.answered == 0 && m.devices[m.told] != "" {
					continue
				}
				grant = &ClaimAllocation{Claim: d.Claim("default/x"), Allocation: schedulertest.AllocatedClaim("x", "a", fmt.Sprint("device-", step)).Status.Allocation}
				d.AssumeAllocations([]ClaimAllocation{*grant})
				m.pending = true
				log = append(log, "decide")
			case 1: // write
				if !m.pending {
					continue
				}
				version++
				m.devices[version] = grant.Allocation.Devices.Results[0].Device
				m.pending, m.answered = false, version
				d.AllocationWritten(grant, claim(version))
				log = append(log, "write")
			case 2: // take back
				if !m.pending {
					continue
				}
				d.RevertAllocations([]ClaimAllocation{*grant})
				m.pending = false
				log = append(log, "take back")
			case 3: // free: somebody else writes, and it is told at once
				if m.pending {
					continue
				}
				version++
				m.told = version
				m.answered = 0
				d.SetObject(claim(version))
				log = append(log, "free")
			case 4: // tell, perhaps late
				next := m.told + random.IntN(version-m.told+1)
				m.told = next
				d.SetObject(claim(next))
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
				want = grant.Allocation.Devices.Results[0].Device
			}
			got := ""
			for id := range d.Allocated().AllocatedDevices {
				got += strings.TrimPrefix(id.String(), "example.com/a/")
			}
			if got != want || d.AllocationPending("default/x") != m.pending {
				t.Fatalf("seed %d, round %d: after %v %q is taken, want %q; pending %t", seed, round, log, got, want, d.AllocationPending("default/x"))
			}
		}
	}
}

// An assumption holds from the decision until the API server has told of what was written, and no event in between ends it.
func TestAssumedClaims(t *testing.T) {
	version := func(claim *resourcev1.ResourceClaim, version string) *resourcev1.ResourceClaim {
		claim.ResourceVersion = version
		return claim
	}
	held := func(v string) *resourcev1.ResourceClaim {
		return version(schedulertest.AllocatedClaim("c", "a", "device-0"), v)
	}
	for _, test := range []struct {
		what    string
		events  func(d *DeviceObjects, g *ClaimAllocation)
		assumed bool
		taken   int
	}{
		{"decided", func(*DeviceObjects, *ClaimAllocation) {}, true, 1},
		{"taken back", func(d *DeviceObjects, g *ClaimAllocation) {
			d.RevertAllocations([]ClaimAllocation{*g})
		}, false, 0},
		{"its finalizer is told of", func(d *DeviceObjects, g *ClaimAllocation) {
			d.SetObject(version(schedulertest.DeviceClaim("c", 1), "2"))
		}, true, 1},
		{"written", func(d *DeviceObjects, g *ClaimAllocation) { d.AllocationWritten(g, held("3")) }, true, 1},
		{"written, and what was before is told of", func(d *DeviceObjects, g *ClaimAllocation) {
			d.AllocationWritten(g, held("3"))
			d.SetObject(version(schedulertest.DeviceClaim("c", 1), "2"))
		}, true, 1},
		{"written, and told of", func(d *DeviceObjects, g *ClaimAllocation) {
			d.AllocationWritten(g, held("3"))
			d.SetObject(held("3"))
		}, false, 1},
		{"told of before the answer", func(d *DeviceObjects, g *ClaimAllocation) {
			d.SetObject(held("3"))
			d.AllocationWritten(g, held("3"))
		}, false, 1},
		{"written, and freed since", func(d *DeviceObjects, g *ClaimAllocation) {
			d.AllocationWritten(g, held("3"))
			d.SetObject(version(schedulertest.DeviceClaim("c", 1), "4"))
		}, false, 0},
		{"written, and taken back too late", func(d *DeviceObjects, g *ClaimAllocation) {
			d.AllocationWritten(g, held("3"))
			d.RevertAllocations([]ClaimAllocation{*g})
		}, true, 1},
		{"deleted", func(d *DeviceObjects, g *ClaimAllocation) {
			d.DeleteObject(schedulertest.DeviceClaim("c", 1))
		}, false, 0},
		{"another claim of the name", func(d *DeviceObjects, g *ClaimAllocation) {
			d.SetObject(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "new"}})
		}, false, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := NewDeviceObjects()
			claim := version(schedulertest.DeviceClaim("c", 1), "1")
			d.SetObject(claim)
			grants := []ClaimAllocation{{Claim: claim, Allocation: held("").Status.Allocation}}
			d.AssumeAllocations(grants)
			test.events(&d, &grants[0])
			if assumed := d.Assumed["default/c"] != nil; assumed != test.assumed {
				t.Errorf("assumed is %t", assumed)
			}
			if taken := d.Allocated().AllocatedDevices.Len(); taken != test.taken {
				t.Errorf("%d devices are taken, want %d", taken, test.taken)
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
