package apiservice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/api/apiregistration"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/test/inprocess"
	"skiff/test/metrics"
)

func TestDecide(t *testing.T) {
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	local := func(managed string) *apiService { return newLocal(gv, apiregistration.CustomPriority, managed) }
	changed := func(managed string) *apiService {
		s := local(managed)
		s.Spec.VersionPriority++
		return s
	}
	for _, test := range []struct {
		name string
		view view
		want action
	}{
		{"nothing", view{}, actionNone},
		{"built-in, absent", view{desired: local(manageOnStart)}, actionCreate},
		{"built-in, deleted by someone", view{desired: local(manageOnStart), synced: true}, actionNone},
		{"built-in, as it should be", view{desired: local(manageOnStart), current: local(manageOnStart), atStart: true}, actionNone},
		{"built-in, changed before the start", view{desired: local(manageOnStart), current: changed(manageOnStart), atStart: true}, actionUpdate},
		{"built-in, changed since", view{desired: local(manageOnStart), current: changed(manageOnStart), atStart: true, synced: true}, actionNone},
		{"built-in, created by another server", view{desired: local(manageOnStart), current: changed(manageOnStart)}, actionNone},
		{"built-in, someone else's", view{desired: local(manageOnStart), current: changed(""), atStart: true}, actionNone},
		{"no longer built in", view{current: local(manageOnStart), atStart: true}, actionDelete},
		{"no longer built in, synced", view{current: local(manageOnStart), atStart: true, synced: true}, actionNone},
		{"built in by a newer server", view{current: local(manageOnStart)}, actionNone},
		{"custom, absent", view{desired: local(manageAlways), synced: true}, actionCreate},
		{"custom, changed", view{desired: local(manageAlways), current: changed(manageAlways), synced: true}, actionUpdate},
		{"custom, someone else's", view{desired: local(manageAlways), current: changed("")}, actionNone},
		{"custom, definition deleted", view{current: local(manageAlways), synced: true}, actionDelete},
		{"someone else's", view{current: local("")}, actionNone},
	} {
		if got := decide(test.view); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestUnavailable(t *testing.T) {
	service := func(kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
	}
	slice := func(port string, ready ...bool) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: &port, Port: ptr.To[int32](8443)}}}
		for _, r := range ready {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &r}})
		}
		return s
	}
	reference := func(port int32) *apiregistrationv1.ServiceReference {
		return &apiregistrationv1.ServiceReference{Namespace: "team", Name: "api", Port: &port}
	}
	for _, test := range []struct {
		name            string
		backing         backing
		reason, message string
	}{
		{"no service", backing{reference: reference(443)}, "ServiceNotFound", `service/api in "team" is not present`},
		{"other type", backing{reference: reference(443), service: service(corev1.ServiceTypeExternalName)}, "", ""},
		{"other port", backing{reference: reference(80), service: service(corev1.ServiceTypeClusterIP)}, "ServicePortError", `service/api in "team" is not listening on port 80`},
		{"no slices", backing{reference: reference(443), service: service(corev1.ServiceTypeClusterIP)}, "EndpointsNotFound", `cannot find endpointslices for service/api in "team"`},
		{"nothing ready", backing{reference: reference(443), service: service(corev1.ServiceTypeClusterIP), slices: []*discoveryv1.EndpointSlice{slice("https", false), slice("other", true)}},
			"MissingEndpoints", `endpointslices for service/api in "team" have no addresses with port name "https"`},
		{"ready", backing{reference: reference(443), service: service(corev1.ServiceTypeClusterIP), slices: []*discoveryv1.EndpointSlice{slice("https", false, true)}}, "", ""},
	} {
		if reason, message := test.backing.unavailable(); reason != test.reason || message != test.message {
			t.Errorf("%s: %s %q", test.name, reason, message)
		}
	}
}

// world is a server with the controllers. Whether aggregated servers respond is decided by the test.
type world struct {
	t        *testing.T
	ctx      context.Context
	client   *client.Client
	services client.Resource[*apiService]
	registry *prometheus.Registry

	mu         sync.Mutex
	checkErr   error
	checks     int
	registered bool
}

