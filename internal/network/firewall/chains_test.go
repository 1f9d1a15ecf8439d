package firewall

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

func TestPlan(t *testing.T) {
	own := []rule{{handle: 91, own: "skiff-a"}, {handle: 92, own: "skiff-b"}}
	reject := chain{name: "reject", rules: []rule{{handle: 50}, {handle: 51, effect: drops}}}
	tests := map[string]struct {
		chain    chain
		isNeeded bool
		// before is the rule in front of which rules are added.
		before  uint64
		removed int
	}{
		"accepts": {chain: chain{rules: []rule{{handle: 1}}}},
		"policy drops": {
			chain: chain{policyDrop: true, rules: []rule{{handle: 1}}}, isNeeded: true,
		},
		"policy drops, but everything is accepted before": {
			chain: chain{policyDrop: true, rules: []rule{{handle: 1, effect: accepts}}},
		},
		"the last rule drops": {
			chain: chain{rules: []rule{{handle: 1}, {handle: 2, effect: drops}}}, isNeeded: true, before: 2,
		},
		"a chain that is jumped to drops": {
			chain: chain{policyDrop: true, rules: []rule{{handle: 1, effect: jumps, target: "reject"}, {handle: 2}}}, isNeeded: true, before: 1,
		},
		"a chain that is jumped to does not exist": {
			chain: chain{rules: []rule{{handle: 1, effect: jumps, target: "other"}}},
		},
		"rules are there": {
			chain: chain{policyDrop: true, rules: slices.Concat([]rule{{handle: 1}}, own)},
		},
		"rules are behind the one that drops": {
			chain: chain{policyDrop: true, rules: slices.Concat([]rule{{handle: 1, effect: drops}}, own)}, isNeeded: true, before: 1, removed: 2,
		},
		"a rule is missing": {
			chain: chain{policyDrop: true, rules: own[1:]}, isNeeded: true, removed: 1,
		},
		"rules are not needed any more": {
			chain: chain{rules: own}, removed: 2,
		},
		"a chain that never returns drops nothing, but the policy does": {
			chain: chain{policyDrop: true, rules: []rule{{handle: 1, effect: jumps, isGoto: true, target: "empty"}, {handle: 2}}}, isNeeded: true, before: 1,
		},
		"a loop of jumps ends": {
			chain: chain{rules: []rule{{handle: 1, effect: jumps, target: "base"}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.chain.name, test.chain.hook = "base", hookForward
			table := table{family: "ip", name: "filter", chains: []chain{test.chain, reject, {name: "empty"}}}
			changes := table.plan(map[string][]string{hookForward: {"skiff-a", "skiff-b"}})
			if !test.isNeeded && test.removed == 0 {
				if len(changes) > 0 {
					t.Fatalf("changes %+v, want none", changes)
				}
				return
			}
			if len(changes) != 1 {
				t.Fatalf("%d changes, want one", len(changes))
			}
			c := changes[0]
			if len(c.add) > 0 != test.isNeeded || c.before != test.before || len(c.remove) != test.removed {
				t.Errorf("adds %v before %d, removes %d; want %v before %d, %d", c.add, c.before, len(c.remove), test.isNeeded, test.before, test.removed)
			}
		})
	}
}

func TestAcceptances(t *testing.T) {
	s := Settings{
		Bridge: "skiff0", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("fd42::/56")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd43::/112")},
	}
	all := acceptances(s, 8472)
	if len(all[hookForward]) != 4 || len(all[hookInput]) != 4 || len(all[hookOutput]) != 3 {
		t.Fatalf("%d, %d and %d kinds of packets, want 4, 4 and 3", len(all[hookForward]), len(all[hookInput]), len(all[hookOutput]))
	}
	found := map[string]bool{}
	for _, list := range all {
		for _, a := range list {
			found[a.identity()] = true
		}
	}
	if len(found) != 8 {
		t.Errorf("%d identities, want 8", len(found))
	}
	if a := all[hookInput][1]; !a.in("ip") || a.in("ip6") || !a.in("inet") {
		t.Errorf("%v is in the wrong families", a)
	}
	if a := all[hookForward][2]; a.in("ip") || !a.in("ip6") || !a.in("inet") {
		t.Errorf("%v is in the wrong families", a)
	}
}

// TestFirewalldCommands checks that no command has two kinds of changes: firewall-cmd refuses that.
func TestFirewalldCommands(t *testing.T) {
	s := Settings{Bridge: "skiff0", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/56")}}
	for _, test := range []struct {
		settings Settings
		port     uint16
		want     []string
	}{
		{s, 8472, []string{
			"--permanent --zone=trusted --add-interface=skiff0", "--permanent --zone=trusted --add-source=10.42.0.0/16 --add-source=fd42::/56", "--permanent --add-port=8472/udp", "--reload",
		}},
		{Settings{Bridge: "skiff0"}, 0, []string{"--permanent --zone=trusted --add-interface=skiff0", "--reload"}},
	} {
		if got := test.settings.firewalldCommands(test.port); !slices.Equal(got, test.want) {
			t.Errorf("port %d: %q, want %q", test.port, got, test.want)
		}
	}
}

// legacyEntry is an entry with a standard target.
func legacyEntry(f legacyFamily, verdict int32) []byte {
	entry := make([]byte, f.size+targetSize)
	binary.NativeEndian.PutUint16(entry[f.targetOffset:], uint16(f.size))
	binary.NativeEndian.PutUint16(entry[f.targetOffset+2:], uint16(len(entry)))
	binary.NativeEndian.PutUint32(entry[f.size+entryHeader:], uint32(verdict))
	return entry
}

// verdicts are the verdicts of all entries of a table.
func (t *legacyTable) verdicts() (all []int32) {
	t.each(func(_ int, entry []byte) bool {
		all = append(all, int32(binary.NativeEndian.Uint32(t.family.verdict(entry))))
		return true
	})
	return all
}

// TestLegacyTable changes a table with the chains INPUT, FORWARD and OUTPUT, and one that is jumped to from the third.
func TestLegacyTable(t *testing.T) {
	for _, f := range legacyFamilies {
		size := f.size + targetSize
		at := func(i int) uint32 { return uint32(i * size) }
		// 0: policy of INPUT; 1: a rule without target; 2: policy of FORWARD; 3: a jump; 4: policy of OUTPUT; 5: another chain
		entries := [][]byte{
			legacyEntry(f, legacyAccept), legacyEntry(f, int32(at(2))), legacyEntry(f, legacyDrop), legacyEntry(f, int32(at(5))), legacyEntry(f, legacyAccept), legacyEntry(f, legacyAccept),
		}
		table := &legacyTable{
			family: f, validHooks: 1<<1 | 1<<2 | 1<<3, hookEntry: [hookCount]uint32{1: at(0), 2: at(1), 3: at(3)}, underflow: [hookCount]uint32{1: at(0), 2: at(2), 3: at(4)},
			count: 6, entries: slices.Concat(entries...),
		}
		before := *table
		before.entries = slices.Clone(table.entries)
		var wanted [][]byte
		for _, a := range []acceptance{{from: "skiff0"}, {to: "skiff0", udpPort: 8472, translated: true}} {
			entry, err := f.entry(a)
			if err != nil {
				t.Fatal(err)
			}
			if own := f.own(entry); own != a.identity() {
				t.Errorf("%s: the identity of an entry is %q, want %q", f.command, own, a.identity())
			}
			wanted = append(wanted, entry)
		}
		if table.set(inputNumber, wanted) {
			t.Errorf("%s: entries were added to a chain that accepts everything", f.command)
		}
		if !table.set(forwardNumber, wanted) || table.set(forwardNumber, wanted) || table.count != 8 {
			t.Fatalf("%s: %d entries, want 8 after the first change and no second one", f.command, table.count)
		}
		added := uint32(len(wanted[0]) + len(wanted[1]))
		if table.hookEntry[2] != at(1) || table.underflow[2] != at(2)+added || table.hookEntry[3] != at(3)+added || table.underflow[3] != at(4)+added {
			t.Errorf("%s: chains begin at %v and end at %v", f.command, table.hookEntry, table.underflow)
		}
		want := []int32{legacyAccept, int32(at(2)), legacyAccept, legacyAccept, legacyDrop, int32(at(5) + added), legacyAccept, legacyAccept}
		if got := table.verdicts(); !slices.Equal(got, want) {
			t.Errorf("%s: verdicts %v, want %v", f.command, got, want)
		}
		if !table.set(forwardNumber, nil) || !slices.Equal(table.entries, before.entries) || table.hookEntry != before.hookEntry || table.underflow != before.underflow ||
			table.count != before.count {
			t.Errorf("%s: the table is not as it was", f.command)
		}
	}
}

// TestLegacyLastRule checks that entries are in front of a last rule that drops everything, also after somebody has added one.
func TestLegacyLastRule(t *testing.T) {
	f := legacyFamilies[0]
	policy := legacyEntry(f, legacyAccept)
	table := &legacyTable{family: f, validHooks: 1 << forwardNumber, underflow: [hookCount]uint32{forwardNumber: uint32(len(policy))}, count: 2, entries: slices.Concat(legacyEntry(f, legacyDrop), policy)}
	entry, err := f.entry(acceptance{from: "skiff0"})
	if err != nil {
		t.Fatal(err)
	}
	want := []int32{legacyAccept, legacyDrop, legacyAccept}
	if !table.set(forwardNumber, [][]byte{entry}) || !slices.Equal(table.verdicts(), want) {
		t.Errorf("verdicts %v, want %v", table.verdicts(), want)
	}
	table.insert(forwardNumber, 0, [][]byte{legacyEntry(f, legacyDrop)})
	want = []int32{legacyAccept, legacyDrop, legacyDrop, legacyAccept}
	if !table.set(forwardNumber, [][]byte{entry}) || !slices.Equal(table.verdicts(), want) {
		t.Errorf("verdicts %v after another rule was added in front, want %v", table.verdicts(), want)
	}
}
