package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

const driverName = "gpu.example.com"

// testNode is a node with claims and an API server.
type testNode struct {
	*testing.T
	*Claims
	client  *client.Client
	changed chan types.UID
	active  []*corev1.Pod
}

func newTestNode(t *testing.T) *testNode {
	n := &testNode{T: t, client: inprocess.Start(t, t.Context()), changed: make(chan types.UID, 100)}
	n.restart(t.TempDir())
	return n
}

// restart replaces the claims with those of the checkpoint in a directory.
func (n *testNode) restart(dir string) {
	n.Helper()
	var err error
	n.Claims, err = New(Options{
		Dir: dir, NodeName: "n0", Client: n.client, SliceRemovalDelay: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		ActivePods: func() ([]*corev1.Pod, bool) { return n.active, true }, PodChanged: func(uid types.UID) { n.changed <- uid },
	})
	if err != nil {
		n.Fatal(err)
	}
}

// run runs the claims until the test ends.
func (n *testNode) run() {
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan error, 1)
	running := n.Claims
	go func() { done <- running.Run(ctx) }()
	n.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.Error(err)
		}
	})
}

func (n *testNode) register(d *fakeDriver) {
	n.Helper()
	if err := n.Drivers().Register(n.Context(), d.plugin()); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) eventually(what string, is func() bool) {
	n.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not %s", what)
		}
	}
}

// claim creates a claim with an allocated device of each driver, reserved for pods.
func (n *testNode) claim(name string, drivers []string, pods ...*corev1.Pod) *resourceapi.ResourceClaim {
	n.Helper()
	claims := client.For[*resourceapi.ResourceClaim](n.client)
	claim, err := claims.Create(n.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "class", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(drivers))}}}},
	}}, client.WriteOptions{})
	if err != nil {
		n.Fatal(err)
	}
	claim = claim.DeepCopy()
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, driver := range drivers {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: "pool", Device: "dev0"})
	}
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	}
	if claim, err = claims.UpdateStatus(n.Context(), claim); err != nil {
		n.Fatal(err)
	}
	return claim
}

// podUsing returns a pod whose container c uses claims by name.
func podUsing(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c"}, {Name: "other"}},
	}}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: claim})
	}
	return pod
}

func (n *testNode) cdi(pod *corev1.Pod, container int) string {
	n.Helper()
	names, err := n.CDIDevices(pod, &pod.Spec.Containers[container])
	if err != nil {
		n.Error(err)
	}
	return strings.Join(names, " ")
}

