package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/network/hostnet"
	"skiff/test/inprocess"
)

// fakeRuntime is a runtime whose state the test sets.
type fakeRuntime struct {
	mu          sync.Mutex
	up, network bool
	down        bool
}

func (r *fakeRuntime) set(change func(*fakeRuntime)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *fakeRuntime) Version(context.Context) (cri.Version, error) {
	return cri.Version{Name: "played", Version: "1.0.0"}, nil
}

func (r *fakeRuntime) Status(context.Context) (cri.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return cri.Status{}, errors.New("connection refused")
	}
	return *runtimeStatus(r.up, r.network), nil
}

func (r *fakeRuntime) ListImages(context.Context) ([]*cri.Image, error) {
	return []*cri.Image{{ID: "i", Size: 5, RepoTags: []string{"pause"}}}, nil
}

// testNode is a node on an API server in the test's process.
type testNode struct {
	t       *testing.T
	client  *client.Client
	runtime *fakeRuntime
	node    *Node

	mu       sync.Mutex
	podCIDRs [][]string
	pressure Pressure
	problems []error
}

func newTestNode(t *testing.T, ctx context.Context, before func(*client.Client)) *testNode {
	t.Helper()
	s := &testNode{t: t, client: inprocess.Start(t, ctx), runtime: &fakeRuntime{up: true}}
	_, err := client.For[*corev1.Namespace](s.client).Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(s.client)
	}
	events := client.NewEventBroadcaster(s.client)
	address, err := hostnet.PrimaryAddress()
	if err != nil {
		t.Fatal(err)
	}
	s.node = New(Settings{
		Name: "a", IPs: []string{address.String()}, Labels: map[string]string{"disk": "fast"}, Taints: []corev1.Taint{{Key: "special", Effect: corev1.TaintEffectNoSchedule}},
		Annotations:           map[string]string{"example.com/dir": "/data"},
		StatusUpdateFrequency: 50 * time.Millisecond, LeaseDurationSeconds: 1,
	}, Dependencies{
		Client: s.client, Runtime: s.runtime, Events: events.NewRecorder("kubelet").WithHost("a"), Log: slog.New(slog.DiscardHandler),
		PodCIDRs: func(r []string) { s.mu.Lock(); defer s.mu.Unlock(); s.podCIDRs = append(s.podCIDRs, r) },
		Pressure: func() Pressure { s.mu.Lock(); defer s.mu.Unlock(); return s.pressure },
		Problems: func() []error { s.mu.Lock(); defer s.mu.Unlock(); return s.problems },
		Host:     func() (Host, error) { return healthy().Host, nil },
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = s.node.Run(ctx) })
	running.Go(func() { _ = events.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return s
}

// until waits for the node to satisfy a condition.
func (n *testNode) until(what string, ok func(*corev1.Node) bool) *corev1.Node {
	n.t.Helper()
	var last *corev1.Node
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		node, err := client.For[*corev1.Node](n.client).Get(n.t.Context(), "", "a")
		if err == nil && ok(node) {
			return node
		}
		last = node
	}
	n.t.Fatalf("%s: it never was; %+v", what, last)
	return nil
}

