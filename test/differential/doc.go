// Package differential compares skiff's decisions with those of upstream's own code: random clusters, and pods with every kind of
// constraint, are shown to both in one process. Which nodes can take a pod, why the others cannot, how the nodes score, whom
// preemption would move away and how a way is chosen must be the same. It is a module of its own because upstream's
// code brings many others.
package differential