// TestPrepare follows claims through two pods that share one, a restart of the kubelet and the end of both pods.
func TestPrepare(t *testing.T) {
	for _, service := range []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService} {
		t.Run(service, func(t *testing.T) {
			n := newTestNode(t)
			driver := startDriver(t, driverName, service)
			n.register(driver)
			first, second := podUsing("first", "own", "shared"), podUsing("second", "shared")
			n.claim("own", []string{driverName}, first)
			n.claim("shared", []string{driverName}, first, second)
			for _, pod := range []*corev1.Pod{first, first, second} {
				if err := n.Prepare(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			if got := driver.takeCalls(); got != "[prepare own,shared]" {
				t.Errorf("calls %s", got)
			}
			if got := n.cdi(first, 0) + "|" + n.cdi(first, 1); got != driverName+"/gpu=0|" {
				t.Errorf("devices %s", got)
			}
			if err := n.Unprepare(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			if got := driver.takeCalls(); got != "[]" {
				t.Errorf("the claim is still in use, calls %s", got)
			}
			n.restart(n.Dir)
			n.register(driver)
			if got := n.cdi(first, 0); got != driverName+"/gpu=0" {
				t.Errorf("devices after a restart: %s", got)
			}
			if err := n.Prepare(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			if got := driver.takeCalls(); got != "[prepare shared]" {
				t.Errorf("calls after a restart: %s", got)
			}
			for _, pod := range []*corev1.Pod{first, first, second, second} {
				if err := n.Unprepare(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			if got := driver.takeCalls(); got != "[unprepare own unprepare shared]" {
				t.Errorf("calls %s", got)
			}
			n.restart(n.Dir)
			if len(n.claims) > 0 {
				t.Errorf("left in the checkpoint: %v", n.claims)
			}
		})
	}
}

// TestPrepareErrors: what keeps a pod from starting, in upstream's words. A pod that failed a check needs no driver to be removed.
func TestPrepareErrors(t *testing.T) {
	n := newTestNode(t)
	driver := startDriver(t, driverName, drapb.DRAPluginService)
	n.register(driver)
	pod := podUsing("p", "c")
	reserved := n.claim("c", []string{driverName}, pod)
	n.claim("other", []string{driverName}, podUsing("q", "other"))
	n.claim("gone", []string{"gone.example.com"}, podUsing("p", "gone"))
	template := podUsing("p")
	template.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "t", ResourceClaimTemplateName: ptr.To("template")}}
	foreign := template.DeepCopy()
	foreign.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "t", ResourceClaimName: ptr.To("c")}}
	other := n.claim("mine", []string{driverName})
	for _, test := range []struct {
		what    string
		pod     *corev1.Pod
		prepare func(*drapb.NodePrepareResourcesResponse) error
		want    string
	}{
		{what: "no such claim", pod: podUsing("p", "missing"), want: `fetch ResourceClaim missing: resourceclaims.resource.k8s.io "missing" not found`},
		{what: "not created yet", pod: template, want: `pod "default/p": ResourceClaim not created yet`},
		{what: "of another owner", pod: foreign, want: "ResourceClaim default/c was not created for Pod default/p (Pod is not owner)"},
		{what: "not reserved", pod: podUsing("p", "mine"), want: "pod p (uid-p) is not allowed to use ResourceClaim mine (" + string(other.UID) + ")"},
		{what: "no driver", pod: podUsing("p", "gone"), want: "DRA driver gone.example.com is not registered"},
		{what: "the call fails", pod: pod, prepare: func(*drapb.NodePrepareResourcesResponse) error { return errors.New("broken") }, want: "NodePrepareResources: rpc error: code = Unknown desc = broken"},
		{what: "a claim fails", pod: pod, prepare: func(r *drapb.NodePrepareResourcesResponse) error {
			r.Claims[string(reserved.UID)].Error = "no such device"
			return nil
		}, want: "NodePrepareResources failed for ResourceClaim c: no such device"},
		{what: "a claim is missing", pod: pod, prepare: func(r *drapb.NodePrepareResourcesResponse) error { clear(r.Claims); return nil }, want: "NodePrepareResources skipped 1 ResourceClaims"},
		{what: "an unknown claim", pod: pod, prepare: func(r *drapb.NodePrepareResourcesResponse) error {
			r.Claims["x"] = r.Claims[string(reserved.UID)]
			delete(r.Claims, string(reserved.UID))
			return nil
		}, want: "NodePrepareResources returned result for unknown claim UID x"},
	} {
		driver.respond(test.prepare, nil)
		err := n.Prepare(t.Context(), test.pod)
		if err == nil || err.Error() != "prepare dynamic resources: "+test.want {
			t.Errorf("%s: %v, want %s", test.what, err, test.want)
		}
		if called := test.prepare != nil; called != (len(n.claims) > 0) {
			t.Errorf("%s: recorded %v", test.what, n.claims)
		}
		driver.takeCalls()
	}
	driver.respond(nil, nil)
	if err := n.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := n.cdi(pod, 0); got != driverName+"/gpu=0" {
		t.Errorf("after a retry the devices are %s", got)
	}
	for want, change := range map[string]func(*drapb.NodeUnprepareResourcesResponse) error{
		"NodeUnprepareResources: rpc error: code = Unknown desc = broken": func(*drapb.NodeUnprepareResourcesResponse) error { return errors.New("broken") },
		"NodeUnprepareResources failed for ResourceClaim c: busy": func(r *drapb.NodeUnprepareResourcesResponse) error {
			r.Claims[string(reserved.UID)].Error = "busy"
			return nil
		},
		"NodeUnprepareResources skipped 1 ResourceClaims": func(r *drapb.NodeUnprepareResourcesResponse) error { clear(r.Claims); return nil },
	} {
		driver.respond(nil, change)
		if err := n.Unprepare(t.Context(), pod); err == nil || err.Error() != "unprepare dynamic resources: "+want {
			t.Errorf("%v, want %s", err, want)
		}
		if err := n.Prepare(t.Context(), pod); err == nil || !strings.HasSuffix(err.Error(), "ResourceClaim c is being unprepared") {
			t.Errorf("another pod: %v", err)
		}
	}
	driver.respond(nil, nil)
	n.Drivers().Remove(t.Context(), driver.plugin())
	if err := n.Unprepare(t.Context(), pod); err == nil || !strings.HasSuffix(err.Error(), "DRA driver "+driverName+" is not registered") {
		t.Errorf("without its driver: %v", err)
	}
	n.register(driver)
	if err := n.Unprepare(t.Context(), pod); err != nil || len(n.claims) > 0 {
		t.Errorf("%v, left %v", err, n.claims)
	}
	collected := testutil.CollectAndCount(n.metrics.operations)
	if collected != 4 { // both operations, with and without errors
		t.Errorf("%d series of operations", collected)
	}
}

// TestReplacedClaim: a claim of the same name that is still prepared for a pod that was force-deleted keeps the new one from being prepared.
func TestReplacedClaim(t *testing.T) {
	n := newTestNode(t)
	driver := startDriver(t, driverName, drapb.DRAPluginService)
	n.register(driver)
	pod := podUsing("p", "c")
	old := n.claim("c", []string{driverName}, pod)
	if err := n.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := client.For[*resourceapi.ResourceClaim](n.client).Delete(t.Context(), "default", "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	successor := podUsing("p2", "c")
	n.claim("c", []string{driverName}, successor)
	want := "old ResourceClaim with same name c and different UID " + string(old.UID) + " still exists (previous pod force-deleted?!)"
	if err := n.Prepare(t.Context(), successor); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	n.active = []*corev1.Pod{successor}
	n.unprepareRemovedPods(t.Context())
	if err := n.Prepare(t.Context(), successor); err != nil {
		t.Error(err)
	}
	if got := driver.takeCalls(); got != "[prepare c unprepare c prepare c]" {
		t.Errorf("calls %s", got)
	}
}

// TestCheckAllocation: allocations that this kubelet cannot prepare.
func TestCheckAllocation(t *testing.T) {
	result := func(driver string, skip ...resourceapi.SkipNodeOperation) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: driver, SkipNodeOperations: skip}
	}
	const disabled = "DRAOptionalNodeOperations feature gate is disabled on kubelet"
	for _, test := range []struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    string
	}{
		{want: ""},
		{results: []resourceapi.DeviceRequestAllocationResult{result("a"), result("b")}},
		{results: []resourceapi.DeviceRequestAllocationResult{result("a"), result("a", resourceapi.SkipNodeOperationAll)}},
		{results: []resourceapi.DeviceRequestAllocationResult{result("a"), result("b", resourceapi.SkipNodeOperationAll)}, want: disabled},
		{results: []resourceapi.DeviceRequestAllocationResult{result("a", resourceapi.SkipNodeOperationNodeUnprepareResources), result("a", resourceapi.SkipNodeOperationAll)}, want: disabled},
	} {
		claim := &resourceapi.ResourceClaim{}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: test.results}}
		if err := checkAllocation(claim); fmt.Sprint(err) != test.want && (err != nil || test.want != "") {
			t.Errorf("%v: %v, want %q", test.results, err, test.want)
		}
	}
	if err := checkAllocation(&resourceapi.ResourceClaim{}); err == nil || err.Error() != "not allocated" {
		t.Errorf("%v", err)
	}
}

