package resource

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

func slice(change func(*resourcev1.ResourceSliceSpec)) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "x.org", NodeName: ptr.To("node-1"), Pool: resourcev1.ResourcePool{Name: "node-1", ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "d0"}, {Name: "d1"}},
	}}
	if change != nil {
		change(&slice.Spec)
	}
	return slice
}

type spec = *resourcev1.ResourceSliceSpec

func attribute(name string, value resourcev1.DeviceAttribute) func(spec) {
	return func(s spec) {
		s.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{resourcev1.QualifiedName(name): value}
	}
}

func TestSlices(t *testing.T) {
	one := resourcev1.DeviceAttribute{IntValue: ptr.To[int64](1)}
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Exists"}}}
	for _, test := range []struct {
		name   string
		change func(spec)
		want   []string
	}{
		{name: "valid"},
		{name: "empty", change: func(s spec) { *s = resourcev1.ResourceSliceSpec{} }, want: []string{
			"spec.driver: Required value", "spec.pool.name: Required value", "spec.pool.resourceSliceCount: Invalid value: must be greater than zero",
			"spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"}},
		{name: "pool", change: func(s spec) { s.Pool.Name, s.Pool.Generation = strings.Repeat("a", 254), -1 }, want: []string{"spec.pool.name: Too long", "spec.pool.name: Invalid value", "spec.pool.generation: Invalid value"}},
		{name: "all nodes", change: func(s spec) { s.NodeName, s.AllNodes = nil, ptr.To(true) }},
		{name: "false", change: func(s spec) { s.AllNodes, s.PerDeviceNodeSelection = ptr.To(false), ptr.To(false) }, want: []string{"spec.allNodes: Invalid value: must be either unset or set to true", "spec.perDeviceNodeSelection: Invalid value"}},
		{name: "node twice", change: func(s spec) { s.AllNodes = ptr.To(true) }, want: []string{"spec: Invalid value: but multiple fields are set"}},
		{name: "no node name", change: func(s spec) { s.NodeName = ptr.To("") }, want: []string{"spec.nodeName: Invalid value: must be either unset or set to a non-empty string", "spec: Required value"}},
		{name: "selector", change: func(s spec) {
			s.NodeName, s.NodeSelector = nil, &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term, term}}
		}, want: []string{"spec.nodeSelector.nodeSelectorTerms: Invalid value: must have exactly one node selector term"}},
		{name: "counters and devices", change: func(s spec) {
			s.SharedCounters = []resourcev1.CounterSet{{Name: "A"}, {Name: "b", Counters: map[string]resourcev1.Counter{"C": {}}}, {Name: "b", Counters: map[string]resourcev1.Counter{"c": {}}}}
		}, want: []string{
			"spec: Invalid value: only one of `sharedCounters` or `devices` is allowed", "spec.sharedCounters[0].name: Invalid value", "spec.sharedCounters[0].counters: Required value",
			"spec.sharedCounters[1].counters: Invalid value", "spec.sharedCounters[2]: Duplicate value"}},
		{name: "names", change: func(s spec) { s.Devices = []resourcev1.Device{{Name: "A"}, {Name: "b"}, {Name: "b"}} }, want: []string{"spec.devices[0].name: Invalid value", "spec.devices[2]: Duplicate value"}},
		{name: "many devices", change: func(s spec) { s.Devices = make([]resourcev1.Device, 129) }, want: []string{"spec.devices: Too many"}},
		{name: "many tainted devices", change: func(s spec) {
			s.Devices = make([]resourcev1.Device, 65)
			s.Devices[0].Taints = []resourcev1.DeviceTaint{{}}
		}, want: []string{"spec.devices: Too many"}},
		{name: "attribute", change: attribute("x.org/y", one)},
		{name: "attribute names", change: func(s spec) {
			s.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a-b": one, "/b": one, "c/": one, "x_y/z": one, resourcev1.QualifiedName(strings.Repeat("x", 33)): one}
		}, want: []string{
			"spec.devices[0].attributes: Invalid value: a valid C identifier", "spec.devices[0].attributes: Invalid value: the domain must not be empty", "spec.devices[0].attributes: Invalid value: the name must not be empty",
			"spec.devices[0].attributes: Invalid value: a lowercase RFC 1123 subdomain", "spec.devices[0].attributes: Too long"}},
		{name: "no value", change: attribute("a", resourcev1.DeviceAttribute{}), want: []string{"spec.devices[0].attributes[a]: Invalid value: must specify one of: `int`, `bool`, `string`, `version`, `ints`"}},
		{name: "two values", change: attribute("a", resourcev1.DeviceAttribute{IntValue: ptr.To[int64](1), BoolValue: ptr.To(true)}), want: []string{"spec.devices[0].attributes[a]: Invalid value: must specify exactly one of"}},
		{name: "list on trial", change: attribute("a", resourcev1.DeviceAttribute{IntValues: []int64{1}}), want: []string{"spec.devices[0].attributes[a]: Invalid value: must specify one of"}},
		{name: "long value", change: attribute("a", resourcev1.DeviceAttribute{StringValue: ptr.To(strings.Repeat("x", 65))}), want: []string{"spec.devices[0].attributes[a].string: Too long"}},
		{name: "version", change: attribute("a", resourcev1.DeviceAttribute{VersionValue: ptr.To("1.02.3")}), want: []string{"spec.devices[0].attributes[a].version: Invalid value: must be a string compatible with semver.org spec 2.0.0"}},
		{name: "good version", change: attribute("a", resourcev1.DeviceAttribute{VersionValue: ptr.To("1.2.3-rc.1+b")})},
		{name: "many attributes", change: func(s spec) {
			s.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
			for i := range 33 {
				s.Devices[0].Attributes[resourcev1.QualifiedName(fmt.Sprintf("a%d", i))] = one
			}
		}, want: []string{"spec.devices[0]: Invalid value: the total number of attributes and capacities must not exceed 32"}},
		{name: "taint", change: func(s spec) { s.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "a", Effect: "NoSchedule"}} }},
		{name: "bad taints", change: func(s spec) {
			s.Devices[0].Taints = []resourcev1.DeviceTaint{{}, {Key: "a", Value: "b b", Effect: "X"}}
		}, want: []string{"spec.devices[0].taints[0].key: Invalid value", "spec.devices[0].taints[0].key: Invalid value", "spec.devices[0].taints[0].effect: Required value", "spec.devices[0].taints[1].value: Invalid value", "spec.devices[0].taints[1].effect: Unsupported value"}},
		{name: "consumption", change: func(s spec) {
			s.Devices[0].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{}, {CounterSet: "s", Counters: map[string]resourcev1.Counter{"c": {}}}}
		}, want: []string{"spec.devices[0].consumesCounters[0].counterSet: Required value", "spec.devices[0].consumesCounters[0].counters: Required value"}},
		{name: "device node", change: func(s spec) { s.Devices[0].NodeName = ptr.To("n") }, want: []string{"spec.devices[0]: Invalid value: can only be set if `perDeviceNodeSelection`"}},
		{name: "device nodes", change: func(s spec) {
			s.NodeName, s.PerDeviceNodeSelection = nil, ptr.To(true)
			s.Devices = []resourcev1.Device{{Name: "a"}, {Name: "b", NodeName: ptr.To("")}, {Name: "c", NodeName: ptr.To("n"), AllNodes: ptr.To(true)}, {Name: "d", AllNodes: ptr.To(true)}}
		}, want: []string{"spec.devices[0]: Required value: exactly one of", "spec.devices[1].nodeName: Invalid value: must not be empty", "spec.devices[1]: Required value", "spec.devices[2]: Invalid value: exactly one of"}},
		{name: "failure without binding", change: func(s spec) { s.Devices[0].BindingFailureConditions = []string{"a b"} }, want: []string{
			"spec.devices[0].bindingFailureConditions[0]: Invalid value", "spec.devices[0].bindingConditions: Invalid value: bindingConditions are required"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(ResourceSlice, request, slice(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestSliceUpdates(t *testing.T) {
	_, errs := kindtest.Update(ResourceSlice, request, slice(func(s spec) { s.Driver, s.Pool.Name, s.NodeName = "y.org", "b", ptr.To("m") }), slice(nil))
	kindtest.Errors(t, errs, "spec.driver: Invalid value: field is immutable", "spec.pool.name: Invalid value: field is immutable", "spec.nodeName: Invalid value: field is immutable")
	bad := func(s spec) {
		s.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "a", Effect: "Old", TimeAdded: &now}}
		s.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"a-b": {}}
	}
	_, errs = kindtest.Update(ResourceSlice, request, slice(bad), slice(bad))
	kindtest.Errors(t, errs)
}

func TestTrialFieldsOfSlices(t *testing.T) {
	trial := slice(func(s spec) {
		s.PartitionTypeAttribute, s.SkipNodeOperations = ptr.To(resourcev1.FullyQualifiedName("a/b")), []resourcev1.SkipNodeOperation{"All"}
		s.Devices[0].NodeAllocatableResources = map[corev1.ResourceName]resourcev1.NodeAllocatableResource{"cpu": {}}
		s.Devices[0].ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "s", Counters: map[string]resourcev1.Counter{"c": {}}, CompatibilityGroups: []string{"g"}}}
		s.Devices[1].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {IntValues: []int64{1}}}
	})
	created, _ := kindtest.Create(ResourceSlice, request, trial)
	device := created.Spec.Devices[0]
	if created.Spec.PartitionTypeAttribute != nil || created.Spec.SkipNodeOperations != nil || device.NodeAllocatableResources != nil || device.ConsumesCounters[0].CompatibilityGroups != nil || created.Spec.Devices[1].Attributes["a"].IntValues != nil {
		t.Errorf("fields on trial were kept: %+v", created.Spec)
	}
	updated, errs := kindtest.Update(ResourceSlice, request, trial, trial)
	kindtest.Errors(t, errs)
	if !reflect.DeepEqual(updated.Spec, trial.Spec) {
		t.Error("stored fields on trial were lost")
	}
}

