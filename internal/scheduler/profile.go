package scheduler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// RuleMaker makes a rule from a profile's arguments; arguments are nil when the file has none for it.
type RuleMaker struct {
	Name string
	// Weight is the rule's say in scores unless a profile tells otherwise. 0 means 1.
	Weight int64
	Make   func(arguments []byte) (Rule, error)
	// Optional rules take part only if a profile enables them.
	Optional bool
}

// Rules are all rules there are, in the order in which they are asked. A rule of your own is one more line.
var Rules = []RuleMaker{
	{Name: schedulingGatesName, Make: fixed(schedulingGates{})},
	{Name: nodeNameName, Make: fixed(nodeName{})},
	{Name: nodeUnschedulableName, Make: fixed(nodeUnschedulable{})},
	{Name: taintTolerationName, Weight: 3, Make: fixed(taintToleration{})},
	{Name: nodeAffinityName, Weight: 2, Make: with(newNodeAffinity)},
	{Name: nodePortsName, Make: fixed(nodePorts{})},
	{Name: nodeResourcesFitName, Make: with(newNodeResourcesFit)},
	{Name: volumeRestrictionsName, Make: fixed(volumeRestrictions{})},
	{Name: nodeVolumeLimitsName, Make: fixed(nodeVolumeLimits{})},
	{Name: volumeBindingName, Make: with(newVolumeBinding)},
	{Name: volumeZoneName, Make: fixed(volumeZone{})},
	{Name: podTopologySpreadName, Weight: 2, Make: with(newPodTopologySpread)},
	{Name: interPodAffinityName, Weight: 2, Make: with(newInterPodAffinity)},
	{Name: dynamicResourcesName, Weight: 2, Make: with(newDynamicResources)},
	{Name: defaultPreemptionName, Make: with(newDefaultPreemption)},
	{Name: balancedAllocationName, Make: with(newBalancedAllocation)},
	{Name: imageLocalityName, Make: fixed(imageLocality{})},
	{Name: nodeDeclaredFeaturesName, Make: fixed(nodeDeclaredFeatures{})},
}

// builtIn are the names upstream's files use for what here is not a rule but the way things are, and the points these are at.
var builtIn = map[string]string{"PrioritySort": "queueSort", "DefaultBinder": "bind"}

func fixed(r Rule) func([]byte) (Rule, error) { return func([]byte) (Rule, error) { return r, nil } }

// with reads a rule's arguments into upstream's type for them. A profile is made of a configuration that was found valid, so the rule need not look
// at them again.
func with[T any](newRule func(*T) Rule) func([]byte) (Rule, error) {
	return func(data []byte) (Rule, error) {
		arguments := new(T)
		if len(data) > 0 {
			decoder := json.NewDecoder(bytes.NewReader(data))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(arguments); err != nil {
				return nil, fmt.Errorf("read arguments: %w", err)
			}
		}
		return newRule(arguments), nil
	}
}

// Profile is a set of rules under a scheduler's name. Pods choose it by spec.schedulerName.
type Profile struct {
	Name string

	// filters are in order; a nil entry stands for a rule about neighbours.
	filters []FilterRule
	scorers []weightedRule
	hints   map[string][]Hint
	gates   bool

	spread                       *podTopologySpread
	affinity                     *interPodAffinity
	spreadOrder, affinityOrder   int // -1 when the rule does not filter
	spreadWeight, affinityWeight int64
	preemption                   *defaultPreemption
	binding                      *volumeBinding
	devices                      *dynamicResources
	freesDevices                 bool // of claims nobody uses, for pods that fit nowhere
}

type weightedRule struct {
	rule   ScoreRule
	weight int64
}

// DefaultProfile has all rules with their usual weights.
func DefaultProfile() *Profile {
	p, err := newProfile(&configv1.KubeSchedulerProfile{})
	if err != nil {
		panic(fmt.Sprintf("scheduler: the default profile: %v", err))
	}
	return p
}

