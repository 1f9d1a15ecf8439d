package firewall

import (
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// HookInput is the hook of packets to the host itself.
const HookInput = "input"

// ownerFlag is the flag of a table that only its owner can change: NFT_TABLE_F_OWNER.
const ownerFlag = 2

// Chain is a chain of another program that drops what is not explicitly accepted.
type Chain struct {
	// Family is ip, ip6 or inet. Hook is forward, input or output.
	Family, Table, Name, Hook string
	// Legacy chains are those of iptables' legacy interface.
	Legacy bool
	// Owned is whether only its owner can change the chain, and has no rules for the bridge of pods.
	Owned bool
}

// String names the chain.
func (c Chain) String() string {
	interfaceName := "nftables"
	if c.Legacy {
		interfaceName = "legacy iptables"
	}
	return fmt.Sprintf("chain %s of table %s %s (%s)", c.Name, c.Family, c.Table, interfaceName)
}

// Blocking returns the chains of other programs that drop what is not explicitly accepted. It changes nothing.
func Blocking(bridge string) ([]Chain, error) {
	tables, _, err := readTables(bridge)
	if err != nil {
		return nil, err
	}
	owned, err := ownedTables()
	if err != nil {
		return nil, err
	}
	legacy, err := legacyBlocking()
	return append(blockingChains(tables, owned), legacy...), err
}

// blockingChains are those of tables that block. owned are the families and names of tables with an owner.
func blockingChains(tables []table, owned map[[2]string]bool) (all []Chain) {
	for _, t := range tables {
		for _, c := range t.chains {
			if c.hook != "" && t.blocking(c) >= 0 {
				all = append(all, Chain{Family: t.family, Table: t.name, Name: c.name, Hook: c.hook, Owned: owned[[2]string{t.family, t.name}] && !t.namesBridge})
			}
		}
	}
	return all
}

// ownedTables are the families and names of the tables that only their owners can change.
func ownedTables() (map[[2]string]bool, error) {
	connection, err := nftables.New()
	if err != nil {
		return nil, err
	}
	owned := map[[2]string]bool{}
	for name, family := range families {
		tables, err := connection.ListTablesOfFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list tables: %w", err)
		}
		for _, t := range tables {
			owned[[2]string{name, t.Name}] = t.Flags&ownerFlag != 0
		}
	}
	return owned, nil
}

// legacyBlocking are the chains of iptables' legacy interface that block.
func legacyBlocking() (all []Chain, err error) {
	for _, f := range legacyFamilies {
		fd, isUsed, err := f.open()
		if err != nil {
			return nil, err
		}
		if !isUsed {
			continue
		}
		t, err := f.read(fd)
		unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("read table %s of %s: %w", legacyTableName, f.command, err)
		}
		for _, hook := range []string{HookInput, hookForward, hookOutput} {
			number := legacyHooks[hook]
			if t.validHooks&(1<<number) != 0 && t.blocking(number) >= 0 {
				all = append(all, Chain{Family: f.family, Table: legacyTableName, Name: strings.ToUpper(hook), Hook: hook, Legacy: true})
			}
		}
	}
	return all, nil
}
