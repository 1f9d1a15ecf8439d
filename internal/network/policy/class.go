package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"skiff/internal/network/nft"
)

// class is a set of pods that are equal as peers in one direction.
type class struct {
	direction
	key, name string
	// selectors are the texts of the selectors that match the pods, and named the pods' named ports that egress rules use.
	selectors []string
	named     map[portName]uint16
	pods      map[*pod]bool
	// grants are what targets allow to the pods, as it is in the model; counts are the numbers of their elements by family.
	grants map[*pod]grant
	counts [2][grantKindCount]int
}

// grant is what a target allows to a class.
type grant struct {
	ports     portSet
	addresses []netip.Addr
}

// index is the position of a family in families.
func (f family) index() int {
	if f.is4 {
		return 0
	}
	return 1
}

// exists reports whether the class has a chain in a family.
func (k *class) exists(f family) bool { return k.counts[f.index()] != [grantKindCount]int{} }

func (k *class) owner() string { return "class " + k.direction.String() + " " + k.name }

func (k *class) grantOwner(target *pod) string {
	return "grant " + k.direction.String() + " " + k.name + " " + target.Key.String()
}

// classOf returns the class of a pod in a direction, and whether it is new. A pod that no selector matches has none.
func (c *Compiler) classOf(p *pod, d direction) (k *class, isNew bool) {
	if len(p.addresses) == 0 {
		return nil, false
	}
	var texts []string
	for text, s := range p.selectors {
		if s.uses[d] > 0 {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return nil, false
	}
	key := joinSorted(texts)
	named := map[portName]uint16{}
	if d == egress {
		for name, port := range p.ports {
			if c.names[name] > 0 {
				named[name] = port
			}
		}
		for _, name := range slices.SortedFunc(maps.Keys(named), comparePortNames) {
			key += fmt.Sprintf("\n%s/%s=%d", name.name, name.proto, named[name])
		}
	}
	if known := c.classes[d][key]; known != nil {
		return known, false
	}
	k = &class{direction: d, key: key, name: digest(key), selectors: texts, named: named, pods: map[*pod]bool{}, grants: map[*pod]grant{}}
	c.classes[d][key] = k
	return k, true
}

// flush is the work of one call of Flush.
type flush struct {
	*Compiler
	targets, peers map[*pod]bool
	// classes are those whose chain or sets have to be made anew.
	classes map[*class]bool
	added   []*class
}

// Flush changes the model to what the objects say now. It returns the addresses whose connections may have become denied.
func (c *Compiler) Flush() map[netip.Addr]bool {
	f := &flush{Compiler: c, targets: map[*pod]bool{}, peers: map[*pod]bool{}, classes: map[*class]bool{}}
	f.updateProfiles()
	removed := f.updateClasses()
	for _, k := range f.added {
		for _, profile := range c.profiles[k.direction] {
			for target := range profile.targets {
				f.grant(k, target)
			}
		}
	}
	for target := range f.targets {
		for _, d := range directions {
			for _, k := range c.classes[d] {
				f.grant(k, target)
			}
		}
	}
	for _, k := range removed {
		f.removeClass(k)
	}
	f.writeClasses()
	for p := range f.peers {
		c.model.Replace("peer "+p.Key.String(), p.peerPart())
	}
	for p := range f.targets {
		c.model.Replace("target "+p.Key.String(), p.targetPart())
	}
	c.forgetDeleted()
	affected := c.affected
	c.affected = map[netip.Addr]bool{}
	return affected
}

// updateProfiles computes the profiles of the targets that have changed. New profiles are made before old ones are released, so that what both use
// stays.
func (f *flush) updateProfiles() {
	unused := map[*profile]bool{}
	for p := range f.dirtyTargets {
		for _, d := range directions {
			old, now := p.profiles[d], f.profileOf(p, d)
			if old == nil && now == nil {
				continue
			}
			f.targets[p] = true
			if now != nil && (old != now || !slices.Equal(p.flushed, p.addresses)) {
				f.affect(p)
			}
			if old == now {
				continue
			}
			if p.profiles[d] = now; now != nil {
				now.targets[p] = true
			}
			if old != nil {
				delete(old.targets, p)
				unused[old] = true
			}
		}
	}
	f.dirtyTargets = map[*pod]bool{}
	for profile := range unused {
		if len(profile.targets) == 0 {
			f.release(profile)
		}
	}
}

// affect marks the connections of a pod, with the addresses that it has and had.
func (f *flush) affect(p *pod) {
	for _, a := range slices.Concat(p.flushed, p.addresses) {
		f.affected[a] = true
	}
}

// updateClasses computes the classes of the peers that have changed and returns the classes without pods.
func (f *flush) updateClasses() (removed []*class) {
	unused := map[*class]bool{}
	for p := range f.dirtyPeers {
		for _, d := range directions {
			old := p.classes[d]
			now, isNew := f.classOf(p, d)
			if isNew {
				f.added = append(f.added, now)
			}
			if old == nil && now == nil {
				continue
			}
			f.peers[p] = true
			// A pod that was in no class had no connections that depend on one.
			if old != nil && (old != now || !slices.Equal(p.flushed, p.addresses)) {
				f.affect(p)
			}
			if old == now {
				continue
			}
			if p.classes[d] = now; now != nil {
				now.pods[p] = true
			}
			if old != nil {
				delete(old.pods, p)
				unused[old] = true
			}
		}
		p.flushed = p.addresses
	}
	f.dirtyPeers = map[*pod]bool{}
	for k := range unused {
		if len(k.pods) == 0 {
			delete(f.Compiler.classes[k.direction], k.key)
			removed = append(removed, k)
		}
	}
	return removed
}

// grant writes what a target allows to a class.
func (f *flush) grant(k *class, target *pod) {
	var now grant
	if profile := target.profiles[k.direction]; profile != nil {
		if ports := profile.ports(k); !ports.isEmpty() {
			now = grant{ports, target.addresses}
		}
	}
	old := k.grants[target]
	if old.ports.equal(now.ports) && slices.Equal(old.addresses, now.addresses) {
		return
	}
	var part nft.Part
	before := k.counts
	k.eachElement(old, func(fam family, kind grantKind, _ nft.Element) { k.counts[fam.index()][kind]-- })
	k.eachElement(now, func(fam family, kind grantKind, e nft.Element) {
		k.counts[fam.index()][kind]++
		part.Elements = append(part.Elements, e)
	})
	if k.grants[target] = now; now.ports.isEmpty() {
		delete(k.grants, target)
	}
	f.model.Replace(k.grantOwner(target), part)
	if before != k.counts {
		f.classes[k] = true
	}
}

// eachElement visits the elements of a grant.
func (k *class) eachElement(g grant, visit func(family, grantKind, nft.Element)) {
	for _, a := range g.addresses {
		fam := familyOf(a)
		side{k.direction, fam}.grants(k.name, a, g.ports, func(kind grantKind, e nft.Element) { visit(fam, kind, e) })
	}
}

// removeClass removes a class that has no pods.
func (f *flush) removeClass(k *class) {
	for target := range k.grants {
		f.model.Replace(k.grantOwner(target), nft.Part{})
	}
	for _, profile := range f.profiles[k.direction] {
		delete(profile.allowed, k)
	}
	f.model.Replace(k.owner(), nft.Part{})
	delete(f.classes, k)
}

// writeClasses writes the chains and sets of classes. The pods of a class are written again, because its chain may have come or gone.
func (f *flush) writeClasses() {
	for k := range f.classes {
		var part nft.Part
		for i, fam := range families {
			side{k.direction, fam}.addClass(&part, k.name, k.counts[i])
		}
		f.model.Replace(k.owner(), part)
		maps.Copy(f.peers, k.pods)
	}
}

// peerPart are the elements that assign a pod to its classes.
func (p *pod) peerPart() (part nft.Part) {
	for _, d := range directions {
		k := p.classes[d]
		if k == nil {
			continue
		}
		for _, a := range p.addresses {
			if s := (side{d, familyOf(a)}); k.exists(s.family) {
				part.Elements = append(part.Elements, nft.Element{Set: s.peers().Name, Key: nft.Bytes(a), Value: "jump " + s.chain() + "-" + k.name})
			}
		}
	}
	return part
}

// targetPart are the elements that isolate a pod, and the base chains that it needs. That of egress also drops what belongs to no connection of a pod
// that is isolated in either direction.
func (p *pod) targetPart() (part nft.Part) {
	if len(p.addresses) > 0 && (p.profiles[ingress] != nil || p.profiles[egress] != nil) {
		part.Chains = append(part.Chains, egress.hook())
		if p.profiles[ingress] != nil {
			part.Chains = append(part.Chains, ingress.hook())
		}
	}
	add := func(set, key, value string) {
		part.Elements = append(part.Elements, nft.Element{Set: set, Key: key, Value: value})
	}
	for _, a := range p.addresses {
		fam, isolated := familyOf(a), false
		for _, d := range directions {
			if p.profiles[d] == nil {
				continue
			}
			isolated = true
			s := side{d, fam}
			add(s.pods().Name, nft.Bytes(a), "")
			if list := p.profiles[d].blocks[fam.index()]; len(list) > 0 {
				add(s.blocks().Name, nft.Bytes(a), "goto "+s.blocksName(list.id()))
			}
		}
		if isolated {
			add(fam.isolated().Name, nft.Bytes(a), "")
			add(fam.self().Name, nft.Bytes(a, a), "")
		}
	}
	return part
}
