package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/cluster"
)

// etcdState is the members of etcd and the servers that they are in.
type etcdState struct {
	now time.Time
	// members is empty for an etcd that is alone, or an external one.
	members []cluster.Server
	servers []server
	// isPartial is set if not all servers could be asked.
	isPartial bool
}

// etcdReader reads the members.
func (c Cluster) etcdReader(s survey) func(context.Context) (etcdState, error) {
	return func(ctx context.Context) (etcdState, error) {
		state := etcdState{now: s.now, servers: s.responding(), isPartial: s.isOutside}
		servers, err := cluster.NewClient(c.Client.Config)
		if err != nil {
			return state, err
		}
		state.members, err = servers.List(ctx)
		if apierrors.IsNotFound(err) {
			return state, nil // a single server, an external etcd, or upstream's API server
		}
		return state, err
	}
}

// running are the IDs of the members whose servers respond.
func (s etcdState) running() map[string]bool {
	ids := map[string]bool{}
	for _, one := range s.servers {
		for _, id := range one.samples(metricEtcdID) {
			ids[id.labels["server_id"]] = true
		}
	}
	return ids
}

// maxLeaderChanges is how many changes of the leader in an hour are normal.
const maxLeaderChanges = 3

func decideEtcd(s etcdState) (findings []Finding) {
	for _, one := range s.servers {
		// A server with an external etcd has the metrics of an etcd that was never started.
		isStarted := len(one.samples(metricEtcdID)) > 0
		if leader, ok := one.value(metricEtcdHasLeader); ok && isStarted && leader == 0 {
			findings = append(findings, Finding{
				Severity: Error, Problem: "etcd at " + one.address + " has no leader", Breaks: "nothing can be written", When: whenNow,
				Fix: "start the other servers, or check the network between them; if they are lost: skiff server --cluster-reset, as docs/servers.md describes",
			})
		}
		for _, alarm := range one.samples(metricEtcdAlarms) {
			if alarm.value > 0 {
				findings = append(findings, alarmFinding(one.address, alarm.labels["alarm_type"]))
			}
		}
		started, ok := one.started()
		changes, found := one.value(metricEtcdChanges)
		if hours := s.now.Sub(started).Hours(); ok && found && hours > 0 && changes/max(hours, 1) > maxLeaderChanges {
			findings = append(findings, Finding{
				Severity: Warning, Problem: fmt.Sprintf("the leader of etcd has changed %.0f times in %s, by the count of %s", changes, durationText(s.now.Sub(started)), one.address),
				Breaks: "writes fail or wait for a second with each change", When: whenNow, Fix: "find what delays the servers: slow disks, a loaded CPU, or the network between them",
			})
		}
	}
	return append(findings, s.decideMembers()...)
}

func alarmFinding(address, alarm string) Finding {
	f := Finding{Severity: Error, Problem: fmt.Sprintf("etcd at %s has the alarm %s", address, alarm), When: whenNow}
	switch alarm {
	case "NOSPACE":
		f.Breaks, f.Fix = "writes are refused", "delete objects that are not needed, or raise --etcd-quota-backend-bytes; skiff ends the alarm when there is space"
	case "CORRUPT":
		f.Breaks, f.Fix = "the server is not ready: its data differ from those of the others", "remove the server (skiff member remove) and its directories etcd and pki, and let it join again; if it is alone, restore a snapshot"
	default:
		f.Breaks, f.Fix = "unknown", "read the log of the server"
	}
	return f
}

