// Package snapshot holds the cluster as the scheduler sees it: columns over nodes, changed in place by SetNode, SetPod, Assume, Forget
// and SetObject. Resources are integers, labels and taints are small numbers, and pods that match a term are counted by topology
// domain, so that plugins compare numbers in loops over nodes.
//
// A Snapshot is not safe for concurrent use. Simulate moves pods and undoes it; Fork makes a private copy for a query.
package snapshot
