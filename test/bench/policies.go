package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/network/policy"
	"skiff/test/cluster"
	"skiff/test/netns"
)

const (
	policyPods = 200
	// policyApps is the number of values of the label by which policies select pods.
	policyApps = 50
	// policyChanges are the changes of each kind, of which the slowest counts.
	policyChanges = 30
	// policyLimit is the time in ms within which a change must be enforced.
	policyLimit = 50
	pingPort    = 9
	// pingInterval is the time between two packets. If none is answered for pingSilence, they are denied.
	pingInterval = 500 * time.Microsecond
	pingSilence  = 100 * time.Millisecond
	// policyMinSyncPeriod is that of a node.
	policyMinSyncPeriod = 10 * time.Millisecond
	policyTimeout       = time.Minute
)

// measurePolicies measures, by packets between two pods, how long a change of a pod's labels takes to be enforced on a node whose pods have many
// policies. kube-proxy and kubelet enforce none: there is nothing to compare with.
func measurePolicies(side, dir string, o options) ([]Row, error) {
	if side != "skiff" {
		return nil, nil
	}
	c, err := cluster.Skiff(dir, "--disable-admission-plugins=ServiceAccount")
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	m := &policyBench{bench: b}
	if m.client, err = b.client(protobufType); err != nil {
		return nil, err
	}
	if err := m.createObjects(dir); err != nil {
		return nil, err
	}
	stop, err := m.startPolicy()
	if err != nil {
		return nil, err
	}
	err = m.measure()
	return b.rows, errors.Join(err, stop())
}

// policyBench measures a Policy that runs in this process.
type policyBench struct {
	*bench
	client *clientset.Clientset
	// answered is the time of the last packet that was answered, in nanoseconds since 1970.
	answered atomic.Int64
}

// createObjects creates pods and policies. The first two pods exist: the one that is reached, and its peer.
func (m *policyBench) createObjects(dir string) error {
	for i, name := range []string{"target", "peer"} {
		pod, err := newPod(dir, name, policyAddress(i).String())
		if err != nil {
			return err
		}
		if err := m.openSocket(pod, i == 0); err != nil {
			return err
		}
	}
	if err := m.parallel(policyPods, m.createPod); err != nil {
		return err
	}
	return m.parallel(m.Policies, func(i int) error {
		_, err := m.client.NetworkingV1().NetworkPolicies("default").Create(context.Background(), networkPolicy(i), metav1.CreateOptions{})
		return err
	})
}

// openSocket opens the socket of one of the two pods: that of the server, which sends packets back, or of the client.
func (m *policyBench) openSocket(pod netns.Namespace, isServer bool) error {
	return pod.Do(func() error {
		if !isServer {
			peer, err := net.Dial("udp", netip.AddrPortFrom(policyAddress(0), pingPort).String())
			if err == nil {
				go sendPings(peer)
				go m.receivePings(peer)
			}
			return err
		}
		socket, err := net.ListenPacket("udp", fmt.Sprintf(":%d", pingPort))
		if err != nil {
			return err
		}
		go func() {
			buffer := make([]byte, 100)
			for {
				n, from, err := socket.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = socket.WriteTo(buffer[:n], from)
			}
		}()
		return nil
	})
}

func policyAddress(pod int) netip.Addr { return netip.AddrFrom4([4]byte{10, 64, 1, byte(pod + 1)}) }

func (m *policyBench) createPod(i int) error {
	p := pod(fmt.Sprintf("pod-%d", i))
	p.Spec.NodeName = proxyNode
	p.Labels = map[string]string{"app": fmt.Sprintf("app-%d", i%policyApps), "role": "none"}
	pods := m.client.CoreV1().Pods("default")
	made, err := pods.Create(context.Background(), p, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Phase = corev1.PodRunning
	made.Status.PodIP = policyAddress(i).String()
	made.Status.PodIPs = []corev1.PodIP{{IP: made.Status.PodIP}}
	_, err = pods.UpdateStatus(context.Background(), made, metav1.UpdateOptions{})
	return err
}

// networkPolicy allows the pods of an app to be reached by pods of one role.
func networkPolicy(i int) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d", i)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i%policyApps)}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": policyRole(i)}}}},
			}},
		},
	}
}

