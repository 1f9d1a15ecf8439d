package core

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var (
	now    = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	hourly = metav1.NewTime(now.Add(-time.Hour))
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: hourly}
}

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func checkRow(t *testing.T, k *kind.Kind, obj kind.Object, want ...any) {
	t.Helper()
	if got := k.Row(obj, now); !reflect.DeepEqual(got, want) {
		t.Errorf("row\n got %#v\nwant %#v", got, want)
	}
	if len(want) != len(k.Columns) {
		t.Errorf("%d cells for %d columns", len(want), len(k.Columns))
	}
}

// TestKinds checks names, idempotent defaults and the number of cells of every kind of the group.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds() {
		if seen[k.Plural] {
			t.Errorf("%s twice", k.Plural)
		}
		seen[k.Plural] = true
		obj := k.New()
		if k.Default != nil {
			k.Default(obj)
			again := obj.DeepCopyObject().(kind.Object)
			k.Default(again)
			if !reflect.DeepEqual(obj, again) {
				t.Errorf("%s: defaults are not idempotent", k.Plural)
			}
		}
		if k.Row != nil && len(k.Row(obj, now)) != len(k.Columns) {
			t.Errorf("%s: %d cells for %d columns", k.Plural, len(k.Row(obj, now)), len(k.Columns))
		}
	}
	for plural, prefix := range map[string]string{"nodes": "/registry/minions/", "services": "/registry/services/specs/", "endpoints": "/registry/services/endpoints/", "rangeallocations": "/registry/ranges/", "events": "/registry/events/"} {
		for _, k := range Kinds() {
			if k.Plural == plural && k.KeyPrefix("") != prefix {
				t.Errorf("%s is stored at %s", plural, k.KeyPrefix(""))
			}
		}
	}
}

func TestNamespace(t *testing.T) {
	obj, errs := kindtest.Create(Namespace, nil, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/x"}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
	})
	kindtest.Errors(t, errs)
	if obj.Status.Phase != corev1.NamespaceActive || !slices.Equal(obj.Spec.Finalizers, []corev1.FinalizerName{"example.com/x", "kubernetes"}) || obj.Labels[corev1.LabelMetadataName] != "a" {
		t.Errorf("created %+v", obj)
	}
	generated := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}
	Namespace.Default(generated)
	if generated.Labels != nil {
		t.Errorf("a label before the name is known: %v", generated.Labels)
	}
	generated.Name = "a-x"
	if Namespace.Canonicalize(generated); generated.Labels[corev1.LabelMetadataName] != "a-x" {
		t.Errorf("labels %v", generated.Labels)
	}
	_, errs = kindtest.Create(Namespace, nil, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"other"}}})
	kindtest.Errors(t, errs, "spec.finalizers: Invalid value: name is neither a standard finalizer name nor is it fully qualified")

	changed := obj.DeepCopy()
	changed.Spec.Finalizers = nil
	if kept, _ := kindtest.Update(Namespace, nil, changed, obj); len(kept.Spec.Finalizers) != 2 {
		t.Errorf("a plain update took finalizers away: %v", kept.Spec.Finalizers)
	}
	final, errs := kindtest.UpdateSubresource(Namespace, "finalize", nil, changed, obj)
	kindtest.Errors(t, errs)
	if len(final.Spec.Finalizers) != 0 || Namespace.Delete.HasSpecFinalizers(final) || !Namespace.Delete.HasSpecFinalizers(obj) {
		t.Errorf("finalized %+v", final.Spec)
	}
	changed.Status.Phase = corev1.NamespaceTerminating
	_, errs = kindtest.UpdateSubresource(Namespace, "status", nil, changed, obj)
	kindtest.Errors(t, errs, "status.Phase: Invalid value: may only be 'Active' if `deletionTimestamp` is empty")
	if Namespace.Delete.MarkTerminating(changed); changed.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("phase %s", changed.Status.Phase)
	}
	obj.CreationTimestamp = hourly
	checkRow(t, Namespace, obj, "a", "Active", "60m")
	if Namespace.Serves("deletecollection") {
		t.Error("namespaces must not be deleted all at once")
	}
}

