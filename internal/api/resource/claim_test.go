package resource

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var (
	now     = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC))
	request = &kind.Request{Now: now}
)

func claim(change func(*resourcev1.DeviceClaim)) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
			{Name: "any", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "big", DeviceClassName: "gpu"}, {Name: "small", DeviceClassName: "gpu"}}},
		}}},
	}
	if change != nil {
		change(&claim.Spec.Devices)
	}
	return claim
}

func selecting(expression string) []resourcev1.DeviceSelector {
	return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
}

func opaque(driver, parameters string) resourcev1.DeviceConfiguration {
	return resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
}

func TestClaims(t *testing.T) {
	type devices = *resourcev1.DeviceClaim
	tolerate := func(toleration resourcev1.DeviceToleration) func(devices) {
		return func(d devices) { d.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{toleration} }
	}
	configured := func(config resourcev1.DeviceConfiguration) func(devices) {
		return func(d devices) { d.Config = []resourcev1.DeviceClaimConfiguration{{DeviceConfiguration: config}} }
	}
	for _, test := range []struct {
		name   string
		change func(devices)
		want   []string
	}{
		{name: "valid"},
		{name: "names", change: func(d devices) { d.Requests[0].Name, d.Requests[1].FirstAvailable[1].Name = "A", "big" }, want: []string{
			"spec.devices.requests[0].name: Invalid value", "spec.devices.requests[1].firstAvailable[1]: Duplicate value"}},
		{name: "same name", change: func(d devices) { d.Requests[1].Name = "one" }, want: []string{"spec.devices.requests[1]: Duplicate value"}},
		{name: "neither", change: func(d devices) { d.Requests[0].Exactly = nil }, want: []string{"spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required"}},
		{name: "both", change: func(d devices) { d.Requests[1].Exactly = d.Requests[0].Exactly }, want: []string{"spec.devices.requests[1]: Invalid value: but multiple fields are set"}},
		{name: "class", change: func(d devices) {
			d.Requests[0].Exactly.DeviceClassName, d.Requests[1].FirstAvailable[0].DeviceClassName = "", "A"
		}, want: []string{"spec.devices.requests[0].exactly.deviceClassName: Required value", "spec.devices.requests[1].firstAvailable[0].deviceClassName: Invalid value"}},
		{name: "too many", change: func(d devices) { d.Requests = make([]resourcev1.DeviceRequest, 33) }, want: []string{"spec.devices.requests: Too many"}},
		{name: "all with count", change: func(d devices) { d.Requests[0].Exactly.AllocationMode, d.Requests[0].Exactly.Count = "All", 2 }, want: []string{"spec.devices.requests[0].exactly.count: Invalid value: must not be specified when allocationMode is 'All'"}},
		{name: "mode", change: func(d devices) { d.Requests[0].Exactly.AllocationMode = "Some" }, want: []string{"spec.devices.requests[0].exactly.allocationMode: Unsupported value"}},
		{name: "count", change: func(d devices) { d.Requests[0].Exactly.Count = -1 }, want: []string{"spec.devices.requests[0].exactly.count: Invalid value: must be greater than zero"}},
		{name: "selector", change: func(d devices) {
			d.Requests[0].Exactly.Selectors = selecting(`device.driver == "x" && device.attributes["x"].family == "f" && device.allowMultipleAllocations == true`)
		}},
		{name: "bad selector", change: func(d devices) { d.Requests[0].Exactly.Selectors = selecting("nosuch") }, want: []string{"spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: compilation failed"}},
		{name: "no selector", change: func(d devices) { d.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{}} }, want: []string{"spec.devices.requests[0].exactly.selectors[0].cel: Required value"}},
		{name: "long selector", change: func(d devices) { d.Requests[0].Exactly.Selectors = selecting(strings.Repeat(" ", 10241)) }, want: []string{"spec.devices.requests[0].exactly.selectors[0].cel.expression: Too long"}},
		{name: "costly selector", change: func(d devices) {
			text := "true"
			for i := range 7 {
				text = fmt.Sprintf("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x%d, %s)", i, text)
			}
			d.Requests[0].Exactly.Selectors = selecting(text)
		}, want: []string{"spec.devices.requests[0].exactly.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit"}},
		{name: "exists", change: tolerate(resourcev1.DeviceToleration{Key: "a b", Operator: "Exists", Value: "v", Effect: "X"}), want: []string{
			"spec.devices.requests[0].exactly.tolerations[0].key: Invalid value", "spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: must be empty for operator `Exists`", "spec.devices.requests[0].exactly.tolerations[0].effect: Unsupported value"}},
		{name: "equal", change: tolerate(resourcev1.DeviceToleration{Key: "a", Value: "v"})},
		{name: "operator", change: tolerate(resourcev1.DeviceToleration{Operator: "Near"}), want: []string{"spec.devices.requests[0].exactly.tolerations[0].operator: Unsupported value"}},
		{name: "constraint", change: func(d devices) {
			d.Constraints = []resourcev1.DeviceConstraint{{Requests: []string{"one", "any/big"}, MatchAttribute: ptr.To(resourcev1.FullyQualifiedName("x.org/numa"))}}
		}},
		{name: "constraints", change: func(d devices) {
			d.Constraints = []resourcev1.DeviceConstraint{{}, {Requests: []string{"one", "one", "two", "any/big/more"}, DistinctAttribute: ptr.To(resourcev1.FullyQualifiedName("numa"))}}
		}, want: []string{
			"spec.devices.constraints[0]: Required value: exactly one of", "spec.devices.constraints[1].requests[1]: Duplicate value",
			"spec.devices.constraints[1].requests[2]: Invalid value: must be the name of a request", "spec.devices.constraints[1].requests[3]: Invalid value: must be the name of a request",
			"spec.devices.constraints[1].distinctAttribute: Invalid value: a fully qualified name must be a domain and a name"}},
		{name: "config", change: configured(opaque("x.org", `{"a":1}`))},
		{name: "no config", change: configured(resourcev1.DeviceConfiguration{}), want: []string{"spec.devices.config[0].opaque: Required value"}},
		{name: "driver", change: configured(opaque("", "")), want: []string{"spec.devices.config[0].opaque.driver: Required value", "spec.devices.config[0].opaque.parameters: Required value"}},
		{name: "list", change: configured(opaque("x_y", "[]")), want: []string{"spec.devices.config[0].opaque.driver: Invalid value", "spec.devices.config[0].opaque.parameters: Invalid value: must be a valid JSON object"}},
		{name: "no json", change: configured(opaque(strings.Repeat("a", 64), "{")), want: []string{"spec.devices.config[0].opaque.driver: Too long", "spec.devices.config[0].opaque.parameters: Invalid value: error parsing data as JSON"}},
		{name: "null", change: configured(opaque("x.org", "null")), want: []string{"spec.devices.config[0].opaque.parameters: Required value"}},
		{name: "large", change: configured(opaque("x.org", `{"a":"`+strings.Repeat("x", 10240)+`"}`)), want: []string{"spec.devices.config[0].opaque.parameters: Too long"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(ResourceClaim, request, claim(test.change))
			kindtest.Errors(t, errs, test.want...)
			template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim(test.change).Spec}}
			_, errs = kindtest.Create(ResourceClaimTemplate, request, template)
			want := make([]string, len(test.want))
			for i := range want {
				want[i] = "spec." + test.want[i]
			}
			kindtest.Errors(t, errs, want...)
		})
	}
	_, errs := kindtest.Update(ResourceClaim, request, claim(func(d devices) { d.Requests = d.Requests[:1] }), claim(nil))
	kindtest.Errors(t, errs, "spec: Invalid value: field is immutable")
}