func policyRole(i int) string { return fmt.Sprintf("role-%d", i) }

// startPolicy enforces the policies until the returned function is called.
func (m *policyBench) startPolicy() (stop func() error, err error) {
	remote, err := client.New(m.config, api.Scheme(), api.Named())
	if err != nil {
		return nil, err
	}
	informers := client.NewInformers(remote)
	p, err := policy.New(policy.Config{
		Informers: informers, NodeName: proxyNode, Table: policy.DefaultTable, MinSyncPeriod: policyMinSyncPeriod, SyncPeriod: 30 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- informers.Run(ctx) }()
	go func() { done <- p.Run(ctx) }()
	return func() error {
		cancel()
		return errors.Join(<-done, <-done)
	}, nil
}

// policyChange is a change of a pod's labels, and whether its effect is that packets are delivered.
type policyChange struct {
	pod, label, value string
	allowed           bool
}

func (m *policyBench) measure() error {
	if _, err := m.apply(policyChange{pod: "pod-1", label: "role", value: "none"}); err != nil {
		return err
	}
	for _, kind := range []struct {
		name        string
		allow, deny policyChange
	}{
		{"a peer's labels", policyChange{"pod-1", "role", policyRole(0), true}, policyChange{"pod-1", "role", "none", false}},
		{"labels that policies select", policyChange{"pod-0", "app", "none", true}, policyChange{"pod-0", "app", "app-0", false}},
	} {
		var took []time.Duration
		for range policyChanges {
			for _, change := range []policyChange{kind.allow, kind.deny} {
				waited, err := m.apply(change)
				if err != nil {
					return err
				}
				took = append(took, waited)
				time.Sleep(10 * policyMinSyncPeriod)
			}
		}
		slices.Sort(took)
		name := fmt.Sprintf("%d policies, %d pods: change of %s enforced, ", m.Policies, policyPods, kind.name)
		m.rows = append(m.rows, Row{Name: name + "median", Value: milliseconds(took[len(took)/2]), Unit: "ms", Limit: policyLimit},
			Row{Name: name + "slowest", Value: milliseconds(took[len(took)-1]), Unit: "ms", Limit: policyLimit})
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// apply changes a label and returns how long it took, from the acknowledgement of the write, until packets are answered, or no longer.
func (m *policyBench) apply(change policyChange) (time.Duration, error) {
	began := time.Now()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, change.label, change.value)
	_, err := m.client.CoreV1().Pods("default").Patch(context.Background(), change.pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return 0, err
	}
	written := time.Now()
	for now := written; now.Sub(written) < policyTimeout; now = time.Now() {
		answered := time.Unix(0, m.answered.Load())
		isSilent := now.Sub(written) > pingSilence && now.Sub(answered) > pingSilence
		if change.allowed && answered.After(began) || !change.allowed && isSilent {
			return max(answered.Sub(written), 0), nil
		}
		time.Sleep(pingInterval / 5)
	}
	return 0, fmt.Errorf("%s of %s became %s, which is not enforced", change.label, change.pod, change.value)
}

// sendPings sends packets. Errors are those of packets before, which were refused.
func sendPings(peer net.Conn) {
	for range time.Tick(pingInterval) {
		_, _ = peer.Write([]byte("ping"))
	}
}

// receivePings records when packets are answered.
func (m *policyBench) receivePings(peer net.Conn) {
	buffer := make([]byte, 100)
	for {
		if _, err := peer.Read(buffer); err == nil {
			m.answered.Store(time.Now().UnixNano())
		}
	}
}
