package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	spec := &corev1.PodSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestDropDisabled(t *testing.T) {
	for _, c := range []struct{ name, spec, dropped string }{
		{"users of files",
			`volumes: [{name: a, secret: {secretName: s, defaultUser: 1, items: [{key: k, path: p, user: 1}]}}, {name: b, configMap: {defaultUser: 1, items: [{key: k, path: p, user: 1}]}}, {name: c, downwardAPI: {defaultUser: 1, items: [{path: p, user: 1}]}}, {name: d, projected: {defaultUser: 1, sources: [{secret: {items: [{key: k, path: p, user: 1}]}}, {configMap: {items: [{key: k, path: p, user: 1}]}}, {downwardAPI: {items: [{path: p, user: 1}]}}, {serviceAccountToken: {path: p, user: 1}}, {clusterTrustBundle: {path: p, user: 1}}, {podCertificate: {signerName: s, keyType: k, user: 1}}]}}]`,
			`volumes: [{name: a, secret: {secretName: s, items: [{key: k, path: p}]}}, {name: b, configMap: {items: [{key: k, path: p}]}}, {name: c, downwardAPI: {items: [{path: p}]}}, {name: d, projected: {sources: [{secret: {items: [{key: k, path: p}]}}, {configMap: {items: [{key: k, path: p}]}}, {downwardAPI: {items: [{path: p}]}}, {serviceAccountToken: {path: p}}, {clusterTrustBundle: {path: p}}, {podCertificate: {signerName: s, keyType: k}}]}}]`},
		{"scheduling group", `schedulingGroup: {podGroupName: g}`, `{}`},
		{"eviction responders", `evictionResponders: [{name: a}]`, `{}`},
		{"mode of empty dirs", `volumes: [{name: a, emptyDir: {mode: 1}}]`, `volumes: [{name: a, emptyDir: {}}]`},
		{"options of mounts",
			`containers: [{name: a, volumeMounts: [{name: v, mountPath: /x, bindMountOptions: [noexec]}]}]`,
			`containers: [{name: a, volumeMounts: [{name: v, mountPath: /x}]}]`},
		{"stop signals",
			`{containers: [{name: a, lifecycle: {stopSignal: SIGTERM}}], initContainers: [{name: b, lifecycle: {stopSignal: SIGTERM, preStop: {sleep: {seconds: 1}}}}], ephemeralContainers: [{name: c, lifecycle: {stopSignal: SIGTERM}}]}`,
			`{containers: [{name: a}], initContainers: [{name: b, lifecycle: {preStop: {sleep: {seconds: 1}}}}], ephemeralContainers: [{name: c}]}`},
		{"protocol of probes and hooks",
			`containers: [{name: a, livenessProbe: {httpGet: {port: 1, protocol: HTTP2}}, lifecycle: {postStart: {httpGet: {port: 1, protocol: HTTP2}}, preStop: {httpGet: {port: 1, protocol: HTTP2}}}}]`,
			`containers: [{name: a, livenessProbe: {httpGet: {port: 1}}, lifecycle: {postStart: {httpGet: {port: 1}}, preStop: {httpGet: {port: 1}}}}]`},
		{"mode of grpc probes",
			`containers: [{name: a, startupProbe: {grpc: {port: 1, mode: TLS}}}]`,
			`containers: [{name: a, startupProbe: {grpc: {port: 1}}}]`},
	} {
		fresh := parse(t, c.spec)
		DropDisabled(fresh, parse(t, c.dropped))
		if want := parse(t, c.dropped); !equality.Semantic.DeepEqual(fresh, want) {
			t.Errorf("%s: not dropped: %v", c.name, fresh)
		}
		kept := parse(t, c.spec)
		DropDisabled(kept, parse(t, c.spec))
		if want := parse(t, c.spec); !equality.Semantic.DeepEqual(kept, want) {
			t.Errorf("%s: dropped though it was stored: %v", c.name, kept)
		}
	}
}