func (n *testNode) patch(subresource string, patch map[string]any) {
	n.t.Helper()
	text, err := json.Marshal(patch)
	if err == nil {
		_, err = client.For[*corev1.Node](n.client).Patch(n.t.Context(), "", "a", client.RawPatch(client.StrategicPatch, text), client.WriteOptions{Subresource: subresource})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func ready(n *corev1.Node) bool {
	return condition(n.Status, corev1.NodeReady).Status == corev1.ConditionTrue
}

func TestNodeLifecycle(t *testing.T) {
	ctx := t.Context()
	s := newTestNode(t, ctx, nil)
	node := s.until("registered, without a network", func(n *corev1.Node) bool {
		return condition(n.Status, corev1.NodeReady).Message == "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"
	})
	if node.Labels["disk"] != "fast" || node.Labels[corev1.LabelHostname] != "a" || node.Labels[corev1.LabelOSStable] != "linux" || node.Annotations[attachAnnotation] != "true" ||
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "special" }) {
		t.Errorf("%+v", node.ObjectMeta)
	}
	s.patch("", map[string]any{"spec": map[string]any{"podCIDR": "10.42.0.0/24", "podCIDRs": []string{"10.42.0.0/24"}}})
	s.runtime.set(func(r *fakeRuntime) { r.network = true })
	node = s.until("ready", ready)
	if node.Status.NodeInfo.ContainerRuntimeVersion != "played://1.0.0" || len(node.Status.Images) != 1 || len(node.Status.Addresses) < 2 {
		t.Errorf("%+v", node.Status)
	}
	s.until("its pod CIDRs are reported", func(*corev1.Node) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.podCIDRs) == 1 && slices.Equal(s.podCIDRs[0], []string{"10.42.0.0/24"})
	})
	// An administrator adds an extended resource; the node makes it allocatable and keeps it.
	s.patch("status", map[string]any{"status": map[string]any{"capacity": map[string]string{"example.com/dongle": "5"}}})
	s.until("with a dongle", func(n *corev1.Node) bool {
		return n.Status.Allocatable["example.com/dongle"] == resource.MustParse("5") && n.Status.Capacity["example.com/dongle"] == resource.MustParse("5")
	})
	s.mu.Lock()
	s.pressure.Memory = true
	s.mu.Unlock()
	s.node.Changed()
	s.until("short of memory", func(n *corev1.Node) bool {
		return condition(n.Status, corev1.NodeMemoryPressure).Status == corev1.ConditionTrue
	})
	s.mu.Lock()
	s.problems = []error{ErrShuttingDown}
	s.mu.Unlock()
	s.until("going down", func(n *corev1.Node) bool {
		return condition(n.Status, corev1.NodeReady).Message == "node is shutting down" && n.Status.Allocatable["example.com/dongle"] == resource.MustParse("5")
	})
	s.mu.Lock()
	s.problems = nil
	s.mu.Unlock()
	s.until("ready again", ready)

	// Without a change nothing is written.
	before := s.until("quiet", func(*corev1.Node) bool { return true })
	time.Sleep(300 * time.Millisecond)
	if after := s.until("quiet", func(*corev1.Node) bool { return true }); after.ResourceVersion != before.ResourceVersion {
		t.Error("the status is written though nothing has changed")
	}

	s.wantEvents("Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady", "NodeHasInsufficientMemory", "NodeNotReady")
	s.checkLease(node)

	// The node is deleted and registers again.
	if err := client.For[*corev1.Node](s.client).Delete(ctx, "", "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until("back", func(n *corev1.Node) bool { return n.UID != node.UID && n.Labels["disk"] == "fast" })
}

// wantEvents waits until events with these reasons have been recorded.
func (n *testNode) wantEvents(desired ...string) {
	n.t.Helper()
	var missing []string
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
		events, _, err := client.For[*corev1.Event](n.client).List(n.t.Context(), "default", client.Selector{})
		if err != nil {
			n.t.Fatal(err)
		}
		missing = slices.DeleteFunc(slices.Clone(desired), func(reason string) bool {
			return slices.ContainsFunc(events, func(e *corev1.Event) bool {
				return e.Reason == reason && e.InvolvedObject.Name == "a" && e.Source.Host == "a"
			})
		})
		if len(missing) == 0 {
			return
		}
	}
	n.t.Errorf("missing events: %v", missing)
}