func TestTemplateMetadata(t *testing.T) {
	template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Finalizers: []string{"f"}, Labels: map[string]string{"a": "b b"}}, Spec: claim(nil).Spec}}
	_, errs := kindtest.Create(ResourceClaimTemplate, request, template)
	kindtest.Errors(t, errs, "spec.metadata.name: Forbidden: cannot be set", "spec.metadata.uID: Forbidden", "spec.metadata.finalizers: Forbidden", "spec.metadata.labels: Invalid value")
	changed := template.DeepCopy()
	template.Spec.ObjectMeta, changed.Spec.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}
	_, errs = kindtest.Update(ResourceClaimTemplate, request, changed, template)
	kindtest.Errors(t, errs, "spec: Invalid value: field is immutable")
}

func TestTrialFieldsOfClaims(t *testing.T) {
	derived := claim(func(d *resourcev1.DeviceClaim) {
		d.Requests[0].Exactly.DerivedAttributes = []resourcev1.DeviceDerivedAttribute{{Name: "x.org/y", Expression: "1"}}
	})
	created, errs := kindtest.Create(ResourceClaim, request, derived)
	kindtest.Errors(t, errs)
	if created.Spec.Devices.Requests[0].Exactly.DerivedAttributes != nil {
		t.Error("a field on trial was kept")
	}
	updated, errs := kindtest.Update(ResourceClaim, request, derived, derived)
	kindtest.Errors(t, errs)
	if updated.Spec.Devices.Requests[0].Exactly.DerivedAttributes == nil {
		t.Error("a stored field on trial was lost")
	}
}