func TestConfigMapAndSecret(t *testing.T) {
	immutable := &corev1.ConfigMap{ObjectMeta: named("a"), Immutable: ptr.To(true), Data: map[string]string{"k": "v"}}
	for _, test := range []struct {
		name     string
		obj, old *corev1.ConfigMap
		want     []string
	}{
		{name: "fine", obj: &corev1.ConfigMap{Data: map[string]string{"a.b": ""}}},
		{name: "key", obj: &corev1.ConfigMap{Data: map[string]string{"a b": ""}}, want: []string{"data[a b]: Invalid value"}},
		{name: "twice", obj: &corev1.ConfigMap{Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"a": nil}}, want: []string{"data[a]: Invalid value: duplicate of key present in binaryData"}},
		{name: "large", obj: &corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("x", corev1.MaxSecretSize+1)}}, want: []string{`"": Too long`}},
		{name: "frozen", obj: &corev1.ConfigMap{Data: map[string]string{"k": "w"}, BinaryData: map[string][]byte{"b": nil}}, old: immutable, want: []string{"immutable: Forbidden", "data: Forbidden", "binaryData: Forbidden"}},
		{name: "frozen but the same", obj: immutable, old: immutable},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name == "large" {
				_, errs := kindtest.Create(ConfigMap, nil, test.obj)
				if len(errs) != 1 || errs[0].Type != "FieldValueTooLong" {
					t.Errorf("%v", errs)
				}
				return
			}
			if test.old == nil {
				_, errs := kindtest.Create(ConfigMap, nil, test.obj)
				kindtest.Errors(t, errs, test.want...)
			} else {
				_, errs := kindtest.Update(ConfigMap, nil, test.obj, test.old)
				kindtest.Errors(t, errs, test.want...)
			}
		})
	}
	checkRow(t, ConfigMap, immutable, "a", int64(1), "60m")

	for _, test := range []struct {
		kind corev1.SecretType
		data map[string][]byte
		want []string
	}{
		{kind: ""},
		{kind: "example.com/any"},
		{kind: corev1.SecretTypeTLS, want: []string{"data[tls.crt]: Required value", "data[tls.key]: Required value"}},
		{kind: corev1.SecretTypeBasicAuth, want: []string{"data[username]: Required value", "data[password]: Required value"}},
		{kind: corev1.SecretTypeBasicAuth, data: map[string][]byte{"password": nil}},
		{kind: corev1.SecretTypeSSHAuth, data: map[string][]byte{"ssh-privatekey": nil}, want: []string{"data[ssh-privatekey]: Required value"}},
		{kind: corev1.SecretTypeDockerConfigJson, data: map[string][]byte{".dockerconfigjson": []byte("x")}, want: []string{"data[.dockerconfigjson]: Invalid value: invalid character"}},
		{kind: corev1.SecretTypeServiceAccountToken, want: []string{"metadata.annotations[kubernetes.io/service-account.name]: Required value"}},
	} {
		_, errs := kindtest.Create(Secret, nil, &corev1.Secret{Type: test.kind, Data: test.data})
		kindtest.Errors(t, errs, test.want...)
	}
	secret, _ := kindtest.Create(Secret, nil, &corev1.Secret{ObjectMeta: named("s"), StringData: map[string]string{"a": "b"}, Data: map[string][]byte{"a": []byte("c")}})
	if string(secret.Data["a"]) != "b" || secret.StringData != nil {
		t.Errorf("%+v", secret)
	}
	checkRow(t, Secret, secret, "s", "Opaque", int64(1), "60m")
	if Secret.Fields["type"](secret) != "Opaque" {
		t.Error("field type")
	}
	other := secret.DeepCopy()
	other.Type = corev1.SecretTypeTLS
	_, errs := kindtest.Update(Secret, nil, other, secret)
	kindtest.Errors(t, errs, "type: Invalid value: field is immutable", "data[tls.crt]: Required value", "data[tls.key]: Required value")
	if got := Secret.Warn(other, nil); len(got) != 1 || !strings.Contains(got[0], "tls: failed to find any PEM data") {
		t.Errorf("warnings %q", got)
	}
}

