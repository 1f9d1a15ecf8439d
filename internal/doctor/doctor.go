// Package doctor examines a host on which skiff is to run, and a cluster that runs, and says what will break, when, and what to do about it.
//
// A Check has a name and a function that returns findings. Most checks are made with examine, of two functions: one reads a state, and a pure one
// decides what is wrong with it. There is a file for each theme; Host.Checks, Node.Checks and Cluster.Examine list the checks.
//
// Checks only read. Each has a bounded time, and what they read of a cluster is read page by page, so that the memory they need does not grow with the objects
// of a large one. What a check finds about many objects is one finding that names a few of them.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Severity is how bad a finding is.
type Severity string

const (
	// Error is for what is broken, or will break unless something is done.
	Error Severity = "error"
	// Warning is for what does less than it could, or breaks only together with something else.
	Warning Severity = "warning"
)

// Finding is something that is wrong.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the name of the check that found it. Run sets it.
	Check string `json:"check"`
	// Problem is what was found, and where.
	Problem string `json:"problem"`
	// Breaks is what will break because of it, and When is when.
	Breaks string `json:"breaks"`
	When   string `json:"when"`
	// Fix is what to do.
	Fix string `json:"fix"`
}

// Check examines one thing.
type Check struct {
	Name string
	// Run returns what is wrong. An error says why the check could not be made; that is a warning. Run must return when the context is done, except from
	// system calls that cannot be interrupted.
	Run func(ctx context.Context) ([]Finding, error)
}

// Report is the result of checks.
type Report struct {
	// Checks are the names of the checks that were run.
	Checks []string `json:"checks"`
	// Findings are those of all checks, errors first.
	Findings []Finding `json:"findings"`
}

// Add adds the results of other checks.
func (r *Report) Add(other Report) {
	r.Checks = append(r.Checks, other.Checks...)
	r.Findings = append(r.Findings, other.Findings...)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
}

// Count is the number of findings of a severity.
func (r *Report) Count(severity Severity) int {
	count := 0
	for _, f := range r.Findings {
		if f.Severity == severity {
			count++
		}
	}
	return count
}

// maxParallel is how many checks run at the same time.
const maxParallel = 8

// Run runs checks in parallel, each for at most the timeout.
func Run(ctx context.Context, checks []Check, timeout time.Duration) Report {
	results := make([][]Finding, len(checks))
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i, check := range checks {
		group.Go(func() error {
			results[i] = check.run(ctx, timeout)
			return nil
		})
	}
	_ = group.Wait() // always nil
	report := Report{Checks: make([]string, len(checks)), Findings: []Finding{}}
	for i, check := range checks {
		report.Checks[i] = check.Name
	}
	report.Add(Report{Findings: slices.Concat(results...)})
	return report
}

// run runs a check. One that does not return in time is left behind: a system call on a file system that does not respond cannot be interrupted, and the process
// is about to end.
func (c Check) run(ctx context.Context, timeout time.Duration) []Finding {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type result struct {
		findings []Finding
		err      error
	}
	done := make(chan result, 1)
	go func() {
		findings, err := c.Run(ctx)
		done <- result{findings, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil {
		r.findings = append(r.findings, notExamined(r.err, timeout))
	}
	for i := range r.findings {
		r.findings[i].Check = c.Name
	}
	return r.findings
}

// notExamined is the finding of a check that could not be made.
func notExamined(err error, timeout time.Duration) Finding {
	f := Finding{Severity: Warning, Problem: "not examined: " + err.Error(), Breaks: "unknown", When: "unknown", Fix: "remove the cause and examine again"}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.Problem = fmt.Sprintf("not examined: it takes longer than %v", timeout)
		f.Fix = "give it more time with --timeout"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		f.Fix = "examine as root"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		f.Fix = "examine with an administrator's kubeconfig"
	}
	return f
}

// examine makes a check of a function that reads a state and one that decides what is wrong with it.
func examine[T any](name string, read func(context.Context) (T, error), decide func(T) []Finding) Check {
	return Check{Name: name, Run: func(ctx context.Context) ([]Finding, error) {
		state, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return decide(state), nil
	}}
}

// The times at which something breaks.
const (
	whenNow     = "now"
	whenStarted = "when skiff is started"
	whenLater   = "when the load grows"
)

// on is a time at which something breaks.
func on(at, now time.Time) string {
	left := at.Sub(now)
	if left <= 0 {
		return "since " + timeText(at)
	}
	return fmt.Sprintf("%s, in %s", timeText(at), durationText(left))
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// durationText is a duration in the largest unit of which there are at least two.
func durationText(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return d.Round(100 * time.Millisecond).String()
}

// maxNames is how many objects a finding names.
const maxNames = 5

// some names the first objects of a list.
func some(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// plural is a number of things.
func plural(count int, one string) string {
	if count == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", count, one)
}

// bytesText is an amount of memory or disk space.
func bytesText(n int64) string {
	const kib = 1 << 10
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < kib {
			break
		}
		value, unit = value/kib, next
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
