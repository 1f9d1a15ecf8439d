package apiserver

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
)

// catchUpTimeout is how long a read waits for the cache to reach the state the client has already seen elsewhere.
const catchUpTimeout = 3 * time.Second

// waitFor waits until the cache has reached a revision; after catchUpTimeout it returns errTooLarge.
func (s *Server) waitFor(ctx context.Context, revision store.Revision) error {
	if s.config.Cache.Revision() >= revision {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	if err := s.config.Cache.WaitFor(ctx, revision); err != nil {
		return errTooLarge(revision, s.config.Cache.Revision())
	}
	return nil
}

// page is the result of a list: entries of one snapshot, and the continue token.
type page struct {
	extent
	entries         []*cache.Entry
	objs            []kind.Object // instead of entries: objects that are not cache entries
	snapshot        cache.Snapshot
	resourceVersion string // empty: the list has none
	next            string // the continue token; empty when the list is complete
	remaining       *int64 // nil when unknown
	selected        bool   // there is a selector
}

func (p *page) revision() store.Revision { return p.snapshot.Revision() }

// len is the number of items.
func (p *page) len() int { return len(p.entries) + len(p.objs) }

// objects returns the decoded items from start to end, in the storage version.
func (p *page) objects(start, end int) ([]kind.Object, error) {
	if len(p.objs) > 0 {
		return p.objs[start:end], nil
	}
	objs := make([]kind.Object, end-start)
	for i, entry := range p.entries[start:end] {
		var err error
		if objs[i], err = entry.Object(); err != nil {
			return nil, err
		}
	}
	return objs, nil
}

// extent is the range of a snapshot that a page covers.
type extent struct {
	prefix, from string
	limit        int64 // 0 is none
}

// pageEntries are the entries of a snapshot within an extent.
type pageEntries struct {
	entries []*cache.Entry
	more    bool
}

// collect returns the matching entries within the extent; a nil matcher matches everything.
func (e extent) collect(snapshot cache.Snapshot, match *matcher) *pageEntries {
	found := &pageEntries{}
	add := func(entry *cache.Entry) bool {
		found.entries = append(found.entries, entry)
		return e.limit == 0 || int64(len(found.entries)) < e.limit
	}
	if match == nil {
		if e.limit == 0 {
			found.entries = make([]*cache.Entry, 0, snapshot.LenFrom(e.prefix, e.from))
		}
		snapshot.Ascend(e.prefix, e.from, add)
	} else {
		match.ascend(snapshot, e.from, e.limit, add)
	}
	if n := len(found.entries); e.limit > 0 && int64(n) == e.limit {
		found.more = snapshot.LenFrom(e.prefix, found.entries[n-1].Key()+"\x00") > 0
	}
	return found
}

// list serves a LIST.
func (s *Server) list(req *request) error {
	out, err := req.negotiate()
	if err != nil {
		return err
	}
	if out.transform == transformPartial {
		return errNotAcceptableMessage(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", req.res.listName()))
	}
	opts, err := req.listOptions()
	if err != nil {
		return err
	}
	found := &page{}
	if req.res.kind.Computed != nil {
		found.objs, err = s.computedObjects(req, opts)
	} else {
		found, err = s.find(req, opts)
	}
	if err != nil {
		return err
	}
	return s.respondPage(req, out, found)
}

// respondPage responds with the items of a page in the negotiated form.
func (s *Server) respondPage(req *request, out output, p *page) error {
	switch out.transform {
	case transformTable:
		return s.respondTable(req, http.StatusOK, out, p)
	case transformPartialList:
		return s.respondPartialList(req, out, p)
	}
	return s.respondList(req, out, p)
}

// listName is the type of a list, for messages.
func (r *resource) listName() string {
	if list := r.newList(); list != nil {
		return fmt.Sprintf("%T", list)
	}
	return r.kind.ListKind
}

// find returns the entries that a list or a deletecollection selects.
func (s *Server) find(req *request, opts *listOptions) (*page, error) {
	prefix := req.res.kind.KeyPrefix(req.namespaceOfKeys())
	start, err := s.listStart(req.ctx, req.res.table, prefix, opts)
	if err != nil {
		return nil, err
	}
	snapshot, from := start.snapshot, start.from
	found := &page{snapshot: snapshot, extent: extent{prefix: prefix, from: from, limit: opts.limit}}
	found.resourceVersion = strconv.FormatInt(found.revision(), 10)
	if opts.resourceVersion == "0" {
		found.limit = 0
	}
	match := req.matcher(opts)
	found.selected = !match.everything()
	if start.inStore {
		return s.findInStore(req, opts, found, match)
	}
	if key, ok := match.onlyKey(); ok {
		if e := snapshot.Get(key); e != nil && key >= from && match.matches(e) {
			found.entries = []*cache.Entry{e}
		}
		return found, match.err
	}
	var collected *pageEntries
	if found.selected {
		if collected = found.collect(snapshot, match); match.err != nil {
			return nil, match.err
		}
	} else {
		view, err := snapshot.Memoize(found.extent, func() (any, error) { return found.collect(snapshot, nil), nil })
		if err != nil {
			return nil, err
		}
		collected = view.(*pageEntries)
	}
	found.entries = collected.entries
	if collected.more {
		last := found.entries[len(found.entries)-1].Key()
		found.next = encodeContinue(last+"\x00", prefix, found.revision())
		if !found.selected {
			remaining := int64(snapshot.LenFrom(prefix, last+"\x00"))
			found.remaining = &remaining
		}
	}
	return found, s.checkDecrypted(req.res, found)
}

// checkDecrypted returns the error of an entry that cannot be decrypted. It is checked before a list begins, so that the error can name
// the entry.
func (s *Server) checkDecrypted(res *resource, p *page) error {
	if !res.table.HasEncrypted() {
		return nil
	}
	for _, entry := range p.entries {
		if !store.IsEncrypted(entry.Stored()) {
			continue
		}
		if _, err := entry.Object(); err != nil {
			return err
		}
	}
	return nil
}

// listStart is the state that a list reads, and the key it begins at.
type listStart struct {
	snapshot cache.Snapshot
	from     string
	inStore  bool // the cache no longer has the state: snapshot is empty and only says its revision
}

// listStart returns where a list starts:
//
//	resourceVersion   match          state
//	""                               the newest, consistently
//	"0"                              the newest the cache has
//	N                 NotOlderThan   the newest, N at least
//	N                 Exact          N itself; also without match when there is a limit
//	N                                the newest, N at least
//	continue                         the state of the first page
func (s *Server) listStart(ctx context.Context, table *cache.Table, prefix string, opts *listOptions) (listStart, error) {
	if opts.next != "" {
		return s.continueStart(ctx, table, prefix, opts)
	}
	if opts.resourceVersion == "" {
		snapshot, err := s.newestState(ctx, table)
		return listStart{snapshot: snapshot}, err
	}
	wanted, err := parseResourceVersion(opts.resourceVersion)
	if err != nil {
		return listStart{}, err
	}
	if err := s.waitFor(ctx, wanted); err != nil {
		return listStart{}, err
	}
	if opts.match == matchExact || (opts.match == "" && opts.limit > 0 && wanted > 0) {
		return startAt(table, wanted, "")
	}
	snapshot, err := stateSince(table, wanted)
	return listStart{snapshot: snapshot}, err
}

func (s *Server) continueStart(ctx context.Context, table *cache.Table, prefix string, opts *listOptions) (listStart, error) {
	from, revision, err := decodeContinue(opts.next, prefix)
	if err != nil {
		return listStart{}, apierrors.NewBadRequest("invalid continue token: " + err.Error())
	}
	if opts.resourceVersion != "" && opts.resourceVersion != "0" {
		return listStart{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	if revision < 0 {
		snapshot, err := s.newestState(ctx, table)
		return listStart{snapshot: snapshot, from: from}, err
	}
	if err := s.waitFor(ctx, revision); err != nil {
		return listStart{}, err
	}
	return startAt(table, revision, from)
}

// newestState returns the newest state of a table, consistently.
func (s *Server) newestState(ctx context.Context, table *cache.Table) (cache.Snapshot, error) {
	reached, err := s.config.Cache.Sync(ctx)
	if err != nil {
		return cache.Snapshot{}, err
	}
	return stateSince(table, reached)
}

// stateSince returns the state that a table has when the cache has reached a revision. A table that has not reached it was removed.
func stateSince(table *cache.Table, reached store.Revision) (cache.Snapshot, error) {
	snapshot := table.Snapshot()
	if snapshot.Revision() < reached {
		return cache.Snapshot{}, cache.ErrReplaced
	}
	return snapshot, nil
}

// startAt starts a list at a past revision: in the cache if it has it, otherwise in the store.
func startAt(table *cache.Table, revision store.Revision, from string) (listStart, error) {
	snapshot, err := table.SnapshotAt(revision)
	if errors.Is(err, cache.ErrExpired) {
		return listStart{snapshot: cache.EmptySnapshot(revision), from: from, inStore: true}, nil
	}
	return listStart{snapshot: snapshot, from: from}, err
}

func parseResourceVersion(text string) (store.Revision, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision > 1<<63-1 {
		if err == nil {
			err = strconv.ErrRange
		}
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: resourceVersion: Invalid value: %q: %v", text, err))
	}
	return store.Revision(revision), nil
}

// continueToken is where a list continues. The format is upstream's, so that a client can continue at either server.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`    // -1: the newest
	Start    string `json:"start"` // below the list's prefix
}

const continueVersion = "meta.k8s.io/v1"

func encodeContinue(key, prefix string, revision store.Revision) string {
	token, err := json.Marshal(continueToken{Version: continueVersion, Revision: revision, Start: strings.TrimPrefix(key, prefix)})
	if err != nil {
		panic(err) // marshalling plain fields does not fail
	}
	return base64.RawURLEncoding.EncodeToString(token)
}

func decodeContinue(text, prefix string) (from string, revision store.Revision, err error) {
	const invalid = "continue key is not valid"
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", invalid, err)
	}
	var token continueToken
	if err := json.Unmarshal(data, &token); err != nil {
		return "", 0, fmt.Errorf("%s: %w", invalid, err)
	}
	switch {
	case token.Version != continueVersion:
		return "", 0, fmt.Errorf("%s: server does not recognize this encoded version %s", invalid, token.Version)
	case token.Revision == 0:
		return "", 0, fmt.Errorf("%s: incorrect encoded start resourceVersion (version %s)", invalid, continueVersion)
	case token.Start == "":
		return "", 0, fmt.Errorf("%s: encoded start key empty (version %s)", invalid, continueVersion)
	}
	// The token comes from the client: it must not lead out of the prefix.
	key := token.Start
	if !strings.HasPrefix(key, "/") {
		key = "/" + key
	}
	if path.Clean(key) != key {
		return "", 0, fmt.Errorf("%s: %s", invalid, token.Start)
	}
	return prefix + key[1:], token.Revision, nil
}

// appendListHead opens a JSON list, up to and including the bracket of its items.
func appendListPrefix(to []byte, kindName, apiVersion string, p *page) []byte {
	to = fmt.Appendf(to, `{"kind":%q,"apiVersion":%q,"metadata":`, kindName, apiVersion)
	to = appendListMeta(to, p)
	return append(to, `,"items":[`...)
}

func appendListMeta(to []byte, p *page) []byte {
	if p.resourceVersion == "" {
		return append(to, "{}"...)
	}
	to = append(append(append(to, `{"resourceVersion":"`...), p.resourceVersion...), '"')
	if p.next != "" { // base64 needs no escapes
		to = append(append(append(to, `,"continue":"`...), p.next...), '"')
	}
	if p.remaining != nil {
		to = strconv.AppendInt(append(to, `,"remainingItemCount":`...), *p.remaining, 10)
	}
	return append(to, '}')
}

var listTail = []byte("]}\n")

// protoListMeta is a list's metadata as field 1 of a protobuf list.
func protoListMeta(p *page) []byte {
	var m []byte
	m = append(m, tagField1, 0) // selfLink
	m = appendBytes(append(m, tagField2), []byte(p.resourceVersion))
	m = appendBytes(append(m, 0x1a), []byte(p.next))
	if p.remaining != nil {
		m = binary.AppendUvarint(append(m, 0x20), uint64(*p.remaining))
	}
	return appendBytes([]byte{tagField1}, m)
}

// listKind is the kind of a list of the resource.
func (r *resource) listKind() schema.GroupVersionKind {
	return r.gvk.GroupVersion().WithKind(r.kind.ListKind)
}

// respondList writes a page as a list, from cached encodings that all lists and watches share.
func (s *Server) respondList(req *request, out output, p *page) error {
	res, lists := req.res, req.res.lists.with(req.ctx)
	if out.format == formatProtobuf {
		encode := func(i int) (protoItem, error) { return lists.proto(p.entries[i]) }
		if len(p.objs) > 0 {
			encode = func(i int) (protoItem, error) { return newProtoItem(p.objs[i]) }
		}
		return s.writeProtoList(req, p, res.listKind(), &protoItems{encode: encode}, res.encodingIDs.listProto)
	}
	items := &jsonItems{encode: func(i int) ([]byte, error) { return lists.json(p.entries[i]) }}
	if lists.webhook {
		items.encodeRun = func(start, end int) ([][]byte, error) {
			return lists.encodeConverted(p.entries[start:end], res.encodingIDs.json, marshalObject)
		}
	}
	if len(p.objs) > 0 {
		items.encode = func(i int) ([]byte, error) { return json.Marshal(p.objs[i]) }
	}
	prefix := appendListPrefix(nil, res.kind.ListKind, res.gvk.GroupVersion().String(), p)
	body := &listBody{page: p, code: http.StatusOK, items: items, encoding: res.encodingIDs.listJSON}
	return s.writeJSONList(req, out, body, prefix, "items")
}

// writeJSONList writes a JSON list, also indented or as YAML. prefix is everything before the first item; the items are in the field.
func (s *Server) writeJSONList(req *request, out output, body *listBody, prefix []byte, field string) error {
	body.mediaType, body.tail = mediaJSON, listTail
	if conversion := out.listConversion(); conversion != nil {
		var err error
		if prefix, body.tail, err = conversion.envelope(body.page.len(), append(prefix, "]}"...), field); err != nil {
			return err
		}
		body.mediaType, body.encoding = conversion.mediaType, cache.EncodingID{}
		body.items = &convertedItems{items: body.items, listConversion: conversion, field: field}
	}
	body.prefix = func(int) []byte { return prefix }
	return s.writeList(req, body)
}

// writeProtoList writes a protobuf list. Its envelope contains the length of the list.
func (s *Server) writeProtoList(req *request, p *page, gvk schema.GroupVersionKind, items *protoItems, encoding cache.EncodingID) error {
	envelope, metadata := envelopePrefix(gvk), protoListMeta(p)
	prefix := func(length int) []byte {
		prefix := binary.AppendUvarint(append(slices.Clip(envelope), tagField2), uint64(len(metadata)+length))
		return append(prefix, metadata...)
	}
	return s.writeList(req, &listBody{
		page: p, code: http.StatusOK, mediaType: mediaProtobuf, items: items, prefix: prefix, tail: envelopeTail, encoding: encoding,
	})
}

// computedObjects returns the selected objects of a kind that is computed on each read, in the served version.
func (s *Server) computedObjects(req *request, opts *listOptions) ([]kind.Object, error) {
	objs, err := req.res.kind.Computed(req.ctx, s.KindClient())
	if err != nil {
		return nil, err
	}
	match := req.matcher(opts)
	selected := make([]kind.Object, 0, len(objs))
	for _, obj := range objs {
		if !match.matchesObject(obj) {
			if match.err != nil {
				return nil, match.err
			}
			continue
		}
		if obj, err = req.res.fromStorageVersion(req.ctx, obj); err != nil {
			return nil, err
		}
		selected = append(selected, obj)
	}
	return selected, nil
}
