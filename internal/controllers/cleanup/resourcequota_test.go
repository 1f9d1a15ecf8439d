package cleanup

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/retry"

	"skiff/internal/api/core"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/quota"
	"skiff/test/inprocess"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = apiresource.MustParse(pairs[i+1])
	}
	return list
}

func TestQuotaIsAddedUp(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ResourceQuota)
	create(t, c, thing("default", "before"))
	create(t, c, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limits"},
		Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods", "5", "requests.cpu", "2", "configmaps", "10", "count/deployments.apps", "3", "count/widgets.example.com", "1")}})
	used := func(want ...string) {
		t.Helper()
		expected := amounts(want...)
		var status corev1.ResourceQuotaStatus
		eventually(t, "the quota says what is used", func() bool {
			found, err := client.For[*corev1.ResourceQuota](c).Get(t.Context(), "default", "limits")
			if err != nil {
				t.Fatal(err)
			}
			status = found.Status
			return quota.Equal(status.Used, expected) && quota.Equal(status.Hard, found.Spec.Hard)
		})
	}
	used("pods", "0", "requests.cpu", "0", "configmaps", "1", "count/deployments.apps", "0")
	pod := podOf("default", "pod")
	pod.Spec.Containers[0].Resources.Requests = amounts("cpu", "500m")
	create(t, c, pod)
	used("pods", "1", "requests.cpu", "500m", "configmaps", "1", "count/deployments.apps", "0")
	zero := int64(0)
	if err := client.For[*corev1.Pod](c).Delete(t.Context(), "default", "pod", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "default", "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("pods", "0", "requests.cpu", "0", "configmaps", "0", "count/deployments.apps", "0")
}

func TestRecounted(t *testing.T) {
	for _, test := range []struct {
		what             string
		hard, status     corev1.ResourceList
		used, sum, after corev1.ResourceList
		changed          bool
	}{
		{"new", amounts("pods", "1"), nil, nil, amounts("pods", "0"), amounts("pods", "0"), true},
		{"limits nothing", nil, nil, nil, nil, nil, false},
		{"as before", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), false},
		{"freed", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "0"), amounts("pods", "0"), true},
		{"limit changed", amounts("pods", "2"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), true},
		{"not counted", amounts("pods", "1", "secrets", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "1"), false},
		{"a new limit beside an old one", amounts("pods", "1", "secrets", "2"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "2"), amounts("pods", "1", "secrets", "2"), true},
		{"a new limit that cannot be counted", amounts("pods", "1", "secrets", "2"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), true},
		{"nothing could be counted", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "3"), nil, amounts("pods", "3"), false},
		{"the same amount in other words", amounts("requests.cpu", "1"), amounts("requests.cpu", "1000m"), amounts("requests.cpu", "500m"), amounts("requests.cpu", "0.5"), amounts("requests.cpu", "500m"), false},
		{"what is counted and not limited is left out", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "7"), amounts("pods", "1"), false},
		{"no limits any more", nil, amounts("pods", "1"), amounts("pods", "1"), nil, nil, true},
		{"more than is allowed", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "5"), amounts("pods", "5"), true},
		{"a very large amount", amounts("requests.storage", "8Ei"), amounts("requests.storage", "8Ei"), amounts("requests.storage", "1"), amounts("requests.storage", "7Ei"), amounts("requests.storage", "7Ei"), true},
		{"no longer limited", amounts("pods", "1"), amounts("pods", "1"), amounts("pods", "1", "secrets", "1"), amounts("pods", "1"), amounts("pods", "1"), true},
	} {
		found := &corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: test.hard}, Status: corev1.ResourceQuotaStatus{Hard: test.status, Used: test.used}}
		status, changed := calculatedStatus(found, test.sum)
		if changed != test.changed || !quota.Equal(status.Used, test.after) || !quota.Equal(status.Hard, test.hard) {
			t.Errorf("%s: %v %v", test.what, changed, status)
		}
	}
}

