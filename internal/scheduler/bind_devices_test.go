package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onlyClaim is the one claim there is; nil when there is none.
func (f *fakeServer) onlyClaim() (found *resourcev1.ResourceClaim) {
	f.tell(func() {
		if n := len(f.scheduler.snapshot.devices.claims); n > 1 {
			f.t.Errorf("there are %d claims", n)
		}
		for _, claim := range f.scheduler.snapshot.devices.claims {
			found = claim.DeepCopy()
		}
	})
	return found
}

func (f *fakeServer) know(objects ...metav1.Object) {
	f.tell(func() {
		for _, o := range objects {
			f.scheduler.snapshot.SetObject(o)
		}
	})
}

// Who asks for an extended resource gets a claim for devices, written before the pod is bound.
func TestExtendedResourceClaimIsMade(t *testing.T) {
	story(t, nil, func(f *fakeServer) {
		f.addNode(testNode("a"))
		f.know(deviceSlice("a", 1), classStandingFor("class", string(gpu), 0))
		f.addPod(testPod("p", asks(gpu, "1")))
		f.addPod(testPod("q", asks(gpu, "1")))
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
			len(claim.Status.ReservedFor) != 1 || len(claim.Finalizers) != 1 || !standsForExtended(claim) || claim.OwnerReferences[0].Name != first {
			t.Errorf("claim %+v", claim)
		}
		if told := strings.Join(f.told(first), " "); !strings.Contains(told, `"resourceClaimName":"`+claim.Name+`"`) || !strings.Contains(told, `"requestName":"container-0-request-0"`) {
			t.Errorf("the pod is told %s", told)
		}
		f.tell(func() {
			if n := len(f.scheduler.snapshot.devices.assumed); n != 0 {
				t.Errorf("%d claims are still assumed", n)
			}
		})
		// The device is free when the claim has gone with its pod.
		f.removePod(first)
		if err := f.deleteDeviceClaim(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		f.pass(time.Minute)
		if f.nodeOf(second) != "a" {
			t.Errorf("the other pod is on %q: %v", f.nodeOf(second), f.told(second))
		}
	})
}

// A claim that was made for a pod that could not be bound goes, and the pod gets another.
func TestExtendedResourceClaimIsTakenBack(t *testing.T) {
	story(t, nil, func(f *fakeServer) {
		f.addNode(testNode("a"))
		f.know(deviceSlice("a", 1), classStandingFor("class", string(gpu), 0))
		tries := 0
		f.mu.Lock()
		f.refuse = func(*corev1.Pod, string) error {
			if tries++; tries == 1 {
				return errors.New("not now")
			}
			return nil
		}
		f.mu.Unlock()
		f.addPod(testPod("p", asks(gpu, "1")))
		f.pass(2 * time.Minute)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q: %v", f.nodeOf("p"), f.told("p"))
		}
		if f.onlyClaim() == nil {
			t.Error("there is no claim")
		}
	})
}

// conditionStory has one node with a device that must be attached before a pod is bound.
func conditionStory(t *testing.T, tell func(f *fakeServer)) {
	t.Helper()
	story(t, nil, func(f *fakeServer) {
		f.addNode(testNode("a"))
		slice := deviceSlice("a", 2)
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].BindingConditions, slice.Spec.Devices[i].BindingFailureConditions = []string{"Attached"}, []string{"Broken"}
		}
		claim := deviceClaim("claim", 1)
		claim.UID, claim.ResourceVersion = "claim", "1"
		f.know(slice, classStandingFor("class", "", 0), claim)
		f.addPod(testPod("p", claiming("claim")))
		f.pass(10 * time.Second)
		if f.nodeOf("p") != "" {
			t.Fatal("the pod was bound before its device was attached")
		}
		if claim := f.onlyClaim(); claim.Status.Allocation == nil || len(claim.Status.ReservedFor) != 1 {
			t.Fatalf("claim %+v", claim.Status)
		}
		tell(f)
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
	conditionStory(t, func(f *fakeServer) {
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" || f.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q", f.nodeOf("p"))
		}
	})
}

// A device that fails is given back, and the pod tried with what there is then.
func TestDeviceFails(t *testing.T) {
	conditionStory(t, func(f *fakeServer) {
		f.report("Broken")
		f.pass(5 * time.Minute)
		claim := f.onlyClaim()
		if claim.Status.Allocation == nil || len(claim.Status.Devices) != 0 || len(claim.Status.ReservedFor) != 1 {
			t.Fatalf("the pod does not wait for another device: %+v", claim.Status)
		}
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q: %v", f.nodeOf("p"), f.told("p"))
		}
	})
}

// Nobody waits for a device for ever.
func TestDeviceIsNeverReady(t *testing.T) {
	conditionStory(t, func(f *fakeServer) {
		began := f.onlyClaim().Status.Allocation.AllocationTimestamp.Time
		f.pass(15 * time.Minute)
		claim := f.onlyClaim()
		if claim.Status.Allocation == nil || !claim.Status.Allocation.AllocationTimestamp.After(began.Add(10*time.Minute)) {
			t.Fatalf("the claim was not tried anew: %+v", claim.Status)
		}
		if told := strings.Join(f.told("p"), " "); !strings.Contains(told, "device binding timeout") {
			t.Errorf("the pod is told %s", told)
		}
		f.report("Attached")
		f.pass(time.Second)
		if f.nodeOf("p") != "a" {
			t.Errorf("the pod is on %q", f.nodeOf("p"))
		}
	})
}
