// Package connect carries requests through the API server to where an answer is a stream and not an object: logs, exec,
// attach and port-forward to the kubelet of a pod's node, and the proxies to pods, services and nodes.
//
// The server stands between: it has authenticated and authorized the client, and speaks to the other side under its
// own name. The client's credentials go no further, redirects are handed back and never followed, and addresses that
// lead back to the server's own machine or its network segment are refused.
package connect

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver"
	"skiff/internal/kind"
)

// Objects looks things up in the API.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error)
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error)
}

// Config says what connectors need.
type Config struct {
	Objects Objects
	// Kubelet proves the server to kubelets, and kubelets to the server.
	Kubelet *tls.Config
}

// The resources that are looked up.
var (
	pods           = schema.GroupResource{Resource: "pods"}
	nodes          = schema.GroupResource{Resource: "nodes"}
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// connector makes a function a connector.
type connector func(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error

// Connect implements apiserver.Connector.
func (f connector) Connect(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	return f(w, r, c)
}

// roads are the ways to the other sides.
type roads struct {
	objects Objects
	kubelet *http.Transport
	// unverified is the way to a kubelet for a client that does not insist on its certificate.
	unverified *http.Transport
	// nodes is the way to a kubelet for a client that chooses the path, and may have chosen the node's address as well.
	nodes *http.Transport
	// workloads is the way to pods and services, whose certificates nobody knows.
	workloads *http.Transport
}

func newRoads(c Config) *roads {
	unverified := c.Kubelet.Clone()
	unverified.InsecureSkipVerify = true
	return &roads{
		objects:    c.Objects,
		kubelet:    newTransport(c.Kubelet, nil),
		unverified: newTransport(unverified, nil),
		nodes:      newTransport(c.Kubelet, refuseNearby),
		workloads:  newTransport(&tls.Config{InsecureSkipVerify: true}, refuseNearby),
	}
}

// New returns the connectors by resource and subresource.
func New(c Config) map[string]apiserver.Connector { return newRoads(c).connectors() }

func (r *roads) connectors() map[string]apiserver.Connector {
	return map[string]apiserver.Connector{
		"pods/log":         connector(r.podLog),
		"pods/exec":        connector(r.podExec),
		"pods/attach":      connector(r.podAttach),
		"pods/portforward": connector(r.podPortForward),
		"pods/proxy":       connector(r.podProxy),
		"services/proxy":   connector(r.serviceProxy),
		"nodes/proxy":      connector(r.nodeProxy),
	}
}

// newTransport speaks HTTP/1.1 alone: a connection that is upgraded belongs to one stream.
func newTransport(t *tls.Config, check func(address string) error) *http.Transport {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	if check != nil {
		dialer.ControlContext = checkedControl(check)
	}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     t,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		IdleConnTimeout:     90 * time.Second,
		// What the other side compressed is the client's to unpack.
		DisableCompression: true,
	}
}
