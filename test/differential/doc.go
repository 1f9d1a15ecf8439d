// Package differential compares skiff's scheduling decisions with those of upstream's own code in one process, on random clusters
// and pods with every kind of constraint. Feasible nodes, the reasons why others are rejected, scores, preemption victims and the
// chosen preemption candidate must be the same. Package customresources does so for the schemas and the validation of custom
// resources, package assignments for the CPUs and the memory that a kubelet assigns to containers. It is a separate module because upstream's code has many dependencies.
package differential
