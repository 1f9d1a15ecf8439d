package connect

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"skiff/internal/apiserver"
	"skiff/internal/webhook"
)

// target parses "name", "name:port" or "scheme:name:port".
func target(c *apiserver.Connection, what string) (scheme, name, port string, err error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(c.Name)
	if !ok {
		return "", "", "", apierrors.NewBadRequest(fmt.Sprintf("invalid %s request %q", what, c.Name))
	}
	if scheme == "" {
		scheme = "http"
	}
	return scheme, name, port, nil
}

func (b *backends) podProxy(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	scheme, name, port, err := target(c, "pod")
	if err != nil {
		return err
	}
	obj, err := b.objects.Get(r.Context(), pods, c.Namespace, name)
	if err != nil {
		return err
	}
	pod := obj.(*corev1.Pod)
	if port == "" {
		port = firstPort(pod)
	}
	ip := pod.Status.PodIP
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	if !reachableText(ip) {
		return apierrors.NewBadRequest(errNotAllowed.Error())
	}
	location := &url.URL{Scheme: scheme, Host: hostPort(ip, port)}
	return proxyTo(w, toPod(r, location, &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}), location, c.Path, b.workloads)
}

// firstPort is the first port any container of the pod declares, or empty.
func firstPort(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			return strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	return ""
}

func hostPort(ip, port string) string {
	switch {
	case port != "":
		return net.JoinHostPort(ip, port)
	case strings.Contains(ip, ":"):
		return "[" + ip + "]"
	}
	return ip
}

func (b *backends) nodeProxy(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	scheme, name, port, err := target(c, "node")
	if err != nil {
		return err
	}
	location, err := b.kubeletOf(r.Context(), name)
	if err != nil {
		return err
	}
	if port == "" || port == location.Port() {
		return proxyTo(w, r, location, c.Path, b.nodes)
	}
	return proxyTo(w, r, &url.URL{Scheme: scheme, Host: net.JoinHostPort(location.Hostname(), port)}, c.Path, b.workloads)
}

func (b *backends) serviceProxy(w http.ResponseWriter, r *http.Request, c *apiserver.Connection) error {
	scheme, name, port, err := target(c, "service")
	if err != nil {
		return err
	}
	obj, err := b.objects.Get(r.Context(), services, c.Namespace, name)
	if err != nil {
		return err
	}
	service := obj.(*corev1.Service)
	if number, err := strconv.Atoi(port); err == nil {
		if port, err = webhook.PortName(service, number); err != nil {
			return err
		}
	}
	endpoint, err := b.endpointOf(r, service, port)
	if err != nil {
		return err
	}
	location := &url.URL{Scheme: scheme, Host: endpoint.Address}
	return proxyTo(w, toPod(r, location, endpoint.Target), location, c.Path, b.workloads)
}

// toPod returns the request with the pod that it is for, through whose kubelet the transport may have to connect.
func toPod(r *http.Request, location *url.URL, pod *corev1.ObjectReference) *http.Request {
	address := location.Host
	if location.Port() == "" {
		port := "80"
		if location.Scheme == "https" {
			port = "443"
		}
		address = net.JoinHostPort(location.Hostname(), port)
	}
	return r.WithContext(webhook.WithEndpoint(r.Context(), webhook.Endpoint{Address: address, Target: pod}))
}

// endpointOf picks one of a service's ready endpoints. Only addresses of pods in the service's namespace are used: a slice may contain any
// address.
func (b *backends) endpointOf(r *http.Request, service *corev1.Service, port string) (webhook.Endpoint, error) {
	return b.services.Pick(service, port, func(e *discoveryv1.Endpoint) bool { return b.isPod(r, service.Namespace, e) })
}

// isPod reports whether the endpoint is a pod of the namespace, at an address of that pod.
func (b *backends) isPod(r *http.Request, namespace string, endpoint *discoveryv1.Endpoint) bool {
	ref := endpoint.TargetRef
	if ref == nil || ref.Kind != "Pod" || len(endpoint.Addresses) == 0 || ref.Namespace != namespace {
		return false
	}
	obj, err := b.objects.Get(r.Context(), pods, namespace, ref.Name)
	if err != nil {
		return false
	}
	for _, ip := range obj.(*corev1.Pod).Status.PodIPs {
		if ip.IP == endpoint.Addresses[0] {
			return true
		}
	}
	return false
}