func TestClaimDefaults(t *testing.T) {
	c := claim(func(d *resourcev1.DeviceClaim) {
		d.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{{}}
		d.Requests[1].FirstAvailable[1].AllocationMode = "All"
	})
	ResourceClaim.Default(c)
	exactly, choices := c.Spec.Devices.Requests[0].Exactly, c.Spec.Devices.Requests[1].FirstAvailable
	if exactly.AllocationMode != "ExactCount" || exactly.Count != 1 || exactly.Tolerations[0].Operator != "Equal" || choices[0].Count != 1 || choices[1].Count != 0 {
		t.Errorf("defaults = %+v, %+v", exactly, choices)
	}
}

func allocated(change func(*resourcev1.ResourceClaimStatus)) *resourcev1.ResourceClaim {
	c := claim(nil)
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "one", Driver: "x.org", Pool: "node-1", Device: "d0"}, {Request: "any/big", Driver: "x.org", Pool: "node-1", Device: "d1"}}}}
	if change != nil {
		change(&c.Status)
	}
	return c
}

func TestClaimStatus(t *testing.T) {
	type status = *resourcev1.ResourceClaimStatus
	result := func(result resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
		return allocated(func(s status) { s.Allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{result} })
	}
	pod := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: "1"}
	reserved := func(consumers ...resourcev1.ResourceClaimConsumerReference) *resourcev1.ResourceClaim {
		return allocated(func(s status) { s.ReservedFor = consumers })
	}
	device := func(device resourcev1.AllocatedDeviceStatus) *resourcev1.ResourceClaim {
		return allocated(func(s status) { s.Devices = []resourcev1.AllocatedDeviceStatus{device} })
	}
	deleted := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		c.DeletionTimestamp = &now
		return c
	}
	d0 := resourcev1.AllocatedDeviceStatus{Driver: "x.org", Pool: "node-1", Device: "d0"}
	for _, test := range []struct {
		name     string
		obj, old *resourcev1.ResourceClaim
		want     []string
	}{
		{name: "allocate", obj: allocated(nil), old: claim(nil)},
		{name: "reserve", obj: reserved(pod), old: allocated(nil)},
		{name: "deallocate", obj: claim(nil), old: allocated(nil)},
		{name: "reallocate", obj: result(resourcev1.DeviceRequestAllocationResult{Request: "one", Driver: "x.org", Pool: "p", Device: "d9"}), old: allocated(nil), want: []string{"status.allocation: Invalid value: field cannot be modified once set"}},
		{name: "bad result", obj: result(resourcev1.DeviceRequestAllocationResult{Request: "two", Device: "D", ShareID: ptr.To(types.UID("x")), BindingConditions: []string{"a", "a"}, BindingFailureConditions: []string{"a"}}), old: claim(nil), want: []string{
			"status.allocation.devices.results[0].request: Invalid value: must be the name of a request", "status.allocation.devices.results[0].driver: Required value", "status.allocation.devices.results[0].pool: Required value",
			"status.allocation.devices.results[0].device: Invalid value", "status.allocation.devices.results[0].shareID: Invalid value",
			"status.allocation.devices.results[0].bindingConditions[1]: Duplicate value", "status.allocation.devices.results[0].bindingFailureConditions[0]: Invalid value: must not overlap"}},
		{name: "conditions alone", obj: result(resourcev1.DeviceRequestAllocationResult{Request: "one", Driver: "x.org", Pool: "a/B", Device: "d", BindingConditions: []string{"a"}}), old: claim(nil), want: []string{
			"status.allocation.devices.results[0].pool: Invalid value", "status.allocation.devices.results[0].bindingFailureConditions: Invalid value: bindingFailureConditions are required"}},
		{name: "config", obj: allocated(func(s status) {
			s.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{{DeviceConfiguration: opaque("x.org", "{}")}, {Source: "FromAir", Requests: []string{"two"}, DeviceConfiguration: opaque("x.org", "{}")}}
		}), old: claim(nil), want: []string{"status.allocation.devices.config[0].source: Required value", "status.allocation.devices.config[1].source: Unsupported value", "status.allocation.devices.config[1].requests[0]: Invalid value"}},
		{name: "nodes", obj: allocated(func(s status) { s.Allocation.NodeSelector = &corev1.NodeSelector{} }), old: claim(nil), want: []string{"status.allocation.nodeSelector.nodeSelectorTerms: Required value"}},
		{name: "reserve nothing", obj: func() *resourcev1.ResourceClaim {
			c := claim(nil)
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{pod}
			return c
		}(), old: claim(nil), want: []string{"status.reservedFor: Forbidden: may not be specified when `allocated` is not set"}},
		{name: "bad consumers", obj: reserved(resourcev1.ResourceClaimConsumerReference{}, pod, pod), old: allocated(nil), want: []string{
			"status.reservedFor[0].resource: Required value", "status.reservedFor[0].name: Required value", "status.reservedFor[0].uid: Required value", "status.reservedFor[2]: Duplicate value"}},
		{name: "reserve while deleted", obj: deleted(reserved(pod)), old: deleted(allocated(nil)), want: []string{"status.reservedFor: Forbidden: new entries may not be added"}},
		{name: "reserved while deleted", obj: deleted(reserved(pod)), old: deleted(reserved(pod))},
		{name: "report", obj: device(d0), old: allocated(nil)},
		{name: "report twice", obj: allocated(func(s status) { s.Devices = []resourcev1.AllocatedDeviceStatus{d0, d0} }), old: allocated(nil), want: []string{"status.devices[1]: Duplicate value"}},
		{name: "bad report", obj: device(resourcev1.AllocatedDeviceStatus{Driver: "x.org", Pool: "node-1", Device: "d7", ShareID: ptr.To("x"), Conditions: make([]metav1.Condition, 9)[:9:9],
			Data:        &runtime.RawExtension{Raw: []byte("1")},
			NetworkData: &resourcev1.NetworkDeviceData{InterfaceName: strings.Repeat("x", 257), HardwareAddress: strings.Repeat("x", 129), IPs: []string{"10.0.0.1/24", "10.0.0.1/24", "10.0.0.1"}}}), old: allocated(nil), want: nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.UpdateSubresource(ResourceClaim, "status", request, test.obj, test.old)
			if test.name == "bad report" {
				for _, want := range []string{"status.devices[0].shareID", "status.devices[0]", "status.devices[0].conditions", "status.devices[0].data", "status.devices[0].networkData.interfaceName", "status.devices[0].networkData.hardwareAddress", "status.devices[0].networkData.ips[1]", "status.devices[0].networkData.ips[2]"} {
					found := false
					for _, err := range errs {
						found = found || err.Field == want
					}
					if !found {
						t.Errorf("no error at %s in %v", want, errs)
					}
				}
				return
			}
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestLostDevicesAreForgotten(t *testing.T) {
	old := allocated(func(s *resourcev1.ResourceClaimStatus) {
		s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "x.org", Pool: "node-1", Device: "d0"}}
	})
	released := old.DeepCopy()
	released.Status.Allocation = nil
	got, errs := kindtest.UpdateSubresource(ResourceClaim, "status", request, released, old)
	kindtest.Errors(t, errs)
	if got.Status.Devices != nil {
		t.Errorf("devices = %v", got.Status.Devices)
	}
}