func TestCapacityPolicies(t *testing.T) {
	quantity := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	ranged := func(normal, min, max, step string) *resourcev1.CapacityRequestPolicy {
		policy := &resourcev1.CapacityRequestPolicy{ValidRange: &resourcev1.CapacityRequestPolicyRange{}}
		for _, number := range []struct {
			text string
			at   **resource.Quantity
		}{{normal, &policy.Default}, {min, &policy.ValidRange.Min}, {max, &policy.ValidRange.Max}, {step, &policy.ValidRange.Step}} {
			if number.text != "" {
				*number.at = quantity(number.text)
			}
		}
		return policy
	}
	sizes := func(normal string, values ...string) *resourcev1.CapacityRequestPolicy {
		policy := &resourcev1.CapacityRequestPolicy{}
		if normal != "" {
			policy.Default = quantity(normal)
		}
		for _, value := range values {
			policy.ValidValues = append(policy.ValidValues, *quantity(value))
		}
		return policy
	}
	const at = "spec.devices[0].capacity[memory].requestPolicy"
	for _, test := range []struct {
		name   string
		policy *resourcev1.CapacityRequestPolicy
		single bool
		want   []string
	}{
		{name: "sizes", policy: sizes("1Gi", "1Gi", "2Gi")},
		{name: "not shared", policy: sizes("1Gi", "1Gi"), single: true, want: []string{": Forbidden: allowMultipleAllocations must be true"}},
		{name: "both", policy: &resourcev1.CapacityRequestPolicy{ValidValues: []resource.Quantity{*quantity("1")}, ValidRange: &resourcev1.CapacityRequestPolicyRange{}}, want: []string{": Forbidden: exactly one policy can be specified"}},
		{name: "no default size", policy: sizes("", "1Gi"), want: []string{".default: Required value: required when validValues is defined"}},
		{name: "odd sizes", policy: sizes("3Gi", "2Gi", "1Gi", "11Gi", "11Gi"), want: []string{
			".validValues[1]: Invalid value: values must be sorted", ".validValues[2]: Invalid value: option is larger than capacity value: 10Gi", ".validValues[3]: Invalid value: option is larger",
			".validValues[3]: Duplicate value", ".validValues: Invalid value: default value is not valid"}},
		{name: "range", policy: ranged("2Gi", "1Gi", "5Gi", "1Gi")},
		{name: "fractions", policy: ranged("1.5", "0.5", "2.5", "0.5")},
		{name: "no default", policy: ranged("", "1", "", ""), want: []string{".default: Required value: required when validRange is defined"}},
		{name: "no min", policy: ranged("1", "", "", ""), want: []string{".validRange.min: Required value"}},
		{name: "bounds", policy: ranged("1Gi", "12Gi", "11Gi", ""), want: []string{
			".validRange.min: Invalid value: min is larger than capacity value", ".validRange.default: Invalid value: default is less than min", ".validRange.max: Invalid value: min is larger than max", ".validRange.max: Invalid value: max is larger than capacity value"}},
		{name: "default above max", policy: ranged("3Gi", "1Gi", "2Gi", ""), want: []string{".validRange.default: Invalid value: default is more than max"}},
		{name: "step", policy: ranged("2Gi", "1Gi", "", "0"), want: []string{".validRange.step: Invalid value: must be greater than zero"}},
		{name: "large step", policy: ranged("1Gi", "1Gi", "", "10Gi"), want: []string{".validRange.step: Invalid value: one step 11Gi is larger than capacity value: 10Gi"}},
		{name: "off step", policy: ranged("2", "1", "4", "2"), want: []string{".validRange.step: Invalid value: value is not a multiple of a given step (2) from (1)", ".validRange.step: Invalid value: value is not a multiple"}},
		{name: "tiny", policy: ranged("1", "100u", "", ""), want: []string{".validRange.min: Invalid value: value cannot be represented as a milli value"}},
		{name: "negative", policy: ranged("1", "-1", "", "1"), want: []string{".validRange.min: Invalid value: must be greater than or equal to 0"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(ResourceSlice, request, slice(func(s spec) {
				s.Devices[0].AllowMultipleAllocations = ptr.To(!test.single)
				s.Devices[0].Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: *quantity("10Gi"), RequestPolicy: test.policy}}
			}))
			want := make([]string, len(test.want))
			for i := range want {
				want[i] = at + test.want[i]
			}
			kindtest.Errors(t, errs, want...)
		})
	}
}

