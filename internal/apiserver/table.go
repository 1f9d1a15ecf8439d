package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// tableWriter encodes objects of one resource as a Table, row by row.
type tableWriter struct {
	ctx     context.Context // of the request
	res     *resource
	encoder *encoder
	version string // of meta.k8s.io
	include metav1.IncludeObjectPolicy
	columns []metav1.TableColumnDefinition
	row     func(obj kind.Object, now time.Time) []any
	// convert: rows are computed from objects in the served version, not in the stored one.
	convert bool
	// view: the objects are views of the resource (scale).
	view bool
}

// defaultColumns are the columns of a kind that defines none.
var defaultColumns = []metav1.TableColumnDefinition{
	kind.NameColumn(),
	{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
}

func defaultRow(obj kind.Object, _ time.Time) []any {
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
}

// tableWriter returns the writer for a request; its includeObject parameter decides what rows contain of their object.
func (r *request) tableWriter(out output) (*tableWriter, error) {
	t := &tableWriter{ctx: r.ctx, res: r.res, encoder: r.res.with(r.ctx), version: out.metaVersion, include: metav1.IncludeObjectPolicy(r.query.Get("includeObject"))}
	switch t.include {
	case "":
		t.include = metav1.IncludeMetadata
	case metav1.IncludeMetadata, metav1.IncludeObject, metav1.IncludeNone:
	default:
		err := field.Invalid(field.NewPath("includeObject"), t.include, "must be 'Metadata', 'Object', 'None', or empty")
		return nil, apierrors.NewBadRequest("Unable to convert to Table as requested: " + err.Error())
	}
	switch {
	case r.sub != nil && r.sub.View != nil:
		t.view = true
		t.columns, t.row = r.sub.View.Columns, r.sub.View.Row
		if t.row == nil {
			t.columns, t.row = defaultColumns, defaultRow
		}
	case r.res.version.Row != nil:
		t.columns, t.row, t.convert = r.res.version.Columns, r.res.version.Row, true
	case r.res.kind.Row != nil:
		t.columns, t.row = r.res.kind.Columns, r.res.kind.Row
	default:
		t.columns, t.row = defaultColumns, defaultRow
	}
	return t, nil
}

// appendPrefix begins the table, up to and including the bracket of its rows.
func (t *tableWriter) appendPrefix(to []byte, metadata []byte, headers bool) ([]byte, error) {
	to = fmt.Appendf(to, `{"kind":"Table","apiVersion":"meta.k8s.io/%s","metadata":`, t.version)
	to = append(append(to, metadata...), `,"columnDefinitions":`...)
	if !headers {
		return append(to, `null,"rows":[`...), nil
	}
	columns, err := json.Marshal(t.columns)
	if err != nil {
		return to, fmt.Errorf("write columns: %w", err)
	}
	return append(append(to, columns...), `,"rows":[`...), nil
}

// cells computes the cells of objects in the storage version.
func (t *tableWriter) cells(objs []kind.Object, now time.Time) ([][]any, error) {
	rows := make([][]any, len(objs))
	if t.convert {
		var err error
		if objs, err = t.res.fromStorageVersions(t.ctx, objs); err != nil {
			return nil, err
		}
	}
	for i, obj := range objs {
		rows[i] = t.row(obj, now)
	}
	return rows, nil
}

// appendRow appends one row. included appends what the row contains of its object, in the served version.
func (t *tableWriter) appendRow(to []byte, obj kind.Object, cells []any, included func([]byte) ([]byte, error)) ([]byte, error) {
	text, err := json.Marshal(cells)
	if err != nil {
		return to, fmt.Errorf("write cells of %s: %w", obj.GetName(), err)
	}
	to = append(append(to, `{"cells":`...), text...)
	if t.res.kind.RowConditions != nil && !t.view {
		if conditions := t.res.kind.RowConditions(obj); len(conditions) > 0 {
			if text, err = json.Marshal(conditions); err != nil {
				return to, fmt.Errorf("write conditions of %s: %w", obj.GetName(), err)
			}
			to = append(append(to, `,"conditions":`...), text...)
		}
	}
	to = append(to, `,"object":`...)
	if to, err = included(to); err != nil {
		return to, err
	}
	return append(to, '}'), nil
}

// appendEntry appends what the row contains of an entry, from its cached encodings.
func (t *tableWriter) appendEntry(to []byte, entry *cache.Entry) ([]byte, error) {
	switch t.include {
	case metav1.IncludeObject:
		return t.encoder.appendJSON(to, entry)
	case metav1.IncludeNone:
		return append(to, "null"...), nil
	}
	return t.encoder.appendPartialJSON(to, entry, t.version)
}

// appendIncluded appends what the row contains of an object that is not a cache entry.
func (t *tableWriter) appendIncluded(to []byte, obj kind.Object, include metav1.IncludeObjectPolicy) ([]byte, error) {
	switch include {
	case metav1.IncludeObject:
		if t.view {
			return appendObject(to, obj, obj.GetObjectKind().GroupVersionKind(), formatJSON)
		}
		served, err := t.res.fromStorageVersion(t.ctx, obj)
		if err != nil {
			return to, err
		}
		return appendObject(to, served, t.res.gvk, formatJSON)
	case metav1.IncludeNone:
		return append(to, "null"...), nil
	}
	return appendObjectPartialJSON(to, obj, t.version)
}

// convertsOnce reports whether the cells and what a row contains of its object are made from one conversion, because it calls a webhook.
func (t *tableWriter) convertsOnce() bool { return t.convert && t.encoder.webhook }

// tableRows are the items of a list as the rows of a table.
type tableRows struct {
	*tableWriter
	page *page
	now  time.Time
	rows [][]any // the cells of all rows if they depend on the whole list; otherwise nil
}

func (t *tableRows) appendItems(to []byte, start, end int) ([]byte, error) {
	objs, err := t.page.objects(start, end)
	if err != nil {
		return to, err
	}
	fromEntries := len(t.page.objs) == 0
	if t.convertsOnce() {
		if objs, err = t.res.fromStorageVersions(t.ctx, objs); err != nil {
			return to, err
		}
		fromEntries = false
	}
	rows := t.rows
	if rows != nil {
		rows = rows[start:end]
	} else if rows, err = t.cells(objs, t.now); err != nil {
		return to, err
	}
	for i, obj := range objs {
		if start+i > 0 {
			to = append(to, ',')
		}
		to, err = t.appendRow(to, obj, rows[i], func(to []byte) ([]byte, error) {
			if !fromEntries {
				return t.appendIncluded(to, obj, t.include)
			}
			return t.appendEntry(to, t.page.entries[start+i])
		})
		if err != nil {
			return to, err
		}
	}
	return to, nil
}

// respondTable responds with the table of a page.
func (s *Server) respondTable(req *request, code int, out output, p *page) error {
	t, err := req.tableWriter(out)
	if err != nil {
		return err
	}
	t.encoder = req.res.lists.with(req.ctx)
	rows := &tableRows{tableWriter: t, page: p, now: time.Now()}
	if req.res.kind.ListRows != nil {
		objs, err := p.objects(0, p.len())
		if err != nil {
			return err
		}
		if rows.rows, err = t.cells(objs, rows.now); err != nil {
			return err
		}
		req.res.kind.ListRows(objs, rows.rows)
	}
	prefix, err := t.appendPrefix(nil, appendListMeta(nil, p), true)
	if err != nil {
		return err
	}
	return s.writeJSONList(req, out, &listBody{page: p, code: code, items: rows}, prefix, "rows")
}

// respondObjectTable responds with the table of one object in the storage version.
func (s *Server) respondObjectTable(req *request, code int, out output, obj kind.Object) error {
	return s.respondTable(req, code, out, &page{objs: []kind.Object{obj}, resourceVersion: obj.GetResourceVersion()})
}

func tableMeta(resourceVersion string) []byte {
	return fmt.Appendf(nil, `{"resourceVersion":%q}`, resourceVersion)
}

// appendTableEvent appends the one-row table that a watch sends for an object in the storage version.
func (t *tableWriter) appendTableEvent(to []byte, obj kind.Object, headers bool, included func([]byte) ([]byte, error)) ([]byte, error) {
	to, err := t.appendPrefix(to, tableMeta(obj.GetResourceVersion()), headers)
	if err != nil {
		return to, err
	}
	rows, err := t.cells([]kind.Object{obj}, time.Now())
	if err != nil {
		return to, err
	}
	if to, err = t.appendRow(to, obj, rows[0], included); err != nil {
		return to, err
	}
	return append(to, "]}"...), nil
}
