package configfile

import (
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type nested struct {
	Mode string `json:"mode,omitempty"`
	On   *bool  `json:"on,omitempty"`
}

type file struct {
	metav1.TypeMeta `json:",inline"`
	Name            string            `json:"name,omitempty"`
	Period          metav1.Duration   `json:"period,omitempty"`
	Nested          nested            `json:"nested,omitempty"`
	Pointer         *nested           `json:"pointer,omitempty"`
	List            []nested          `json:"list,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	JWTIssuer       string
}

func TestDecode(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"valid", "apiVersion: v1\nkind: File\nname: a\nnested: {mode: b}\n", ""},
		{"JSON", `{"name": "a"}`, ""},
		{"unknown", "nested: {made: b}\n", `unknown field "nested.made"`},
		{"unknown in a list", "list: [{mode: a}, {made: b}]\n", `unknown field "list[1].made"`},
		{"other case", "Name: a\n", `unknown field "Name"`},
		{"duplicate", "name: a\nname: b\n", `key "name" already set in map`},
		{"duplicate in JSON", `{"nested": {"mode": "a", "mode": "b"}}`, `key "mode" already set in map`},
		{"no YAML", "{", "did not find expected node content"},
		{"another type", "name: [a]\n", "cannot unmarshal array"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Decode([]byte(test.text), &file{})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	var f file
	if strict, err := DecodeLenient([]byte("name: a\nname: b\nother: 1\n"), &f); err != nil || len(strict) != 2 || f.Name != "b" {
		t.Errorf("name %q, strict errors %v, %v", f.Name, strict, err)
	}
}

func TestCheck(t *testing.T) {
	unused := []Unused{
		{Path: "name", Accepted: []string{"a"}, Reason: "it has a name"},
		{Path: "period", Accepted: []string{"2m0s"}, Reason: "it has a period"},
		{Path: "nested.on", Accepted: []string{"true"}, Reason: "it is on"},
		{Path: "pointer.mode", Harmless: true, Reason: "it has a mode"},
		{Path: "list.mode", Reason: "its elements have no mode"},
		{Path: "labels", Harmless: true, Reason: "it has no labels"},
		{Path: "jwtIssuer", Reason: "it has no issuer"},
	}
	on, off := true, false
	for _, test := range []struct {
		name     string
		file     file
		warnings []string
		want     string
	}{
		{name: "empty"},
		{name: "accepted", file: file{Name: "a", Period: metav1.Duration{Duration: 2 * time.Minute}, Nested: nested{On: &on}, Labels: map[string]string{}, List: []nested{{}}}},
		{name: "value", file: file{Name: "b"}, want: "name: b is not supported: it has a name"},
		{name: "duration", file: file{Period: metav1.Duration{Duration: time.Second}}, want: "period: 1s is not supported: it has a period"},
		{name: "pointer to zero", file: file{Nested: nested{On: &off}}, want: "nested.on: false is not supported: it is on"},
		{name: "several", file: file{Name: "b", List: []nested{{}, {Mode: "c"}, {Mode: "d"}}}, want: "name: b is not supported: it has a name\nlist.mode: c is not supported: its elements have no mode"},
		{name: "no tag", file: file{JWTIssuer: "x"}, want: "jwtIssuer: x is not supported: it has no issuer"},
		{name: "harmless", file: file{Pointer: &nested{Mode: "x"}, Labels: map[string]string{"a": "b"}}, warnings: []string{"pointer.mode has no effect: it has a mode", "labels has no effect: it has no labels"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			warnings, err := Check(&test.file, unused)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != test.want || !reflect.DeepEqual(warnings, test.warnings) {
				t.Errorf("error %q, warnings %q; want %q, %q", text, warnings, test.want, test.warnings)
			}
		})
	}
}

func TestCheckPanicsOnWrongPath(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = Check(&file{}, []Unused{{Path: "nested.none"}})
}

func TestFieldName(t *testing.T) {
	for name, want := range map[string]string{"JWT": "jwt", "UID": "uid", "JWTIssuer": "jwtIssuer", "Name": "name", "CertificateAuthority": "certificateAuthority", "DiscoveryURL": "discoveryURL"} {
		if got := FieldName(name, ""); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := FieldName("ResolverConfig", `json:"resolvConf,omitempty"`); got != "resolvConf" {
		t.Error(got)
	}
}
