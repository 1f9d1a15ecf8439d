package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// Dump returns the whole content of a snapshot as sorted text, for tests that compare snapshots. Numbers that depend on the order of
// changes are left out.
func (s *Snapshot) Dump() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, n := range s.NodeNumbers {
		nd := &s.NodeInfos[n]
		if nd.Name != name {
			add("node %s has number %d, which is %s", name, n, nd.Name)
		}
		var pods, nominated, ports []string
		for i, p := range nd.Pods {
			pods = append(pods, fmt.Sprint(p.Info.Pod.UID, p.Assumed))
			if p.nodeIndex != i || p.Node != n || s.PodEntries[p.Info.Pod.UID] != p {
				add("pod %s is lost", p.Info.Pod.UID)
			}
		}
		for _, p := range s.NominatedPods[n] {
			nominated = append(nominated, string(p.Info.Pod.UID))
			if s.Nominations[p.Info.Pod.UID] != p {
				add("nominated pod %s is lost", p.Info.Pod.UID)
			}
		}
		for _, p := range nd.HostPorts {
			ports = append(ports, fmt.Sprint(p))
		}
		slices.Sort(pods)
		slices.Sort(nominated)
		slices.Sort(ports)
		var resources []string
		named := map[int]string{ResourceCPU: "cpu", ResourceMemory: "memory", ResourceEphemeralStorage: "storage", 3: "pods"}
		for resource, r := range s.extendedResources {
			named[r] = string(resource)
		}
		for r := range s.Allocatable {
			if s.Allocatable[r][n] != 0 || s.Requested[r][n] != 0 {
				resources = append(resources, fmt.Sprint(named[r], "=", s.Requested[r][n], "/", s.Allocatable[r][n]))
			}
		}
		slices.Sort(resources)
		var set []string
		for key, c := range s.LabelColumns {
			if c.ValueOf[n] != NoValue {
				set = append(set, key+"="+c.Values[c.ValueOf[n]])
			}
		}
		slices.Sort(set)
		add("node %s exists=%v unschedulable=%v taints=%v %v assumed=%d,%d labels=%v pods=%v nominated=%v ports=%v images=%v", name, s.Exists[n] && nd.Node != nil, s.Unschedulable[n],
			s.TaintSets[s.NodeTaintSets[n]].Taints, resources, s.NonZeroRequested[ResourceCPU][n], s.NonZeroRequested[ResourceMemory][n], set, pods, nominated, ports, nd.Images)
		if s.HostColumn.ValueOf[n] != n {
			add("node %s is in domain %d of its own", name, s.HostColumn.ValueOf[n])
		}
	}
	for namespace, pods := range s.podsByNamespace {
		for i, p := range pods {
			if p.namespaceIndex != i || p.Info.Pod.Namespace != namespace {
				add("pod %s is lost in %s", p.Info.Pod.UID, namespace)
			}
		}
		add("namespace %s has %d pods", namespace, len(pods))
	}
	for name, i := range s.Images {
		add("image %s of %d on %d nodes", name, i.Size, i.Nodes)
	}
	for claim, users := range s.ClaimUsers {
		add("claim %s has %d users", claim, users)
	}
	for _, c := range s.Counters {
		for domain, n := range c.Pods {
			if n != 0 {
				add("counter %q has %d in %s", c.key, n, s.domainName(c.Column, int32(domain)))
			}
		}
		for domain, n := range c.Domains {
			if n != 0 {
				add("counter %q has %d nodes in %s", c.key, n, s.domainName(c.Column, int32(domain)))
			}
		}
		add("counter %q has %d in all", c.key, c.Total)
	}
	for key, existing := range s.ExistingTerms {
		if existing.Total == 0 {
			continue // see DropUnusedTerms
		}
		for domain, n := range existing.Pods {
			if n != 0 {
				add("term %v has %d in %s", key, n, s.domainName(existing.Column, int32(domain)))
			}
		}
		add("term %v has %d in all", key, existing.Total)
	}
	add("%d nodes, %d pods, %d nominated", s.NodeCount, len(s.PodEntries), len(s.Nominations))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (s *Snapshot) domainName(c *LabelColumn, domain int32) string {
	if c == s.HostColumn {
		return s.NodeInfos[domain].Name
	}
	return c.Values[domain]
}
