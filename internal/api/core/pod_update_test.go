package core

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

const otherFields = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"

func TestPodUpdate(t *testing.T) {
	base := testPod(podSpec(`
activeDeadlineSeconds: 100
tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]
containers: [{name: web, image: "nginx:1", securityContext: {appArmorProfile: {type: Unconfined}}}]
initContainers: [{name: in, image: "i:1"}]`))
	base.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/web": "unconfined", "mine": "x"}
	annotations := func(set func(map[string]string)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { set(p.Annotations) }
	}
	kindtest.Validations(t, Pod, base, []kindtest.Case[*corev1.Pod]{
		{Name: "nothing", Update: true},
		{Name: "images", Update: true, Change: func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.InitContainers[0].Image = "nginx:2", "i:2"
		}},
		{Name: "no image", Update: true, Change: func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" }, Want: []string{"spec.containers[0].image: Required value"}},
		{Name: "a padded image", Update: true, Change: func(p *corev1.Pod) { p.Spec.Containers[0].Image = " x" }, Want: []string{"spec.containers[0].image: Invalid value: \" x\": must not have leading"}},
		{Name: "a nearer deadline", Update: true, Change: podSpec(`activeDeadlineSeconds: 50`)},
		{Name: "a farther deadline", Update: true, Change: podSpec(`activeDeadlineSeconds: 200`), Want: []string{"spec.activeDeadlineSeconds: Invalid value: 200: must be less than or equal to previous value"}},
		{Name: "no deadline", Update: true, Change: func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }, Want: []string{"spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"}},
		{Name: "one more toleration", Update: true, Change: func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
			p.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](9)
		}},
		{Name: "one toleration less", Update: true, Change: podSpec(`tolerations: []`), Want: []string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
		{Name: "one container more", Update: true, Change: podSpec(`containers: [{name: web, image: i}, {name: b, image: i}]`), Want: []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{Name: "one init container less", Update: true, Change: podSpec(`initContainers: []`), Want: []string{"spec.initContainers: Forbidden: pod updates may not add or remove containers"}},
		{Name: "a gate", Update: true, Change: podSpec(`schedulingGates: [{name: g}]`), Want: []string{"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"}},
		{Name: "another node", Update: true, Change: podSpec(`nodeName: node`), Want: []string{otherFields}},
		{Name: "another selector", Update: true, Change: podSpec(`nodeSelector: {a: b}`), Want: []string{otherFields}},
		{Name: "other resources", Update: true, Change: func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = resourceList("cpu", "1") }, Want: []string{otherFields}},
		{Name: "its own annotation", Update: true, Change: annotations(func(a map[string]string) { a["mine"] = "y"; a["other"] = "z" })},
		{Name: "an AppArmor annotation less", Update: true, Change: annotations(func(a map[string]string) { delete(a, "container.apparmor.security.beta.kubernetes.io/web") }),
			Want: []string{"metadata.annotations[container.apparmor.security.beta.kubernetes.io/web]: Forbidden: may not remove or update AppArmor annotations"}},
		{Name: "a mirror", Update: true, Change: annotations(func(a map[string]string) { a[corev1.MirrorPodAnnotationKey] = "x" }), Want: []string{
			"metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
			"metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set"}},
	})
}

// TestPodUpdateShowsTheDifference: the error about a change contains the difference.
func TestPodUpdateShowsTheDifference(t *testing.T) {
	_, errs := kindtest.Update(Pod, testNow, testPod(podSpec(`nodeName: elsewhere`)), testPod())
	if len(errs) != 1 || !strings.Contains(errs[0].Detail, `"nodeName": "elsewhere"`) {
		t.Errorf("%v", errs)
	}
}

func TestPodUpdateKeepsResources(t *testing.T) {
	old := testPod(podSpec(`resources: {requests: {cpu: 1}}`))
	pod, errs := kindtest.Update(Pod, testNow, testPod(), old)
	kindtest.Errors(t, errs)
	if pod.Spec.Resources == nil {
		t.Error("a client that does not know the field cleared it")
	}
}

