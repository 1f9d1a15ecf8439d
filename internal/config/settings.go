package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	// DefaultFile is the configuration file that is read if it exists and --config names no other.
	DefaultFile = "/etc/skiff/config.yaml"
	// environmentPrefix begins the names of environment variables that set flags: SKIFF_DATA_DIR sets --data-dir.
	environmentPrefix = "SKIFF_"
	// maxFileBytes bounds a configuration file.
	maxFileBytes = 1 << 20
	// commandLineOnly marks flags that neither a file nor the environment can set.
	commandLineOnly = "commandLineOnly"
	// maxTypos is the edit distance up to which an environment variable is taken for a mistyped one.
	maxTypos = 2
)

// configFlag binds --config. The other flags of the command can then be set in the configuration file and in the environment too.
func configFlag(groups *FlagGroups, file *string) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(file, "config", *file, "Path to a YAML file with values for flags, whose keys are their names. The default is read if it exists; '' reads none.")
	groups.settingsFile = file
}

// onCommandLine marks flags for a single occasion: they are not accepted in a file or the environment.
func onCommandLine(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = fs.SetAnnotation(name, commandLineOnly, []string{"true"}) // fails only for an unknown flag
	}
}

// secretFlag marks a flag whose value is secret.
func secretFlag(fs *pflag.FlagSet, name string) {
	_ = fs.SetAnnotation(name, classified, []string{"true"}) // fails only for an unknown flag
}

func isSecret(f *pflag.Flag) bool { return len(f.Annotations[classified]) > 0 }

// Settings are the flags of a command that were not given on its command line, but in the environment or in a configuration file.
type Settings struct {
	// Environment and File have where the value of a flag comes from, by its name: a variable, or the file and the line.
	Environment, File map[string]string
	// Warnings are about variables that are probably mistyped.
	Warnings []string
}

// ReadSettings sets the flags of the groups that were not given on the command line: from the environment, or else from the configuration file.
// Commands without --config have no settings. environ has entries NAME=VALUE.
func (g *FlagGroups) ReadSettings(flags *pflag.FlagSet, environ []string) (Settings, error) {
	s := Settings{Environment: map[string]string{}, File: map[string]string{}}
	if g.settingsFile == nil {
		return s, nil
	}
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	g.AddTo(known)
	r := settingsReader{flags: flags, known: known, Settings: s}
	if err := r.readEnvironment(environ); err != nil {
		return r.Settings, err
	}
	if *g.settingsFile == "" {
		return r.Settings, nil
	}
	return r.Settings, r.readFile(*g.settingsFile, flags.Changed("config"))
}

// Explain adds to errors that name a flag where its value comes from.
func (s Settings) Explain(err error) error {
	if err == nil || len(s.Environment)+len(s.File) == 0 {
		return err
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		name, ok := strings.CutPrefix(line, "--")
		if !ok {
			continue
		}
		if end := strings.IndexAny(name, ": "); end >= 0 {
			name = name[:end]
		}
		if origin := s.Environment[name] + s.File[name]; origin != "" {
			lines[i] += " (set in " + origin + ")"
		}
	}
	return errors.New(strings.Join(lines, "\n"))
}

// settingsReader reads the settings of one command.
type settingsReader struct {
	// flags are those of the command, known the ones of its groups.
	flags, known *pflag.FlagSet
	Settings
}

// variableOf is the environment variable that sets a flag.
func variableOf(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment sets flags from the environment. Variables of other programs may begin with the prefix too, so unknown ones are not errors.
func (r *settingsReader) readEnvironment(environ []string) error {
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		rest, ok := strings.CutPrefix(variable, environmentPrefix)
		if !ok {
			continue
		}
		name := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		f := r.known.Lookup(name)
		switch {
		case f == nil || variableOf(name) != variable:
			if closest := closestFlag(r.known, name, maxTypos); closest != "" {
				r.Warnings = append(r.Warnings, fmt.Sprintf("the environment variable %s has no effect; did you mean %s?", variable, variableOf(closest)))
			}
			continue
		case r.flags.Changed(name):
			continue
		case len(f.Annotations[commandLineOnly]) > 0:
			return fmt.Errorf("%s: --%s can be given on the command line only", variable, name)
		case isSecret(f):
			return fmt.Errorf("%s: secrets are not read from the environment, because other programs inherit it: %s", variable, r.insteadOf(name))
		}
		if err := r.flags.Set(name, value); err != nil {
			return fmt.Errorf("%s: invalid value %q (%s): %w", variable, value, typeName(f), reason(err))
		}
		r.Environment[name] = variable
	}
	return nil
}

// insteadOf says where a secret belongs.
func (r *settingsReader) insteadOf(secret string) string {
	if file := secret + "-file"; r.known.Lookup(file) != nil {
		return "write it to a file and set " + variableOf(file) + " to its path"
	}
	return fmt.Sprintf("set %s in the file of --config", secret)
}

