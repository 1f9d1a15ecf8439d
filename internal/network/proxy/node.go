package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/client"
	"skiff/internal/network/hostnet"
	"skiff/internal/network/nodeaddr"
)

// NodePortAddresses say on which of the host's addresses node ports are served.
type NodePortAddresses struct {
	// Primary are the node's own addresses, All all of the host's except loopback ones, and CIDRs those in one of them.
	Primary, All bool
	CIDRs        []netip.Prefix
}

// ParseNodePortAddresses parses the values of --nodeport-addresses. Empty means primary.
func ParseNodePortAddresses(texts []string) (n NodePortAddresses, err error) {
	if len(texts) == 0 {
		return NodePortAddresses{Primary: true}, nil
	}
	for _, text := range texts {
		switch text {
		case "primary":
			n.Primary = true
			continue
		case "all":
			n.All = true
			continue
		}
		prefix, parseErr := netip.ParsePrefix(text)
		switch {
		case text == "localhost" || parseErr == nil && prefix.Addr().IsLoopback() && prefix.Bits() > 0:
			err = errors.Join(err, fmt.Errorf("%q: node ports are not served on loopback addresses", text))
		case parseErr != nil:
			err = errors.Join(err, fmt.Errorf("%q is neither a CIDR nor one of primary, all", text))
		default:
			n.CIDRs = append(n.CIDRs, prefix.Masked())
		}
	}
	return n, err
}

// all reports whether node ports of a family are served on all addresses. CIDRs of one family alone do not restrict the other.
func (n NodePortAddresses) all(is4 bool) bool {
	ofFamily := func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }
	everything := func(p netip.Prefix) bool { return ofFamily(p) && p.Bits() == 0 }
	return n.All || slices.ContainsFunc(n.CIDRs, everything) || !n.Primary && !slices.ContainsFunc(n.CIDRs, ofFamily)
}

// addresses returns the addresses on which node ports are served.
func (n NodePortAddresses) addresses(primary, host []netip.Addr) (all []netip.Addr) {
	if n.Primary {
		all = slices.Clone(primary)
	}
	for _, a := range host {
		if slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(all, a) && !a.IsLoopback() {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// newNode reads what the proxy has to know about the node.
func (p *Proxy) newNode(object *corev1.Node) Node {
	n := Node{Name: p.NodeName, AllIPv4NodePorts: p.NodePortAddresses.all(true), AllIPv6NodePorts: p.NodePortAddresses.all(false), ServiceCIDRs: p.serviceCIDRs()}
	if object != nil {
		n.Zone, n.IPs = object.Labels[corev1.LabelTopologyZone], nodeaddr.Primary(object)
	}
	if p.NodeIP.IsValid() {
		n.IPs = slices.DeleteFunc(n.IPs, func(a netip.Addr) bool { return a.Is4() == p.NodeIP.Is4() })
		n.IPs = append([]netip.Addr{p.NodeIP}, n.IPs...)
	}
	if p.LocalByPodCIDRs && object != nil {
		n.PodCIDRs = nodeaddr.PodCIDRs(object)
	}
	host, err := hostnet.Addresses()
	if err != nil {
		p.Log.Warn("failed to list the host's addresses, node ports may not be served on all of them", "error", err)
	}
	n.NodePortIPs = p.NodePortAddresses.addresses(n.IPs, host)
	return n
}

// serviceCIDRs are the ranges of all ServiceCIDRs that are in use.
func (p *Proxy) serviceCIDRs() (all []netip.Prefix) {
	for _, object := range p.cidrs.List("", nil) {
		for _, text := range object.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil && !slices.Contains(all, prefix.Masked()) {
				all = append(all, prefix.Masked())
			}
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr())*256 + a.Bits() - b.Bits() })
	return all
}

func (n Node) equal(other Node) bool {
	return n.Name == other.Name && n.Zone == other.Zone && n.AllIPv4NodePorts == other.AllIPv4NodePorts && n.AllIPv6NodePorts == other.AllIPv6NodePorts && slices.Equal(n.IPs, other.IPs) &&
		slices.Equal(n.NodePortIPs, other.NodePortIPs) && slices.Equal(n.PodCIDRs, other.PodCIDRs) && slices.Equal(n.ServiceCIDRs, other.ServiceCIDRs)
}

// currentNode is the Node object, or nil.
func (p *Proxy) currentNode() *corev1.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodeObject
}

func (p *Proxy) setNode(object *corev1.Node) {
	p.mu.Lock()
	p.nodeObject, p.baseChanged = object, true
	p.mu.Unlock()
	p.signal()
}

// watchNode follows the node's own object until ctx is done.
func (p *Proxy) watchNode(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.followNode(ctx); err != nil && ctx.Err() == nil {
			p.Log.Debug("watch of the node was interrupted", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (p *Proxy) followNode(ctx context.Context) error {
	nodes := client.For[*corev1.Node](p.Client)
	match := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", p.NodeName)}
	list, revision, err := nodes.List(ctx, "", match)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if len(list) > 0 {
		p.setNode(list[0])
	}
	events, err := nodes.Watch(ctx, "", match, revision)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		switch {
		case event.Type == watch.Error:
			return errors.New("watch ended with an error event")
		case ok && (event.Type == watch.Added || event.Type == watch.Modified):
			p.setNode(node)
		}
	}
	return nil
}
