package plugins

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// podTopologySpread filters and scores nodes by topology spread constraints.
type podTopologySpread struct {
	defaults []corev1.TopologySpreadConstraint
	// system is set for the built-in default constraints, which allow nodes without the topology keys.
	system bool
}

// systemDefaultConstraints apply to pods of a Service or controller without constraints of their own, unless the profile has others.
var systemDefaultConstraints = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

func newPodTopologySpread(args *configv1.PodTopologySpreadArgs) Plugin {
	if args.DefaultingType == configv1.ListDefaulting {
		return &podTopologySpread{defaults: args.DefaultConstraints}
	}
	return &podTopologySpread{defaults: systemDefaultConstraints, system: true}
}

func (*podTopologySpread) Name() string { return PodTopologySpreadName }

// constraint is a constraint with its parsed selector and policies.
type constraint struct {
	*corev1.TopologySpreadConstraint
	selector      labels.Selector
	honorAffinity bool
	honorTaints   bool
}

// constraints returns a pod's constraints with the given action; the defaults if the pod has none.
func (r *podTopologySpread) constraints(s *snapshot.Snapshot, pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	own := pod.Spec.TopologySpreadConstraints
	given := own
	var common labels.Selector
	if len(own) == 0 {
		given = r.defaults
	}
	var all []constraint
	for i := range given {
		c := constraint{TopologySpreadConstraint: &given[i], honorAffinity: true}
		if c.WhenUnsatisfiable != action {
			continue
		}
		if len(own) == 0 {
			if common == nil {
				common = s.OwnerSelector(pod)
			}
			// Default constraints do not apply to a pod without Service or controller.
			if common.Empty() {
				return nil, nil
			}
			c.selector = common
		} else {
			selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
			if err != nil {
				return nil, err
			}
			c.selector = selectorWithMatchLabelKeys(selector, c.MatchLabelKeys, pod.Labels)
		}
		if c.NodeAffinityPolicy != nil {
			c.honorAffinity = *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
		}
		if c.NodeTaintsPolicy != nil {
			c.honorTaints = *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		}
		all = append(all, c)
	}
	return all, nil
}

// selectorWithMatchLabelKeys adds requirements for the pod's own values of matchLabelKeys.
func selectorWithMatchLabelKeys(selector labels.Selector, keys []string, own map[string]string) labels.Selector {
	same := labels.Set{}
	for _, key := range keys {
		if value, has := own[key]; has {
			same[key] = value
		}
	}
	requirements, selectable := selector.Requirements()
	if len(same) == 0 || !selectable {
		return selector
	}
	return labels.SelectorFromSet(same).Add(requirements...)
}

// SpreadState is the state of PodTopologySpread for one pod. It points at counters of the snapshot, which are kept up to date there.
type SpreadState struct {
	// required constraints filter nodes; preferred ones score them.
	required  []RequiredSpread
	Preferred []preferredSpread
	// requireAllTopologies makes nodes that lack one of the topology keys of the preferred constraints score 0.
	requireAllTopologies bool
}

// RequiredSpread is a constraint with whenUnsatisfiable DoNotSchedule.
type RequiredSpread struct {
	Counter    *snapshot.Counter
	MaxSkew    int32
	minDomains int
	SelfMatch  int32 // 1 when the pod matches the constraint's own selector
}

// preferredSpread is a constraint with whenUnsatisfiable ScheduleAnyway.
type preferredSpread struct {
	counter *snapshot.Counter
	// label is the topology key's own column; for hostnames the counter counts by node.
	label   *snapshot.LabelColumn
	host    bool
	maxSkew int64
}