// TestDevicesOfContainers: a container gets the devices of its requests, of all drivers, and those of its extended resources.
func TestDevicesOfContainers(t *testing.T) {
	n := newTestNode(t)
	drivers := []*fakeDriver{startDriver(t, "a.example.com", drapb.DRAPluginService), startDriver(t, "b.example.com", drapb.DRAPluginService)}
	drivers[0].devices = []*drapb.Device{
		{PoolName: "pool", DeviceName: "dev0", RequestNames: []string{"gpu"}, CdiDeviceIds: []string{"a/gpu=0", "a/gpu=all"}},
		{PoolName: "pool", DeviceName: "dev1", RequestNames: []string{"nic"}, CdiDeviceIds: []string{"a/nic=0", "a/gpu=all"}},
		{PoolName: "pool", DeviceName: "dev2", CdiDeviceIds: []string{"a/any=0"}},
	}
	for _, d := range drivers {
		n.register(d)
	}
	pod := podUsing("p", "c")
	pod.Spec.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: "c", Request: "nic"}}
	n.claim("c", []string{"b.example.com", "a.example.com"}, pod)
	if err := n.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := n.cdi(pod, 0); got != "a/gpu=0 a/gpu=all a/nic=0 a/any=0 b.example.com/gpu=0" {
		t.Errorf("all requests: %s", got)
	}
	if got := n.cdi(pod, 1); got != "a/nic=0 a/gpu=all a/any=0" {
		t.Errorf("one request: %s", got)
	}
	if claims := n.Allocated(pod, &pod.Spec.Containers[0]); len(claims) != 1 || claims[0].Key.Name != "c" || len(claims[0].Devices) != 4 || claims[0].Devices[3].Driver != "b.example.com" {
		t.Errorf("allocated %+v", claims)
	}

	extended := podUsing("extended")
	extended.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	extended.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "e",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "gpu"}}}
	n.claim("e", []string{"a.example.com"}, extended)
	if err := n.Prepare(t.Context(), extended); err != nil {
		t.Fatal(err)
	}
	if got := n.cdi(extended, 0) + "|" + n.cdi(extended, 1); got != "a/gpu=0 a/gpu=all a/any=0|" {
		t.Errorf("extended resources: %s", got)
	}
	unprepared := podUsing("x", "x")
	if _, err := n.CDIDevices(unprepared, &unprepared.Spec.Containers[0]); err == nil || !strings.Contains(err.Error(), "unable to get claim info for ResourceClaim x in namespace default") {
		t.Errorf("not prepared: %v", err)
	}
}

