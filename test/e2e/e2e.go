// Package e2e holds tests with real processes: skiff's program, the real kubectl, and upstream's programs to compare with
// and to run against. Each test has servers, directories and ports of its own and runs in parallel with others, except tests that
// measure.
package e2e
