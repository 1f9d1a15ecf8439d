package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// run executes a command line and returns what it writes. Commands that would do something are replaced by one that prints its arguments.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := newRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// capture replaces what a command does and returns what it was executed with.
func capture(t *testing.T, args ...string) (path string, arguments []string, flags map[string]string, err error) {
	t.Helper()
	root := newRootCommand()
	root.SetOut(&bytes.Buffer{})
	root.SetArgs(args)
	flags = map[string]string{}
	var replace func(*cobra.Command)
	replace = func(cmd *cobra.Command) {
		for _, child := range cmd.Commands() {
			replace(child)
		}
		if cmd.RunE != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				path, arguments = cmd.CommandPath(), args
				for _, name := range []string{"data-dir", "namespace", "output", "filename", "ttl"} {
					if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
						flags[name] = f.Value.String()
					}
				}
				return nil
			}
		}
	}
	replace(root)
	err = root.ExecuteContext(t.Context())
	return path, arguments, flags, err
}

// Flags are understood before and after verbs and arguments, with the shorthands of kubectl.
func TestCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"server --data-dir=/d":                   "skiff server [] data-dir=/d",
		"apiserver --data-dir /d":                "skiff apiserver [] data-dir=/d",
		"image import a.tar --data-dir /d b.tar": "skiff image import [a.tar b.tar] data-dir=/d",
		"image --data-dir /d import a.tar":       "skiff image import [a.tar] data-dir=/d",
		"image ls":                               "skiff image ls []",
		"cert --data-dir /d renew all":           "skiff cert renew [all] data-dir=/d",
		"cert rotate-ca ca --data-dir=/d":        "skiff cert rotate-ca [ca] data-dir=/d",
		"cert forget-ca ca":                      "skiff cert forget-ca [ca]",
		"cert":                                   "skiff cert []",
		"token":                                  "skiff token []",
		"token create --ttl 1h --data-dir /d":    "skiff token create [] data-dir=/d ttl=1h0m0s",
		"token delete abcdef ghijkl":             "skiff token delete [abcdef ghijkl]",
		"why pod/x -n y -o json":                 "skiff why [pod/x] namespace=y output=json",
		"why -n y pod/x":                         "skiff why [pod/x] namespace=y",
		"what-if -f - --namespace y":             "skiff what-if [] filename=- namespace=y",
		"install":                                "skiff install []",
		"install server --data-dir /d":           "skiff install server [] data-dir=/d",
		"install agent --data-dir /d":            "skiff install agent [] data-dir=/d",
		"uninstall":                              "skiff uninstall []",
		"upgrade --check --data-dir /d":          "skiff upgrade [] data-dir=/d",
		"version":                                "skiff version []",
	} {
		path, arguments, flags, err := capture(t, strings.Fields(line)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		got := path + " [" + strings.Join(arguments, " ") + "]"
		for _, name := range []string{"data-dir", "filename", "namespace", "output", "ttl"} {
			if value, ok := flags[name]; ok {
				got += " " + name + "=" + value
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"server --data-dr /d":          "unknown flag: --data-dr; did you mean --data-dir?\nSee 'skiff server --help' for usage.",
		"server -data-dir /d":          "unknown shorthand flag: 'd' in -data-dir; did you mean --data-dir?",
		"server --nothing-like-this":   "unknown flag: --nothing-like-this\nSee",
		"server extra":                 `unexpected argument "extra"`,
		"serve":                        `unknown command "serve" for "skiff"; did you mean server?`,
		"cert sow":                     `unknown command "sow" for "skiff cert"; did you mean show?`,
		"cert renew":                   "expected the names of the certificates to renew, or all\nSee 'skiff cert renew --help' for usage.",
		"image import":                 "expected the archives to import",
		"snapshot restore":             "expected one snapshot: its name, latest, or the path of a file",
		"snapshot sve":                 `unknown command "sve" for "skiff snapshot"; did you mean save?`,
		"snapshot save --name A":       `--name: "A" must consist of`,
		"snapshot ls --data-dir d":     `--data-dir: "d" is not an absolute path`,
		"node drain":                   "expected the name of one node",
		"node remove a b":              "expected the name of one node",
		"token delete":                 "expected the IDs of the tokens to delete",
		"why":                          "expected one pod: skiff why pod/NAME",
		"why pod/x -o xml":             `--output: "xml" is not table, json or yaml`,
		"install server --data-dir d":  `--data-dir: "d" is not an absolute path`,
		"install agent --server x":     `--server: "x" is not an https URL`,
		"upgrade":                      "--check: required",
		"upgrade --check --data-dir d": `--data-dir: "d" is not an absolute path`,
		"install sever":                `unknown command "sever" for "skiff install"; did you mean server?`,
		"server --data-dir relative":   `--data-dir: "relative" is not an absolute path`,
	} {
		if _, err := run(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that contains %q", line, err, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for line, want := range map[string][]string{
		"":                         {"Cluster commands:\n", "Standalone components:\n", "  apiserver ", "  completion "},
		"--help":                   {"Cluster commands:\n"},
		"server --help":            {"Generic flags:\n", "Etcd flags:\n", "      --data-dir string ", "skiff server --help-all"},
		"server --help-all":        {"--audit-log-maxage int ", "Flow control flags:\n"},
		"help apiserver":           {"--service-cluster-ip-range string "},
		"snapshot":                 {"  save ", "  restore ", "  prune "},
		"snapshot restore -h":      {"--replace ", "--snapshot-passphrase-file string ", "--data-dir string "},
		"node drain -h":            {"--timeout duration ", "--kubeconfig string "},
		"token create -h":          {"--ttl duration ", "--kubeconfig string "},
		"completion bash":          {"bash completion"},
		"completion zsh":           {"#compdef skiff"},
		"completion fish":          {"fish completion"},
		"--version":                {"skiff version v"},
		"version":                  {"skiff version v", "Kubernetes v1."},
		"image":                    {"  import ", "  ls "},
		"what-if -h":               {"-f, --filename string", "-n, --namespace string", "-o, --output string"},
		"__complete server --data": {"--data-dir"},
	} {
		out, err := run(t, strings.Fields(line)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s: no %q in\n%s", line, text, out)
			}
		}
	}
}

// The help of a command fits two screens.
func TestHelpIsShort(t *testing.T) {
	for _, command := range newRootCommand().Commands() {
		out, err := run(t, command.Name(), "--help")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out, "\n"); n > 80 {
			t.Errorf("skiff %s --help has %d lines", command.Name(), n)
		}
	}
}