func TestSliceRowFieldsAndWarnings(t *testing.T) {
	s := slice(nil)
	if got, want := ResourceSlice.Row(s, now.Time), []any{"s", "node-1", "x.org", "node-1", "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	for label, want := range map[string]string{"spec.nodeName": "node-1", "spec.driver": "x.org", "spec.pool.name": "node-1"} {
		if got := ResourceSlice.Fields[label](s); got != want {
			t.Errorf("%s = %q, want %q", label, got, want)
		}
	}
	if got := ResourceSlice.Fields["spec.nodeName"](slice(func(s spec) { s.NodeName = nil })); got != "" {
		t.Errorf("node name of a slice without node = %q", got)
	}
	if got := ResourceSlice.Warn(slice(func(s spec) { s.Driver = "X.org" }), nil); len(got) != 1 || !strings.Contains(got[0], "driver names should be lowercase") {
		t.Errorf("warnings = %q", got)
	}
}

func TestDeviceClasses(t *testing.T) {
	class := func(change func(*resourcev1.DeviceClassSpec)) *resourcev1.DeviceClass {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
		change(&class.Spec)
		return class
	}
	type classSpec = *resourcev1.DeviceClassSpec
	for _, test := range []struct {
		name   string
		change func(classSpec)
		want   []string
		// kept are the fields that remain when the stored object is the same.
		kept []string
	}{
		{name: "empty", change: func(classSpec) {}},
		{name: "selector", change: func(s classSpec) { s.Selectors = selecting("nosuch") }, want: []string{"spec.selectors[0].cel.expression: Invalid value: compilation failed"}},
		{name: "config", change: func(s classSpec) {
			s.Config = []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: opaque("x.org", `{"a":"`+strings.Repeat("x", 10240)+`"}`)}}
		}, want: []string{"spec.config[0].opaque.parameters: Too long"}},
		{name: "resource", change: func(s classSpec) { s.ExtendedResourceName = ptr.To("x.org/gpu") }},
		{name: "native resource", change: func(s classSpec) { s.ExtendedResourceName = ptr.To("cpu") },
			want: []string{"spec.extendedResourceName: Invalid value: a name must be a domain-prefixed path"}, kept: []string{"spec.extendedResourceName: Invalid value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(DeviceClass, request, class(test.change))
			kindtest.Errors(t, errs, test.want...)
			_, errs = kindtest.Update(DeviceClass, request, class(test.change), class(test.change))
			kindtest.Errors(t, errs, test.kept...)
		})
	}
}

