package scheduler

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/configfile"
	"skiff/internal/scheduler/plugins"
)

// The default backoff of a pod after the first failed attempt, and the maximum, in seconds.
const (
	defaultInitialBackoff = 1
	defaultMaxBackoff     = 10
)

// ReadConfiguration reads a KubeSchedulerConfiguration file of version kubescheduler.config.k8s.io/v1.
func ReadConfiguration(path string) (*configv1.KubeSchedulerConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	return ParseConfiguration(data)
}

// ParseConfiguration reads a KubeSchedulerConfiguration. Unknown fields are errors, as in upstream.
func ParseConfiguration(data []byte) (*configv1.KubeSchedulerConfiguration, error) {
	c := &configv1.KubeSchedulerConfiguration{}
	if err := configfile.Decode(data, c); err != nil {
		return nil, fmt.Errorf("parse scheduler configuration: %w", err)
	}
	if c.Kind != "KubeSchedulerConfiguration" || c.APIVersion != configv1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("parse scheduler configuration: want KubeSchedulerConfiguration of %s, got %s of %s", configv1.SchemeGroupVersion, c.Kind, c.APIVersion)
	}
	if _, err := configfile.Check(c, Unused); err != nil {
		return nil, fmt.Errorf("parse scheduler configuration: %w", err)
	}
	if err := validateConfiguration(c); err != nil {
		return nil, err
	}
	if _, err := profilesOf(c); err != nil {
		return nil, err
	}
	for i := range c.Extenders {
		if _, err := newExtender(&c.Extenders[i]); err != nil {
			return nil, fmt.Errorf("extenders[%d]: %w", i, err)
		}
	}
	return c, nil
}

// profilesOf makes the profiles a valid configuration describes, by name.
func profilesOf(c *configv1.KubeSchedulerConfiguration) (map[string]*plugins.Profile, error) {
	files := c.Profiles
	if len(files) == 0 {
		files = []configv1.KubeSchedulerProfile{{}}
	}
	profiles := map[string]*plugins.Profile{}
	for i := range files {
		p, err := plugins.NewProfile(&files[i])
		if err != nil {
			return nil, err
		}
		p.IgnoreResources(ignoredResources(c))
		profiles[p.Name] = p
	}
	return profiles, nil
}

// ignoredResources are the resources that extenders account for instead of the scheduler.
func ignoredResources(c *configv1.KubeSchedulerConfiguration) (names []string) {
	for i := range c.Extenders {
		for _, r := range c.Extenders[i].ManagedResources {
			if r.IgnoredByScheduler {
				names = append(names, r.Name)
			}
		}
	}
	return names
}

func backoffSeconds(c *configv1.KubeSchedulerConfiguration) (initial, most int64) {
	return ptr.Deref(c.PodInitialBackoffSeconds, defaultInitialBackoff), ptr.Deref(c.PodMaxBackoffSeconds, defaultMaxBackoff)
}

// backoffOf is the initial and the maximal backoff of a pod, bounded to what a time.Duration can represent.
func backoffOf(c *configv1.KubeSchedulerConfiguration) (initial, most time.Duration) {
	first, last := backoffSeconds(c)
	const all = int64(math.MaxInt64 / time.Second)
	return time.Duration(min(first, all)) * time.Second, time.Duration(min(last, all)) * time.Second
}

// extendersOf makes the extenders a configuration describes; those that may be ignored come last.
func extendersOf(c *configv1.KubeSchedulerConfiguration) ([]*extender, error) {
	var all []*extender
	for i := range c.Extenders {
		e, err := newExtender(&c.Extenders[i])
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b *extender) int {
		switch {
		case a.config.Ignorable == b.config.Ignorable:
			return 0
		case b.config.Ignorable:
			return -1
		}
		return 1
	})
	return all, nil
}
