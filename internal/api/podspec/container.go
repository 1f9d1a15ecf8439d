package podspec

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// containers validates all containers of the pod. path is that of the specification.
func (val *validator) containers(path *field.Path) {
	if len(val.spec.Containers) == 0 {
		val.required(path.Child("containers"), "")
	}
	val.containerNames(path)
	val.hostPorts(path)
	VisitContainers(val.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		val.container(c, path)
		switch kind {
		case InitContainer:
			val.initContainer(c, path)
		case RegularContainer:
			val.lifecycleAndProbes(c, path)
			val.restartRules(c, path)
		case EphemeralContainer:
			val.ephemeralContainer(c, path)
		}
	})
	val.targetContainers(path.Child("ephemeralContainers"))
}

// container validates what applies to containers of every type.
func (val *validator) container(c *corev1.Container, path *field.Path) {
	val.requiredLabel(path.Child("name"), c.Name)
	val.nonEmpty(path.Child("image"), c.Image)
	requiredOneOf(val, path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	val.ports(c.Ports, path.Child("ports"))
	val.env(c.Env, path.Child("env"))
	val.envFrom(c.EnvFrom, path.Child("envFrom"))
	val.mounts(c, path.Child("volumeMounts"))
	val.devices(c, path.Child("volumeDevices"))
	val.pullPolicy(c.ImagePullPolicy, path.Child("imagePullPolicy"))
	val.resources(&c.Resources, val.containerResourceName, path.Child("resources"))
	val.resizePolicy(c.ResizePolicy, path.Child("resizePolicy"))
	val.containerSecurity(c.SecurityContext, path.Child("securityContext"))
}

func (val *validator) pullPolicy(policy corev1.PullPolicy, path *field.Path) {
	requiredOneOf(val, path, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// containerNames refuses duplicate container names.
func (val *validator) containerNames(path *field.Path) {
	seen, taken := sets.New[string](), sets.New[string]()
	for i := range val.spec.Containers {
		taken.Insert(val.spec.Containers[i].Name)
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		others := taken
		if kind == RegularContainer {
			others = seen
		}
		if others.Has(c.Name) {
			val.duplicate(path.Child("name"), c.Name)
		} else if c.Name != "" || kind != InitContainer {
			others.Insert(c.Name)
		}
	})
}

// hostPorts refuses duplicate host ports: among the regular containers, which run at the same time, and within an init
// container.
func (val *validator) hostPorts(path *field.Path) {
	together := sets.New[string]()
	VisitContainers(val.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		claimed := together
		switch kind {
		case InitContainer:
			claimed = sets.New[string]()
		case EphemeralContainer:
			return
		}
		for i, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if claimed.Has(key) {
				val.duplicate(path.Child("ports").Index(i).Child("hostPort"), key)
			}
			claimed.Insert(key)
		}
	})
}

// initContainer validates what is specific to init containers. Only a restartable one (a sidecar) may have probes and
// lifecycle hooks.
func (val *validator) initContainer(c *corev1.Container, path *field.Path) {
	if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 {
		val.required(path.Child("restartPolicy"), rulesNeedPolicy)
	} else {
		val.restartRules(c, path)
	}
	if Restartable(c) {
		val.lifecycleAndProbes(c, path)
		return
	}
	const needsRestart = "may not be set for init containers without restartPolicy=Always"
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"lifecycle", c.Lifecycle != nil},
		{"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil},
	} {
		if f.set {
			val.forbidden(path.Child(f.name), needsRestart)
		}
	}
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer && !val.allow.initResizeRestart {
			val.invalid(path.Child("resizePolicy").Index(i).Child("restartPolicy"), policy.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers")
		}
	}
}

// ephemeralContainer refuses fields that an ephemeral container cannot have.
func (val *validator) ephemeralContainer(c *corev1.Container, path *field.Path) {
	val.imageWhitespace(c, path)
	const text = "cannot be set for an Ephemeral Container"
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"ports", c.Ports != nil},
		{"resources", !reflect.ValueOf(c.Resources).IsZero()},
		{"resizePolicy", c.ResizePolicy != nil},
		{"restartPolicy", c.RestartPolicy != nil},
		{"restartPolicyRules", c.RestartPolicyRules != nil},
		{"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil},
		{"lifecycle", c.Lifecycle != nil},
	} {
		if f.set {
			val.forbidden(path.Child(f.name), text)
		}
	}
	for i, mount := range c.VolumeMounts {
		if mount.SubPath != "" {
			val.forbidden(path.Child("volumeMounts").Index(i).Child("subPath"), text)
		}
		if mount.SubPathExpr != "" {
			val.forbidden(path.Child("volumeMounts").Index(i).Child("subPathExpr"), text)
		}
	}
}