func TestTaintRules(t *testing.T) {
	rule := func(change func(*resourcev1.DeviceTaintRuleSpec)) *resourcev1.DeviceTaintRule {
		rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: resourcev1.DeviceTaintRuleSpec{Taint: resourcev1.DeviceTaint{Key: "k", Value: "v", Effect: "NoSchedule"}}}
		if change != nil {
			change(&rule.Spec)
		}
		return rule
	}
	created, errs := kindtest.Create(DeviceTaintRule, request, rule(nil))
	kindtest.Errors(t, errs)
	second := metav1.NewTime(now.Truncate(time.Second))
	if !created.Spec.Taint.TimeAdded.Equal(&second) {
		t.Errorf("time added = %v, want %v", created.Spec.Taint.TimeAdded, second)
	}
	_, errs = kindtest.Create(DeviceTaintRule, request, rule(func(s *resourcev1.DeviceTaintRuleSpec) {
		s.DeviceSelector = &resourcev1.DeviceTaintSelector{Driver: ptr.To(""), Pool: ptr.To("A"), Device: ptr.To("A")}
		s.Taint.Effect = ""
	}))
	kindtest.Errors(t, errs, "spec.deviceSelector.driver: Required value", "spec.deviceSelector.pool: Invalid value", "spec.deviceSelector.device: Invalid value", "spec.taint.effect: Required value")

	old := created.DeepCopy()
	old.Spec.Taint.TimeAdded = ptr.To(metav1.NewTime(now.Add(-time.Hour).Truncate(time.Second)))
	changed := old.DeepCopy()
	changed.Spec.Taint.Effect = "NoExecute"
	updated, errs := kindtest.Update(DeviceTaintRule, request, changed, old)
	kindtest.Errors(t, errs)
	if !updated.Spec.Taint.TimeAdded.Equal(&second) {
		t.Errorf("a new effect must count from now, not from %v", updated.Spec.Taint.TimeAdded)
	}
	if got, want := DeviceTaintRule.Row(old, now.Time), []any{"r", "k", "v", "NoSchedule", "60m", "<unknown>"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	full := old.DeepCopy()
	for i := range 9 {
		full.Status.Conditions = append(full.Status.Conditions, metav1.Condition{Type: fmt.Sprintf("T%d", i), Status: "True", Reason: "R", LastTransitionTime: now})
	}
	_, errs = kindtest.UpdateSubresource(DeviceTaintRule, "status", request, full, old)
	kindtest.Errors(t, errs, "status.conditions: Too many")
}
