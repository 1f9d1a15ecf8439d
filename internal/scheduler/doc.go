// Package scheduler decides on which node each pod runs, and writes that decision to the API server.
//
// Deciding is pure: decision.Schedule(snapshot, pod, profile) has no clock, no goroutine and does no I/O. The snapshot it reads is not
// copied for every pod; it is one set of columns over nodes, changed in place as pods are added and removed. What plugins said about
// a pod is kept in a table, so that the next pod with the same spec costs only the nodes that changed since.
//
// This package does the rest: the Scheduler takes one pod after another from the queue, assumes the decision, and binds in the
// background, many pods at a time. What fails is forgotten and retried. Plugins have upstream's names, order, weights and messages, and
// a KubeSchedulerConfiguration file arranges them.
//
// Follow one pod: watch.go → queue/queue.go → run.go → decision/schedule.go → plugins → bind.go → binding. Why a pod is on its node, or on none,
// is explained by Decision.Explain and Scheduler.Why.
package scheduler
