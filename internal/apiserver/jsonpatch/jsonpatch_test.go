package jsonpatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestApply(t *testing.T) {
	for _, test := range []struct{ patch, document, want, err string }{
		{`[{"op":"add","path":"/a","value":1}]`, `{}`, `{"a":1}`, ""},
		{`[{"op":"remove","path":"/a"}]`, `{}`, "", "nonexistant"},
		{`[{"op":"test","path":"/a","value":2}]`, `{"a":1}`, "", "testing value /a failed"},
		{`[{"op":"remove","path":""}]`, `{"a":1}`, "", "remove operation"},
		{`{}`, `{}`, "", "cannot unmarshal"},
	} {
		patch, err := Decode([]byte(test.patch))
		var got []byte
		if err == nil {
			got, err = Apply(patch, []byte(test.document))
		}
		if string(got) != test.want && test.err == "" || (err == nil) != (test.err == "") {
			t.Errorf("%s: %s %v, want %s %s", test.patch, got, err, test.want, test.err)
		}
	}
}

// TestBounds: neither the number of operations nor copies can make a document huge.
func TestBounds(t *testing.T) {
	operations := make([]string, MaxOperations+1)
	for i := range operations {
		operations[i] = `{"op":"add","path":"/a","value":1}`
	}
	_, err := Decode([]byte("[" + strings.Join(operations, ",") + "]"))
	var tooMany *TooManyError
	if !errors.As(err, &tooMany) || tooMany.Operations != MaxOperations+1 {
		t.Errorf("%d operations: %v", len(operations), err)
	}
	copies := make([]string, 40)
	for i := range copies {
		copies[i] = fmt.Sprintf(`{"op":"copy","from":"","path":"/a%d"}`, i)
	}
	patch, err := Decode([]byte("[" + strings.Join(copies, ",") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	if doubled, err := Apply(patch, []byte(`{"x":"`+strings.Repeat("x", 1000)+`"}`)); err == nil {
		t.Errorf("forty copies of the whole document made %d bytes", len(doubled))
	}
}
