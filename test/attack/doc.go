// Package attack holds tests that attack a running API server from outside, as its clients can: one file for each attack.
//
// An attack passes when what the server holds for the attacker is bounded while it lasts and released soon after, although the attacker
// keeps its connections: memory, goroutines and the seats of priority and fairness, which are read from the server's metrics.
// Nothing is asserted on time, because tests share their host; TestHostileClients alone compares times with those that it has measured
// itself, in windows that alternate, and only when other programs have left it the host.
package attack
