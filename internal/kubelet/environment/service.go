package environment

import (
	"errors"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiService is the name of the API's service, in the namespace default.
const apiService = "kubernetes"

// serviceVariables returns the service environment variables: always those of the API's service, and with
// enableServiceLinks those of the pod's namespace.
func serviceVariables(pod *corev1.Pod, s Sources) (map[string]string, error) {
	if pod.Spec.EnableServiceLinks == nil {
		return nil, errors.New("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
	}
	chosen := map[string]*corev1.Service{}
	if *pod.Spec.EnableServiceLinks {
		services, err := s.Services(pod.Namespace)
		if err != nil {
			return nil, err
		}
		for _, service := range services {
			chosen[service.Name] = service
		}
	}
	// It takes precedence over one of that name in the pod's namespace. The namespace default is not listed for it: that may have thousands.
	kubernetes, err := s.Service(metav1.NamespaceDefault, apiService)
	if err != nil {
		return nil, err
	}
	if kubernetes != nil {
		chosen[apiService] = kubernetes
	}
	variables := map[string]string{}
	for _, service := range chosen {
		addService(variables, service)
	}
	return variables, nil
}

// addService adds the variables of one service. Headless services have none.
func addService(variables map[string]string, service *corev1.Service) {
	address := service.Spec.ClusterIP
	if address == "" || address == corev1.ClusterIPNone || len(service.Spec.Ports) == 0 {
		return
	}
	prefix := variableName(service.Name)
	variables[prefix+"_SERVICE_HOST"] = address
	variables[prefix+"_SERVICE_PORT"] = strconv.Itoa(int(service.Spec.Ports[0].Port))
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		number, protocol := strconv.Itoa(int(port.Port)), string(port.Protocol)
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		if port.Name != "" {
			variables[prefix+"_SERVICE_PORT_"+variableName(port.Name)] = number
		}
		scheme := strings.ToLower(protocol)
		url := scheme + "://" + net.JoinHostPort(address, number)
		if i == 0 {
			variables[prefix+"_PORT"] = url
		}
		link := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		variables[link] = url
		variables[link+"_PROTO"] = scheme
		variables[link+"_PORT"] = number
		variables[link+"_ADDR"] = address
	}
}

func variableName(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
