package upgrade

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// Observed is what is known of a data directory and of its cluster before an upgrade.
type Observed struct {
	// Dir is the data directory, Data its record; nil: there is none. HasData is set if skiff has used the directory.
	Dir     string
	Data    *Record
	HasData bool
	// HasObjects is set if the data directory has an etcd.
	HasObjects bool
	// IsAgent is set if the data directory is an agent's.
	IsAgent bool
	// URL is that of the API server that has answered, API its release. Empty: none has.
	URL string
	API Release
	// Servers are those of the cluster, Nodes its nodes.
	Servers []ObservedServer
	Nodes   []ObservedNode
	// DeprecatedAPIs have been requested since the servers started.
	DeprecatedAPIs []DeprecatedAPI
	// UnknownAPIs is set if not all servers have told which.
	UnknownAPIs bool
	Definitions []Definition
	// Snapshot is when the newest snapshot was saved; zero: there is none.
	Snapshot time.Time
	// Unknown says what could not be examined, and why.
	Unknown []string
}

// ObservedServer is a server of the cluster. Its release is empty if it is not known.
type ObservedServer struct {
	Server
	// Host is its address.
	Host     string
	IsLeader bool
}

// ObservedNode is a node of the cluster.
type ObservedNode struct {
	Name    string
	Release Release
	// Hosts are its addresses.
	Hosts []string
}

// DeprecatedAPI is a version of a resource that is going to be removed.
type DeprecatedAPI struct {
	Group, Version, Resource string
	// RemovedRelease is the version of Kubernetes that does not serve it any more, such as 1.40; empty: none is decided.
	RemovedRelease string
}

// Definition is a custom resource definition.
type Definition struct {
	Name string
	// Storage is the version that objects are stored in, Stored those in which objects may be stored.
	Storage string
	Stored  []string
}

// State says what a finding means for the upgrade.
type State string

// The states of findings, from harmless to serious.
const (
	OK      State = "ok"
	Warning State = "warning"
	Refused State = "refused"
)

// Finding is one thing that was examined.
type Finding struct {
	State         State
	Subject, Text string
}

// Plan says what an upgrade would do.
type Plan struct {
	// From is what the cluster or the data directory has now; nil: nothing is known.
	From     *Release
	To       Release
	Findings []Finding
	// Order are the machines to upgrade, one after the other.
	Order []string
}

// snapshotAge is how old the newest snapshot may be.
const snapshotAge = 24 * time.Hour

// NewPlan says what an upgrade to a record's release would do.
func NewPlan(to Record, o Observed, now time.Time) Plan {
	p := &Plan{To: to.Release, From: from(o)}
	p.checkData(to, o)
	p.checkServers(to.Release, o)
	p.checkNodes(to.Release, o.Nodes)
	p.checkAPIs(to.Release, o)
	p.checkDefinitions(o.Definitions)
	if !o.IsAgent {
		p.checkSnapshot(o.Snapshot, now)
	}
	p.describeMigration(to, o)
	for _, unknown := range o.Unknown {
		p.add(Warning, "not examined", "%s", unknown)
	}
	p.Order = order(to.Release, o)
	return *p
}

// from is the release that is upgraded.
func from(o Observed) *Release {
	switch {
	case o.Data != nil:
		return &o.Data.Release
	case o.URL != "":
		return &o.API
	}
	return nil
}

func (p *Plan) add(state State, subject, format string, args ...any) {
	p.Findings = append(p.Findings, Finding{state, subject, fmt.Sprintf(format, args...)})
}

// check adds what a rule says: the refusal, or that there is none.
func (p *Plan) check(subject string, err error, format string, args ...any) {
	if err != nil {
		p.add(Refused, subject, "%s", err.Error())
		return
	}
	p.add(OK, subject, format, args...)
}

func (p *Plan) checkData(to Record, o Observed) {
	const subject = "data directory"
	switch {
	case !o.HasData:
		return
	case o.Data == nil:
		p.add(Warning, subject, "%s has no %s: a skiff without releases has written it", o.Dir, File)
	default:
		p.check(subject, to.CheckData(o.Dir, o.Data, o.HasObjects), "%s was written by %s in layout %d", o.Dir, o.Data.Release, o.Data.Layout)
	}
}

// checkServers checks the other servers, or the server of an agent.
func (p *Plan) checkServers(to Release, o Observed) {
	if o.URL == "" {
		return
	}
	if o.IsAgent {
		p.check("server", to.CheckAgent(o.API), "%s has %s", o.URL, o.API)
		return
	}
	var known []Server
	var level *Release
	for _, s := range o.Servers {
		if s.Release == (Release{}) {
			p.add(Warning, "server", "%s: its version is not known", s.Name)
			continue
		}
		known = append(known, s.Server)
		if level == nil || s.Release.Ahead(*level) < 0 {
			level = &s.Release
		}
	}
	if level == nil {
		level = &o.API
	}
	if o.API.Skiff == "" {
		p.add(Warning, "server", "%s is another implementation of Kubernetes, with %s: see docs/migration.md", o.URL, o.API)
		return
	}
	p.check("servers", to.CheckServers(*level, known), "%d, the oldest has %s", max(1, len(known)), *level)
}

