package scheduler

import (
	"bytes"
	"encoding/json"
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

// The names upstream's files use for what here is not a rule but the way things are: order of the queue, and binding.
var builtIn = []string{"PrioritySort", "DefaultBinder"}

func fixed(r Rule) func([]byte) (Rule, error) { return func([]byte) (Rule, error) { return r, nil } }

// with reads a rule's arguments into upstream's type for them.
func with[T any](newRule func(*T) (Rule, error)) func([]byte) (Rule, error) {
	return func(data []byte) (Rule, error) {
		arguments := new(T)
		if len(data) > 0 {
			decoder := json.NewDecoder(bytes.NewReader(data))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(arguments); err != nil {
				return nil, fmt.Errorf("read arguments: %w", err)
			}
		}
		return newRule(arguments)
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
	filter, score, other bool
	weight               int64
}

// newProfile makes a profile as a configuration file describes it.
func newProfile(file *configv1.KubeSchedulerProfile) (*Profile, error) {
	p := &Profile{Name: corev1.DefaultSchedulerName, hints: map[string][]Hint{}, spreadOrder: -1, affinityOrder: -1}
	if file.SchedulerName != nil {
		p.Name = *file.SchedulerName
	}
	arguments := map[string][]byte{}
	for _, c := range file.PluginConfig {
		if _, twice := arguments[c.Name]; twice {
			return nil, fmt.Errorf("profile %s: pluginConfig[%s]: Duplicate value", p.Name, c.Name)
		}
		arguments[c.Name] = rawArguments(c.Args)
	}
	order, parts, err := arrange(file.Plugins)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", p.Name, err)
	}
	local := 0
	for _, maker := range order {
		part := parts[maker.Name]
		rule, err := maker.Make(arguments[maker.Name])
		if err != nil {
			return nil, fmt.Errorf("profile %s: rule %s: %w", p.Name, maker.Name, err)
		}
		p.add(rule, part)
		if _, scores := rule.(ScoreRule); scores && part.score {
			local++
		}
	}
	// TaintToleration, NodeAffinity and DynamicResources are scaled and need no room in a cell.
	if local-3 > maxLocalScores {
		return nil, fmt.Errorf("profile %s: more than %d rules score nodes", p.Name, maxLocalScores+3)
	}
	return p, nil
}

func (p *Profile) add(rule Rule, part enabled) {
	if h, ok := rule.(HintRule); ok {
		p.hints[rule.Name()] = h.Hints()
	}
	switch r := rule.(type) {
	case *podTopologySpread:
		p.spread = r
		if part.filter {
			p.spreadOrder = len(p.filters)
			p.filters = append(p.filters, nil)
		}
		if part.score {
			p.spreadWeight = part.weight
		}
		return
	case *interPodAffinity:
		p.affinity = r
		if part.filter {
			p.affinityOrder = len(p.filters)
			p.filters = append(p.filters, nil)
		}
		if part.score {
			p.affinityWeight = part.weight
		}
		return
	case *defaultPreemption:
		if part.other {
			p.preemption = r
		}
	case schedulingGates:
		p.gates = part.other
	case *volumeBinding:
		p.binding = r
	case *dynamicResources:
		p.devices = r
	}
	if f, ok := rule.(FilterRule); ok && part.filter {
		p.filters = append(p.filters, f)
	}
	if x, ok := rule.(ScoreRule); ok && part.score {
		p.scorers = append(p.scorers, weightedRule{rule: x, weight: part.weight})
	}
}

// arrange finds which rules a profile has, where each takes part, and in which order. As in upstream, multiPoint enables a rule
// wherever it can take part, and the sets of single points add to that or take away from it.
func arrange(file *configv1.Plugins) ([]RuleMaker, map[string]enabled, error) {
	if file == nil {
		file = &configv1.Plugins{}
	}
	makers := map[string]RuleMaker{}
	parts := map[string]enabled{}
	var order []RuleMaker
	known := func(name string) error {
		if _, ok := makers[name]; !ok && !slices.Contains(builtIn, name) {
			return fmt.Errorf("plugin %q is not known", name)
		}
		return nil
	}
	off := func(set configv1.PluginSet, name string) bool {
		return slices.ContainsFunc(set.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
	}
	for _, m := range Rules {
		makers[m.Name] = m
		if m.Optional || off(file.MultiPoint, m.Name) {
			continue
		}
		weight := max(m.Weight, 1)
		parts[m.Name] = enabled{
			filter: !off(file.Filter, m.Name), score: !off(file.Score, m.Name), weight: weight,
			other: !off(file.PostFilter, m.Name) && !off(file.PreEnqueue, m.Name),
		}
		order = append(order, m)
	}
	turnOn := func(set configv1.PluginSet, change func(*enabled)) error {
		for _, plugin := range set.Enabled {
			if err := known(plugin.Name); err != nil {
				return err
			}
			if slices.Contains(builtIn, plugin.Name) {
				continue
			}
			m := makers[plugin.Name]
			part, had := parts[m.Name]
			if !had {
				part.weight = max(m.Weight, 1)
				order = append(order, m)
			}
			if plugin.Weight != nil && *plugin.Weight != 0 {
				part.weight = int64(*plugin.Weight)
			}
			change(&part)
			parts[m.Name] = part
		}
		return nil
	}
	err := turnOn(file.MultiPoint, func(e *enabled) { e.filter, e.score, e.other = true, true, true })
	for _, set := range []configv1.PluginSet{file.PreFilter, file.PreScore, file.Reserve, file.PreBind, file.Permit, file.PostBind, file.Bind, file.QueueSort} {
		for _, plugin := range set.Enabled {
			if e := known(plugin.Name); err == nil {
				err = e
			}
		}
	}
	for _, point := range []struct {
		set    configv1.PluginSet
		change func(*enabled)
	}{
		{file.Filter, func(e *enabled) { e.filter = true }},
		{file.Score, func(e *enabled) { e.score = true }},
		{file.PostFilter, func(e *enabled) { e.other = true }},
		{file.PreEnqueue, func(e *enabled) { e.other = true }},
	} {
		if err == nil {
			err = turnOn(point.set, point.change)
		}
	}
	order = slices.DeleteFunc(order, func(m RuleMaker) bool { e := parts[m.Name]; return !e.filter && !e.score && !e.other })
	return order, parts, err
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
