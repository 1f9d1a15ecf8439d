package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"skiff/internal/client"
)

// nodeState is what the checks need of a node: of thousands, no more is kept.
type nodeState struct {
	name string
	// ready is the status of the condition Ready, since when it has it, and why.
	ready   corev1.ConditionStatus
	since   time.Time
	message string
	// pressures are the other conditions that are true.
	pressures []string
	version   string
	// renewed is when its lease was renewed by its own clock; zero: not known.
	renewed time.Time
}

func newNodeState(n *corev1.Node) nodeState {
	s := nodeState{name: n.Name, ready: corev1.ConditionUnknown, since: n.CreationTimestamp.Time, version: n.Status.NodeInfo.KubeletVersion}
	for _, c := range n.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady:
			s.ready, s.since, s.message = c.Status, c.LastTransitionTime.Time, c.Message
		case c.Status == corev1.ConditionTrue:
			s.pressures = append(s.pressures, string(c.Type))
		}
	}
	return s
}

// nodesState is all nodes. now is by the clock of the servers.
type nodesState struct {
	now   time.Time
	nodes []nodeState
	// versions are those of the API servers.
	versions []string
}

// nodeReader reads the nodes and their leases.
func (c Cluster) nodeReader(s survey) func(context.Context) (nodesState, error) {
	return func(ctx context.Context) (nodesState, error) {
		state := nodesState{versions: s.versions()}
		renewed := map[string]time.Time{}
		err := client.For[*coordinationv1.Lease](c.Client).EachPage(ctx, corev1.NamespaceNodeLease, client.Selector{}, pageSize, func(page []*coordinationv1.Lease) error {
			for _, lease := range page {
				if lease.Spec.RenewTime != nil {
					renewed[lease.Name] = lease.Spec.RenewTime.Time
				}
			}
			return nil
		})
		if err != nil {
			return state, err
		}
		state.now = s.serverTime()
		err = client.For[*corev1.Node](c.Client).EachPage(ctx, "", client.Selector{}, pageSize, func(page []*corev1.Node) error {
			for _, node := range page {
				one := newNodeState(node)
				one.renewed = renewed[node.Name]
				state.nodes = append(state.nodes, one)
			}
			return nil
		})
		return state, err
	}
}

// serverTime is the time now by the clock of the first server.
func (s survey) serverTime() time.Time {
	now := time.Now()
	if all := s.responding(); len(all) > 0 {
		return now.Add(all[0].ahead)
	}
	return now
}

func (s survey) versions() (all []string) {
	for _, one := range s.responding() {
		if one.version != "" {
			all = append(all, one.version)
		}
	}
	return all
}

const (
	// evictionDelay is how long pods stay on a node that is not ready, by default.
	evictionDelay = 5 * time.Minute
	// leaseAhead is how far ahead of the servers' clock a lease may be renewed; leaseBehind how far behind one of a node that is ready: kubelets renew them every ten
	// seconds, and a node is not ready any more after forty.
	leaseAhead  = 5 * time.Second
	leaseBehind = time.Minute
)

// conditionBreaks are the conditions of nodes that are problems, and what they break.
var conditionBreaks = map[string]struct {
	severity    Severity
	breaks, fix string
}{
	string(corev1.NodeDiskPressure):       {Error, "no pods are scheduled there, images are deleted and pods evicted", "remove files or enlarge the disk: kubectl describe node"},
	string(corev1.NodeMemoryPressure):     {Error, "no best-effort pods are scheduled there, and pods are evicted", "lower the load, or give pods requests that fit"},
	string(corev1.NodePIDPressure):        {Error, "no pods are scheduled there, and pods are evicted", "find the pod with many processes, or set podPidsLimit"},
	string(corev1.NodeNetworkUnavailable): {Error, "pods there have no network, or do not reach those of other nodes", "kubectl describe node has the reason; docs/network.md has the ports"},
}

func decideNodes(s nodesState) (findings []Finding) {
	findings = append(findings, s.decideReady()...)
	findings = append(findings, s.decideConditions()...)
	findings = append(findings, s.decideNodeClocks()...)
	return append(findings, s.decideNodeVersions()...)
}