func TestGatedPodUpdate(t *testing.T) {
	const affinity = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [`
	base := testPod(podSpec(`{schedulingGates: [{name: a}, {name: b}], nodeSelector: {a: b}}`),
		podSpec(affinity+`{matchExpressions: [{key: a, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [node]}]}]}}}`))
	const terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	kindtest.Validations(t, Pod, base, []kindtest.Case[*corev1.Pod]{
		{Name: "a gate less", Update: true, Change: func(p *corev1.Pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] }},
		{Name: "no gate", Update: true, Change: func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }},
		{Name: "a narrower selector", Update: true, Change: podSpec(`nodeSelector: {a: b, c: d}`)},
		{Name: "another selector", Update: true, Change: podSpec(`nodeSelector: {a: c}`), Want: []string{"spec.nodeSelector: Invalid value: {\"a\":\"c\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"}},
		{Name: "narrower affinity", Update: true, Change: podSpec(affinity + `{matchExpressions: [{key: a, operator: Exists}, {key: b, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [node]}]}]}}}`)},
		{Name: "other affinity", Update: true, Change: podSpec(affinity + `{matchExpressions: [{key: b, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [node]}]}]}}}`),
			Want: []string{terms + "[0]: Invalid value: {\"matchExpressions\":[{\"key\":\"b\",\"operator\":\"Exists\"}],\"matchFields\":[{\"key\":\"metadata.name\",\"operator\":\"In\",\"values\":[\"node\"]}]}: only additions are allowed (no mutations or deletions)"}},
		{Name: "an alternative", Update: true, Change: podSpec(affinity + `{matchExpressions: [{key: a, operator: Exists}], matchFields: [{key: metadata.name, operator: In, values: [node]}]}, {matchExpressions: [{key: b, operator: Exists}]}]}}}`),
			Want: []string{terms + ": Invalid value: ["}},
		{Name: "no affinity", Update: true, Change: func(p *corev1.Pod) { p.Spec.Affinity = nil }, Want: []string{terms + ": Invalid value: null: no additions/deletions to non-empty NodeSelectorTerms list are allowed"}},
		{Name: "affinity to pods", Update: true, Change: func(p *corev1.Pod) { p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{} }, Want: []string{otherFields}},
	})
	open := testPod(podSpec(`schedulingGates: [{name: a}]`))
	kindtest.Validations(t, Pod, open, []kindtest.Case[*corev1.Pod]{
		{Name: "affinity where there was none", Update: true, Change: podSpec(affinity + `{matchExpressions: [{key: a, operator: Exists}]}]}}}`)},
	})
}

func TestEphemeralContainers(t *testing.T) {
	base := testPod(podSpec(`ephemeralContainers: [{name: one, image: i}]`))
	mirror := testPod(podSpec(`nodeName: node`), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	for _, c := range []struct {
		name   string
		old    *corev1.Pod
		change func(*corev1.Pod)
		want   []string
	}{
		{"one more", base, podSpec(`ephemeralContainers: [{name: one, image: i}, {name: two, image: i, targetContainerName: web}]`), nil},
		{"another image elsewhere is ignored", base, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other"; p.Labels = map[string]string{"a": "b"} }, nil},
		{"one less", base, podSpec(`ephemeralContainers: []`), []string{`spec.ephemeralContainers: Forbidden: existing ephemeral containers "one" may not be removed`}},
		{"one changed", base, podSpec(`ephemeralContainers: [{name: one, image: other}]`), []string{`spec.ephemeralContainers: Forbidden: existing ephemeral containers "one" may not be changed`}},
		{"a bad one", base, podSpec(`ephemeralContainers: [{name: one, image: i}, {name: web, image: ""}]`), []string{"spec.ephemeralContainers[1].image: Required value", "spec.ephemeralContainers[1].name: Duplicate value"}},
		{"in a static pod", mirror, podSpec(`ephemeralContainers: [{name: one, image: i}]`), []string{"[]: Forbidden: static pods do not support ephemeral containers"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod, errs := kindtest.UpdateSubresource(Pod, "ephemeralcontainers", testNow, kindtest.With(c.old, c.change), c.old)
			kindtest.Errors(t, errs, c.want...)
			if pod.Spec.Containers[0].Image != "nginx:1" || pod.Labels != nil {
				t.Errorf("more than ephemeral containers changed: %v", pod)
			}
		})
	}
}

func TestResize(t *testing.T) {
	const containers = `
