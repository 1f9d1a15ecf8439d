package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

// The network of measureProxy: a pod with the client, and one that has the addresses of all endpoints.
const (
	proxyNode      = "node-1"
	podCIDR        = "10.64.0.0/10"
	clientAddress  = "10.64.0.2"
	serverAddress  = "10.64.0.3"
	endpointCIDR   = "10.65.0.0/16"
	serviceCIDR    = "10.96.0.0/12"
	gatewayAddress = "169.254.1.1"
	endpointPort   = 8080
	servicePort    = 80

	endpointsPerService = 10
	// fewServices is the number that connections through many Services are compared with.
	fewServices = 10
	// endpointChanges are the changes whose median is taken. They are more than minSyncPeriod apart, the default of both proxies, within which
	// changes wait for one another.
	endpointChanges = 15
	minSyncPeriod   = time.Second
	// proxyTimeout bounds the time until all Services are programmed.
	proxyTimeout = 10 * time.Minute
)

// prepareProxy builds kube-proxy, and nft, which it uses.
func prepareProxy(side string) error {
	if side == "skiff" {
		return nil
	}
	_, err := cluster.Upstream("kube-proxy", "nft")
	return err
}

// measureProxy measures skiff's Service proxy and kube-proxy in nftables mode, both against skiff's API server: how long they take to program
// all Services and the change of one endpoint, observed by the connections of a client, and what that costs.
func measureProxy(side, dir string, o options) ([]Row, error) {
	pods, err := newProxyPods(dir)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Skiff(dir)
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	m := &proxyBench{bench: b, pods: pods, side: side}
	if m.client, err = b.client(protobufType); err != nil {
		return nil, err
	}
	if _, err := m.client.CoreV1().Nodes().Create(context.Background(), proxyNodeObject(), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	costBefore, err := m.measureFew()
	if err != nil {
		return nil, err
	}
	if err := m.createServices(o.Services); err != nil {
		return nil, err
	}
	if err := m.measureProgramming(); err != nil {
		return nil, err
	}
	if side == "skiff" {
		cost, err := m.connectionCost()
		if err != nil {
			return nil, err
		}
		b.rows = append(b.rows, Row{
			Name: fmt.Sprintf("connection through a Service: from %d to %d Services", fewServices, o.Services), Value: 100 * (cost/costBefore - 1), Unit: "% longer", Limit: 5,
		})
	}
	return b.rows, m.measureChanges()
}

// measureFew measures connections while there are few Services, of skiff alone.
func (m *proxyBench) measureFew() (float64, error) {
	if m.side != "skiff" {
		return 0, nil
	}
	if err := m.createServices(fewServices); err != nil {
		return 0, err
	}
	p, err := m.startProxy()
	if err != nil {
		return 0, err
	}
	defer p.Stop()
	if err := m.waitProgrammed(p); err != nil {
		return 0, err
	}
	cost, err := m.connectionCost()
	if err != nil {
		return 0, err
	}
	p.Stop()
	clean, err := m.cluster.OwnProxy("--cleanup")
	if err != nil {
		return 0, err
	}
	if code := clean.Wait(); code != 0 {
		return 0, fmt.Errorf("skiff proxy --cleanup: exit code %d:\n%s", code, clean.Log(20))
	}
	return cost, nil
}

func proxyNodeObject() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: proxyNode},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: namespaces.NodeAddress}}},
	}
}

// proxyBench is the measurement of one proxy.
type proxyBench struct {
	*bench
	pods   *proxyPods
	side   string
	client *clientset.Clientset
	// services are the addresses of the Services.
	services []netip.AddrPort
}

// createServices creates Services, with their endpoints, until there are count.
func (m *proxyBench) createServices(count int) error {
	first := len(m.services)
	m.services = append(m.services, make([]netip.AddrPort, count-first)...)
	ctx := context.Background()
	return m.parallel(count-first, func(i int) error {
		i += first
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d", i)},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: servicePort}}},
		}
		service, err := m.client.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if m.services[i], err = netip.ParseAddrPort(net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(servicePort))); err != nil {
			return err
		}
		_, err = m.client.DiscoveryV1().EndpointSlices("default").Create(ctx, endpointSlice(i), metav1.CreateOptions{})
		return err
	})
}

// endpointSlice is the EndpointSlice of a Service.
func endpointSlice(service int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("service-%d", service), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", service)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](endpointPort), Name: ptr.To("")}},
	}
	for i := range endpointsPerService {
		s.Endpoints = append(s.Endpoints, readyEndpoint(endpointAddress(service*endpointsPerService+i)))
	}
	return s
}

func readyEndpoint(a netip.Addr) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}, NodeName: ptr.To("node-2")}
}

// endpointAddress is an address of the pod with all endpoints.
func endpointAddress(i int) netip.Addr {
	i++ // not that of the network
	a := netip.MustParsePrefix(endpointCIDR).Addr().As4()
	a[2], a[3] = byte(i>>8), byte(i)
	return netip.AddrFrom4(a)
}

