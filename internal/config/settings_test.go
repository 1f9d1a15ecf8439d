package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// readSettings reads a command line, an environment and the content of a configuration file into a configuration.
func readSettings(t *testing.T, c configurable, file string, environ []string, args ...string) (Settings, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return readSettingsOf(t, c, environ, append([]string{"--config=" + path}, args...)...)
}

func readSettingsOf(t *testing.T, c configurable, environ []string, args ...string) (Settings, error) {
	t.Helper()
	var groups FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return groups.ReadSettings(fs, environ)
}

// A flag on the command line has precedence over the environment, which has precedence over the file.
func TestSettingsPrecedence(t *testing.T) {
	c := DefaultServer()
	settings, err := readSettings(t, &c, `
# a comment
data-dir: /file
secure-port: 1111
bind-address: 127.0.0.1   # one more
node-name: "no"
event-ttl: 2h
no-node: true
`, []string{"SKIFF_SECURE_PORT=2222", "SKIFF_BIND_ADDRESS=127.0.0.2", "PATH=/bin", "SKIFF_VM_TOOLS=/x"}, "--bind-address=127.0.0.3")
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir != "/file" || c.SecurePort != 2222 || c.BindAddress != "127.0.0.3" || c.Node.Name != "no" || c.EventTTL.String() != "2h0m0s" || !c.NoNode {
		t.Errorf("%s %d %s %s %s %v", c.DataDir, c.SecurePort, c.BindAddress, c.Node.Name, c.EventTTL, c.NoNode)
	}
	if settings.Environment["secure-port"] != "SKIFF_SECURE_PORT" || !strings.HasSuffix(settings.File["data-dir"], "config.yaml, line 3") || settings.File["secure-port"] != "" ||
		len(settings.Warnings) > 0 {
		t.Errorf("%+v", settings)
	}
	explained := settings.Explain(errors.New("--secure-port: 1 is wrong\n--data-dir is wrong too\n--bind-address: as well\nother")).Error()
	lines := strings.Split(explained, "\n")
	if lines[0] != "--secure-port: 1 is wrong (set in SKIFF_SECURE_PORT)" || !strings.HasSuffix(lines[1], "config.yaml, line 3)") || lines[2] != "--bind-address: as well" || lines[3] != "other" {
		t.Errorf("explained as\n%s", explained)
	}
}

