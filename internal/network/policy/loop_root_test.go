//go:build root

package policy

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/network/cni"
	"skiff/internal/network/nft"
	"skiff/internal/podstate"
	"skiff/test/inprocess"
)

// running is a Policy against an API server.
type running struct {
	client  *client.Client
	policy  *Policy
	metrics *Metrics
}

// start starts a Policy. It is stopped at the end of the test or by the returned function.
func start(t *testing.T, c *client.Client, change func(*Config)) (*running, func()) {
	t.Helper()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	informers := client.NewInformers(c)
	config := Config{Informers: informers, NodeName: thisNode, Table: testTable, SyncPeriod: 100 * time.Millisecond, Metrics: metrics, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&config)
	}
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	stop := inprocess.Run(t, informers.Run, p.Run)
	return &running{client: c, policy: p, metrics: metrics}, stop
}

// createPod creates a pod of the test cluster with its status.
func createPod(t *testing.T, c *client.Client, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	p = p.DeepCopy()
	p.Spec.Containers[0].Image = "image"
	status := p.Status
	made := inprocess.Create(t, c, p).DeepCopy()
	made.Status.PodIPs = status.PodIPs
	if len(status.PodIPs) > 0 {
		made.Status.PodIP = status.PodIPs[0].IP
	}
	updated, err := client.For[*corev1.Pod](c).UpdateStatus(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	return updated
}

// newAPI starts an API server with the pods of the test cluster.
func newAPI(t *testing.T) *client.Client {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := inprocess.Start(t, ctx)
	objects := newCluster()
	namespaces := client.For[*corev1.Namespace](c)
	for _, n := range objects.namespaces {
		made, err := namespaces.Get(t.Context(), "", n.Name)
		if apierrors.IsNotFound(err) {
			inprocess.Create(t, c, n)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		made = made.DeepCopy()
		made.Labels = n.Labels
		if _, err := namespaces.Update(t.Context(), made, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range objects.pods {
		createPod(t, c, p)
	}
	return c
}

// becomes waits until a connection is allowed or denied.
func (w *world) becomes(f namedFlow, want bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		w.forget()
		have, err := w.ask(f, dropWait)
		if have == want && err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: allowed %v, %v, want %v", f, have, err, want)
		}
	}
}

func flowTo(c *cluster, from, to string) namedFlow {
	return namedFlow{Flow{c.addressesOf(from)[0], c.addressesOf(to)[0], nft.TCP, serverPorts[0]}, from, to}
}

func TestPolicyFollowsTheAPI(t *testing.T) {
	w := newWorld(t)
	c := newAPI(t)
	r, stop := start(t, c, nil)
	objects := newCluster()
	fromC, fromD := flowTo(objects, "c", "a"), flowTo(objects, "d", "a")
	w.becomes(fromC, true)
	made := inprocess.Create(t, c, netpol("app=web", from(peers(podsWith("app=client")))))
	w.becomes(fromD, false)
	w.becomes(fromC, true)
	// A pod's labels.
	pods := client.For[*corev1.Pod](c)
	relabel := func(labels string) {
		t.Helper()
		p, err := pods.Get(t.Context(), "default", "c")
		if err != nil {
			t.Fatal(err)
		}
		p = p.DeepCopy()
		p.Labels = labelMap(labels)
		if _, err := pods.Update(t.Context(), p, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	relabel("app=somebody")
	w.becomes(fromC, false)
	relabel("app=client")
	w.becomes(fromC, true)
	// Another program removes the rules.
	if err := nft.Remove(testTable); err != nil {
		t.Fatal(err)
	}
	w.becomes(fromD, false)
	// A restart changes nothing.
	stop()
	w.becomes(fromD, false)
	w.becomes(fromC, true)
	start(t, c, nil)
	w.becomes(fromD, false)
	if err := client.For[*networkingv1.NetworkPolicy](c).Delete(t.Context(), made.Namespace, made.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.becomes(fromD, true)
	if n := testutil.ToFloat64(r.metrics.failures); n != 0 {
		t.Errorf("%v syncs have failed", n)
	}
}

// awaitSync waits for a sync that began after the call.
func (r *running) awaitSync(t *testing.T) {
	t.Helper()
	count := func() uint64 {
		var m dto.Metric
		if err := r.metrics.duration.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetHistogram().GetSampleCount()
	}
	// The first one that ends may have begun before.
	before := count()
	eventually(t, "two syncs", func() bool {
		r.policy.loop.Signal()
		return count() >= before+2
	})
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !check(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// compiledWith is the table of the test cluster with a policy and another pod.
func compiledWith(t *testing.T, p *networkingv1.NetworkPolicy, pod *corev1.Pod, address netip.Addr) *nft.Model {
	t.Helper()
	c := newCluster()
	c.policies[keyOf(p).String()] = p
	compiler, model := c.compile(t)
	object, _ := NewPod(pod, thisNode, []netip.Addr{address})
	compiler.SetPod(object)
	compiler.Flush()
	return model
}

// expectKernel compares the kernel's table with a model.
func expectKernel(t *testing.T, model *nft.Model) {
	t.Helper()
	if len(model.All().AddedElements) == 0 {
		t.Fatal("the expected table has no elements")
	}
	if equal, err := nft.NewWriter(model, slog.New(slog.DiscardHandler)).Check(); err != nil || !equal {
		lines, _ := nft.Read(testTable)
		t.Errorf("the kernel has other rules: %v\n%v", err, lines)
	}
}

// A pod that was announced is isolated before its status has its address.
func TestAnnouncedPod(t *testing.T) {
	newWorld(t)
	c := newAPI(t)
	inprocess.Create(t, c, netpol("app=web"))
	r, _ := start(t, c, nil)
	address := netip.MustParseAddr("10.42.1.77")
	made := createPod(t, c, testPod("default/new", thisNode, "app=web"))
	eventually(t, "the pod is read", func() bool { _, ok := r.policy.pods.Get("default", "new"); return ok })
	// It is the UID of another pod.
	ctx, cancel := context.WithCancel(t.Context())
	announced := make(chan error, 1)
	go func() {
		announced <- r.policy.Announce(ctx, cni.Announcement{Namespace: "default", Pod: "new", UID: "other", Addresses: []netip.Addr{address}})
	}()
	eventually(t, "the announcement", func() bool { return announcementOf(r.policy, "new") != nil })
	r.awaitSync(t)
	select {
	case err := <-announced:
		t.Fatalf("a pod with another UID was confirmed: %v", err)
	default:
	}
	cancel()
	if err := <-announced; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	err := r.policy.Announce(t.Context(), cni.Announcement{Namespace: "default", Pod: "new", UID: string(made.UID), Addresses: []netip.Addr{address}})
	if err != nil {
		t.Fatal(err)
	}
	expectKernel(t, compiledWith(t, netpol("app=web"), made, address))
}

// A static pod has its rules although it is not in the API, and as long as the kubelet runs it.
func TestAnnouncedPodOfTheKubelet(t *testing.T) {
	newWorld(t)
	c := newAPI(t)
	inprocess.Create(t, c, netpol("app=web"))
	pod := testPod("default/static", thisNode, "app=web")
	pod.UID = "static-uid"
	var isRunning atomic.Bool
	isRunning.Store(true)
	r, _ := start(t, c, func(config *Config) {
		config.KubeletPod = func(uid types.UID) (*corev1.Pod, bool) { return pod, uid == pod.UID && isRunning.Load() }
	})
	address := netip.MustParseAddr("10.42.1.77")
	err := r.policy.Announce(t.Context(), cni.Announcement{Namespace: "default", Pod: "static", UID: "static-uid", Addresses: []netip.Addr{address}})
	if err != nil {
		t.Fatal(err)
	}
	want := compiledWith(t, netpol("app=web"), pod, address)
	expectKernel(t, want)
	r.policy.recheckAnnounced()
	r.awaitSync(t)
	expectKernel(t, want)
	isRunning.Store(false)
	eventually(t, "the rules of the removed pod are removed", func() bool {
		equal, err := nft.NewWriter(want, slog.New(slog.DiscardHandler)).Check()
		return err == nil && !equal
	})
	if announcementOf(r.policy, "static") != nil {
		t.Error("the removed pod is still announced")
	}
}

// A static pod keeps its rules when its mirror pod is made later, which need not have its UID.
func TestMirrorPodIsMadeLater(t *testing.T) {
	newWorld(t)
	c := newAPI(t)
	inprocess.Create(t, c, netpol("app=web"))
	pod := testPod("default/static", thisNode, "app=web")
	pod.UID, pod.Annotations = "uid-of-the-manifest", map[string]string{podstate.ConfigSourceAnnotationKey: "file"}
	r, _ := start(t, c, func(config *Config) {
		config.KubeletPod = func(uid types.UID) (*corev1.Pod, bool) { return pod, uid == pod.UID }
	})
	address := netip.MustParseAddr("10.42.1.77")
	err := r.policy.Announce(t.Context(), cni.Announcement{Namespace: "default", Pod: "static", UID: string(pod.UID), Addresses: []netip.Addr{address}})
	if err != nil {
		t.Fatal(err)
	}
	announcedAt := announcementOf(r.policy, "static").at
	eventually(t, "a later second", func() bool { return time.Now().Truncate(time.Second).After(announcedAt) })
	mirror := testPod("default/static", thisNode, "app=web")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash-of-the-manifest"}
	createPod(t, c, mirror)
	eventually(t, "the mirror pod is read", func() bool { _, ok := r.policy.pods.Get("default", "static"); return ok })
	r.policy.recheckAnnounced()
	r.awaitSync(t)
	expectKernel(t, compiledWith(t, netpol("app=web"), pod, address))
	if announcementOf(r.policy, "static") == nil {
		t.Error("the announcement is forgotten")
	}
}