func TestNode(t *testing.T) {
	status := corev1.NodeStatus{
		Capacity:   quantities("cpu", "2", "example.com/gpu", "500m"),
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
		NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", KernelVersion: "6.1", Architecture: "amd64"},
	}
	obj, errs := kindtest.Create(Node, nil, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: hourly, Labels: map[string]string{"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24", Unschedulable: true, Taints: []corev1.Taint{{Key: "a", Effect: "Never"}, {Key: "b", Effect: "NoSchedule"}, {Key: "b", Effect: "NoSchedule"}}},
		Status:     status,
	})
	kindtest.Errors(t, errs,
		"metadata.taints[0].effect: Unsupported value", "metadata.taints[2]: Duplicate value: taints must be unique by key and effect pair",
		"status.capacity.example.com/gpu: Invalid value: must be an integer", "status.allocatable.example.com/gpu: Invalid value: must be an integer")
	if len(obj.Status.Allocatable) != 2 || !slices.Equal(obj.Spec.PodCIDRs, []string{"10.1.0.0/24"}) {
		t.Errorf("%+v", obj)
	}
	checkRow(t, Node, obj, "n", "Ready,SchedulingDisabled", "edge,worker", "60m", "v1.37.1", "10.0.0.1", "<none>", "<unknown>", "6.1 (amd64)", "<unknown>")
	if Node.Fields["spec.unschedulable"](obj) != "true" {
		t.Error("field spec.unschedulable")
	}
	old := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}, ProviderID: "a"}}
	for _, test := range []struct {
		change func(*corev1.Node)
		want   []string
	}{
		{func(n *corev1.Node) {}, nil},
		{func(n *corev1.Node) { n.Spec.PodCIDRs = nil }, []string{"spec.podCIDRs: Forbidden: node updates may not change podCIDR"}},
		{func(n *corev1.Node) { n.Spec.ProviderID = "b" }, []string{"spec.providerID: Invalid value: field cannot be modified once set"}},
		{func(n *corev1.Node) { n.Spec.ProviderID = "" }, []string{"spec.providerID: Invalid value: field cannot be cleared once set"}},
		{func(n *corev1.Node) { n.Spec.DoNotUseExternalID = "x" }, []string{"spec.externalID: Forbidden: may not be updated"}},
		{func(n *corev1.Node) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "10.2.0.0/24") }, []string{"spec.podCIDRs: Invalid value: may specify no more than one CIDR for each IP family", "spec.podCIDRs: Forbidden"}},
	} {
		changed := old.DeepCopy()
		test.change(changed)
		_, errs := kindtest.Update(Node, nil, changed, old)
		kindtest.Errors(t, errs, test.want...)
	}
	features := old.DeepCopy()
	features.Status.DeclaredFeatures = []string{"B", "A", "a"}
	features.Status.Addresses = []corev1.NodeAddress{{Address: "x"}, {Address: "x"}}
	_, errs = kindtest.UpdateSubresource(Node, "status", nil, features, old)
	kindtest.Errors(t, errs, "status.declaredFeatures[1]: Invalid value: list must be sorted alphabetically", "status.declaredFeatures[2]: Invalid value: invalid feature name", "status.addresses[1]: Duplicate value")
}

func TestEndpoints(t *testing.T) {
	bad := &corev1.Endpoints{ObjectMeta: named("e"), Subsets: []corev1.EndpointSubset{
		{},
		{Addresses: []corev1.EndpointAddress{{IP: "127.0.0.1"}, {IP: "010.0.0.1"}}, Ports: []corev1.EndpointPort{{Port: 1}, {Name: "a", Port: 70000}}},
	}}
	_, errs := kindtest.Create(Endpoints, nil, bad)
	kindtest.Errors(t, errs,
		"subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
		"subsets[1].addresses[0].ip: Invalid value: may not be in the loopback range",
		"subsets[1].addresses[1].ip: Invalid value: must not have leading 0s",
		"subsets[1].ports[0].name: Required value", "subsets[1].ports[1].port: Invalid value")
	if _, errs := kindtest.Update(Endpoints, nil, bad, bad); len(errs) > 0 {
		t.Errorf("what is stored may stay: %v", errs)
	}
	good := &corev1.Endpoints{ObjectMeta: named("e"), Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}, Ports: []corev1.EndpointPort{{Name: "a", Port: 80}, {Name: "b", Port: 81}},
	}}}
	good, errs = kindtest.Create(Endpoints, nil, good)
	kindtest.Errors(t, errs)
	checkRow(t, Endpoints, good, "e", "10.0.0.1:80,10.0.0.2:80,10.0.0.1:81 + 1 more...", "60m")
	checkRow(t, Endpoints, &corev1.Endpoints{ObjectMeta: named("e")}, "e", "<none>", "60m")
}

