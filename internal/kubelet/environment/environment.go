// Package environment computes a container's environment: environment variables, /etc/hosts, resolver configuration and
// host name. Everything is a function of the pod, the node and the objects the pod references. Nothing is stored, and
// only the caller's Sources are read.
package environment

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// Sources provides values that are not part of the pod.
type Sources interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
	// Services returns the services of a namespace, Service one of them, or nil if it does not exist. They fail until the services have been listed.
	Services(namespace string) ([]*corev1.Service, error)
	Service(namespace, name string) (*corev1.Service, error)
	// File reads a file of one of the pod's volumes. It does not follow symlinks out of the volume.
	File(pod *corev1.Pod, volume, path string) ([]byte, error)
}

// Input is what a container's environment is computed from. The addresses are in the node's order of preference.
type Input struct {
	Pod             *corev1.Pod
	Container       *corev1.Container
	Node            *corev1.Node
	PodIPs, HostIPs []string
	Sources         Sources
}

// Of returns the environment of a container, sorted by name. The text of an error is meant for the container's status.
func Of(in Input) ([]corev1.EnvVar, error) {
	c := in.Container
	services, err := serviceVariables(in.Pod, in.Sources)
	if err != nil {
		return nil, err
	}
	b := &builder{
		pod: in.Pod, container: c, node: in.Node, addresses: Addresses{Pod: in.PodIPs, Host: in.HostIPs}, sources: in.Sources,
		services: services, values: map[string]string{},
		configMaps: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{},
	}
	for i := range c.EnvFrom {
		if err := b.addAll(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		if err := b.add(&c.Env[i]); err != nil {
			return nil, err
		}
	}
	for name, value := range services {
		if _, own := b.values[name]; !own {
			b.values[name] = value
		}
	}
	variables := make([]corev1.EnvVar, 0, len(b.values))
	for _, name := range slices.Sorted(maps.Keys(b.values)) {
		variables = append(variables, corev1.EnvVar{Name: name, Value: b.values[name]})
	}
	return variables, nil
}

// builder collects the variables of one container. Objects are read once, so that a container never gets values of two
// revisions.
type builder struct {
	pod        *corev1.Pod
	container  *corev1.Container
	node       *corev1.Node
	addresses  Addresses
	sources    Sources
	services   map[string]string
	values     map[string]string
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
}

// addAll adds every key of a config map or secret.
func (b *builder) addAll(from *corev1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		configMap, err := b.configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if err != nil || configMap == nil {
			return err
		}
		for key, value := range configMap.Data {
			b.values[from.Prefix+key] = value
		}
	case from.SecretRef != nil:
		secret, err := b.secret(from.SecretRef.Name, from.SecretRef.Optional)
		if err != nil || secret == nil {
			return err
		}
		for key, value := range secret.Data {
			b.values[from.Prefix+key] = string(value)
		}
	}
	return nil
}

// add adds one variable. Optional values that are missing stay unset.
func (b *builder) add(variable *corev1.EnvVar) error {
	value, set := "", true
	var err error
	switch {
	case variable.Value != "":
		value = Expand(variable.Value, b.lookup)
	case variable.ValueFrom != nil:
		value, set, err = b.from(variable.ValueFrom)
	}
	if err == nil && set {
		b.values[variable.Name] = value
	}
	return err
}

// lookup resolves a reference: variables take precedence over services, and unknown references are kept.
func (b *builder) lookup(name string) string {
	if value, ok := b.values[name]; ok {
		return value
	}
	if value, ok := b.services[name]; ok {
		return value
	}
	return "$(" + name + ")"
}

func (b *builder) from(source *corev1.EnvVarSource) (value string, set bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = Field(b.pod, source.FieldRef, b.addresses)
	case source.ResourceFieldRef != nil:
		value, err = b.resource(source.ResourceFieldRef)
	case source.ConfigMapKeyRef != nil:
		return b.configMapKey(source.ConfigMapKeyRef)
	case source.SecretKeyRef != nil:
		return b.secretKey(source.SecretKeyRef)
	case source.FileKeyRef != nil:
		return b.fileKey(source.FileKeyRef)
	}
	return value, err == nil, err
}

func (b *builder) configMapKey(ref *corev1.ConfigMapKeySelector) (string, bool, error) {
	configMap, err := b.configMap(ref.Name, ref.Optional)
	if err != nil || configMap == nil {
		return "", false, err
	}
	value, ok := configMap.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, b.pod.Namespace, ref.Name)
	}
	return value, ok, nil
}

func (b *builder) secretKey(ref *corev1.SecretKeySelector) (string, bool, error) {
	secret, err := b.secret(ref.Name, ref.Optional)
	if err != nil || secret == nil {
		return "", false, err
	}
	value, ok := secret.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, b.pod.Namespace, ref.Name)
	}
	return string(value), ok, nil
}

func (b *builder) fileKey(ref *corev1.FileKeySelector) (string, bool, error) {
	if !slices.ContainsFunc(b.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == ref.VolumeName }) {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	content, err := b.sources.File(b.pod, ref.VolumeName, ref.Path)
	if err != nil {
		// The status of the pod must not reveal the content of the node's disk.
		return "", false, fmt.Errorf("couldn't parse env file")
	}
	value, err := fileVariable(string(content), ref.Key)
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file")
	}
	if value == "" && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
	}
	return value, value != "", nil
}

// configMap returns nil if the object is optional and missing.
func (b *builder) configMap(name string, optional *bool) (*corev1.ConfigMap, error) {
	return readOnce(b.configMaps, b.sources.ConfigMap, b.pod.Namespace, name, optional)
}

func (b *builder) secret(name string, optional *bool) (*corev1.Secret, error) {
	return readOnce(b.secrets, b.sources.Secret, b.pod.Namespace, name, optional)
}

func readOnce[T any](cached map[string]*T, read func(namespace, name string) (*T, error), namespace, name string, optional *bool) (*T, error) {
	if object, ok := cached[name]; ok {
		return object, nil
	}
	object, err := read(namespace, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cached[name] = object
	return object, nil
}
