// Package decision decides where a pod goes and records why. Schedule and Preempt ask the plugins of a profile about the nodes of a
// snapshot; a Decision keeps what they said in a compact form, and Explain writes it out. Log keeps the last decisions for queries.
//
// What plugins say about pods with equal specs is kept in tables beside the snapshot (Snapshot.Memo), which follow its log of changed
// nodes. Nothing here does I/O, has a clock or starts a goroutine.
package decision
