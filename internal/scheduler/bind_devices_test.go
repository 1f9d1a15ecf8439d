package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
	"skiff/test/metrics"
)

// Who asks for an extended resource gets a claim for devices, written before the pod is bound.
func TestExtendedResourceClaimIsMade(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addObjects(schedulertest.DeviceSlice("a", 1), schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0))
		f.addPod(schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")))
		f.addPod(schedulertest.TestPod("q", schedulertest.Requesting(schedulertest.Gpu, "1")))
		f.pass(10 * time.Second)
		first, second := "p", "q"
		if f.nodeOf("p") == "" {
			first, second = "q", "p"
		}
		if f.nodeOf(first) != "a" || f.nodeOf(second) != "" {
			t.Fatalf("p is on %q, q on %q, and there is one device", f.nodeOf("p"), f.nodeOf("q"))
		}
		claim := f.onlyClaim()
		if claim == nil || claim.GenerateName != first+"-extended-resources-" || claim.Status.Allocation == nil || claim.Status.Allocation.AllocationTimestamp == nil ||
			len(claim.Status.ReservedFor) != 1 || len(claim.Finalizers) != 1 || !snapshot.IsExtendedResourceClaim(claim) || claim.OwnerReferences[0].Name != first {
			t.Errorf("claim %+v", claim)
		}
		if patches := strings.Join(f.patchesOf(first), " "); !strings.Contains(patches, `"resourceClaimName":"`+claim.Name+`"`) || !strings.Contains(patches, `"requestName":"container-0-request-0"`) {
			t.Errorf("the status of the pod is %s", patches)
		}
		f.notify(func() {
			if n := len(f.scheduler.snapshot.Devices.Assumed); n != 0 {
				t.Errorf("%d claims are still assumed", n)
			}
		})
		// The device is free when the claim has gone with its pod.
		f.removePod(first)
		if err := f.DeleteResourceClaim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		f.pass(time.Minute)
		if f.nodeOf(second) != "a" {
			t.Errorf("the other pod is on %q: %v", f.nodeOf(second), f.patchesOf(second))
		}
	})
}

// A claim that was made for a pod that could not be bound goes, and the pod gets another.
func TestExtendedResourceClaimIsTakenBack(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addObjects(schedulertest.DeviceSlice("a", 1), schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0))
		tries := 0
		f.mu.Lock()
		f.refuse = func(*corev1.Pod, string) error {
			if tries++; tries == 1 {
				return errors.New("not now")
			}
			return nil
		}
		f.mu.Unlock()
		f.addPod(schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")))
		f.pass(2 * time.Minute)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q: %v", f.nodeOf("p"), f.patchesOf("p"))
		}
		if f.onlyClaim() == nil {
			t.Error("there is no claim")
		}
	})
}

// withBindingConditions has one node with a device that must be attached before a pod is bound.
func withBindingConditions(t *testing.T, run func(f *fakeServer)) {
	t.Helper()
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		slice := schedulertest.DeviceSlice("a", 2)
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].BindingConditions, slice.Spec.Devices[i].BindingFailureConditions = []string{"Attached"}, []string{"Broken"}
		}
		claim := schedulertest.DeviceClaim("claim", 1)
		claim.UID, claim.ResourceVersion = "claim", "1"
		f.addObjects(slice, schedulertest.ClassForExtendedResource("class", "", 0), claim)
		f.addPod(schedulertest.TestPod("p", schedulertest.Claiming("claim")))
		f.pass(10 * time.Second)
		if f.nodeOf("p") != "" {
			t.Fatal("the pod was bound before its device was attached")
		}
		if claim := f.onlyClaim(); claim.Status.Allocation == nil || len(claim.Status.ReservedFor) != 1 {
			t.Fatalf("claim %+v", claim.Status)
		}
		run(f)
	})
}

// report is what a driver tells of the claim's device.
func (f *fakeServer) report(condition string) {
	claim := f.onlyClaim()
	r := claim.Status.Allocation.Devices.Results[0]
	claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device, Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}}}
	f.storeClaim(claim)
}

func TestPodWaitsForItsDevice(t *testing.T) {
	withBindingConditions(t, func(f *fakeServer) {
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" || f.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q", f.nodeOf("p"))
		}
	})
}

