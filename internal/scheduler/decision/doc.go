// Package decision schedules a pod and records why. Schedule and Preempt run the plugins of a profile on the nodes of a snapshot; a
// Decision keeps the results in compact form, and Explain expands them. Log keeps the last decisions for queries.
//
// Results for pods with equal specs are cached in tables (Snapshot.Memo), which are updated by the snapshot's log of changed nodes. Nothing here does I/O, has a clock or starts a goroutine.
package decision
