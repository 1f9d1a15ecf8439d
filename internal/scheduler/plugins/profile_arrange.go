package plugins

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// builtIn are upstream's plugins that are not plugins in skiff but fixed behaviour, and their extension points.
var builtIn = map[string]string{"PrioritySort": "queueSort", "DefaultBinder": "bind"}

// extensionPoints are the extension points that a profile enables for a plugin, and its weight.
type extensionPoints struct {
	filter, score, postFilter, preEnqueue bool
	weight                                int64
}

// extensionPoint is an extension point of a configuration: its field, and upstream's interface type as named in error messages.
type extensionPoint struct {
	Field, kind string
	Set         configv1.PluginSet
}

// ExtensionPointsOf returns the extension points of a profile's configuration, multiPoint first.
func ExtensionPointsOf(file *configv1.Plugins) []extensionPoint {
	if file == nil {
		return nil
	}
	return []extensionPoint{
		{"multiPoint", "PreFilterPlugin", file.MultiPoint},
		{"preFilter", "PreFilterPlugin", file.PreFilter}, {"filter", "FilterPlugin", file.Filter}, {"postFilter", "PostFilterPlugin", file.PostFilter},
		{"reserve", "ReservePlugin", file.Reserve}, {"preScore", "PreScorePlugin", file.PreScore}, {"score", "ScorePlugin", file.Score},
		{"preBind", "PreBindPlugin", file.PreBind}, {"bind", "BindPlugin", file.Bind}, {"postBind", "PostBindPlugin", file.PostBind},
		{"permit", "PermitPlugin", file.Permit}, {"preEnqueue", "PreEnqueuePlugin", file.PreEnqueue}, {"queueSort", "QueueSortPlugin", file.QueueSort},
		{"placementGenerate", "PlacementGeneratePlugin", file.PlacementGenerate}, {"placementScore", "PlacementScorePlugin", file.PlacementScore},
		{"podGroupPostFilter", "PodGroupPostFilterPlugin", file.PodGroupPostFilter},
	}
}

// extends reports whether a plugin implements an extension point: built-in plugins where upstream's do, others where they filter or score.
func extends(plugin Plugin, field string) bool {
	_, isSpread := plugin.(*podTopologySpread)
	_, isAffinity := plugin.(*interPodAffinity)
	_, filters := plugin.(FilterPlugin)
	_, scores := plugin.(ScorePlugin)
	isOne := func(names ...string) bool { return slices.Contains(names, plugin.Name()) }
	switch field {
	case "preFilter", "filter":
		return filters || isSpread || isAffinity
	case "preScore":
		return (scores || isSpread || isAffinity) && !isOne(ImageLocalityName, DynamicResourcesName)
	case "score":
		return scores || isSpread || isAffinity
	case "postFilter", "podGroupPostFilter":
		return isOne(DefaultPreemptionName, DynamicResourcesName)
	case "preEnqueue":
		return isOne(SchedulingGatesName, DefaultPreemptionName, DynamicResourcesName)
	case "reserve", "preBind":
		return isOne(VolumeBindingName, DynamicResourcesName)
	case "placementScore":
		return isOne(NodeResourcesFitName)
	}
	return false
}

// checkExtensionPoints rejects plugins at extension points they do not implement, and profiles without queue sort or bind plugin.
func checkExtensionPoints(file *configv1.Plugins, instances map[string]Plugin, profile string) error {
	for _, point := range ExtensionPointsOf(file)[1:] {
		for _, plugin := range point.Set.Enabled {
			fits := point.Field == builtIn[plugin.Name]
			if instance := instances[plugin.Name]; instance != nil {
				fits = extends(instance, point.Field)
			}
			if !fits {
				return fmt.Errorf("plugin %q does not extend %s plugin", plugin.Name, point.kind)
			}
		}
	}
	switch {
	case !isEnabled(file, file.QueueSort, "PrioritySort"):
		return fmt.Errorf("only one queue sort plugin required for profile with scheduler name %q, but got 0", profile)
	case !isEnabled(file, file.Bind, "DefaultBinder"):
		return fmt.Errorf("at least one bind plugin is needed for profile with scheduler name %q", profile)
	}
	return nil
}

// isEnabled reports whether a configuration enables a built-in plugin.
func isEnabled(file *configv1.Plugins, own configv1.PluginSet, name string) bool {
	everywhere := contains(file.MultiPoint.Enabled, name) || !isDisabled(file.MultiPoint, name)
	return contains(own.Enabled, name) || everywhere && !isDisabled(own, name)
}

