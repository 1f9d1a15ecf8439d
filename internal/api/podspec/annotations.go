package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations that were fields once, or will be: upstream judges them still, and so do we.
const (
	appArmorPrefix = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	localhost      = corev1.SeccompLocalhostProfileNamePrefix
	runtimeDefault = corev1.SeccompProfileRuntimeDefault
	unconfined     = corev1.SeccompProfileNameUnconfined
)

func (j *judge) annotations(annotations map[string]string, path *field.Path) {
	if value, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror && j.spec.NodeName == "" {
		j.invalid(path.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if value := annotations[corev1.TolerationsAnnotationKey]; value != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(value), &tolerations); err != nil {
			j.invalid(path, corev1.TolerationsAnnotationKey, err.Error())
		} else {
			j.tolerations(tolerations, path.Child(corev1.TolerationsAnnotationKey))
		}
	}
	if value, set := annotations[corev1.PodDeletionCost]; set && !j.allow.deletionCost && !validDeletionCost(value) {
		j.invalid(path.Key(corev1.PodDeletionCost), value, "must be a 32bit integer")
	}
	for _, key := range sortedKeys(annotations) {
		value := annotations[key]
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			j.seccompAnnotation(path.Child(key), value)
		}
		if name, ok := strings.CutPrefix(key, appArmorPrefix); ok {
			if !anyContainer(j.spec, func(c *corev1.Container) bool { return c.Name == name }) {
				j.invalid(path.Key(key), name, "container not found")
			}
			if value != "" && value != runtimeDefault && value != unconfined && !strings.HasPrefix(value, localhost) {
				j.invalid(path.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value))
			}
		}
	}
}

func validDeletionCost(value string) bool {
	// No sign but minus, and no leading zero.
	if value == "" || value[0] == '+' || value[0] == '0' && value != "0" {
		return false
	}
	_, err := strconv.ParseInt(value, 10, 32)
	return err == nil
}

func (j *judge) seccompAnnotation(path *field.Path, value string) {
	switch {
	case value == runtimeDefault, value == corev1.DeprecatedSeccompProfileDockerDefault, value == unconfined:
	case strings.HasPrefix(value, localhost):
		j.localPath(path, strings.TrimPrefix(value, localhost))
	default:
		j.invalid(path, value, "must be a valid seccomp profile")
	}
}

// annotationsMatch requires that where an annotation and the field that took its place are both set, they say the same.
func (j *judge) annotationsMatch(annotations map[string]string, path *field.Path) {
	sc := j.spec.SecurityContext
	if sc != nil && sc.SeccompProfile != nil {
		j.seccompMatches(annotations, corev1.SeccompPodAnnotationKey, sc.SeccompProfile, path.Child("securityContext", "seccompProfile"))
	}
	VisitContainers(j.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		path = path.Child("securityContext")
		if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
			j.seccompMatches(annotations, corev1.SeccompContainerAnnotationKeyPrefix+c.Name, c.SecurityContext.SeccompProfile, path.Child("seccompProfile"))
		}
		var profile *corev1.AppArmorProfile
		if sc != nil {
			profile = sc.AppArmorProfile
		}
		if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			profile = c.SecurityContext.AppArmorProfile
		}
		if profile != nil && !j.isWindows() {
			j.appArmorMatches(annotations, appArmorPrefix+c.Name, profile, path.Child("appArmorProfile"))
		}
	})
}

func (j *judge) seccompMatches(annotations map[string]string, key string, profile *corev1.SeccompProfile, path *field.Path) {
	value, set := annotations[key]
	if !set {
		return
	}
	if value == corev1.DeprecatedSeccompProfileDockerDefault {
		value = runtimeDefault
	}
	j.profileMatches(value, string(profile.Type), profile.LocalhostProfile, "seccomp", path)
}

func (j *judge) appArmorMatches(annotations map[string]string, key string, profile *corev1.AppArmorProfile, path *field.Path) {
	if value, set := annotations[key]; set {
		j.profileMatches(value, string(profile.Type), profile.LocalhostProfile, "apparmor", path)
	}
}

// profileMatches compares an annotation's value with a profile. The types have the same names for both mechanisms.
func (j *judge) profileMatches(value, profile string, local *string, mechanism string, path *field.Path) {
	matches := true
	switch profile {
	case string(corev1.SeccompProfileTypeUnconfined):
		matches = value == unconfined
	case string(corev1.SeccompProfileTypeRuntimeDefault):
		matches = value == runtimeDefault
	case string(corev1.SeccompProfileTypeLocalhost):
		name, isLocal := strings.CutPrefix(value, localhost)
		if matches = isLocal; isLocal && (local == nil || *local != name) {
			j.forbidden(path.Child("localhostProfile"), mechanism+" profile in annotation and field must match")
		}
	}
	if !matches {
		j.forbidden(path.Child("type"), mechanism+" type in annotation and field must match")
	}
}

// AppArmorFromAnnotation is the profile that the annotation of older clients names, or nil.
func AppArmorFromAnnotation(value string) *corev1.AppArmorProfile {
	switch name, isLocal := strings.CutPrefix(value, localhost); {
	case value == unconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case value == runtimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case isLocal && name != "":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