func (w *world) check(context.Context, *apiService) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks++
	return w.checkErr
}

func (w *world) setCheck(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkErr = err
}

func (w *world) checked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checks
}

// run runs a test in a bubble with the controllers. setUp is called before they start.
func run(t *testing.T, setUp, test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := inprocess.Start(t, ctx)
		w := &world{t: t, ctx: ctx, client: c, services: client.For[*apiService](c), registry: prometheus.NewRegistry()}
		measured := NewMetrics()
		w.registry.MustRegister(measured)
		setUp(w)
		controllers, err := New(Config{
			Client: c, BuiltIn: []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "apiregistration.k8s.io", Version: "v1"}}, Check: w.check,
			OnRegistered: func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.registered = true
			},
			Metrics: measured, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- controllers.Run(ctx) }()
		test(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) create(service *apiService) {
	w.t.Helper()
	if _, err := w.services.Create(w.ctx, service, client.WriteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// condition is the condition Available of an APIService as text; empty: it does not exist.
func (w *world) condition(name string) string {
	w.t.Helper()
	service, err := w.services.Get(w.ctx, "", name)
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		w.t.Fatal(err)
	}
	c := apiregistration.Condition(&service.Status, apiregistrationv1.Available)
	if c == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

// expect waits until the condition is this.
func (w *world) expect(name, want string) {
	w.t.Helper()
	w.until(fmt.Sprintf("condition of %s is %q", name, want), func() bool { return w.condition(name) == want })
}

// until waits for a condition, in the bubble's time.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain until %s", what)
		}
	}
}

const localCondition = "True Local Local APIServices are always available"

func definitionOf(versions ...string) *definition {
	crd := &definition{ObjectMeta: metav1.ObjectMeta{Name: "foos.example.com"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "foos", Singular: "foo", Kind: "Foo", ListKind: "FooList"},
	}}
	for i, v := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v, Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		})
	}
	return crd
}

