package admission

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"skiff/internal/configfile"
	"skiff/internal/quota"
)

// configFile is an AdmissionConfiguration of apiserver.config.k8s.io: the configuration of each plugin, inline or in
// another file.
type configFile struct {
	metav1.TypeMeta `json:",inline"`
	Plugins         []struct {
		Name          string          `json:"name"`
		Path          string          `json:"path,omitempty"`
		Configuration json.RawMessage `json:"configuration,omitempty"`
	} `json:"plugins,omitempty"`
}

// config is the configuration of the plugins that can be configured, with defaults.
type config struct {
	podSecurity  podSecurityConfig
	quota        quotaConfig
	eventLimits  eventLimitConfig
	nodeSelector nodeSelectorConfig
	// webhooks are the configurations of the plugins that call webhooks, by name.
	webhooks map[string]*WebhookConfig
	// configured are the names of the plugins that the file configures.
	configured []string
}

// quotaConfig is a ResourceQuotaConfiguration.
type quotaConfig struct {
	metav1.TypeMeta  `json:",inline"`
	LimitedResources []quota.LimitedResource `json:"limitedResources,omitempty"`
}

// WebhookConfig is a WebhookAdmissionConfiguration.
type WebhookConfig struct {
	metav1.TypeMeta `json:",inline"`
	// KubeConfigFile has the credentials for webhooks: its users have the names of hosts.
	KubeConfigFile string `json:"kubeConfigFile,omitempty"`
	// StaticManifestsDir has files with webhook configurations that the API cannot change.
	StaticManifestsDir string `json:"staticManifestsDir,omitempty"`
}

// WebhookConfigurer is implemented by plugins that call webhooks. Configure is called once; the configuration is nil if there is none.
type WebhookConfigurer interface {
	Configure(c *WebhookConfig) error
}

// Validate checks the paths.
func (c *WebhookConfig) Validate() error {
	if c.KubeConfigFile != "" && !filepath.IsAbs(c.KubeConfigFile) {
		return field.Invalid(field.NewPath("kubeConfigFile"), c.KubeConfigFile, "must be an absolute file path")
	}
	if c.StaticManifestsDir == "" {
		return nil
	}
	path := field.NewPath("staticManifestsDir")
	if !filepath.IsAbs(c.StaticManifestsDir) {
		return field.Invalid(path, c.StaticManifestsDir, "must be an absolute file path")
	}
	info, err := os.Stat(c.StaticManifestsDir)
	if err != nil {
		return field.Invalid(path, c.StaticManifestsDir, fmt.Sprintf("unable to read: %v", err))
	}
	if !info.IsDir() {
		return field.Invalid(path, c.StaticManifestsDir, "must be a directory")
	}
	return nil
}

// readConfig reads a configuration file strictly: a misspelled setting is an error.
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
	if err := configfile.Decode(data, &file); err != nil {
		return fmt.Errorf("read admission configuration %s: %w", path, err)
	}
	if file.Kind != "AdmissionConfiguration" || file.APIVersion != "apiserver.config.k8s.io/v1" {
		return fmt.Errorf("admission configuration %s is a %s of %s, not an AdmissionConfiguration of apiserver.config.k8s.io/v1",
			path, file.Kind, file.APIVersion)
	}
	for _, plugin := range file.Plugins {
		target, kinds := c.section(plugin.Name)
		if target == nil {
			return fmt.Errorf("admission configuration %s: %q has nothing to configure", path, plugin.Name)
		}
		if slices.Contains(c.configured, plugin.Name) {
			return fmt.Errorf("admission configuration %s: %q is configured twice", path, plugin.Name)
		}
		c.configured = append(c.configured, plugin.Name)
		content := []byte(plugin.Configuration)
		if plugin.Path != "" {
			pluginPath := plugin.Path
			if !filepath.IsAbs(pluginPath) {
				pluginPath = filepath.Join(filepath.Dir(path), pluginPath)
			}
			if content, err = os.ReadFile(pluginPath); err != nil {
				return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
			}
		}
		if len(content) == 0 {
			continue
		}
		if err := configfile.Decode(content, target); err != nil {
			return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
		}
		if err := checkKind(content, kinds); err != nil {
			return fmt.Errorf("read admission configuration of %s: %w", plugin.Name, err)
		}
	}
	return nil
}

// webhookKinds are the kinds of WebhookConfig.
var webhookKinds = []string{"apiserver.config.k8s.io/WebhookAdmissionConfiguration", "apiserver.config.k8s.io/WebhookAdmission"}

// section is the part of config for a plugin, and the kinds its configuration may have, as group/kind.
func (c *config) section(plugin string) (target any, kinds []string) {
	switch plugin {
	case "PodSecurity":
		return &c.podSecurity, []string{"pod-security.admission.config.k8s.io/PodSecurityConfiguration"}
	case "ResourceQuota":
		return &c.quota, []string{"apiserver.config.k8s.io/ResourceQuotaConfiguration", "resourcequota.admission.k8s.io/Configuration"}
	case "EventRateLimit":
		return &c.eventLimits, []string{"eventratelimit.admission.k8s.io/Configuration"}
	case "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook":
		if c.webhooks == nil {
			c.webhooks = map[string]*WebhookConfig{}
		}
		c.webhooks[plugin] = &WebhookConfig{}
		return c.webhooks[plugin], webhookKinds
	case "PodNodeSelector":
		return &c.nodeSelector, nil
	}
	return nil, nil
}

// checkKind checks the kind of a plugin's configuration. kinds is nil for a format without kind.
func checkKind(content []byte, kinds []string) error {
	if kinds == nil {
		return nil
	}
	var typeMeta metav1.TypeMeta
	if err := yaml.Unmarshal(content, &typeMeta); err != nil {
		return err
	}
	for _, kind := range kinds {
		if typeMeta.GroupVersionKind().Group+"/"+typeMeta.Kind == kind {
			return nil
		}
	}
	return fmt.Errorf("unknown kind %q in version %q", typeMeta.Kind, typeMeta.APIVersion)
}