// State returns the state for a pod.
func (r *podTopologySpread) State(s *snapshot.Snapshot, p *snapshot.PodInfo) (n SpreadState, err error) {
	hard, err := r.constraints(s, p.Pod, corev1.DoNotSchedule)
	if err != nil {
		return n, err
	}
	for i := range hard {
		c := &hard[i]
		limit := RequiredSpread{
			Counter: r.counter(s, p, c, hard),
			MaxSkew: c.MaxSkew, minDomains: 1,
		}
		if c.MinDomains != nil {
			limit.minDomains = int(*c.MinDomains)
		}
		if c.selector.Matches(labels.Set(p.Pod.Labels)) {
			limit.SelfMatch = 1
		}
		n.required = append(n.required, limit)
	}
	soft, err := r.constraints(s, p.Pod, corev1.ScheduleAnyway)
	if err != nil {
		return n, err
	}
	n.requireAllTopologies = len(p.Pod.Spec.TopologySpreadConstraints) > 0 || !r.system
	for i := range soft {
		c := &soft[i]
		preferred := preferredSpread{label: s.LabelColumn(c.TopologyKey), maxSkew: int64(c.MaxSkew)}
		if c.TopologyKey == corev1.LabelHostname {
			preferred.host = true
			preferred.counter = s.CounterFor(snapshot.CounterSpec{Terms: []snapshot.Term{spreadTerm(p.Pod.Namespace, c.selector)}, Column: s.HostColumn, SkipTerminating: true})
		} else {
			var all []constraint
			if n.requireAllTopologies {
				all = soft
			}
			preferred.counter = r.counter(s, p, c, all)
		}
		n.Preferred = append(n.Preferred, preferred)
	}
	return n, nil
}

func spreadTerm(namespace string, selector labels.Selector) snapshot.Term {
	// As in upstream, an empty selector matches nothing in spread constraints.
	if selector.Empty() {
		selector = labels.Nothing()
	}
	return snapshot.NewTerm([]string{namespace}, labels.Nothing(), selector, "")
}

// counter returns the counter of one constraint. Eligible nodes have the topology keys of all constraints and satisfy the constraint's
// node inclusion policies.
func (r *podTopologySpread) counter(s *snapshot.Snapshot, p *snapshot.PodInfo, c *constraint, all []constraint) *snapshot.Counter {
	var columns []*snapshot.LabelColumn
	var keys []string
	for i := range all {
		columns = append(columns, s.LabelColumn(all[i].TopologyKey))
		keys = append(keys, all[i].TopologyKey)
	}
	slices.Sort(keys)
	eligibleKey := strings.Join(keys, ",")
	var selected *snapshot.NodeSelection
	var tolerated *snapshot.TaintMatcher
	if key := p.SelectionKey(); c.honorAffinity && key != "" {
		eligibleKey += "\x00a" + key
		selected = s.RequiredSelection(p.Pod)
	}
	if c.honorTaints {
		eligibleKey += "\x00t" + p.TolerationKey()
		tolerated = &snapshot.TaintMatcher{Snapshot: s, Tolerations: p.Pod.Spec.Tolerations}
	}
	eligible := func(node int32) bool {
		for _, c := range columns {
			if c.ValueOf[node] == snapshot.NoValue {
				return false
			}
		}
		return (selected == nil || selected.Matches(node)) && (tolerated == nil || tolerated.ResultFor(node).Untolerated == nil)
	}
	return s.CounterFor(snapshot.CounterSpec{
		Terms: []snapshot.Term{spreadTerm(p.Pod.Namespace, c.selector)}, Column: s.LabelColumn(c.TopologyKey), SkipTerminating: true,
		EligibleKey: eligibleKey, Eligible: eligible,
	})
}

// DisableFilter drops the state for filtering, for profiles that do not use it.
func (n *SpreadState) DisableFilter() { n.required = nil }

// DisableScore drops the state for scoring.
func (n *SpreadState) DisableScore() { n.Preferred = nil }

// Inactive reports whether there are no constraints.
func (n *SpreadState) Inactive() bool { return len(n.required)+len(n.Preferred) == 0 }

// Check returns the code of the first refusal of a node, or 0.
func (n *SpreadState) Check(node int32) uint8 {
	for i := range n.required {
		if code := n.required[i].Check(node, n.required[i].minMatch()); code != 0 {
			return code
		}
	}
	return 0
}