// ignore leaves resources to others to account for.
func (p *Profile) ignore(resources []string) {
	for _, rule := range p.filters {
		if fit, ok := rule.(*nodeResourcesFit); ok {
			fit.ignored = append(fit.ignored, resources...)
		}
	}
}

// firstNeighbourRule is the place of the first rule about neighbours.
func (p *Profile) firstNeighbourRule() int {
	if p.spreadOrder < 0 || p.affinityOrder >= 0 && p.affinityOrder < p.spreadOrder {
		return p.affinityOrder
	}
	return p.spreadOrder
}

// enabled is where a rule takes part, and with what weight.
type enabled struct {
	filter, score, postFilter, preEnqueue bool
	weight                                int64
}

// maxTotal bounds the sum of all scores of a node, so that it fits into the keys nodes are ordered by.
const maxTotal = 1 << 31

// roomless rules score without room in a cell: the first three are scaled, the others about neighbours.
var roomless = []string{taintTolerationName, nodeAffinityName, dynamicResourcesName, podTopologySpreadName, interPodAffinityName}

// newProfile makes a profile as a configuration file describes it.
func newProfile(file *configv1.KubeSchedulerProfile) (*Profile, error) {
	p := &Profile{Name: corev1.DefaultSchedulerName, hints: map[string][]Hint{}, spreadOrder: -1, affinityOrder: -1}
	if file.SchedulerName != nil {
		p.Name = *file.SchedulerName
	}
	if err := p.build(file); err != nil {
		return nil, fmt.Errorf("creating profile for scheduler name %s: %w", p.Name, err)
	}
	return p, nil
}

func (p *Profile) build(file *configv1.KubeSchedulerProfile) error {
	arguments := map[string][]byte{}
	for _, c := range file.PluginConfig {
		if _, twice := arguments[c.Name]; twice {
			return fmt.Errorf("repeated config for plugin %s", c.Name)
		}
		arguments[c.Name] = rawArguments(c.Args)
	}
	plugins := file.Plugins
	if plugins == nil {
		plugins = &configv1.Plugins{}
	}
	order, parts, err := arrange(plugins)
	if err != nil {
		return err
	}
	local, total := 0, int64(0)
	made := map[string]Rule{}
	for _, maker := range order {
		rule, err := maker.Make(arguments[maker.Name])
		if err != nil {
			return fmt.Errorf("initializing plugin %q: %w", maker.Name, err)
		}
		made[maker.Name] = rule
		if part := parts[maker.Name]; part.score && takesPart(rule, "score") {
			total += part.weight * MaxScore
			if !slices.Contains(roomless, maker.Name) {
				local++
			}
		}
	}
	if err := checkPoints(plugins, made, p.Name); err != nil {
		return err
	}
	if local > maxLocalScores {
		return fmt.Errorf("more than %d rules score nodes beside %v", maxLocalScores, roomless)
	}
	if total >= maxTotal {
		return errors.New("total score of Score plugins could overflow")
	}
	for _, maker := range order {
		p.add(made[maker.Name], parts[maker.Name])
	}
	for _, name := range filterOrder(plugins, order, parts) {
		p.addFilter(made[name])
	}
	return nil
}

func (p *Profile) add(rule Rule, part enabled) {
	if h, ok := rule.(HintRule); ok {
		p.hints[rule.Name()] = h.Hints()
	}
	switch r := rule.(type) {
	case *podTopologySpread:
		if p.spread = r; part.score {
			p.spreadWeight = part.weight
		}
	case *interPodAffinity:
		if p.affinity = r; part.score {
			p.affinityWeight = part.weight
		}
	case *defaultPreemption:
		if part.postFilter {
			p.preemption = r
		}
	case schedulingGates:
		p.gates = part.preEnqueue
	case *volumeBinding:
		p.binding = r
	case *dynamicResources:
		p.devices, p.freesDevices = r, part.postFilter
	}
	if x, ok := rule.(ScoreRule); ok && part.score {
		p.scorers = append(p.scorers, weightedRule{rule: x, weight: part.weight})
	}
}