// A device that fails is given back, and the pod tried with what there is then.
func TestDeviceFails(t *testing.T) {
	withBindingConditions(t, func(f *fakeServer) {
		f.report("Broken")
		f.pass(5 * time.Minute)
		claim := f.onlyClaim()
		if claim.Status.Allocation == nil || len(claim.Status.Devices) != 0 || len(claim.Status.ReservedFor) != 1 {
			t.Fatalf("the pod does not wait for another device: %+v", claim.Status)
		}
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q: %v", f.nodeOf("p"), f.patchesOf("p"))
		}
	})
}

// Nobody waits for a device for ever.
func TestDeviceIsNeverReady(t *testing.T) {
	withBindingConditions(t, func(f *fakeServer) {
		began := f.onlyClaim().Status.Allocation.AllocationTimestamp.Time
		f.pass(15 * time.Minute)
		claim := f.onlyClaim()
		if claim.Status.Allocation == nil || !claim.Status.Allocation.AllocationTimestamp.After(began.Add(10*time.Minute)) {
			t.Fatalf("the claim was not tried anew: %+v", claim.Status)
		}
		if patches := strings.Join(f.patchesOf("p"), " "); !strings.Contains(patches, "device binding timeout") {
			t.Errorf("the status of the pod is %s", patches)
		}
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q", f.nodeOf("p"))
		}
	})
}

// deviceServer is a fakeServer whose writes of claims may fail, and which notes them.
type deviceServer struct {
	*fakeServer
	// fail tells what is wrong with a write, by the kind of write and the claim's name; nil is nothing.
	fail func(write string, claim *resourcev1.ResourceClaim) error
	// wrote are the writes that were tried.
	wrote []string
}

func (d *deviceServer) try(write string, claim *resourcev1.ResourceClaim) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrote = append(d.wrote, write+" "+claim.Name)
	if d.fail == nil {
		return nil
	}
	return d.fail(write, claim)
}

func (d *deviceServer) writes() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.wrote, ", ")
}

func (d *deviceServer) failing(fail func(write string, claim *resourcev1.ResourceClaim) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

func (d *deviceServer) UpdateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := d.try("update", claim); err != nil {
		return nil, err
	}
	return d.fakeServer.UpdateResourceClaim(ctx, claim)
}

func (d *deviceServer) UpdateResourceClaimStatus(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := d.try("status", claim); err != nil {
		return nil, err
	}
	return d.fakeServer.UpdateResourceClaimStatus(ctx, claim)
}

func (d *deviceServer) CreateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := d.try("create", claim); err != nil {
		return nil, err
	}
	return d.fakeServer.CreateResourceClaim(ctx, claim)
}

func (d *deviceServer) PatchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	if strings.Contains(string(patch), "extendedResourceClaimStatus") {
		if err := d.try("pod", schedulertest.DevicesClaim(pod.Name)); err != nil {
			return err
		}
	}
	return d.fakeServer.PatchStatus(ctx, pod, patch)
}

func (d *deviceServer) DeleteResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	if err := d.try("delete", claim); err != nil {
		return err
	}
	return d.fakeServer.DeleteResourceClaim(ctx, claim)
}

func (d *deviceServer) GetResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := d.try("get", claim); err != nil {
		return nil, err
	}
	return d.fakeServer.GetResourceClaim(ctx, claim)
}

// claimNow is a claim as the server has it.
func (d *deviceServer) claimNow(name string) (found *resourcev1.ResourceClaim) {
	d.notify(func() { found = d.scheduler.snapshot.Devices.Claims["default/"+name] })
	return found
}

// users are the pods a claim is reserved for.
func (d *deviceServer) users(name string) string {
	var names []string
	if c := d.claimNow(name); c != nil {
		for _, r := range c.Status.ReservedFor {
			names = append(names, string(r.UID))
		}
	}
	return strings.Join(names, " ")
}

// withDeviceServer is a test with a class and a node a that has two devices.
func withDeviceServer(t *testing.T, known schedulertest.Objects, run func(*deviceServer)) {
	t.Helper()
	withFakeServer(t, nil, func(f *fakeServer) {
		d := &deviceServer{fakeServer: f}
		f.notify(func() { f.scheduler.binder.Writer = d })
		f.addNode(schedulertest.TestNode("a"))
		f.addObjects(append(schedulertest.Objects{schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0), schedulertest.DeviceSlice("a", 2)}, known...)...)
		run(d)
	})
}

