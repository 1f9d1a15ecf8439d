package policy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/network/nft"
)

// largeCluster has policies and local pods: each policy selects the pods of one application and allows those of another.
func largeCluster(policies, pods, applications int) *cluster {
	c := newCluster()
	clear(c.pods)
	for i := range pods {
		c.addPod(testPod(fmt.Sprintf("default/pod-%d", i), thisNode, fmt.Sprintf("app=app-%d", i%applications), fmt.Sprintf("10.42.%d.%d", i/200, 10+i%200)))
	}
	for i := range policies {
		p := netpol(fmt.Sprintf("app=app-%d", i%applications), named(fmt.Sprint("p", i)),
			from(peers(podsWith(fmt.Sprintf("app=app-%d", (i*7+i/applications)%applications))), tcp(int32(8000+i%10))))
		c.policies[keyOf(p).String()] = p
	}
	return c
}

// changedElements counts the elements that the last changes add or remove.
func changedElements(m *nft.Model) int {
	c := m.Changes()
	return len(c.AddedElements) + len(c.RemovedElements)
}

// A peer that moves to another class that exists is one element less and one more, however many policies and pods there are.
func TestPeerMovesByTwoElements(t *testing.T) {
	c := largeCluster(1000, 200, 20)
	c.addPod(testPod("default/peer", otherNode, "app=app-1", "10.43.0.1"))
	compiler, m := c.compile(t)
	m.Commit()
	c.pods["peer"].Labels = labelMap("app=app-2")
	setPod(compiler, c, "peer")
	compiler.Flush()
	if n := changedElements(m); n != 2 {
		t.Errorf("%d elements have changed:\n%s", n, m.Text(m.Changes()))
	}
}

// The elements that a target's change needs do not grow with the policies that do not select it.
func TestTargetChangeIsIndependentOfOtherPolicies(t *testing.T) {
	change := func(policies int) int {
		c := largeCluster(policies, 200, 20)
		p := netpol("app=new", named("new"), from(peers(podsWith("app=app-1")), tcp(80)))
		c.policies[keyOf(p).String()] = p
		compiler, m := c.compile(t)
		m.Commit()
		c.addPod(testPod("default/new", thisNode, "app=new", "10.43.0.1"))
		setPod(compiler, c, "new")
		compiler.Flush()
		return changedElements(m)
	}
	if small, large := change(100), change(1000); small != large {
		t.Errorf("%d elements with 100 policies, %d with 1000", small, large)
	}
}

// An address that two pods claim belongs to the younger one, or to the one that was announced.
func TestAddressOfTwoPods(t *testing.T) {
	c := newCluster(netpol("app=web"))
	start := time.Unix(1000, 0)
	old, young := c.pods["a"], testPod("default/z", thisNode, "app=db", "10.42.1.11", "fd00:42:1::11")
	old.CreationTimestamp, young.CreationTimestamp = metav1.NewTime(start), metav1.NewTime(start.Add(time.Minute))
	compiler, m := c.compile(t)
	web := Flow{netip.MustParseAddr(outsideIP4), netip.MustParseAddr("10.42.1.11"), nft.TCP, 80}
	if compiler.Allows(web) {
		t.Error("the old pod is not isolated")
	}
	c.pods["z"] = young
	setPod(compiler, c, "z")
	compiler.Flush()
	if !compiler.Allows(web) || !tableAllows(m, web) {
		t.Error("the address still belongs to the old pod")
	}
	announced, _ := NewPod(old, thisNode, []netip.Addr{web.Destination})
	compiler.SetPod(announced)
	if affected := compiler.Flush(); !affected[web.Destination] {
		t.Errorf("connections of the address are not inspected: %v", affected)
	}
	if compiler.Allows(web) || tableAllows(m, web) {
		t.Error("the address does not belong to the announced pod")
	}
	compiler.DeletePod(keyOf(old))
	compiler.Flush()
	if !compiler.Allows(web) || !tableAllows(m, web) {
		t.Error("the address belongs to the deleted pod")
	}
}

