package main

import (
	"slices"
	"testing"

	"skiff/internal/config"
)

// Flags may stand before and behind the pod, as kubectl has them.
func TestReadArguments(t *testing.T) {
	for _, test := range []struct {
		args   []string
		others []string
		fails  bool
	}{
		{args: []string{"pod/x"}, others: []string{"pod/x"}},
		{args: []string{"pod/x", "-n", "y"}, others: []string{"pod/x"}},
		{args: []string{"-n", "y", "pod/x"}, others: []string{"pod/x"}},
		{args: []string{"-n", "y", "pod/x", "-o", "json", "pod/z"}, others: []string{"pod/x", "pod/z"}},
		{args: []string{"-n", "y"}},
		{args: []string{"pod/x", "-o", "xml"}, fails: true},
		{args: []string{"pod/x", "--nonsense"}, fails: true},
	} {
		c := config.DefaultWhy()
		others, err := readArguments("why", &c, test.args)
		if (err != nil) != test.fails || err == nil && !slices.Equal(others, test.others) {
			t.Errorf("%v: %v, %v", test.args, others, err)
		}
		if err == nil && len(test.args) > 1 && c.Namespace != "y" {
			t.Errorf("%v: namespace %q", test.args, c.Namespace)
		}
	}
}