func TestDropDisabledTemplate(t *testing.T) {
	DropDisabledTemplate(nil, nil)
	template := &corev1.PodTemplateSpec{Spec: *parse(t, `evictionResponders: [{name: a}]`)}
	template.Annotations = map[string]string{
		"pod.beta.kubernetes.io/init-containers": "x", "pod.alpha.kubernetes.io/init-containers": "x",
		"pod.beta.kubernetes.io/init-container-statuses": "x", "pod.alpha.kubernetes.io/init-container-statuses": "x", "mine": "x",
	}
	old := template.DeepCopy()
	DropDisabledTemplate(template, old)
	if len(template.Annotations) != 1 || len(template.Spec.EvictionResponders) != 1 {
		t.Errorf("left %v", template)
	}
}

func TestVisitContainers(t *testing.T) {
	spec := parse(t, `{containers: [{name: b}], initContainers: [{name: a}], ephemeralContainers: [{name: c}]}`)
	var seen []string
	VisitContainers(spec, field.NewPath("spec"), func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		seen = append(seen, c.Name+" "+path.String())
		c.Image = "changed"
	})
	want := []string{"a spec.initContainers[0]", "b spec.containers[0]", "c spec.ephemeralContainers[0]"}
	for i := range want {
		if seen[i] != want[i] {
			t.Errorf("visit %d: %s, want %s", i, seen[i], want[i])
		}
	}
	if spec.EphemeralContainers[0].Image != "changed" {
		t.Error("a visitor sees a copy of ephemeral containers")
	}
	VisitContainers(spec, nil, func(_ *corev1.Container, _ ContainerKind, path *field.Path) {
		if path != nil {
			t.Error("an unexpected path")
		}
	})
}

func TestValidateTemplate(t *testing.T) {
	path := field.NewPath("spec", "template")
	template := &corev1.PodTemplateSpec{Spec: *parse(t, `{hostNetwork: true, containers: [{name: a, image: " i ", ports: [{containerPort: 80}]}]}`)}
	Default(&template.Spec)
	if errs := ValidateTemplate(template, nil, path); len(errs) > 0 {
		t.Errorf("a template may leave the node's port open and pad its image: %v", errs)
	}
	template.Labels = map[string]string{"bad key!": "v"}
	template.Annotations = map[string]string{"bad key!": "v", corev1.PodDeletionCost: "x"}
	template.Spec.Containers[0].Name = ""
	template.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "i"}}}
	Default(&template.Spec)
	got := map[string]bool{}
	for _, err := range ValidateTemplate(template, nil, path) {
		got[err.Field] = true
	}
	for _, want := range []string{
		"spec.template.labels", "spec.template.annotations", "spec.template.annotations[controller.kubernetes.io/pod-deletion-cost]",
		"spec.template.spec.containers[0].name", "spec.template.spec.ephemeralContainers",
	} {
		if !got[want] {
			t.Errorf("no warning about %s: %v", want, got)
		}
	}
	old := template.DeepCopy()
	for _, err := range ValidateTemplate(template, old, path) {
		if err.Field == "spec.template.annotations[controller.kubernetes.io/pod-deletion-cost]" {
			t.Errorf("a stored annotation must stay allowed: %v", err)
		}
	}
}

func TestQOSClass(t *testing.T) {
	for _, c := range []struct {
		spec string
		want corev1.PodQOSClass
	}{
		{`{}`, corev1.PodQOSBestEffort},
		{`containers: [{name: a}]`, corev1.PodQOSBestEffort},
		{`containers: [{name: a, resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 1, memory: 1}}}]`, corev1.PodQOSGuaranteed},
		{`containers: [{name: a, resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 1, memory: 1}}}, {name: b}]`, corev1.PodQOSBurstable},
		{`containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 1}}}]`, corev1.PodQOSBurstable},
		{`containers: [{name: a, resources: {limits: {example.com/gpu: 1}}}]`, corev1.PodQOSBestEffort},
		{`{initContainers: [{name: a, resources: {requests: {cpu: 1}}}], containers: [{name: b}]}`, corev1.PodQOSBurstable},
		{`{resources: {requests: {cpu: 1, memory: 1}, limits: {cpu: 1, memory: 1}}, containers: [{name: b}]}`, corev1.PodQOSGuaranteed},
		{`{resources: {}, containers: [{name: b, resources: {requests: {cpu: 1}}}]}`, corev1.PodQOSBurstable},
	} {
		pod := &corev1.Pod{Spec: *parse(t, c.spec)}
		if got := ComputeQOSClass(pod); got != c.want || QOSClass(pod) != got {
			t.Errorf("%s: %s, want %s", c.spec, got, c.want)
		}
	}
	// The class does not change while a pod exists.
	recorded := &corev1.Pod{Status: corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed}}
	if got := QOSClass(recorded); got != corev1.PodQOSGuaranteed {
		t.Errorf("recorded class: %s", got)
	}
}

