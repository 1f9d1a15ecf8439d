package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/client"
)

// The Service of the cluster's DNS, with the names that kubeadm gives it.
const (
	ServiceNamespace = "kube-system"
	ServiceName      = "kube-dns"
)

// ProxyLabel with the value ProxyName marks the Service as skiff's own. Service proxies leave Services with this label to whoever it names;
// here the DNS server itself listens on the address.
const (
	ProxyLabel = "service.kubernetes.io/service-proxy-name"
	ProxyName  = "skiff-dns"
)

// domainAnnotation has the cluster's domain, for nodes whose configuration does not have it.
const domainAnnotation = "skiff.io/cluster-domain"

// serviceIndex is which address of the service range the cluster's DNS has, as in kubeadm.
const serviceIndex = 10

// serviceRetry is the time between two attempts to write the Service.
const serviceRetry = 5 * time.Second

// ServiceIP is the address of the cluster's DNS: the tenth of the service range.
func ServiceIP(serviceCIDR netip.Prefix) (netip.Addr, error) {
	ip := serviceCIDR.Masked().Addr()
	for range serviceIndex {
		ip = ip.Next()
	}
	// The last address of an IPv4 range is not used.
	if !serviceCIDR.Contains(ip) || ip.Is4() && !serviceCIDR.Contains(ip.Next()) {
		return netip.Addr{}, fmt.Errorf("service CIDR %s has no %dth address for the cluster's DNS", serviceCIDR, serviceIndex)
	}
	return ip, nil
}

// IsOwnService reports whether the Service kube-dns is skiff's.
func IsOwnService(service *corev1.Service) bool { return service.Labels[ProxyLabel] == ProxyName }

// ClusterDomain is the cluster's domain according to skiff's Service kube-dns; empty if the Service is not skiff's.
func ClusterDomain(service *corev1.Service) string {
	if !IsOwnService(service) {
		return ""
	}
	return service.Annotations[domainAnnotation]
}

// newService is the Service of the cluster's DNS. It has no selector and no endpoints: each node answers for itself.
func newService(ip netip.Addr, domain string) *corev1.Service {
	single := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ServiceNamespace, Name: ServiceName,
			Labels: map[string]string{
				"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS", ProxyLabel: ProxyName,
			},
			Annotations: map[string]string{"prometheus.io/port": "9153", "prometheus.io/scrape": "true", domainAnnotation: domain},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), IPFamilyPolicy: &single,
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dnsPort, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: dnsPort, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: metricsPort, TargetPort: intstr.FromInt32(metricsPort)},
			},
		},
	}
}

// ServiceOptions say whether the cluster has skiff's DNS.
type ServiceOptions struct {
	Client *client.Client
	// IP is the address of the Service.
	IP netip.Addr
	// ClusterDomain is the zone of the cluster.
	ClusterDomain string
	// Disabled deletes the Service instead, if it is skiff's.
	Disabled bool
	Log      *slog.Logger
}

// RunService creates the Service, also after somebody has deleted it, until ctx is done. A Service of this name that is not skiff's is left
// alone: a user has installed another DNS server.
func RunService(ctx context.Context, o ServiceOptions) error {
	changes := make(chan *corev1.Service, 1)
	following := make(chan struct{})
	go func() {
		defer close(following)
		o.follow(ctx, changes)
	}()
	defer func() { <-following }()
	var service *corev1.Service
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case service = <-changes:
		case <-retry:
		}
		retry = nil
		if err := o.sync(ctx, service); err != nil && ctx.Err() == nil {
			o.Log.Error("failed to write the Service of the cluster's DNS", "error", err)
			retry = time.After(serviceRetry)
		}
	}
}

// follow sends the Service, nil if it does not exist, whenever it changes. Only the last state is kept for the receiver.
func (o ServiceOptions) follow(ctx context.Context, changes chan *corev1.Service) {
	send := func(service *corev1.Service) bool {
		select {
		case <-changes:
		default:
		}
		changes <- service
		return true
	}
	named := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", ServiceName)}
	client.For[*corev1.Service](o.Client).Follow(ctx, ServiceNamespace, named, client.FollowHandler[*corev1.Service]{
		Replace: func(services []*corev1.Service) bool {
			if len(services) == 0 {
				return send(nil)
			}
			return send(services[0])
		},
		Apply: func(service *corev1.Service, deleted bool) bool {
			if deleted {
				service = nil
			}
			return send(service)
		},
		Fail: func(err error) { o.Log.Warn("failed to watch the Service of the cluster's DNS", "error", err) },
	})
}

// sync creates or deletes the Service.
func (o ServiceOptions) sync(ctx context.Context, service *corev1.Service) error {
	services := client.For[*corev1.Service](o.Client)
	switch {
	case service == nil && !o.Disabled:
		_, err := services.Create(ctx, newService(o.IP, o.ClusterDomain), client.WriteOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	case service != nil && o.Disabled && IsOwnService(service):
		uid := service.UID
		err := services.Delete(ctx, ServiceNamespace, ServiceName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	case service != nil && !o.Disabled && IsOwnService(service) && ClusterDomain(service) != o.ClusterDomain:
		changed := service.DeepCopy()
		if changed.Annotations == nil {
			changed.Annotations = map[string]string{}
		}
		changed.Annotations[domainAnnotation] = o.ClusterDomain
		_, err := services.Update(ctx, changed, client.WriteOptions{})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // the change arrives as an event
		}
		return err
	case service != nil && !o.Disabled && !IsOwnService(service):
		o.Log.Info("the cluster's DNS is not skiff's: the Service kube-dns has no label of skiff", "label", ProxyLabel+"="+ProxyName)
	}
	return nil
}