func conflict(claim *resourcev1.ResourceClaim) error {
	return apierrors.NewConflict(resourcev1.Resource("resourceclaims"), claim.Name, errors.New("the object has been modified"))
}

// times fails so many times, then no more.
func times(n int, write string, fail func(*resourcev1.ResourceClaim) error) func(string, *resourcev1.ResourceClaim) error {
	return func(w string, claim *resourcev1.ResourceClaim) error {
		if w != write || n == 0 {
			return nil
		}
		n--
		return fail(claim)
	}
}

// What is written for a claim, in order, and what the claim is then.
func TestDevicesAreBound(t *testing.T) {
	finalized := func(c *resourcev1.ResourceClaim) { c.Finalizers = []string{resourcev1.Finalizer} }
	open := func(options ...schedulertest.DeviceClaimOption) *resourcev1.ResourceClaim {
		return schedulertest.DevicesClaim("x", append([]schedulertest.DeviceClaimOption{schedulertest.Exactly("r", "class", 1, "")}, options...)...)
	}
	for _, test := range []struct {
		what   string
		claim  *resourcev1.ResourceClaim
		fail   func(string, *resourcev1.ResourceClaim) error
		writes string
		users  string
	}{
		{"a claim without an allocation gets a finalizer, an allocation and a reservation", open(), nil, "update x, status x", "p"},
		{"an existing finalizer is not written again", open(finalized), nil, "status x", "p"},
		{"an allocated claim gets a reservation", open(schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a")), nil, "status x", "p"},
		{"other reservations are kept", open(schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ReservedFor("q", "s")), nil, "status x", "q s p"},
		{"an existing reservation is not written again", open(schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ReservedFor("q", "p")), nil, "", "q p"},
		{"a conflict with the finalizer is retried", open(), times(1, "update", conflict), "update x, get x, update x, status x", "p"},
		{"a conflict with the status is retried", open(), times(1, "status", conflict), "update x, status x, get x, status x", "p"},
		{"four conflicts are retried", open(schedulertest.AllocatedDevice("r", "a", "device-0")), times(4, "status", conflict), "status x, get x, status x, get x, status x, get x, status x, get x, status x", "p"},
	} {
		t.Run(test.what, func(t *testing.T) {
			withDeviceServer(t, schedulertest.Objects{test.claim}, func(d *deviceServer) {
				d.failing(test.fail)
				d.addPod(schedulertest.TestPod("p", schedulertest.Claiming("x")))
				d.pass(500 * time.Millisecond)
				if d.nodeOf("p") != "a" || d.boundTimes("p") != 1 {
					t.Errorf("the pod is on %q: %v", d.nodeOf("p"), d.patchesOf("p"))
				}
				if got := d.writes(); got != test.writes {
					t.Errorf("writes %s, want %s", got, test.writes)
				}
				c := d.claimNow("x")
				if got := d.users("x"); got != test.users || c.Status.Allocation == nil {
					t.Errorf("users %q, want %q; %+v", got, test.users, c.Status)
				}
				if wrote := strings.Contains(test.writes, "status"); wrote && c.Status.Allocation.AllocationTimestamp == nil {
					t.Error("the allocation has no timestamp")
				}
				if fresh := test.claim.Status.Allocation == nil; fresh && !slices.Equal(c.Finalizers, []string{resourcev1.Finalizer}) {
					t.Errorf("finalizers %v", c.Finalizers)
				}
				if len(test.claim.Status.ReservedFor) > 2 || test.claim.Status.Allocation != nil && test.claim.Status.Allocation.AllocationTimestamp != nil {
					t.Error("the server's own object was changed")
				}
			})
		})
	}
}

// What keeps a claim from being written keeps the pod from its node, is reported, and is tried again.
func TestDevicesAreNotBound(t *testing.T) {
	open := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))
	held := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"))
	no := func(*resourcev1.ResourceClaim) error { return errors.New("no") }
	for _, test := range []struct {
		what    string
		claim   *resourcev1.ResourceClaim
		fail    func(d *deviceServer) func(string, *resourcev1.ResourceClaim) error
		patches string
	}{
		{"the finalizer is not written", open, func(*deviceServer) func(string, *resourcev1.ResourceClaim) error { return times(1, "update", no) },
			`running PreBind plugin \"DynamicResources\": add finalizer to claim default/x: no`},
		{"the allocation is not written", open, func(*deviceServer) func(string, *resourcev1.ResourceClaim) error { return times(1, "status", no) },
			`running PreBind plugin \"DynamicResources\": add allocation and reservation to claim default/x: no`},
		{"the reservation is not written", held, func(*deviceServer) func(string, *resourcev1.ResourceClaim) error { return times(1, "status", no) },
			`running PreBind plugin \"DynamicResources\": add reservation to claim default/x: no`},
		{"five conflicts", held, func(*deviceServer) func(string, *resourcev1.ResourceClaim) error { return times(5, "status", conflict) },
			`running PreBind plugin \"DynamicResources\": add reservation to claim default/x: Operation cannot be fulfilled`},
		{"the claim cannot be read after a conflict", held, func(*deviceServer) func(string, *resourcev1.ResourceClaim) error {
			failed := false
			return func(write string, claim *resourcev1.ResourceClaim) error {
				switch {
				case write == "status" && !failed:
					failed = true
					return conflict(claim)
				case write == "get":
					return errors.New("gone")
				}
				return nil
			}
		}, `get updated claim after conflict: gone`},
		{"the claim is allocated meanwhile", open, func(d *deviceServer) func(string, *resourcev1.ResourceClaim) error {
			return times(1, "update", func(claim *resourcev1.ResourceClaim) error {
				go d.storeClaim(schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-1")))
				return conflict(claim)
			})
		}, `claim default/x got allocated elsewhere in the meantime`},
		{"the claim is deleted meanwhile", held, func(d *deviceServer) func(string, *resourcev1.ResourceClaim) error {
			return times(1, "status", func(claim *resourcev1.ResourceClaim) error {
				go func() {
					leaving := held.DeepCopy()
					schedulertest.ClaimBeingDeleted(leaving)
					d.storeClaim(leaving)
					time.Sleep(time.Second)
					_ = d.fakeServer.DeleteResourceClaim(context.Background(), leaving) // it has no way to fail
					again := held.DeepCopy()
					again.UID = "again"
					d.storeClaim(again)
				}()
				return conflict(claim)
			})
		}, `claim default/x got deleted in the meantime`},
		{"the claim is deallocated meanwhile", held, func(d *deviceServer) func(string, *resourcev1.ResourceClaim) error {
			return times(1, "status", func(claim *resourcev1.ResourceClaim) error {
				go d.storeClaim(schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")))
				return conflict(claim)
			})
		}, `claim default/x got deallocated elsewhere in the meantime`},
	} {
		t.Run(test.what, func(t *testing.T) {
			withDeviceServer(t, schedulertest.Objects{test.claim}, func(d *deviceServer) {
				d.failing(test.fail(d))
				d.addPod(schedulertest.TestPod("p", schedulertest.Claiming("x")))
				d.pass(400 * time.Millisecond)
				if patches := strings.Join(d.patchesOf("p"), " "); !strings.Contains(patches, test.patches) || d.nodeOf("p") != "" {
					t.Errorf("the pod is on %q and its status is %s", d.nodeOf("p"), patches)
				}
				d.failing(nil)
				d.pass(time.Minute)
				if d.nodeOf("p") != "a" || d.users("x") != "p" {
					t.Errorf("the pod is on %q: %v; the claim is used by %q", d.nodeOf("p"), d.patchesOf("p"), d.users("x"))
				}
				d.notify(func() {
					if n := len(d.scheduler.snapshot.Devices.Assumed); n != 0 {
						t.Errorf("%d claims are still assumed", n)
					}
				})
			})
		})
	}
}

// A pod that cannot be bound after all no longer uses its claims, whether it came to use them now or before. Others still do.
func TestReservationsAreDropped(t *testing.T) {
	for _, test := range []struct {
		what  string
		claim *resourcev1.ResourceClaim
		fail  func(string, *resourcev1.ResourceClaim) error
		want  string
	}{
		{"reserved in this attempt", schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")), nil, ""},
		{"reserved before", schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ReservedFor("p")), nil, ""},
		{"other reservations are kept", schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ReservedFor("q", "p", "s")), nil, "q s"},
		{"after a conflict", schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ReservedFor("p", "q")), times(1, "status", conflict), "q"},
	} {
		t.Run(test.what, func(t *testing.T) {
			withDeviceServer(t, schedulertest.Objects{test.claim}, func(d *deviceServer) {
				d.failing(test.fail)
				d.mu.Lock()
				d.refuse = func(*corev1.Pod, string) error { return errors.New("not now") }
				d.mu.Unlock()
				d.addPod(schedulertest.TestPod("p", schedulertest.Claiming("x")))
				d.pass(500 * time.Millisecond)
				if got := d.users("x"); got != test.want || d.nodeOf("p") != "" {
					t.Errorf("users %q, want %q; the pod is on %q", got, test.want, d.nodeOf("p"))
				}
				if c := d.claimNow("x"); c.Status.Allocation == nil {
					t.Error("the devices were given back with the reservation")
				}
			})
		})
	}
}

