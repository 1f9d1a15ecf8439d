// Package churn creates, changes and deletes everything that a cluster runs, round after round, and checks that nothing is left behind: no mount,
// cgroup, link or process of a pod after a round, and no memory, file or goroutine over many of them.
package churn
