package podspec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Annotations that were fields once, or will be. Upstream still validates them.
const (
	appArmorPrefix = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	localhost      = corev1.SeccompLocalhostProfileNamePrefix
	runtimeDefault = corev1.SeccompProfileRuntimeDefault
	unconfined     = corev1.SeccompProfileNameUnconfined
)

func (val *validator) annotations(annotations map[string]string, path *field.Path) {
	if value, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror && val.spec.NodeName == "" {
		val.invalid(path.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if value := annotations[corev1.TolerationsAnnotationKey]; value != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(value), &tolerations); err != nil {
			val.invalid(path, corev1.TolerationsAnnotationKey, err.Error())
		} else {
			val.tolerations(tolerations, path.Child(corev1.TolerationsAnnotationKey))
		}
	}
	if value, set := annotations[corev1.PodDeletionCost]; set && !val.allow.deletionCost && !validDeletionCost(value) {
		val.invalid(path.Key(corev1.PodDeletionCost), value, "must be a 32bit integer")
	}
	for _, key := range sortedKeys(annotations) {
		value := annotations[key]
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			val.seccompAnnotation(path.Child(key), value)
		}
		if name, ok := strings.CutPrefix(key, appArmorPrefix); ok {
			if !anyContainer(val.spec, func(c *corev1.Container) bool { return c.Name == name }) {
				val.invalid(path.Key(key), name, "container not found")
			}
			if value != "" && value != runtimeDefault && value != unconfined && !strings.HasPrefix(value, localhost) {
				val.invalid(path.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value))
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

func (val *validator) seccompAnnotation(path *field.Path, value string) {
	switch {
	case value == runtimeDefault, value == corev1.DeprecatedSeccompProfileDockerDefault, value == unconfined:
	case strings.HasPrefix(value, localhost):
		val.localPath(path, strings.TrimPrefix(value, localhost))
	default:
		val.invalid(path, value, "must be a valid seccomp profile")
	}
}

// annotationsMatch requires that an annotation and the field that replaced it have the same value if both are set.
func (val *validator) annotationsMatch(annotations map[string]string, path *field.Path) {
	sc := val.spec.SecurityContext
	if sc != nil && sc.SeccompProfile != nil {
		val.seccompMatches(annotations, corev1.SeccompPodAnnotationKey, sc.SeccompProfile, path.Child("securityContext", "seccompProfile"))
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		path = path.Child("securityContext")
		if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
			val.seccompMatches(annotations, corev1.SeccompContainerAnnotationKeyPrefix+c.Name, c.SecurityContext.SeccompProfile, path.Child("seccompProfile"))
		}
		var profile *corev1.AppArmorProfile
		if sc != nil {
			profile = sc.AppArmorProfile
		}
		if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			profile = c.SecurityContext.AppArmorProfile
		}
		if profile != nil && !val.isWindows() {
			val.appArmorMatches(annotations, appArmorPrefix+c.Name, profile, path.Child("appArmorProfile"))
		}
	})
}

func (val *validator) seccompMatches(annotations map[string]string, key string, profile *corev1.SeccompProfile, path *field.Path) {
	value, set := annotations[key]
	if !set {
		return
	}
	if value == corev1.DeprecatedSeccompProfileDockerDefault {
		value = runtimeDefault
	}
	val.profileMatches(value, string(profile.Type), profile.LocalhostProfile, "seccomp", path)
}

func (val *validator) appArmorMatches(annotations map[string]string, key string, profile *corev1.AppArmorProfile, path *field.Path) {
	if value, set := annotations[key]; set {
		val.profileMatches(value, string(profile.Type), profile.LocalhostProfile, "apparmor", path)
	}
}

// profileMatches compares an annotation's value with a profile. The types have the same names for both mechanisms.
func (val *validator) profileMatches(value, profile string, local *string, mechanism string, path *field.Path) {
	matches := true
	switch profile {
	case string(corev1.SeccompProfileTypeUnconfined):
		matches = value == unconfined
	case string(corev1.SeccompProfileTypeRuntimeDefault):
		matches = value == runtimeDefault
	case string(corev1.SeccompProfileTypeLocalhost):
		name, isLocal := strings.CutPrefix(value, localhost)
		if matches = isLocal; isLocal && (local == nil || *local != name) {
			val.forbidden(path.Child("localhostProfile"), mechanism+" profile in annotation and field must match")
		}
	}
	if !matches {
		val.forbidden(path.Child("type"), mechanism+" type in annotation and field must match")
	}
}

// AppArmorFromAnnotation is the profile in the annotation of older clients, or nil.
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
