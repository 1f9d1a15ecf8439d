package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"skiff/internal/network/nft"
)

// profile is what a set of policies allows in one direction to the pods they select.
type profile struct {
	direction
	key string
	// targets are the pods of this node that the policies select.
	targets map[*pod]bool
	// rules are the ports of rules by the text of a selector of their peers.
	rules map[string][]rulePorts
	// blocks are the ports by address of the peer, in the order of families.
	blocks [2]intervals
	// names are the named ports of egress rules.
	names map[portName]bool
	// allowed has the ports of classes that were computed before.
	allowed map[*class]portSet
}

// profileOf returns the profile of a pod in a direction, or nil if the pod is not isolated.
func (c *Compiler) profileOf(p *pod, d direction) *profile {
	if !p.Local || len(p.addresses) == 0 {
		return nil
	}
	var selecting []*policy
	for _, policy := range c.policies[p.Key.Namespace] {
		if policy.isolates[d] && policy.selector.Matches(p.Labels) {
			selecting = append(selecting, policy)
		}
	}
	if len(selecting) == 0 {
		return nil
	}
	slices.SortFunc(selecting, func(a, b *policy) int { return strings.Compare(a.key.Name, b.key.Name) })
	var key strings.Builder
	for _, policy := range selecting {
		fmt.Fprintf(&key, "%s\n", policy.id)
	}
	// The named ports of an ingress rule are those of the pod itself.
	named := map[portName]uint16{}
	if d == ingress {
		named = usedNames(selecting, p.ports)
		for _, name := range slices.SortedFunc(maps.Keys(named), comparePortNames) {
			fmt.Fprintf(&key, "%s/%s=%d\n", name.name, name.proto, named[name])
		}
	}
	if known := c.profiles[d][key.String()]; known != nil {
		return known
	}
	return c.newProfile(d, key.String(), selecting, named)
}

// usedNames are the named ports of a pod that ingress rules of policies use.
func usedNames(policies []*policy, ports map[portName]uint16) map[portName]uint16 {
	used := map[portName]uint16{}
	for _, policy := range policies {
		for _, r := range policy.rules[ingress] {
			for _, name := range r.ports.names {
				if port, ok := ports[name]; ok {
					used[name] = port
				}
			}
		}
	}
	return used
}

// newProfile makes a profile and what it needs: selectors, and tables of intervals and ports.
func (c *Compiler) newProfile(d direction, key string, policies []*policy, named map[portName]uint16) *profile {
	f := &profile{
		direction: d, key: key, targets: map[*pod]bool{}, rules: map[string][]rulePorts{}, names: map[portName]bool{}, allowed: map[*class]portSet{},
	}
	var blocks []allowedBlock
	for _, policy := range policies {
		for _, r := range policy.rules[d] {
			ports := r.ports
			if d == ingress {
				resolved := r.ports.resolve(named)
				ports = rulePorts{all: resolved.all, ranges: resolved.ranges}
			}
			for _, s := range r.selectors {
				f.use(c.selector(s), c)
				f.rules[s.text] = append(f.rules[s.text], ports)
			}
			for _, b := range r.blocks {
				blocks = append(blocks, allowedBlock{b, ports.resolve(nil)})
			}
			for _, name := range ports.names {
				f.names[name] = true
			}
		}
	}
	for i, fam := range families {
		f.blocks[i] = newIntervals(blocks, fam.is4)
		c.useBlocks(side{d, fam}, f.blocks[i])
	}
	for name := range f.names {
		if c.names[name]++; c.names[name] == 1 {
			c.markNamed(name)
		}
	}
	c.profiles[d][key] = f
	return f
}

// use counts the use of a selector, once for each profile.
func (f *profile) use(s *selector, c *Compiler) {
	if _, counted := f.rules[s.text]; counted {
		return
	}
	if s.uses[f.direction]++; s.uses[f.direction] == 1 {
		maps.Copy(c.dirtyPeers, s.members)
	}
}

// markNamed marks the pods whose class depends on a named port.
func (c *Compiler) markNamed(name portName) {
	for _, p := range c.pods {
		if _, ok := p.ports[name]; ok {
			c.dirtyPeers[p] = true
		}
	}
}

// release removes a profile that no pod has.
func (c *Compiler) release(f *profile) {
	delete(c.profiles[f.direction], f.key)
	for text := range f.rules {
		s := c.selectors[text]
		if s.uses[f.direction]--; s.uses[f.direction] == 0 {
			maps.Copy(c.dirtyPeers, s.members)
		}
		if s.uses == [directionCount]int{} {
			for p := range s.members {
				delete(p.selectors, text)
			}
			delete(c.selectors, text)
		}
	}
	for i, fam := range families {
		c.releaseBlocks(side{f.direction, fam}, f.blocks[i])
	}
	for name := range f.names {
		if c.names[name]--; c.names[name] == 0 {
			delete(c.names, name)
			c.markNamed(name)
		}
	}
}

// useTable adds a part that several users share.
func (c *Compiler) useTable(owner string, part func() nft.Part) (added bool) {
	c.tables[owner]++
	if c.tables[owner] > 1 {
		return false
	}
	c.model.Replace(owner, part())
	return true
}

// releaseTable removes a part with its last user.
func (c *Compiler) releaseTable(owner string) (removed bool) {
	if c.tables[owner]--; c.tables[owner] > 0 {
		return false
	}
	delete(c.tables, owner)
	c.model.Replace(owner, nft.Part{})
	return true
}

// useBlocks adds a table of intervals, and the sets of ports that it refers to.
func (c *Compiler) useBlocks(s side, list intervals) {
	if len(list) > 0 && c.useTable("blocks "+s.blocksName(list.id()), func() nft.Part { return s.blocksPart(list) }) {
		for _, ports := range list.portSets() {
			c.useTable(portsName(ports), func() nft.Part { return portsPart(ports) })
		}
	}
}

func (c *Compiler) releaseBlocks(s side, list intervals) {
	if len(list) > 0 && c.releaseTable("blocks "+s.blocksName(list.id())) {
		for _, ports := range list.portSets() {
			c.releaseTable(portsName(ports))
		}
	}
}

// portSets are the sets of ports that need a chain, each once.
func (list intervals) portSets() []portSet {
	var all []portSet
	for _, v := range list {
		if !v.ports.all {
			all = append(all, v.ports)
		}
	}
	slices.SortFunc(all, func(a, b portSet) int { return cmp.Compare(a.String(), b.String()) })
	return slices.CompactFunc(all, portSet.equal)
}

// ports are the ports that a profile allows to a class.
func (f *profile) ports(k *class) portSet {
	if known, ok := f.allowed[k]; ok {
		return known
	}
	var sets []portSet
	for _, text := range k.selectors {
		for _, r := range f.rules[text] {
			sets = append(sets, r.resolve(k.named))
		}
	}
	f.allowed[k] = unionPorts(sets)
	return f.allowed[k]
}
