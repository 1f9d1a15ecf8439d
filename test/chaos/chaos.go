// Package chaos kills servers at random moments while clients write and watch, and then checks the guarantees to clients: no
// acknowledged write is lost, histories are linearizable, and a watch resumes without gap, repetition or disorder.
package chaos
