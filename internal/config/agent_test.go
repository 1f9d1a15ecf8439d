package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAgent(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(*Agent)
		wrong  string
	}{
		{"good", func(*Agent) {}, ""},
		{"no server", func(c *Agent) { c.Servers = nil }, "--server"},
		{"no TLS", func(c *Agent) { c.Servers = []string{"http://a:1"} }, "--server"},
		{"no URL", func(c *Agent) { c.Servers = []string{"https://a:1", "10.0.0.1:6443"} }, "--server"},
		{"two tokens", func(c *Agent) { c.TokenFile = "/x" }, "--token-file"},
		{"relative directory", func(c *Agent) { c.DataDir = "x" }, "--data-dir"},
		{"bad name", func(c *Agent) { c.Name = "A_b" }, "--node-name"},
	} {
		c := DefaultAgent()
		c.Servers, c.Token = []string{"https://10.0.0.1:6443"}, "t"
		test.change(&c)
		if err := c.Validate(); (err == nil) != (test.wrong == "") || err != nil && !strings.HasPrefix(err.Error(), test.wrong) {
			t.Errorf("%s: %v, want %q", test.what, err, test.wrong)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := (&Agent{TokenFile: file}).ReadToken(); err != nil || token != "abc" {
		t.Errorf("%q, %v", token, err)
	}
	if _, err := (&Agent{TokenFile: file + "x"}).ReadToken(); err == nil || !strings.HasPrefix(err.Error(), "--token-file") {
		t.Error(err)
	}
}
