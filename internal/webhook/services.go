package webhook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// Objects reads objects from the API.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error)
	// List returns the objects of a namespace that match. It is called for every call of a webhook: it must not wait for the store, and
	// objects that do not match must be cheap.
	List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error)
}

// The resources that are read.
var (
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// Services finds what is behind Services. The API server connects to the endpoints themselves, so it needs neither cluster IPs nor a
// service proxy on its host.
type Services struct {
	Objects Objects
	// Dial connects to an endpoint. nil: the API server has a route to the addresses of pods.
	Dial func(ctx context.Context, e Endpoint) (net.Conn, error)
}

// Endpoint is an address behind a Service.
type Endpoint struct {
	// Address is an IP address or the name of an ExternalName Service, with the port.
	Address string
	// Target is the pod at the address; nil if it is unknown.
	Target *corev1.ObjectReference
}

// Resolve picks a ready endpoint of a Service's port at random.
func (s *Services) Resolve(ctx context.Context, namespace, name string, port int32) (Endpoint, error) {
	service, err := s.get(ctx, namespace, name)
	if err != nil {
		return Endpoint{}, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return Endpoint{Address: net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	portName, err := PortName(service, int(port))
	if err != nil {
		return Endpoint{}, err
	}
	return s.Pick(service, portName, nil)
}

func (s *Services) get(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	obj, err := s.Objects.Get(ctx, services, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("service %q not found", name)
	}
	if err != nil {
		return nil, err
	}
	service, ok := obj.(*corev1.Service)
	if !ok {
		return nil, errors.New("services are not served")
	}
	return service, nil
}

// PortName returns the name of a Service's port by its number.
func PortName(service *corev1.Service, number int) (string, error) {
	for i := range service.Spec.Ports {
		if int(service.Spec.Ports[i].Port) == number {
			return service.Spec.Ports[i].Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, service.Name))
}

// Pick picks one of a Service's ready endpoints at random, of those that allowed accepts; nil accepts all.
func (s *Services) Pick(service *corev1.Service, portName string, allowed func(*discoveryv1.Endpoint) bool) (Endpoint, error) {
	ofService := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name})
	objs, err := s.Objects.List(endpointSlices, service.Namespace, ofService)
	if err != nil {
		return Endpoint{}, err
	}
	var candidates []Endpoint
	for _, obj := range objs {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		number, ok := slicePort(slice, portName)
		if !ok {
			continue
		}
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if len(endpoint.Addresses) == 0 || endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready || allowed != nil && !allowed(endpoint) {
				continue
			}
			address := net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(number)))
			candidates = append(candidates, Endpoint{Address: address, Target: endpoint.TargetRef})
		}
	}
	if len(candidates) == 0 {
		return Endpoint{}, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service.Name))
	}
	return candidates[rand.IntN(len(candidates))], nil
}

func slicePort(slice *discoveryv1.EndpointSlice, name string) (int32, bool) {
	for _, port := range slice.Ports {
		if port.Port != nil && (port.Name == nil && name == "" || port.Name != nil && *port.Name == name) {
			return *port.Port, true
		}
	}
	return 0, false
}
