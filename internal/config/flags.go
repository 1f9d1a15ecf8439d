package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// FlagGroup is a set of flags that the help shows under one heading.
type FlagGroup struct {
	Name string
	// Common flags are always shown, Advanced ones by --help-all only.
	Common, Advanced *pflag.FlagSet
}

// FlagGroups are the flags of one command, in the order in which the help shows them. The zero value is empty.
type FlagGroups struct {
	groups []FlagGroup
	// settingsFile is the value of --config; nil: the command has no settings besides its command line.
	settingsFile *string
}

// Common is the set of the flags of a group that are always shown. A group is created by its first use.
func (g *FlagGroups) Common(group string) *pflag.FlagSet { return g.group(group).Common }

// Advanced is the set of the flags of a group that only --help-all shows.
func (g *FlagGroups) Advanced(group string) *pflag.FlagSet { return g.group(group).Advanced }

func (g *FlagGroups) group(name string) FlagGroup {
	for _, group := range g.groups {
		if group.Name == name {
			return group
		}
	}
	newSet := func() *pflag.FlagSet {
		fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
		fs.SortFlags = false
		return fs
	}
	group := FlagGroup{Name: name, Common: newSet(), Advanced: newSet()}
	g.groups = append(g.groups, group)
	return group
}

// All are the groups that have flags.
func (g *FlagGroups) All() []FlagGroup {
	return slices.DeleteFunc(slices.Clone(g.groups), func(group FlagGroup) bool {
		return !group.Common.HasFlags() && !group.Advanced.HasFlags()
	})
}

// AddTo adds the flags of all groups to a flag set.
func (g *FlagGroups) AddTo(fs *pflag.FlagSet) {
	for _, group := range g.groups {
		fs.AddFlagSet(group.Common)
		fs.AddFlagSet(group.Advanced)
	}
}

// classified marks flags whose values are secret.
const classified = "classified"

// FlagValues returns the values of all flags of a configuration, for /flagz. Secret values are replaced by CLASSIFIED.
func FlagValues(c interface{ Flags(*FlagGroups) }) map[string]string {
	var groups FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	groups.AddTo(fs)
	values := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		values[f.Name] = f.Value.String()
		if len(f.Annotations[classified]) > 0 {
			values[f.Name] = "CLASSIFIED"
		}
	})
	return values
}

// RepeatedValues are what a flag that can be repeated is given, one after the other, to have the value that it has. ok is false for other flags.
func RepeatedValues(f *pflag.Flag) (values []string, ok bool) {
	value := f.Value
	if tracked, isTracked := value.(givenTracker); isTracked {
		value = tracked.Value
	}
	switch v := value.(type) {
	case pflag.SliceValue:
		return v.GetSlice(), true
	case *namedCerts:
		return v.values(), true
	case *stringMap:
		return v.values(), true
	}
	return nil, false
}

// The groups of flags that several commands have.
const (
	groupGeneric        = "Generic"
	groupServing        = "Secure serving"
	groupEtcd           = "Etcd"
	groupAuthentication = "Authentication"
	groupAuthorization  = "Authorization"
	groupAdmission      = "Admission"
	groupAudit          = "Auditing"
	groupFlowControl    = "Flow control"
	groupNetworking     = "Networking"
	groupNode           = "Node"
	groupNodeLifecycle  = "Node lifecycle"
	groupService        = "Service"
)

// dataDirFlag binds --data-dir.
func dataDirFlag(fs *pflag.FlagSet, dir *string) {
	fs.StringVar(dir, "data-dir", *dir, "Directory for skiff's state.")
}

// logLevelFlag binds --log-level.
func logLevelFlag(fs *pflag.FlagSet, level *string) {
	fs.StringVar(level, "log-level", *level, "Lowest level of log messages to write: debug, info, warn or error.")
}

// stringList is a flag whose values are separated by commas. A flag that is given twice has its last value.
type stringList []string

// listVar binds a flag that holds a list of strings.
func listVar(fs *pflag.FlagSet, list *[]string, name, usage string) {
	fs.Var((*stringList)(list), name, usage)
}

// String implements pflag.Value.
func (l *stringList) String() string { return strings.Join(*l, ",") }

// Type implements pflag.Value; the help shows it.
func (*stringList) Type() string { return "strings" }

// Set implements pflag.Value.
func (l *stringList) Set(text string) error {
	*l = nil
	for value := range strings.SplitSeq(text, ",") {
		if value = strings.TrimSpace(value); value != "" {
			*l = append(*l, value)
		}
	}
	return nil
}
