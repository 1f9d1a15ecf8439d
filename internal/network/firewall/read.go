package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/nft"
)

// readTries limits how often rules are read that change all the time.
const readTries = 20

// readTables reads the tables of other programs that have a base chain in one of the hooks, and returns the generation of rules that they are of.
// Tables of skiff are left out.
func readTables(bridge string) (tables []table, generation uint32, err error) {
	generation, err = unchanged(nft.Generation, func() (err error) {
		tables, err = readTablesOnce(bridge)
		return err
	})
	return tables, generation, err
}

// unchanged calls read until the generation of rules has not changed meanwhile, and returns it: a list that is read while it changes lacks entries or
// has some twice, and a table may be deleted before its rules are read.
func unchanged(generation func() (uint32, error), read func() error) (uint32, error) {
	for try := 1; ; try++ {
		before, err := generation()
		if err != nil {
			return 0, err
		}
		readErr := read()
		after, err := generation()
		if err != nil {
			return 0, err
		}
		if before == after {
			return after, readErr
		}
		if try == readTries {
			return 0, errors.Join(errors.New("the rules of the host change all the time"), readErr)
		}
	}
}

func readTablesOnce(bridge string) ([]table, error) {
	connection, err := nftables.New()
	if err != nil {
		return nil, err
	}
	var all []table
	for _, family := range []string{"ip", "ip6", "inet"} {
		chains, err := connection.ListChainsOfTableFamily(families[family])
		if err != nil {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		for _, t := range group(family, chains) {
			if err := t.readRules(bridge); err != nil {
				return nil, fmt.Errorf("list rules of table %s %s: %w", family, t.name, err)
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// group makes tables of chains, and leaves out those without a chain in one of the hooks.
func group(family string, chains []*nftables.Chain) (tables []table) {
	for _, c := range chains {
		if strings.HasPrefix(c.Table.Name, "skiff-") {
			continue
		}
		i := slices.IndexFunc(tables, func(t table) bool { return t.name == c.Table.Name })
		if i < 0 {
			tables = append(tables, table{family: family, name: c.Table.Name})
			i = len(tables) - 1
		}
		found := chain{name: c.Name}
		if c.Hooknum != nil && c.Type == nftables.ChainTypeFilter {
			switch *c.Hooknum {
			case *nftables.ChainHookForward:
				found.hook = hookForward
			case *nftables.ChainHookInput:
				found.hook = hookInput
			case *nftables.ChainHookOutput:
				found.hook = hookOutput
			}
			found.policyDrop = c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		}
		tables[i].chains = append(tables[i].chains, found)
	}
	return slices.DeleteFunc(tables, func(t table) bool {
		return !slices.ContainsFunc(t.chains, func(c chain) bool { return c.hook != "" })
	})
}

// readRules reads the rules of a table's chains. The library that is used elsewhere leaves out expressions that it does not know, so that a rule
// could seem to apply to every packet.
func (t *table) readRules(bridge string) error {
	connection, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer connection.Close()
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_RULE_TABLE, t.name)
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	responses, err := connection.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(families[t.family]), unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	if err != nil {
		return err
	}
	for _, r := range responses {
		if len(r.Data) < 4 {
			continue
		}
		tableName, chainName, parsed, err := parseRule(r.Data[4:])
		if err != nil {
			return err
		}
		i := slices.IndexFunc(t.chains, func(c chain) bool { return c.name == chainName })
		if tableName == t.name && i >= 0 {
			t.chains[i].rules = append(t.chains[i].rules, parsed)
			t.namesBridge = t.namesBridge || parsed.own == "" && bytes.Contains(r.Data, append([]byte(bridge), 0))
		}
	}
	return nil
}

func bigEndian(b []byte) (*netlink.AttributeDecoder, error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err == nil {
		d.ByteOrder = binary.BigEndian
	}
	return d, err
}

// parseRule reads a rule.
func parseRule(b []byte) (tableName, chainName string, r rule, err error) {
	d, err := bigEndian(b)
	if err != nil {
		return "", "", r, err
	}
	isUnconditional := true
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_RULE_TABLE:
			tableName = d.String()
		case unix.NFTA_RULE_CHAIN:
			chainName = d.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = d.Uint64()
		case unix.NFTA_RULE_USERDATA:
			if text, ok := userdata.GetString(d.Bytes(), userdata.TypeComment); ok && strings.HasPrefix(text, marker) {
				r.own = text
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			d.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					if isUnconditional {
						list.Do(func(b []byte) (err error) { isUnconditional, err = r.addExpression(b); return err })
					}
				}
				return list.Err()
			})
		}
	}
	return tableName, chainName, r, d.Err()
}

// addExpression reads an expression. It reports whether the next one is executed for every packet, too.
func (r *rule) addExpression(b []byte) (bool, error) {
	d, err := bigEndian(b)
	if err != nil {
		return false, err
	}
	var name string
	var data []byte
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_EXPR_NAME:
			name = d.String()
		case unix.NFTA_EXPR_DATA:
			data = d.Bytes()
		}
	}
	if err := d.Err(); err != nil {
		return false, err
	}
	switch name {
	case "counter", "log":
		return true, nil
	case "reject":
		r.effect = drops
	case "immediate":
		return false, r.addVerdict(data)
	case "target":
		switch target, err := stringAttribute(data, unix.NFTA_TARGET_NAME); {
		case err != nil:
			return false, err
		case target == "REJECT":
			r.effect = drops
		case target == "LOG" || target == "NFLOG":
			return true, nil
		}
	}
	return false, nil
}

func stringAttribute(b []byte, kind uint16) (text string, err error) {
	d, err := bigEndian(b)
	if err != nil {
		return "", err
	}
	for d.Next() {
		if d.Type() == kind {
			text = d.String()
		}
	}
	return text, d.Err()
}

// addVerdict reads a verdict.
func (r *rule) addVerdict(b []byte) error {
	d, err := bigEndian(b)
	if err != nil {
		return err
	}
	for d.Next() {
		if d.Type() != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		d.Nested(func(d *netlink.AttributeDecoder) error {
			for d.Next() {
				if d.Type() == unix.NFTA_DATA_VERDICT {
					d.Nested(r.decodeVerdict)
				}
			}
			return d.Err()
		})
	}
	return d.Err()
}

// The kernel's final verdicts: linux/netfilter.h.
const (
	verdictNFDrop   = 0
	verdictNFAccept = 1
)

func (r *rule) decodeVerdict(d *netlink.AttributeDecoder) error {
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_VERDICT_CHAIN:
			r.target = d.String()
		case unix.NFTA_VERDICT_CODE:
			switch int32(d.Uint32()) {
			case verdictNFDrop:
				r.effect = drops
			case verdictNFAccept:
				r.effect = accepts
			case unix.NFT_RETURN:
				r.effect = returns
			case unix.NFT_JUMP:
				r.effect = jumps
			case unix.NFT_GOTO:
				r.effect, r.isGoto = jumps, true
			}
		}
	}
	return d.Err()
}