// Devices that keep a pod from where it could run are given back when nobody else uses them, and no others.
func TestIdleDevicesAreFreed(t *testing.T) {
	const freed, deleted = "deallocation of ResourceClaim completed", "deletion of ResourceClaim completed"
	full := schedulertest.TestPod("full", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4"))
	at := func(node string, options ...schedulertest.DeviceClaimOption) *resourcev1.ResourceClaim {
		return schedulertest.DevicesClaim("x", append([]schedulertest.DeviceClaimOption{schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", node, "device-0"), schedulertest.AllocatedNodes(node)}, options...)...)
	}
	wants := schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.RequestingCPU("1"))
	for _, test := range []struct {
		what    string
		known   schedulertest.Objects
		running []*corev1.Pod
		pod     *corev1.Pod
		patches string // what was done
		held    bool   // the claim x still has devices
	}{
		{"an allocation on a full node, and another node is free", schedulertest.Objects{at("a")}, []*corev1.Pod{full}, wants, freed, false},
		{"an allocation of an earlier attempt", schedulertest.Objects{at("a", schedulertest.ReservedFor("p"))}, []*corev1.Pod{full}, wants, freed, false},
		{"another pod has the reservation", schedulertest.Objects{at("a", schedulertest.ReservedFor("q"))}, []*corev1.Pod{full}, wants, "", true},
		{"another pod has a reservation too", schedulertest.Objects{at("a", schedulertest.ReservedFor("p", "q"))}, []*corev1.Pod{full}, wants, "", true},
		{"the allocation does not restrict nodes", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"))}, []*corev1.Pod{full, schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))}, wants, "", true},
		{"all nodes are full", schedulertest.Objects{at("a")}, []*corev1.Pod{full, schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequestingCPU("4"))}, wants, "", true},
		{"another claim cannot be allocated", schedulertest.Objects{at("a"), schedulertest.DevicesClaim("y", schedulertest.Exactly("r", "class", 9, ""))}, nil, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), "", true},
		{"only the claim that restricts the nodes is deallocated", schedulertest.Objects{at("a"), schedulertest.DevicesClaim("y", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("a", "b"))}, []*corev1.Pod{full}, schedulertest.TestPod("p", schedulertest.Claiming("y"), schedulertest.Claiming("x"), schedulertest.RequestingCPU("1")), freed, false},
		{"the device failed", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.BindingCondition(0, "Broken"))}, nil, wants, freed, false},
		{"the binding timeout has passed", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.BindingCondition(50*365*24*time.Hour))}, nil, wants, freed, false}, // the test begins in 2000
		{"the device failed, and another pod has a reservation", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.BindingCondition(0, "Broken"), schedulertest.ReservedFor("q"))}, nil, wants, "", true},
		{"another of its claims is missing", schedulertest.Objects{at("a")}, []*corev1.Pod{full}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("missing")), "", true},
		{"a claim of an earlier attempt for resources", schedulertest.Objects{at("a"), schedulertest.DevicesClaim("p-old", schedulertest.Exactly("r", "class", 1, ""), schedulertest.OwnedBy("p"), schedulertest.ExtendedResourceClaim)}, nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), deleted, true},
		{"a claim of an earlier attempt that holds devices", schedulertest.Objects{at("a"), schedulertest.DevicesClaim("p-old", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "b", "device-1"), schedulertest.AllocatedNodes("b"), schedulertest.OwnedBy("p"), schedulertest.ExtendedResourceClaim)}, nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), deleted, true},
		{"a claim of another pod's attempt", schedulertest.Objects{at("a"), schedulertest.DevicesClaim("q-old", schedulertest.Exactly("r", "class", 1, ""), schedulertest.OwnedBy("q"), schedulertest.ExtendedResourceClaim)}, nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "9")), "", true},
	} {
		t.Run(test.what, func(t *testing.T) {
			withDeviceServer(t, append(schedulertest.Objects{schedulertest.DeviceSlice("b", 2)}, test.known...), func(d *deviceServer) {
				d.addNode(schedulertest.TestNode("b"))
				for _, p := range test.running {
					d.addPod(p)
				}
				// Nothing is done with what was freed: the pod is only looked at.
				d.notify(func() {
					decision, err := decision.Schedule(d.scheduler.snapshot, snapshottest.PodInfo(t, test.pod), d.scheduler.profiles[corev1.DefaultSchedulerName])
					if err == nil {
						t.Errorf("goes to %s", decision.Node)
						return
					}
					if got := d.scheduler.binder.DeallocateUnusedClaims(t.Context(), d.scheduler.snapshot, decision); got != test.patches {
						t.Errorf("%q was done, want %q", got, test.patches)
					}
				})
				d.pass(time.Second)
				c := d.claimNow("x")
				if held := c.Status.Allocation != nil; held != test.held || !held && (len(c.Status.ReservedFor) > 0 || len(c.Status.Devices) > 0) {
					t.Errorf("claim %+v", c.Status)
				}
				if gone := d.claimNow("p-old") == nil; slices.ContainsFunc(test.known, func(o metav1.Object) bool { return o.GetName() == "p-old" }) && gone != (test.patches == deleted) {
					t.Errorf("the claim of the earlier attempt is gone: %t", gone)
				}
			})
		})
	}
}

