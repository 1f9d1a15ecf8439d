package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// extenderName stands for extenders among the plugins that rejected a pod.
const extenderName = "Extender"

const defaultExtenderTimeout = 5 * time.Second

// extender is an HTTP client of a scheduler extender.
type extender struct {
	config *configv1.Extender
	client *http.Client
}

func newExtender(config *configv1.Extender) (*extender, error) {
	var transport rest.Config
	if t := config.TLSConfig; t != nil {
		transport.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if config.EnableHTTPS && transport.CAFile == "" && len(transport.CAData) == 0 {
		transport.Insecure = true
	}
	tlsConfig, err := rest.TLSConfigFor(&transport)
	if err != nil {
		return nil, fmt.Errorf("tlsConfig: %w", err)
	}
	timeout := config.HTTPTimeout.Duration
	if timeout == 0 {
		timeout = defaultExtenderTimeout
	}
	return &extender{config: config, client: &http.Client{
		Timeout: timeout, Transport: utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tlsConfig}),
	}}, nil
}

// interested reports whether the extender is called for a pod.
func (e *extender) interested(pod *corev1.Pod) bool {
	if len(e.config.ManagedResources) == 0 {
		return true
	}
	manages := func(list corev1.ResourceList) bool {
		for name := range list {
			if slices.ContainsFunc(e.config.ManagedResources, func(r configv1.ExtenderManagedResource) bool { return r.Name == string(name) }) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return manages(c.Resources.Requests) || manages(c.Resources.Limits)
	})
}

func (e *extender) send(ctx context.Context, verb string, arguments, result any) error {
	body, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, response.StatusCode)
	}
	return json.NewDecoder(response.Body).Decode(result)
}

func (e *extender) arguments(pod *corev1.Pod, nodes []*corev1.Node) *extenderv1.ExtenderArgs {
	a := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		a.NodeNames = &names
		return a
	}
	a.Nodes = &corev1.NodeList{}
	for _, n := range nodes {
		a.Nodes.Items = append(a.Nodes.Items, *n)
	}
	return a
}

// filter returns the nodes the extender accepts for a pod, and the refusals of the others by node name.
func (e *extender) filter(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) ([]*corev1.Node, map[string]*plugins.Refusal, error) {
	if e.config.FilterVerb == "" {
		return nodes, nil, nil
	}
	var result extenderv1.ExtenderFilterResult
	if err := e.send(ctx, e.config.FilterVerb, e.arguments(pod, nodes), &result); err != nil {
		return nil, nil, err
	}
	if result.Error != "" {
		return nil, nil, errors.New(result.Error)
	}
	var names []string
	switch {
	case e.config.NodeCacheCapable && result.NodeNames != nil:
		names = *result.NodeNames
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			names = append(names, result.Nodes.Items[i].Name)
		}
	}
	var kept []*corev1.Node
	for _, name := range names {
		i := slices.IndexFunc(nodes, func(n *corev1.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", e.config.URLPrefix, name)
		}
		kept = append(kept, nodes[i])
	}
	refusals := map[string]*plugins.Refusal{}
	for name, reason := range result.FailedNodes {
		refusals[name] = plugins.Refuse(extenderName, false, reason)
	}
	for name, reason := range result.FailedAndUnresolvableNodes {
		refusals[name] = plugins.Refuse(extenderName, true, reason)
	}
	return kept, refusals, nil
}

// scores returns what the extender adds to the nodes' totals.
func (e *extender) scores(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]int64, error) {
	if e.config.PrioritizeVerb == "" {
		return nil, nil
	}
	var result extenderv1.HostPriorityList
	if err := e.send(ctx, e.config.PrioritizeVerb, e.arguments(pod, nodes), &result); err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for _, h := range result {
		all[h.Host] += h.Score * e.config.Weight * (plugins.MaxScore / extenderv1.MaxExtenderPriority)
	}
	return all, nil
}

