package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// messages are those of a transaction that changes one table. They are encoded here, and not by google/nftables, which needs many times the CPU time
// and memory for a large number of elements.
type messages struct {
	table string
	list  []netlink.Message
	sets  uint32 // the number of sets that were added
}

// The flags of messages that add something, and of those that delete.
const (
	adds    = netlink.Request | netlink.Acknowledge | netlink.Create
	deletes = netlink.Request | netlink.Acknowledge
)

// dial opens a connection to the kernel.
func dial() (*netlink.Conn, error) {
	connection, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(connection.SetWriteBuffer(socketBuffer), connection.SetReadBuffer(socketBuffer)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return connection, nil
}

// transact sends messages in one transaction: all of them have an effect, or none. After an error the connection cannot be used any more.
func transact(connection *netlink.Conn, m *messages) error {
	if _, err := connection.SendMessages(m.batch()); err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	// The kernel acknowledges each message, or says which ones failed.
	for acknowledged := 0; acknowledged < len(m.list); {
		responses, err := connection.Receive()
		if err != nil {
			return fmt.Errorf("nftables transaction: %w", err)
		}
		for _, response := range responses {
			if response.Header.Type == netlink.Error {
				acknowledged++
			}
		}
	}
	return nil
}

// batch is the messages between those that begin and end a transaction.
func (m *messages) batch() []netlink.Message {
	bound := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	all := make([]netlink.Message, 0, len(m.list)+2)
	all = append(all, bound(unix.NFNL_MSG_BATCH_BEGIN))
	return append(append(all, m.list...), bound(unix.NFNL_MSG_BATCH_END))
}

func (m *messages) add(kind int, flags netlink.HeaderFlags, data attributes) {
	m.list = append(m.list, netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: flags}, Data: data})
}

// attributes is the data of a message: a header and attributes, each with its length, its type and padding.
type attributes []byte

// newAttributes begins the data of a message about the table or something in it: kind is the type of the attribute with the table's name.
func (m *messages) newAttributes(kind uint16) attributes {
	data := make(attributes, 0, 128)
	data = append(data, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
	data.text(kind, m.table)
	return data
}

const (
	attributeHeader = 4
	// usualElement is the size of most elements.
	usualElement = 64
)

func (a *attributes) header(kind uint16, size int) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(attributeHeader+size))
	*a = binary.NativeEndian.AppendUint16(*a, kind)
}

func (a *attributes) pad() {
	for len(*a)%4 != 0 {
		*a = append(*a, 0)
	}
}

func (a *attributes) bytes(kind uint16, data string) {
	a.header(kind, len(data))
	*a = append(*a, data...)
	a.pad()
}

// text adds a text with a zero byte at its end.
func (a *attributes) text(kind uint16, text string) {
	a.header(kind, len(text)+1)
	*a = append(append(*a, text...), 0)
	a.pad()
}

func (a *attributes) number(kind uint16, n uint32) {
	a.header(kind, 4)
	*a = binary.BigEndian.AppendUint32(*a, n)
}

// nested adds an attribute that consists of others.
func (a *attributes) nested(kind uint16, add func()) {
	begin := len(*a)
	a.header(kind|unix.NLA_F_NESTED, 0)
	add()
	binary.NativeEndian.PutUint16((*a)[begin:], uint16(len(*a)-begin))
}

func (m *messages) addTable() {
	data := m.newAttributes(unix.NFTA_TABLE_NAME)
	data.number(unix.NFTA_TABLE_FLAGS, 0)
	m.add(unix.NFT_MSG_NEWTABLE, adds, data)
}

func (m *messages) deleteTable() {
	m.add(unix.NFT_MSG_DELTABLE, deletes, m.newAttributes(unix.NFTA_TABLE_NAME))
}

// removeTable deletes the table, which may be missing.
func (m *messages) removeTable() {
	m.addTable() // deleting a missing table would fail
	m.deleteTable()
}

// replaceTable makes the table an empty one.
func (m *messages) replaceTable() {
	m.removeTable()
	m.addTable()
}

func (m *messages) addChain(c Chain) {
	data := m.newAttributes(unix.NFTA_CHAIN_TABLE)
	data.text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		data.nested(unix.NFTA_CHAIN_HOOK, func() {
			data.number(unix.NFTA_HOOK_HOOKNUM, uint32(*hookPoints[c.Hook.Point]))
			data.number(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		})
		data.text(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	}
	m.add(unix.NFT_MSG_NEWCHAIN, adds, data)
}

func (m *messages) deleteChain(name string) {
	data := m.newAttributes(unix.NFTA_CHAIN_TABLE)
	data.text(unix.NFTA_CHAIN_NAME, name)
	m.add(unix.NFT_MSG_DELCHAIN, deletes, data)
}

// flushChain deletes the rules of a chain.
func (m *messages) flushChain(name string) {
	data := m.newAttributes(unix.NFTA_RULE_TABLE)
	data.text(unix.NFTA_RULE_CHAIN, name)
	m.add(unix.NFT_MSG_DELRULE, deletes, data)
}

// addRule adds a rule at the end of a chain.
func (m *messages) addRule(chain string, r Rule) (err error) {
	data := m.newAttributes(unix.NFTA_RULE_TABLE)
	data.text(unix.NFTA_RULE_CHAIN, chain)
	data.nested(unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, e := range r.exprs {
			encoded, encodeErr := expr.Marshal(unix.NFPROTO_INET, e)
			if encodeErr != nil {
				err = fmt.Errorf("encode rule %q: %w", r.text, encodeErr)
				return
			}
			data.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, string(encoded))
		}
	})
	data.bytes(unix.NFTA_RULE_USERDATA, string(r.digest()))
	m.add(unix.NFT_MSG_NEWRULE, adds|netlink.Append, data)
	return err
}

