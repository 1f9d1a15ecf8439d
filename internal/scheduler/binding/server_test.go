package binding

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
	"skiff/test/inprocess"
)

// onServer is a Binder that writes to a real API server, its snapshot, and a client.
func onServer(t *testing.T) (*Binder, *snapshot.Snapshot, *client.Client) {
	t.Helper()
	c := inprocess.Start(t, t.Context())
	cluster := snapshot.NewSnapshot()
	return newTestBinder(cluster, NewWriter(c)), cluster, c
}

// created stores an object and returns it as the server has it.
func created[T interface {
	kind.Object
	DeepCopy() T
}](t *testing.T, c *client.Client, object T) T {
	t.Helper()
	object = object.DeepCopy()
	object.SetUID("")
	object.SetResourceVersion("")
	made, err := client.For[T](c).Create(t.Context(), object, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.DeepCopy()
}

// A plan for volumes, written to a real server: it takes what we assume, and refuses what is out of date.
func TestVolumesAreWrittenToTheServer(t *testing.T) {
	b, n, c := onServer(t)
	n.SetNode(schedulertest.TestNode("a"))
	n.SetObject(schedulertest.WaitForConsumerClass("late", schedulertest.CsiName))
	for _, o := range (schedulertest.Objects{created(t, c, schedulertest.StorageClaim("bind")), created(t, c, schedulertest.StorageClaim("make", schedulertest.ClaimSize("9Gi"))), created(t, c, schedulertest.StorageVolume("v"))}) {
		n.SetObject(o)
	}
	n.Volumes.Volumes["v"].Status.Phase = corev1.VolumeAvailable
	plan, reasons := planFor(t, n, schedulertest.TestPod("p", schedulertest.UsingClaim("bind"), schedulertest.UsingClaim("make")), "a")
	if got := planned(&plan); got != "bind=v make+" || len(reasons) > 0 {
		t.Fatalf("plan %s, %v", got, reasons)
	}
	if err := n.Volumes.AssumePodVolumes(&plan, "a"); err != nil {
		t.Fatal(err)
	}
	pv, err := b.Writer.UpdatePersistentVolume(t.Context(), plan.StaticBindings[0].Volume)
	if err != nil {
		t.Fatal(err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Name != "bind" || ref.UID != n.Volumes.Claims["default/bind"].UID || pv.Annotations[volume.AnnBoundByController] != "yes" || !snapshot.IsNewer(pv, plan.StaticBindings[0].Volume) {
		t.Errorf("volume %+v", pv)
	}
	claim, err := b.Writer.UpdatePersistentVolumeClaim(t.Context(), plan.DynamicProvisions[0].Claim)
	if err != nil || claim.Annotations[volume.AnnSelectedNode] != "a" || !snapshot.IsNewer(claim, plan.DynamicProvisions[0].Claim) {
		t.Errorf("claim %+v, %v", claim, err)
	}
	// Who did not know of these writes cannot write over them.
	if _, err := b.Writer.UpdatePersistentVolume(t.Context(), plan.StaticBindings[0].Volume); !apierrors.IsConflict(err) {
		t.Errorf("the volume was written twice: %v", err)
	}
	if _, err := b.Writer.UpdatePersistentVolumeClaim(t.Context(), plan.DynamicProvisions[0].Claim); !apierrors.IsConflict(err) {
		t.Errorf("the claim was written twice: %v", err)
	}
}

// Grants on a real server: allocation, reservation, sharing, and taking back.
func TestDevicesAreWrittenToTheServer(t *testing.T) {
	b, cluster, c := onServer(t)
	claims := client.For[*resourcev1.ResourceClaim](c)
	now := func(name string) *resourcev1.ResourceClaim {
		t.Helper()
		claim, err := claims.Get(t.Context(), "default", name)
		if err != nil {
			t.Fatal(err)
		}
		return claim
	}
	users := func(claim *resourcev1.ResourceClaim) (names []string) {
		for _, r := range claim.Status.ReservedFor {
			names = append(names, r.Resource+"/"+r.Name)
		}
		return names
	}
	first := created(t, c, schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")))
	p, q := schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.TestPod("q", schedulertest.Claiming("x"))
	grant := snapshot.ClaimAllocation{Claim: first, Allocation: schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a")).Status.Allocation}
	cluster.SetObject(first)
	cluster.Devices.AssumeAllocations([]snapshot.ClaimAllocation{grant})
	if err := b.bindDevices(t.Context(), p, &grant); err != nil {
		t.Fatal(err)
	}
	x := now("x")
	if !slices.Equal(x.Finalizers, []string{resourcev1.Finalizer}) || x.Status.Allocation == nil || x.Status.Allocation.AllocationTimestamp == nil || !slices.Equal(users(x), []string{"pods/p"}) || grant.Claim.ResourceVersion != x.ResourceVersion {
		t.Fatalf("claim %+v", x)
	}
	// The other pod's knowledge is old: the claim as it was before p came to use it.
	second := snapshot.ClaimAllocation{Claim: x}
	third := snapshot.ClaimAllocation{Claim: x}
	if err := b.bindDevices(t.Context(), q, &second); err != nil {
		t.Fatal(err)
	}
	if err := b.bindDevices(t.Context(), schedulertest.TestPod("s", schedulertest.Claiming("x")), &third); err != nil {
		t.Fatalf("who was slower gave up: %v", err)
	}
	if got := users(now("x")); !slices.Equal(got, []string{"pods/p", "pods/q", "pods/s"}) {
		t.Errorf("users %v", got)
	}
	// Who gives back what it knows of from before leaves the others alone.
	b.dropReservation(t.Context(), p, x)
	if got := users(now("x")); !slices.Equal(got, []string{"pods/q", "pods/s"}) || now("x").Status.Allocation == nil {
		t.Errorf("users %v", got)
	}
	// A claim that has devices by now is not given others.
	late := snapshot.ClaimAllocation{Claim: first, Allocation: grant.Allocation}
	if err := b.bindDevices(t.Context(), schedulertest.TestPod("u"), &late); err == nil || err.Error() != "claim default/x got allocated elsewhere in the meantime" {
		t.Errorf("given twice: %v", err)
	}
}

// The claim for extended resources is made under a name the server gives it, and goes with its finalizer.
func TestExtendedClaimOnTheServer(t *testing.T) {
	b, cluster, c := onServer(t)
	pod := created(t, c, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}))
	cluster.SetNode(schedulertest.TestNode("a"))
	for _, o := range (schedulertest.Objects{schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0), schedulertest.DeviceSlice("a", 1)}) {
		cluster.SetObject(o)
	}
	request, refusal := plugins.DefaultProfile().DynamicResources.PodDevices(cluster, snapshottest.PodInfo(t, pod))
	if refusal != nil {
		t.Fatal(refusal)
	}
	grants, refusal := request.AllocateOn(cluster, 0)
	if refusal != nil || len(grants) != 1 {
		t.Fatalf("%v, %v", grants, refusal)
	}
	cluster.Devices.AssumeAllocations(grants)
	if err := b.bindDevices(t.Context(), pod, &grants[0]); err != nil {
		t.Fatal(err)
	}
	made := grants[0].Claim
	stored, err := client.For[*corev1.Pod](c).Get(t.Context(), "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	status := stored.Status.ExtendedResourceClaimStatus
	if status == nil || status.ResourceClaimName != made.Name || len(status.RequestMappings) != 1 || status.RequestMappings[0].RequestName != "container-0-request-0" || status.RequestMappings[0].ContainerName != "c" || status.RequestMappings[0].ResourceName != string(schedulertest.Gpu) {
		t.Errorf("the pod says %+v, the claim is %s", status, made.Name)
	}
	if made.Status.Allocation == nil || len(made.Status.ReservedFor) != 1 || !metav1.IsControlledBy(made, pod) {
		t.Errorf("claim %+v", made)
	}
	b.deleteClaim(t.Context(), made)
	if _, err := b.Writer.GetResourceClaim(t.Context(), made); !apierrors.IsNotFound(err) {
		t.Errorf("the claim is still there: %v", err)
	}
	// Another claim of that name would not be deleted in its place.
	other := created(t, c, schedulertest.DevicesClaim("other", schedulertest.Exactly("r", "class", 1, "")))
	other.UID = "somebody-else"
	if err := b.Writer.DeleteResourceClaim(t.Context(), other); !apierrors.IsConflict(err) {
		t.Errorf("deleted by its name alone: %v", err)
	}
}