// readFile sets flags from a file. A file that was not asked for need not exist.
func (r *settingsReader) readFile(path string, isGiven bool) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !isGiven {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("--config: %s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if len(data) > maxFileBytes {
		return fmt.Errorf("--config: %s is larger than %d bytes", path, maxFileBytes)
	}
	mapping, err := parseMapping(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(mapping); i += 2 {
		key, value := mapping[i], mapping[i+1]
		where := fmt.Sprintf("%s, line %d", path, key.Line)
		if line, ok := lines[key.Value]; ok {
			return fmt.Errorf("%s: %s is set in line %d already", where, key.Value, line)
		}
		lines[key.Value] = key.Line
		used, err := r.setFromFile(key.Value, value, info.Mode())
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if used {
			r.File[key.Value] = where
		}
	}
	return nil
}

// parseMapping parses a YAML document whose keys are texts, and returns its keys and values alternately.
func parseMapping(data []byte) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var document, further yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&further); !errors.Is(err, io.EOF) {
		return nil, errors.New("only one document is expected")
	}
	root := document.Content[0]
	if root.ShortTag() == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: lines of the form NAME: VALUE are expected", root.Line)
	}
	return root.Content, nil
}

// setFromFile sets a flag to a value of a file with a mode, unless the command line or the environment has set it.
func (r *settingsReader) setFromFile(name string, value *yaml.Node, mode fs.FileMode) (used bool, err error) {
	f := r.known.Lookup(name)
	switch {
	case f == nil:
		return false, r.unknownKey(name)
	case name == "config" || len(f.Annotations[commandLineOnly]) > 0:
		return false, fmt.Errorf("%s: --%s can be given on the command line only", name, name)
	case isSecret(f) && mode.Perm()&0o077 != 0:
		return false, fmt.Errorf("%s: the file has a secret, but other users may read or write it (mode %04o): chmod 600 it", name, mode.Perm())
	}
	texts, err := valuesOf(f, value)
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	if f.Changed {
		return false, nil
	}
	for _, text := range texts {
		// The flag does not become one that was given: a service is installed without it, and reads the file itself.
		if err := f.Value.Set(text); err != nil {
			return false, fmt.Errorf("%s: invalid value %q (%s): %w", name, text, typeName(f), err)
		}
	}
	return true, nil
}

func (r *settingsReader) unknownKey(name string) error {
	dashed := strings.TrimLeft(strings.ReplaceAll(name, "_", "-"), "-")
	if command := otherCommand(dashed); command != "" && r.known.Lookup(dashed) == nil {
		return fmt.Errorf("unknown key %q: it is a flag of '%s', and not of this command", name, command)
	}
	if closest := ClosestFlag(r.known, dashed); closest != "" {
		return fmt.Errorf("unknown key %q; did you mean %s?", name, closest)
	}
	return fmt.Errorf("unknown key %q: keys are the names of flags, without dashes before them", name)
}

// otherCommand is a command with a configuration file that has a flag, or an empty string.
func otherCommand(flag string) string {
	server, agent := DefaultServer(), DefaultAgent()
	for _, command := range []struct {
		name          string
		configuration interface{ Flags(*FlagGroups) }
	}{{"skiff server", &server}, {"skiff agent", &agent}} {
		var groups FlagGroups
		command.configuration.Flags(&groups)
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		groups.AddTo(fs)
		if fs.Lookup(flag) != nil {
			return command.name
		}
	}
	return ""
}

// listTypes are the types of flags that may have a list in a file. Each element is what a repeated flag would have.
var listTypes = []string{
	(*stringList)(nil).Type(), "stringSlice", "stringArray", "int32Slice", (*namedCerts)(nil).Type(), (*stringMap)(nil).Type(), (*FeatureGates)(nil).Type(),
	(*RuntimeConfig)(nil).Type(),
}

// valuesOf are the texts with which a flag is set to a value of a file, one after the other.
func valuesOf(f *pflag.Flag, value *yaml.Node) ([]string, error) {
	isList := slices.Contains(listTypes, f.Value.Type())
	if value.Kind != yaml.SequenceNode {
		text, err := scalar(value)
		if err != nil && isList {
			err = errors.New("a list of texts is expected")
		}
		return []string{text}, err
	}
	if !isList {
		return nil, fmt.Errorf("one value is expected (%s), not a list", typeName(f))
	}
	var texts []string
	for _, element := range value.Content {
		text, err := scalar(element)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", element.Line, err)
		}
		texts = append(texts, text)
	}
	// An empty list is a value too, and a stringList is given all of its values at once.
	if len(texts) == 0 || f.Value.Type() == (*stringList)(nil).Type() {
		texts = []string{strings.Join(texts, ",")}
	}
	return texts, nil
}

// scalar is the text of a value as the file has it.
func scalar(value *yaml.Node) (string, error) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case value.Kind != yaml.ScalarNode:
		return "", errors.New("one value is expected")
	case value.ShortTag() == "!!null":
		return "", errors.New(`it has no value; the empty text is ""`)
	}
	return value.Value, nil
}

// typeName is the type of a flag as the help shows it.
func typeName(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return "true or false"
	}
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// reason is why a flag cannot have a value, without the flag and the value, which pflag puts before it.
func reason(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return invalid.Unwrap()
	}
	return err
}

// ClosestFlag is the flag whose name differs least from a mistyped one, or an empty string when none is similar.
func ClosestFlag(fs *pflag.FlagSet, name string) string { return closestFlag(fs, name, len(name)/3+1) }

// closestFlag is ClosestFlag with the largest difference, in characters.
func closestFlag(fs *pflag.FlagSet, name string, largest int) string {
	closest, least := "", largest
	fs.VisitAll(func(f *pflag.Flag) {
		if d := editDistance(name, f.Name); d <= least && (closest == "" || d < least) {
			closest, least = f.Name, d
		}
	})
	return closest
}

// editDistance is the Levenshtein distance of two strings.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