// addFilter lets a rule filter, after those that do already.
func (p *Profile) addFilter(rule Rule) {
	switch r := rule.(type) {
	case *podTopologySpread:
		p.spreadOrder = len(p.filters)
		p.filters = append(p.filters, nil)
	case *interPodAffinity:
		p.affinityOrder = len(p.filters)
		p.filters = append(p.filters, nil)
	case FilterRule:
		p.filters = append(p.filters, r)
	}
}

// point is a place where rules take part, as configuration files name it: by a field, and by upstream's type in what is said of mistakes.
type point struct {
	field, kind string
	set         configv1.PluginSet
}

func pointsOf(file *configv1.Plugins) []point {
	if file == nil {
		return nil
	}
	return []point{
		{"multiPoint", "PreFilterPlugin", file.MultiPoint},
		{"preFilter", "PreFilterPlugin", file.PreFilter}, {"filter", "FilterPlugin", file.Filter}, {"postFilter", "PostFilterPlugin", file.PostFilter},
		{"reserve", "ReservePlugin", file.Reserve}, {"preScore", "PreScorePlugin", file.PreScore}, {"score", "ScorePlugin", file.Score},
		{"preBind", "PreBindPlugin", file.PreBind}, {"bind", "BindPlugin", file.Bind}, {"postBind", "PostBindPlugin", file.PostBind},
		{"permit", "PermitPlugin", file.Permit}, {"preEnqueue", "PreEnqueuePlugin", file.PreEnqueue}, {"queueSort", "QueueSortPlugin", file.QueueSort},
		{"placementGenerate", "PlacementGeneratePlugin", file.PlacementGenerate}, {"placementScore", "PlacementScorePlugin", file.PlacementScore},
		{"podGroupPostFilter", "PodGroupPostFilterPlugin", file.PodGroupPostFilter},
	}
}

// takesPart reports whether a rule has something to do at a point: where upstream's plugin of that name has, and a rule of one's own where it filters
// and scores.
func takesPart(rule Rule, field string) bool {
	_, spreads := rule.(*podTopologySpread)
	_, attracts := rule.(*interPodAffinity)
	_, filters := rule.(FilterRule)
	_, scores := rule.(ScoreRule)
	isOne := func(names ...string) bool { return slices.Contains(names, rule.Name()) }
	switch field {
	case "preFilter", "filter":
		return filters || spreads || attracts
	case "preScore":
		return (scores || spreads || attracts) && !isOne(imageLocalityName, dynamicResourcesName)
	case "score":
		return scores || spreads || attracts
	case "postFilter", "podGroupPostFilter":
		return isOne(defaultPreemptionName, dynamicResourcesName)
	case "preEnqueue":
		return isOne(schedulingGatesName, defaultPreemptionName, dynamicResourcesName)
	case "reserve", "preBind":
		return isOne(volumeBindingName, dynamicResourcesName)
	case "placementScore":
		return isOne(nodeResourcesFitName)
	}
	return false
}

// checkPoints looks for rules at points where they have nothing to do, and for points that nobody serves.
func checkPoints(file *configv1.Plugins, made map[string]Rule, profile string) error {
	for _, at := range pointsOf(file)[1:] {
		for _, plugin := range at.set.Enabled {
			fits := at.field == builtIn[plugin.Name]
			if rule := made[plugin.Name]; rule != nil {
				fits = takesPart(rule, at.field)
			}
			if !fits {
				return fmt.Errorf("plugin %q does not extend %s plugin", plugin.Name, at.kind)
			}
		}
	}
	switch {
	case !served(file, file.QueueSort, "PrioritySort"):
		return fmt.Errorf("only one queue sort plugin required for profile with scheduler name %q, but got 0", profile)
	case !served(file, file.Bind, "DefaultBinder"):
		return fmt.Errorf("at least one bind plugin is needed for profile with scheduler name %q", profile)
	}
	return nil
}

// served reports whether what is always done here is also wanted by the file.
func served(file *configv1.Plugins, own configv1.PluginSet, name string) bool {
	everywhere := has(file.MultiPoint.Enabled, name) || !off(file.MultiPoint, name)
	return has(own.Enabled, name) || everywhere && !off(own, name)
}

