package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"
)

// items are the items of a page in one format.
type items interface {
	// appendItems appends the text of the items from start to end, including what separates it from the items before start.
	appendItems(to []byte, start, end int) ([]byte, error)
}

// sizedItems are items whose length is part of the prefix of their list.
type sizedItems interface {
	items
	// size is the length of the text of the items from start to end.
	size(start, end int) (int, error)
}

// jsonItems are JSON objects separated by commas.
type jsonItems struct {
	encode func(i int) ([]byte, error)
	// encodeRun is encode for the items from start to end, where that costs less. nil: it does not.
	encodeRun func(start, end int) ([][]byte, error)
	prefix    []byte // replaces an encoding's opening brace; empty: it is kept
}

func (j *jsonItems) appendItems(to []byte, start, end int) ([]byte, error) {
	encode := j.encode
	if j.encodeRun != nil {
		bodies, err := j.encodeRun(start, end)
		if err != nil {
			return to, err
		}
		encode = func(i int) ([]byte, error) { return bodies[i-start], nil }
	}
	for i := start; i < end; i++ {
		body, err := encode(i)
		if err != nil {
			return to, err
		}
		if i > 0 {
			to = append(to, ',')
		}
		if len(j.prefix) > 0 {
			to, body = append(to, j.prefix...), body[1:]
		}
		to = append(to, body...)
	}
	return to, nil
}

// protoItems are messages as the repeated field 2 of a list.
type protoItems struct {
	encode func(i int) (protoItem, error)
	// encodeRun is encode for the items from start to end, where that costs less. nil: it does not.
	encodeRun func(start, end int) ([]protoItem, error)
	// measured are the runs that encodeRun made to compute their size, by start, until they are appended.
	measured      map[int][]protoItem
	measuredBytes int
}

// maxMeasuredBytes bounds what a list keeps of runs between the computation of their size and their sending. Further runs are made twice.
const maxMeasuredBytes = 1 << 20

func (p *protoItems) appendItems(to []byte, start, end int) ([]byte, error) {
	encode, err := p.encoded(start, end)
	if err != nil {
		return to, err
	}
	for i := start; i < end; i++ {
		item, err := encode(i)
		if err != nil {
			return to, err
		}
		to = binary.AppendUvarint(append(to, tagField2), uint64(item.size()))
		to = item.append(to)
	}
	return to, nil
}

// encoded returns what returns the items from start to end.
func (p *protoItems) encoded(start, end int) (func(i int) (protoItem, error), error) {
	if p.encodeRun == nil {
		return p.encode, nil
	}
	run, ok := p.measured[start]
	if delete(p.measured, start); !ok || len(run) != end-start {
		var err error
		if run, err = p.encodeRun(start, end); err != nil {
			return nil, err
		}
	}
	return func(i int) (protoItem, error) { return run[i-start], nil }, nil
}

func (p *protoItems) size(start, end int) (total int, err error) {
	encode := p.encode
	if p.encodeRun != nil {
		run, err := p.encodeRun(start, end)
		if err != nil {
			return 0, err
		}
		defer func() { p.keep(start, run, total) }()
		encode = func(i int) (protoItem, error) { return run[i-start], nil }
	}
	for i := start; i < end; i++ {
		item, err := encode(i)
		if err != nil {
			return 0, err
		}
		size := item.size()
		total += 1 + uvarintLen(size) + size
	}
	return total, nil
}

// keep keeps a run until it is appended.
func (p *protoItems) keep(start int, run []protoItem, bytes int) {
	if p.measuredBytes += bytes; p.measuredBytes > maxMeasuredBytes {
		return
	}
	if p.measured == nil {
		p.measured = map[int][]protoItem{}
	}
	p.measured[start] = run
}

// listConversion converts JSON lists to another format, in parts: an item is written the same way whatever other items its list has.
type listConversion struct {
	mediaType string
	convert   func([]byte) ([]byte, error)
	// %s is the field of the items in the following. begin opens an object that has only this field. A list is written as empty if it
	// has no items; otherwise its items are between open and close.
	begin, empty, open, close string
	separator                 string
}

var (
	toIndentedJSON = &listConversion{
		mediaType: mediaJSON, convert: indentJSON,
		begin: "{\n", empty: "  \"%s\": []\n}", open: "  \"%s\": [", close: "\n  ]\n}", separator: ",",
	}
	toYAML = &listConversion{mediaType: mediaYAML, convert: yaml.JSONToYAML, empty: "%s: []\n", open: "%s:\n"}
)

// listConversion returns the conversion for a format; nil: none is needed.
func (o output) listConversion() *listConversion {
	switch {
	case o.format == formatYAML:
		return toYAML
	case o.format == formatJSON && o.pretty:
		return toIndentedJSON
	}
	return nil
}

func indentJSON(text []byte) ([]byte, error) {
	var indented bytes.Buffer
	err := json.Indent(&indented, text, "", "  ")
	return indented.Bytes(), err
}

// envelope converts what precedes and follows the items of a list. empty is the JSON of the list without items.
func (c *listConversion) envelope(count int, empty []byte, field string) (prefix, tail []byte, err error) {
	text, err := c.convert(empty)
	if err != nil {
		return nil, nil, fmt.Errorf("convert list to %s: %w", c.mediaType, err)
	}
	if count == 0 {
		return text, nil, nil
	}
	mark := "\n" + fmt.Sprintf(c.empty, field)
	at := bytes.LastIndex(text, []byte(mark))
	if at < 0 {
		return nil, nil, fmt.Errorf("convert list to %s: field %s is missing", c.mediaType, field)
	}
	prefix = fmt.Appendf(bytes.Clone(text[:at+1]), c.open, field)
	return prefix, append([]byte(c.close), text[at+len(mark):]...), nil
}

// convertedItems are JSON items in another format.
type convertedItems struct {
	items
	*listConversion
	field string // of the list, which has the items
}

func (c *convertedItems) appendItems(to []byte, start, end int) ([]byte, error) {
	buffer := getBuffer()
	defer putBuffer(buffer)
	*buffer = fmt.Appendf(*buffer, `{"%s":[`, c.field)
	opened := len(*buffer)
	var err error
	if *buffer, err = c.items.appendItems(*buffer, start, end); err != nil {
		return to, err
	}
	if start > 0 {
		(*buffer)[opened] = ' ' // the comma after the items before start
		to = append(to, c.separator...)
	}
	*buffer = append(*buffer, "]}"...)
	text, err := c.convert(*buffer)
	if err != nil {
		return to, fmt.Errorf("convert items to %s: %w", c.mediaType, err)
	}
	prefix := []byte(c.begin + fmt.Sprintf(c.open, c.field))
	if !bytes.HasPrefix(text, prefix) || !bytes.HasSuffix(text, []byte(c.close)) {
		return to, fmt.Errorf("convert items to %s: the result is not a list of %s", c.mediaType, c.field)
	}
	return append(to, text[len(prefix):len(text)-len(c.close)]...), nil
}
