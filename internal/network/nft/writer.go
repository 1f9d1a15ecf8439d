package nft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

const (
	// maxMessage bounds the elements of one netlink message, whose attributes have a length of 16 bits.
	maxMessage = 32 << 10
	// socketBuffer is the limit of the netlink socket's buffers: a whole transaction is sent at once, and the kernel acknowledges each message.
	// Memory is used only for what is sent.
	socketBuffer = 64 << 20
	// staleDelay is the time until a chain that is no longer used is deleted. Before Linux 6.2 a chain stays in use for a moment after the
	// deletion of the element that refers to it.
	staleDelay = time.Second
	// digestType is the type of the user data with the digest of a rule. nft ignores types it does not know.
	digestType userdata.Type = 0x53
)

// sending serializes transactions: google/nftables counts the IDs of sets in a global variable.
var sending sync.Mutex

// Writer makes the kernel's table equal to a Model. It is not safe for concurrent use.
type Writer struct {
	model *Model
	log   *slog.Logger
	// inSync is whether the kernel has what the Model had at its last Commit.
	inSync bool
	// verified is the kernel's generation of rules at which the table was equal to the model; 0: not known.
	verified uint32
	// stale are chains without rules that are to be deleted, with the time since when.
	stale map[string]time.Time
}

// NewWriter returns the writer of a model. The first Apply compares the whole table.
func NewWriter(m *Model, log *slog.Logger) *Writer {
	return &Writer{model: m, log: log, stale: map[string]time.Time{}}
}

// Assume says that the kernel has what the model had at its last Commit, so that the first Apply need not compare them.
func (w *Writer) Assume() { w.inSync = true }

// Replace sends the whole table.
func (w *Writer) Replace() error {
	_, err := w.rebuild(errors.New("the table is set up"))
	return err
}

// Result says what Apply has done.
type Result struct {
	// Rebuilt is whether the whole table was replaced.
	Rebuilt bool
	// Elements and Chains are the numbers of objects in the transaction.
	Elements, Chains int
	// Again is the time after which Apply should be called although nothing has changed, to delete unused chains; zero: it need not.
	Again time.Duration
}

// Apply sends the changes of the model, or the whole table if the kernel has another one. After an error, the next call sends the whole table.
func (w *Writer) Apply() (Result, error) {
	m := w.model
	var reason error
	if !w.inSync {
		if equal, err := w.Check(); err == nil && equal {
			w.inSync, w.stale = true, map[string]time.Time{}
			m.Commit()
			return Result{}, nil
		}
		reason = errors.New("the kernel's table is not known")
	} else if m.needsRebuild() {
		reason = errors.New("the definition of a set or of a base chain has changed")
	} else {
		result, err := w.applyChanges()
		if err == nil {
			return result, nil
		}
		reason = err
	}
	return w.rebuild(reason)
}

func (w *Writer) rebuild(reason error) (Result, error) {
	m := w.model
	w.inSync = false
	w.log.Info("replacing the whole nftables table", "table", m.Table, "reason", reason)
	all := m.All()
	if err := w.send(all, true); err != nil {
		return Result{}, fmt.Errorf("replace nftables table %s: %w", m.Table, err)
	}
	m.Commit()
	w.inSync, w.stale = true, map[string]time.Time{}
	return Result{Rebuilt: true, Elements: len(all.AddedElements), Chains: len(all.AddedChains)}, nil
}

func (w *Writer) applyChanges() (Result, error) {
	m := w.model
	w.deleteStale(time.Now())
	c := m.Changes()
	result := Result{Elements: len(c.AddedElements) + len(c.RemovedElements), Chains: len(c.AddedChains) + len(c.ChangedChains) + len(c.RemovedChains)}
	if !c.IsEmpty() {
		if err := w.send(c, false); err != nil {
			return result, fmt.Errorf("change nftables table %s: %w", m.Table, err)
		}
	}
	m.Commit()
	now := time.Now()
	for _, chain := range c.RemovedChains {
		if chain.Hook == nil {
			w.stale[chain.Name] = now
		}
	}
	for _, chain := range c.AddedChains {
		delete(w.stale, chain.Name)
	}
	if len(w.stale) > 0 {
		result.Again = staleDelay
	}
	return result, nil
}