func TestLimitRange(t *testing.T) {
	limits := func(items ...corev1.LimitRangeItem) *corev1.LimitRange {
		return &corev1.LimitRange{ObjectMeta: named("l"), Spec: corev1.LimitRangeSpec{Limits: items}}
	}
	obj, errs := kindtest.Create(LimitRange, nil, limits(corev1.LimitRangeItem{Type: "Container", Max: quantities("cpu", "2"), Min: quantities("cpu", "1", "memory", "1Gi")}))
	kindtest.Errors(t, errs)
	item := obj.Spec.Limits[0]
	if !item.Default.Cpu().Equal(resource.MustParse("2")) || !item.DefaultRequest.Cpu().Equal(resource.MustParse("2")) || !item.DefaultRequest.Memory().Equal(resource.MustParse("1Gi")) {
		t.Errorf("defaults %+v", item)
	}
	for _, test := range []struct {
		items []corev1.LimitRangeItem
		want  []string
	}{
		{[]corev1.LimitRangeItem{{Type: "Pod"}, {Type: "Pod"}}, []string{"spec.limits[1].type: Duplicate value"}},
		{[]corev1.LimitRangeItem{{Type: "Nothing"}}, []string{"spec.limits[0].type: Invalid value: must be a standard limit type or fully qualified"}},
		{[]corev1.LimitRangeItem{{Type: "Pod", Default: quantities("cpu", "1")}}, []string{"spec.limits[0].default: Forbidden"}},
		{[]corev1.LimitRangeItem{{Type: "Pod", Min: quantities("cpu", "2"), Max: quantities("cpu", "1")}}, []string{"spec.limits[0].min[cpu]: Invalid value: min value 2 is greater than max value 1"}},
		{[]corev1.LimitRangeItem{{Type: "Pod", Max: quantities("storage", "1")}}, []string{"spec.limits[0].max[storage]: Invalid value: must be a standard resource for containers"}},
		{[]corev1.LimitRangeItem{{Type: "PersistentVolumeClaim"}}, []string{"spec.limits[0].limits: Required value"}},
		{[]corev1.LimitRangeItem{{Type: "Pod", Min: quantities("cpu", "100m"), Max: quantities("cpu", "300m"), MaxLimitRequestRatio: quantities("cpu", "3")}}, nil},
		{[]corev1.LimitRangeItem{{Type: "Pod", Min: quantities("cpu", "100m"), Max: quantities("cpu", "300m"), MaxLimitRequestRatio: quantities("cpu", "4")}}, []string{"spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: ratio 4 is greater than max/min = 3.000000"}},
	} {
		_, errs := kindtest.Create(LimitRange, nil, limits(test.items...))
		kindtest.Errors(t, errs, test.want...)
	}
}

