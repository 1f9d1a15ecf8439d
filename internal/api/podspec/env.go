package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the downward API can say of a pod: in variables, in files, and of containers' resources.
var (
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	volumeFields   = sets.New("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
	resourceFields = sets.New("limits.cpu", "limits.memory", "limits.ephemeral-storage",
		"requests.cpu", "requests.memory", "requests.ephemeral-storage")
	// knownFields are those the API has a name for, whether or not they may be asked for.
	knownFields = envFields.Union(volumeFields).Insert("spec.restartPolicy", "spec.schedulerName", "status.phase", "spec.host")
)

func (j *judge) env(vars []corev1.EnvVar, path *field.Path) {
	for i, v := range vars {
		path := path.Index(i)
		if v.Name == "" {
			j.required(path.Child("name"), "")
		} else {
			j.messages(path.Child("name"), v.Name, utilvalidation.IsRelaxedEnvVarName(v.Name))
		}
		if v.ValueFrom != nil {
			j.envSource(v.ValueFrom, v.Value, path.Child("valueFrom"))
		}
	}
}

func (j *judge) envSource(from *corev1.EnvVarSource, value string, path *field.Path) {
	sources := 0
	if from.FieldRef != nil {
		sources++
		j.fieldRef(from.FieldRef, envFields, path.Child("fieldRef"))
	}
	if from.ResourceFieldRef != nil {
		sources++
		j.resourceFieldRef(from.ResourceFieldRef, false, path.Child("resourceFieldRef"))
	}
	if from.ConfigMapKeyRef != nil {
		sources++
		j.keyRef(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, path.Child("configMapKeyRef"))
	}
	if from.SecretKeyRef != nil {
		sources++
		j.keyRef(from.SecretKeyRef.Name, from.SecretKeyRef.Key, path.Child("secretKeyRef"))
	}
	if from.FileKeyRef != nil {
		sources++
		j.fileKeyRef(from.FileKeyRef, path.Child("fileKeyRef"))
	}
	switch {
	case sources == 0:
		j.invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case value != "":
		j.invalid(path, "", "may not be specified when `value` is not empty")
	case sources > 1:
		j.invalid(path, "", "may not have more than one field specified at a time")
	}
}

func (j *judge) keyRef(name, key string, path *field.Path) {
	j.subdomain(path.Child("name"), name)
	if key == "" {
		j.required(path.Child("key"), "")
	} else {
		j.messages(path.Child("key"), key, utilvalidation.IsConfigMapKey(key))
	}
}

func (j *judge) fileKeyRef(ref *corev1.FileKeySelector, path *field.Path) {
	if ref.Key == "" {
		j.required(path.Child("key"), "")
	} else {
		j.messages(path.Child("key"), ref.Key, utilvalidation.IsRelaxedEnvVarName(ref.Key))
	}
	j.requiredLabel(path.Child("volumeName"), ref.VolumeName)
	if ref.Path == "" {
		j.required(path.Child("path"), "")
	} else {
		j.noBacksteps(path.Child("path"), ref.Path)
	}
}

// fileKeyVolumes requires that a variable read from a file is read from a volume the pod itself writes.
func (j *judge) fileKeyVolumes(path *field.Path) {
	sources := make(map[string]*corev1.VolumeSource, len(j.spec.Volumes))
	for i := range j.spec.Volumes {
		sources[j.spec.Volumes[i].Name] = &j.spec.Volumes[i].VolumeSource
	}
	VisitContainers(j.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		for i, v := range c.Env {
			if v.ValueFrom == nil || v.ValueFrom.FileKeyRef == nil {
				continue
			}
			name := v.ValueFrom.FileKeyRef.VolumeName
			path := path.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			if source, found := sources[name]; !found {
				j.add(field.NotFound(path, name))
			} else if source.EmptyDir == nil {
				j.invalid(path, name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

func (j *judge) envFrom(sources []corev1.EnvFromSource, path *field.Path) {
	for i, source := range sources {
		at := path.Index(i)
		if source.Prefix != "" {
			j.messages(at.Child("prefix"), source.Prefix, utilvalidation.IsRelaxedEnvVarName(source.Prefix))
		}
		count := 0
		if source.ConfigMapRef != nil {
			count++
			j.envFromName(at.Child("configMapRef", "name"), source.ConfigMapRef.Name)
		}
		if source.SecretRef != nil {
			count++
			j.envFromName(at.Child("secretRef", "name"), source.SecretRef.Name)
		}
		switch {
		case count == 0:
			j.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
		case count > 1:
			j.invalid(path, "", "may not have more than one field specified at a time")
		}
	}
}

func (j *judge) envFromName(path *field.Path, name string) {
	if name == "" {
		j.required(path, "")
	} else {
		j.messages(path, name, validation.NameIsDNSSubdomain(name, true))
	}
}

// fieldRef judges a reference to a field of the pod, such as metadata.labels['app'].
func (j *judge) fieldRef(ref *corev1.ObjectFieldSelector, allowed sets.Set[string], path *field.Path) {
	if ref.APIVersion == "" {
		j.required(path.Child("apiVersion"), "")
		return
	}
	if ref.FieldPath == "" {
		j.required(path.Child("fieldPath"), "")
		return
	}
	name, key, hasKey := splitFieldPath(ref.FieldPath)
	mayHaveKey := name == "metadata.annotations" || name == "metadata.labels"
	reason := ""
	switch {
	case ref.APIVersion != "v1":
		reason = "unsupported pod version: " + ref.APIVersion
	case hasKey && !mayHaveKey:
		reason = "field label does not support subscript: " + ref.FieldPath
	case !hasKey && !knownFields.Has(name):
		reason = "field label not supported: " + ref.FieldPath
	}
	switch {
	case reason != "":
		j.invalid(path.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: "+reason)
	case hasKey && name == "metadata.annotations":
		j.qualifiedName(path, strings.ToLower(key))
	case hasKey:
		j.qualifiedName(path, key)
	case name == "spec.host":
		if !allowed.Has("spec.nodeName") {
			j.add(field.NotSupported(path.Child("fieldPath"), "spec.nodeName", sets.List(allowed)))
		}
	case !allowed.Has(name):
		j.add(field.NotSupported(path.Child("fieldPath"), name, sets.List(allowed)))
	}
}

// splitFieldPath takes metadata.labels['app'] apart.
func splitFieldPath(path string) (name, key string, hasKey bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	name, key, ok = strings.Cut(inner, "['")
	if !ok || name == "" {
		return path, "", false
	}
	return name, key, true
}

// resourceFieldRef judges a reference to a container's resources. In a volume it must name the container.
func (j *judge) resourceFieldRef(ref *corev1.ResourceFieldSelector, inVolume bool, path *field.Path) {
	hugePages := strings.HasPrefix(ref.Resource, "requests.hugepages-") || strings.HasPrefix(ref.Resource, "limits.hugepages-")
	switch {
	case inVolume && ref.ContainerName == "":
		j.required(path.Child("containerName"), "")
	case ref.Resource == "":
		j.required(path.Child("resource"), "")
	case !resourceFields.Has(ref.Resource) && !hugePages:
		j.add(field.NotSupported(path.Child("resource"), ref.Resource, sets.List(resourceFields)))
	}
	if ref.Divisor.Cmp(resource.Quantity{}) == 0 {
		return
	}
	const sizes = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei"
	divisors, unit := "", ""
	switch _, name, _ := strings.Cut(ref.Resource, "."); {
	case hugePages:
		divisors, unit = sizes, "hugepages"
	case !resourceFields.Has(ref.Resource):
		return
	case name == "cpu":
		divisors, unit = "1m and 1", "cpu"
	case name == "memory":
		divisors, unit = sizes, "memory"
	case name == "ephemeral-storage":
		divisors, unit = sizes, "local ephemeral storage"
	}
	for _, divisor := range strings.FieldsFunc(divisors, func(r rune) bool { return r == ' ' || r == ',' }) {
		if divisor == ref.Divisor.String() {
			return
		}
	}
	j.invalid(path.Child("divisor"), ref.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", divisors, unit))
}