// preempt lets the extender narrow the candidates for preemption. It may name other victims too: any pods of the nodes, as podsOn
// returns them.
func (e *extender) preempt(ctx context.Context, pod *corev1.Pod, candidates []plugins.Preemption, podsOn func(node string) ([]*corev1.Pod, bool)) ([]plugins.Preemption, error) {
	arguments := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		arguments.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
		for _, c := range candidates {
			victims := &extenderv1.MetaVictims{NumPDBViolations: int64(c.Violations)}
			for _, v := range c.Victims {
				victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: string(v.UID)})
			}
			arguments.NodeNameToMetaVictims[c.Node] = victims
		}
	} else {
		arguments.NodeNameToVictims = map[string]*extenderv1.Victims{}
		for _, c := range candidates {
			arguments.NodeNameToVictims[c.Node] = &extenderv1.Victims{Pods: c.Victims, NumPDBViolations: int64(c.Violations)}
		}
	}
	var result extenderv1.ExtenderPreemptionResult
	if err := e.send(ctx, e.config.PreemptVerb, arguments, &result); err != nil {
		return nil, err
	}
	var kept []plugins.Preemption
	for _, node := range slices.Sorted(maps.Keys(result.NodeNameToMetaVictims)) {
		pods, known := podsOn(node)
		// The node and the victims of the request may have been deleted meanwhile. They are still a valid response.
		if i := slices.IndexFunc(candidates, func(c plugins.Preemption) bool { return c.Node == node }); i >= 0 {
			pods, known = slices.Concat(candidates[i].Victims, pods), true
		}
		if !known {
			return nil, fmt.Errorf("nodeinfo not found for node name %q", node)
		}
		meta := result.NodeNameToMetaVictims[node]
		if meta == nil || len(meta.Pods) == 0 {
			if e.config.Ignorable {
				continue
			}
			return nil, fmt.Errorf("expected at least one victim pod on node %q", node)
		}
		preemption := plugins.Preemption{Node: node, Violations: int(meta.NumPDBViolations)}
		for _, m := range meta.Pods {
			i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == m.UID })
			if i < 0 {
				return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node", e.config.URLPrefix, m.UID, node)
			}
			preemption.Victims = append(preemption.Victims, pods[i])
		}
		slices.SortStableFunc(preemption.Victims, plugins.ByImportance)
		kept = append(kept, preemption)
	}
	return kept, nil
}

// bind lets the extender write the binding.
func (e *extender) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	var result extenderv1.ExtenderBindingResult
	arguments := &extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}
	if err := e.send(ctx, e.config.BindVerb, arguments, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

// extendersFor are the extenders that filter or score nodes for a pod.
func (s *Scheduler) extendersFor(pod *corev1.Pod) (interested []*extender) {
	for _, e := range s.extenders {
		if e.interested(pod) {
			interested = append(interested, e)
		}
	}
	return interested
}

// extend lets extenders filter and score the feasible nodes, and calls then with the result. The caller holds s.mu, and so does the
// caller of then. Extenders are called in between, after the locked section, so the chosen node is checked once more.
func (s *Scheduler) extend(ctx context.Context, extenders []*extender, d *decision.Decision, then func(error)) {
	if len(extenders) == 0 {
		then(nil)
		return
	}
	nodes, totals := s.extenderCandidates(d)
	s.afterUnlock(func() {
		left, refusals, err := filterByExtenders(ctx, extenders, d.Pod.Pod, nodes)
		if err == nil && len(left) > 1 {
			s.scoreByExtenders(ctx, extenders, d.Pod.Pod, left, totals)
		}
		s.locked(func() {
			switch {
			case d.Nominated && (err != nil || len(left) != 1 || s.takeBest(d, left, nil) != nil):
				s.extendWithoutNominated(ctx, extenders, d, then)
			case d.Nominated:
				then(nil)
			case err != nil:
				then(err)
			case len(left) == 0:
				then(s.refusedByExtenders(d, refusals))
			default:
				then(s.takeBest(d, left, totals))
			}
		})
	})
}

// extendWithoutNominated decides again after extenders rejected the node the pod is nominated to. The caller holds s.mu.
func (s *Scheduler) extendWithoutNominated(ctx context.Context, extenders []*extender, d *decision.Decision, then func(error)) {
	again, err := decision.Decide(s.snapshot, d.Pod, d.Profile, false)
	if *d = *again; err != nil {
		then(err)
		return
	}
	s.extend(ctx, extenders, d, then)
}

// extenderCandidates are the nodes that extenders choose from, with their scores: the nominated node, if it was chosen, or all feasible
// nodes. The caller holds s.mu.
func (s *Scheduler) extenderCandidates(d *decision.Decision) (nodes []*corev1.Node, totals map[string]int64) {
	if d.Nominated {
		return []*corev1.Node{s.snapshot.NodeInfos[d.NodeNumber].Node}, nil
	}
	totals = map[string]int64{}
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		if v.Refusal == nil {
			totals[v.Node] = v.Total
			nodes = append(nodes, s.snapshot.NodeInfos[s.snapshot.NodeNumbers[v.Node]].Node)
		}
	}
	return nodes, totals
}

