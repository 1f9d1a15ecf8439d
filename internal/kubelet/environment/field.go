package environment

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Addresses are the addresses of a pod and its host, each list in the node's order of preference.
type Addresses struct {
	Pod, Host []string
}

// Field returns the value of a pod field, as environment variables and downward API volumes have it.
func Field(pod *corev1.Pod, ref *corev1.ObjectFieldSelector, a Addresses) (string, error) {
	if ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	path, subscript, subscripted := splitSubscript(ref.FieldPath)
	if subscripted {
		return subscriptedField(pod, ref.FieldPath, path, subscript)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		if len(a.Host) == 0 {
			return "", errors.New("host IP unknown")
		}
		if path == "status.hostIP" {
			return a.Host[0], nil
		}
		return strings.Join(a.Host, ","), nil
	case "status.podIP":
		if len(a.Pod) == 0 {
			return "", nil
		}
		return a.Pod[0], nil
	case "status.podIPs":
		return strings.Join(a.Pod, ","), nil
	case "spec.restartPolicy", "spec.schedulerName", "status.phase":
		return "", fmt.Errorf("unsupported fieldPath: %v", path)
	}
	return "", fmt.Errorf("field label not supported: %s", path)
}

func subscriptedField(pod *corev1.Pod, whole, path, key string) (string, error) {
	values, checked := pod.Labels, key
	switch path {
	case "metadata.labels":
	case "metadata.annotations":
		values, checked = pod.Annotations, strings.ToLower(key)
	default:
		return "", fmt.Errorf("field label does not support subscript: %s", whole)
	}
	if problems := validation.IsQualifiedName(checked); len(problems) != 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", whole, strings.Join(problems, ";"))
	}
	return values[key], nil
}

// splitSubscript parses "path['key']".
func splitSubscript(fieldPath string) (path, key string, ok bool) {
	inner, closed := strings.CutSuffix(fieldPath, "']")
	path, key, opened := strings.Cut(inner, "['")
	if !closed || !opened || path == "" {
		return fieldPath, "", false
	}
	return path, key, true
}

// formatMap writes one key="value" per line, sorted by key.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// resource returns the value of a resource field. Limits that are not set default to the pod's, else to the node's
// allocatable.
func (b *builder) resource(ref *corev1.ResourceFieldSelector) (string, error) {
	if b.node == nil {
		return "", errors.New("failed to find node object, expected a node")
	}
	allocatable := maps.Clone(b.node.Status.Allocatable)
	if resourcehelper.IsPodLevelLimitsSet(b.pod) {
		for _, name := range defaultedLimits {
			limit, set := b.pod.Spec.Resources.Limits[name]
			if _, known := allocatable[name]; known && set && !limit.IsZero() && resourcehelper.IsSupportedPodLevelResource(name) {
				allocatable[name] = limit
			}
		}
	}
	if ref.ContainerName == "" {
		return Resource(b.container, ref, allocatable)
	}
	c, isInit, err := FindContainer(b.pod, ref.ContainerName)
	if err != nil {
		return "", err
	}
	if isInit {
		allocatable = nil
	}
	return Resource(c, ref, allocatable)
}

// FindContainer returns the regular or init container with a name, and whether it is an init container.
func FindContainer(pod *corev1.Pod, name string) (c *corev1.Container, isInit bool, err error) {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i], false, nil
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i], true, nil
		}
	}
	return nil, false, fmt.Errorf("container %s not found", name)
}

// defaultedLimits are the resources whose limit defaults to the node's allocatable.
var defaultedLimits = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// Resource returns a request or limit of a container in units of the divisor, rounded up. A missing limit defaults to the
// allocatable amount.
func Resource(c *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	side, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := corev1.ResourceName(name)
	if !slices.Contains(defaultedLimits, resourceName) && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	var amount resource.Quantity
	switch side {
	case "requests":
		amount = c.Resources.Requests[resourceName]
	case "limits":
		amount = c.Resources.Limits[resourceName]
		if amount.IsZero() && slices.Contains(defaultedLimits, resourceName) {
			if node, ok := allocatable[resourceName]; ok {
				amount = node
			}
		}
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if resourceName == corev1.ResourceCPU {
		return roundUp(amount.MilliValue(), divisor.MilliValue()), nil
	}
	return roundUp(amount.Value(), divisor.Value()), nil
}

func roundUp(amount, divisor int64) string {
	return strconv.FormatInt(int64(math.Ceil(float64(amount)/float64(divisor))), 10)
}