// decideReady is about nodes that are not ready. One finding for each reason: a whole rack may be lost.
func (s nodesState) decideReady() (findings []Finding) {
	var lost, unready []nodeState
	for _, n := range s.nodes {
		switch n.ready {
		case corev1.ConditionTrue:
		case corev1.ConditionUnknown:
			lost = append(lost, n)
		default:
			unready = append(unready, n)
		}
	}
	for _, group := range []struct {
		nodes         []nodeState
		problem, hint string
	}{
		{lost, "lost: their kubelets do not renew their leases", "start skiff on their hosts, or check the network to them; a node that does not come back: skiff node remove NAME"},
		{unready, "not ready", "kubectl describe node says why"},
	} {
		if len(group.nodes) == 0 {
			continue
		}
		slices.SortStableFunc(group.nodes, func(a, b nodeState) int { return a.since.Compare(b.since) })
		var names []string
		for _, n := range group.nodes {
			name := fmt.Sprintf("%s since %s", n.name, timeText(n.since))
			if len(group.nodes) == 1 && n.message != "" {
				name += " (" + n.message + ")"
			}
			names = append(names, name)
		}
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("%s %s: %s", plural(len(names), "node"), group.problem, some(names)), Breaks: "their pods are deleted, and run elsewhere if a controller made them",
			When: on(group.nodes[0].since.Add(evictionDelay), s.now), Fix: group.hint,
		})
	}
	return findings
}

func (s nodesState) decideConditions() (findings []Finding) {
	byCondition := map[string][]string{}
	for _, n := range s.nodes {
		for _, condition := range n.pressures {
			byCondition[condition] = append(byCondition[condition], n.name)
		}
	}
	conditions := make([]string, 0, len(byCondition))
	for condition := range byCondition {
		conditions = append(conditions, condition)
	}
	slices.Sort(conditions)
	for _, condition := range conditions {
		if known, ok := conditionBreaks[condition]; ok {
			names := byCondition[condition]
			findings = append(findings, Finding{
				Severity: known.severity, Problem: fmt.Sprintf("%s with the condition %s: %s", plural(len(names), "node"), condition, some(names)), Breaks: known.breaks, When: whenNow, Fix: known.fix,
			})
		}
	}
	return findings
}

// decideNodeClocks is about clocks of nodes, as their leases show them: a node that is ready has renewed its lease within a minute.
func (s nodesState) decideNodeClocks() []Finding {
	var names []string
	largest := time.Duration(0)
	for _, n := range s.nodes {
		if n.renewed.IsZero() || n.ready != corev1.ConditionTrue {
			continue
		}
		ahead := n.renewed.Sub(s.now)
		switch {
		case ahead > leaseAhead:
			names = append(names, fmt.Sprintf("%s at least %s ahead", n.name, durationText(ahead)))
		case -ahead > leaseBehind:
			names = append(names, fmt.Sprintf("%s about %s behind", n.name, durationText(-ahead)))
		default:
			continue
		}
		largest = max(largest, ahead.Abs())
	}
	if len(names) == 0 {
		return nil
	}
	f := Finding{
		Severity: Warning, Problem: fmt.Sprintf("the clocks of %s differ from that of the servers: %s", plural(len(names), "node"), some(names)), Breaks: "times of events and logs are wrong",
		When: whenNow, Fix: "synchronize them: timedatectl set-ntp true, or chrony",
	}
	if largest > leaseBehind+skewError {
		f.Severity, f.Breaks = Error, "tokens and certificates are refused there as not valid yet or expired, and times of events and logs are wrong"
	}
	return []Finding{f}
}

// maxKubeletSkew is how many minor versions older than the API servers a kubelet may be.
const maxKubeletSkew = 3

// decideNodeVersions is about kubelets that are too old or too new for the servers: the oldest server counts for the one, the newest for the other.
func (s nodesState) decideNodeVersions() (findings []Finding) {
	oldest, newest := minors(s.versions)
	if newest == 0 {
		return nil
	}
	var tooNew, tooOld []string
	for _, n := range s.nodes {
		minor, ok := minorOf(n.version)
		switch name := n.name + " has " + n.version; {
		case !ok:
		case minor > oldest:
			tooNew = append(tooNew, name)
		case minor+maxKubeletSkew < newest:
			tooOld = append(tooOld, name)
		}
	}
	if len(tooNew) > 0 {
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("%s newer than an API server, 1.%d: %s", plural(len(tooNew), "node"), oldest, some(tooNew)), Breaks: "the kubelets use fields and versions of the API that it does not have",
			When: whenNow, Fix: "upgrade the servers first, then the nodes",
		})
	}
	if len(tooOld) > 0 {
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("%s more than %d minor versions older than an API server, 1.%d: %s", plural(len(tooOld), "node"), maxKubeletSkew, newest, some(tooOld)),
			Breaks: "the kubelets use versions of the API that may have been removed", When: whenNow, Fix: "upgrade the nodes",
		})
	}
	return findings
}