// filterByExtenders returns the nodes that all extenders accept, and the refusals of the others by node name.
func filterByExtenders(ctx context.Context, extenders []*extender, pod *corev1.Pod, nodes []*corev1.Node) ([]*corev1.Node, map[string]*plugins.Refusal, error) {
	all := map[string]*plugins.Refusal{}
	for _, e := range extenders {
		if len(nodes) == 0 {
			break
		}
		kept, refusals, err := e.filter(ctx, pod, nodes)
		if err != nil {
			if e.config.Ignorable {
				continue
			}
			return nil, nil, err
		}
		nodes = kept
		for name, r := range refusals {
			all[name] = r
		}
	}
	return nodes, all, nil
}

// scoreByExtenders adds the scores of extenders to the totals. An extender that fails adds nothing.
func (s *Scheduler) scoreByExtenders(ctx context.Context, extenders []*extender, pod *corev1.Pod, nodes []*corev1.Node, totals map[string]int64) {
	for _, e := range extenders {
		scores, err := e.scores(ctx, pod, nodes)
		if err != nil {
			s.log.Warn("failed to get scores from extender", "extender", e.config.URLPrefix, "pod", snapshot.ObjectKey(pod), "error", err)
			continue
		}
		for name, score := range scores {
			totals[name] += score
		}
	}
}

// refusedByExtenders adds the extenders' refusals to those of the plugins.
func (s *Scheduler) refusedByExtenders(d *decision.Decision, refusals map[string]*plugins.Refusal) error {
	if d.Overrides == nil {
		d.Overrides = map[int32]*plugins.Refusal{}
	}
	for name, r := range refusals {
		if node, ok := s.snapshot.NodeNumbers[name]; ok {
			d.Overrides[node] = r
			if d.Limited != nil {
				d.Limited[node] = r
			}
		}
	}
	d.Node, d.NodeNumber, d.Feasible = "", snapshot.NoValue, 0
	e := d.FitError()
	if !slices.Contains(e.Plugins, extenderName) {
		e.Plugins = append(e.Plugins, extenderName)
	}
	return e
}

// takeBest chooses the node with the highest total among those that still fit the pod. The caller holds s.mu.
func (s *Scheduler) takeBest(d *decision.Decision, nodes []*corev1.Node, totals map[string]int64) error {
	topo, err := decision.TopologyFor(s.snapshot, d.Pod, d.Profile)
	if err != nil {
		return err
	}
	d.SkipAffinity = topo.Affinity.FiltersNothing()
	slices.SortStableFunc(nodes, func(a, b *corev1.Node) int { return int(totals[b.Name] - totals[a.Name]) })
	for _, n := range nodes {
		number, ok := s.snapshot.NodeNumbers[n.Name]
		if ok && s.snapshot.NodeInfos[number].Node != nil && d.CheckWithNominated(topo, number) == nil {
			d.Node, d.NodeNumber, d.Feasible = n.Name, number, len(nodes)
			return nil
		}
	}
	return errors.New("the cluster changed while extenders were called")
}

// review lets extenders narrow the candidates for preemption. The caller does not hold s.mu.
func (s *Scheduler) review(ctx context.Context, reviewers []*extender, pod *corev1.Pod, candidates []plugins.Preemption) ([]plugins.Preemption, error) {
	for _, e := range reviewers {
		if len(candidates) == 0 {
			break
		}
		kept, err := e.preempt(ctx, pod, candidates, s.podsOn)
		if err != nil {
			if e.config.Ignorable {
				continue
			}
			return nil, err
		}
		candidates = kept
	}
	return candidates, nil
}

// podsOn are the pods of a node, if the node exists.
func (s *Scheduler) podsOn(name string) (pods []*corev1.Pod, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number, known := s.snapshot.NodeNumbers[name]
	if !known || s.snapshot.NodeInfos[number].Node == nil {
		return nil, false
	}
	for _, p := range s.snapshot.NodeInfos[number].Pods {
		pods = append(pods, p.Info.Pod)
	}
	return pods, true
}

// bindWithExtender lets the first extender that binds pods of this kind bind the pod. It reports false if none did.
func (s *Scheduler) bindWithExtender(ctx context.Context, pod *corev1.Pod, node string) (handled bool, err error) {
	for _, e := range s.extenders {
		if e.config.BindVerb == "" || !e.interested(pod) {
			continue
		}
		if err := e.bind(ctx, pod, node); err == nil || !e.config.Ignorable {
			return true, err
		}
	}
	return false, nil
}