// targetContainers requires that the target of an ephemeral container exists.
func (val *validator) targetContainers(path *field.Path) {
	names := sets.New[string]()
	VisitContainers(val.spec, nil, func(c *corev1.Container, kind ContainerKind, _ *field.Path) {
		if kind != EphemeralContainer {
			names.Insert(c.Name)
		}
	})
	for i, c := range val.spec.EphemeralContainers {
		if c.TargetContainerName != "" && !names.Has(c.TargetContainerName) {
			val.add(field.NotFound(path.Index(i).Child("targetContainerName"), c.TargetContainerName))
		}
	}
}

// imageWhitespace refuses whitespace around the image of a pod's container. It has always been allowed in templates.
func (val *validator) imageWhitespace(c *corev1.Container, path *field.Path) {
	if strings.TrimSpace(c.Image) != c.Image {
		val.invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace")
	}
}

func (val *validator) ports(ports []corev1.ContainerPort, path *field.Path) {
	names := sets.New[string]()
	for i, port := range ports {
		path := path.Index(i)
		if port.Name != "" {
			if texts := utilvalidation.IsValidPortName(port.Name); len(texts) > 0 {
				val.invalidEach(path.Child("name"), port.Name, texts)
			} else if names.Has(port.Name) {
				val.duplicate(path.Child("name"), port.Name)
			} else {
				names.Insert(port.Name)
			}
		}
		if port.ContainerPort == 0 {
			val.required(path.Child("containerPort"), "")
		} else {
			val.invalidEach(path.Child("containerPort"), port.ContainerPort, utilvalidation.IsValidPortNum(int(port.ContainerPort)))
		}
		if port.HostPort != 0 {
			val.invalidEach(path.Child("hostPort"), port.HostPort, utilvalidation.IsValidPortNum(int(port.HostPort)))
		}
		requiredOneOf(val, path.Child("protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

// resizePolicy validates whether a container restarts when its resources change.
func (val *validator) resizePolicy(policies []corev1.ContainerResizePolicy, path *field.Path) {
	seen := sets.New[corev1.ResourceName]()
	for i, policy := range policies {
		if seen.Has(policy.ResourceName) {
			val.duplicate(path.Index(i), policy.ResourceName)
		}
		seen.Insert(policy.ResourceName)
		requiredOneOf(val, path, policy.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		requiredOneOf(val, path, policy.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if val.spec.RestartPolicy == corev1.RestartPolicyNever && policy.RestartPolicy != corev1.NotRequired {
			val.invalid(path, policy.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

const rulesNeedPolicy = "must specify restartPolicy when restart rules are used"

// restartRules validates a container's own restart policy and its rules by exit code.
func (val *validator) restartRules(c *corev1.Container, path *field.Path) {
	switch {
	case c.RestartPolicy != nil:
		oneOf(val, path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	case len(c.RestartPolicyRules) > 0:
		val.required(path.Child("restartPolicy"), rulesNeedPolicy)
	}
	path = path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 20 {
		val.add(field.TooMany(path, len(c.RestartPolicyRules), 20))
	}
	for i, rule := range c.RestartPolicyRules {
		path := path.Index(i)
		oneOf(val, path.Child("action"), rule.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		if rule.ExitCodes == nil {
			val.required(path.Child("exitCodes"), "must be specified")
			continue
		}
		path = path.Child("exitCodes")
		oneOf(val, path.Child("operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if len(rule.ExitCodes.Values) > 255 {
			val.add(field.TooMany(path.Child("values"), len(rule.ExitCodes.Values), 255))
		}
	}
}

// hostNetwork requires that a container on the host network uses the host port as its container port. In a template the
// host port may be unset.
func (val *validator) hostNetwork(path *field.Path) {
	if !val.spec.HostNetwork {
		return
	}
	isPod := val.meta != nil
	for i, c := range val.spec.Containers {
		for k, port := range c.Ports {
			if (isPod || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				val.invalid(path.Child("containers").Index(i).Child("ports").Index(k).Child("hostPort"), port.HostPort,
					"must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

// hostUsers validates a pod with its own user namespace.
func (val *validator) hostUsers(path *field.Path) {
	if ptr.Deref(val.spec.HostUsers, true) {
		return
	}
	const text = "when `hostUsers` is false"
	if val.spec.HostNetwork && !val.allow.userNamespaceHostNetwork {
		val.forbidden(path.Child("hostNetwork"), text)
	}
	if val.spec.HostPID {
		val.forbidden(path.Child("HostPID"), text)
	}
	if val.spec.HostIPC {
		val.forbidden(path.Child("HostIPC"), text)
	}
	if val.allow.userNamespaceDevices {
		return
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		if len(c.VolumeDevices) > 0 {
			val.forbidden(path.Child("volumeDevices"), text)
		}
	})
}
