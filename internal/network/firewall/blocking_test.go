package firewall

import (
	"slices"
	"testing"
)

func TestBlockingChains(t *testing.T) {
	tables := []table{
		{family: "ip", name: "filter", chains: []chain{
			{name: "INPUT", hook: HookInput, policyDrop: true, rules: []rule{{effect: conditional}}}, {name: "FORWARD", hook: hookForward}, {name: "ufw-before-input", policyDrop: true},
		}},
		{family: "inet", name: "firewalld", chains: []chain{{name: "filter_FORWARD", hook: hookForward, rules: []rule{{effect: drops}}}}},
		{family: "inet", name: "known", namesBridge: true, chains: []chain{{name: "forward", hook: hookForward, policyDrop: true}}},
	}
	owned := map[[2]string]bool{{"inet", "firewalld"}: true, {"inet", "known"}: true}
	want := []Chain{
		{Family: "ip", Table: "filter", Name: "INPUT", Hook: HookInput}, {Family: "inet", Table: "firewalld", Name: "filter_FORWARD", Hook: hookForward, Owned: true},
		{Family: "inet", Table: "known", Name: "forward", Hook: hookForward},
	}
	if got := blockingChains(tables, owned); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := want[0].String(); got != "chain INPUT of table ip filter (nftables)" {
		t.Errorf("text %q", got)
	}
}