func has(plugins []configv1.Plugin, name string) bool {
	return slices.ContainsFunc(plugins, func(p configv1.Plugin) bool { return p.Name == name })
}

func off(set configv1.PluginSet, name string) bool {
	return has(set.Disabled, name) || has(set.Disabled, "*")
}

// weightIn is a rule's weight where a file enables it: without a number, 1.
func weightIn(plugins []configv1.Plugin, name string) int64 {
	i := slices.IndexFunc(plugins, func(p configv1.Plugin) bool { return p.Name == name })
	if w := plugins[i].Weight; w != nil && *w != 0 {
		return int64(*w)
	}
	return 1
}

// arrange finds which rules a profile has, in order, and where each takes part. As in upstream, multiPoint enables a rule
// wherever it can take part, and the sets of single points add to that or take away from it.
func arrange(file *configv1.Plugins) ([]RuleMaker, map[string]enabled, error) {
	makers := map[string]RuleMaker{}
	var order []RuleMaker
	for _, m := range Rules {
		makers[m.Name] = m
		if !m.Optional && !off(file.MultiPoint, m.Name) {
			order = append(order, m)
		}
	}
	for _, at := range pointsOf(file) {
		for i, plugin := range at.set.Enabled {
			m, known := makers[plugin.Name]
			if _, here := builtIn[plugin.Name]; !known && !here {
				return nil, nil, fmt.Errorf("%s %q does not exist", at.kind, plugin.Name)
			}
			if has(at.set.Enabled[:i], plugin.Name) {
				return nil, nil, fmt.Errorf("plugin %q already registered as %q", plugin.Name, at.kind)
			}
			if known && !slices.ContainsFunc(order, func(other RuleMaker) bool { return other.Name == m.Name }) {
				order = append(order, m)
			}
		}
	}
	parts := map[string]enabled{}
	for _, m := range order {
		everywhere := has(file.MultiPoint.Enabled, m.Name) || !m.Optional && !off(file.MultiPoint, m.Name)
		at := func(set configv1.PluginSet) bool { return has(set.Enabled, m.Name) || everywhere && !off(set, m.Name) }
		part := enabled{
			filter: at(file.Filter), score: at(file.Score), postFilter: at(file.PostFilter), preEnqueue: at(file.PreEnqueue), weight: max(m.Weight, 1),
		}
		switch {
		case has(file.Score.Enabled, m.Name):
			part.weight = weightIn(file.Score.Enabled, m.Name)
		case has(file.MultiPoint.Enabled, m.Name):
			part.weight = weightIn(file.MultiPoint.Enabled, m.Name)
		}
		parts[m.Name] = part
	}
	return order, parts, nil
}

// filterOrder is the order in which rules filter: first those that stand everywhere and are named for filtering once more, as named there; then
// the others that stand everywhere; then those that only filter.
func filterOrder(file *configv1.Plugins, order []RuleMaker, parts map[string]enabled) (names []string) {
	everywhere := func(name string) bool {
		i := slices.IndexFunc(order, func(m RuleMaker) bool { return m.Name == name })
		return i >= 0 && !off(file.Filter, name) && (has(file.MultiPoint.Enabled, name) || !order[i].Optional && !off(file.MultiPoint, name))
	}
	for _, plugin := range file.Filter.Enabled {
		if everywhere(plugin.Name) {
			names = append(names, plugin.Name)
		}
	}
	for _, m := range order {
		if everywhere(m.Name) && !has(file.Filter.Enabled, m.Name) {
			names = append(names, m.Name)
		}
	}
	for _, plugin := range file.Filter.Enabled {
		if !everywhere(plugin.Name) && parts[plugin.Name].filter {
			names = append(names, plugin.Name)
		}
	}
	return names
}

func rawArguments(args runtime.RawExtension) []byte {
	if len(args.Raw) > 0 {
		return args.Raw
	}
	if args.Object == nil {
		return nil
	}
	// Arguments given as objects, by code, are of types that always encode.
	data, _ := json.Marshal(args.Object)
	return data
}