// TestCheckpoint: the checkpoint has upstream's format, and one that was changed is not used.
func TestCheckpoint(t *testing.T) {
	n := newTestNode(t)
	driver := startDriver(t, driverName, drapb.DRAPluginService)
	n.register(driver)
	pod := podUsing("p", "c")
	claim := n.claim("c", []string{driverName}, pod)
	if err := n.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.Dir, "dra_manager_state")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"CLAIM\",\"ClaimName\":\"c\",\"Namespace\":\"default\",`+
		`\"PodUIDs\":{\"uid-p\":{}},\"DriverState\":{\"gpu.example.com\":{\"Devices\":[{\"PoolName\":\"pool\",\"DeviceName\":\"dev0\",\"ShareID\":null,\"RequestNames\":[\"gpu\"],`+
		`\"CDIDeviceIDs\":[\"gpu.example.com/gpu=0\"]}]}}}]}"`, "CLAIM", string(claim.UID))
	if !strings.Contains(string(text), want) {
		t.Errorf("checkpoint\n%s\nwant\n%s", text, want)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "uid-p", "uid-q", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(n.Options); err == nil || !strings.Contains(err.Error(), "checkpoint is corrupted") {
		t.Errorf("a changed checkpoint: %v", err)
	}
}

// TestRegistration: which drivers are accepted, and which of several instances is called.
func TestRegistration(t *testing.T) {
	n := newTestNode(t)
	for _, test := range []struct {
		services []string
		want     string
	}{
		{nil, "empty list of supported gRPC services (aka supported versions)"},
		{[]string{"v1alpha3.Node"}, `none of services supported by the plugin (["v1alpha3.Node"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])`},
	} {
		d := startDriver(t, driverName, test.services...)
		want := "invalid supported gRPC versions of DRA driver plugin " + driverName + " at endpoint " + d.endpoint + ": " + test.want
		if err := n.Drivers().Register(t.Context(), d.plugin()); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	old, updated := startDriver(t, driverName, drapbv1beta1.DRAPluginService), startDriver(t, driverName, drapb.DRAPluginService, drapbv1beta1.DRAPluginService)
	n.register(old)
	if err := n.Drivers().Register(t.Context(), old.plugin()); err == nil || !strings.Contains(err.Error(), "already registered") {
		t.Errorf("the same endpoint again: %v", err)
	}
	n.register(updated)
	endpoint := func() string {
		d, err := n.drivers.get(driverName)
		if err != nil {
			t.Fatal(err)
		}
		return d.endpoint
	}
	n.eventually("the newer instance is used", func() bool { return endpoint() == updated.endpoint })
	n.eventually("the older instance is connected", func() bool {
		n.drivers.mu.Lock()
		defer n.drivers.mu.Unlock()
		return n.drivers.byName[driverName][0].isConnected && n.drivers.byName[driverName][1].isConnected
	})
	updated.server.Stop()
	n.eventually("the instance that is connected is used", func() bool { return endpoint() == old.endpoint })
	n.Drivers().Remove(t.Context(), old.plugin())
	n.Drivers().Remove(t.Context(), updated.plugin())
	if _, err := n.drivers.get(driverName); err == nil {
		t.Error("the driver is still registered")
	}
}

func (n *testNode) slice(name, node, driver string) {
	n.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}, Devices: []resourceapi.Device{{Name: "dev0"}},
	}}
	if _, err := client.For[*resourceapi.ResourceSlice](n.client).Create(n.Context(), slice, client.WriteOptions{}); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) slices() string {
	n.Helper()
	list, _, err := client.For[*resourceapi.ResourceSlice](n.client).List(n.Context(), "", client.Selector{})
	if err != nil {
		n.Fatal(err)
	}
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

// TestResourceSlices: the slices of drivers that are not there are deleted: all of the node at the start, those of a driver when it is gone.
func TestResourceSlices(t *testing.T) {
	n := newTestNode(t)
	n.slice("other", "n1", driverName)
	n.slice("stale", "n0", driverName)
	n.run()
	n.eventually("only the other node's slices are left", func() bool { return n.slices() == "other" })
	driver, kept := startDriver(t, driverName, drapb.DRAPluginService), startDriver(t, "kept.example.com", drapb.DRAPluginService)
	n.register(driver)
	n.register(kept)
	n.eventually("both drivers are connected", func() bool {
		n.drivers.mu.Lock()
		defer n.drivers.mu.Unlock()
		return n.drivers.byName[driverName][0].isConnected && n.drivers.byName[kept.name][0].isConnected && len(n.drivers.removals) == 0
	})
	n.slice("a", "n0", driverName)
	n.slice("b", "n0", kept.name)
	driver.server.Stop()
	n.eventually("the slices of the stopped driver are deleted", func() bool { return n.slices() == "b other" })
	driver.start(t)
	n.eventually("the driver is connected again", func() bool {
		n.drivers.mu.Lock()
		defer n.drivers.mu.Unlock()
		return n.drivers.byName[driverName][0].isConnected
	})
	n.slice("c", "n0", driverName)
	n.Drivers().Remove(t.Context(), driver.plugin())
	n.eventually("the slices of the removed driver are deleted", func() bool { return n.slices() == "b other" })
}

// TestHealth: reports of a driver are part of a pod's status, until they are too old or the driver is gone.
func TestHealth(t *testing.T) {
	for _, service := range []string{healthpb.DRAResourceHealthService, healthpbv1alpha1.DRAResourceHealthService} {
		t.Run(service, func(t *testing.T) {
			n := newTestNode(t)
			n.run()
			driver := startDriver(t, driverName, drapb.DRAPluginService, service)
			n.register(driver)
			pod := podUsing("p", "c")
			pod.Spec.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: "c", Request: "gpu"}}
			n.claim("c", []string{driverName}, pod)
			if err := n.Prepare(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			health := func(container int) string {
				var lines []string
				for _, s := range n.Health(pod, &pod.Spec.Containers[container]) {
					for _, r := range s.Resources {
						lines = append(lines, fmt.Sprintf("%s %s %s %s", s.Name, r.ResourceID, r.Health, ptr.Deref(r.Message, "-")))
					}
				}
				return strings.Join(lines, "\n")
			}
			if got := health(0); got != "claim:c gpu.example.com/gpu=0 Unknown -" {
				t.Errorf("before a report: %s", got)
			}
			report := func(status healthpb.HealthStatus, message string) {
				driver.health <- &healthpb.NodeWatchResourcesResponse{Devices: []*healthpb.DeviceHealth{{
					Device: &healthpb.DeviceIdentifier{PoolName: "pool", DeviceName: "dev0"}, Health: status, Message: message, HealthCheckTimeoutSeconds: 600,
				}}}
				if uid := <-n.changed; uid != pod.UID {
					t.Errorf("pod %s was synced", uid)
				}
			}
			report(healthpb.HealthStatus_HEALTHY, "")
			if got := health(1); got != "claim:c/gpu gpu.example.com/gpu=0 Healthy -" {
				t.Errorf("healthy: %s", got)
			}
			report(healthpb.HealthStatus_UNHEALTHY, strings.Repeat("x", 2*corev1.ResourceHealthMessageMaxLength))
			if got := health(0); got != "claim:c gpu.example.com/gpu=0 Unhealthy "+strings.Repeat("x", corev1.ResourceHealthMessageMaxLength-3)+"..." {
				t.Errorf("unhealthy: %s", got)
			}
			n.Drivers().Remove(t.Context(), driver.plugin())
			n.eventually("the health is unknown without the driver", func() bool { return health(0) == "claim:c gpu.example.com/gpu=0 Unknown -" })
		})
	}
}