// checkNodes checks the nodes. Those of skiff may be one minor version apart from the servers; upstream's kubelets as upstream supports it: three
// older, and not newer.
func (p *Plan) checkNodes(to Release, nodes []ObservedNode) {
	refused := false
	for _, n := range nodes {
		ahead, supported := to.Ahead(n.Release), "nodes may be one minor version apart from their servers"
		isSupported := ahead >= -1 && ahead <= 1
		if n.Release.Skiff == "" {
			isSupported, supported = ahead >= 0 && ahead <= 3, "a kubelet may be three minor versions older than its servers, and not newer"
		}
		if isSupported {
			continue
		}
		refused = true
		what := "upgrade it to " + n.Release.next() + " first"
		if ahead < 0 {
			what = "it is too new"
		}
		p.add(Refused, "node", "%s has %s: %s, because %s", n.Name, n.Release, what, supported)
	}
	if len(nodes) > 0 && !refused {
		p.add(OK, "nodes", "%d, all close enough to %s", len(nodes), to.name())
	}
}

func (p *Plan) checkAPIs(to Release, o Observed) {
	for _, api := range o.DeprecatedAPIs {
		name := strings.TrimPrefix(api.Group+"/"+api.Version, "/") + " " + api.Resource
		switch {
		case api.RemovedRelease == "":
			p.add(OK, "deprecated API", "%s is requested by clients; no release removes it yet", name)
		case isRemoved(api.RemovedRelease, to):
			p.add(Warning, "removed API", "%s is requested by clients, and Kubernetes %s does not serve it any more: change the clients first", name, to.Kubernetes)
		default:
			p.add(Warning, "deprecated API", "%s is requested by clients, and Kubernetes %s removes it", name, api.RemovedRelease)
		}
	}
	if o.URL != "" && !o.IsAgent && !o.UnknownAPIs && len(o.DeprecatedAPIs) == 0 {
		p.add(OK, "deprecated APIs", "none was requested since the servers started")
	}
}

// isRemoved reports whether a release no longer has what is removed in a version of Kubernetes.
func isRemoved(in string, r Release) bool {
	v, err := utilversion.ParseGeneric(in)
	if err != nil {
		return false
	}
	has, err := utilversion.ParseGeneric(r.Kubernetes)
	return err == nil && has.AtLeast(v)
}

func (p *Plan) checkDefinitions(definitions []Definition) {
	old := false
	for _, d := range definitions {
		others := slices.DeleteFunc(slices.Clone(d.Stored), func(version string) bool { return version == d.Storage })
		if len(others) > 0 {
			old = true
			p.add(Warning, "custom resource", "%s: objects may be stored in %s; write them again, so that they are stored in %s, before a version is removed from the definition",
				d.Name, strings.Join(others, ", "), d.Storage)
		}
	}
	if len(definitions) > 0 && !old {
		p.add(OK, "custom resources", "%d definitions, all objects are stored in the storage version", len(definitions))
	}
}

func (p *Plan) checkSnapshot(saved, now time.Time) {
	const save, subject = "'skiff snapshot save --name before-upgrade' saves one (with an external etcd: etcdctl)", "snapshot"
	switch age := now.Sub(saved); {
	case saved.IsZero():
		p.add(Warning, subject, "none was found, and only a snapshot leads back: %s", save)
	case age > snapshotAge:
		p.add(Warning, subject, "the newest is %s old: %s", age.Round(time.Hour), save)
	default:
		p.add(OK, subject, "the newest is %s old", age.Round(time.Minute))
	}
}

// describeMigration says what of the data is changed.
func (p *Plan) describeMigration(to Record, o Observed) {
	if o.Data == nil {
		return
	}
	var changes []string
	for layout := o.Data.Layout + 1; layout <= to.Layout; layout++ {
		changes = append(changes, fmt.Sprintf("layout %d: %s", layout, migrations[layout]))
	}
	switch {
	case len(changes) > 0:
		p.add(OK, "migration", "%s", strings.Join(changes, "; "))
	case to.Ahead(o.Data.Release) > 0:
		p.add(OK, "migration", "nothing is rewritten; objects are stored in newer versions when they are written the next time")
	default:
		p.add(OK, "migration", "nothing is rewritten")
	}
}

// order is the order in which machines are upgraded: servers before nodes, and the leader of etcd last of the servers, so that it changes once.
func order(to Release, o Observed) []string {
	servers := slices.Clone(o.Servers)
	slices.SortStableFunc(servers, func(a, b ObservedServer) int {
		return cmp.Or(compareBool(a.IsLeader, b.IsLeader), strings.Compare(a.Name, b.Name))
	})
	var machines, hosts []string
	for _, s := range servers {
		hosts = append(hosts, s.Host)
		if s.Release != to {
			machines = append(machines, "server "+s.Name)
		}
	}
	for _, n := range slices.SortedFunc(slices.Values(o.Nodes), func(a, b ObservedNode) int { return strings.Compare(a.Name, b.Name) }) {
		isServer := slices.ContainsFunc(n.Hosts, func(host string) bool { return slices.Contains(hosts, host) })
		if n.Release != to && n.Release.Skiff != "" && !isServer {
			machines = append(machines, "node "+n.Name)
		}
	}
	return machines
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Err is the error of an upgrade that would be refused.
func (p Plan) Err() error {
	for _, f := range p.Findings {
		if f.State == Refused {
			return fmt.Errorf("the upgrade would be refused: %s", f.Text)
		}
	}
	return nil
}

// Write writes the plan for people to read.
func (p Plan) Write(out io.Writer) error {
	installed := "unknown"
	if p.From != nil {
		installed = p.From.String()
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(w, "from:\t%s\nto:\t%s\n\n", installed, p.To)
	for _, f := range p.Findings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.State, f.Subject, f.Text)
	}
	if err := w.Flush(); err != nil || len(p.Order) == 0 {
		return err
	}
	text := "\nUpgrade in this order, and wait for each to be ready:\n"
	for i, machine := range p.Order {
		text += fmt.Sprintf("%3d. %s\n", i+1, machine)
	}
	_, err := io.WriteString(out, text)
	return err
}