// The whole way: a pod whose devices are on a full node gets others on another.
func TestPodMovesToOtherDevices(t *testing.T) {
	withDeviceServer(t, schedulertest.Objects{schedulertest.DeviceSlice("b", 1), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a"))}, func(d *deviceServer) {
		d.addNode(schedulertest.TestNode("b"))
		d.addPod(schedulertest.TestPod("full", schedulertest.OnNode("a"), schedulertest.RequestingCPU("4")))
		d.addPod(schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.RequestingCPU("1")))
		d.pass(time.Minute)
		c := d.claimNow("x")
		if d.nodeOf("p") != "b" || c.Status.Allocation.Devices.Results[0].Pool != "b" || d.users("x") != "p" {
			t.Errorf("the pod is on %q with %+v: %v", d.nodeOf("p"), c.Status, d.patchesOf("p"))
		}
		if patches := strings.Join(d.patchesOf("p"), " "); !strings.Contains(patches, "0/2 nodes are available: 1 Insufficient cpu, 1 resourceclaim not available on the node. deallocation of ResourceClaim completed") {
			t.Errorf("the status of the pod was %v", patches)
		}
	})
}

// A claim for extended resources that cannot be made, written or reported leaves nothing behind.
func TestExtendedClaimFails(t *testing.T) {
	no := func(*resourcev1.ResourceClaim) error { return errors.New("no") }
	for _, test := range []struct{ write, patches string }{
		{"create", "create claim for extended resources"}, {"update", "add finalizer to claim default/p-extended-resources-x: no"}, {"status", "add allocation and reservation to claim default/p-extended-resources-x: no"},
		{"pod", "update pod default/p ExtendedResourceClaimStatus: no"},
	} {
		t.Run(test.write, func(t *testing.T) {
			withDeviceServer(t, nil, func(d *deviceServer) {
				registry := prometheus.NewRegistry()
				counted, err := NewMetrics(registry)
				if err != nil {
					t.Fatal(err)
				}
				d.notify(func() { d.scheduler.metrics = counted })
				d.failing(times(1, test.write, no))
				d.addPod(schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "2")))
				d.pass(500 * time.Millisecond)
				if patches := strings.Join(d.patchesOf("p"), " "); !strings.Contains(patches, test.patches) || d.nodeOf("p") != "" {
					t.Errorf("the pod is on %q and its status is %s", d.nodeOf("p"), patches)
				}
				if c := d.onlyClaim(); c != nil {
					t.Errorf("a claim is left: %+v", c)
				}
				d.pass(time.Minute)
				if c := d.onlyClaim(); d.nodeOf("p") != "a" || c == nil || len(c.Status.Allocation.Devices.Results) != 2 {
					t.Errorf("the pod is on %q: %v", d.nodeOf("p"), d.patchesOf("p"))
				}
				// Without its write of the claim, the second attempt creates another.
				requests := map[string]float64{"success": 2, "failure": 0}
				if test.write == "create" {
					requests = map[string]float64{"success": 1, "failure": 1}
				}
				values := metrics.Values(t, registry)
				for status, want := range requests {
					name := "dynamic_resource_allocation_resourceclaim_creates_total{admin_access=false,owner_api_group=,owner_api_kind=Pod,status=" + status + "}"
					if values[name] != want {
						t.Errorf("%s is %v, want %v", name, values[name], want)
					}
				}
			})
		})
	}
}

