package quota

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var servicesResource = schema.GroupResource{Resource: "services"}

func serviceEvaluator() *Evaluator {
	names := []corev1.ResourceName{
		CountName(servicesResource), corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
	}
	return &Evaluator{
		Resource: servicesResource,
		counts:   func(name corev1.ResourceName) bool { return slices.Contains(names, name) },
		usage: func(obj runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			service, err := as[*corev1.Service](obj)
			if err != nil {
				return nil, err
			}
			return serviceUsage(service), nil
		},
		// The type of a service can change.
		affectsUsage: func(w Write) bool { return w.Subresource == "" },
	}
}

// serviceUsage counts the node ports a service will have, because they are allocated later.
func serviceUsage(service *corev1.Service) corev1.ResourceList {
	nodePorts, loadBalancers := 0, 0
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		nodePorts = len(service.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		loadBalancers = 1
		nodePorts = len(service.Spec.Ports)
		if wanted := service.Spec.AllocateLoadBalancerNodePorts; wanted != nil && !*wanted {
			nodePorts = 0
			for _, port := range service.Spec.Ports {
				if port.NodePort != 0 {
					nodePorts++
				}
			}
		}
	}
	return corev1.ResourceList{
		CountName(servicesResource):          count(1),
		corev1.ResourceServices:              count(1),
		corev1.ResourceServicesNodePorts:     count(int64(nodePorts)),
		corev1.ResourceServicesLoadBalancers: count(int64(loadBalancers)),
	}
}