// namespaces is a Client in which only namespace "admin" has the label.
type namespaces struct{ kind.Client }

func (namespaces) Get(_ context.Context, resource schema.GroupResource, _, name string) (kind.Object, error) {
	if resource.Resource != "namespaces" || name == "lost" {
		return nil, errors.New("no such thing")
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if name == "admin" {
		namespace.Labels = map[string]string{"resource.kubernetes.io/admin-access": "true"}
	}
	return namespace, nil
}

func TestAdminAccess(t *testing.T) {
	wanting := func(namespace string) *resourcev1.ResourceClaim {
		c := claim(func(d *resourcev1.DeviceClaim) { d.Requests[0].Exactly.AdminAccess = ptr.To(true) })
		c.Namespace = namespace
		return c
	}
	granted := func(namespace string) *resourcev1.ResourceClaim {
		c := allocated(func(s *resourcev1.ResourceClaimStatus) { s.Allocation.Devices.Results[1].AdminAccess = ptr.To(true) })
		c.Namespace = namespace
		return c
	}
	check := func(what string, err error, part string) {
		t.Helper()
		if part == "" && err != nil || part != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), part)) {
			t.Errorf("%s: error = %v, want %q", what, err, part)
		}
	}
	_, err := ResourceClaim.Hooks.BeforeCreate(t.Context(), namespaces{}, request, wanting("admin"))
	check("labelled", err, "")
	_, err = ResourceClaim.Hooks.BeforeCreate(t.Context(), namespaces{}, request, wanting("ns"))
	check("unlabelled", err, "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label")
	_, err = ResourceClaim.Hooks.BeforeCreate(t.Context(), namespaces{}, request, wanting("lost"))
	check("lost", err, "could not retrieve namespace")
	_, err = ResourceClaim.Hooks.BeforeCreate(t.Context(), namespaces{}, request, claim(nil))
	check("ordinary", err, "")
	_, err = ResourceClaimTemplate.Hooks.BeforeCreate(t.Context(), namespaces{}, request, &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: wanting("").Spec}})
	check("template", err, "adminAccess: Forbidden")
	status := ResourceClaim.Subresources[0].Update
	err = status.Before(t.Context(), namespaces{}, request, granted("ns"), claim(nil))
	check("grant", err, "status.allocation.devices.results[1].adminAccess: Forbidden")
	err = status.Before(t.Context(), namespaces{}, request, granted("ns"), granted("ns"))
	check("granted before", err, "")
}

func TestClaimRows(t *testing.T) {
	reserved := allocated(func(s *resourcev1.ResourceClaimStatus) {
		s.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{}}
	})
	deleted := allocated(nil)
	deleted.DeletionTimestamp = &now
	gone := claim(nil)
	gone.DeletionTimestamp = &now
	for state, c := range map[string]*resourcev1.ResourceClaim{"pending": claim(nil), "allocated": allocated(nil), "allocated,reserved": reserved, "deleted,allocated": deleted, "deleted": gone} {
		if got, want := ResourceClaim.Row(c, now.Time), []any{"c", state, "<unknown>"}; !reflect.DeepEqual(got, want) {
			t.Errorf("row = %v, want %v", got, want)
		}
	}
}
