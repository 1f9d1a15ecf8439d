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

// containers judges every container of the pod. path is that of the specification.
func (j *judge) containers(path *field.Path) {
	if len(j.spec.Containers) == 0 {
		j.required(path.Child("containers"), "")
	}
	j.containerNames(path)
	j.hostPorts(path)
	VisitContainers(j.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		j.container(c, path)
		switch kind {
		case InitContainer:
			j.initContainer(c, path)
		case RegularContainer:
			j.lifecycleAndProbes(c, path)
			j.restartRules(c, path)
		case EphemeralContainer:
			j.ephemeralContainer(c, path)
		}
	})
	j.targetContainers(path.Child("ephemeralContainers"))
}

// container judges what holds for containers of every kind.
func (j *judge) container(c *corev1.Container, path *field.Path) {
	j.requiredLabel(path.Child("name"), c.Name)
	j.nonEmpty(path.Child("image"), c.Image)
	requiredOneOf(j, path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	j.ports(c.Ports, path.Child("ports"))
	j.env(c.Env, path.Child("env"))
	j.envFrom(c.EnvFrom, path.Child("envFrom"))
	j.mounts(c, path.Child("volumeMounts"))
	j.devices(c, path.Child("volumeDevices"))
	j.pullPolicy(c.ImagePullPolicy, path.Child("imagePullPolicy"))
	j.resources(&c.Resources, j.containerResourceName, path.Child("resources"))
	j.resizePolicy(c.ResizePolicy, path.Child("resizePolicy"))
	j.containerSecurity(c.SecurityContext, path.Child("securityContext"))
}

func (j *judge) pullPolicy(policy corev1.PullPolicy, path *field.Path) {
	requiredOneOf(j, path, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

// containerNames refuses a name that another container of the pod has.
func (j *judge) containerNames(path *field.Path) {
	seen, taken := sets.New[string](), sets.New[string]()
	for i := range j.spec.Containers {
		taken.Insert(j.spec.Containers[i].Name)
	}
	VisitContainers(j.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		others := taken
		if kind == RegularContainer {
			others = seen
		}
		if others.Has(c.Name) {
			j.duplicate(path.Child("name"), c.Name)
		} else if c.Name != "" || kind != InitContainer {
			others.Insert(c.Name)
		}
	})
}

// hostPorts refuses a port of the node that is claimed twice: among the regular containers, which run together, and
// within an init container.
func (j *judge) hostPorts(path *field.Path) {
	together := sets.New[string]()
	VisitContainers(j.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
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
				j.duplicate(path.Child("ports").Index(i).Child("hostPort"), key)
			}
			claimed.Insert(key)
		}
	})
}

// initContainer judges what is particular to init containers. One that restarts (a sidecar) has a life to watch
// over; one that does not has none.
func (j *judge) initContainer(c *corev1.Container, path *field.Path) {
	if c.RestartPolicy == nil && len(c.RestartPolicyRules) > 0 {
		j.required(path.Child("restartPolicy"), rulesNeedPolicy)
	} else {
		j.restartRules(c, path)
	}
	if Restartable(c) {
		j.lifecycleAndProbes(c, path)
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
			j.forbidden(path.Child(f.name), needsRestart)
		}
	}
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer && !j.allow.initResizeRestart {
			j.invalid(path.Child("resizePolicy").Index(i).Child("restartPolicy"), policy.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers")
		}
	}
}

// ephemeralContainer refuses what a container added to a running pod cannot have.
func (j *judge) ephemeralContainer(c *corev1.Container, path *field.Path) {
	j.imageSpace(c, path)
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
			j.forbidden(path.Child(f.name), text)
		}
	}
	for i, mount := range c.VolumeMounts {
		if mount.SubPath != "" {
			j.forbidden(path.Child("volumeMounts").Index(i).Child("subPath"), text)
		}
		if mount.SubPathExpr != "" {
			j.forbidden(path.Child("volumeMounts").Index(i).Child("subPathExpr"), text)
		}
	}
}

// targetContainers requires that an ephemeral container looks at a container that exists.
func (j *judge) targetContainers(path *field.Path) {
	names := sets.New[string]()
	VisitContainers(j.spec, nil, func(c *corev1.Container, kind ContainerKind, _ *field.Path) {
		if kind != EphemeralContainer {
			names.Insert(c.Name)
		}
	})
	for i, c := range j.spec.EphemeralContainers {
		if c.TargetContainerName != "" && !names.Has(c.TargetContainerName) {
			j.add(field.NotFound(path.Index(i).Child("targetContainerName"), c.TargetContainerName))
		}
	}
}