// Two pods that share a claim are bound at once, though both write to it.
func TestSharedClaim(t *testing.T) {
	withDeviceServer(t, schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a"))}, func(d *deviceServer) {
		seen := map[string]bool{}
		// As a server would: only who knows the claim as it is now may write it.
		d.failing(func(write string, claim *resourcev1.ResourceClaim) error {
			if write != "status" {
				return nil
			}
			if seen[claim.ResourceVersion] {
				return conflict(claim)
			}
			seen[claim.ResourceVersion] = true
			return nil
		})
		for _, name := range []string{"p", "q", "s"} {
			d.addPod(schedulertest.TestPod(name, schedulertest.Claiming("x")))
		}
		d.pass(500 * time.Millisecond)
		users := strings.Fields(d.users("x"))
		slices.Sort(users)
		if !slices.Equal(users, []string{"p", "q", "s"}) || d.nodeOf("p") != "a" || d.nodeOf("q") != "a" || d.nodeOf("s") != "a" {
			t.Errorf("users %v; writes %s", users, d.writes())
		}
	})
}

// A pod waits for all its devices, and has a condition that it does.
func TestPodWaitsForAllItsDevices(t *testing.T) {
	waiting := func(name, device string) *resourcev1.ResourceClaim {
		return schedulertest.DevicesClaim(name, schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", device), schedulertest.BindingCondition(0))
	}
	withDeviceServer(t, schedulertest.Objects{waiting("x", "device-0"), waiting("y", "device-1")}, func(d *deviceServer) {
		d.addPod(schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")))
		d.pass(2 * time.Second)
		ready := func(name string) {
			c := d.claimNow(name).DeepCopy()
			c.Status.Devices[0].Conditions = []metav1.Condition{{Type: "Attached", Status: metav1.ConditionTrue}}
			d.storeClaim(c)
			d.pass(time.Second)
		}
		ready("x")
		if d.nodeOf("p") != "" {
			t.Error("the pod was bound when one of two devices was there")
		}
		ready("y")
		if d.nodeOf("p") != "a" || d.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q", d.nodeOf("p"))
		}
	})
}

// A claim that goes while its pod waits for devices ends the wait.
func TestClaimDeletedWhilePodWaits(t *testing.T) {
	withBindingConditions(t, func(f *fakeServer) {
		if err := f.DeleteResourceClaim(t.Context(), f.onlyClaim()); err != nil {
			t.Fatal(err)
		}
		f.pass(time.Second)
		if patches := strings.Join(f.patchesOf("p"), " "); f.nodeOf("p") != "" || !strings.Contains(patches, `could not find ResourceClaim \"default/claim\"`) {
			t.Errorf("the pod is on %q and its status is %s", f.nodeOf("p"), patches)
		}
	})
}

// A pod that goes while it waits for devices no longer uses its claim.
func TestPodDeletedWhileItWaits(t *testing.T) {
	withBindingConditions(t, func(f *fakeServer) {
		f.removePod("p")
		f.pass(time.Second)
		if c := f.onlyClaim(); len(c.Status.ReservedFor) != 0 || f.podCount() != 0 {
			t.Errorf("claim %+v, %d pods", c.Status, f.podCount())
		}
	})
}

// A pod whose claims are still to be made is not tried, and nothing is said of it: it waits for them, as it would for gates.
func TestPodWaitsForItsClaims(t *testing.T) {
	made := schedulertest.DevicesClaim("p-d", schedulertest.Exactly("r", "class", 1, ""), schedulertest.OwnedBy("p"))
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		then  func(d *deviceServer)
	}{
		{"a claim from a template", nil, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), func(d *deviceServer) {
			d.storeClaim(made)
			d.change("p", func(p *corev1.Pod) {
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "d", ResourceClaimName: &made.Name}}
			})
		}},
		{"a claim from a template, delivered after the pod's status", nil, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), func(d *deviceServer) {
			d.change("p", func(p *corev1.Pod) {
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "d", ResourceClaimName: &made.Name}}
			})
			d.notify(func() {
				d.scheduler.snapshot.SetObject(made)
				d.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Add, New: made})
			})
		}},
		{"a claim by name", nil, schedulertest.TestPod("p", schedulertest.Claiming("x")), func(d *deviceServer) {
			x := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))
			d.notify(func() {
				d.scheduler.snapshot.SetObject(x)
				d.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Add, New: x})
			})
		}},
		{"a claim that is being deleted", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.ClaimBeingDeleted)}, schedulertest.TestPod("p", schedulertest.Claiming("x")), func(d *deviceServer) {
			if err := d.fakeServer.DeleteResourceClaim(t.Context(), d.claimNow("x")); err != nil {
				t.Fatal(err)
			}
			x := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), func(c *resourcev1.ResourceClaim) { c.UID = "new" })
			d.notify(func() {
				d.scheduler.snapshot.SetObject(x)
				d.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Add, New: x})
			})
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			withDeviceServer(t, test.known, func(d *deviceServer) {
				d.addPod(test.pod)
				d.pass(10 * time.Minute)
				if patches := d.patchesOf("p"); len(patches) > 0 || d.nodeOf("p") != "" {
					t.Errorf("the pod is on %q and its status is %v", d.nodeOf("p"), patches)
				}
				d.notify(func() {
					if active, backoff, waiting, inFlight := d.scheduler.queue.Len(); active+backoff+inFlight != 0 || waiting != 1 || d.scheduler.queue.All["p"].Attempts != 0 {
						t.Errorf("%d active, %d in backoff, %d waiting, %d in flight", active, backoff, waiting, inFlight)
					}
				})
				test.then(d)
				d.pass(time.Second)
				if d.nodeOf("p") != "a" {
					t.Errorf("the pod is on %q: %v", d.nodeOf("p"), d.patchesOf("p"))
				}
			})
		})
	}
}

