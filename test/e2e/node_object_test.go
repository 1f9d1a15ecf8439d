package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/node"
	"skiff/internal/network/hostnet"
	"skiff/test/cluster"
)

// TestNodeObject registers a node and reports its status with only a node's permissions, on skiff.
func TestNodeObject(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	nodeObject(t, c)
}

// TestNodeObjectOnUpstream does the same on upstream's API server, with its Node authorizer and NodeRestriction.
func TestNodeObjectOnUpstream(t *testing.T) {
	t.Parallel()
	c, err := cluster.UpstreamAPI(t.TempDir(), "", "--enable-admission-plugins=NodeRestriction")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	nodeObject(t, c)
}

// readyRuntime is a container runtime that is ready.
type readyRuntime struct{}

func (readyRuntime) Version(context.Context) (cri.Version, error) {
	return cri.Version{Name: "played", Version: "1.2.3"}, nil
}

func (readyRuntime) Status(context.Context) (cri.Status, error) {
	return cri.Status{Conditions: []cri.Condition{{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true}}}, nil
}

func (readyRuntime) ListImages(context.Context) ([]*cri.Image, error) {
	return []*cri.Image{{ID: "i", Size: 7, RepoTags: []string{"registry.k8s.io/pause:3.10"}}}, nil
}

func nodeObject(t *testing.T, c *cluster.Cluster) {
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(config, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}
	own, err := client.New(config, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// Upstream creates its namespaces shortly after it is ready.
	_, err = client.For[*corev1.Namespace](admin).Get(ctx, "", corev1.NamespaceNodeLease)
	for ; err != nil && ctx.Err() == nil; _, err = client.For[*corev1.Namespace](admin).Get(ctx, "", corev1.NamespaceNodeLease) {
		time.Sleep(50 * time.Millisecond)
	}
	address, err := hostnet.PrimaryAddress()
	if err != nil {
		t.Fatal(err)
	}
	events := client.NewEventBroadcaster(own)
	ranges := make(chan []string, 10)
	n := node.New(node.Settings{
		Name: "n1", IPs: []string{address.String()}, Labels: map[string]string{"disk": "fast"}, Taints: []corev1.Taint{{Key: "special", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
		StatusUpdateFrequency: 200 * time.Millisecond, LeaseDurationSeconds: 4, Root: t.TempDir(),
	}, node.Dependencies{
		Client: own, Runtime: readyRuntime{}, Events: events.NewRecorder("kubelet").WithHost("n1"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		PodCIDRs: func(r []string) { ranges <- r },
	})
	ended := make(chan error, 2)
	go func() { ended <- n.Run(ctx) }()
	go func() { ended <- events.Run(ctx) }()

	nodes := client.For[*corev1.Node](admin)
	until := func(what string, ok func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		var last *corev1.Node
		for ctx.Err() == nil {
			seen, err := nodes.Get(ctx, "", "n1")
			if err == nil && ok(seen) {
				return seen
			}
			last = seen
			time.Sleep(20 * time.Millisecond)
		}
		t.Fatalf("%s: never; %+v", what, last)
		return nil
	}
	ready := until("ready", func(n *corev1.Node) bool {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
	if ready.Labels["disk"] != "fast" || ready.Spec.Taints[0].Key != "special" || ready.Status.NodeInfo.ContainerRuntimeVersion != "played://1.2.3" ||
		ready.Status.Allocatable.Cpu().IsZero() || !slices.Contains(ready.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address.String()}) || len(ready.Status.Images) != 1 {
		t.Errorf("%+v", ready)
	}
	patch := func(subresource string, change map[string]any) {
		t.Helper()
		text, err := json.Marshal(change)
		if err == nil {
			_, err = nodes.Patch(ctx, "", "n1", client.RawPatch(client.StrategicPatch, text), client.WriteOptions{Subresource: subresource})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	patch("", map[string]any{"spec": map[string]any{"podCIDR": "10.9.0.0/24", "podCIDRs": []string{"10.9.0.0/24"}}})
	select {
	case r := <-ranges:
		if len(r) != 1 || r[0] != "10.9.0.0/24" {
			t.Errorf("%v", r)
		}
	case <-ctx.Done():
		t.Fatal("the node did not receive its pod CIDR")
	}
	patch("status", map[string]any{"status": map[string]any{"capacity": map[string]string{"example.com/dongle": "5"}}})
	until("an extended resource", func(n *corev1.Node) bool {
		return n.Status.Allocatable["example.com/dongle"] == resource.MustParse("5")
	})

	leases := client.For[*coordinationv1.Lease](admin)
	first, err := leases.Get(ctx, corev1.NamespaceNodeLease, "n1")
	for ; err != nil && ctx.Err() == nil; first, err = leases.Get(ctx, corev1.NamespaceNodeLease, "n1") {
		time.Sleep(50 * time.Millisecond)
	}
	if len(first.OwnerReferences) != 1 || first.OwnerReferences[0].UID != ready.UID {
		t.Errorf("%+v", first.OwnerReferences)
	}
	for next := first; !next.Spec.RenewTime.After(first.Spec.RenewTime.Time); time.Sleep(100 * time.Millisecond) {
		if next, err = leases.Get(ctx, corev1.NamespaceNodeLease, "n1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := nodes.Delete(ctx, "", "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("back", func(n *corev1.Node) bool { return n.UID != ready.UID })
	recorded, _, err := client.For[*corev1.Event](admin).List(ctx, metav1.NamespaceDefault, client.Selector{})
	if err != nil || len(recorded) == 0 {
		t.Errorf("events: %d, %v", len(recorded), err)
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
