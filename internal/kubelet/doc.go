// Package kubelet runs the pods of one node.
//
// Pods come from the API server, through a watch of the pods bound to this node, and from static pod manifests in files or at a URL
// (source.go, static.go). Each pod has a worker, a goroutine that moves it from syncing to terminating to terminated and never back
// (podworker.go). While a pod should run, its worker reads the pod's state from the container runtime, computes the actions to take
// with planPod, a pure function (plan.go), and carries them out (act.go). Runtime events, probe results, changes of the pod and timers
// wake the worker. Polling is left to what sends no events: manifests, orphaned pods, log sizes, and container runtimes without events.
//
// The packages below this one each implement one part of the kubelet. Most depend on none of the others; cri and status are shared by
// several. This package depends on interfaces where it can (interfaces.go); internal/system connects the implementations.
package kubelet