// With the plugins disabled, pods are bound whatever the state of their claims.
func TestPodsAreBoundWithoutThePlugins(t *testing.T) {
	off := &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{Plugins: &configv1.Plugins{MultiPoint: configv1.PluginSet{}}}}}
	for _, name := range []string{plugins.DynamicResourcesName, plugins.VolumeBindingName, plugins.VolumeRestrictionsName, plugins.VolumeZoneName, plugins.NodeVolumeLimitsName} {
		set := &off.Profiles[0].Plugins.MultiPoint
		set.Disabled = append(set.Disabled, configv1.Plugin{Name: name})
	}
	withFakeServer(t, off, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addObjects(schedulertest.StorageClaim("late"), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName))
		for name, option := range map[string]schedulertest.PodOption{"p": schedulertest.Claiming("missing"), "q": schedulertest.ClaimFromTemplate("d", ""), "r": schedulertest.UsingClaim("missing"), "s": schedulertest.UsingClaim("late")} {
			f.addPod(schedulertest.TestPod(name, option))
		}
		f.pass(time.Second)
		for _, name := range []string{"p", "q", "r", "s"} {
			if f.nodeOf(name) != "a" {
				t.Errorf("%s is on %q: %v", name, f.nodeOf(name), f.patchesOf(name))
			}
		}
		f.notify(func() {
			if n := len(f.scheduler.snapshot.Volumes.AssumedClaims); n != 0 {
				t.Errorf("%d claims are assumed", n)
			}
		})
	})
}
