// Package connect serves the subresources that are streams: logs, exec, attach and port-forward, which it forwards to the kubelet
// of the pod's node, and the proxies to pods, services and nodes.
//
// The API server has authenticated and authorized the client, and authenticates to the backend as itself. It does not forward the
// client's credentials, returns redirects without following them, and rejects loopback and link-local addresses.
package connect

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver"
	"skiff/internal/egress"
	"skiff/internal/webhook"
)

// Config is what the connectors need.
type Config struct {
	Objects webhook.Objects
	// Kubelet has the server's client certificate for kubelets and the CA that verifies theirs.
	Kubelet *tls.Config
	// AddressTypes is the order of preference of a node's addresses. Empty: IP addresses before names.
	AddressTypes []corev1.NodeAddressType
	// Dial connects to nodes and pods; nil: the network of the host is used.
	Dial egress.DialFunc
	// ThroughKubelets: the host has no route to pods. They are reached through the kubelets of their nodes.
	ThroughKubelets bool
}

// The resources that are read.
var (
	pods     = schema.GroupResource{Resource: "pods"}
	nodes    = schema.GroupResource{Resource: "nodes"}
	services = schema.GroupResource{Resource: "services"}
)

// connector is a function that implements apiserver.Connector.
type connector func(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error

// Connect implements apiserver.Connector.
func (f connector) Connect(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	return f(w, r, c)
}

// backends are the transports to kubelets and workloads.
type backends struct {
	objects  webhook.Objects
	services *webhook.Services
	kubelet  *http.Transport
	// unverified does not verify the kubelet's certificate (insecureSkipTLSVerifyBackend).
	unverified *http.Transport
	// nodes is for the node proxy, whose client chooses the path and may control the node's address.
	nodes *http.Transport
	// workloads is for pods and services, whose certificates cannot be verified.
	workloads *http.Transport
	// addressTypes is the order of preference of a node's addresses.
	addressTypes []corev1.NodeAddressType
}

func newBackends(c Config) *backends {
	unverified := c.Kubelet.Clone()
	unverified.InsecureSkipVerify = true
	if len(c.AddressTypes) == 0 {
		c.AddressTypes = defaultAddressTypes
	}
	b := &backends{
		addressTypes: c.AddressTypes,
		objects:      c.Objects,
		services:     &webhook.Services{Objects: c.Objects},
		kubelet:      newTransport(c.Kubelet, c.Dial, nil),
		unverified:   newTransport(unverified, c.Dial, nil),
		nodes:        newTransport(c.Kubelet, c.Dial, rejectLocal),
		workloads:    newTransport(&tls.Config{InsecureSkipVerify: true}, c.Dial, rejectLocal),
	}
	if c.ThroughKubelets {
		b.dialWorkloadsThroughKubelets(c.Kubelet)
	}
	return b
}

// New returns the connectors by resource and subresource.
func New(c Config) map[string]apiserver.Connector { return newBackends(c).connectors() }

func (b *backends) connectors() map[string]apiserver.Connector {
	return map[string]apiserver.Connector{
		"pods/log":         connector(b.podLog),
		"pods/exec":        connector(b.podExec),
		"pods/attach":      connector(b.podAttach),
		"pods/portforward": connector(b.podPortForward),
		"pods/proxy":       connector(b.podProxy),
		"services/proxy":   connector(b.serviceProxy),
		"nodes/proxy":      connector(b.nodeProxy),
	}
}

// newTransport uses HTTP/1.1 only: an upgraded connection belongs to one stream. Addresses are checked if check is not nil; dial is nil
// if they are reached by the network of the host.
func newTransport(t *tls.Config, dial egress.DialFunc, check func(address string) error) *http.Transport {
	switch {
	case dial == nil:
		dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
		if check != nil {
			dialer.ControlContext = checkedControl(check)
		}
		dial = dialer.DialContext
	case check != nil:
		dial = egress.Checked(dial, net.DefaultResolver.LookupNetIP, check)
	}
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     t,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		// Compressed responses are passed on as they are.
		DisableCompression: true,
	}
}
