// Package proxy is the Service proxy of a node: it makes the kernel translate packets to Services into packets to their endpoints, as
// kube-proxy's nftables mode does.
//
// Everything is computed by pure functions. Compile turns one Service, its EndpointSlices and what is known about the node into a part of an
// nftables table (nft.Part); base is the part that is always there. Proxy watches Services, EndpointSlices, ServiceCIDRs and its own
// Node, compiles the Services that have changed, and sends what differs to the kernel in one transaction.
//
// The table is data: a Service has elements in a few maps that all Services share, and chains are shared by all Services of the same shape.
//
//	packet to 10.43.0.5 . tcp . 80
//	  service-ips4            10.43.0.5 . tcp . 80 : goto cluster4-3
//	  chain cluster4-3        dnat to (ip daddr . meta l4proto . th dport . numgen random mod 3) map @cluster-endpoints4
//	  cluster-endpoints4      10.43.0.5 . tcp . 80 . 0 : 10.42.1.7 . 8080
//
// A packet costs a fixed number of hash lookups, however many Services there are, and one endpoint that comes or goes changes a few
// elements. Only Services with session affinity, and load balancers with source ranges, have chains of their own.
package proxy