func TestRegistration(t *testing.T) {
	run(t, func(w *world) {
		// An earlier server has registered a group that is gone, and someone has redirected another.
		w.create(newLocal(schema.GroupVersion{Group: "old.example.com", Version: "v1"}, apiregistration.CustomPriority, manageOnStart))
		w.create(newLocal(schema.GroupVersion{Group: "other.example.com", Version: "v1"}, apiregistration.CustomPriority, ""))
	}, func(w *world) {
		w.expect("v1.", localCondition)
		w.expect("v1.apps", localCondition)
		w.expect("v1.old.example.com", "")
		w.expect("v1.other.example.com", localCondition)
		w.expect("v1.apiregistration.k8s.io", "")
		w.until("the registration is complete", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.registered
		})
		apps, err := w.services.Get(w.ctx, "", "v1.apps")
		if err != nil || apps.Labels[managedLabel] != manageOnStart || apps.Spec.GroupPriorityMinimum != 17800 || apps.Spec.VersionPriority != 15 {
			w.t.Errorf("%+v %v", apps, err)
		}
		definitions := client.For[*definition](w.client)
		created, err := definitions.Create(w.ctx, definitionOf("v1", "v2"), client.WriteOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		w.expect("v1.example.com", localCondition)
		w.expect("v2.example.com", localCondition)
		// The APIServices of custom resources come back, those of built-in group versions do not.
		for _, name := range []string{"v1.example.com", "v1.apps"} {
			if err := w.services.Delete(w.ctx, "", name, metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		}
		w.expect("v1.example.com", localCondition)
		w.expect("v1.apps", "")
		changed := created.DeepCopy()
		changed.Spec.Versions[1].Served = false
		if _, err := definitions.Update(w.ctx, changed, client.WriteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		w.expect("v2.example.com", "")
		w.expect("v1.example.com", localCondition)
		w.expect("v1.apps", "")
	})
}

// The schemas of all definitions would take much memory.
func TestDefinitionsAreKeptWithoutSchemas(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := inprocess.Start(t, ctx)
	env := controller.Environment{Client: c, Informers: client.NewInformers(c), Events: client.NewEventBroadcaster(c), Log: slog.New(slog.DiscardHandler)}
	if _, err := controller.NewLoop(controller.Definition{Name: "autoregister", New: func(s *controller.Setup) (controller.Syncer, error) {
		return newRegistration(Config{Client: c, OnRegistered: func() {}}, s)
	}}, env); err != nil {
		t.Fatal(err)
	}
	created, err := client.For[*definition](c).Create(ctx, definitionOf("v1"), client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = env.Informers.Run(ctx) })
	if err := env.Informers.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	crd, ok := client.InformerFor[*definition](env.Informers).Get("", created.Name)
	if !ok || len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Schema != nil || !crd.Spec.Versions[0].Served || crd.ResourceVersion != created.ResourceVersion {
		t.Errorf("%+v", crd)
	}
}

// numbered is an error with the number of the check in its text.
type numbered struct{ w *world }

func (n numbered) Error() string { return fmt.Sprintf("check %d failed", n.w.checked()) }

func TestAvailability(t *testing.T) {
	run(t, func(*world) {}, func(w *world) {
		remote := newLocal(schema.GroupVersion{Group: "example.com", Version: "v1"}, apiregistration.CustomPriority, "")
		remote.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "api"}
		remote.Spec.InsecureSkipTLSVerify = true
		w.create(remote)
		w.expect(remote.Name, `False ServiceNotFound service/api in "default" is not present`)
		if w.checked() != 0 {
			w.t.Error("a Service that does not exist was checked")
		}
		w.setCheck(errors.New("bad status"))
		if _, err := client.For[*corev1.Service](w.client).Create(w.ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "api"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"},
		}, client.WriteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		w.expect(remote.Name, "False FailedDiscoveryCheck bad status")
		// The text of an error may differ each time, as with the port of a connection. It does not cause the next check.
		w.setCheck(numbered{w})
		// Failed checks are repeated with backoff: 5 ms doubling to 30 s, so about 13 in the first minute.
		before := w.checked()
		time.Sleep(time.Minute)
		synctest.Wait()
		if more := w.checked() - before; more < 2 || more > 20 {
			w.t.Errorf("%d checks in a minute", more)
		}
		w.setCheck(nil)
		w.expect(remote.Name, "True Passed all checks passed")
		metrics.Check(w.t, w.registry, map[string]float64{`aggregator_unavailable_apiservice{name=v1.example.com}`: 0})
		// A server that responds is checked again.
		w.setCheck(errors.New("gone"))
		w.expect(remote.Name, "False FailedDiscoveryCheck gone")
		metrics.Check(w.t, w.registry, map[string]float64{
			`aggregator_unavailable_apiservice{name=v1.example.com}`:                                   1,
			`aggregator_unavailable_apiservice_total{name=v1.example.com,reason=FailedDiscoveryCheck}`: 1,
		})
		if err := w.services.Delete(w.ctx, "", remote.Name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		synctest.Wait()
	})
}

// An APIService that was changed since it was read is synced again: it is not taken for synced.
func TestRegistrationConflict(t *testing.T) {
	run(t, func(*world) {}, func(w *world) {
		gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
		w.create(newLocal(gv, apiregistration.CustomPriority, manageAlways))
		stale, err := w.services.Get(w.ctx, "", "v1.example.com")
		if err != nil {
			t.Fatal(err)
		}
		w.expect("v1.example.com", "") // no definition needs it
		w.create(newLocal(gv, apiregistration.CustomPriority, ""))
		w.expect("v1.example.com", localCondition)
		r := &registration{services: w.services, setup: &controller.Setup{Client: w.client}}
		desired := newLocal(gv, apiregistration.CustomPriority, manageAlways)
		desired.Spec.VersionPriority++
		for what, v := range map[string]view{"update": {current: stale, desired: desired}, "delete": {current: stale}} {
			if err := r.apply(w.ctx, controller.KeyOf(stale), v); !apierrors.IsConflict(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
