package apiserver

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"

	matchExact        = string(metav1.ResourceVersionMatchExact)
	matchNotOlderThan = string(metav1.ResourceVersionMatchNotOlderThan)
)

// listOptions are the parameters of lists, watches and deletions of collections.
type listOptions struct {
	labels          labels.Selector // nil: everything
	fields          fields.Selector // nil: everything; in the storage version's labels
	resourceVersion string
	match           string // of the resourceVersion
	limit           int64
	next            string // the continue token
	watch           bool
	// Of watches.
	timeout       time.Duration // 0: the server's choice
	bookmarks     bool
	initialEvents *bool
}

// listOptions parses and validates the parameters of the request.
func (r *request) listOptions() (*listOptions, error) {
	opts, err := parseListOptions(r.query)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	opts.watch = r.info.verb == "watch"
	if opts.watch && opts.initialEvents == nil && opts.match == "" && (opts.resourceVersion == "" || opts.resourceVersion == "0") {
		// A watch without a resourceVersion begins with the current state.
		yes := true
		opts.initialEvents, opts.match = &yes, matchNotOlderThan
	}
	if errs := opts.validate(); len(errs) > 0 {
		return nil, kind.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if opts.fields != nil {
		if opts.fields, err = opts.fields.Transform(r.res.storageVersionField); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	return opts, r.applyName(opts)
}

// applyName restricts the selection to the name in the path or in the selector.
func (r *request) applyName(opts *listOptions) error {
	name := r.info.name
	if name == "" {
		return nil
	}
	if opts.fields != nil && !opts.fields.Empty() {
		selected, ok := opts.fields.RequiresExactMatch(fieldName)
		if !ok || selected != name {
			return apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
		return nil
	}
	opts.fields = fields.OneTermEqualSelector(fieldName, name)
	return nil
}

func parseListOptions(query url.Values) (*listOptions, error) {
	opts := &listOptions{}
	if len(query) == 0 {
		return opts, nil
	}
	opts.resourceVersion = query.Get("resourceVersion")
	opts.match = query.Get("resourceVersionMatch")
	opts.next = query.Get("continue")
	opts.bookmarks = isTrue(query, "allowWatchBookmarks")
	if _, ok := query["sendInitialEvents"]; ok {
		send := isTrue(query, "sendInitialEvents")
		opts.initialEvents = &send
	}
	var err error
	if text := query.Get("labelSelector"); text != "" {
		if opts.labels, err = labels.Parse(text); err != nil {
			return nil, err
		}
	}
	if text := query.Get("fieldSelector"); text != "" {
		if opts.fields, err = fields.ParseSelector(text); err != nil {
			return nil, err
		}
	}
	if text := query.Get("limit"); text != "" {
		if opts.limit, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, err
		}
	}
	if text := query.Get("timeoutSeconds"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, err
		}
		opts.timeout = time.Duration(max(seconds, 0)) * time.Second
	}
	return opts, nil
}

// validate checks which parameters may be combined.
func (o *listOptions) validate() field.ErrorList {
	var errs field.ErrorList
	matchPath := field.NewPath("resourceVersionMatch")
	initialPath := field.NewPath("sendInitialEvents")
	if o.watch {
		if o.initialEvents != nil && o.match != matchNotOlderThan {
			errs = append(errs, field.Forbidden(matchPath, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
		}
		if o.match != "" {
			if o.initialEvents == nil {
				errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
			}
			if o.match != matchNotOlderThan {
				errs = append(errs, field.NotSupported(matchPath, o.match, []string{matchNotOlderThan}))
			}
			if o.next != "" {
				errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden when continue is provided"))
			}
		}
		return errs
	}
	if o.match != "" {
		if o.resourceVersion == "" {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
		}
		if o.next != "" {
			errs = append(errs, field.Forbidden(matchPath, "resourceVersionMatch is forbidden when continue is provided"))
		}
		if o.match != matchExact && o.match != matchNotOlderThan {
			errs = append(errs, field.NotSupported(matchPath, o.match, []string{matchExact, matchNotOlderThan, ""}))
		}
		if o.match == matchExact && o.resourceVersion == "0" {
			errs = append(errs, field.Forbidden(matchPath, `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`))
		}
	}
	if o.initialEvents != nil {
		errs = append(errs, field.Forbidden(initialPath, "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// storageVersionField maps a field label of the served version to that of the storage version and rejects unknown labels.
func (r *resource) storageVersionField(label, value string) (string, string, error) {
	if label == fieldName || label == fieldNamespace && (r.kind.Namespaced || r.kind.Custom == nil) {
		return label, value, nil
	}
	if mapped, ok := r.version.Fields[label]; ok {
		return mapped, value, nil
	}
	if _, ok := r.kind.Fields[label]; ok {
		return label, value, nil
	}
	if len(r.kind.Fields) == 0 && r.kind.Custom == nil {
		return "", "", fmt.Errorf("%q is not a known field selector: only %q, %q", label, fieldName, fieldNamespace)
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// selectableFields returns a function that computes the selectable fields besides name and namespace.
func selectableFields(k *kind.Kind) func(ctx context.Context, objs []kind.Object) ([]map[string]string, error) {
	if k.Custom != nil {
		if k.Custom.Fields == nil {
			return nil
		}
		return func(ctx context.Context, objs []kind.Object) ([]map[string]string, error) {
			values, err := k.Custom.Fields(ctx, objs)
			return values, abandoned(ctx, err)
		}
	}
	if len(k.Fields) == 0 {
		return nil
	}
	return func(_ context.Context, objs []kind.Object) ([]map[string]string, error) {
		all := make([]map[string]string, len(objs))
		for i, obj := range objs {
			all[i] = make(map[string]string, len(k.Fields))
			for label, value := range k.Fields {
				all[i][label] = value(obj)
			}
		}
		return all, nil
	}
}

// matcher selects the entries of a list or a watch.
type matcher struct {
	ctx            context.Context // of the request
	kind           *kind.Kind
	prefix         string // of keys
	name           string // the only one possible, or empty
	namespace      string
	labels         labels.Selector // nil: everything
	fields         fields.Selector // nil: everything
	fieldsBeyondID bool            // the field selector has other fields than name and namespace
	// A matcher serves one request: set is that of the current entry, and err is why an entry could not be matched.
	set fieldSet
	err error
}

// namespaceOfKeys is the namespace of the request's keys; empty for all.
func (r *request) namespaceOfKeys() string {
	if !r.res.kind.Namespaced {
		return ""
	}
	return r.info.namespace
}

func (r *request) matcher(opts *listOptions) *matcher {
	m := &matcher{ctx: r.ctx, kind: r.res.kind, namespace: r.namespaceOfKeys()}
	m.prefix = m.kind.KeyPrefix(m.namespace)
	if opts.labels != nil && !opts.labels.Empty() {
		m.labels = opts.labels
	}
	if opts.fields != nil && !opts.fields.Empty() {
		m.fields = opts.fields
		m.name, _ = opts.fields.RequiresExactMatch(fieldName)
		if namespace, ok := opts.fields.RequiresExactMatch(fieldNamespace); ok && m.namespace == "" && m.kind.Namespaced {
			m.namespace = namespace
		}
		for _, requirement := range opts.fields.Requirements() {
			if requirement.Field != fieldName && requirement.Field != fieldNamespace {
				m.fieldsBeyondID = true
			}
		}
	}
	return m
}

// everything reports whether all entries below the prefix match.
func (m *matcher) everything() bool { return m.labels == nil && m.fields == nil }

// onlyKey is the one key that can match.
func (m *matcher) onlyKey() (string, bool) {
	if m.name == "" || (m.kind.Namespaced && m.namespace == "") {
		return "", false
	}
	return m.kind.Key(m.namespace, m.name), true
}

// scope is the part of the table that has all entries that can match. A field selector is more selective than a namespace.
func (m *matcher) scope() cache.Scope {
	if key, ok := m.onlyKey(); ok {
		return cache.Scope{By: cache.ByKey, Value: key}
	}
	if m.fields != nil && m.kind.IndexedField != "" {
		if value, ok := m.fields.RequiresExactMatch(m.kind.IndexedField); ok {
			return cache.Scope{By: cache.ByIndex, Value: value}
		}
	}
	if m.namespace != "" {
		return cache.Scope{By: cache.ByNamespace, Value: m.kind.KeyPrefix(m.namespace)}
	}
	return cache.Scope{}
}

// matches reports whether an entry matches whose key is below the prefix. It is false when err is set.
func (m *matcher) matches(e *cache.Entry) bool {
	if !m.matchesLabels(e) {
		return false
	}
	if m.fields == nil {
		return true
	}
	var values map[string]string
	switch {
	case m.together():
		values = m.fieldsOf([]*cache.Entry{e})[0]
	case m.fieldsBeyondID:
		values, m.err = e.Fields(m.ctx)
	}
	return m.err == nil && m.matchesFields(e, values)
}

// fieldsOf computes the fields of entries together. The request has no seats while it waits for a webhook. If err is set, there are none.
func (m *matcher) fieldsOf(entries []*cache.Entry) (values []map[string]string) {
	kind.Wait(m.ctx, func() { values, m.err = cache.FieldsOf(m.ctx, entries) })
	if m.err != nil {
		return make([]map[string]string, len(entries))
	}
	return values
}

// matchesLabels is matches for the label selector.
func (m *matcher) matchesLabels(e *cache.Entry) bool {
	if m.labels == nil {
		return true
	}
	values, err := e.Labels()
	if err != nil {
		m.err = err
		return false
	}
	return m.labels.Matches(labels.Set(values))
}

// matchesFields is matches for the field selector, given the values of the fields besides name and namespace.
func (m *matcher) matchesFields(e *cache.Entry, values map[string]string) bool {
	m.set.namespace, m.set.name = splitKey(m.kind, e.Key())
	m.set.values = values
	return m.fields.Matches(&m.set)
}

// maxMatchRun is how many entries are matched together if a webhook is called for their fields: as many as one call converts.
const maxMatchRun = 500

// together reports whether a webhook may be called for the fields of entries, so that they are better matched together.
func (m *matcher) together() bool {
	return m.fieldsBeyondID && m.kind.Custom != nil && m.kind.Custom.Webhook
}

// each calls accept with the positions of the entries that match, in order, until it returns false. It reports whether it never did; err may be set.
func (m *matcher) each(entries []*cache.Entry, accept func(i int) bool) bool {
	if !m.together() {
		for i, e := range entries {
			if m.matches(e) && !accept(i) {
				return false
			}
			if m.err != nil {
				return false
			}
		}
		return true
	}
	for start := 0; start < len(entries); start += maxMatchRun {
		if !m.eachOfRun(entries[start:min(start+maxMatchRun, len(entries))], func(i int) bool { return accept(start + i) }) {
			return false
		}
	}
	return true
}

// eachOfRun is each for entries whose fields are computed together.
func (m *matcher) eachOfRun(entries []*cache.Entry, accept func(i int) bool) bool {
	var positions []int
	var candidates []*cache.Entry
	for i, e := range entries {
		if m.matchesLabels(e) {
			positions, candidates = append(positions, i), append(candidates, e)
		}
		if m.err != nil {
			return false
		}
	}
	values := m.fieldsOf(candidates)
	if m.err != nil {
		return false
	}
	for n, e := range candidates {
		if m.matchesFields(e, values[n]) && !accept(positions[n]) {
			return false
		}
	}
	return true
}

// ascend calls accept with the entries of a snapshot that match, in order, until it returns false; err may be set. limit is how many are
// expected to be accepted, 0 if unknown.
func (m *matcher) ascend(snapshot cache.Snapshot, from string, limit int64, accept func(*cache.Entry) bool) {
	if !m.together() {
		snapshot.Ascend(m.prefix, from, func(e *cache.Entry) bool {
			if !m.matches(e) {
				return m.err == nil
			}
			return accept(e)
		})
		return
	}
	size := maxMatchRun
	if limit > 0 {
		size = int(min(limit, maxMatchRun))
	}
	run := make([]*cache.Entry, 0, size)
	matchRun := func() bool {
		more := m.each(run, func(i int) bool { return accept(run[i]) })
		run, size = run[:0], min(2*size, maxMatchRun) // most entries may not match
		return more
	}
	ended := false
	snapshot.Ascend(m.prefix, from, func(e *cache.Entry) bool {
		if run = append(run, e); len(run) < size {
			return true
		}
		ended = !matchRun()
		return !ended
	})
	if !ended {
		matchRun()
	}
}

// prepare computes the fields of the entries of events together, before the events are classified one by one.
func (m *matcher) prepare(events []cache.Event) error {
	if !m.together() {
		return nil
	}
	var entries []*cache.Entry
	for i := range events {
		if event := &events[i]; strings.HasPrefix(event.Entry.Key(), m.prefix) {
			if event.Type != cache.Deleted {
				entries = append(entries, event.Entry)
			}
			if event.Old != nil {
				entries = append(entries, event.Old)
			}
		}
	}
	m.each(entries, func(int) bool { return true })
	err := m.err
	m.err = nil
	return err
}

// classify returns the type of an event as a watcher with this selector sees it: 0 when it sees nothing. deselected means that the
// object still exists but no longer matches.
func (m *matcher) classify(event *cache.Event) (change cache.EventType, deselected bool, err error) {
	if !strings.HasPrefix(event.Entry.Key(), m.prefix) {
		return 0, false, nil
	}
	if m.everything() {
		return event.Type, false, nil
	}
	matches := event.Type != cache.Deleted && m.matches(event.Entry)
	matched := m.err == nil && event.Old != nil && m.matches(event.Old)
	switch {
	case m.err != nil:
		return 0, false, m.err
	case matches && matched:
		return cache.Modified, false, nil
	case matches:
		return cache.Added, false, nil
	case matched:
		return cache.Deleted, event.Type != cache.Deleted, nil
	}
	return 0, false, nil
}

// matchesObject reports whether an object matches that is not a cache entry.
func (m *matcher) matchesObject(obj kind.Object) bool {
	if m.labels != nil && !m.labels.Matches(labels.Set(obj.GetLabels())) {
		return false
	}
	if m.fields == nil {
		return true
	}
	set := fieldSet{name: obj.GetName(), namespace: obj.GetNamespace()}
	if compute := selectableFields(m.kind); compute != nil {
		values, err := compute(m.ctx, []kind.Object{obj})
		if err != nil {
			m.err = err
			return false
		}
		set.values = values[0]
	}
	return m.fields.Matches(&set)
}

// splitKey returns namespace and name of a key.
func splitKey(k *kind.Kind, key string) (namespace, name string) {
	slash := strings.LastIndexByte(key, '/')
	name = key[slash+1:]
	if k.Namespaced && slash > 0 {
		namespace = key[strings.LastIndexByte(key[:slash], '/')+1 : slash]
	}
	return namespace, name
}

// fieldSet is the selectable fields of an object, with name and namespace.
type fieldSet struct {
	name, namespace string
	values          map[string]string
}

// Has implements fields.Fields.
func (s *fieldSet) Has(label string) bool {
	if label == fieldName || label == fieldNamespace {
		return true
	}
	_, ok := s.values[label]
	return ok
}

// Get implements fields.Fields.
func (s *fieldSet) Get(label string) string {
	switch label {
	case fieldName:
		return s.name
	case fieldNamespace:
		return s.namespace
	}
	return s.values[label]
}
