package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RuntimeConfig is the value of --runtime-config: versions of APIs, or classes of versions, that are enabled or disabled. All are enabled by
// default.
type RuntimeConfig map[string]string

const runtimeConfigAll = "api/all"

// versionClasses are the keys that stand for several versions, in the order in which they apply.
var versionClasses = []struct {
	key     string
	matches *regexp.Regexp
}{
	{runtimeConfigAll, regexp.MustCompile(``)},
	{"api/ga", regexp.MustCompile(`^v\d+$`)},
	{"api/beta", regexp.MustCompile(`^v\d+beta\d+$`)},
	{"api/alpha", regexp.MustCompile(`^v\d+alpha\d+$`)},
}

// String implements pflag.Value.
func (c *RuntimeConfig) String() string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(*c)) {
		pairs = append(pairs, key+"="+(*c)[key])
	}
	return strings.Join(pairs, ",")
}

// Type implements pflag.Value; the help shows it.
func (*RuntimeConfig) Type() string { return "version=bool" }

// Set implements pflag.Value.
func (c *RuntimeConfig) Set(text string) error {
	if *c == nil {
		*c = RuntimeConfig{}
	}
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair != "" {
			key, value, _ := strings.Cut(pair, "=")
			(*c)[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return nil
}

// Disabled returns those of the versions that are not to be served.
func (c RuntimeConfig) Disabled(versions []schema.GroupVersion) (map[schema.GroupVersion]bool, error) {
	if len(c) == 1 && c[runtimeConfigAll] == "false" {
		return nil, fmt.Errorf("invalid runtime-config with only %s=false", runtimeConfigAll)
	}
	disabled := map[schema.GroupVersion]bool{}
	classes := map[string]bool{}
	for _, class := range versionClasses {
		classes[class.key] = true
		value, ok := c[class.key]
		if !ok {
			continue
		}
		if value != "true" && value != "false" {
			return nil, fmt.Errorf("invalid value %s=%s", class.key, value)
		}
		for _, gv := range versions {
			if class.matches.MatchString(gv.Version) {
				disabled[gv] = value == "false"
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if classes[key] {
			continue
		}
		gv, err := registeredVersion(key, versions)
		if err != nil {
			return nil, err
		}
		enabled := true
		if c[key] != "" {
			if enabled, err = strconv.ParseBool(c[key]); err != nil {
				return nil, fmt.Errorf("invalid value of %s: %s, err: %w", key, c[key], err)
			}
		}
		disabled[gv] = !enabled
	}
	maps.DeleteFunc(disabled, func(_ schema.GroupVersion, off bool) bool { return !off })
	return disabled, nil
}

// registeredVersion parses a key group/version.
func registeredVersion(key string, versions []schema.GroupVersion) (schema.GroupVersion, error) {
	switch strings.Count(key, "/") {
	case 1:
	case 2:
		return schema.GroupVersion{}, fmt.Errorf("runtime-config: %s: only whole versions can be enabled or disabled", key)
	default:
		return schema.GroupVersion{}, errors.New("runtime-config invalid key " + key)
	}
	gv, err := schema.ParseGroupVersion(key)
	if err != nil {
		return gv, errors.New("runtime-config invalid key " + key)
	}
	if !slices.ContainsFunc(versions, func(known schema.GroupVersion) bool { return known.Group == gv.Group }) {
		return gv, fmt.Errorf("unknown api groups %s", gv)
	}
	if !slices.Contains(versions, gv) {
		return gv, fmt.Errorf("group version %s that has not been registered", gv)
	}
	return gv, nil
}
