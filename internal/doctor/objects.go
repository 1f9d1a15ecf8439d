package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"skiff/internal/api/apiregistration"
	"skiff/internal/client"
	"skiff/internal/podstate"
)

// systemPod is a pod of the cluster itself that does not run.
type systemPod struct {
	name, reason string
	since        time.Time
}

// systemPods is those that do not run.
type systemPods struct {
	now  time.Time
	pods []systemPod
}

// podGrace is how long a pod may take to start.
const podGrace = 5 * time.Minute

func (c Cluster) readSystemPods(ctx context.Context) (systemPods, error) {
	s := systemPods{now: time.Now()}
	err := client.For[*corev1.Pod](c.Client).EachPage(ctx, metav1.NamespaceSystem, client.Selector{}, pageSize, func(page []*corev1.Pod) error {
		for _, pod := range page {
			if one, ok := newSystemPod(pod); ok {
				s.pods = append(s.pods, one)
			}
		}
		return nil
	})
	return s, err
}

// newSystemPod describes a pod that should run and does not.
func newSystemPod(pod *corev1.Pod) (p systemPod, ok bool) {
	if !podstate.IsActive(pod) || podstate.IsReady(pod) {
		return p, false
	}
	p = systemPod{name: pod.Name, reason: cmp.Or(pod.Status.Reason, string(pod.Status.Phase)), since: pod.CreationTimestamp.Time}
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.PodScheduled} {
		condition := podstate.Condition(pod, kind)
		if condition == nil || condition.Status == corev1.ConditionTrue {
			continue
		}
		p.since = condition.LastTransitionTime.Time
		if kind == corev1.PodScheduled {
			p.reason = cmp.Or(condition.Reason, p.reason)
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating" {
			p.reason = waiting.Reason
			break
		}
	}
	return p, true
}

func decideSystemPods(s systemPods) []Finding {
	var failing []string
	oldest := s.now
	for _, p := range s.pods {
		isLooping := p.reason == "CrashLoopBackOff"
		if !isLooping && s.now.Sub(p.since) < podGrace {
			continue
		}
		failing = append(failing, p.name+" ("+p.reason+")")
		if p.since.Before(oldest) {
			oldest = p.since
		}
	}
	if len(failing) == 0 {
		return nil
	}
	return []Finding{{
		Severity: Error, Problem: fmt.Sprintf("%s of kube-system not running: %s", plural(len(failing), "pod"), some(failing)), Breaks: "what they do for the cluster, such as its network, storage or metrics",
		When: "since " + timeText(oldest), Fix: "kubectl -n kube-system describe pod NAME, and logs --previous",
	}}
}

// apiService is an aggregated API that is not available.
type apiService struct {
	name, reason, message string
	since                 time.Time
}

func (c Cluster) readAPIServices(ctx context.Context) (all []apiService, err error) {
	err = client.For[*apiregistrationv1.APIService](c.Client).EachPage(ctx, "", client.Selector{}, pageSize, func(page []*apiregistrationv1.APIService) error {
		for _, s := range page {
			available := apiregistration.Condition(&s.Status, apiregistrationv1.Available)
			if available != nil && available.Status != apiregistrationv1.ConditionTrue {
				all = append(all, apiService{s.Name, available.Reason, available.Message, available.LastTransitionTime.Time})
			}
		}
		return nil
	})
	return all, err
}

func decideAPIServices(all []apiService) (findings []Finding) {
	if len(all) == 0 {
		return nil
	}
	var names []string
	oldest := all[0]
	for _, s := range all {
		names = append(names, fmt.Sprintf("%s (%s)", s.name, s.reason))
		if s.since.Before(oldest.since) {
			oldest = s
		}
	}
	return []Finding{{
		Severity: Error, Problem: fmt.Sprintf("%s not available: %s; %s", plural(len(all), "APIService"), some(names), oldest.message),
		Breaks: "requests to these APIs fail; namespaces cannot be deleted, and the garbage collector and quotas do not see their objects", When: "since " + timeText(oldest.since),
		Fix: "repair the Service behind it (kubectl describe apiservice NAME), or delete the APIService if what it was for is gone",
	}}
}

// decideDeprecated is about versions of APIs that were requested since the servers were started, and are going to be removed.
func decideDeprecated(s survey) (findings []Finding) {
	byRelease := map[string][]string{}
	for _, one := range s.responding() {
		for _, call := range one.samples(metricDeprecatedCalls) {
			release := call.labels["removed_release"]
			name := call.labels["resource"]
			if subresource := call.labels["subresource"]; subresource != "" {
				name += "/" + subresource
			}
			if group := call.labels["group"]; group != "" {
				name += "." + group
			}
			name += " " + call.labels["version"]
			if call.value > 0 && release != "" && !slices.Contains(byRelease[release], name) {
				byRelease[release] = append(byRelease[release], name)
			}
		}
	}
	releases := make([]string, 0, len(byRelease))
	for release := range byRelease {
		releases = append(releases, release)
	}
	slices.SortFunc(releases, compareReleases)
	for _, release := range releases {
		names := byRelease[release]
		slices.Sort(names)
		findings = append(findings, Finding{
			Severity: Warning, Problem: "clients request versions of APIs that are going to be removed: " + some(names), Breaks: "these clients", When: "with the upgrade to " + release,
			Fix: "update the clients; the audit log names them (annotation k8s.io/deprecated)",
		})
	}
	return findings
}

// compareReleases orders releases such as 1.9 and 1.10.
func compareReleases(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}
