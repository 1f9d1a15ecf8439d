// Package e2e holds tests with real processes: skiff's program, the real kubectl, and upstream's programs to compare with
// and to run against.
package e2e