// deleteStale deletes chains that have not been used for a while, in a transaction of its own: a failure must not affect other changes.
func (w *Writer) deleteStale(now time.Time) {
	var names []string
	for name, since := range w.stale {
		// Those that are used again are in the model.
		if now.Sub(since) >= staleDelay && w.model.chains[name] == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	table := inetTable(w.model.Table)
	err := transact(func(connection *nftables.Conn) error {
		for _, name := range names {
			connection.DelChain(&nftables.Chain{Name: name, Table: table})
		}
		return nil
	})
	if err != nil {
		w.log.Warn("failed to delete unused chains, trying again later", "table", w.model.Table, "chains", len(names), "error", err)
	}
	for _, name := range names {
		if err != nil {
			w.stale[name] = now
		} else {
			delete(w.stale, name)
		}
	}
}

// transact collects messages and sends them in one transaction.
func transact(fill func(*nftables.Conn) error) error {
	sending.Lock()
	defer sending.Unlock()
	connection, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return err
	}
	if err := fill(connection); err != nil {
		return err
	}
	return connection.Flush()
}

func inetTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// send sends changes in one transaction, or the whole table.
func (w *Writer) send(c Changes, whole bool) error {
	before, _ := Generation()
	err := transact(func(connection *nftables.Conn) error {
		table := inetTable(w.model.Table)
		if whole {
			connection.AddTable(table) // deleting a missing table would fail
			connection.DelTable(table)
			connection.AddTable(table)
		}
		t := transaction{Conn: connection, table: table, sets: map[string]*nftables.Set{}}
		if whole {
			return t.fill(w.model, c, nil)
		}
		return t.fill(w.model, c, w.stale)
	})
	if err != nil {
		return err
	}
	// If there was no other transaction in between, the table is still as it was verified, with these changes.
	if after, err := Generation(); err == nil && after == before+1 && (whole || w.verified == before) {
		w.verified = after
	}
	return nil
}

// transaction builds the messages of a transaction.
type transaction struct {
	*nftables.Conn
	table *nftables.Table
	sets  map[string]*nftables.Set
}

// fill adds the messages in an order in which everything exists before it is referred to, and is no longer referred to when it is deleted.
func (t *transaction) fill(m *Model, c Changes, stale map[string]time.Time) error {
	for _, s := range c.AddedSets {
		set, err := t.set(s)
		if err != nil {
			return err
		}
		if err := t.AddSet(set, nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.Name, err)
		}
	}
	for _, chain := range c.AddedChains {
		if _, exists := stale[chain.Name]; !exists {
			t.AddChain(t.chain(chain))
		}
	}
	for _, chain := range c.ChangedChains {
		t.FlushChain(&nftables.Chain{Name: chain.Name, Table: t.table})
	}
	for _, chain := range c.RemovedChains {
		t.FlushChain(&nftables.Chain{Name: chain.Name, Table: t.table})
		if chain.Hook != nil {
			t.DelChain(&nftables.Chain{Name: chain.Name, Table: t.table}) // nothing refers to a base chain
		}
	}
	for _, chain := range slices.Concat(c.AddedChains, c.ChangedChains) {
		for _, r := range chain.Rules {
			t.AddRule(&nftables.Rule{Table: t.table, Chain: &nftables.Chain{Name: chain.Name, Table: t.table}, Exprs: r.exprs, UserData: r.digest()})
		}
	}
	if err := t.elements(m, c.RemovedElements, t.SetDeleteElements); err != nil {
		return err
	}
	if err := t.elements(m, c.AddedElements, t.SetAddElements); err != nil {
		return err
	}
	for _, name := range c.RemovedSets {
		t.DelSet(&nftables.Set{Name: name, Table: t.table})
	}
	return nil
}

// digest identifies the rule when it is read from the kernel, which does not return expressions as they were sent.
func (c Clause) digest() []byte {
	sum := sha256.Sum256([]byte(c.text))
	return userdata.Append(nil, digestType, sum[:8])
}

// hookPoints are the hooks of the inet family.
var hookPoints = map[string]*nftables.ChainHook{
	"prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput, "forward": nftables.ChainHookForward,
	"output": nftables.ChainHookOutput, "postrouting": nftables.ChainHookPostrouting,
}

