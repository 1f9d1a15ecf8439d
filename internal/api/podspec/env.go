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

// The fields available to the downward API: in variables, in files, and of container resources.
var (
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	volumeFields   = sets.New("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
	resourceFields = sets.New("limits.cpu", "limits.memory", "limits.ephemeral-storage",
		"requests.cpu", "requests.memory", "requests.ephemeral-storage")
	// knownFields are all field names of the API, whether or not they may be selected.
	knownFields = envFields.Union(volumeFields).Insert("spec.restartPolicy", "spec.schedulerName", "status.phase", "spec.host")
)

func (val *validator) env(vars []corev1.EnvVar, path *field.Path) {
	for i, v := range vars {
		path := path.Index(i)
		if v.Name == "" {
			val.required(path.Child("name"), "")
		} else {
			val.invalidEach(path.Child("name"), v.Name, utilvalidation.IsRelaxedEnvVarName(v.Name))
		}
		if v.ValueFrom != nil {
			val.envSource(v.ValueFrom, v.Value, path.Child("valueFrom"))
		}
	}
}

func (val *validator) envSource(from *corev1.EnvVarSource, value string, path *field.Path) {
	sources := 0
	if from.FieldRef != nil {
		sources++
		val.fieldRef(from.FieldRef, envFields, path.Child("fieldRef"))
	}
	if from.ResourceFieldRef != nil {
		sources++
		val.resourceFieldRef(from.ResourceFieldRef, false, path.Child("resourceFieldRef"))
	}
	if from.ConfigMapKeyRef != nil {
		sources++
		val.keyRef(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, path.Child("configMapKeyRef"))
	}
	if from.SecretKeyRef != nil {
		sources++
		val.keyRef(from.SecretKeyRef.Name, from.SecretKeyRef.Key, path.Child("secretKeyRef"))
	}
	if from.FileKeyRef != nil {
		sources++
		val.fileKeyRef(from.FileKeyRef, path.Child("fileKeyRef"))
	}
	switch {
	case sources == 0:
		val.invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case value != "":
		val.invalid(path, "", "may not be specified when `value` is not empty")
	case sources > 1:
		val.invalid(path, "", "may not have more than one field specified at a time")
	}
}

func (val *validator) keyRef(name, key string, path *field.Path) {
	val.subdomain(path.Child("name"), name)
	if key == "" {
		val.required(path.Child("key"), "")
	} else {
		val.invalidEach(path.Child("key"), key, utilvalidation.IsConfigMapKey(key))
	}
}

func (val *validator) fileKeyRef(ref *corev1.FileKeySelector, path *field.Path) {
	if ref.Key == "" {
		val.required(path.Child("key"), "")
	} else {
		val.invalidEach(path.Child("key"), ref.Key, utilvalidation.IsRelaxedEnvVarName(ref.Key))
	}
	val.requiredLabel(path.Child("volumeName"), ref.VolumeName)
	if ref.Path == "" {
		val.required(path.Child("path"), "")
	} else {
		val.noBacksteps(path.Child("path"), ref.Path)
	}
}

// fileKeyVolumes requires that a variable read from a file is read from an emptyDir volume of the pod.
func (val *validator) fileKeyVolumes(path *field.Path) {
	sources := make(map[string]*corev1.VolumeSource, len(val.spec.Volumes))
	for i := range val.spec.Volumes {
		sources[val.spec.Volumes[i].Name] = &val.spec.Volumes[i].VolumeSource
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		for i, v := range c.Env {
			if v.ValueFrom == nil || v.ValueFrom.FileKeyRef == nil {
				continue
			}
			name := v.ValueFrom.FileKeyRef.VolumeName
			path := path.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			if source, found := sources[name]; !found {
				val.add(field.NotFound(path, name))
			} else if source.EmptyDir == nil {
				val.invalid(path, name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

func (val *validator) envFrom(sources []corev1.EnvFromSource, path *field.Path) {
	for i, source := range sources {
		idxPath := path.Index(i)
		if source.Prefix != "" {
			val.invalidEach(idxPath.Child("prefix"), source.Prefix, utilvalidation.IsRelaxedEnvVarName(source.Prefix))
		}
		count := 0
		if source.ConfigMapRef != nil {
			count++
			val.envFromName(idxPath.Child("configMapRef", "name"), source.ConfigMapRef.Name)
		}
		if source.SecretRef != nil {
			count++
			val.envFromName(idxPath.Child("secretRef", "name"), source.SecretRef.Name)
		}
		switch {
		case count == 0:
			val.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
		case count > 1:
			val.invalid(path, "", "may not have more than one field specified at a time")
		}
	}
}

func (val *validator) envFromName(path *field.Path, name string) {
	if name == "" {
		val.required(path, "")
	} else {
		val.invalidEach(path, name, validation.NameIsDNSSubdomain(name, true))
	}
}

// fieldRef validates a reference to a field of the pod, such as metadata.labels['app'].
func (val *validator) fieldRef(ref *corev1.ObjectFieldSelector, allowed sets.Set[string], path *field.Path) {
	if ref.APIVersion == "" {
		val.required(path.Child("apiVersion"), "")
		return
	}
	if ref.FieldPath == "" {
		val.required(path.Child("fieldPath"), "")
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
		val.invalid(path.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: "+reason)
	case hasKey && name == "metadata.annotations":
		val.qualifiedName(path, strings.ToLower(key))
	case hasKey:
		val.qualifiedName(path, key)
	case name == "spec.host":
		if !allowed.Has("spec.nodeName") {
			val.add(field.NotSupported(path.Child("fieldPath"), "spec.nodeName", sets.List(allowed)))
		}
	case !allowed.Has(name):
		val.add(field.NotSupported(path.Child("fieldPath"), name, sets.List(allowed)))
	}
}

// splitFieldPath splits metadata.labels['app'] into the field and the key.
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

// resourceFieldRef validates a reference to a container's resources. In a volume it must name the container.
func (val *validator) resourceFieldRef(ref *corev1.ResourceFieldSelector, inVolume bool, path *field.Path) {
	hugePages := strings.HasPrefix(ref.Resource, "requests.hugepages-") || strings.HasPrefix(ref.Resource, "limits.hugepages-")
	switch {
	case inVolume && ref.ContainerName == "":
		val.required(path.Child("containerName"), "")
	case ref.Resource == "":
		val.required(path.Child("resource"), "")
	case !resourceFields.Has(ref.Resource) && !hugePages:
		val.add(field.NotSupported(path.Child("resource"), ref.Resource, sets.List(resourceFields)))
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
	val.invalid(path.Child("divisor"), ref.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", divisors, unit))
}
