// Package binding binds pods to the nodes that were chosen for them.
//
// The scheduling loop calls Reserve with a decision, assumes the pod, and calls Binder.Bind in a goroutine. Bind writes the volumes and
// device allocations of the pod, waits until they are ready, and writes the Binding. If it fails, the loop calls Binder.Release, which
// reverts the reservation and what was written to resource claims. Binder.Cancel ends the binding of a pod that still waits for volumes or
// devices; preemption uses it.
//
// Nothing here has a lock on the snapshot: functions that take a *snapshot.Snapshot are called with its lock held, and Bind reads the
// snapshot only through Config.WithSnapshot.
package binding
