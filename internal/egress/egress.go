// Package egress decides by which network the API server reaches other servers: directly, or through a proxy that an
// EgressSelectorConfiguration names for the control plane, etcd or the cluster (nodes, pods, services). The proxies speak HTTP CONNECT over
// TCP, TLS or a UNIX socket.
package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"

	"skiff/internal/configfile"
)

// The names of the networks.
const (
	ControlPlane = "controlplane"
	Etcd         = "etcd"
	Cluster      = "cluster"
)

// DialFunc connects to an address.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Selector has the dialers of the configured networks; nil for direct connections. A nil *Selector has none.
type Selector struct{ dialers map[string]DialFunc }

// Has reports whether a network is configured, if only to be reached directly.
func (s *Selector) Has(network string) bool {
	if s == nil {
		return false
	}
	_, ok := s.dialers[network]
	return ok
}

// Dialer returns the dialer of a network; nil if the network of the host is used.
func (s *Selector) Dialer(network string) DialFunc {
	if s == nil {
		return nil
	}
	return s.dialers[network]
}

// Read reads an EgressSelectorConfiguration file. An empty path has no proxies.
func Read(path string) (*Selector, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// All versions have the same fields.
	var file configv1beta1.EgressSelectorConfiguration
	if err := configfile.Decode(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	group, version, _ := strings.Cut(file.APIVersion, "/")
	if group != "apiserver.k8s.io" && group != "apiserver.config.k8s.io" || version != "v1beta1" && version != "v1alpha1" || file.Kind != "EgressSelectorConfiguration" {
		return nil, fmt.Errorf("%s: %q of %q is not an EgressSelectorConfiguration of apiserver.k8s.io/v1beta1", path, file.Kind, file.APIVersion)
	}
	s, errs := newSelector(&file)
	if len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", path, errs.ToAggregate())
	}
	return s, nil
}

func newSelector(c *configv1beta1.EgressSelectorConfiguration) (*Selector, field.ErrorList) {
	s := &Selector{dialers: map[string]DialFunc{}}
	var errs field.ErrorList
	for i := range c.EgressSelections {
		selection, fldPath := &c.EgressSelections[i], field.NewPath("egressSelections").Index(i)
		name := strings.ToLower(selection.Name)
		switch {
		case name != ControlPlane && name != Etcd && name != Cluster:
			errs = append(errs, field.NotSupported(fldPath.Child("name"), selection.Name, []string{ControlPlane, Etcd, Cluster}))
			continue
		case s.Has(name):
			errs = append(errs, field.Duplicate(fldPath.Child("name"), selection.Name))
			continue
		}
		proxy, connectionErrs := newProxy(&selection.Connection, fldPath.Child("connection"))
		errs = append(errs, connectionErrs...)
		s.dialers[name] = nil
		if proxy != nil {
			s.dialers[name] = proxy.dial
		}
	}
	return s, errs
}

// proxy is a server that tunnels connections.
type proxy struct {
	network, address string
	tls              *tls.Config // nil: the connection to the proxy is not encrypted
}

// newProxy makes the proxy of a connection; nil for a direct one.
func newProxy(c *configv1beta1.Connection, fldPath *field.Path) (*proxy, field.ErrorList) {
	transport := fldPath.Child("transport")
	switch c.ProxyProtocol {
	case configv1beta1.ProtocolDirect:
		if c.Transport != nil {
			return nil, field.ErrorList{field.Forbidden(transport, "must be absent for a direct connection")}
		}
		return nil, nil
	case configv1beta1.ProtocolHTTPConnect:
	case configv1beta1.ProtocolGRPC:
		return nil, field.ErrorList{field.Invalid(fldPath.Child("proxyProtocol"), c.ProxyProtocol, "skiff does not speak the GRPC protocol of konnectivity: use HTTPConnect, which its server offers as well")}
	default:
		return nil, field.ErrorList{field.NotSupported(fldPath.Child("proxyProtocol"), c.ProxyProtocol, []configv1beta1.ProtocolType{configv1beta1.ProtocolDirect, configv1beta1.ProtocolHTTPConnect})}
	}
	switch {
	case c.Transport == nil || c.Transport.TCP == nil && c.Transport.UDS == nil:
		return nil, field.ErrorList{field.Required(transport, "one of tcp or uds must be set for HTTPConnect")}
	case c.Transport.TCP != nil && c.Transport.UDS != nil:
		return nil, field.ErrorList{field.Forbidden(transport, "tcp and uds cannot both be set")}
	case c.Transport.TCP != nil:
		return newTCPProxy(c.Transport.TCP, transport.Child("tcp"))
	case c.Transport.UDS.UDSName == "":
		return nil, field.ErrorList{field.Required(transport.Child("uds", "udsName"), "")}
	}
	return &proxy{network: "unix", address: c.Transport.UDS.UDSName}, nil
}