// minorOf is the minor version of a release such as v1.37.1+skiff.0.1.0.
func minorOf(text string) (minor uint, ok bool) {
	v, err := version.ParseSemantic(text)
	if err != nil {
		return 0, false
	}
	return v.Minor(), true
}

// minors are the oldest and the newest minor version; 0 without any.
func minors(versions []string) (oldest, newest uint) {
	for _, text := range versions {
		if minor, ok := minorOf(text); ok {
			oldest, newest = min(cmp.Or(oldest, minor), minor), max(newest, minor)
		}
	}
	return oldest, newest
}

// decideServerVersions is about servers of different versions.
func decideServerVersions(s survey) []Finding {
	byVersion := map[string][]string{}
	for _, one := range s.responding() {
		if one.version != "" {
			byVersion[one.version] = append(byVersion[one.version], one.address)
		}
	}
	if len(byVersion) < 2 {
		return nil
	}
	var names []string
	for v, addresses := range byVersion {
		names = append(names, v+" at "+strings.Join(addresses, " and "))
	}
	slices.Sort(names)
	f := Finding{
		Severity: Warning, Problem: "the API servers have different versions: " + some(names), Breaks: "requests behave differently, whichever server they reach", When: "until all have the same",
		Fix: "go on with the upgrade, one server after the other",
	}
	if oldest, newest := minors(s.versions()); newest > oldest+1 {
		f.Severity, f.Breaks = Error, "the older servers may not be able to read what the newer ones write"
	}
	return []Finding{f}
}

// leader is the lease of the one process that leads.
type leader struct {
	name, holder string
	renewed      time.Time
	duration     time.Duration
}

// leadersState is the leases of the components of which one leads.
type leadersState struct {
	now     time.Time
	leaders []leader
}

// leaderLeases are the leases of the components that every cluster needs: the name of the component in skiff, and what happens when none leads.
var leaderLeases = map[string]struct{ component, breaks string }{
	"kube-controller-manager": {"controllers", "nothing is repaired: no pods are made for Deployments, Jobs and DaemonSets, no endpoints updated, nothing deleted"},
	"kube-scheduler":          {"scheduler", "new pods stay Pending"},
}

// leaderReader reads the leases.
func (c Cluster) leaderReader(s survey) func(context.Context) (leadersState, error) {
	return func(ctx context.Context) (leadersState, error) {
		members, err := c.etcdReader(s)(ctx)
		if err != nil {
			return leadersState{}, err
		}
		state := leadersState{now: s.serverTime()}
		err = client.For[*coordinationv1.Lease](c.Client).EachPage(ctx, metav1.NamespaceSystem, client.Selector{}, pageSize, func(page []*coordinationv1.Lease) error {
			for _, l := range page {
				known, ok := leaderLeases[l.Name]
				if !ok || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil || len(members.members) == 0 && s.runsAlone(known.component) {
					continue
				}
				one := leader{name: l.Name, renewed: l.Spec.RenewTime.Time, duration: time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second}
				if l.Spec.HolderIdentity != nil {
					one.holder = *l.Spec.HolderIdentity
				}
				state.leaders = append(state.leaders, one)
			}
			return nil
		})
		return state, err
	}
}

// runsAlone reports whether the only server runs a component without an election. A lease may be left from when there were several, or from a snapshot.
func (s survey) runsAlone(component string) bool {
	all := s.responding()
	if len(all) != 1 {
		return false
	}
	without, isServer := all[0].flags["without"]
	return isServer && all[0].flags["etcd-servers"] == "" && !slices.Contains(strings.Split(without, ","), component)
}

// leaderGrace is how much longer than its duration a lease may stay without a holder that renews it: another process takes it over, which may take several seconds, and the
// clocks of the processes may differ.
const leaderGrace = 30 * time.Second

func decideLeaders(s leadersState) (findings []Finding) {
	for _, l := range s.leaders {
		if s.now.Sub(l.renewed) <= l.duration+leaderGrace {
			continue
		}
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("nobody leads as %s: its lease was renewed last at %s, by %s", l.name, timeText(l.renewed), cmp.Or(l.holder, "nobody")),
			Breaks: leaderLeases[l.name].breaks, When: "since " + timeText(l.renewed.Add(l.duration)), Fix: "start a server with it, or read the logs of the servers for \"leader election\"",
		})
	}
	return findings
}
