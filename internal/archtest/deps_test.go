package archtest

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestModulesLinked pins the list of modules in the program: a new one is a decision, not an accident.
func TestModulesLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "skiff/cmd/skiff").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	modules = slices.Compact(modules)
	got := strings.Join(modules, "\n") + "\n"
	const golden = "../../docs/deps.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	wanted := strings.Fields(string(want))
	for _, m := range modules {
		if !slices.Contains(wanted, m) {
			t.Errorf("new module %s: give its reason in docs/decisions and run go test ./internal/archtest -update", m)
		}
	}
	for _, m := range wanted {
		if !slices.Contains(modules, m) {
			t.Errorf("module %s is no longer linked: run go test ./internal/archtest -update", m)
		}
	}
}