// imageSpace refuses blanks around the image of a pod's container. Templates have always been allowed them.
func (j *judge) imageSpace(c *corev1.Container, path *field.Path) {
	if strings.TrimSpace(c.Image) != c.Image {
		j.invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace")
	}
}

func (j *judge) ports(ports []corev1.ContainerPort, path *field.Path) {
	names := sets.New[string]()
	for i, port := range ports {
		path := path.Index(i)
		if port.Name != "" {
			if texts := utilvalidation.IsValidPortName(port.Name); len(texts) > 0 {
				j.messages(path.Child("name"), port.Name, texts)
			} else if names.Has(port.Name) {
				j.duplicate(path.Child("name"), port.Name)
			} else {
				names.Insert(port.Name)
			}
		}
		if port.ContainerPort == 0 {
			j.required(path.Child("containerPort"), "")
		} else {
			j.messages(path.Child("containerPort"), port.ContainerPort, utilvalidation.IsValidPortNum(int(port.ContainerPort)))
		}
		if port.HostPort != 0 {
			j.messages(path.Child("hostPort"), port.HostPort, utilvalidation.IsValidPortNum(int(port.HostPort)))
		}
		requiredOneOf(j, path.Child("protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

// resizePolicy judges what happens to a container when its resources change.
func (j *judge) resizePolicy(policies []corev1.ContainerResizePolicy, path *field.Path) {
	seen := sets.New[corev1.ResourceName]()
	for i, policy := range policies {
		if seen.Has(policy.ResourceName) {
			j.duplicate(path.Index(i), policy.ResourceName)
		}
		seen.Insert(policy.ResourceName)
		requiredOneOf(j, path, policy.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		requiredOneOf(j, path, policy.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if j.spec.RestartPolicy == corev1.RestartPolicyNever && policy.RestartPolicy != corev1.NotRequired {
			j.invalid(path, policy.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

const rulesNeedPolicy = "must specify restartPolicy when restart rules are used"

// restartRules judges a container's own restart policy and its exceptions by exit code.
func (j *judge) restartRules(c *corev1.Container, path *field.Path) {
	switch {
	case c.RestartPolicy != nil:
		oneOf(j, path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	case len(c.RestartPolicyRules) > 0:
		j.required(path.Child("restartPolicy"), rulesNeedPolicy)
	}
	path = path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 20 {
		j.add(field.TooMany(path, len(c.RestartPolicyRules), 20))
	}
	for i, rule := range c.RestartPolicyRules {
		path := path.Index(i)
		oneOf(j, path.Child("action"), rule.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		if rule.ExitCodes == nil {
			j.required(path.Child("exitCodes"), "must be specified")
			continue
		}
		path = path.Child("exitCodes")
		oneOf(j, path.Child("operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if len(rule.ExitCodes.Values) > 255 {
			j.add(field.TooMany(path.Child("values"), len(rule.ExitCodes.Values), 255))
		}
	}
}

// hostNetwork requires that a container on the node's network uses the node's port as its own. In a template the
// port of the node may still be open.
func (j *judge) hostNetwork(path *field.Path) {
	if !j.spec.HostNetwork {
		return
	}
	isPod := j.meta != nil
	for i, c := range j.spec.Containers {
		for k, port := range c.Ports {
			if (isPod || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				j.invalid(path.Child("containers").Index(i).Child("ports").Index(k).Child("hostPort"), port.HostPort,
					"must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

// hostUsers judges a pod with user IDs of its own.
func (j *judge) hostUsers(path *field.Path) {
	if ptr.Deref(j.spec.HostUsers, true) {
		return
	}
	const text = "when `hostUsers` is false"
	if j.spec.HostNetwork && !j.allow.userNamespaceHostNetwork {
		j.forbidden(path.Child("hostNetwork"), text)
	}
	if j.spec.HostPID {
		j.forbidden(path.Child("HostPID"), text)
	}
	if j.spec.HostIPC {
		j.forbidden(path.Child("HostIPC"), text)
	}
	if j.allow.userNamespaceDevices {
		return
	}
	VisitContainers(j.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		if len(c.VolumeDevices) > 0 {
			j.forbidden(path.Child("volumeDevices"), text)
		}
	})
}
