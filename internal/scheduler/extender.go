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

	"skiff/internal/scheduler/plugins"
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
