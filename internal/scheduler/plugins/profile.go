package plugins

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// Profile is a set of plugins under a scheduler name, which pods choose by spec.schedulerName.
type Profile struct {
	Name string

	// Filters are in order; a nil entry stands for PodTopologySpread or InterPodAffinity.
	Filters         []FilterPlugin
	Scorers         []WeightedScorePlugin
	Hints           map[string][]QueueingHint
	SchedulingGates bool

	Spread                       *podTopologySpread
	Affinity                     *interPodAffinity
	SpreadOrder, AffinityOrder   int // index in Filters; -1 if the plugin does not filter
	SpreadWeight, AffinityWeight int64
	Preemption                   *DefaultPreemption
	VolumeBinding                *volumeBinding
	DynamicResources             *dynamicResources
	DeallocatesClaims            bool // PostFilter of DynamicResources: deallocate an unused claim for an unschedulable pod
}

type WeightedScorePlugin struct {
	Plugin ScorePlugin
	Weight int64
}

// DefaultProfile has the default plugins with their default weights.
func DefaultProfile() *Profile {
	p, err := NewProfile(&configv1.KubeSchedulerProfile{})
	if err != nil {
		panic(fmt.Sprintf("scheduler: the default profile: %v", err))
	}
	return p
}

// IgnoreResources makes NodeResourcesFit ignore resources that an extender manages.
func (p *Profile) IgnoreResources(resources []string) {
	for _, plugin := range p.Filters {
		if fit, ok := plugin.(*NodeResourcesFit); ok {
			fit.ignored = append(fit.ignored, resources...)
		}
	}
}

// FilterNames are the names of Filters.
func (p *Profile) FilterNames() []string {
	names := make([]string, len(p.Filters))
	for i, plugin := range p.Filters {
		switch {
		case plugin != nil:
			names[i] = plugin.Name()
		case i == p.SpreadOrder:
			names[i] = PodTopologySpreadName
		default:
			names[i] = InterPodAffinityName
		}
	}
	return names
}

// FirstTopologyPlugin returns the index in Filters of the first of PodTopologySpread and InterPodAffinity.
func (p *Profile) FirstTopologyPlugin() int {
	if p.SpreadOrder < 0 || p.AffinityOrder >= 0 && p.AffinityOrder < p.SpreadOrder {
		return p.AffinityOrder
	}
	return p.SpreadOrder
}

// maxTotal bounds the sum of all scores of a node, so that it fits into the keys that order nodes.
const maxTotal = 1 << 31

// pluginsWithoutCell are the plugins whose scores are not stored in table cells: the first three are normalized, the others depend on all
// nodes.
var pluginsWithoutCell = []string{TaintTolerationName, NodeAffinityName, DynamicResourcesName, PodTopologySpreadName, InterPodAffinityName}

// NewProfile makes a profile from its configuration.
func NewProfile(file *configv1.KubeSchedulerProfile) (*Profile, error) {
	p := &Profile{Name: corev1.DefaultSchedulerName, Hints: map[string][]QueueingHint{}, SpreadOrder: -1, AffinityOrder: -1}
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
		arguments[c.Name] = RawArguments(c.Args)
	}
	enabled := file.Plugins
	if enabled == nil {
		enabled = &configv1.Plugins{}
	}
	order, points, err := arrange(enabled)
	if err != nil {
		return err
	}
	local, total := 0, int64(0)
	instances := map[string]Plugin{}
	for _, factory := range order {
		plugin, err := factory.Make(arguments[factory.Name])
		if err != nil {
			return fmt.Errorf("initializing plugin %q: %w", factory.Name, err)
		}
		instances[factory.Name] = plugin
		if point := points[factory.Name]; point.score && extends(plugin, "score") {
			total += point.weight * MaxScore
			if !slices.Contains(pluginsWithoutCell, factory.Name) {
				local++
			}
		}
	}
	if err := checkExtensionPoints(enabled, instances, p.Name); err != nil {
		return err
	}
	if local > MaxLocalScores {
		return fmt.Errorf("more than %d score plugins besides %v", MaxLocalScores, pluginsWithoutCell)
	}
	if total >= maxTotal {
		return errors.New("total score of Score plugins could overflow")
	}
	for _, factory := range order {
		p.add(instances[factory.Name], points[factory.Name])
	}
	for _, name := range filterOrder(enabled, order, points) {
		p.addFilter(instances[name])
	}
	return nil
}

func (p *Profile) add(plugin Plugin, points extensionPoints) {
	if h, ok := plugin.(HintPlugin); ok {
		p.Hints[plugin.Name()] = h.Hints()
	}
	switch r := plugin.(type) {
	case *podTopologySpread:
		if p.Spread = r; points.score {
			p.SpreadWeight = points.weight
		}
	case *interPodAffinity:
		if p.Affinity = r; points.score {
			p.AffinityWeight = points.weight
		}
	case *DefaultPreemption:
		if points.postFilter {
			p.Preemption = r
		}
	case schedulingGates:
		p.SchedulingGates = points.preEnqueue
	case *volumeBinding:
		p.VolumeBinding = r
	case *dynamicResources:
		p.DynamicResources, p.DeallocatesClaims = r, points.postFilter
	}
	if x, ok := plugin.(ScorePlugin); ok && points.score {
		p.Scorers = append(p.Scorers, WeightedScorePlugin{Plugin: x, Weight: points.weight})
	}
}

// addFilter appends a plugin to the filters.
func (p *Profile) addFilter(plugin Plugin) {
	switch r := plugin.(type) {
	case *podTopologySpread:
		p.SpreadOrder = len(p.Filters)
		p.Filters = append(p.Filters, nil)
	case *interPodAffinity:
		p.AffinityOrder = len(p.Filters)
		p.Filters = append(p.Filters, nil)
	case FilterPlugin:
		p.Filters = append(p.Filters, r)
	}
}

// MaxLocalScores is the number of scores in a table cell.
const MaxLocalScores = 6

// MayHelp calls the queueing hints of the plugins that rejected a pod for an event.
func (p *Profile) MayHelp(s *snapshot.Snapshot, pod *corev1.Pod, rejectedBy []string, e *Event) bool {
	// TargetPod hints are for updates of the pod itself only.
	if e.Resource == TargetPod && asPod(e.New).UID != pod.UID {
		return false
	}
	for _, plugin := range rejectedBy {
		hints, known := p.Hints[plugin]
		if !known {
			return true // an extender, or a plugin without hints
		}
		for i := range hints {
			h := &hints[i]
			if h.Resource == e.Resource && h.Action&e.Action != 0 && (h.Helps == nil || h.Helps(s, pod, e.Old, e.New)) {
				return true
			}
		}
	}
	return false
}