// Lists are those of repeated flags, and of flags whose values are separated by commas.
func TestSettingsLists(t *testing.T) {
	for what, file := range map[string]string{
		"lists": `
without: [proxy, policy]
service-account-issuer:
- https://a
- https://b,c
tls-cipher-suites: [X, Y]
tls-curve-preferences: [1, 2]
feature-gates: [ComponentFlagz=true, ComponentStatusz=true]
oidc-required-claim: [a=1, b=2]
oidc-signing-algs: [RS256, ES256]
join: [https://10.0.0.1:6443, https://10.0.0.2:6443]
node-labels: []
`,
		"texts": `
without: proxy, policy
service-account-issuer: ["https://a", "https://b,c"]
tls-cipher-suites: X,Y
tls-curve-preferences: "1,2"
feature-gates: ComponentFlagz=true,ComponentStatusz=true
oidc-required-claim: [a=1, b=2]
oidc-signing-algs: RS256,ES256
join: https://10.0.0.1:6443,https://10.0.0.2:6443
node-labels: ""
`,
	} {
		c := DefaultServer()
		c.Node.Labels = []string{"a=b"}
		if _, err := readSettings(t, &c, file, nil); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		oidc := c.Authentication.OIDC
		if !slices.Equal(c.Without, []string{"proxy", "policy"}) || !slices.Equal(c.Authentication.ServiceAccounts.Issuers, []string{"https://a", "https://b,c"}) ||
			!slices.Equal(c.TLS.CipherSuites, []string{"X", "Y"}) || !slices.Equal(c.TLS.Curves, []int32{1, 2}) || len(c.FeatureGates) != 2 || len(oidc.RequiredClaims) != 2 ||
			!slices.Equal(oidc.SigningAlgs, []string{"RS256", "ES256"}) || !oidc.Given || len(c.Servers.Join) != 2 || len(c.Node.Labels) != 0 {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

// A command line replaces the list of a file.
func TestSettingsListReplaced(t *testing.T) {
	c := DefaultAgent()
	if _, err := readSettings(t, &c, "server: [https://a, https://b]\n", nil, "--server=https://c"); err != nil || !slices.Equal(c.Servers, []string{"https://c"}) {
		t.Errorf("%v, %v", c.Servers, err)
	}
	c = DefaultAgent()
	if _, err := readSettings(t, &c, "server: [https://a, https://b]\n", nil); err != nil || !slices.Equal(c.Servers, []string{"https://a", "https://b"}) {
		t.Errorf("%v, %v", c.Servers, err)
	}
	c = DefaultAgent()
	if _, err := readSettings(t, &c, "server: https://a\n", []string{"SKIFF_SERVER=https://b,https://c"}); err != nil || !slices.Equal(c.Servers, []string{"https://b", "https://c"}) {
		t.Errorf("%v, %v", c.Servers, err)
	}
}

// One error names the file, the line, the key and the reason.
func TestSettingsFileErrors(t *testing.T) {
	for file, want := range map[string]string{
		"data-dir: /d\ndata-dr: /e\n":                     `config.yaml, line 2: unknown key "data-dr"; did you mean data-dir?`,
		"data_dir: /d\n":                                  `line 1: unknown key "data_dir"; did you mean data-dir?`,
		"--data-dir: /d\n":                                `line 1: unknown key "--data-dir"; did you mean data-dir?`,
		"nothing-like-this: 1\n":                          `line 1: unknown key "nothing-like-this": keys are the names of flags, without dashes before them`,
		"data-dir: /d\nnode-ip: 10.0.0.1\ndata-dir: /e\n": "line 3: data-dir is set in line 1 already",
		"secure-port: many\n":                             `line 1: secure-port: invalid value "many" (int): `,
		"no-node: yes\n":                                  `line 1: no-node: invalid value "yes" (true or false): `,
		"event-ttl: 5\n":                                  `line 1: event-ttl: invalid value "5" (duration): `,
		"secure-port: [1, 2]\n":                           "line 1: secure-port: one value is expected (int), not a list",
		"without: {proxy: true}\n":                        "line 1: without: a list of texts is expected",
		"without:\n- proxy\n- [policy]\n":                 "line 1: without: line 3: one value is expected",
		"data-dir:\nsecure-port: 1\n":                     `line 1: data-dir: it has no value; the empty text is ""`,
		"feature-gates: [NoSuchGate=true]\n":              "line 1: feature-gates: invalid value \"NoSuchGate=true\" (gate=bool): unrecognized feature gate",
		"config: /other.yaml\n":                           "line 1: config: --config can be given on the command line only",
		"cluster-reset: true\n":                           "line 1: cluster-reset: --cluster-reset can be given on the command line only",
		"server: [https://a:6443]\n":                      `line 1: unknown key "server": it is a flag of 'skiff agent', and not of this command`,
		"help: true\n":                                    `line 1: unknown key "help"`,
		"data-dir: [\n":                                   "config.yaml: line ",
		"- data-dir\n":                                    "config.yaml: line 1: lines of the form NAME: VALUE are expected",
		"data-dir: /d\n---\ndata-dir: /e\n":               "config.yaml: only one document is expected",
		strings.Repeat("# a comment\n", 100_000):          "config.yaml is larger than 1048576 bytes",
	} {
		c := DefaultServer()
		if _, err := readSettings(t, &c, file, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: %v, want %q", file, err, want)
		}
	}
	for _, file := range []string{"", "# nothing\n", "---\n", "{}\n", "null\n"} {
		c := DefaultServer()
		if _, err := readSettings(t, &c, file, nil); err != nil || c.DataDir != DefaultServer().DataDir {
			t.Errorf("%q: %v", file, err)
		}
	}
}

func TestSettingsEnvironmentErrors(t *testing.T) {
	for variable, want := range map[string]string{
		"SKIFF_SECURE_PORT=many":       `SKIFF_SECURE_PORT: invalid value "many" (int): `,
		"SKIFF_NO_NODE=":               `SKIFF_NO_NODE: invalid value "" (true or false): `,
		"SKIFF_CLUSTER_RESET=true":     "SKIFF_CLUSTER_RESET: --cluster-reset can be given on the command line only",
		"SKIFF_JOIN_TOKEN=s.e.c":       "SKIFF_JOIN_TOKEN: secrets are not read from the environment, because other programs inherit it: write it to a file and set SKIFF_JOIN_TOKEN_FILE to its path",
		"SKIFF_TOKEN=s.e.c":            "SKIFF_TOKEN: secrets are not read from the environment, because other programs inherit it: set token in the file of --config",
		"SKIFF_CONFIG=/does/not/exist": "--config: open /does/not/exist: no such file or directory",
	} {
		c := DefaultServer()
		if _, err := readSettingsOf(t, &c, []string{variable}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", variable, err, want)
		}
	}
	c := DefaultServer()
	settings, err := readSettingsOf(t, &c, []string{"SKIFF_CONFIG=", "SKIFF_DATADIR=/d", "SKIFF_TEST_STAGE=1", "SKIFF_data_dir=/d", "SKIFF_PORT=1"})
	if err != nil || c.DataDir != DefaultServer().DataDir {
		t.Errorf("%s, %v", c.DataDir, err)
	}
	want := []string{
		"the environment variable SKIFF_DATADIR has no effect; did you mean SKIFF_DATA_DIR?", "the environment variable SKIFF_data_dir has no effect; did you mean SKIFF_DATA_DIR?",
	}
	if !slices.Equal(settings.Warnings, want) {
		t.Errorf("warnings %q", settings.Warnings)
	}
}

// A secret is read from a file that others cannot read.
func TestSettingsSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("server: https://a:6443\ntoken: secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultAgent()
	if _, err := readSettingsOf(t, &c, nil, "--config="+path); err != nil || c.Token != "secret" {
		t.Errorf("%q, %v", c.Token, err)
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o660} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		c := DefaultAgent()
		if _, err := readSettingsOf(t, &c, nil, "--config="+path); err == nil || !strings.Contains(err.Error(), "line 2: token: the file has a secret, but other users may read or write it") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}

// The default file need not exist, and commands without --config have no settings.
func TestNoSettings(t *testing.T) {
	c := DefaultServer()
	c.ConfigFile = filepath.Join(t.TempDir(), "config.yaml")
	if _, err := readSettingsOf(t, &c, nil); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(c.ConfigFile, []byte("data-dir: /d\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readSettingsOf(t, &c, nil); err != nil || c.DataDir != "/d" {
		t.Errorf("the default file: %s, %v", c.DataDir, err)
	}
	if err := os.Mkdir(c.ConfigFile+".d", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := readSettingsOf(t, &c, nil, "--config="+c.ConfigFile+".d"); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	kubelet := DefaultKubelet()
	if _, err := readSettingsOf(t, &kubelet, []string{"SKIFF_ROOT_DIR=/d"}); err != nil || kubelet.RootDir != KubeletRoot {
		t.Errorf("%s, %v", kubelet.RootDir, err)
	}
}

// Every flag of a type that can have several values takes a list, and no other.
func TestListTypes(t *testing.T) {
	server, agent := DefaultServer(), DefaultAgent()
	for _, c := range []configurable{&server, &agent} {
		var groups FlagGroups
		c.Flags(&groups)
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		groups.AddTo(fs)
		fs.VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "bool", "string", "int", "int64", "int32", "float64", "duration":
			default:
				if !slices.Contains(listTypes, f.Value.Type()) {
					t.Errorf("--%s has type %s, of which it is not known whether it takes a list", f.Name, f.Value.Type())
				}
			}
		})
	}
}