// Refusals returns the codes of all refusals of a node, each once, where Check returns the first.
func (n *SpreadState) Refusals(node int32) (codes []uint8) {
	for i := range n.required {
		if code := n.required[i].Check(node, n.required[i].minMatch()); code != 0 && !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	return codes
}

// Filter keeps the nodes in list that the required constraints allow, and sets the refusal codes of the others.
func (n *SpreadState) Filter(list []int32, refusals []uint8) []int32 {
	for i := range n.required {
		l := &n.required[i]
		least := l.minMatch()
		kept := list[:0]
		for _, node := range list {
			if code := l.Check(node, least); code != 0 {
				refusals[node] = code
			} else {
				kept = append(kept, node)
			}
		}
		list = kept
	}
	return list
}

// minMatch returns the smallest count of any domain; 0 if there are fewer domains than minDomains.
func (l *RequiredSpread) minMatch() int32 {
	least, domains := l.Counter.MinPods()
	if domains < l.minDomains {
		return 0
	}
	return least
}

// Check returns the code of the refusal of a node, or 0.
func (l *RequiredSpread) Check(node, minMatch int32) uint8 {
	pods, has := snapshot.PodsInDomain(l.Counter.Pods, l.Counter.Column, node)
	if !has {
		return SpreadLabelMissing
	}
	if int64(pods)+int64(l.SelfMatch)-int64(minMatch) > int64(l.MaxSkew) {
		return SpreadSkewExceeded
	}
	return 0
}

// AddScores adds the normalized scores.
func (n *SpreadState) AddScores(s *snapshot.Snapshot, x Scoring) {
	list := x.Nodes
	complete := !n.requireAllTopologies || n.allHaveKeys(list)
	if complete && len(n.Preferred) == 1 && !n.Preferred[0].host {
		n.Preferred[0].addScoresByDomain(s, x, n.requireAllTopologies)
		return
	}
	raw := s.ScratchBuffer(len(list))
	ignored := int64(-1)
	weights := n.domainWeights(s, list, complete)
	least, most := int64(math.MaxInt64), int64(0)
	for i, node := range list {
		if !complete && !n.hasAllKeys(node) {
			raw[i] = ignored
			continue
		}
		var score float64
		for w := range n.Preferred {
			c := &n.Preferred[w]
			domain := c.label.ValueOf[node]
			if domain == snapshot.NoValue {
				continue
			}
			pods, _ := snapshot.PodsInDomain(c.counter.Pods, c.counter.Column, node)
			// For the built-in defaults, a node without the label has the empty value.
			if !n.requireAllTopologies && !c.host && c.label.Values[domain] == "" {
				pods += c.counter.WithoutDomain
			}
			score += float64(pods)*weights[w] + float64(c.maxSkew-1)
		}
		raw[i] = int64(math.Round(score))
		least, most = min(least, raw[i]), max(most, raw[i])
	}
	recorded := x.Record.ByNode(len(s.NodeInfos))
	for i, node := range list {
		var score int64
		if raw[i] != ignored {
			score = spreadScore(raw[i], least, most)
		}
		x.Totals[i] += x.Weight * score
		if recorded != nil {
			recorded[node] = uint8(score)
		}
	}
}

// addScoresByDomain is AddScores for a single constraint: all nodes of a domain have the same score, which is computed once.
func (w *preferredSpread) addScoresByDomain(s *snapshot.Snapshot, x Scoring, allTopologies bool) {
	list := x.Nodes
	values := w.label.ValueOf
	unlabelled := len(w.label.Values) // index for nodes without the label
	seen := s.FlagBuffer(unlabelled + 1)
	for _, node := range list {
		domain := int(values[node])
		if domain < 0 {
			domain = unlabelled
		}
		seen[domain] = true
	}
	size := 0
	for domain := range seen {
		if seen[domain] && (domain < unlabelled || !allTopologies) {
			size++
		}
	}
	weight := math.Log(float64(size + 2))
	raw := s.ScratchBuffer(unlabelled + 1)
	least, most := int64(math.MaxInt64), int64(0)
	for domain := range seen {
		if !seen[domain] {
			continue
		}
		raw[domain] = 0
		if domain < unlabelled {
			var pods int32
			if domain < len(w.counter.Pods) {
				pods = w.counter.Pods[domain]
			}
			raw[domain] = int64(math.Round(float64(pods)*weight + float64(w.maxSkew-1)))
		}
		least, most = min(least, raw[domain]), max(most, raw[domain])
	}
	for domain := range seen {
		if seen[domain] {
			raw[domain] = spreadScore(raw[domain], least, most)
		}
	}
	for i, node := range list {
		domain := int(values[node])
		if domain < 0 {
			domain = unlabelled
		}
		x.Totals[i] += x.Weight * raw[domain]
	}
	x.Record.byDomain(w.label, raw)
}

// spreadScore normalizes a raw score: lower is better.
func spreadScore(raw, least, most int64) int64 {
	if most == 0 {
		return MaxScore
	}
	return MaxScore * (most + least - raw) / most
}

func (n *SpreadState) hasAllKeys(node int32) bool {
	for i := range n.Preferred {
		if n.Preferred[i].label.ValueOf[node] == snapshot.NoValue {
			return false
		}
	}
	return true
}

// allHaveKeys reports whether all nodes in list have the topology keys of all preferred constraints.
func (n *SpreadState) allHaveKeys(list []int32) bool {
	for i := range n.Preferred {
		of := n.Preferred[i].label.ValueOf
		for _, node := range list {
			if of[node] == snapshot.NoValue {
				return false
			}
		}
	}
	return true
}

// domainWeights returns upstream's normalizing weight of each constraint, which grows with the number of domains.
func (n *SpreadState) domainWeights(s *snapshot.Snapshot, list []int32, complete bool) []float64 {
	weights := make([]float64, len(n.Preferred))
	eligible := len(list)
	if !complete {
		eligible = 0
		for _, node := range list {
			if n.hasAllKeys(node) {
				eligible++
			}
		}
	}
	for w := range n.Preferred {
		size := eligible
		if !n.Preferred[w].host {
			size = n.countDomains(s, list, n.Preferred[w].label, complete)
		}
		weights[w] = math.Log(float64(size + 2))
	}
	return weights
}

// countDomains returns the number of domains of the nodes in list. Nodes without the label are in the domain of the empty value.
func (n *SpreadState) countDomains(s *snapshot.Snapshot, list []int32, column *snapshot.LabelColumn, complete bool) int {
	seen := s.FlagBuffer(len(column.Values) + 1)
	unlabelled := int32(len(column.Values))
	if empty, known := column.ValueNumbers[""]; known {
		unlabelled = empty
	}
	domains := 0
	for _, node := range list {
		domain := column.ValueOf[node]
		if domain == snapshot.NoValue {
			if n.requireAllTopologies {
				continue
			}
			domain = unlabelled
		} else if !complete && !n.hasAllKeys(node) {
			continue
		}
		if !seen[domain] {
			seen[domain] = true
			domains++
		}
	}
	return domains
}

func (r *podTopologySpread) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: AssignedPod, Action: Add | UpdatePodLabel | Delete, Helps: r.podHelps},
		{Resource: TargetPod, Action: UpdatePodToleration | UpdatePodLabel, Helps: r.targetHelps},
		{Resource: NodeResource, Action: Add | Delete | UpdateNodeLabel | UpdateNodeTaint, Helps: r.nodeHelps},
	}
}