func contains(plugins []configv1.Plugin, name string) bool {
	return slices.ContainsFunc(plugins, func(p configv1.Plugin) bool { return p.Name == name })
}

func isDisabled(set configv1.PluginSet, name string) bool {
	return contains(set.Disabled, name) || contains(set.Disabled, "*")
}

// weightIn returns the weight of an enabled plugin; the default is 1.
func weightIn(plugins []configv1.Plugin, name string) int64 {
	i := slices.IndexFunc(plugins, func(p configv1.Plugin) bool { return p.Name == name })
	if w := plugins[i].Weight; w != nil && *w != 0 {
		return int64(*w)
	}
	return 1
}

// arrange returns the plugins of a profile in order, and the extension points of each. As in upstream, multiPoint enables a plugin at all
// its extension points, and the sets of single extension points add to that or remove from it.
func arrange(file *configv1.Plugins) ([]Factory, map[string]extensionPoints, error) {
	factories := map[string]Factory{}
	var order []Factory
	for _, m := range Registry {
		factories[m.Name] = m
		if !m.Optional && !isDisabled(file.MultiPoint, m.Name) {
			order = append(order, m)
		}
	}
	for _, at := range ExtensionPointsOf(file) {
		for i, plugin := range at.Set.Enabled {
			m, known := factories[plugin.Name]
			if _, here := builtIn[plugin.Name]; !known && !here {
				return nil, nil, fmt.Errorf("%s %q does not exist", at.kind, plugin.Name)
			}
			if contains(at.Set.Enabled[:i], plugin.Name) {
				return nil, nil, fmt.Errorf("plugin %q already registered as %q", plugin.Name, at.kind)
			}
			if known && !slices.ContainsFunc(order, func(other Factory) bool { return other.Name == m.Name }) {
				order = append(order, m)
			}
		}
	}
	points := map[string]extensionPoints{}
	for _, m := range order {
		everywhere := contains(file.MultiPoint.Enabled, m.Name) || !m.Optional && !isDisabled(file.MultiPoint, m.Name)
		at := func(set configv1.PluginSet) bool {
			return contains(set.Enabled, m.Name) || everywhere && !isDisabled(set, m.Name)
		}
		point := extensionPoints{
			filter: at(file.Filter), score: at(file.Score), postFilter: at(file.PostFilter), preEnqueue: at(file.PreEnqueue), weight: max(m.Weight, 1),
		}
		switch {
		case contains(file.Score.Enabled, m.Name):
			point.weight = weightIn(file.Score.Enabled, m.Name)
		case contains(file.MultiPoint.Enabled, m.Name):
			point.weight = weightIn(file.MultiPoint.Enabled, m.Name)
		}
		points[m.Name] = point
	}
	return order, points, nil
}

// filterOrder returns the order of filters, as in upstream: first the multiPoint plugins that filter lists again, in the order of filter;
// then the other multiPoint plugins; then those that are only in filter.
func filterOrder(file *configv1.Plugins, order []Factory, points map[string]extensionPoints) (names []string) {
	everywhere := func(name string) bool {
		i := slices.IndexFunc(order, func(m Factory) bool { return m.Name == name })
		return i >= 0 && !isDisabled(file.Filter, name) && (contains(file.MultiPoint.Enabled, name) || !order[i].Optional && !isDisabled(file.MultiPoint, name))
	}
	for _, plugin := range file.Filter.Enabled {
		if everywhere(plugin.Name) {
			names = append(names, plugin.Name)
		}
	}
	for _, m := range order {
		if everywhere(m.Name) && !contains(file.Filter.Enabled, m.Name) {
			names = append(names, m.Name)
		}
	}
	for _, plugin := range file.Filter.Enabled {
		if !everywhere(plugin.Name) && points[plugin.Name].filter {
			names = append(names, plugin.Name)
		}
	}
	return names
}

// RawArguments returns a plugin's arguments as JSON.
func RawArguments(args runtime.RawExtension) []byte {
	if len(args.Raw) > 0 {
		return args.Raw
	}
	if args.Object == nil {
		return nil
	}
	// Objects are upstream's argument types, which always encode.
	data, _ := json.Marshal(args.Object)
	return data
}
