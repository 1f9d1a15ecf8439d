package managedfields

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
)

// merge takes the modified and the removed fields from every entry and gives the modified ones to the manager's own. It returns
// false when an entry is not in the form the server writes; then the caller must merge with structured-merge-diff.
func (m *Manager) merge(c *comparer, entries []metav1.ManagedFieldsEntry, manager string, now time.Time) ([]metav1.ManagedFieldsEntry, bool) {
	modified, removed := c.modified.pop(0), c.removed.pop(0)
	if len(modified) == 0 && len(removed) == 0 {
		return slices.Clone(entries), true
	}
	if manager == "" {
		manager = "unknown"
	}
	own := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.apiVersion,
		Subresource: m.subresource, FieldsType: "FieldsV1",
	}
	out := make([]metav1.ManagedFieldsEntry, 0, len(entries)+1)
	ownFields := modified
	seen := sets.New[managerID]()
	for i := range entries {
		e := entries[i]
		fields, ok := c.parser.parse(e.FieldsV1.GetRawString(), m.fieldTree())
		if !ok || seen.Has(idOf(&e)) {
			return nil, false
		}
		seen.Insert(idOf(&e))
		if idOf(&e) == idOf(&own) && len(modified) > 0 {
			ownFields = union(difference(fields, removed), modified)
			continue
		}
		size := countMembers(fields)
		fields = difference(difference(fields, removed), modified)
		if len(fields) == 0 {
			continue
		}
		if countMembers(fields) != size {
			e.FieldsV1 = encodeSet(fields)
		}
		out = append(out, e)
	}
	if len(ownFields) > 0 {
		own.Time = &metav1.Time{Time: now.UTC()}
		own.FieldsV1 = encodeSet(ownFields)
		out = append(out, own)
	}
	if len(out) == 0 {
		return nil, true
	}
	slices.SortStableFunc(out, compareEntries)
	return out, true
}

func encodeSet(nodes []node) *metav1.FieldsV1 {
	raw := appendSet(make([]byte, 0, setSize(nodes)), nodes, false)
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes(raw)
	return fields
}

func countMembers(nodes []node) int {
	n := 0
	for i := range nodes {
		if nodes[i].member {
			n++
		}
		n += countMembers(nodes[i].children)
	}
	return n
}

// managerID is what makes two entries belong to one manager. Apply entries belong to one manager in all API versions.
type managerID struct {
	manager     string
	operation   metav1.ManagedFieldsOperationType
	subresource string
	apiVersion  string // empty for an applier
}

func idOf(e *metav1.ManagedFieldsEntry) managerID {
	id := managerID{manager: e.Manager, operation: e.Operation, subresource: e.Subresource}
	if e.Operation != metav1.ManagedFieldsOperationApply {
		id.apiVersion = e.APIVersion
	}
	return id
}

func compareEntries(a, b metav1.ManagedFieldsEntry) int {
	return cmp.Or(
		cmp.Compare(a.Operation, b.Operation),
		cmp.Compare(entrySeconds(&a), entrySeconds(&b)),
		cmp.Compare(a.Manager, b.Manager),
		cmp.Compare(a.APIVersion, b.APIVersion),
		cmp.Compare(a.Subresource, b.Subresource),
	)
}

func entrySeconds(e *metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}

// isReset reports whether a client wants all ownership removed: it sends an empty list, or a list of one empty entry.
func isReset(entries []metav1.ManagedFieldsEntry) bool {
	switch len(entries) {
	case 0:
		return entries != nil
	case 1:
		return reflect.DeepEqual(entries[0], metav1.ManagedFieldsEntry{})
	}
	return false
}

// EqualEntries reports whether two lists of entries are equal, ignoring fractions of a second in their times. A client that reads, changes and writes back sends the
// entries it got.
func EqualEntries(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion &&
			a.Subresource == b.Subresource && a.FieldsType == b.FieldsType && entrySeconds(&a) == entrySeconds(&b) &&
			(a.Time == nil) == (b.Time == nil) &&
			(a.FieldsV1 == nil) == (b.FieldsV1 == nil) &&
			(a.FieldsV1 == nil || a.FieldsV1.Equal(*b.FieldsV1))
	})
}

// ManagerName is the manager a write other than apply is recorded under: the fieldManager parameter, or the first part of the
// User-Agent without unprintable characters.
func ManagerName(option, userAgent string) string {
	if option != "" {
		return option
	}
	agent, _, _ := strings.Cut(userAgent, "/")
	printableASCII := true
	for i := range len(agent) {
		if agent[i] < 0x20 || agent[i] >= 0x7f {
			printableASCII = false
			break
		}
	}
	if printableASCII && len(agent) <= validation.FieldManagerMaxLength {
		return agent
	}
	var name strings.Builder
	for _, r := range agent {
		if !unicode.IsPrint(r) {
			continue
		}
		if name.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		name.WriteRune(r)
	}
	return name.String()
}