func TestResourceQuota(t *testing.T) {
	quota := func(hard corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{ObjectMeta: named("q"), Spec: corev1.ResourceQuotaSpec{Hard: hard, Scopes: scopes}}
	}
	for _, test := range []struct {
		obj, old *corev1.ResourceQuota
		want     []string
	}{
		{obj: quota(quantities("pods", "1", "count/jobs.batch", "2", "requests.example.com/gpu", "1"))},
		{obj: quota(quantities("pods", "500m", "nothing", "1")), want: []string{"spec.hard[pods]: Invalid value: must be an integer", "spec.hard[nothing]: Invalid value: must be a standard resource type or fully qualified", "spec.hard[nothing]: Invalid value: must be a standard resource for quota"}},
		{obj: quota(quantities("services", "1"), "BestEffort"), want: []string{"spec.scopes: Invalid value: unsupported scope applied to resource"}},
		{obj: quota(quantities("pods", "1"), "BestEffort", "NotBestEffort"), want: []string{"spec.scopes: Invalid value: conflicting scopes"}},
		{obj: quota(nil, "Other"), want: []string{"spec.scopes: Invalid value: unsupported scope"}},
		{obj: quota(nil, "Terminating"), old: quota(nil), want: []string{"spec.scopes: Invalid value: field is immutable"}},
	} {
		if test.old == nil {
			_, errs := kindtest.Create(ResourceQuota, nil, test.obj)
			kindtest.Errors(t, errs, test.want...)
		} else {
			_, errs := kindtest.Update(ResourceQuota, nil, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		}
	}
	used := quota(nil)
	used.Status = corev1.ResourceQuotaStatus{Hard: quantities("pods", "2", "limits.cpu", "4", "cpu", "1"), Used: quantities("pods", "1")}
	checkRow(t, ResourceQuota, used, "q", "cpu: 0/1, pods: 1/2", "limits.cpu: 0/4", "60m")
	if got := ResourceQuota.Warn(quota(quantities("cpu", "2", "limits.cpu", "1")), nil); !slices.Equal(got, []string{"ResourceQuota cpu (2) should be less than limits.cpu (1)"}) {
		t.Errorf("warnings %q", got)
	}
}

func TestServiceAccount(t *testing.T) {
	obj, _ := kindtest.Create(ServiceAccount, nil, &corev1.ServiceAccount{ObjectMeta: named("s"), Secrets: []corev1.ObjectReference{{Name: "a", Namespace: "b", Kind: "Secret"}}})
	if !reflect.DeepEqual(obj.Secrets, []corev1.ObjectReference{{Name: "a"}}) {
		t.Errorf("secrets %+v", obj.Secrets)
	}
	checkRow(t, ServiceAccount, obj, "s", "60m")
	marked := obj.DeepCopy()
	marked.Annotations = map[string]string{enforceMountableSecrets: "true"}
	if len(ServiceAccount.Warn(marked, obj)) != 1 || len(ServiceAccount.Warn(marked, marked)) != 0 {
		t.Error("the annotation warns once")
	}
}

func TestEvent(t *testing.T) {
	fresh := corev1.Event{
		ObjectMeta: named("e"), EventTime: metav1.NewMicroTime(now), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "ns"},
		ReportingController: "c", ReportingInstance: "i", Action: "a", Reason: "r", Type: "Normal", Message: " m ",
	}
	newAPI := &kind.Request{APIVersion: eventsv1.SchemeGroupVersion}
	for _, test := range []struct {
		name         string
		change       func(*corev1.Event)
		old, current []string
	}{
		{name: "complete", change: func(*corev1.Event) {}},
		{name: "old style", change: func(e *corev1.Event) { *e = corev1.Event{ObjectMeta: named("e"), InvolvedObject: e.InvolvedObject} }, current: []string{"eventTime: Required value", "type: Invalid value: has invalid value: "}},
		{name: "other namespace, old style", change: func(e *corev1.Event) { e.EventTime = metav1.MicroTime{}; e.InvolvedObject.Namespace = "other" }, old: []string{"involvedObject.namespace: Invalid value: does not match event.namespace"}, current: []string{"involvedObject.namespace: Invalid value", "eventTime: Required value"}},
		{name: "no controller", change: func(e *corev1.Event) { e.ReportingController = "" }, old: []string{"reportingComponent: Required value", "reportingComponent: Invalid value", "reportingComponent: Invalid value"}, current: []string{"reportingController: Required value", "reportingController: Invalid value", "reportingController: Invalid value"}},
		{name: "deprecated fields", change: func(e *corev1.Event) { e.Count = 2; e.Source.Host = "h"; e.FirstTimestamp = hourly }, current: []string{"count: Invalid value: needs to be unset", "source: Invalid value: needs to be unset", "firstTimestamp: Invalid value: needs to be unset"}},
		{name: "series", change: func(e *corev1.Event) { e.Series = &corev1.EventSeries{Count: 1} }, current: []string{"series.count: Invalid value: should be at least 2", "series.lastObservedTime: Required value"}},
		{name: "name", change: func(e *corev1.Event) { e.Name = "A_b" }, current: []string{"metadata.name: Invalid value"}},
		{name: "long", change: func(e *corev1.Event) { e.Message = strings.Repeat("x", 1025) }, old: []string{"message: Invalid value: can have at most 1024 characters"}, current: []string{"message: Invalid value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			obj := fresh.DeepCopy()
			test.change(obj)
			_, errs := kindtest.Create(Event, &kind.Request{APIVersion: corev1.SchemeGroupVersion}, obj)
			kindtest.Errors(t, errs, test.old...)
			_, errs = kindtest.Create(Event, newAPI, obj)
			kindtest.Errors(t, errs, test.current...)
		})
	}
	changed := fresh.DeepCopy()
	changed.Reason, changed.Series = "other", &corev1.EventSeries{Count: 3, LastObservedTime: metav1.NewMicroTime(now.Add(-time.Minute))}
	_, errs := kindtest.Update(Event, newAPI, changed, &fresh)
	kindtest.Errors(t, errs, "reason: Invalid value: field is immutable")

	version := Event.Versions[1]
	served, err := version.FromStorageVersion(changed)
	if err != nil {
		t.Fatal(err)
	}
	if event := served.(*eventsv1.Event); event.Regarding.Name != "p" || event.Note != " m " || event.Series.Count != 3 {
		t.Errorf("served %+v", event)
	}
	back, err := version.ToStorageVersion(served)
	back.(*corev1.Event).TypeMeta = metav1.TypeMeta{}
	if err != nil || !reflect.DeepEqual(back, changed) {
		t.Errorf("round trip: %v\n%+v\n%+v", err, back, changed)
	}
	for label, stored := range version.Fields {
		if Event.Fields[stored] == nil {
			t.Errorf("%s maps to %s, which is no field", label, stored)
		}
	}
	checkRow(t, Event, changed, "60s", "Normal", "other", "pod/p", "", "c, i", "m", "0s", int64(3), "e")
	checkRow(t, Event, &corev1.Event{ObjectMeta: named("e"), FirstTimestamp: hourly, Source: corev1.EventSource{Component: "c"}, InvolvedObject: corev1.ObjectReference{Kind: "Node"}}, "60m", "", "", "node", "", "c", "", "60m", int64(1), "e")
}