func (t *transaction) chain(c Chain) *nftables.Chain {
	chain := &nftables.Chain{Name: c.Name, Table: t.table}
	if c.Hook != nil {
		chain.Type, chain.Hooknum = nftables.ChainType(c.Hook.Type), hookPoints[c.Hook.Point]
		chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Hook.Priority))
	}
	return chain
}

// set is a set in nftables' terms.
func (t *transaction) set(s Set) (*nftables.Set, error) {
	if set := t.sets[s.Name]; set != nil {
		return set, nil
	}
	key, err := concatType(s.Key)
	if err != nil {
		return nil, fmt.Errorf("key of set %s: %w", s.Name, err)
	}
	set := &nftables.Set{
		Table: t.table, Name: s.Name, KeyType: key, Concatenation: len(s.Key) > 1, Interval: s.Interval, IsMap: len(s.Value) > 0,
		HasTimeout: s.Timeout > 0, Dynamic: s.Timeout > 0, Timeout: s.Timeout, Size: s.Size,
	}
	if set.IsMap {
		if set.DataType, err = concatType(s.Value); err != nil {
			return nil, fmt.Errorf("value of map %s: %w", s.Name, err)
		}
	}
	t.sets[s.Name] = set
	return set, nil
}

func concatType(types []Type) (nftables.SetDatatype, error) {
	if len(types) == 1 {
		return types[0].datatype(), nil
	}
	all := make([]nftables.SetDatatype, len(types))
	for i, t := range types {
		all[i] = t.datatype()
	}
	return nftables.ConcatSetType(all...)
}

// elements adds messages about elements, which are sorted by set. Each message has a bounded size.
func (t *transaction) elements(m *Model, all []Element, message func(*nftables.Set, []nftables.SetElement) error) error {
	for len(all) > 0 {
		entry := m.sets[all[0].Set]
		if entry == nil {
			return fmt.Errorf("element of set %s, which does not exist", all[0].Set)
		}
		set, err := t.set(entry.content)
		if err != nil {
			return err
		}
		var batch []nftables.SetElement
		size, n := 0, 0
		for ; n < len(all) && all[n].Set == set.Name && size < maxMessage; n++ {
			batch = append(batch, entry.content.encode(all[n])...)
			size += 2*len(all[n].Key) + len(all[n].Value) + 64
		}
		if err := message(set, batch); err != nil {
			return fmt.Errorf("elements of set %s: %w", set.Name, err)
		}
		all = all[n:]
	}
	return nil
}

// encode is an element in nftables' terms. A range of keys with one field is two elements: its start, and the first key after its end.
func (s Set) encode(e Element) []nftables.SetElement {
	element := nftables.SetElement{Key: []byte(e.Key)}
	switch {
	case len(s.Value) == 1 && s.Value[0] == Verdict:
		element.VerdictData = parseVerdict(e.Value)
	case len(s.Value) > 0:
		element.Val = []byte(e.Value)
	}
	if e.End == "" {
		return []nftables.SetElement{element}
	}
	if len(s.Key) > 1 {
		element.KeyEnd = []byte(e.End)
		return []nftables.SetElement{element}
	}
	after, ok := increment(e.End)
	if !ok {
		return []nftables.SetElement{element}
	}
	return []nftables.SetElement{element, {Key: []byte(after), IntervalEnd: true}}
}

// increment returns the next key in network byte order, and false after the last one.
func increment(key string) (string, bool) {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b), true
		}
	}
	return "", false
}

// verdictKinds are the verdicts that a map may have, by name.
var verdictKinds = map[string]expr.VerdictKind{
	"accept": expr.VerdictAccept, "drop": expr.VerdictDrop, "return": expr.VerdictReturn, "jump": expr.VerdictJump, "goto": expr.VerdictGoto,
}

// parseVerdict returns the verdict with a text such as "goto reject".
func parseVerdict(text string) *expr.Verdict {
	name, chain, _ := strings.Cut(text, " ")
	kind, ok := verdictKinds[name]
	if !ok {
		panic(fmt.Sprintf("nft: %q is not a verdict", text))
	}
	return &expr.Verdict{Kind: kind, Chain: chain}
}

// Remove removes a table. It may be missing.
func Remove(table string) error {
	err := transact(func(connection *nftables.Conn) error {
		connection.AddTable(inetTable(table))
		connection.DelTable(inetTable(table))
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove nftables table %s: %w", table, err)
	}
	return nil
}