func (n *testNode) checkLease(node *corev1.Node) {
	n.t.Helper()
	leases := client.For[*coordinationv1.Lease](n.client)
	first, err := leases.Get(n.t.Context(), corev1.NamespaceNodeLease, "a")
	if err != nil {
		n.t.Fatal(err)
	}
	if *first.Spec.HolderIdentity != "a" || *first.Spec.LeaseDurationSeconds != 1 || len(first.OwnerReferences) != 1 || first.OwnerReferences[0].UID != node.UID {
		n.t.Errorf("%+v", first)
	}
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		if next, err := leases.Get(n.t.Context(), corev1.NamespaceNodeLease, "a"); err == nil && next.Spec.RenewTime.After(first.Spec.RenewTime.Time) {
			return
		}
	}
	n.t.Error("the lease is not renewed")
}

// TestExistingNodeObject starts a node whose object exists: the administrator's settings are kept, the kubelet's own are
// corrected.
func TestExistingNodeObject(t *testing.T) {
	s := newTestNode(t, t.Context(), func(c *client.Client) {
		_, err := client.For[*corev1.Node](c).Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"mine": "yes", corev1.LabelHostname: "old"}},
			Spec:       corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}},
			Status:     corev1.NodeStatus{Capacity: list("example.com/dongle=3 memory=1Gi"), Allocatable: list("example.com/dongle=3 memory=1Gi"), NodeInfo: corev1.NodeSystemInfo{BootID: "before"}},
		}, client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
	})
	s.runtime.set(func(r *fakeRuntime) { r.network = true })
	node := s.until("ready", ready)
	if node.Labels["mine"] != "yes" || node.Labels[corev1.LabelHostname] != "a" || node.Labels["disk"] != "" || !node.Spec.Unschedulable || len(node.Spec.Taints) > 1 {
		t.Errorf("%+v %+v", node.ObjectMeta, node.Spec)
	}
	if node.Annotations["example.com/dir"] != "/data" || node.Annotations[attachAnnotation] != "true" {
		t.Errorf("annotations %v", node.Annotations)
	}
	if node.Status.Capacity["example.com/dongle"] != resource.MustParse("3") || node.Status.Capacity.Memory().String() != "8Gi" {
		t.Errorf("%s", text(node.Status.Capacity))
	}
	s.wantEvents("NodeNotSchedulable", "Rebooted")
}

// TestNodeBeforeRegistration: static pods are admitted by the node's resources before the API server responds.
func TestNodeBeforeRegistration(t *testing.T) {
	n := New(Settings{Name: "a", MaxPods: 7, Labels: map[string]string{"disk": "fast"}, SystemReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
		Dependencies{Runtime: &fakeRuntime{}, Host: func() (Host, error) { return Host{CPUs: 2, Memory: 1 << 30}, nil }, Log: slog.New(slog.DiscardHandler)})
	node := n.Node()
	if node.Name != "a" || node.UID != "" || node.Labels["disk"] != "fast" {
		t.Errorf("metadata %+v", node.ObjectMeta)
	}
	for name, want := range map[corev1.ResourceName]string{corev1.ResourceCPU: "1500m", corev1.ResourceMemory: "1Gi", corev1.ResourcePods: "7"} {
		if got := node.Status.Allocatable[name]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("allocatable %s is %s, want %s", name, got.String(), want)
		}
	}
}

// TestOutdatedResponses: responses that arrive after the watch has delivered a newer revision change nothing.
func TestOutdatedResponses(t *testing.T) {
	n := New(Settings{Name: "a"}, Dependencies{Log: slog.New(slog.DiscardHandler)})
	at := func(uid types.UID, version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: uid, ResourceVersion: version}}
	}
	for _, step := range []struct {
		takes *corev1.Node
		want  string
	}{
		{at("u", "9"), "9"}, {at("u", "10"), "10"}, {at("u", "9"), "10"}, {at("u", "10"), "10"}, {at("v", "3"), "3"},
	} {
		n.setObserved(step.takes)
		if got := n.Node().ResourceVersion; got != step.want {
			t.Errorf("after %s: %s, want %s", step.takes.ResourceVersion, got, step.want)
		}
	}
}
