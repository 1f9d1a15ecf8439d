package controllers

import (
	"strings"
	"testing"

	"skiff/internal/controller"
)

func TestSelect(t *testing.T) {
	all := []controller.Definition{{Name: "a-controller", Aliases: []string{"a"}}, {Name: "b-controller"}, {Name: "c-controller", DisabledByDefault: true}}
	for _, test := range []struct {
		wanted string
		want   string
		fails  bool
	}{
		{"", "a-controller b-controller", false},
		{"*", "a-controller b-controller", false},
		{"*,-a-controller", "b-controller", false},
		{"-a,*", "b-controller", false},
		{"a", "a-controller", false},
		{"*,c-controller", "a-controller b-controller c-controller", false},
		{"-b-controller", "", false},
		{"a,-a", "a-controller", false},
		{"nobody", "", true},
		{"*,-nobody", "", true},
	} {
		var wanted []string
		if test.wanted != "" {
			wanted = strings.Split(test.wanted, ",")
		}
		selected, err := Select(all, wanted)
		var names []string
		for _, d := range selected {
			names = append(names, d.Name)
		}
		if got := strings.Join(names, " "); got != test.want || (err != nil) != test.fails {
			t.Errorf("%q: %s, %v", test.wanted, got, err)
		}
	}
}