func (m *proxyBench) startProxy() (*cluster.Process, error) {
	flags := []string{"--hostname-override=" + proxyNode, "--cluster-cidr=" + podCIDR}
	if m.side == "skiff" {
		return m.cluster.OwnProxy(flags...)
	}
	return m.cluster.KubeProxy(flags...)
}

// waitProgrammed waits until all Services can be reached. A proxy may program them in several steps, in any order. The client stays in its pod, and connects
// to many Services at once as soon as one can be reached: otherwise the connections take longer than what they observe.
func (m *proxyBench) waitProgrammed(p *cluster.Process) error {
	deadline := time.Now().Add(proxyTimeout)
	return m.pods.client.Do(func() error {
		remaining, count := m.services, 1
		for len(remaining) > 0 {
			n := min(count, len(remaining))
			unreached, err := connectAll(remaining[:n])
			if err != nil {
				return err
			}
			remaining, count = append(unreached, remaining[n:]...), connectionsAtOnce
			if len(unreached) == 0 {
				continue
			}
			if p.Exited() || time.Now().After(deadline) {
				return fmt.Errorf("Service at %s cannot be reached; end of the log of %s:\n%s", unreached[0], p.Name, p.Log(20))
			}
			count = 1
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
}

// cpuOf is the CPU time of a proxy and of the programs that it has started.
func cpuOf(p *cluster.Process) (time.Duration, error) {
	own, err := p.CPU()
	children, childrenErr := p.ChildrenCPU()
	return own + children, errors.Join(err, childrenErr)
}

// measureProgramming starts the proxy and measures it until all Services can be reached, and its memory then.
func (m *proxyBench) measureProgramming() error {
	began := time.Now()
	p, err := m.startProxy()
	if err != nil {
		return err
	}
	if err := m.waitProgrammed(p); err != nil {
		return err
	}
	wall := time.Since(began)
	used, err := cpuOf(p)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d Services of %d endpoints programmed", len(m.services), endpointsPerService)
	m.add(name+": CPU of the proxy", used.Seconds(), "s", 1./5)
	m.add(name+": since its start", wall.Seconds(), "s", 1./5)
	time.Sleep(10 * time.Second) // let the work after the start finish
	resident, err := p.Resident()
	if err != nil {
		return err
	}
	anonymous, err := p.Anonymous()
	m.add("the same: memory of the proxy", float64(resident)/(1<<20), "MiB", 1./4)
	m.add("the same: without the program's own file", float64(anonymous)/(1<<20), "MiB", 1./4)
	return err
}

// measureChanges measures the change of one endpoint of a Service with many: CPU; and of a Service with one: until connections lead to another
// endpoint.
func (m *proxyBench) measureChanges() error {
	p := m.cluster.Others[len(m.cluster.Others)-1]
	before, err := cpuOf(p)
	if err != nil {
		return err
	}
	slice := endpointSlice(0)
	for i := range endpointChanges {
		slice.Endpoints[0] = readyEndpoint(endpointAddress(len(m.services)*endpointsPerService + i))
		if err := m.updateSlice(slice); err != nil {
			return err
		}
		time.Sleep(minSyncPeriod + minSyncPeriod/10)
	}
	after, err := cpuOf(p)
	if err != nil {
		return err
	}
	m.add("change of one endpoint: CPU of the proxy", float64((after-before).Microseconds())/1000/endpointChanges, "ms", 1./10)
	waited := make([]time.Duration, endpointChanges)
	slice = endpointSlice(1)
	for i := range waited {
		address := endpointAddress(len(m.services)*endpointsPerService + i)
		slice.Endpoints = []discoveryv1.Endpoint{readyEndpoint(address)}
		began := time.Now()
		if err := m.updateSlice(slice); err != nil {
			return err
		}
		for {
			endpoint, err := m.pods.connect(m.services[1])
			if err != nil {
				return err
			}
			if waited[i] = time.Since(began); endpoint == address {
				break
			}
			if waited[i] > proxyTimeout {
				return fmt.Errorf("connections lead to %s, not to %s; end of the log of %s:\n%s", endpoint, address, p.Name, p.Log(20))
			}
		}
		time.Sleep(minSyncPeriod + minSyncPeriod/10)
	}
	slices.Sort(waited)
	m.add("change of one endpoint: until it is in force", float64(waited[endpointChanges/2].Microseconds())/1000, "ms", 1./10)
	return nil
}

func (m *proxyBench) updateSlice(s *discoveryv1.EndpointSlice) error {
	_, err := m.client.DiscoveryV1().EndpointSlices("default").Update(context.Background(), s, metav1.UpdateOptions{})
	return err
}

// connectionCost is the time of a connection through a random Service, divided by that of one to an endpoint itself. They alternate, so that
// both see the same host.
func (m *proxyBench) connectionCost() (float64, error) {
	const rounds = 20000
	through, direct := make([]time.Duration, rounds), make([]time.Duration, rounds)
	err := m.pods.client.Do(func() error {
		for i := range rounds {
			service := rand.IntN(len(m.services))
			endpoint := endpointAddress(service*endpointsPerService + rand.IntN(endpointsPerService))
			for _, step := range []struct {
				to   netip.AddrPort
				took []time.Duration
			}{{m.services[service], through}, {netip.AddrPortFrom(endpoint, endpointPort), direct}} {
				began := time.Now()
				c, err := dialTCP(step.to)
				step.took[i] = time.Since(began)
				if err != nil {
					return fmt.Errorf("connect to %s: %w", step.to, err)
				}
				_ = unix.Close(c)
			}
		}
		return nil
	})
	slices.Sort(through)
	slices.Sort(direct)
	return through[rounds/2].Seconds() / direct[rounds/2].Seconds(), err
}

// proxyPods are the pods of measureProxy.
type proxyPods struct{ client netns.Namespace }

// newProxyPods makes the pods and starts the server, which writes the address that a client has reached.
func newProxyPods(dir string) (*proxyPods, error) {
	client, err := newPod(dir, "client", clientAddress)
	if err != nil {
		return nil, err
	}
	server, err := newPod(dir, "server", serverAddress)
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName("server")
	if err != nil {
		return nil, err
	}
	_, endpoints, err := net.ParseCIDR(endpointCIDR)
	if err != nil {
		return nil, err
	}
	_, services, err := net.ParseCIDR(serviceCIDR)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: endpoints, Gw: net.ParseIP(serverAddress), Flags: int(netlink.FLAG_ONLINK)}),
		// A Service that is not programmed yet is refused at once.
		netlink.RouteAdd(&netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: services}),
		server.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{
				LinkIndex: lo.Attrs().Index, Dst: endpoints, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
			})
		}),
		server.Do(func() error {
			listener, err := net.Listen("tcp", fmt.Sprintf(":%d", endpointPort))
			if err == nil {
				go serveAddresses(listener)
			}
			return err
		}),
	)
	return &proxyPods{client: client}, err
}