// TestHealthReports: which devices changed, what is forgotten, and how many are kept.
func TestHealthReports(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	h := newDeviceHealth(dir, log)
	now := time.Unix(1000, 0)
	device := func(name string, health corev1.ResourceHealthStatus) reportedHealth {
		return reportedHealth{PoolName: "p", DeviceName: name, Health: health}
	}
	of := func(h *deviceHealth, name string, at time.Time) corev1.ResourceHealthStatus {
		health, _ := h.of(Device{Driver: "d", Pool: "p", Name: name}, at)
		return health
	}
	healthy, unhealthy := corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy
	if changed := h.update("d", []reportedHealth{device("a", healthy), device("b", healthy)}, now); len(changed) != 2 {
		t.Errorf("new: %v", changed)
	}
	if changed := h.update("d", []reportedHealth{device("a", healthy), device("b", unhealthy)}, now); len(changed) != 1 || !changed["p/b"] {
		t.Errorf("one changed: %v", changed)
	}
	if got := of(newDeviceHealth(dir, log), "b", now); got != unhealthy {
		t.Errorf("after a restart: %s", got)
	}
	if got := of(h, "b", now.Add(healthTimeout+1)); got != corev1.ResourceHealthStatusUnknown {
		t.Errorf("too old: %s", got)
	}
	if changed := h.update("d", []reportedHealth{device("a", healthy)}, now.Add(healthTimeout)); len(changed) > 0 {
		t.Errorf("not reported, not too old: %v", changed)
	}
	if changed := h.update("d", []reportedHealth{device("a", healthy)}, now.Add(healthTimeout+1)); len(changed) != 1 || !changed["p/b"] || len(h.drivers["d"].Devices) != 1 {
		t.Errorf("forgotten: %v, kept %v", changed, h.drivers["d"].Devices)
	}
	var many []reportedHealth
	for i := range maxDevicesPerDriver + 10 {
		many = append(many, device(fmt.Sprint("x", i), healthy))
	}
	h.update("d", many, now.Add(healthTimeout+2))
	if kept := len(h.drivers["d"].Devices); kept != maxDevicesPerDriver {
		t.Errorf("kept %d devices", kept)
	}
}

// TestClaimsInUse: the number of prepared claims by driver.
func TestClaimsInUse(t *testing.T) {
	n := newTestNode(t)
	drivers := []*fakeDriver{startDriver(t, "a.example.com", drapb.DRAPluginService), startDriver(t, "b.example.com", drapb.DRAPluginService)}
	for _, d := range drivers {
		n.register(d)
	}
	pod := podUsing("p", "one", "two")
	n.claim("one", []string{"a.example.com", "b.example.com"}, pod)
	n.claim("two", []string{"a.example.com"}, pod)
	if err := n.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(n.Collectors()...)
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP dra_resource_claims_in_use The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and across all drivers (special value <any> for driver_name).
# TYPE dra_resource_claims_in_use gauge
dra_resource_claims_in_use{driver_name="<any>"} 2
dra_resource_claims_in_use{driver_name="a.example.com"} 2
dra_resource_claims_in_use{driver_name="b.example.com"} 1
`), "dra_resource_claims_in_use")
	if err != nil {
		t.Error(err)
	}
	if calls := testutil.CollectAndCount(n.metrics.calls); calls != 2 {
		t.Errorf("%d series of calls", calls)
	}
}
