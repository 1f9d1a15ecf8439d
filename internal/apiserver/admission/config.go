package admission

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"skiff/internal/quota"
)

// configFile is an AdmissionConfiguration of apiserver.config.k8s.io: for each plugin its configuration, there or in
// another file.
type configFile struct {
	metav1.TypeMeta `json:",inline"`
	Plugins         []struct {
		Name          string          `json:"name"`
		Path          string          `json:"path,omitempty"`
		Configuration json.RawMessage `json:"configuration,omitempty"`
	} `json:"plugins,omitempty"`
}

// config is what the file says for the plugins that can be configured; each with its defaults filled in.
type config struct {
	podSecurity  podSecurityConfig
	quota        quotaConfig
	eventLimits  eventLimitConfig
	nodeSelector nodeSelectorConfig
}

// quotaConfig is a ResourceQuotaConfiguration.
type quotaConfig struct {
	metav1.TypeMeta  `json:",inline"`
	LimitedResources []quota.LimitedResource `json:"limitedResources,omitempty"`
}

// readConfig reads a configuration file. Everything in it must be known: a setting that is misspelled is not in force.
func readConfig(path string) (*config, error) {
	c := &config{}
	if err := c.read(path); err != nil {
		return nil, err
	}
	if err := c.podSecurity.complete(); err != nil {
		return nil, fmt.Errorf("admission configuration of PodSecurity: %w", err)
	}
	return c, nil
}

func (c *config) read(path string) error {
	if path == "" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read admission configuration: %w", err)
	}
	var file configFile
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return fmt.Errorf("read admission configuration %s: %w", path, err)
	}
	if file.Kind != "AdmissionConfiguration" || file.APIVersion != "apiserver.config.k8s.io/v1" {
		return fmt.Errorf("admission configuration %s is a %s of %s, not an AdmissionConfiguration of apiserver.config.k8s.io/v1",
			path, file.Kind, file.APIVersion)
	}
	for _, plugin := range file.Plugins {
		into, kinds := c.section(plugin.Name)
		if into == nil {
			return fmt.Errorf("admission configuration %s: %q has nothing to configure", path, plugin.Name)
		}
		content := []byte(plugin.Configuration)
		if plugin.Path != "" {
			where := plugin.Path
			if !filepath.IsAbs(where) {
				where = filepath.Join(filepath.Dir(path), where)
			}
			if content, err = os.ReadFile(where); err != nil {
				return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
			}
		}
		if len(content) == 0 {
			continue
		}
		if err := yaml.UnmarshalStrict(content, into); err != nil {
			return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
		}
		if err := checkKind(content, kinds); err != nil {
			return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
		}
	}
	return nil
}

// section is where the configuration of a plugin goes, and the kinds it may be, as group/kind.
func (c *config) section(plugin string) (into any, kinds []string) {
	switch plugin {
	case "PodSecurity":
		return &c.podSecurity, []string{"pod-security.admission.config.k8s.io/PodSecurityConfiguration"}
	case "ResourceQuota":
		return &c.quota, []string{"apiserver.config.k8s.io/ResourceQuotaConfiguration", "resourcequota.admission.k8s.io/Configuration"}
	case "EventRateLimit":
		return &c.eventLimits, []string{"eventratelimit.admission.k8s.io/Configuration"}
	case "PodNodeSelector":
		return &c.nodeSelector, nil
	}
	return nil, nil
}

// checkKind: a configuration says what it is, unless its plugin is older than kinds.
func checkKind(content []byte, kinds []string) error {
	if kinds == nil {
		return nil
	}
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(content, &is); err != nil {
		return err
	}
	for _, kind := range kinds {
		if is.GroupVersionKind().Group+"/"+is.Kind == kind {
			return nil
		}
	}
	return fmt.Errorf("no kind %q is known in version %q", is.Kind, is.APIVersion)
}