// newPod makes a network namespace that is connected to this host.
func newPod(dir, name, address string) (netns.Namespace, error) {
	pod, err := netns.Make(filepath.Join(dir, name))
	if err != nil {
		return pod, err
	}
	return pod, pod.Join(name, []string{gatewayAddress + "/32"}, []string{address + "/32"})
}

// serveAddresses writes to each client the address that it has reached.
func serveAddresses(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(c.LocalAddr().String()))
		_ = c.Close()
	}
}

// connect connects from the client and returns the endpoint that it has reached.
func (p *proxyPods) connect(to netip.AddrPort) (endpoint netip.Addr, err error) {
	err = p.client.Do(func() error {
		fd, err := dialTCP(to)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		buffer := make([]byte, 100)
		n, err := unix.Read(fd, buffer)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(fd, buffer)
		}
		if err != nil {
			return err
		}
		address, err := netip.ParseAddrPort(strings.TrimSpace(string(buffer[:n])))
		endpoint = address.Addr().Unmap()
		return err
	})
	return endpoint, err
}

const (
	// connectTimeout bounds the time until a server answers.
	connectTimeout = 5 * time.Second
	// connectionsAtOnce are the connections of connectAll that are waited for together, for attemptTimeout: the refusal of a packet can be lost while the
	// connection is being made, and the packet is repeated a second later only.
	connectionsAtOnce = 256
	attemptTimeout    = 20 * time.Millisecond
)

// connectAll connects to all addresses and resets the connections. It returns the addresses that could not be reached.
func connectAll(to []netip.AddrPort) (unreached []netip.AddrPort, err error) {
	var pending []unix.PollFd
	addresses := map[int32]netip.AddrPort{}
	defer func() {
		for fd := range addresses {
			_ = unix.Close(int(fd))
		}
	}()
	for _, a := range to {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		addresses[int32(fd)] = a
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return nil, err
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()})
		switch {
		case errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR):
			pending = append(pending, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT})
		case err != nil:
			unreached = append(unreached, a)
		}
	}
	deadline := time.Now().Add(attemptTimeout)
	for len(pending) > 0 {
		wait := time.Until(deadline)
		if _, err := unix.Poll(pending, int(max(wait, 0).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		pending = slices.DeleteFunc(pending, func(p unix.PollFd) bool {
			if p.Revents == 0 && wait > 0 {
				return false
			}
			if p.Revents == 0 || socketError(int(p.Fd)) != nil {
				unreached = append(unreached, addresses[p.Fd])
			}
			return true
		})
	}
	return unreached, nil
}

// dialTCP connects and returns the socket, which is reset when it is closed: no closed connections accumulate.
func dialTCP(to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(connectTimeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
	)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	for errors.Is(err, unix.EINTR) { // a signal of Go's scheduler; the connection goes on
		if _, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(connectTimeout.Milliseconds())); err == nil {
			err = socketError(fd)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// socketError is the result of a connection that was waited for.
func socketError(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = syscall.Errno(code)
	}
	return err
}