containers:
- {name: web, image: "nginx:1", resources: {requests: {cpu: 1, memory: 1Gi, ephemeral-storage: 1Gi}, limits: {cpu: 2, memory: 1Gi, ephemeral-storage: 1Gi}}}
- {name: idle, image: "nginx:1"}
initContainers:
- {name: in, image: "i:1", resources: {requests: {cpu: 1}}}
- {name: side, image: "i:1", restartPolicy: Always, resources: {requests: {cpu: 1}}}`
	running := podStatus(`{qosClass: Burstable, containerStatuses: [{name: web, state: {running: {}}, resources: {}}]}`)
	base := testPod(podSpec(containers), running)
	whole := testPod(podSpec(containers), running, podSpec(`resources: {requests: {cpu: 4, memory: 2Gi}, limits: {cpu: 8, memory: 4Gi}}`))
	requests := func(name, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(name)] = resourceList(name, value)[corev1.ResourceName(name)]
		}
	}
	for _, c := range []struct {
		name   string
		old    *corev1.Pod
		change func(*corev1.Pod)
		want   []string
	}{
		{"cpu", base, requests("cpu", "1500m"), nil},
		{"memory of a sidecar", base, func(p *corev1.Pod) {
			p.Spec.InitContainers[1].Resources.Requests["memory"] = resourceList("memory", "1Gi")["memory"]
		}, nil},
		{"cpu of an init container", base, func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Requests["cpu"] = resourceList("cpu", "2")["cpu"]
		}, nil},
		{"requests where there were none", base, func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Requests = resourceList("cpu", "1") }, nil},
		{"another image is ignored", base, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, nil},
		{"storage", base, requests("ephemeral-storage", "500Mi"), []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"more than the limit", base, requests("cpu", "3"), []string{"spec.containers[0].resources.requests: Invalid value: must be less than or equal to cpu limit of 2"}},
		{"no request", base, func(p *corev1.Pod) {
			delete(p.Spec.Containers[0].Resources.Requests, "cpu")
			delete(p.Spec.Containers[0].Resources.Limits, "cpu")
		}, []string{
			"spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
			"spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"}},
		{"another class", base, func(p *corev1.Pod) {
			all := resourceList("cpu", "2", "memory", "1Gi")
			for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
				for i := range list {
					list[i].Resources.Requests, list[i].Resources.Limits = all.DeepCopy(), all.DeepCopy()
				}
			}
			p.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resourceList("s", "1Gi")["s"]
			p.Spec.Containers[0].Resources.Limits["ephemeral-storage"] = resourceList("s", "1Gi")["s"]
		}, []string{"spec: Invalid value: Pod QOS Class may not change as a result of resizing"}},
		{"another policy", base, func(p *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}
		}, []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"a container less", base, func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, []string{"spec.containers: Forbidden: containers may not be added or removed on resize"}},
		{"another order", base, func(p *corev1.Pod) {
			p.Spec.InitContainers[0], p.Spec.InitContainers[1] = p.Spec.InitContainers[1], p.Spec.InitContainers[0]
		}, []string{
			"spec.initContainers[0].name: Forbidden: initContainers may not be renamed or reordered on resize",
			"spec.initContainers[1].name: Forbidden: initContainers may not be renamed or reordered on resize"}},
		{"a node that cannot", kindtest.With(base, podStatus(`containerStatuses: [{name: web, state: {running: {}}}]`)), requests("cpu", "1500m"), []string{"spec: Forbidden: Pod running on node without support for resize"}},
		{"a static pod", kindtest.With(base, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), requests("cpu", "1500m"), []string{"[]: Forbidden: static pods cannot be resized"}},
		{"a windows pod", kindtest.With(base, podSpec(`os: {name: windows}`)), requests("cpu", "1500m"), []string{"[]: Forbidden: windows pods cannot be resized"}},
		{"the whole", whole, podSpec(`resources: {requests: {cpu: 5, memory: 2Gi}, limits: {cpu: 8, memory: 5Gi}}`), nil},
		{"the whole left out", whole, func(p *corev1.Pod) { p.Spec.Resources = nil }, nil},
		{"less of the whole than its parts ask for", whole, podSpec(`resources: {requests: {cpu: 1, memory: 2Gi}, limits: {cpu: 8, memory: 4Gi}}`), []string{"spec.resources.requests[cpu]: Invalid value: must be greater than or equal to aggregate container requests of"}},
		{"an init container that would restart", kindtest.With(base, func(p *corev1.Pod) {
			p.Spec.InitContainers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.RestartContainer}}
		}), func(p *corev1.Pod) {
			p.Spec.InitContainers[0].Resources.Requests["cpu"] = resourceList("cpu", "2")["cpu"]
		},
			[]string{"spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, errs := kindtest.UpdateSubresource(Pod, "resize", testNow, kindtest.With(c.old, c.change), c.old)
			kindtest.Errors(t, errs, c.want...)
		})
	}
}
