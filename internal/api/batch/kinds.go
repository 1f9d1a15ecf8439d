// Package batch has the rows of work that ends: Job, and CronJob, which makes jobs by the clock.
package batch

import "skiff/internal/kind"

// Kinds are the kinds of group batch.
func Kinds() []*kind.Kind {
	return []*kind.Kind{CronJob, Job}
}