func (m *messages) addSet(s Set) error {
	key, err := concatType(s.Key)
	if err != nil {
		return fmt.Errorf("key of set %s: %w", s.Name, err)
	}
	m.sets++
	data := m.newAttributes(unix.NFTA_SET_TABLE)
	data.text(unix.NFTA_SET_NAME, s.Name)
	data.number(unix.NFTA_SET_FLAGS, s.flags())
	data.number(unix.NFTA_SET_KEY_TYPE, key.GetNFTMagic())
	data.number(unix.NFTA_SET_KEY_LEN, key.Bytes)
	data.number(unix.NFTA_SET_ID, m.sets)
	if len(s.Value) > 0 {
		value, err := concatType(s.Value)
		if err != nil {
			return fmt.Errorf("value of map %s: %w", s.Name, err)
		}
		kind := value.GetNFTMagic()
		if s.isVerdictMap() {
			kind = unix.NFT_DATA_VERDICT
		}
		data.number(unix.NFTA_SET_DATA_TYPE, kind)
		data.number(unix.NFTA_SET_DATA_LEN, value.Bytes)
	}
	if s.Timeout > 0 {
		data.bytes(unix.NFTA_SET_TIMEOUT, string(binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds()))))
	}
	if s.Size > 0 || len(s.Key) > 1 {
		data.nested(unix.NFTA_SET_DESC, func() { s.describe(&data) })
	}
	if s.Interval {
		// Keys are in network byte order, which nft needs to list ranges.
		const networkByteOrder = 2
		data.bytes(unix.NFTA_SET_USERDATA, string(userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, networkByteOrder)))
	}
	m.add(unix.NFT_MSG_NEWSET, adds, data)
	return nil
}

// describe adds the size of the set and those of the fields of its key.
func (s Set) describe(data *attributes) {
	if s.Size > 0 {
		data.number(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if len(s.Key) < 2 {
		return
	}
	data.nested(nftables.NFTA_SET_DESC_CONCAT, func() {
		for _, t := range s.Key {
			const fieldLength = 1
			data.nested(unix.NFTA_LIST_ELEM, func() { data.number(fieldLength, t.datatype().Bytes) })
		}
	})
}

func (s Set) isVerdictMap() bool { return len(s.Value) == 1 && s.Value[0] == Verdict }

func (s Set) flags() (flags uint32) {
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.Value) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Timeout > 0 {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	if len(s.Key) > 1 {
		flags |= nftables.NFT_SET_CONCAT
	}
	return flags
}

func (m *messages) deleteSet(name string) {
	data := m.newAttributes(unix.NFTA_SET_TABLE)
	data.text(unix.NFTA_SET_NAME, name)
	m.add(unix.NFT_MSG_DELSET, deletes, data)
}

// elements adds messages about elements of a set. Each message has a bounded size.
func (m *messages) elements(kind int, flags netlink.HeaderFlags, s Set, all []Element) {
	for len(all) > 0 {
		data := m.newAttributes(unix.NFTA_SET_ELEM_LIST_TABLE)
		data.text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		data = slices.Grow(data, min(len(all)*usualElement, maxMessage))
		n := 0
		data.nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			for ; n < len(all) && len(data) < maxMessage; n++ {
				s.encode(&data, &all[n])
			}
		})
		m.add(kind, flags, data)
		all = all[n:]
	}
}

// encode adds an element. A range of keys with one field is two elements for the kernel: its start, and the first key after its end.
func (s Set) encode(data *attributes, e *Element) {
	data.nested(unix.NFTA_LIST_ELEM, func() {
		data.key(unix.NFTA_SET_ELEM_KEY, e.Key)
		if e.End != "" && len(s.Key) > 1 {
			data.key(nftables.NFTA_SET_ELEM_KEY_END, e.End)
		}
		switch {
		case s.isVerdictMap():
			data.nested(unix.NFTA_SET_ELEM_DATA, func() { data.verdict(parseVerdict(e.Value)) })
		case len(s.Value) > 0:
			data.key(unix.NFTA_SET_ELEM_DATA, e.Value)
		}
	})
	if after, ok := s.afterEnd(e); ok {
		data.nested(unix.NFTA_LIST_ELEM, func() {
			data.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			data.key(unix.NFTA_SET_ELEM_KEY, after)
		})
	}
}

// afterEnd is the first key after a range of keys with one field, if the kernel needs it.
func (s Set) afterEnd(e *Element) (key string, ok bool) {
	if e.End == "" || len(s.Key) > 1 {
		return "", false
	}
	return increment(e.End)
}

// key adds a key or a value of an element.
func (a *attributes) key(kind uint16, data string) {
	a.nested(kind, func() { a.bytes(unix.NFTA_DATA_VALUE, data) })
}

func (a *attributes) verdict(v expr.Verdict) {
	a.nested(unix.NFTA_DATA_VERDICT, func() {
		a.number(unix.NFTA_VERDICT_CODE, uint32(v.Kind))
		if v.Chain != "" {
			a.text(unix.NFTA_VERDICT_CHAIN, v.Chain)
		}
	})
}