// decideMembers is about the number of members that vote, and how many of them may fail.
func (s etcdState) decideMembers() (findings []Finding) {
	running := s.running()
	voters, votersRunning := 0, 0
	var lost []string
	for _, m := range s.members {
		name := cmp.Or(m.Name, m.ID)
		switch {
		case m.IsLearner && m.Name == "":
			findings = append(findings, Finding{
				Severity: Warning, Problem: "a server was added to etcd and has not started: " + m.PeerURL, Breaks: "no other server can join", When: whenNow,
				Fix: "start it, or remove it: skiff member remove " + m.ID,
			})
		case m.IsLearner:
			findings = append(findings, Finding{
				Severity: Warning, Problem: "server " + name + " has not caught up: it is a learner", Breaks: "it does not count for the quorum, and no other server can join", When: "until it has caught up",
				Fix: "wait; if it lasts for minutes, read its log",
			})
		default:
			voters++
			if running[m.ID] {
				votersRunning++
			} else {
				lost = append(lost, name+" at "+m.PeerURL)
			}
		}
	}
	quorum := voters/2 + 1
	if len(lost) > 0 && len(running) > 0 && !s.isPartial {
		f := Finding{
			Severity: Error, Problem: fmt.Sprintf("%d of %d servers do not respond: %s", len(lost), voters, some(lost)), Breaks: "nothing can be written, because a majority of the servers is needed",
			When: "when one more server fails", Fix: "start it; if it is lost, remove it (skiff member remove NAME) and let another one join",
		}
		if votersRunning > quorum {
			f.Severity, f.When = Warning, fmt.Sprintf("when %d more servers fail", votersRunning-quorum+1)
		}
		findings = append(findings, f)
	}
	if voters > 0 && voters%2 == 0 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("%d servers vote, an even number", voters), Breaks: fmt.Sprintf("no more servers may fail than of %d", voters-1),
			When: fmt.Sprintf("when %d servers fail", voters-quorum+1), Fix: "let one more server join, or remove one",
		})
	}
	return findings
}

// What etcd's documentation recommends: 99 of 100 writes to its log within fsyncLimit, and 99 of 100 commits of its database within commitLimit. Above slowLimit leaders lose
// elections because of it. minSamples is how many writes tell something.
const (
	fsyncLimit   = 10 * time.Millisecond
	commitLimit  = 25 * time.Millisecond
	slowLimit    = time.Second
	minSamples   = 100
	slowQuantile = 0.99
)

// decideEtcdDisk is about slow disks.
func decideEtcdDisk(s survey) (findings []Finding) {
	for _, one := range s.responding() {
		for _, disk := range []struct {
			metric, what string
			limit        time.Duration
		}{{metricEtcdFsync, "writes of etcd's log", fsyncLimit}, {metricEtcdCommit, "commits of etcd's database", commitLimit}} {
			took, ok := one.quantile(disk.metric, slowQuantile, minSamples)
			if !ok || took < disk.limit {
				continue // it may be within the limit: buckets are coarse
			}
			f := Finding{
				Severity: Warning, Problem: fmt.Sprintf("1 of 100 %s at %s takes more than %v; etcd needs 99 within %v", disk.what, one.address, took, disk.limit),
				Breaks: "every write of the API waits for it", When: whenLater, Fix: "put the data directory on an SSD that it does not share with programs that write much",
			}
			if took > slowLimit {
				f.Severity, f.Breaks, f.When = Error, "writes time out, and with several servers the leader changes", whenNow
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// How much of the quota may be in use. skiff logs a warning at the first and refuses writes at the quota.
const (
	quotaWarning = 0.80
	quotaError   = 0.95
	// wastedBytes of the file, and more than half of it, should not be unused: then the embedded etcd is defragmented.
	wastedBytes = 512 << 20
)

// decideEtcdSize is about the size of the database.
func decideEtcdSize(s survey) (findings []Finding) {
	for _, one := range s.responding() {
		total, hasTotal := one.value(metricEtcdSize)
		inUse, hasInUse := one.value(metricEtcdInUse)
		quota, hasQuota := one.value(metricEtcdQuota)
		if !hasTotal || !hasInUse {
			continue
		}
		if hasQuota && inUse > quotaWarning*quota {
			f := Finding{
				Severity: Warning, Problem: fmt.Sprintf("etcd's database at %s has %s in use, %.0f%% of its quota of %s", one.address, bytesText(int64(inUse)), 100*inUse/quota, bytesText(int64(quota))),
				Breaks: "the API refuses writes other than deletions (507)", When: "at the quota",
				Fix: "find the objects that are not needed (kubectl get --raw /metrics | grep apiserver_resource_objects), or raise --etcd-quota-backend-bytes",
			}
			if inUse > quotaError*quota {
				f.Severity = Error
			}
			findings = append(findings, f)
		}
		if unused := total - inUse; unused > wastedBytes && unused > total/2 {
			findings = append(findings, Finding{
				Severity: Warning, Problem: fmt.Sprintf("etcd's database at %s has %s, of which %s are unused", one.address, bytesText(int64(total)), bytesText(int64(unused))),
				Breaks: "the disk is used up by nothing", When: whenLater, Fix: "an embedded etcd is defragmented within minutes, if its disk has space for a copy; an external one by 'etcdctl defrag'",
			})
		}
	}
	return findings
}
