//go:build root

package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/network/hostnet"
	"skiff/test/inprocess"
	"skiff/test/netns"
)

// createNode creates the Node object of a node.
func createNode(t *testing.T, c *client.Client, n Node) {
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	for _, p := range n.PodCIDRs {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, p.String())
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	made, err := client.For[*corev1.Node](c).Create(t.Context(), object, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made = made.DeepCopy()
	for _, ip := range n.IPs {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	if _, err := client.For[*corev1.Node](c).UpdateStatus(t.Context(), made); err != nil {
		t.Fatal(err)
	}
}

// startOverlay runs the overlay of node n1 in the namespace of the test until the end of the test, or until the returned function is called.
func startOverlay(t *testing.T, c *client.Client) (*Overlay, func()) {
	t.Helper()
	informers := client.NewInformers(c)
	settings := testSettings(VXLAN)
	settings.Networks = nil
	var changes atomic.Int64
	o, err := New(Config{
		Client: c, Informers: informers, Settings: settings, Changed: func() { changes.Add(1) }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	stopAll := inprocess.Run(t, informers.Run, o.Run)
	stop := sync.OnceFunc(func() {
		stopAll()
		if changes.Load() == 0 {
			t.Error("no change of the status was reported")
		}
	})
	t.Cleanup(stop)
	return o, stop
}

// waitForRoutes waits until the kernel has routes to the pod CIDRs of exactly these nodes.
func waitForRoutes(t *testing.T, numbers ...int) {
	t.Helper()
	want := map[netip.Prefix]bool{}
	for _, number := range numbers {
		for _, p := range testNode(number).PodCIDRs {
			want[p] = true
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		routes, err := ownRoutes()
		if err != nil {
			t.Fatal(err)
		}
		missing := len(want)
		unexpected := 0
		for _, r := range routes {
			if want[hostnet.PrefixOf(r.Dst)] {
				missing--
			} else {
				unexpected++
			}
		}
		if missing == 0 && unexpected == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("routes %v, want those of nodes %v", routes, numbers)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestOverlayFollowsNodes(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := inprocess.Start(t, ctx)
	uplink := netns.New(t)
	uplink.Connect(t, "uplink", []string{"192.168.7.1/24", "fd07::1/64"}, []string{"192.168.7.2/24", "fd07::2/64"})
	t.Cleanup(func() {
		if err := Remove(); err != nil {
			t.Error(err)
		}
	})
	for number := 1; number <= 2; number++ {
		createNode(t, c, testNode(number))
	}
	o, stop := startOverlay(t, c)
	waitForRoutes(t, 2)
	createNode(t, c, testNode(3))
	waitForRoutes(t, 2, 3)
	// Another program removes the link, and with it all routes.
	if err := removeLink(vxlanLink); err != nil {
		t.Fatal(err)
	}
	waitForRoutes(t, 2, 3)
	// A node whose addresses are not known is named.
	n := testNode(4)
	n.IPs = nil
	createNode(t, c, n)
	deadline := time.Now().Add(30 * time.Second)
	for len(o.Status().Problems) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("a node without address is not reported")
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	// Routes stay while nothing runs, and are not touched by the next start.
	waitForRoutes(t, 2, 3)
	o, _ = startOverlay(t, c)
	if err := client.For[*corev1.Node](c).Delete(t.Context(), "", fmt.Sprintf("n%d", 3), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForRoutes(t, 2)
	if s := o.Status(); s.Error != nil {
		t.Error(s.Error)
	}
}
