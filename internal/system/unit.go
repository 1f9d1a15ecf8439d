package system

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"skiff/internal/config"
)

// unitMarker is the first line of the unit file: a file without it was not written by skiff.
const unitMarker = "# Written by skiff install, and removed by skiff uninstall."

// recordPrefix begins the line of the unit file with the flags that say what the service makes on its host, as they were when it was installed: by its command, or by a configuration
// file that may change.
const recordPrefix = "# Removed by skiff uninstall: "

// unit is the systemd unit of an installed skiff.
type unit struct {
	// program is the absolute path of skiff, command what it runs: server or agent.
	program, command string
	arguments        []string
	// foreignRuntime is set if the container runtime is a service of its own.
	foreignRuntime bool
	// recorded are the flags after recordPrefix; none in a unit of an older version.
	recorded []string
}

// text is the unit file.
func (u unit) text() string {
	// Firewalls that are set up after skiff would remove its rules from their tables.
	after := []string{"network-online.target", "firewalld.service", "nftables.service", "ufw.service"}
	if u.foreignRuntime {
		after = append(after, "containerd.service", "crio.service", "cri-docker.service")
	}
	words := append([]string{quoteWord(u.program), u.command}, quoteWords(u.arguments)...)
	record := ""
	if len(u.recorded) > 0 {
		record = "\n" + recordPrefix + strings.Join(quoteWords(u.recorded), " ")
	}
	return unitMarker + record + `
# Settings of your own belong in a drop-in: systemctl edit ` + unitName + `
[Unit]
Description=skiff ` + u.command + `: Kubernetes in one program
Wants=network-online.target
After=` + strings.Join(after, " ") + `
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=` + strings.Join(words, " ") + `
Restart=always
RestartSec=2
# An agent may wait for its server, and a server for its disk.
TimeoutStartSec=infinity
TimeoutStopSec=120
# Pods keep running while skiff is stopped or restarted.
KillMode=process
# The cgroups below the service's are skiff's own.
Delegate=yes
# The last process to be OOM-killed; and if a child of skiff is, skiff goes on.
OOMScoreAdjust=-999
OOMPolicy=continue
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`
}

// parseUnit reads the command of a unit file that text wrote. Lines that an administrator has added are ignored.
func parseUnit(text string) (unit, error) {
	if !strings.HasPrefix(text, unitMarker) {
		return unit{}, errors.New("it was not written by skiff install")
	}
	var recorded []string
	for line := range strings.Lines(text) {
		if record, ok := strings.CutPrefix(strings.TrimSpace(line), recordPrefix); ok {
			var err error
			if recorded, err = splitWords(record); err != nil {
				return unit{}, fmt.Errorf("%s %w", recordPrefix, err)
			}
		}
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=")
		if !ok {
			continue
		}
		words, err := splitWords(command)
		if err != nil {
			return unit{}, fmt.Errorf("ExecStart: %w", err)
		}
		if len(words) < 2 {
			return unit{}, fmt.Errorf("ExecStart: %q is not a command of skiff", command)
		}
		return unit{program: words[0], command: words[1], arguments: words[2:], recorded: recorded}, nil
	}
	return unit{}, errors.New("it has no ExecStart")
}

// installed is what `skiff uninstall` has to know of the command of an installed service.
type installed struct {
	node    *config.Node // nil: it runs no node
	dataDir string
	// configuredDataDir is what the configuration says now, which may have changed since the installation.
	configuredDataDir string
	// configFile has flags of the service besides those of its command; it is the administrator's.
	configFile string
	// kubeconfig is a file that the service wrote outside of its data directory; empty: none.
	kubeconfig string
	// merged is the kubeconfig into which the service has merged its own.
	merged config.MergeKubeconfig
}

// parse reads the flags of the service's command and its configuration file into its configuration.
func (u unit) parse(c interface{ Flags(*config.FlagGroups) }) (config.Settings, error) {
	var groups config.FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet(u.command, pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse(u.arguments); err != nil {
		return config.Settings{}, fmt.Errorf("read ExecStart: %w", err)
	}
	return groups.ReadSettings(fs, nil)
}

// parseRecorded reads the flags that were recorded into a configuration that has been read.
func (u unit) parseRecorded(c interface{ Flags(*config.FlagGroups) }) error {
	var groups config.FlagGroups
	c.Flags(&groups) // the defaults are the values that it has
	fs := pflag.NewFlagSet(u.command, pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse(u.recorded); err != nil {
		return fmt.Errorf("read the flags of the installation: %w", err)
	}
	return nil
}

// record returns the flags that say what the service makes on its host.
func (i installed) record() []string {
	recorded := []string{"--data-dir=" + i.dataDir}
	add := func(flag, value string) {
		if value != "" {
			recorded = append(recorded, "--"+flag+"="+value)
		}
	}
	if i.node != nil {
		add("root-dir", i.node.RootDir)
	}
	add("write-kubeconfig", i.kubeconfig)
	if i.merged.Path != "" {
		add("merge-kubeconfig", i.merged.Path)
		add("merge-kubeconfig-context", i.merged.Context)
	}
	return recorded
}

// installed reads the flags of the service's command and its configuration file. Those that were recorded at the installation have precedence.
func (u unit) installed() (i installed, err error) {
	switch u.command {
	case commandServer:
		c := config.DefaultServer()
		_, err = u.parse(&c)
		i.configuredDataDir = c.DataDir
		err = errors.Join(err, u.parseRecorded(&c))
		i.dataDir, i.kubeconfig, i.configFile = c.DataDir, c.WriteKubeconfig, c.ConfigFile
		i.merged = c.MergeKubeconfig
		if !c.NoNode {
			i.node = &c.Node
		}
	case commandAgent:
		c := config.DefaultAgent()
		_, err = u.parse(&c)
		i.configuredDataDir = c.DataDir
		err = errors.Join(err, u.parseRecorded(&c))
		i.dataDir, i.node, i.configFile = c.DataDir, &c.Node, c.ConfigFile
	default:
		err = fmt.Errorf("read ExecStart: unknown command %q", u.command)
	}
	return i, err
}

// quoteWord quotes a word of a command line in a unit file: systemd expands $ and %, and splits at spaces.
func quoteWord(word string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "%", "%%", "$", "$$").Replace(word)
	isPlain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("%$_-./,:=+@", r)
	}
	if quoted != "" && !slices.ContainsFunc([]rune(quoted), func(r rune) bool { return !isPlain(r) }) {
		return quoted
	}
	return `"` + quoted + `"`
}

func quoteWords(words []string) []string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quoteWord(word)
	}
	return quoted
}

// splitWords splits a command line that was made with quoteWord.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, inQuotes := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == ' ' && !inQuotes:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
			continue
		case c == '"':
			inQuotes, inWord = !inQuotes, true
			continue
		case c == '\\' || c == '%' || c == '$':
			i++
			if i == len(line) {
				return nil, fmt.Errorf("%q ends within an escape sequence", line)
			}
			unescaped, ok := unescape(c, line[i])
			if !ok {
				return nil, fmt.Errorf("unknown escape sequence %q", line[i-1:i+1])
			}
			c = unescaped
		}
		word.WriteByte(c)
		inWord = true
	}
	if inQuotes {
		return nil, fmt.Errorf("%q has an unclosed quote", line)
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// unescape is the character of an escape sequence: of the escape character and the one after it.
func unescape(escape, next byte) (byte, bool) {
	switch {
	case escape != '\\':
		return escape, next == escape
	case next == 'n':
		return '\n', true
	case next == 't':
		return '\t', true
	default:
		return next, next == '\\' || next == '"'
	}
}
