package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// dumpOf writes out everything a snapshot knows, in an order of its own, so that two can be compared. Numbers that only tell in
// which order things came are left out.
func dumpOf(s *Snapshot) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, n := range s.nodeNumber {
		nd := &s.nodes[n]
		if nd.name != name {
			add("node %s has number %d, which is %s", name, n, nd.name)
		}
		var pods, coming, ports []string
		for i, p := range nd.pods {
			pods = append(pods, fmt.Sprint(p.info.Pod.UID, p.assumed))
			if p.place != i || p.node != n || s.pods[p.info.Pod.UID] != p {
				add("pod %s is lost", p.info.Pod.UID)
			}
		}
		for _, p := range s.nominated[n] {
			coming = append(coming, string(p.info.Pod.UID))
			if s.nominatedAt[p.info.Pod.UID] != p {
				add("nominated pod %s is lost", p.info.Pod.UID)
			}
		}
		for _, p := range nd.ports {
			ports = append(ports, fmt.Sprint(p))
		}
		slices.Sort(pods)
		slices.Sort(coming)
		slices.Sort(ports)
		var resources []string
		named := map[int]string{cpu: "cpu", memory: "memory", storage: "storage", 3: "pods"}
		for resource, r := range s.extended {
			named[r] = string(resource)
		}
		for r := range s.allocatable {
			if s.allocatable[r][n] != 0 || s.requested[r][n] != 0 {
				resources = append(resources, fmt.Sprint(named[r], "=", s.requested[r][n], "/", s.allocatable[r][n]))
			}
		}
		slices.Sort(resources)
		var labels []string
		for key, c := range s.columns {
			if c.of[n] != none {
				labels = append(labels, key+"="+c.values[c.of[n]])
			}
		}
		slices.Sort(labels)
		add("node %s exists=%v closed=%v taints=%v %v assumed=%d,%d labels=%v pods=%v coming=%v ports=%v images=%v", name, s.exists[n] && nd.object != nil, s.closed[n],
			s.taintSets[s.taints[n]].taints, resources, s.assumed[cpu][n], s.assumed[memory][n], labels, pods, coming, ports, nd.images)
		if s.identity.of[n] != n {
			add("node %s is in domain %d of its own", name, s.identity.of[n])
		}
	}
	for namespace, pods := range s.byNamespace {
		for i, p := range pods {
			if p.inSpace != i || p.info.Pod.Namespace != namespace {
				add("pod %s is lost in %s", p.info.Pod.UID, namespace)
			}
		}
		add("namespace %s has %d pods", namespace, len(pods))
	}
	for name, i := range s.images {
		add("image %s of %d on %d nodes", name, i.size, i.nodes)
	}
	for claim, users := range s.claimUsers {
		add("claim %s has %d users", claim, users)
	}
	for _, c := range s.counters {
		for domain, n := range c.pods {
			if n != 0 {
				add("counter %q has %d in %s", c.key, n, s.domainName(c.column, int32(domain)))
			}
		}
		for domain, n := range c.domains {
			if n != 0 {
				add("counter %q has %d nodes in %s", c.key, n, s.domainName(c.column, int32(domain)))
			}
		}
		add("counter %q has %d in all", c.key, c.total)
	}
	for key, h := range s.holders {
		if h.total == 0 {
			continue // it may stay for a while
		}
		for domain, n := range h.pods {
			if n != 0 {
				add("holder %v has %d in %s", key, n, s.domainName(h.column, int32(domain)))
			}
		}
		add("holder %v has %d in all", key, h.total)
	}
	add("%d nodes, %d pods, %d nominated", s.count, len(s.pods), len(s.nominatedAt))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (s *Snapshot) domainName(c *labelColumn, domain int32) string {
	if c == s.identity {
		return s.nodes[domain].name
	}
	return c.values[domain]
}
