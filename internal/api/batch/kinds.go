// Package batch has the kinds Job and CronJob.
package batch

import "skiff/internal/kind"

// Kinds are the kinds of group batch.
func Kinds() []*kind.Kind {
	return []*kind.Kind{CronJob, Job}
}
