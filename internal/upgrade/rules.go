package upgrade

import (
	"fmt"
	"slices"
	"strings"
)

// Refusal is the error of what would not be safe. It is one sentence that says what to do.
type Refusal struct{ message string }

func (r *Refusal) Error() string { return r.message }

func refuse(format string, args ...any) error { return &Refusal{fmt.Sprintf(format, args...)} }

// CheckData refuses a data directory that a release must not use; have is its record, nil: it is a new one. Objects that a newer minor version has written may have
// fields that an older one would drop without a word. So with etcd in the directory an older one is refused even if the layout is the same. What a node
// keeps can be read by the minor version before.
func (r Record) CheckData(dir string, have *Record, hasObjects bool) error {
	if have == nil {
		return nil
	}
	oldest, back := -1, fmt.Sprintf("start %s again, or drain the node, stop skiff, run 'skiff clean', remove the directory and join again", have.Minor())
	if hasObjects {
		oldest, back = 0, fmt.Sprintf("start %s again, or restore a snapshot of %s ('skiff snapshot restore')", have.Minor(), r.Minor())
	}
	switch ahead := r.Ahead(have.Release); {
	case have.Layout > r.Layout:
		return refuse("skiff %s reads layouts up to %d, and %s has layout %d of %s: %s", r.Skiff, r.Layout, dir, have.Layout, have.Skiff, back)
	case ahead > 1:
		return refuse("skiff %s cannot use %s of %s: start %s on it first, because an upgrade goes through every minor version", r.Skiff, dir, have.Skiff, have.next())
	case ahead < oldest:
		return refuse("skiff %s cannot use %s, which the newer %s has written: %s", r.Skiff, dir, have.Skiff, back)
	}
	return nil
}

// CheckSnapshot refuses to restore a snapshot that a release must not use.
func (r Release) CheckSnapshot(saved Release) error {
	switch ahead := r.Ahead(saved); {
	case ahead < 0:
		return refuse("it was saved by the newer skiff %s: restore it with %s", saved.Skiff, saved.Minor())
	case ahead > 1:
		return refuse("it was saved by skiff %s: restore it with %s, start that, and go on from there, because an upgrade goes through every minor version",
			saved.Skiff, saved.next())
	}
	return nil
}

// Server is a server of a cluster.
type Server struct {
	Name    string
	Release Release
}

// CheckServers refuses a release of a server that the others cannot run with. level is the oldest release that the servers of the cluster have had since all of
// them were upgraded last; servers are the others.
func (r Release) CheckServers(level Release, servers []Server) error {
	switch ahead := r.Ahead(level); {
	case ahead < 0:
		return refuse("this server has skiff %s, and all of its cluster was upgraded to %s: start %s on it", r.Skiff, level.Minor(), level.Minor())
	case ahead > 1:
		who := "its cluster has"
		switch behind := behind(r, servers); len(behind) {
		case 0:
		case 1:
			who = behind[0] + " has"
		default:
			who = strings.Join(behind, ", ") + " have"
		}
		return refuse("this server has skiff %s, and %s %s: start %s on all servers first, because servers may be one minor version apart ('skiff member remove' "+
			"removes a server that is gone)", r.Skiff, who, level.Skiff, level.next())
	}
	return nil
}

// behind are the names of the servers that are more than one minor version older than a release.
func behind(r Release, servers []Server) []string {
	var names []string
	for _, s := range servers {
		if r.Ahead(s.Release) > 1 {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// CheckAgent refuses a release of an agent that is more than one minor version apart from its server.
func (r Release) CheckAgent(server Release) error {
	switch ahead := r.Ahead(server); {
	case ahead > 1:
		return refuse("this agent has skiff %s, and its server %s: upgrade the servers first, because an agent may be one minor version apart", r, server)
	case ahead < -1:
		return refuse("this agent has skiff %s, and its server %s: upgrade the agent to a version that is at most one minor version apart", r, server)
	}
	return nil
}