func TestDefaultPodResources(t *testing.T) {
	for _, c := range []struct{ name, spec, want string }{
		{"nothing specified", `{containers: [{name: a, resources: {requests: {cpu: 1}}}]}`, `null`},
		{"specified, but empty", `{resources: {}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}`, `{}`},
		{"requests are the sum", `{resources: {limits: {cpu: 5}}, containers: [{name: a, resources: {requests: {cpu: 1}}}, {name: b, resources: {requests: {cpu: 2}}}]}`,
			`{limits: {cpu: 5}, requests: {cpu: 3}}`},
		{"requests follow limits", `{resources: {limits: {memory: 5}}, containers: [{name: a}]}`, `{limits: {memory: 5}, requests: {memory: 5}}`},
		{"huge pages cannot be overcommitted", `{resources: {requests: {cpu: 1}}, containers: [{name: a, resources: {limits: {hugepages-2Mi: 2Mi}}}]}`,
			`{limits: {hugepages-2Mi: 2Mi}, requests: {cpu: 1, hugepages-2Mi: 2Mi}}`},
		{"limits are the sum where all have one", `{resources: {requests: {cpu: 1}}, containers: [{name: a, resources: {limits: {cpu: 1}}}, {name: b, resources: {limits: {cpu: 2}}}]}`,
			`{limits: {cpu: 3}, requests: {cpu: 1}}`},
		{"no limit where one has none", `{resources: {requests: {cpu: 1}}, containers: [{name: a, resources: {limits: {cpu: 1}}}, {name: b}]}`,
			`{requests: {cpu: 1}}`},
		{"limits are no less than requests", `{resources: {requests: {cpu: 9}}, containers: [{name: a, resources: {limits: {cpu: 1}}}]}`,
			`{limits: {cpu: 9}, requests: {cpu: 9}}`},
	} {
		spec := parse(t, c.spec)
		DefaultPodResources(spec)
		var want *corev1.ResourceRequirements
		if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(spec.Resources, want) {
			t.Errorf("%s: %v, want %v", c.name, spec.Resources, want)
		}
	}
}

func TestAppArmorFromAnnotation(t *testing.T) {
	for value, want := range map[string]corev1.AppArmorProfileType{
		"unconfined": corev1.AppArmorProfileTypeUnconfined, "runtime/default": corev1.AppArmorProfileTypeRuntimeDefault,
		"localhost/a": corev1.AppArmorProfileTypeLocalhost, "localhost/": "", "": "", "other": "",
	} {
		got := AppArmorFromAnnotation(value)
		if (got == nil) != (want == "") || got != nil && got.Type != want {
			t.Errorf("%q: %v, want %q", value, got, want)
		}
	}
}

func TestSharedParts(t *testing.T) {
	path := field.NewPath("x")
	if errs := ValidateTolerations([]corev1.Toleration{{Operator: "Near"}}, path); len(errs) != 2 {
		t.Errorf("tolerations: %v", errs)
	}
	bad := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "a", Operator: corev1.NodeSelectorOpIn, Values: []string{"bad value!"}}}}}}
	if errs := ValidateNodeSelector(bad, false, path); len(errs) != 1 || errs[0].Field != "x.nodeSelectorTerms[0].matchExpressions[0].values[0]" {
		t.Errorf("node selector: %v", errs)
	}
	if errs := ValidateNodeSelector(bad, true, path); len(errs) != 0 {
		t.Errorf("tolerant node selector: %v", errs)
	}
	if errs := ValidateClaimSpec(&corev1.PersistentVolumeClaimSpec{}, path); len(errs) != 2 {
		t.Errorf("claim: %v", errs)
	}
}
