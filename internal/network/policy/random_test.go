package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"skiff/internal/network/nft"
)

// randomCluster changes the objects of a cluster one after the other, and gives the changes to a compiler.
type randomCluster struct {
	*cluster
	random   *rand.Rand
	compiler *Compiler
	model    *nft.Model
}

func newRandomCluster(t testing.TB, seed uint64) *randomCluster {
	c := newCluster()
	compiler, m := c.compile(t)
	return &randomCluster{cluster: c, random: rand.New(rand.NewPCG(seed, 0)), compiler: compiler, model: m}
}

func pick[T any](random *rand.Rand, all ...T) T { return all[random.IntN(len(all))] }

// some picks up to max values.
func some[T any](random *rand.Rand, limit int, value func() T) []T {
	var all []T
	for range random.IntN(limit + 1) {
		all = append(all, value())
	}
	return all
}

func (c *randomCluster) randomPeer() peer {
	pods := []string{"", "app=client", "app=web", "app=db", "tier", "app in (web, client)", "!tier"}
	namespaces := []string{"", "team=blue", "team=red", "env"}
	switch c.random.IntN(4) {
	case 0:
		return podsWith(pick(c.random, pods...))
	case 1:
		return namespacesWith(pick(c.random, namespaces...))
	case 2:
		return podsIn(pick(c.random, namespaces...), pick(c.random, pods...))
	}
	return pick(c.random, ipBlock("10.42.0.0/16"), ipBlock("10.42.0.0/16", "10.42.2.0/24"), ipBlock("10.42.2.0/24", "10.42.2.22/32"), ipBlock("0.0.0.0/0"), ipBlock("::/0"),
		ipBlock("192.168.77.2/32"), ipBlock("fd00:42::/32", "fd00:42:1::/64", "fd00:42:2::21/128"), ipBlock("128.0.0.0/1"))
}

func (c *randomCluster) randomPort() port {
	return pick(c.random, tcp(8080), tcp(9090), udp(8080), udp(9090), sctp(9090), namedPort("http"), namedPort("metrics"), portsFrom(8000, 8100), portsFrom(8080, 9090),
		allPorts(corev1.ProtocolTCP), allPorts(corev1.ProtocolUDP))
}

func (c *randomCluster) randomPolicy(name string) *networkingv1.NetworkPolicy {
	options := []option{named(name), inNamespace(pick(c.random, "default", "other"))}
	if c.random.IntN(6) == 0 {
		options = append(options, pick(c.random, denyEgress(), denyBoth()))
	}
	for range c.random.IntN(3) {
		rule := pick(c.random, from, to)
		options = append(options, rule(some(c.random, 2, c.randomPeer), some(c.random, 2, c.randomPort)...))
	}
	return netpol(pick(c.random, "", "app=web", "app=db", "tier", "!tier"), options...)
}

// change changes one object.
func (c *randomCluster) change(t testing.TB) {
	switch c.random.IntN(8) {
	case 0, 1, 2, 3:
		c.changePolicy(t)
	case 4:
		name := pick(c.random, "default", "other")
		c.addNamespace(name, pick(c.random, "", "team=red", "team=blue", "team=blue,env=test"))
		c.compiler.SetNamespace(name, c.namespaces[name].Labels)
	default:
		c.changePod()
	}
}

func (c *randomCluster) changePolicy(t testing.TB) {
	p := c.randomPolicy(fmt.Sprint("p", c.random.IntN(6)))
	key := keyOf(p).String()
	if c.policies[key] != nil && c.random.IntN(3) == 0 {
		delete(c.policies, key)
		c.compiler.DeletePolicy(keyOf(p))
		return
	}
	c.policies[key] = p
	if err := c.compiler.SetPolicy(p); err != nil {
		t.Fatal(err)
	}
}

func (c *randomCluster) changePod() {
	name := pick(c.random, slices.Sorted(maps.Keys(c.pods))...)
	p := c.pods[name].DeepCopy()
	c.pods[name] = p
	switch c.random.IntN(5) {
	case 0:
		p.Labels = labelMap(pick(c.random, "", "app=web", "app=db,tier=back", "app=client", "app=client,tier=front"))
	case 1:
		p.Status.Phase = pick(c.random, corev1.PodRunning, corev1.PodRunning, corev1.PodFailed)
	case 2:
		// The pod is replaced by another one of the same name on another node.
		p.Spec.NodeName = pick(c.random, thisNode, otherNode)
		c.compiler.DeletePod(keyOf(p))
	case 3:
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: pick(c.random, "http", "metrics"), ContainerPort: pick[int32](c.random, 8080, 9090), Protocol: corev1.ProtocolTCP}}
	case 4:
		all := newCluster().pods[name].Status.PodIPs
		p.Status.PodIPs = pick(c.random, all, all, all[:1], all[1:])
	}
	setPod(c.compiler, c.cluster, name)
}

// checkEqualsFresh compares the table with one that is compiled from nothing.
func (c *randomCluster) checkEqualsFresh(t testing.TB) {
	t.Helper()
	_, fresh := c.compile(t)
	if have, want := c.model.String(), fresh.String(); have != want {
		t.Fatalf("after changes the table is\n%s\nfrom nothing it is\n%s", have, want)
	}
}

// For random policies, pods and namespaces the table says what the oracle says, and it does not depend on the order of changes.
func TestRandomPolicies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newRandomCluster(t, seed)
	for step := range 400 {
		for range 1 + c.random.IntN(3) {
			c.change(t)
		}
		c.compiler.Flush()
		c.checkEqualsFresh(t)
		flows := c.flows(nft.TCP, nft.UDP, nft.SCTP)
		c.random.Shuffle(len(flows), func(i, j int) { flows[i], flows[j] = flows[j], flows[i] })
		for _, f := range flows[:min(40, len(flows))] {
			want := c.allows(f.Flow)
			if have := tableAllows(c.model, f.Flow); have != want {
				t.Fatalf("step %d: %s: the table allows %v, want %v\n%s", step, f, have, want, c.model)
			}
			if have := c.compiler.Allows(f.Flow); have != want {
				t.Fatalf("step %d: %s: the compiler allows %v, want %v", step, f, have, want)
			}
		}
	}
}

// Without objects nothing is left.
func TestDeletedObjectsLeaveNothing(t *testing.T) {
	c := newRandomCluster(t, 1)
	for range 200 {
		c.change(t)
		c.compiler.Flush()
	}
	for key, p := range c.policies {
		delete(c.policies, key)
		c.compiler.DeletePolicy(keyOf(p))
	}
	for name, p := range c.pods {
		delete(c.pods, name)
		c.compiler.DeletePod(keyOf(p))
	}
	c.compiler.Flush()
	c.checkEqualsFresh(t)
	k := c.compiler
	if sizes := []int{len(k.pods), len(k.podsIn), len(k.podsWith), len(k.holders), len(k.policies), len(k.selectors), len(k.names), len(k.tables)}; slices.Max(sizes) > 0 {
		t.Errorf("the compiler still has %v objects", sizes)
	}
	if s := k.Stats(); s != (Stats{}) {
		t.Errorf("%+v", s)
	}
}
