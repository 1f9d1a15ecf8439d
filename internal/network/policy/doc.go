// Package policy enforces the NetworkPolicies of the pods of a node with nftables: see docs/decisions/0029-network-policies.md.
//
// Compiler turns NetworkPolicies, Pods and Namespaces into parts of an nft.Model. It does no I/O, and works incrementally: a change costs what it
// changes. Its result depends on the objects alone, not on their history. Policy watches the objects, gives the changed ones to a Compiler, sends the
// difference to the kernel in one transaction, and deletes the connections that have become denied. The CNI plugin waits for it before a pod
// gets its network (Policy.Announce).
//
// The words of the compiler:
//
//   - a target is a pod of this node that policies select: it is isolated in one direction or in both;
//   - a profile is what a set of policies allows in one direction; targets that the same policies select share one;
//   - a class is a set of pods that are equal as peers: the same selectors of profiles match them.
//
// The table has, for each class, the targets that accept it and on which ports.
package policy
