package pki

import "net"

// The certificates of a cluster, by whom they are for. Which authority signs which is the caller's choice; usually there are
// three: the cluster's own, one for front proxies and one for etcd, so that none can speak for another.

// User is the certificate of a user of the API.
func User(name string, groups ...string) Leaf {
	return Leaf{CommonName: name, Organizations: groups, Client: true}
}

// FrontProxyClientName is the common name by which extension servers know the aggregation layer.
const FrontProxyClientName = "front-proxy-client"

// FrontProxyClient is what the aggregation layer shows to extension servers. The front-proxy authority signs it.
func FrontProxyClient() Leaf { return User(FrontProxyClientName) }

// KubeletClient is what the API server shows to kubelets.
func KubeletClient() Leaf { return User("kube-apiserver-kubelet-client", "system:masters") }

// NodeClient is what a kubelet shows to the API server.
func NodeClient(node string) Leaf { return User("system:node:"+node, "system:nodes") }

// NodeServing is what a kubelet serves with.
func NodeServing(node string, names []string, addresses []net.IP) Leaf {
	return Leaf{
		CommonName: "system:node:" + node, Organizations: []string{"system:nodes"},
		DNSNames: append([]string{node}, names...), IPs: addresses, Server: true,
	}
}

// EtcdMember is what a member of etcd serves its clients with, and shows to and serves its peers with. The etcd authority
// signs it.
func EtcdMember(name string, addresses []net.IP) Leaf {
	return Leaf{
		CommonName: name, DNSNames: []string{"localhost", name},
		IPs:    append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, addresses...),
		Server: true, Client: true,
	}
}

// EtcdClient is what the API server shows to etcd.
func EtcdClient() Leaf { return User("kube-apiserver-etcd-client") }
