// Package kubelet runs the pods of one node.
//
// The pods come from the API, by a watch of those that are bound to this node, and from files (static pods). Each has a worker, a
// goroutine that leads it from syncing over terminating to terminated and never back. While a pod should run, its worker looks at
// what the runtime reports, asks planPod, a pure function, what is to be done, and does it (act.go) through the container runtime,
// images, volumes and cgroups. Runtime events, probe results, changes of the pod and timers wake the worker; nothing polls.
//
// The parts have packages of their own below this one, which do not know each other: this package ties them together.
package kubelet