// Connections are inspected if they may have become denied: reading them is expensive.
func TestAffectedAddresses(t *testing.T) {
	c := newCluster(netpol("app=web", from(peers(podsWith("app=client")))))
	compiler, _ := c.compile(t)
	check := func(what string, want ...string) {
		t.Helper()
		affected := compiler.Flush()
		for _, text := range want {
			if a := netip.MustParseAddr(text); !affected[a] {
				t.Errorf("%s: %s is not affected", what, a)
			}
		}
		if len(affected) != len(want) {
			t.Errorf("%s: %v are affected, want %v", what, affected, want)
		}
	}
	check("nothing")
	c.addPod(testPod("default/new", otherNode, "app=client", "10.42.2.99"))
	setPod(compiler, c, "new")
	check("new peer")
	c.addPod(testPod("default/new", otherNode, "app=other", "10.42.2.99"))
	setPod(compiler, c, "new")
	check("peer that is no longer allowed", "10.42.2.99")
	c.addPod(testPod("default/new", otherNode, "app=client", "10.42.2.98"))
	setPod(compiler, c, "new")
	check("peer that is allowed again")
	c.addPod(testPod("default/new", otherNode, "app=client", "10.42.2.97"))
	setPod(compiler, c, "new")
	check("peer with another address", "10.42.2.98", "10.42.2.97")
	compiler.DeletePod(keyOf(c.pods["new"]))
	check("deleted peer", "10.42.2.97")
	c.addPod(testPod("default/target", thisNode, "app=web", "10.42.1.99"))
	setPod(compiler, c, "target")
	check("new target", "10.42.1.99")
	compiler.DeletePod(keyOf(c.pods["target"]))
	check("deleted target")
}

// Peers that cannot be read are denied, also in a new policy; others are allowed.
func TestUnreadablePeers(t *testing.T) {
	invalid := podsWith("app=client")
	invalid.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Invalid"}}
	for name, unreadable := range map[string]peer{"selector": invalid, "block": ipBlock("10.42.2.0/33"), "exception": ipBlock("0.0.0.0/0", "10.42.2.0/33")} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			compiler, m := c.compile(t)
			if err := compiler.SetPolicy(netpol("app=web", from(peers(unreadable)), from(peers(unreadable, podsWith("app=db"))))); err == nil {
				t.Error("no error")
			}
			compiler.Flush()
			// What the table has to do is what it does without them.
			c.policies["p"] = netpol("app=web", from(peers(podsWith("app=db"))))
			for _, f := range c.flows(nft.TCP) {
				if have, want := tableAllows(m, f.Flow), c.allows(f.Flow); have != want {
					t.Errorf("%s: allowed %v, want %v", f, have, want)
				}
			}
		})
	}
}

// A policy whose pods cannot be read leaves the one before in force.
func TestUnreadablePolicy(t *testing.T) {
	p := netpol("app=web")
	c := newCluster(p)
	compiler, m := c.compile(t)
	before := m.String()
	broken := p.DeepCopy()
	broken.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Invalid"}}
	if err := compiler.SetPolicy(broken); err == nil {
		t.Error("no error")
	}
	compiler.Flush()
	if m.String() != before {
		t.Error("the table has changed")
	}
}

func TestNewPod(t *testing.T) {
	p := testPod("default/a", thisNode, "app=web", "10.42.1.11")
	if pod, ok := NewPod(p, thisNode, nil); !ok || !pod.Local || pod.Announced || len(pod.Addresses) != 1 {
		t.Errorf("%+v, %v", pod, ok)
	}
	announced := []netip.Addr{netip.MustParseAddr("10.42.1.99")}
	p.Status.PodIPs = nil
	if _, ok := NewPod(p, thisNode, nil); ok {
		t.Error("a pod without address")
	}
	if pod, ok := NewPod(p, thisNode, announced); !ok || !pod.Announced || pod.Addresses[0] != announced[0] {
		t.Errorf("%+v, %v", pod, ok)
	}
	// The event of the binding may arrive later than the plugin's announcement.
	unbound := p.DeepCopy()
	unbound.Spec.NodeName = ""
	if pod, ok := NewPod(unbound, thisNode, announced); !ok || !pod.Local {
		t.Errorf("%+v, %v", pod, ok)
	}
	p.Status.Phase = corev1.PodFailed
	if _, ok := NewPod(p, thisNode, announced); ok {
		t.Error("a pod that has failed")
	}
}

// BenchmarkPodChange is the time from a change of a pod's labels until the changes of the table are known.
func BenchmarkPodChange(b *testing.B) {
	c := largeCluster(1000, 200, 50)
	compiler, m := c.compile(b)
	m.Commit()
	for i := range b.N {
		p := c.pods["pod-7"].DeepCopy()
		p.Labels = labelMap(fmt.Sprintf("app=app-%d", i%50))
		c.pods["pod-7"] = p
		setPod(compiler, c, "pod-7")
		compiler.Flush()
		m.Changes()
		m.Commit()
	}
}
