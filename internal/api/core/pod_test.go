package core

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var testNow = &kind.Request{Now: metav1.NewTime(kindtest.Now)}

// testPod is a pod with one container, after the changes.
func testPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", CreationTimestamp: kindtest.MinutesAgo(5)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1"}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// podSpec sets fields of the specification from YAML.
func podSpec(text string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { overlay(text, &pod.Spec) }
}

// podStatus sets fields of the status from YAML.
func podStatus(text string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { overlay(text, &pod.Status) }
}

// overlay replaces the fields of a structure that are in the YAML.
func overlay[T any](text string, to *T) {
	var from T
	if err := yaml.UnmarshalStrict([]byte(text), &from); err != nil {
		panic(err)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		if f := reflect.ValueOf(from).Field(i); !f.IsZero() {
			reflect.ValueOf(to).Elem().Field(i).Set(f)
		}
	}
}

func resourceList(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestPodDefaults(t *testing.T) {
	pod := testPod(podSpec(`
terminationGracePeriodSeconds: -5
hostNetwork: true
serviceAccount: me
containers: [{name: web, image: nginx, ports: [{containerPort: 80}, {containerPort: 81, hostPort: 82}], resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}}]
initContainers: [{name: in, image: nginx, resources: {limits: {cpu: 1}}}]
ephemeralContainers: [{name: e, image: nginx, resources: {limits: {cpu: 1}}, ports: [{containerPort: 80}]}]`),
		podStatus(`{podIP: 1.2.3.4, containerStatuses: [{name: web, allocatedResources: {cpu: 100u}, resources: {limits: {cpu: 100u}}}], resources: {requests: {cpu: 100u}}}`))
	Pod.Default(pod)
	spec := &pod.Spec
	if *spec.TerminationGracePeriodSeconds != 1 || !*spec.EnableServiceLinks || spec.ServiceAccountName != "me" {
		t.Errorf("spec: %v", spec)
	}
	if ports := spec.Containers[0].Ports; ports[0].HostPort != 80 || ports[1].HostPort != 82 || spec.EphemeralContainers[0].Ports[0].HostPort != 0 {
		t.Errorf("ports on the node's network: %v", ports)
	}
	if got := spec.Containers[0].Resources.Requests; !equality.Semantic.DeepEqual(got, resourceList("cpu", "500m", "memory", "1Gi")) {
		t.Errorf("requests: %v", got)
	}
	if got := spec.InitContainers[0].Resources.Requests; !equality.Semantic.DeepEqual(got, resourceList("cpu", "1")) {
		t.Errorf("requests of an init container: %v", got)
	}
	if got := spec.EphemeralContainers[0].Resources.Requests; got != nil {
		t.Errorf("requests of an ephemeral container: %v", got)
	}
	status := &pod.Status
	if len(status.PodIPs) != 1 || status.PodIPs[0].IP != "1.2.3.4" {
		t.Errorf("podIPs: %v", status.PodIPs)
	}
	for _, list := range []corev1.ResourceList{status.ContainerStatuses[0].AllocatedResources, status.ContainerStatuses[0].Resources.Limits, status.Resources.Requests} {
		if cpu := list["cpu"]; cpu.String() != "1m" {
			t.Errorf("not rounded: %v", list)
		}
	}
	again := pod.DeepCopy()
	Pod.Default(again)
	if !equality.Semantic.DeepEqual(pod, again) {
		t.Error("defaults are not idempotent")
	}
}

func TestPodIPDefaults(t *testing.T) {
	for _, c := range []struct{ status, ip, ips string }{
		{`{}`, "", ""},
		{`{podIP: 1.1.1.1}`, "1.1.1.1", "1.1.1.1"},
		{`{podIPs: [{ip: 1.1.1.1}, {ip: "::1"}]}`, "1.1.1.1", "1.1.1.1,::1"},
		{`{podIP: 2.2.2.2, podIPs: [{ip: 1.1.1.1}, {ip: "::1"}]}`, "2.2.2.2", "2.2.2.2"},
		{`{podIP: 1.1.1.1, podIPs: [{ip: 1.1.1.1}, {ip: "::1"}]}`, "1.1.1.1", "1.1.1.1,::1"},
	} {
		pod := testPod(podStatus(c.status))
		Pod.Default(pod)
		if pod.Status.PodIP != c.ip || podIPs(pod) != c.ips {
			t.Errorf("%s: %s and %s", c.status, pod.Status.PodIP, podIPs(pod))
		}
	}
}

func TestPodCreate(t *testing.T) {
	labels := map[string]string{"app": "web", "v": "1"}
	pod, errs := kindtest.Create(Pod, testNow, testPod(func(p *corev1.Pod) {
		p.Labels = labels
		p.Annotations = map[string]string{
			"pod.beta.kubernetes.io/init-containers":              "x",
			"container.apparmor.security.beta.kubernetes.io/web":  "localhost/x",
			"container.apparmor.security.beta.kubernetes.io/side": "unconfined",
		}
	}, podStatus(`{phase: Running, podIP: 1.2.3.4}`), podSpec(`
schedulingGates: [{name: wait}]
evictionResponders: [{name: a}]
securityContext: {appArmorProfile: {type: Unconfined}}
initContainers: [{name: side, image: i, restartPolicy: Always}]
resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}
affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, matchLabelKeys: [v, none], mismatchLabelKeys: [app], labelSelector: {}}]}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [v], labelSelector: {}}]`)))
	kindtest.Errors(t, errs)
	want := corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSGuaranteed, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated", LastTransitionTime: testNow.Now,
		Message: "Scheduling is blocked due to non-empty scheduling gates",
	}}}
	if !equality.Semantic.DeepEqual(pod.Status, want) {
		t.Errorf("status %v", pod.Status)
	}
	if len(pod.Annotations) != 2 || pod.Spec.EvictionResponders != nil {
		t.Errorf("not dropped: %v %v", pod.Annotations, pod.Spec.EvictionResponders)
	}
	in := func(key, value string, operator metav1.LabelSelectorOperator) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}}
	}
	term := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	if want := []metav1.LabelSelectorRequirement{in("v", "1", "In"), in("app", "web", "NotIn")}; !equality.Semantic.DeepEqual(term.LabelSelector.MatchExpressions, want) {
		t.Errorf("affinity %v", term.LabelSelector)
	}
	if got := pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchExpressions; !equality.Semantic.DeepEqual(got, []metav1.LabelSelectorRequirement{in("v", "1", "In")}) {
		t.Errorf("spread %v", got)
	}
	if sc := pod.Spec.Containers[0].SecurityContext; sc == nil || sc.AppArmorProfile == nil || *sc.AppArmorProfile.LocalhostProfile != "x" {
		t.Errorf("an AppArmor annotation was not adopted: %v", sc)
	}
	if sc := pod.Spec.InitContainers[0].SecurityContext; sc != nil {
		t.Errorf("an AppArmor annotation that repeats the pod's profile was adopted: %v", sc)
	}
}

