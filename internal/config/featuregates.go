package config

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

//go:generate sh -c "(head -2 featuregates.txt; cd ../../test/upstream && go run ./featuregates) > featuregates.new && mv featuregates.new featuregates.txt"

// The feature gates whose behaviour skiff can switch.
const (
	GateComponentFlagz         = "ComponentFlagz"
	GateComponentStatusz       = "ComponentStatusz"
	GateCPUManagerAlphaOptions = "CPUManagerPolicyAlphaOptions"
	GateCPUManagerBetaOptions  = "CPUManagerPolicyBetaOptions"
)

// The gates that --feature-gates can switch, and those that a KubeletConfiguration can.
var (
	switchableGates  = []string{GateComponentFlagz, GateComponentStatusz}
	switchableByNode = []string{GateCPUManagerAlphaOptions, GateCPUManagerBetaOptions}
)

//go:embed featuregates.txt
var featureGatesText string

// featureGate is a feature gate of upstream's API server.
type featureGate struct {
	enabled bool // by default
	stage   string
	locked  bool
}

// featureGates are the feature gates of upstream's API server by name.
var featureGates = sync.OnceValue(func() map[string]featureGate {
	gates := map[string]featureGate{}
	for line := range strings.Lines(featureGatesText) {
		if fields := strings.Fields(line); len(fields) >= 3 && !strings.HasPrefix(line, "#") {
			gates[fields[0]] = featureGate{enabled: fields[1] == "true", stage: fields[2], locked: len(fields) > 3}
		}
	}
	return gates
})

// FeatureGates are the values of --feature-gates. Gates that are not in it have their defaults.
type FeatureGates map[string]bool

// Enabled reports whether a feature is enabled.
func (g FeatureGates) Enabled(name string) bool {
	if enabled, ok := g[name]; ok {
		return enabled
	}
	return featureGates()[name].enabled
}

var featureEnabledDesc = prometheus.NewDesc("kubernetes_feature_enabled",
	"This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil)

// Describe implements prometheus.Collector.
func (FeatureGates) Describe(descs chan<- *prometheus.Desc) { descs <- featureEnabledDesc }

// Collect implements prometheus.Collector. Features that are generally available have no stage.
func (g FeatureGates) Collect(metrics chan<- prometheus.Metric) {
	for name, gate := range featureGates() {
		value := 0.0
		if g.Enabled(name) {
			value = 1
		}
		stage := gate.stage
		if stage == "GA" {
			stage = ""
		}
		metrics <- prometheus.MustNewConstMetric(featureEnabledDesc, prometheus.GaugeValue, value, name, stage)
	}
}

// String implements pflag.Value.
func (g *FeatureGates) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(*g)) {
		pairs = append(pairs, fmt.Sprintf("%s=%v", name, (*g)[name]))
	}
	return strings.Join(pairs, ",")
}

// Type implements pflag.Value; the help shows it.
func (*FeatureGates) Type() string { return "gate=bool" }

// Set implements pflag.Value. Like upstream's, gates may have the prefix of the component kube.
func (g *FeatureGates) Set(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("missing bool value for %s", name)
		}
		name = strings.TrimSpace(name)
		if component, gate, ok := strings.Cut(name, ":"); ok {
			if component != "kube" {
				return fmt.Errorf("component not registered: %s", component)
			}
			name = gate
		}
		if err := g.set(name, strings.TrimSpace(value)); err != nil {
			return err
		}
	}
	return nil
}

// validateGate checks that a gate can have a value.
func validateGate(name string, enabled bool, switchable []string) error {
	gate, ok := featureGates()[name]
	switch {
	case !ok:
		return errors.New("unrecognized feature gate: " + name)
	case gate.locked && enabled != gate.enabled:
		return fmt.Errorf("cannot set feature gate %s to %v, feature is locked to %v", name, enabled, gate.enabled)
	case enabled != gate.enabled && !slices.Contains(switchable, name):
		return fmt.Errorf("cannot set feature gate %s to %v: skiff supports only its default, %v", name, enabled, gate.enabled)
	}
	return nil
}

func (g *FeatureGates) set(name, value string) error {
	enabled, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
	}
	if err := validateGate(name, enabled, switchableGates); err != nil {
		return err
	}
	if *g == nil {
		*g = FeatureGates{}
	}
	(*g)[name] = enabled
	return nil
}