func (r *podTopologySpread) podHelps(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asPod(old), asPod(now)
	for _, other := range []*corev1.Pod{before, after} {
		if other != nil && (!occupiesNode(other) || other.Namespace != pod.Namespace) {
			return false
		}
	}
	hard, err := r.constraints(s, pod, corev1.DoNotSchedule)
	if err != nil {
		return true
	}
	matches := func(p *corev1.Pod, c *constraint) bool { return p != nil && c.selector.Matches(labels.Set(p.Labels)) }
	for i := range hard {
		if matches(before, &hard[i]) != matches(after, &hard[i]) {
			return true
		}
	}
	return false
}

func (r *podTopologySpread) targetHelps(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asPod(old), asPod(now)
	hard, err := r.constraints(s, pod, corev1.DoNotSchedule)
	if err != nil {
		return true
	}
	for i := range hard {
		if hard[i].honorTaints && !equality.Semantic.DeepEqual(before.Spec.Tolerations, after.Spec.Tolerations) {
			return true
		}
		if hard[i].selector.Matches(labels.Set(before.Labels)) != hard[i].selector.Matches(labels.Set(after.Labels)) {
			return true
		}
	}
	return false
}

func (r *podTopologySpread) nodeHelps(s *snapshot.Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asNode(old), asNode(now)
	hard, err := r.constraints(s, pod, corev1.DoNotSchedule)
	if err != nil {
		return true
	}
	hasKeys := func(n *corev1.Node) bool {
		return n != nil && !slices.ContainsFunc(hard, func(c constraint) bool { _, has := n.Labels[c.TopologyKey]; return !has })
	}
	was, is := hasKeys(before), hasKeys(after)
	if was != is || !is {
		return was || is
	}
	return !slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, snapshot.SameTaint) ||
		slices.ContainsFunc(hard, func(c constraint) bool { return before.Labels[c.TopologyKey] != after.Labels[c.TopologyKey] })
}
