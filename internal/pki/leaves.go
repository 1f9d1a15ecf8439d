package pki

import "net"

// The certificates of a cluster. The caller chooses the CA. Usually there are three, for the cluster, for front proxies
// and for etcd, so that none of them can issue certificates for another's purpose.

// User is the client certificate of an API user.
func User(name string, groups ...string) Leaf {
	return Leaf{CommonName: name, Organizations: groups, Client: true}
}

// FrontProxyClientName is the common name by which extension API servers recognize the aggregation layer.
const FrontProxyClientName = "front-proxy-client"

// FrontProxyClient is the client certificate of the aggregation layer. It is signed by the front-proxy CA.
func FrontProxyClient() Leaf { return User(FrontProxyClientName) }

// KubeletClient is the certificate with which the API server authenticates to kubelets.
func KubeletClient() Leaf { return User("kube-apiserver-kubelet-client", "system:masters") }

// NodeClient is the certificate with which a kubelet authenticates to the API server.
func NodeClient(node string) Leaf { return User("system:node:"+node, "system:nodes") }

// NodeServing is the serving certificate of a kubelet.
func NodeServing(node string, names []string, addresses []net.IP) Leaf {
	return Leaf{
		CommonName: "system:node:" + node, Organizations: []string{"system:nodes"},
		DNSNames: append([]string{node}, names...), IPs: addresses, Server: true,
	}
}

// EtcdMember is the certificate of an etcd member: for serving clients, for serving peers and as a peer's client. It is
// signed by the etcd CA.
func EtcdMember(name string, addresses []net.IP) Leaf {
	return Leaf{
		CommonName: name, DNSNames: []string{"localhost", name},
		IPs:    append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, addresses...),
		Server: true, Client: true,
	}
}

// EtcdClient is the certificate with which the API server authenticates to etcd.
func EtcdClient() Leaf { return User("kube-apiserver-etcd-client") }
