package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	// snapshotGrace is how long after its time a snapshot may be saved: databases of several gigabytes take minutes.
	snapshotGrace = 15 * time.Minute
	// maxSnapshotAge is how old the last snapshot of a server without a schedule may be.
	maxSnapshotAge = 7 * 24 * time.Hour
)

// decideSnapshots is about snapshots that failed or are overdue, by the servers' metrics. Each server saves snapshots of the whole cluster, so one schedule is enough.
func decideSnapshots(s survey) (findings []Finding) {
	isKnown, isScheduled := false, false
	newest := time.Time{}
	for _, one := range s.responding() {
		last, ok := one.value(metricLastSnapshot)
		if !ok {
			continue // an external etcd, or not skiff
		}
		isKnown = true
		if at := time.Unix(int64(last), 0); last > 0 && at.After(newest) {
			newest = at
		}
		schedule := one.flags["snapshot-schedule"]
		isScheduled = isScheduled || schedule != "" || one.flags == nil
		findings = append(findings, one.decideSchedule(s.now, schedule, int64(last))...)
	}
	if isKnown && !isScheduled && s.now.Sub(newest) > maxSnapshotAge {
		f := Finding{
			Severity: Warning, Problem: "no server saves snapshots on schedule", Breaks: "the cluster cannot be restored", When: "when the disks of the servers are lost, or objects are deleted by mistake",
			Fix: "start a server with --snapshot-schedule \"0 */6 * * *\", and keep the passphrase on another host: docs/backup.md",
		}
		if !newest.IsZero() {
			f.Problem += "; the last one was saved at " + timeText(newest)
		}
		findings = append(findings, f)
	}
	return findings
}

// decideSchedule is about the snapshots of one server. last is when it saved one since it was started; 0: never.
func (s server) decideSchedule(now time.Time, schedule string, last int64) (findings []Finding) {
	failed := 0.0
	for _, count := range s.samples(metricSnapshots) {
		if count.labels["result"] == "error" {
			failed = count.value
		}
	}
	const fix = "read its log for \"failed to save\"; try again with 'skiff snapshot save'"
	started, hasStarted := s.started()
	since := started
	if last > 0 {
		since = time.Unix(last, 0)
	}
	parsed, err := cron.ParseStandard(schedule)
	if schedule != "" && err == nil && hasStarted {
		if due := dueAt(parsed, since); now.Sub(due) > snapshotGrace {
			saved := "none was saved since the server was started"
			if last > 0 {
				saved = "the last one was saved at " + timeText(since)
			}
			return []Finding{{
				Severity: Error, Problem: fmt.Sprintf("the snapshot of %s was due at %s (%s); %s, and %.0f failed", s.address, timeText(due), strings.TrimSpace(schedule), saved, failed),
				Breaks: "what has changed since cannot be restored", When: "when the disks of the servers are lost", Fix: fix,
			}}
		}
	}
	if failed > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("%s of %s failed since it was started", plural(int(failed), "snapshot"), s.address), Breaks: "there are fewer snapshots to restore than expected", When: "when one is needed", Fix: fix,
		})
	}
	return findings
}

// dueAt is when a snapshot is due after one at a time. The schedule is in the server's time zone, which may be another than this host's, so that only its interval counts.
func dueAt(schedule cron.Schedule, since time.Time) time.Time {
	first := schedule.Next(since)
	if next := since.Add(schedule.Next(first).Sub(first)); next.After(first) {
		return next
	}
	return first
}
