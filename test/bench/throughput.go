package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
	"skiff/test/netns"
)

const (
	// throughputRounds are the runs on each network, of which the median counts. Runs on skiff's and on the plain network alternate.
	throughputRounds   = 9
	throughputDuration = time.Second
	throughputPort     = 5001
	throughputBuffer   = 128 << 10
	// throughputLimit is the least share of the plain network's throughput.
	throughputLimit   = 0.95
	throughputTimeout = time.Minute
)

// prepareThroughput builds the image of the pods.
func prepareThroughput(string) error { return cluster.UseImages("pause") }

// measureThroughput compares TCP connections between pods with connections between namespaces that have the same links, set up by hand: on one
// node, and on two nodes connected by VXLAN. It measures both networks in one run, because they have to alternate.
func measureThroughput(side, dir string, o options) ([]Row, error) {
	if side != "skiff" {
		return nil, nil
	}
	if err := cluster.UseImages("pause"); err != nil {
		return nil, err
	}
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		return nil, err
	}
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	own, mtu, err := b.throughputPods()
	if err != nil {
		return nil, err
	}
	plain, err := plainNetwork(dir, mtu)
	if err != nil {
		return nil, fmt.Errorf("set up the plain network: %w", err)
	}
	for i, name := range []string{"pod to pod on one node", "pod to pod over VXLAN"} {
		if err := b.compareThroughput(name, connectionPath{own[0], own[i+1]}, connectionPath{plain[0], plain[i+1]}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.rows, nil
}

// networkEnd is a network namespace and its address.
type networkEnd struct {
	netns.Namespace
	address netip.Addr
}

// connectionPath is where a connection leads from and to.
type connectionPath struct{ from, to networkEnd }

// compareThroughput measures both networks alternately.
func (b *bench) compareThroughput(name string, own, plain connectionPath) error {
	var rates, perCPU [2][]float64
	for range throughputRounds {
		for i, p := range []connectionPath{own, plain} {
			bytes, used, err := p.send(throughputDuration)
			if err != nil {
				return fmt.Errorf("from %s to %s: %w", p.from.address, p.to.address, err)
			}
			rates[i] = append(rates[i], bytes/throughputDuration.Seconds())
			perCPU[i] = append(perCPU[i], bytes/used.Seconds())
		}
	}
	median := func(values []float64) float64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	const giga = 1e9 / 8
	b.rows = append(b.rows,
		Row{Name: name + ": throughput", Value: median(rates[0]) / giga, Unit: "Gbit/s"},
		Row{Name: name + ": throughput, of plain Linux", Value: median(rates[0]) / median(rates[1]), Unit: "ratio", Limit: throughputLimit, AtLeast: true},
		Row{Name: name + ": bytes per CPU second, of plain Linux", Value: median(perCPU[0]) / median(perCPU[1]), Unit: "ratio", Limit: throughputLimit, AtLeast: true},
	)
	return nil
}

// send sends for a while and returns the bytes that were received and the CPU time of sender and receiver, both in this process. The kernel
// delivers packets on the CPU time of the sender.
func (p connectionPath) send(duration time.Duration) (received float64, used time.Duration, err error) {
	var listener net.Listener
	if err := p.to.Do(func() error {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", throughputPort))
		return err
	}); err != nil {
		return 0, 0, err
	}
	defer listener.Close()
	counted := make(chan int64, 1)
	go func() { counted <- receiveAll(listener) }()
	var connection net.Conn
	if err := p.from.Do(func() error {
		connection, err = net.DialTimeout("tcp4", netip.AddrPortFrom(p.to.address, throughputPort).String(), connectTimeout)
		return err
	}); err != nil {
		return 0, 0, err
	}
	defer connection.Close()
	before, err := ownCPU()
	if err != nil {
		return 0, 0, err
	}
	buffer := make([]byte, throughputBuffer)
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if _, err := connection.Write(buffer); err != nil {
			return 0, 0, err
		}
	}
	after, err := ownCPU()
	connection.Close()
	return float64(<-counted), after - before, err
}