func newTCPProxy(c *configv1beta1.TCPTransport, fldPath *field.Path) (*proxy, field.ErrorList) {
	location, err := url.Parse(c.URL)
	if err != nil || location.Scheme != "http" && location.Scheme != "https" || location.Port() == "" {
		return nil, field.ErrorList{field.Invalid(fldPath.Child("url"), c.URL, "must be http://HOST:PORT or https://HOST:PORT")}
	}
	p := &proxy{network: "tcp", address: location.Host}
	if location.Scheme == "http" {
		if c.TLSConfig != nil {
			return nil, field.ErrorList{field.Forbidden(fldPath.Child("tlsConfig"), "must be absent for http")}
		}
		return p, nil
	}
	if c.TLSConfig == nil {
		return nil, field.ErrorList{field.Required(fldPath.Child("tlsConfig"), "must be present for https")}
	}
	if p.tls, err = newTLS(c.TLSConfig, location.Hostname()); err != nil {
		return nil, field.ErrorList{field.Invalid(fldPath.Child("tlsConfig"), c.URL, err.Error())}
	}
	return p, nil
}

// newTLS is the TLS configuration of a proxy with a host name.
func newTLS(c *configv1beta1.TLSConfig, host string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("clientCert and clientKey: %w", err)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ServerName: c.TLSServerName}
	if secure.ServerName == "" {
		secure.ServerName = host
	}
	if c.CABundle != "" {
		text, err := os.ReadFile(c.CABundle)
		if err != nil {
			return nil, fmt.Errorf("caBundle: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("caBundle: no certificate found")
		}
	}
	return secure, nil
}

const (
	// dialTimeout bounds the connection to the proxy and the proxy's response.
	dialTimeout = 30 * time.Second
	// maxResponseBytes bounds the header of the proxy's response.
	maxResponseBytes = 1 << 20
)

// dial connects to an address through the proxy.
func (p *proxy) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if err := validateAddress(address); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if p.tls != nil {
		dialer = &tls.Dialer{Config: p.tls}
	}
	conn, err := dialer.DialContext(ctx, p.network, p.address)
	if err != nil {
		return nil, fmt.Errorf("connect to the egress proxy %s: %w", p.address, err)
	}
	// Closing the connection ends a read that waits for a proxy which does not respond.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err = p.tunnel(conn, address)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to %s through the egress proxy %s: %w", address, p.address, err)
	}
	return conn, nil
}

// validateAddress accepts an IP address or a DNS name, and a port. Addresses of nodes are what their kubelets report: nothing else may be
// written into a request to the proxy.
func validateAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("invalid address %q: %w", address, err)
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.Zone() != "" {
		name := strings.ToLower(strings.TrimSuffix(host, "."))
		if msgs := validation.IsDNS1123SubdomainWithUnderscore(name); len(msgs) > 0 {
			return fmt.Errorf("invalid address %q: the host is neither an IP address nor a DNS name", address)
		}
	}
	if msgs := validation.IsValidPortNum(parsePort(port)); len(msgs) > 0 {
		return fmt.Errorf("invalid address %q: the port %s", address, msgs[0])
	}
	return nil
}

// parsePort returns 0, which is not a port, for anything but decimal digits.
func parsePort(text string) int {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(port)
}

// tunnel asks the proxy to connect to an address.
func (p *proxy) tunnel(conn net.Conn, address string) error {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: address}, Host: address, Header: http.Header{"User-Agent": nil}}
	if err := request.Write(conn); err != nil {
		return err
	}
	reader := bufio.NewReader(io.LimitReader(conn, maxResponseBytes))
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy responded %s", response.Status)
	}
	if reader.Buffered() > 0 {
		return errors.New("the proxy sent data before the connection was used")
	}
	return nil
}

// Checked returns a dialer that connects only to addresses which check accepts. The proxy resolves names; as upstream does, they are
// resolved here as well and each of their addresses is checked. What the proxy's own resolver returns is for the proxy to restrict.
func Checked(dial DialFunc, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error), check func(address string) error) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		addresses := make([]netip.Addr, 1)
		if addresses[0], err = netip.ParseAddr(host); err != nil {
			if addresses, err = lookup(ctx, "ip", host); err != nil {
				return nil, err
			}
		}
		for _, ip := range addresses {
			if err := check(net.JoinHostPort(ip.String(), port)); err != nil {
				return nil, err
			}
		}
		return dial(ctx, network, address)
	}
}