type healthyEnv struct{ kind.Client }

func (healthyEnv) ComponentHealth(context.Context) []kind.ComponentHealth {
	return []kind.ComponentHealth{{Name: "etcd-0", Message: "ok"}, {Name: "scheduler", Err: errors.New("refused")}}
}

func TestComponentStatus(t *testing.T) {
	if got, err := ComponentStatus.Computed(context.Background(), newMemoryClient()); err != nil || len(got) != 0 {
		t.Errorf("without checks: %v %v", got, err)
	}
	got, err := ComponentStatus.Computed(context.Background(), healthyEnv{})
	if err != nil || len(got) != 2 {
		t.Fatalf("%v %v", got, err)
	}
	checkRow(t, ComponentStatus, got[0], "etcd-0", "Healthy", "ok", "")
	checkRow(t, ComponentStatus, got[1], "scheduler", "Unhealthy", "", "refused")
}

// The objects that the server creates at start are valid.
func TestBootstrap(t *testing.T) {
	for _, namespace := range SystemNamespaces() {
		_, errs := kindtest.Create(Namespace, nil, namespace)
		kindtest.Errors(t, errs)
	}
	ip, err := FirstServiceIP("10.96.0.0/12")
	if err != nil || ip.String() != "10.96.0.1" {
		t.Fatalf("%v %v", ip, err)
	}
	if _, err := FirstServiceIP("10.96.0.0/32"); err == nil {
		t.Error("a range without addresses")
	}
	client := newMemoryClient(NewDefaultServiceCIDR([]string{"10.96.0.0/12", "fd00::/108"}, hourly))
	stored := mustWrite(t, client, NewKubernetesService(ip, 6443))
	if stored.Spec.ClusterIP != "10.96.0.1" || len(stored.Spec.IPFamilies) != 1 || stored.Spec.Ports[0].TargetPort.IntVal != 6443 {
		t.Errorf("%+v", stored.Spec)
	}
	servers := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	_, errs := kindtest.Create(Endpoints, nil, NewKubernetesEndpoints(servers, 6443))
	kindtest.Errors(t, errs)
	if slice := NewKubernetesEndpointSlice(servers, 6443); slice.AddressType != "IPv4" || len(slice.Endpoints) != 1 {
		t.Errorf("%+v", slice)
	}
	if slice := NewKubernetesEndpointSlice(servers[1:], 6443); slice.AddressType != "IPv6" || len(slice.Endpoints) != 1 {
		t.Errorf("%+v", slice)
	}
}
