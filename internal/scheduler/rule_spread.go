package scheduler

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

const podTopologySpreadName = "PodTopologySpread"

// podTopologySpread keeps pods that belong together apart: evenly over zones, hosts, or whatever label divides the nodes.
type podTopologySpread struct {
	defaults []corev1.TopologySpreadConstraint
	// system marks the built-in defaults, which do not mind nodes without the labels.
	system bool
}

// systemSpread is what pods of a service or a controller get when nobody says otherwise.
var systemSpread = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

func newPodTopologySpread(args *configv1.PodTopologySpreadArgs) Rule {
	if args.DefaultingType == configv1.ListDefaulting {
		return &podTopologySpread{defaults: args.DefaultConstraints}
	}
	return &podTopologySpread{defaults: systemSpread, system: true}
}

func (*podTopologySpread) Name() string { return podTopologySpreadName }

// constraint is one of a pod's constraints, read.
type constraint struct {
	*corev1.TopologySpreadConstraint
	selector      labels.Selector
	honorAffinity bool
	honorTaints   bool
}

// constraints reads those of a pod's constraints that must hold, or should; or the defaults, when the pod has none of its own.
func (r *podTopologySpread) constraints(s *Snapshot, pod *corev1.Pod, action corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
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
				common = s.ownerSelector(pod)
			}
			// A pod nobody else looks like has nothing to be spread with.
			if common.Empty() {
				return nil, nil
			}
			c.selector = common
		} else {
			selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
			if err != nil {
				return nil, err
			}
			c.selector = withMatchLabelKeys(selector, c.MatchLabelKeys, pod.Labels)
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

// withMatchLabelKeys narrows a selector to pods that have the same values of some labels as the pod itself.
func withMatchLabelKeys(selector labels.Selector, keys []string, own map[string]string) labels.Selector {
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

func (r *podTopologySpread) read(s *Snapshot, p *PodInfo, n *neighbourhood) error {
	hard, err := r.constraints(s, p.Pod, corev1.DoNotSchedule)
	if err != nil {
		return err
	}
	for i := range hard {
		c := &hard[i]
		limit := spreadLimit{
			counter: r.counter(s, p, c, hard, s.column(c.TopologyKey)),
			maxSkew: c.MaxSkew, minDomains: 1,
		}
		if c.MinDomains != nil {
			limit.minDomains = int(*c.MinDomains)
		}
		if c.selector.Matches(labels.Set(p.Pod.Labels)) {
			limit.self = 1
		}
		n.hard = append(n.hard, limit)
	}
	soft, err := r.constraints(s, p.Pod, corev1.ScheduleAnyway)
	if err != nil {
		return err
	}
	n.whole = len(p.Pod.Spec.TopologySpreadConstraints) > 0 || !r.system
	for i := range soft {
		c := &soft[i]
		wish := spreadWish{label: s.column(c.TopologyKey), maxSkew: int64(c.MaxSkew)}
		if c.TopologyKey == corev1.LabelHostname {
			wish.host = true
			wish.counter = s.counterFor([]term{podTerm(p.Pod.Namespace, c.selector)}, s.identity, true, "", nil)
		} else {
			var required []constraint
			if n.whole {
				required = soft
			}
			wish.counter = r.counter(s, p, c, required, wish.label)
		}
		n.soft = append(n.soft, wish)
	}
	return nil
}

func podTerm(namespace string, selector labels.Selector) term {
	// An empty selector matches nothing here: spreading speaks of pods that are named.
	if selector.Empty() {
		selector = labels.Nothing()
	}
	return newTerm([]string{namespace}, labels.Nothing(), selector, "")
}

// counter returns the count of one constraint's pods. Only nodes that have all topology keys count, and that the pod may go to, if
// the constraint says so.
func (r *podTopologySpread) counter(s *Snapshot, p *PodInfo, c *constraint, all []constraint, column *labelColumn) *counter {
	var columns []*labelColumn
	var keys []string
	for i := range all {
		columns = append(columns, s.column(all[i].TopologyKey))
		keys = append(keys, all[i].TopologyKey)
	}
	slices.Sort(keys)
	eligibleKey := strings.Join(keys, ",")
	var selected *nodeSelection
	var tolerated *tolerance
	if key := p.selectionKey(); c.honorAffinity && key != "" {
		eligibleKey += "\x00a" + key
		selected = s.requiredSelection(p.Pod)
	}
	if c.honorTaints {
		eligibleKey += "\x00t" + p.tolerationKey()
		tolerated = &tolerance{snapshot: s, tolerations: p.Pod.Spec.Tolerations}
	}
	eligible := func(node int32) bool {
		for _, c := range columns {
			if c.of[node] == none {
				return false
			}
		}
		return (selected == nil || selected.matches(node)) && (tolerated == nil || tolerated.of(node).refused == nil)
	}
	return s.counterFor([]term{podTerm(p.Pod.Namespace, c.selector)}, column, true, eligibleKey, eligible)
}

// spreadScores adds what spreading says of the nodes in list to totals, and writes it to the record, if there is one.
func (n *neighbourhood) spreadScores(s *Snapshot, list []int32, totals []int64, record *besideScores, weight int64) {
	complete := !n.whole || n.complete(list)
	if complete && len(n.soft) == 1 && !n.soft[0].host {
		n.soft[0].scoresByDomain(s, list, totals, record, weight, n.whole)
		return
	}
	raw := s.scratch(len(list))
	ignored := int64(-1)
	heavy := n.domainWeights(s, list, complete)
	least, most := int64(math.MaxInt64), int64(0)
	for i, node := range list {
		if !complete && !n.hasAllKeys(node) {
			raw[i] = ignored
			continue
		}
		var score float64
		for w := range n.soft {
			wish := &n.soft[w]
			domain := wish.label.of[node]
			if domain == none {
				continue
			}
			pods, _ := at(wish.counter.pods, wish.counter.column, node)
			// To the built-in defaults a node without the label is one with the empty value.
			if !n.whole && !wish.host && wish.label.values[domain] == "" {
				pods += wish.counter.outside
			}
			score += float64(pods)*heavy[w] + float64(wish.maxSkew-1)
		}
		raw[i] = int64(math.Round(score))
		least, most = min(least, raw[i]), max(most, raw[i])
	}
	kept := record.byNode(len(s.nodes))
	for i, node := range list {
		var score int64
		if raw[i] != ignored {
			score = spreadScore(raw[i], least, most)
		}
		totals[i] += weight * score
		if kept != nil {
			kept[node] = uint8(score)
		}
	}
}

// scoresByDomain is spreadScores for one wish: all nodes of a domain have the same score, which is found once.
func (w *spreadWish) scoresByDomain(s *Snapshot, list []int32, totals []int64, record *besideScores, weight int64, whole bool) {
	of := w.label.of
	outside := len(w.label.values) // where nodes without the label are
	seen := s.marks(outside + 1)
	for _, node := range list {
		domain := int(of[node])
		if domain < 0 {
			domain = outside
		}
		seen[domain] = true
	}
	size := 0
	for domain := range seen {
		if seen[domain] && (domain < outside || !whole) {
			size++
		}
	}
	heavy := math.Log(float64(size + 2))
	raw := s.scratch(outside + 1)
	least, most := int64(math.MaxInt64), int64(0)
	for domain := range seen {
		if !seen[domain] {
			continue
		}
		raw[domain] = 0
		if domain < outside {
			var pods int32
			if domain < len(w.counter.pods) {
				pods = w.counter.pods[domain]
			}
			raw[domain] = int64(math.Round(float64(pods)*heavy + float64(w.maxSkew-1)))
		}
		least, most = min(least, raw[domain]), max(most, raw[domain])
	}
	for domain := range seen {
		if seen[domain] {
			raw[domain] = spreadScore(raw[domain], least, most)
		}
	}
	for i, node := range list {
		domain := int(of[node])
		if domain < 0 {
			domain = outside
		}
		totals[i] += weight * raw[domain]
	}
	record.byDomain(w.label, raw)
}

// spreadScore brings a number into the range of scores: the fewer the better.
func spreadScore(raw, least, most int64) int64 {
	if most == 0 {
		return MaxScore
	}
	return MaxScore * (most + least - raw) / most
}

func (n *neighbourhood) hasAllKeys(node int32) bool {
	for i := range n.soft {
		if n.soft[i].label.of[node] == none {
			return false
		}
	}
	return true
}

// complete reports whether all nodes in list have all keys, as they mostly do.
func (n *neighbourhood) complete(list []int32) bool {
	for i := range n.soft {
		of := n.soft[i].label.of
		for _, node := range list {
			if of[node] == none {
				return false
			}
		}
	}
	return true
}

// domainWeights make pods in few large domains count as much as pods in many small ones.
func (n *neighbourhood) domainWeights(s *Snapshot, list []int32, complete bool) []float64 {
	weights := make([]float64, len(n.soft))
	counting := len(list)
	if !complete {
		counting = 0
		for _, node := range list {
			if n.hasAllKeys(node) {
				counting++
			}
		}
	}
	for w := range n.soft {
		size := counting
		if !n.soft[w].host {
			size = n.distinct(s, list, n.soft[w].label, complete)
		}
		weights[w] = math.Log(float64(size + 2))
	}
	return weights
}

// distinct counts the domains the nodes in list are in. Nodes without the label are one more, unless some have it with no value.
func (n *neighbourhood) distinct(s *Snapshot, list []int32, column *labelColumn, complete bool) int {
	seen := s.marks(len(column.values) + 1)
	unlabelled := int32(len(column.values))
	if empty, known := column.number[""]; known {
		unlabelled = empty
	}
	found := 0
	for _, node := range list {
		domain := column.of[node]
		if domain == none {
			if n.whole {
				continue
			}
			domain = unlabelled
		} else if !complete && !n.hasAllKeys(node) {
			continue
		}
		if !seen[domain] {
			seen[domain] = true
			found++
		}
	}
	return found
}

func (r *podTopologySpread) Hints() []Hint {
	return []Hint{
		{Resource: AssignedPod, Action: Add | UpdatePodLabel | Delete, Helps: r.podHelps},
		{Resource: TargetPod, Action: UpdatePodToleration | UpdatePodLabel, Helps: r.targetHelps},
		{Resource: NodeResource, Action: Add | Delete | UpdateNodeLabel | UpdateNodeTaint, Helps: r.nodeHelps},
	}
}

func (r *podTopologySpread) podHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
	before, after := asPod(old), asPod(now)
	for _, other := range []*corev1.Pod{before, after} {
		if other != nil && (!hasPlace(other) || other.Namespace != pod.Namespace) {
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

func (r *podTopologySpread) targetHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
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

func (r *podTopologySpread) nodeHelps(s *Snapshot, pod *corev1.Pod, old, now any) bool {
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
	return !slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, sameTaint) ||
		slices.ContainsFunc(hard, func(c constraint) bool { return before.Labels[c.TopologyKey] != after.Labels[c.TopologyKey] })
}