// receiveAll reads a connection to its end and returns the number of bytes.
func receiveAll(listener net.Listener) (total int64) {
	c, err := listener.Accept()
	if err != nil {
		return 0
	}
	defer c.Close()
	buffer := make([]byte, throughputBuffer)
	for {
		n, err := c.Read(buffer)
		total += int64(n)
		if err != nil {
			return total
		}
	}
}

// ownCPU is the CPU time of this process.
func ownCPU() (time.Duration, error) {
	var usage unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

// throughputPods starts two pods on the first node and one on the second, and returns them with the MTU of their links.
func (b *bench) throughputPods() (pods []networkEnd, mtu int, err error) {
	k, err := b.client(protobufType)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), throughputTimeout)
	defer cancel()
	nodes, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	if len(nodes.Items) != 2 {
		return nil, 0, fmt.Errorf("%d nodes, want 2", len(nodes.Items))
	}
	first, second := nodes.Items[0].Name, nodes.Items[1].Name
	for i, node := range []string{first, first, second} {
		pod, err := runningPod(ctx, k, fmt.Sprintf("throughput-%d", i), node)
		if err != nil {
			return nil, 0, err
		}
		end, err := podNamespace(pod.Status.PodIP)
		if err != nil {
			return nil, 0, err
		}
		pods = append(pods, end)
	}
	err = pods[0].Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mtu = link.Attrs().MTU
		}
		return err
	})
	return pods, mtu, err
}

// runningPod creates a pod and waits until it runs.
func runningPod(ctx context.Context, k *clientset.Clientset, name, node string) (*corev1.Pod, error) {
	pods := k.CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: nodePodsImage}}},
	}
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	for ; err == nil && (pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == ""); time.Sleep(100 * time.Millisecond) {
		pod, err = pods.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("run pod %s: %w", name, err)
	}
	return pod, nil
}

// podNamespace finds the network namespace of the pod with an address, on whichever host: it is that of its pause process.
func podNamespace(ip string) (networkEnd, error) {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return networkEnd{}, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return networkEnd{}, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(text)) != "pause" {
			continue
		}
		end := networkEnd{netns.At(filepath.Join(filepath.Dir(name), "ns/net")), address}
		found := false
		err = end.Do(func() error {
			addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
			found = slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.String() == ip })
			return err
		})
		if err == nil && found {
			return end, nil
		}
	}
	return networkEnd{}, fmt.Errorf("no pod sandbox has the address %s", ip)
}

// plainHost is a host of the plain network: a namespace with a bridge for pods.
type plainHost struct {
	netns.Namespace
	number int
}

// The plain network: addresses of hosts and pods, and the VXLAN's number and port.
const (
	plainBridge = "pods"
	plainUplink = "uplink"
	plainVXLAN  = "vxlan"
	plainVNI    = 85
	plainPort   = 8472
)

func plainHostAddress(host int) string     { return fmt.Sprintf("10.130.0.%d", host) }
func plainPodAddress(host, pod int) string { return fmt.Sprintf("10.131.%d.%d", host, pod) }

// plainNetwork sets up two hosts, the first with two pods and the second with one, connected like the nodes of a cluster: by VXLAN over a link
// whose one end is a bridge.
func plainNetwork(dir string, mtu int) ([]networkEnd, error) {
	var hosts []plainHost
	for i := range 2 {
		space, err := netns.Make(filepath.Join(dir, fmt.Sprintf("plain-host-%d", i+1)))
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, plainHost{space, i + 1})
	}
	if err := connectPlainHosts(hosts[0], hosts[1]); err != nil {
		return nil, err
	}
	var macs []net.HardwareAddr
	for _, h := range hosts {
		mac, err := h.addVXLAN(mtu)
		if err != nil {
			return nil, fmt.Errorf("add VXLAN link: %w", err)
		}
		macs = append(macs, mac)
	}
	for i, h := range hosts {
		if err := h.addRoute(hosts[1-i].number, macs[1-i]); err != nil {
			return nil, fmt.Errorf("add route: %w", err)
		}
	}
	var pods []networkEnd
	for _, at := range []struct{ host, pod int }{{0, 2}, {0, 3}, {1, 2}} {
		pod, err := hosts[at.host].addPod(filepath.Join(dir, fmt.Sprintf("plain-pod-%d-%d", at.host, at.pod)), at.pod, mtu)
		if err != nil {
			return nil, fmt.Errorf("add pod: %w", err)
		}
		pods = append(pods, pod)
	}
	return pods, nil
}

