package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RuntimeConfig is the value of --runtime-config: classes of versions, versions and resources that are enabled or disabled. All are enabled
// by default.
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

// Disabled returns those of the resources that are not to be served. A key group/version/resource takes precedence over group/version, and
// that over a class.
func (c RuntimeConfig) Disabled(resources []schema.GroupVersionResource) (map[schema.GroupVersionResource]bool, error) {
	if len(c) == 1 && c[runtimeConfigAll] == "false" {
		return nil, fmt.Errorf("invalid runtime-config with only %s=false", runtimeConfigAll)
	}
	disabled := map[schema.GroupVersionResource]bool{}
	set := func(off bool, matches func(schema.GroupVersionResource) bool) {
		for _, resource := range resources {
			if matches(resource) {
				disabled[resource] = off
			}
		}
	}
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
		set(value == "false", func(r schema.GroupVersionResource) bool { return class.matches.MatchString(r.Version) })
	}
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(c)), func(key string) bool { return classes[key] })
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
	})
	for _, key := range keys {
		wanted, err := registeredResource(key, resources)
		if err != nil {
			return nil, err
		}
		enabled := true
		if c[key] != "" {
			if enabled, err = strconv.ParseBool(c[key]); err != nil {
				return nil, fmt.Errorf("invalid value of %s: %s, err: %w", key, c[key], err)
			}
		}
		set(!enabled, func(r schema.GroupVersionResource) bool {
			return r.GroupVersion() == wanted.GroupVersion() && (wanted.Resource == "" || wanted.Resource == r.Resource)
		})
	}
	maps.DeleteFunc(disabled, func(_ schema.GroupVersionResource, off bool) bool { return !off })
	return disabled, nil
}

// registeredResource parses a key group/version, whose result has no resource, or group/version/resource.
func registeredResource(key string, resources []schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	parts := strings.Split(key, "/")
	if len(parts) != 2 && len(parts) != 3 {
		return schema.GroupVersionResource{}, errors.New("runtime-config invalid key " + key)
	}
	wanted := schema.GroupVersionResource{Group: parts[0], Version: parts[1]}
	if len(parts) == 3 {
		wanted.Resource = parts[2]
	}
	if wanted.Version == "" {
		return wanted, errors.New("runtime-config invalid key " + key)
	}
	if !slices.ContainsFunc(resources, func(r schema.GroupVersionResource) bool { return r.Group == wanted.Group }) {
		return wanted, fmt.Errorf("unknown api groups %s", wanted.GroupVersion())
	}
	if !slices.ContainsFunc(resources, func(r schema.GroupVersionResource) bool { return r.GroupVersion() == wanted.GroupVersion() }) {
		return wanted, fmt.Errorf("group version %s that has not been registered", wanted.GroupVersion())
	}
	if strings.ToLower(wanted.Resource) != wanted.Resource {
		return wanted, fmt.Errorf("invalid key %s: group/version/resource and resource is always lowercase plural, not %q", key, wanted.Resource)
	}
	if wanted.Resource != "" && !slices.Contains(resources, wanted) {
		return wanted, fmt.Errorf("invalid key %s: there is no resource %q in %s", key, wanted.Resource, wanted.GroupVersion())
	}
	return wanted, nil
}
