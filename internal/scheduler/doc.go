// Package scheduler decides on which node each pod runs, and writes that decision down.
//
// The deciding part is pure: Schedule(snapshot, pod, profile) has no clock, no goroutine and does no I/O. The Snapshot it reads
// is not a copy made for every pod but one set of columns over nodes, changed in place as pods come and go: free resources as
// integers, labels and taints as small numbers, matching pods as counts by topology domain. What Schedule learns about a pod it
// keeps in a table beside the columns, so that the next pod of the same make costs only the nodes that changed since.
//
// Around it stands the doing part: the Queue holds pods that wait and wakes exactly those a change may help; the Scheduler takes
// one pod after another, assumes the decision, and binds in the background, many at a time; what fails is forgotten and
// tried again. Rules have upstream's names, order, weights and texts, and a KubeSchedulerConfiguration file arranges them.
//
// Follow one pod: watch.go (it arrives) → queue.go → run.go → schedule.go → bind.go. Why a pod is where it is, or why it is not
// anywhere, is told by Decision.Explain and Scheduler.Why.
package scheduler