func TestPodCreateRefuses(t *testing.T) {
	kindtest.Validations(t, Pod, testPod(), []kindtest.Case[*corev1.Pod]{
		{Name: "ordinary"},
		{Name: "a container that is wrong", Change: podSpec(`containers: [{name: Bad_, image: i}]`), Want: []string{"spec.containers[0].name: Invalid value"}},
		{Name: "ephemeral containers", Change: podSpec(`ephemeralContainers: [{name: e, image: i}]`), Want: []string{"spec.ephemeralContainers: Forbidden: cannot be set on create"}},
		{Name: "a node for a gated pod", Change: podSpec(`{nodeName: node, schedulingGates: [{name: g}]}`), Want: []string{"spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"}},
	})
}

func TestPodWarnings(t *testing.T) {
	pod := testPod(func(p *corev1.Pod) { p.Name = "a.b" }, podSpec(`volumes: [{name: v, rbd: {}}]`))
	kindtest.Warnings(t, Pod.Warn(pod, nil),
		"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
		"spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+")
	kindtest.Warnings(t, Pod.Warn(pod, pod))
}

func TestPodGeneration(t *testing.T) {
	for _, c := range []struct {
		change string
		want   bool
	}{{`{}`, false}, {`nodeName: node`, false}, {`activeDeadlineSeconds: 5`, true}, {`{nodeName: node, tolerations: [{operator: Exists}]}`, true}} {
		if got := Pod.SpecChanged(testPod(podSpec(c.change)), testPod()); got != c.want {
			t.Errorf("%s: %v", c.change, got)
		}
	}
}

