// Package schedulertest builds nodes, pods, volumes and devices for the tests of the scheduler's packages.
package schedulertest