func TestOnlyUnknown(t *testing.T) {
	unknownKind, other := fmt.Errorf("%w for widgets", errNoMatch), errors.New("no route")
	for _, test := range []struct {
		what string
		err  error
		want bool
	}{
		{"a kind nobody knows", unknownKind, true},
		{"wrapped", fmt.Errorf("count: %w", unknownKind), true},
		{"something else", other, false},
		{"two kinds", errors.Join(unknownKind, unknownKind), true},
		{"one of two", errors.Join(unknownKind, other), false},
		{"the other of two", errors.Join(other, unknownKind), false},
	} {
		if got := isOnlyNoMatch(test.err); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

// TestQuotaOfANewResource: a resource that is defined after the first discovery is counted, and one that does not exist causes no further
// discovery.
func TestQuotaOfANewResource(t *testing.T) {
	responses := maps.Clone(known)
	responses["GET /apis"] = []string{`{"kind":"APIGroupList","groups":[]}`, known["GET /apis"][0]}
	const objects = "GET /apis/example.com/v1/namespaces/work/things"
	responses[objects] = []string{listing("a", "b")}
	metadataClient, heard := playing(t, responses)
	q := &quotas{
		metadataClient: metadataClient, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery)),
		rediscovery: rate.NewLimiter(rate.Every(time.Hour), 1),
	}
	if found, err := q.objects(t.Context(), schema.GroupResource{Group: "example.com", Resource: "things"}, "work"); err != nil || len(found) != 2 {
		t.Errorf("counted %d objects, %v", len(found), err)
	}
	for range 3 {
		if _, err := q.objects(t.Context(), schema.GroupResource{Group: "example.com", Resource: "gadgets"}, "work"); !errors.Is(err, errNoMatch) {
			t.Errorf("of a resource that does not exist: %v", err)
		}
	}
	if discoveries := slices.DeleteFunc(slices.Clone(heard.asked), func(r string) bool { return r != "GET /apis" }); len(discoveries) != 2 {
		t.Errorf("%d discoveries, want 2", len(discoveries))
	}
}

// TestQuotaMonitors: a resource that a quota counts has a monitor while it is served and counted.
func TestQuotaMonitors(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	things := schema.GroupResource{Group: "example.com", Resource: "things"}
	serve := func(names ...string) map[string][]string {
		responses := maps.Clone(known)
		for _, path := range []string{"GET /apis/example.com/v1/things", "GET /apis/example.com/v1/namespaces/default/things"} {
			responses[path] = []string{listing(names...)}
		}
		return responses
	}
	metadataClient, server := playing(t, serve("a"))
	set := func(responses map[string][]string) {
		server.mu.Lock()
		defer server.mu.Unlock()
		server.responses = responses
	}
	var q *quotas
	run(t, c, controller.Definition{Name: ResourceQuota.Name, New: func(s *controller.Setup) (controller.Syncer, error) {
		made, err := ResourceQuota.New(s)
		if err != nil {
			return nil, err
		}
		q = made.(*quotas)
		q.metadataClient, q.rediscovery = metadataClient, rate.NewLimiter(rate.Inf, 1)
		q.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery))
		return q, nil
	}})
	monitor := func() *quotaMonitor { return q.monitorOf(things) }
	create(t, c, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts("count/things.example.com", "5")}})
	eventually(t, "the resource is monitored", func() bool { return monitor() != nil })
	// The definition is deleted.
	unserved := maps.Clone(known)
	unserved["GET /apis"] = []string{`{"kind":"APIGroupList","groups":[]}`}
	delete(unserved, "GET /apis/example.com/v1")
	set(unserved)
	eventually(t, "the monitor is stopped", func() bool { return monitor() == nil })
	// It is created again.
	set(serve("a", "b"))
	change := func(hard ...string) {
		t.Helper()
		// The controller writes the status meanwhile.
		if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			found, err := client.For[*corev1.ResourceQuota](c).Get(t.Context(), "default", "limits")
			if err != nil {
				return err
			}
			changed := found.DeepCopy()
			changed.Spec.Hard = amounts(hard...)
			_, err = client.For[*corev1.ResourceQuota](c).Update(t.Context(), changed, client.WriteOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	change("count/things.example.com", "6")
	eventually(t, "the resource is monitored again", func() bool { return monitor() != nil })
	q.stopUnusedMonitors()
	if monitor() == nil {
		t.Error("the monitor of a resource that a quota counts was stopped")
	}
	change("pods", "1")
	eventually(t, "the monitor is not used", func() bool { q.stopUnusedMonitors(); return monitor() == nil })
}

// TestQuotasOfScopes: a quota for some pods counts those only, and a second one counts for itself.
func TestQuotasOfScopes(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ResourceQuota)
	quotaFor := func(name string, scopes ...corev1.ResourceQuotaScope) {
		create(t, c, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods", "9"), Scopes: scopes}})
	}
	quotaFor("all")
	quotaFor("best-effort", corev1.ResourceQuotaScopeBestEffort)
	quotaFor("other", corev1.ResourceQuotaScopeNotBestEffort)
	quotaFor("limited", corev1.ResourceQuotaScopeTerminating)
	sized := podOf("default", "sized")
	sized.Spec.Containers[0].Resources.Requests = amounts("cpu", "1")
	limited := podOf("default", "limited")
	limited.Spec.ActiveDeadlineSeconds = new(int64(5))
	ended := podOf("default", "ended")
	for _, pod := range []*corev1.Pod{podOf("default", "plain"), sized, limited, ended} {
		create(t, c, pod)
	}
	found, err := client.For[*corev1.Pod](c).Get(t.Context(), "default", "ended")
	if err != nil {
		t.Fatal(err)
	}
	over := found.DeepCopy()
	over.Status.Phase = corev1.PodSucceeded
	if _, err := client.For[*corev1.Pod](c).UpdateStatus(t.Context(), over); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"all": "3", "best-effort": "2", "other": "1", "limited": "1"} {
		eventually(t, name+" counts "+want, func() bool {
			q, err := client.For[*corev1.ResourceQuota](c).Get(t.Context(), "default", name)
			if err != nil {
				t.Fatal(err)
			}
			return quota.Equal(q.Status.Used, amounts("pods", want))
		})
	}
}