func TestPodFields(t *testing.T) {
	pod := testPod(podSpec(`{nodeName: node, restartPolicy: Never, schedulerName: s, serviceAccountName: a, hostNetwork: true}`),
		podStatus(`{phase: Failed, podIPs: [{ip: 1.1.1.1}, {ip: "::1"}], nominatedNodeName: m}`))
	for label, want := range map[string]string{
		"spec.nodeName": "node", "spec.host": "node", "spec.restartPolicy": "Never", "spec.schedulerName": "s", "spec.serviceAccountName": "a",
		"spec.hostNetwork": "true", "status.phase": "Failed", "status.podIP": "1.1.1.1", "status.podIPs": "1.1.1.1,::1", "status.nominatedNodeName": "m",
	} {
		if got := Pod.Fields[label](pod); got != want {
			t.Errorf("%s: %q, want %q", label, got, want)
		}
	}
	if got := Pod.Fields["status.podIP"](testPod()); got != "" {
		t.Errorf("status.podIP of a pod without: %q", got)
	}
}

func TestPodGrace(t *testing.T) {
	running := `{phase: Running}`
	for _, c := range []struct {
		name, spec, status string
		requested          *int64
		want               int64
	}{
		{"the pod's own", `{nodeName: node, terminationGracePeriodSeconds: 30}`, running, nil, 30},
		{"the client's", `{nodeName: node, terminationGracePeriodSeconds: 30}`, running, ptr.To[int64](5), 5},
		{"none at all", `{nodeName: node}`, running, nil, 0},
		{"at once", `{nodeName: node, terminationGracePeriodSeconds: 30}`, running, ptr.To[int64](0), 0},
		{"without node", `{terminationGracePeriodSeconds: 30}`, running, ptr.To[int64](5), 0},
		{"failed", `{nodeName: node, terminationGracePeriodSeconds: 30}`, `{phase: Failed}`, nil, 0},
		{"succeeded", `{nodeName: node, terminationGracePeriodSeconds: 30}`, `{phase: Succeeded}`, nil, 0},
		{"negative", `{nodeName: node, terminationGracePeriodSeconds: -3}`, running, nil, 1},
	} {
		options := &metav1.DeleteOptions{GracePeriodSeconds: c.requested}
		if !Pod.Delete.CheckGraceful(testPod(podSpec(c.spec), podStatus(c.status)), options) || *options.GracePeriodSeconds != c.want {
			t.Errorf("%s: %d, want %d", c.name, *options.GracePeriodSeconds, c.want)
		}
	}
	if Pod.Delete.CheckGraceful(testPod(), nil) {
		t.Error("graceful without options")
	}
}

func TestPodSubresources(t *testing.T) {
	want := map[string]string{
		"status": "", "binding": "Binding", "ephemeralcontainers": "", "eviction": "Eviction", "resize": "", "log": "", "exec": "PodExecOptions",
		"attach": "PodAttachOptions", "portforward": "PodPortForwardOptions", "proxy": "PodProxyOptions",
	}
	for _, s := range Pod.Subresources {
		body, known := want[s.Name]
		if !known || s.GVK.Kind != body {
			t.Errorf("%s with kind %q", s.Name, s.GVK.Kind)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}
