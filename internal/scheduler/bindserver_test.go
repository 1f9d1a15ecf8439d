package scheduler

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
	"skiff/test/inprocess"
)

// onServer is a scheduler that writes to a real API server. It is not run: tests call its parts.
func onServer(t *testing.T) (*Scheduler, *client.Client) {
	t.Helper()
	c := inprocess.Start(t, t.Context())
	s := newFakeServer(t, nil).scheduler
	s.writer = newAPIWriter(c)
	return s, c
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
	s, c := onServer(t)
	n := s.snapshot
	n.SetNode(testNode("a"))
	n.SetObject(lateClass("late", csiName))
	for _, o := range (objects{created(t, c, storageClaim("bind")), created(t, c, storageClaim("make", claimSize("9Gi"))), created(t, c, storageVolume("v"))}) {
		n.SetObject(o)
	}
	n.volumes.volumes["v"].Status.Phase = corev1.VolumeAvailable
	plan, reasons := planFor(t, n, testPod("p", usingClaim("bind"), usingClaim("make")), "a")
	if got := planned(&plan); got != "bind=v make+" || len(reasons) > 0 {
		t.Fatalf("plan %s, %v", got, reasons)
	}
	if err := n.volumes.assume(&plan, "a"); err != nil {
		t.Fatal(err)
	}
	pv, err := s.writer.updateVolume(t.Context(), plan.bindings[0].volume)
	if err != nil {
		t.Fatal(err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Name != "bind" || ref.UID != n.volumes.claims["default/bind"].UID || pv.Annotations[volume.AnnBoundByController] != "yes" || !newer(pv, plan.bindings[0].volume) {
		t.Errorf("volume %+v", pv)
	}
	claim, err := s.writer.updateClaim(t.Context(), plan.provisions[0].claim)
	if err != nil || claim.Annotations[volume.AnnSelectedNode] != "a" || !newer(claim, plan.provisions[0].claim) {
		t.Errorf("claim %+v, %v", claim, err)
	}
	// Who did not know of these writes cannot write over them.
	if _, err := s.writer.updateVolume(t.Context(), plan.bindings[0].volume); !apierrors.IsConflict(err) {
		t.Errorf("the volume was written twice: %v", err)
	}
	if _, err := s.writer.updateClaim(t.Context(), plan.provisions[0].claim); !apierrors.IsConflict(err) {
		t.Errorf("the claim was written twice: %v", err)
	}
}

// Grants on a real server: allocation, reservation, sharing, and taking back.
func TestDevicesAreWrittenToTheServer(t *testing.T) {
	s, c := onServer(t)
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
	first := created(t, c, devicesClaim("x", exactly("r", "class", 1, "")))
	p, q := testPod("p", claiming("x")), testPod("q", claiming("x"))
	grant := claimGrant{claim: first, allocation: devicesClaim("x", holds("r", "a", "device-0"), onlyOn("a")).Status.Allocation}
	s.snapshot.SetObject(first)
	s.snapshot.devices.assume([]claimGrant{grant})
	if err := s.bindDevices(t.Context(), p, &grant); err != nil {
		t.Fatal(err)
	}
	x := now("x")
	if !slices.Equal(x.Finalizers, []string{resourcev1.Finalizer}) || x.Status.Allocation == nil || x.Status.Allocation.AllocationTimestamp == nil || !slices.Equal(users(x), []string{"pods/p"}) || grant.claim.ResourceVersion != x.ResourceVersion {
		t.Fatalf("claim %+v", x)
	}
	// The other pod's knowledge is old: the claim as it was before p came to use it.
	second := claimGrant{claim: x}
	third := claimGrant{claim: x}
	if err := s.bindDevices(t.Context(), q, &second); err != nil {
		t.Fatal(err)
	}
	if err := s.bindDevices(t.Context(), testPod("s", claiming("x")), &third); err != nil {
		t.Fatalf("who was slower gave up: %v", err)
	}
	if got := users(now("x")); !slices.Equal(got, []string{"pods/p", "pods/q", "pods/s"}) {
		t.Errorf("users %v", got)
	}
	// Who gives back what it knows of from before leaves the others alone.
	s.dropReservation(t.Context(), p, x)
	if got := users(now("x")); !slices.Equal(got, []string{"pods/q", "pods/s"}) || now("x").Status.Allocation == nil {
		t.Errorf("users %v", got)
	}
	// A claim that has devices by now is not given others.
	late := claimGrant{claim: first, allocation: grant.allocation}
	if err := s.bindDevices(t.Context(), testPod("u"), &late); err == nil || err.Error() != "claim default/x got allocated elsewhere in the meantime" {
		t.Errorf("given twice: %v", err)
	}
}

// The claim for extended resources is made under a name the server gives it, and goes with its finalizer.
func TestExtendedClaimOnTheServer(t *testing.T) {
	s, c := onServer(t)
	pod := created(t, c, testPod("p", asks(gpu, "1"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}))
	s.snapshot.SetNode(testNode("a"))
	for _, o := range (objects{classStandingFor("class", string(gpu), 0), deviceSlice("a", 1)}) {
		s.snapshot.SetObject(o)
	}
	request, refusal := devicesRule(t).request(s.snapshot, infoOf(t, pod))
	if refusal != nil {
		t.Fatal(refusal)
	}
	grants, refusal := request.on(s.snapshot, 0)
	if refusal != nil || len(grants) != 1 {
		t.Fatalf("%v, %v", grants, refusal)
	}
	s.snapshot.devices.assume(grants)
	if err := s.bindDevices(t.Context(), pod, &grants[0]); err != nil {
		t.Fatal(err)
	}
	made := grants[0].claim
	stored, err := client.For[*corev1.Pod](c).Get(t.Context(), "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	status := stored.Status.ExtendedResourceClaimStatus
	if status == nil || status.ResourceClaimName != made.Name || len(status.RequestMappings) != 1 || status.RequestMappings[0].RequestName != "container-0-request-0" || status.RequestMappings[0].ContainerName != "c" || status.RequestMappings[0].ResourceName != string(gpu) {
		t.Errorf("the pod says %+v, the claim is %s", status, made.Name)
	}
	if made.Status.Allocation == nil || len(made.Status.ReservedFor) != 1 || !metav1.IsControlledBy(made, pod) {
		t.Errorf("claim %+v", made)
	}
	s.deleteClaim(t.Context(), made)
	if _, err := s.writer.getDeviceClaim(t.Context(), made); !apierrors.IsNotFound(err) {
		t.Errorf("the claim is still there: %v", err)
	}
	// Another claim of that name would not be deleted in its place.
	other := created(t, c, devicesClaim("other", exactly("r", "class", 1, "")))
	other.UID = "somebody-else"
	if err := s.writer.deleteDeviceClaim(t.Context(), other); !apierrors.IsConflict(err) {
		t.Errorf("deleted by its name alone: %v", err)
	}
}
