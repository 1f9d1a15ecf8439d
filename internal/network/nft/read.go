package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Check reads the table and reports whether it is equal to the model. Elements of sets with a time-out are added by packets and not compared.
func (w *Writer) Check() (bool, error) {
	have, err := Read(w.model.Table)
	if err != nil || len(have) == 0 {
		return false, err // without a table there is nothing to compare
	}
	want := w.model.digest()
	// Chains that wait for their deletion have no rules.
	have = slices.DeleteFunc(have, func(line string) bool {
		name, isChain := strings.CutPrefix(line, "chain ")
		_, isStale := w.stale[name]
		return isChain && isStale && !slices.Contains(want, line)
	})
	return slices.Equal(have, want), nil
}

// Verify is Check that does nothing while no program has changed any nftables rules since the last time.
func (w *Writer) Verify() (bool, error) {
	now, err := w.generation()
	if err == nil && w.inSync && w.verified != 0 && now == w.verified {
		return true, nil
	}
	equal, checkErr := w.Check()
	if err == nil && checkErr == nil && equal {
		w.verified = now
	}
	return equal, checkErr
}

// Compare makes the next Apply replace the table if the kernel's is not as it should be.
func (w *Writer) Compare() {
	equal, err := w.Verify()
	switch {
	case err != nil:
		w.log.Warn("failed to read nftables rules", "table", w.model.Table, "error", err)
	case !equal:
		w.log.Warn("nftables rules were changed by another program, replacing them", "table", w.model.Table)
		w.Forget()
	}
}

// Generation is the number of transactions that the kernel has committed.
func Generation() (uint32, error) {
	connection, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	return generation(connection)
}

func generation(connection *netlink.Conn) (uint32, error) {
	answer, err := connection.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(answer) == 0 || len(answer[0].Data) < 4 {
		return 0, fmt.Errorf("read the generation of nftables rules: %w", err)
	}
	attributes, err := netlink.UnmarshalAttributes(answer[0].Data[4:])
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables rules: %w", err)
	}
	for _, a := range attributes {
		if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
			return binary.BigEndian.Uint32(a.Data), nil
		}
	}
	return 0, errors.New("read the generation of nftables rules: the kernel does not say")
}

// HasChain reports whether a table has a chain.
func HasChain(table, chain string) bool {
	connection, err := nftables.New()
	if err != nil {
		return false
	}
	_, err = connection.ListChain(inetTable(table), chain)
	return err == nil
}

// Forget makes the next Apply compare the whole table with the kernel, and replace it if it differs.
func (w *Writer) Forget() { w.inSync = false }

// digest is the model in the form of Read.
func (m *Model) digest() []string {
	all := m.All()
	lines := []string{"table " + m.Table}
	for _, s := range all.AddedSets {
		lines = append(lines, "set "+s.Name)
	}
	for _, c := range all.AddedChains {
		line := "chain " + c.Name
		if c.Hook != nil {
			line += fmt.Sprintf(" %s %d %d", c.Hook.Type, *hookPoints[c.Hook.Point], c.Hook.Priority)
		}
		lines = append(lines, line)
		for i, r := range c.Rules {
			lines = append(lines, fmt.Sprintf("rule %s %d %x", c.Name, i, r.digest()))
		}
	}
	for _, e := range all.AddedElements {
		set := m.sets[e.Set].content
		first := nftables.SetElement{Key: []byte(e.Key)}
		if len(set.Key) > 1 {
			first.KeyEnd = []byte(e.End)
		}
		lines = append(lines, elementLine(e.Set, first, e.Value))
		if after, ok := set.afterEnd(&e); ok {
			lines = append(lines, elementLine(e.Set, nftables.SetElement{Key: []byte(after), IntervalEnd: true}, ""))
		}
	}
	slices.Sort(lines)
	return lines
}

func elementLine(set string, e nftables.SetElement, value string) string {
	end := ""
	if e.IntervalEnd {
		end, value = "end", ""
	}
	return fmt.Sprintf("element %s %x-%x%s : %x", set, e.Key, e.KeyEnd, end, value)
}

// Read returns the content of the kernel's table as sorted lines, without what differs between two tables of the same content: handles, and
// elements that expire. A missing table has no lines.
func Read(table string) ([]string, error) {
	lines, err := read(table)
	if err != nil {
		return nil, fmt.Errorf("read nftables table %s: %w", table, err)
	}
	slices.Sort(lines)
	return lines, nil
}

func read(name string) ([]string, error) {
	connection, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	defer connection.CloseLasting() //nolint:errcheck // nothing was written
	tables, err := connection.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }) {
		return nil, nil
	}
	chains, err := readChains(connection, name)
	if err != nil {
		return nil, err
	}
	elements, err := readElements(connection, name)
	return slices.Concat([]string{"table " + name}, chains, elements), err
}

// readChains reads the chains of a table and the digests of their rules.
func readChains(connection *nftables.Conn, table string) ([]string, error) {
	chains, err := connection.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var lines []string
	for _, c := range chains {
		if c.Table.Name != table {
			continue
		}
		line := "chain " + c.Name
		if c.Hooknum != nil {
			line += fmt.Sprintf(" %s %d %d", c.Type, *c.Hooknum, *c.Priority)
		}
		lines = append(lines, line)
		rules, err := connection.GetRules(inetTable(table), c)
		if err != nil {
			return nil, fmt.Errorf("list rules of chain %s: %w", c.Name, err)
		}
		for i, r := range rules {
			lines = append(lines, fmt.Sprintf("rule %s %d %x", c.Name, i, r.UserData))
		}
	}
	return lines, nil
}

func readElements(connection *nftables.Conn, table string) ([]string, error) {
	sets, err := connection.GetSets(inetTable(table))
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	var lines []string
	for _, set := range sets {
		lines = append(lines, "set "+set.Name)
		if set.Dynamic {
			continue
		}
		elements, err := connection.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list elements of set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			value := string(e.Val)
			if set.IsMap && !e.IntervalEnd {
				value = verdictText(e.Val)
			}
			lines = append(lines, elementLine(set.Name, e, value))
		}
	}
	return lines, nil
}

// verdictText decodes the value of an element if it is a verdict. Other values are returned as they are.
func verdictText(data []byte) string {
	attributes, err := netlink.UnmarshalAttributes(data)
	// A verdict begins with the attribute of its code. The first bytes of other values are an address.
	if err != nil || len(attributes) == 0 || attributes[0].Type != unix.NFTA_VERDICT_CODE || len(attributes[0].Data) != 4 {
		return string(data)
	}
	kind := expr.VerdictKind(int32(binary.BigEndian.Uint32(attributes[0].Data)))
	for name, k := range verdictKinds {
		if k != kind {
			continue
		}
		if len(attributes) > 1 {
			name += " " + string(bytes.TrimRight(attributes[1].Data, "\x00"))
		}
		return name
	}
	return string(data)
}