// connectPlainHosts makes the link between two hosts.
func connectPlainHosts(a, b plainHost) error {
	other, err := b.Open()
	if err != nil {
		return err
	}
	defer other.Close()
	err = a.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: plainUplink}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "to-other", MasterIndex: bridge.Attrs().Index}, PeerName: plainUplink, PeerNamespace: netlink.NsFd(int(other.Fd())),
		}
		return errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth))
	})
	if err != nil {
		return err
	}
	for _, h := range []plainHost{a, b} {
		if err := h.Do(func() error {
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
				return err
			}
			return setUp(plainUplink, plainHostAddress(h.number)+"/24")
		}); err != nil {
			return err
		}
	}
	return nil
}

// setUp adds an address to a link and sets it up.
func setUp(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// addVXLAN adds the bridge of the pods and the VXLAN link to other hosts, and returns the latter's hardware address.
func (h plainHost) addVXLAN(mtu int) (mac net.HardwareAddr, err error) {
	err = h.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: plainBridge, MTU: mtu}}
		if err := errors.Join(netlink.LinkAdd(bridge), setUp(plainBridge, plainPodAddress(h.number, 1)+"/24")); err != nil {
			return err
		}
		vxlan := &netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: plainVXLAN, MTU: mtu}, VxlanId: plainVNI, Port: plainPort, SrcAddr: net.ParseIP(plainHostAddress(h.number)),
		}
		if err := errors.Join(netlink.LinkAdd(vxlan), setUp(plainVXLAN, plainPodAddress(h.number, 0)+"/32")); err != nil {
			return err
		}
		link, err := netlink.LinkByName(plainVXLAN)
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	})
	return mac, err
}

// addRoute adds the route to the pods of another host.
func (h plainHost) addRoute(other int, mac net.HardwareAddr) error {
	return h.Do(func() error {
		link, err := netlink.LinkByName(plainVXLAN)
		if err != nil {
			return err
		}
		index, gateway := link.Attrs().Index, net.ParseIP(plainPodAddress(other, 0)).To4()
		return errors.Join(
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: gateway, HardwareAddr: mac, State: netlink.NUD_PERMANENT}),
			netlink.NeighSet(&netlink.Neigh{
				LinkIndex: index, IP: net.ParseIP(plainHostAddress(other)), HardwareAddr: mac, State: netlink.NUD_PERMANENT, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
			}),
			netlink.RouteAdd(&netlink.Route{
				LinkIndex: index, Dst: &net.IPNet{IP: gateway, Mask: net.CIDRMask(24, 32)}, Gw: gateway, Flags: int(netlink.FLAG_ONLINK),
			}),
		)
	})
}

// addPod connects a namespace to the bridge of the pods.
func (h plainHost) addPod(path string, number, mtu int) (networkEnd, error) {
	space, err := netns.Make(path)
	if err != nil {
		return networkEnd{}, err
	}
	file, err := space.Open()
	if err != nil {
		return networkEnd{}, err
	}
	defer file.Close()
	err = h.Do(func() error {
		bridge, err := netlink.LinkByName(plainBridge)
		if err != nil {
			return err
		}
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("pod-%d", number), MTU: mtu, MasterIndex: bridge.Attrs().Index},
			PeerName:  "eth0", PeerNamespace: netlink.NsFd(int(file.Fd())), PeerMTU: uint32(mtu),
		}
		return errors.Join(netlink.LinkAdd(veth), netlink.LinkSetUp(veth))
	})
	if err != nil {
		return networkEnd{}, err
	}
	address := plainPodAddress(h.number, number)
	err = space.Do(func() error {
		if err := setUp("eth0", address+"/24"); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(plainPodAddress(h.number, 1))})
	})
	return networkEnd{space, netip.MustParseAddr(address)}, err
}