// TestWhatQuotasCount: one namespace for each rule, with a quota and what it counts.
func TestWhatQuotasCount(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ResourceQuota)
	create(t, c, core.NewDefaultServiceCIDR([]string{"10.96.0.0/12"}, metav1.Now())) // services need addresses
	pod := func(change func(*corev1.Pod)) func(string) kind.Object {
		return func(namespace string) kind.Object {
			p := podOf(namespace, "")
			p.GenerateName = "p-"
			change(p)
			return p
		}
	}
	asking := func(requests, limits corev1.ResourceList) func(string) kind.Object {
		return pod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		})
	}
	service := func(of corev1.ServiceType) func(string) kind.Object {
		return func(namespace string) kind.Object {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "s-"}, Spec: corev1.ServiceSpec{Type: of, ExternalName: map[corev1.ServiceType]string{corev1.ServiceTypeExternalName: "x.example"}[of], Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}}}}
		}
	}
	claim := func(size, class string) func(string) kind.Object {
		return func(namespace string) kind.Object {
			pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "c-"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", size)}}}
			if class != "" {
				pvc.Spec.StorageClassName = &class
			}
			return pvc
		}
	}
	secret := func(namespace string) kind.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "x-"}}
	}
	all := func(makers ...func(string) kind.Object) []func(string) kind.Object { return makers }
	for i, test := range []struct {
		what    string
		objects []func(string) kind.Object
		used    []string
	}{
		{"nothing", nil, []string{"pods", "0", "secrets", "0", "requests.cpu", "0"}},
		{"objects by their names", all(secret, secret), []string{"secrets", "2", "count/secrets", "2", "count/configmaps", "0"}},
		{"pods", all(pod(func(*corev1.Pod) {}), pod(func(*corev1.Pod) {})), []string{"pods", "2", "count/pods", "2"}},
		{"requests and limits add up", all(asking(amounts("cpu", "250m", "memory", "1Gi"), amounts("cpu", "1", "memory", "2Gi")), asking(amounts("cpu", "1", "memory", "512Mi"), amounts("cpu", "1", "memory", "1Gi"))),
			[]string{"requests.cpu", "1250m", "cpu", "1250m", "requests.memory", "1536Mi", "limits.cpu", "2", "limits.memory", "3Gi"}},
		{"all containers of a pod", all(pod(func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "i"})
			for j := range p.Spec.Containers {
				p.Spec.Containers[j].Resources.Requests = amounts("cpu", "300m")
			}
		})), []string{"requests.cpu", "600m"}},
		{"what comes before containers counts when it is more", all(pod(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amounts("cpu", "300m", "memory", "2Gi")
			p.Spec.InitContainers = []corev1.Container{{Name: "before", Image: "i", Resources: corev1.ResourceRequirements{Requests: amounts("cpu", "900m", "memory", "1Gi")}}}
		})), []string{"requests.cpu", "900m", "requests.memory", "2Gi"}},
		{"services by their type", all(service(corev1.ServiceTypeClusterIP), service(corev1.ServiceTypeExternalName), service(corev1.ServiceTypeNodePort), service(corev1.ServiceTypeLoadBalancer)),
			[]string{"services", "4", "services.nodeports", "4", "services.loadbalancers", "1"}}, // a port of the nodes for each of theirs
		{"claims", all(claim("1Gi", ""), claim("2Gi", "fast")), []string{"persistentvolumeclaims", "2", "requests.storage", "3Gi", "fast.storageclass.storage.k8s.io/requests.storage", "2Gi", "fast.storageclass.storage.k8s.io/persistentvolumeclaims", "1", "slow.storageclass.storage.k8s.io/requests.storage", "0"}},
	} {
		namespace := fmt.Sprint("quota-", i)
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		for _, make := range test.objects {
			if _, err := c.Create(t.Context(), make(namespace), client.WriteOptions{}); err != nil {
				t.Fatalf("%s: %v", test.what, err)
			}
		}
		hard := corev1.ResourceList{}
		for name := range amounts(test.used...) {
			hard[name] = apiresource.MustParse("100")
		}
		create(t, c, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}})
		eventually(t, fmt.Sprintf("%s: %v are used", test.what, test.used), func() bool {
			found, err := client.For[*corev1.ResourceQuota](c).Get(t.Context(), namespace, "q")
			if err != nil {
				t.Fatal(err)
			}
			return quota.Equal(found.Status.Used, amounts(test.used...)) && quota.Equal(found.Status.Hard, hard)
		})
	}
}
