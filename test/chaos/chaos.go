// Package chaos kills servers at random moments while clients write and watch, and breaks the hosts, networks and disks of several servers and
// agents. Then it checks the guarantees to clients: no acknowledged write is lost, histories are linearizable, a watch resumes without gap,
// repetition or disorder, and no two pods with one identity run at the same time.
package chaos
