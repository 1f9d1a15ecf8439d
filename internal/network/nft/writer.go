package nft

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
	// connection is to the kernel; nil: it is not open. It is kept, because when one is closed the kernel waits for everything that was deleted to be
	// unused, and the next change, or the deletion of connections that have become denied, would wait with it.
	connection *netlink.Conn
}

// NewWriter returns the writer of a model. The first Apply compares the whole table.
func NewWriter(m *Model, log *slog.Logger) *Writer {
	return &Writer{model: m, log: log, stale: map[string]time.Time{}}
}

// Close closes the connection to the kernel. The table stays, and the writer can be used again.
func (w *Writer) Close() {
	if w.connection != nil {
		_ = w.connection.Close() // nothing is lost: every transaction was acknowledged
		w.connection = nil
	}
}

// use calls a function with the connection to the kernel. After an error, the next call opens another one.
func (w *Writer) use(do func(*netlink.Conn) error) (err error) {
	if w.connection == nil {
		if w.connection, err = dial(); err != nil {
			return err
		}
	}
	if err = do(w.connection); err != nil {
		w.Close()
	}
	return err
}

// transact sends messages that lead to what the model has, from what it had, or from anything if they are the whole table.
func (w *Writer) transact(m *messages, whole bool) error {
	before, _ := w.generation()
	if err := w.use(func(c *netlink.Conn) error { return transact(c, m) }); err != nil {
		return err
	}
	// If there was no other transaction in between, the table is still as it was verified, with these changes.
	if after, err := w.generation(); err == nil && after == before+1 && (whole || w.verified == before) {
		w.verified = after
	}
	return nil
}

func (w *Writer) generation() (number uint32, err error) {
	err = w.use(func(c *netlink.Conn) (err error) {
		number, err = generation(c)
		return err
	})
	return number, err
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
	c := m.Changes()
	result := Result{Elements: len(c.AddedElements) + len(c.RemovedElements), Chains: len(c.AddedChains) + len(c.ChangedChains) + len(c.RemovedChains)}
	if !c.IsEmpty() {
		if err := w.send(c, false); err != nil {
			return result, fmt.Errorf("change nftables table %s: %w", m.Table, err)
		}
	}
	m.Commit()
	now := time.Now()
	for _, chain := range c.AddedChains {
		delete(w.stale, chain.Name)
	}
	// After the changes, which are not to wait for it.
	w.deleteStale(now)
	for _, chain := range c.RemovedChains {
		if chain.Hook == nil {
			w.stale[chain.Name] = now
		}
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
	m := &messages{table: w.model.Table}
	for _, name := range names {
		m.deleteChain(name)
	}
	err := w.transact(m, false)
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

func inetTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// send sends changes in one transaction, or the whole table.
func (w *Writer) send(c Changes, whole bool) error {
	m, stale := &messages{table: w.model.Table}, w.stale
	if whole {
		m.replaceTable()
		stale = nil
	}
	if err := m.fill(w.model, c, stale); err != nil {
		return err
	}
	return w.transact(m, whole)
}

// fill adds the messages in an order in which everything exists before it is referred to, and is no longer referred to when it is deleted.
func (m *messages) fill(model *Model, c Changes, stale map[string]time.Time) error {
	for _, s := range c.AddedSets {
		if err := m.addSet(s); err != nil {
			return err
		}
	}
	for _, chain := range c.AddedChains {
		if _, exists := stale[chain.Name]; !exists {
			m.addChain(chain)
		}
	}
	for _, chain := range c.ChangedChains {
		m.flushChain(chain.Name)
	}
	for _, chain := range c.RemovedChains {
		m.flushChain(chain.Name)
		if chain.Hook != nil {
			m.deleteChain(chain.Name) // nothing refers to a base chain
		}
	}
	for _, chain := range slices.Concat(c.AddedChains, c.ChangedChains) {
		for _, r := range chain.Rules {
			if err := m.addRule(chain.Name, r); err != nil {
				return err
			}
		}
	}
	if err := m.fillElements(unix.NFT_MSG_DELSETELEM, deletes, model, c.RemovedElements); err != nil {
		return err
	}
	if err := m.fillElements(unix.NFT_MSG_NEWSETELEM, adds, model, c.AddedElements); err != nil {
		return err
	}
	for _, name := range c.RemovedSets {
		m.deleteSet(name)
	}
	return nil
}

// fillElements adds messages about elements, which are in the order of their sets.
func (m *messages) fillElements(kind int, flags netlink.HeaderFlags, model *Model, all []Element) error {
	for len(all) > 0 {
		entry := model.sets[all[0].Set]
		if entry == nil {
			return fmt.Errorf("element of set %s, which does not exist", all[0].Set)
		}
		n := slices.IndexFunc(all, func(e Element) bool { return e.Set != all[0].Set })
		if n < 0 {
			n = len(all)
		}
		m.elements(kind, flags, entry.content, all[:n])
		all = all[n:]
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
func parseVerdict(text string) expr.Verdict {
	name, chain, _ := strings.Cut(text, " ")
	kind, ok := verdictKinds[name]
	if !ok {
		panic(fmt.Sprintf("nft: %q is not a verdict", text))
	}
	return expr.Verdict{Kind: kind, Chain: chain}
}

// Remove removes a table. It may be missing.
func Remove(table string) error {
	m := &messages{table: table}
	m.removeTable()
	connection, err := dial()
	if err == nil {
		defer connection.Close()
		err = transact(connection, m)
	}
	if err != nil {
		return fmt.Errorf("remove nftables table %s: %w", table, err)
	}
	return nil
}
