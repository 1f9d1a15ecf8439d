package apiservice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/api/apiregistration"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

type condition = apiregistrationv1.APIServiceCondition

const (
	// checkInterval is the time after which an aggregated server that responded is checked again.
	checkInterval = 30 * time.Second
	// maxMessage bounds the message of the condition: a server has influence on the error.
	maxMessage = 1024
	// byService is the index of APIServices and EndpointSlices by "namespace/name" of their Service.
	byService = "service"
)

// availability maintains the condition Available.
type availability struct {
	Config
	setup     *controller.Setup
	resources client.Resource[*apiService]
	informer  client.Informer[*apiService]
	services  client.Informer[*corev1.Service]
	slices    client.Informer[*discoveryv1.EndpointSlice]
}

func newAvailability(c Config, s *controller.Setup) (controller.Syncer, error) {
	a := &availability{
		Config: c, setup: s, resources: client.For[*apiService](c.Client), informer: client.InformerFor[*apiService](s.Informers),
		services: client.InformerFor[*corev1.Service](s.Informers), slices: client.InformerFor[*discoveryv1.EndpointSlice](s.Informers),
	}
	err := a.informer.AddIndex(byService, func(service *apiService) []string {
		if s := service.Spec.Service; s != nil {
			return []string{s.Namespace + "/" + s.Name}
		}
		return nil
	})
	err = errors.Join(err, a.slices.AddIndex(byService, func(slice *discoveryv1.EndpointSlice) []string {
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}
	}))
	enqueue := func(service *apiService) { s.Enqueue(controller.KeyOf(service)) }
	return a, errors.Join(err,
		// A condition that was written does not cause the next check: its text may differ each time, and other servers may find another one.
		a.informer.AddEventHandler(enqueue, func(old, service *apiService) {
			if service.Spec.Service == nil || !equality.Semantic.DeepEqual(old.Spec, service.Spec) {
				enqueue(service)
			}
		}, enqueue),
		controller.Watch(s, func(service *corev1.Service) []controller.Key { return a.keysOf(service.Namespace, service.Name) }),
		controller.Watch(s, func(slice *discoveryv1.EndpointSlice) []controller.Key {
			return a.keysOf(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
		}))
}

// keysOf are the keys of the APIServices of a Service.
func (a *availability) keysOf(namespace, service string) []controller.Key {
	found := indexed(a.informer, namespace, service)
	keys := make([]controller.Key, len(found))
	for i, service := range found {
		keys[i] = controller.KeyOf(service)
	}
	return keys
}

// indexed returns the objects of a Service.
func indexed[T kind.Object](informer client.Informer[T], namespace, service string) []T {
	found, err := informer.ByIndex(byService, namespace+"/"+service)
	if err != nil {
		panic(err) // the index was added
	}
	return found
}

// Sync checks an APIService and writes its condition. A failed check is repeated with backoff.
func (a *availability) Sync(ctx context.Context, key controller.Key) error {
	service, ok := a.informer.Get("", key.Name)
	if !ok {
		a.Metrics.forget(key.Name)
		return nil
	}
	available, checkErr := a.check(ctx, service)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := a.write(ctx, service, available); err != nil || checkErr != nil {
		return errors.Join(err, checkErr)
	}
	if service.Spec.Service != nil {
		a.setup.EnqueueAfter(key, checkInterval)
	}
	return nil
}

// check returns the condition Available. err is set if the server did not respond as it should.
func (a *availability) check(ctx context.Context, service *apiService) (available condition, err error) {
	now := metav1.Now()
	reference := service.Spec.Service
	if reference == nil {
		return apiregistration.LocalCondition(now), nil
	}
	v := backing{reference: reference}
	if found, ok := a.services.Get(reference.Namespace, reference.Name); ok {
		v.service = found
		v.slices = indexed(a.slices, reference.Namespace, reference.Name)
	}
	available = condition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: now}
	if available.Reason, available.Message = v.unavailable(); available.Reason != "" {
		available.Status = apiregistrationv1.ConditionFalse
		return available, nil
	}
	if err = a.Check(ctx, service); err != nil {
		message := err.Error()
		message = strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
		available.Status, available.Reason, available.Message = apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck", message
		return available, err
	}
	available.Reason, available.Message = "Passed", "all checks passed"
	return available, nil
}

// backing is what is behind an APIService.
type backing struct {
	reference *apiregistrationv1.ServiceReference
	service   *corev1.Service // nil: it does not exist
	slices    []*discoveryv1.EndpointSlice
}

// unavailable is why the Service cannot have a server; the reason is empty if it can.
func (v *backing) unavailable() (reason, message string) {
	key := types.NamespacedName{Namespace: v.reference.Namespace, Name: v.reference.Name}
	return Unavailable(key, ptr.Deref(v.reference.Port, 443), v.service, v.slices)
}

// Unavailable is why a Service, which is nil if it does not exist, cannot have a server at a port; the reason is empty if it can. all are the EndpointSlices of the Service.
func Unavailable(key types.NamespacedName, number int32, service *corev1.Service, all []*discoveryv1.EndpointSlice) (reason, message string) {
	namespace, name := key.Namespace, key.Name
	if service == nil {
		return "ServiceNotFound", fmt.Sprintf("service/%s in %q is not present", name, namespace)
	}
	if service.Spec.Type != corev1.ServiceTypeClusterIP {
		return "", ""
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == number })
	switch {
	case i < 0:
		return "ServicePortError", fmt.Sprintf("service/%s in %q is not listening on port %d", name, namespace, number)
	case len(all) == 0:
		return "EndpointsNotFound", fmt.Sprintf("cannot find endpointslices for service/%s in %q", name, namespace)
	}
	port := service.Spec.Ports[i].Name
	if !slices.ContainsFunc(all, func(s *discoveryv1.EndpointSlice) bool { return hasReadyEndpoint(s, port) }) {
		return "MissingEndpoints", fmt.Sprintf("endpointslices for service/%s in %q have no addresses with port name %q", name, namespace, port)
	}
	return "", ""
}

// hasReadyEndpoint reports whether a slice has an endpoint that is ready, and the port.
func hasReadyEndpoint(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

// write writes the condition if it has changed.
func (a *availability) write(ctx context.Context, service *apiService, available condition) error {
	next := *service
	next.Status = *service.Status.DeepCopy()
	apiregistration.SetCondition(&next.Status, available)
	isAvailable := available.Status == apiregistrationv1.ConditionTrue
	a.Metrics.set(service.Name, isAvailable)
	if equality.Semantic.DeepEqual(next.Status, service.Status) {
		return nil
	}
	written, err := a.resources.UpdateStatus(ctx, &next)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update status of APIService: %w", err)
	}
	a.setup.RecordWrite(controller.KeyOf(service), written)
	old := apiregistration.Condition(&service.Status, apiregistrationv1.Available)
	if old == nil || old.Status != available.Status {
		a.Log.Info("APIService availability changed", "apiService", service.Name, "available", string(available.Status), "reason", available.Reason, "message", available.Message)
	}
	if !isAvailable && old != nil && old.Status == apiregistrationv1.ConditionTrue {
		a.Metrics.becameUnavailable(service.Name, available.Reason)
	}
	return nil
}
