package firewall

import (
	"slices"
)

// The hooks in which packets of pods may be dropped.
const (
	hookForward = "forward"
	hookInput   = HookInput
	hookOutput  = "output"
)

// effect is what a rule does to every packet that reaches it.
type effect int

const (
	// conditional rules apply to certain packets only, or do nothing that matters here.
	conditional effect = iota
	accepts
	drops
	jumps
	returns
)

// rule is a rule of another program, as far as it matters.
type rule struct {
	handle uint64
	effect effect
	// target is the chain that a rule jumps or goes to.
	target string
	// isGoto rules do not come back to the rules after them.
	isGoto bool
	// own is the identity of a rule that this package has added.
	own string
}

// chain is a chain of another program.
type chain struct {
	name string
	// hook is forward, input or output for base chains of those hooks, otherwise empty.
	hook       string
	policyDrop bool
	rules      []rule
}

// table is a table of another program.
type table struct {
	// family is ip, ip6 or inet.
	family, name string
	chains       []chain
	// namesBridge is whether a rule names the bridge of pods: the other program has rules for it.
	namesBridge bool
}

func (t table) chain(name string) (chain, bool) {
	i := slices.IndexFunc(t.chains, func(c chain) bool { return c.name == name })
	if i < 0 {
		return chain{}, false
	}
	return t.chains[i], true
}

// maxDepth bounds jumps. The kernel's limit is 16.
const maxDepth = 16

// blocking returns the index of the first rule of a chain that drops every packet; the number of rules if the policy does; -1 if nothing does.
// Rules of this package are not there.
func (t table) blocking(c chain) int {
	for i, r := range c.rules {
		if r.own != "" {
			continue
		}
		switch t.result(r, maxDepth) {
		case drops:
			return i
		case returns:
			if c.policyDrop {
				return i // the policy applies to what returns from a base chain
			}
			return -1
		case accepts:
			return -1
		}
	}
	if c.policyDrop {
		return len(c.rules)
	}
	return -1
}

// result is what becomes of every packet that reaches a rule: conditional if that is not known, or if the packet continues with the next one.
func (t table) result(r rule, depth int) effect {
	if r.effect != jumps {
		return r.effect
	}
	target, ok := t.chain(r.target)
	if !ok || depth == 0 {
		return conditional
	}
	for _, inner := range target.rules {
		switch result := t.result(inner, depth-1); result {
		case accepts, drops:
			return result
		case returns:
			if r.isGoto {
				return returns
			}
			return conditional
		}
	}
	if r.isGoto {
		return returns
	}
	return conditional
}

// change is what has to be done in a chain.
type change struct {
	table  table
	chain  chain
	remove []rule
	// add are the identities of the rules to add, in order; before is the handle of the rule in front of which they belong, 0: at the end.
	add    []string
	before uint64
}

// plan computes the changes of a table's base chains, given the identities of the rules that each hook needs. A chain that drops nothing
// needs none.
func (t table) plan(wanted map[string][]string) (changes []change) {
	for _, c := range t.chains {
		if c.hook == "" {
			continue
		}
		at := t.blocking(c)
		var own []rule
		var present []string
		misplaced := false
		for i, r := range c.rules {
			if r.own != "" {
				own, present = append(own, r), append(present, r.own)
				misplaced = misplaced || i > at
			}
		}
		needed := wanted[c.hook]
		if at < 0 {
			needed = nil
		}
		if !misplaced && slices.Equal(present, needed) {
			continue
		}
		ch := change{table: t, chain: c, remove: own, add: needed}
		if at >= 0 && at < len(c.rules) {
			ch.before = c.rules[at].handle
		}
		changes = append(changes, ch)
	}
	return changes
}
