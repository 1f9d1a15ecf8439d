// Package overlay is the network between nodes: it routes packets to the pods of other nodes, by VXLAN, by WireGuard, or directly where nodes
// share a network segment (host-gw).
//
// Compile is a pure function from Node objects and what is known about the host to a State: links, addresses, routes, neighbor and
// forwarding entries, WireGuard peers. A Writer keeps the state that it has applied and sends the kernel the difference; after an error it reads the
// kernel's state and sends the difference to that. Overlay watches Nodes and keeps the kernel's state until its context is done. What it
// has set up stays when it stops: pods keep their connections.
//
//	route     10.42.5.0/24 via 10.42.5.1 dev skiff-vxlan onlink
//	neighbor  10.42.5.1 is at 0a:f1:4e:02:77:c9
//	fdb       0a:f1:4e:02:77:c9 is at node 192.168.7.5
//
// Hardware address and address of a node's link follow from its pod CIDR, so that nodes need not exchange them.
package overlay
