package podspec

import (
	// The digest algorithms of image references.
	_ "crypto/sha256"
	_ "crypto/sha512"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// Default sets the defaults of a pod specification that apply to templates too.
func Default(spec *corev1.PodSpec) {
	// serviceAccount is the old name of serviceAccountName; the two always have the same value.
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	setDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&spec.SchedulerName, corev1.DefaultSchedulerName)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	kind.SetDefault(&spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)

	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	VisitContainers(spec, nil, func(c *corev1.Container, _ ContainerKind, _ *field.Path) { defaultContainer(c) })
	RoundUpToMilli(spec.Overhead)
	if spec.Resources != nil {
		RoundUpToMilli(spec.Resources.Limits)
		RoundUpToMilli(spec.Resources.Requests)
	}
}

// DefaultTemplate is Default for a template, which may be nil.
func DefaultTemplate(t *corev1.PodTemplateSpec) {
	if t != nil {
		Default(&t.Spec)
	}
}

// RoundUpToMilli rounds quantities up to thousandths, the smallest unit of the API.
func RoundUpToMilli(list corev1.ResourceList) {
	for name, quantity := range list {
		if !quantity.RoundUp(resource.Milli) {
			list[name] = quantity
		}
	}
}

func defaultContainer(c *corev1.Container) {
	setDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				kind.SetDefault(&from.FileKeyRef.Optional, false)
			}
		}
	}
	RoundUpToMilli(c.Resources.Limits)
	RoundUpToMilli(c.Resources.Requests)
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			defaultProbe(probe)
		}
	}
	if c.Lifecycle != nil {
		for _, handler := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if handler != nil {
				defaultHTTPGet(handler.HTTPGet)
			}
		}
	}
}

// pullPolicy is Always for an image with the tag latest, because the node's copy may be outdated.
func pullPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent // the name is checked by validation
	}
	if tagged, ok := named.(reference.Tagged); ok {
		if tagged.Tag() == "latest" {
			return corev1.PullAlways
		}
		return corev1.PullIfNotPresent
	}
	if _, ok := named.(reference.Digested); ok {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

func defaultProbe(probe *corev1.Probe) {
	setDefault(&probe.TimeoutSeconds, 1)
	setDefault(&probe.PeriodSeconds, 10)
	setDefault(&probe.SuccessThreshold, 1)
	setDefault(&probe.FailureThreshold, 3)
	defaultHTTPGet(probe.HTTPGet)
	if probe.GRPC != nil {
		kind.SetDefault(&probe.GRPC.Service, "")
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get != nil {
		setDefault(&get.Path, "/")
		setDefault(&get.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		setDefault(&ref.APIVersion, "v1")
	}
}

func defaultVolume(v *corev1.Volume) {
	if ptr.AllPtrFieldsNil(&v.VolumeSource) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		setDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.HostPath != nil {
		kind.SetDefault(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.Secret != nil {
		kind.SetDefault(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if v.ConfigMap != nil {
		kind.SetDefault(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if v.DownwardAPI != nil {
		kind.SetDefault(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		for i := range v.DownwardAPI.Items {
			defaultFieldRef(v.DownwardAPI.Items[i].FieldRef)
		}
	}
	if v.Projected != nil {
		defaultProjected(v.Projected)
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		kind.SetDefault(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		RoundUpToMilli(claim.Resources.Limits)
		RoundUpToMilli(claim.Resources.Requests)
	}
	defaultRemovedVolume(v)
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	kind.SetDefault(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		source := &p.Sources[i]
		if source.DownwardAPI != nil {
			for j := range source.DownwardAPI.Items {
				defaultFieldRef(source.DownwardAPI.Items[j].FieldRef)
			}
		}
		if source.ServiceAccountToken != nil {
			kind.SetDefault(&source.ServiceAccountToken.ExpirationSeconds, 60*60)
		}
	}
}

// defaultRemovedVolume sets the defaults of volumes whose in-tree drivers were removed. The API keeps them.
func defaultRemovedVolume(v *corev1.Volume) {
	if v.ISCSI != nil {
		setDefault(&v.ISCSI.ISCSIInterface, "default")
	}
	if v.RBD != nil {
		setDefault(&v.RBD.RBDPool, "rbd")
		setDefault(&v.RBD.RadosUser, "admin")
		setDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
	if v.AzureDisk != nil {
		kind.SetDefault(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		kind.SetDefault(&v.AzureDisk.FSType, "ext4")
		kind.SetDefault(&v.AzureDisk.ReadOnly, false)
		kind.SetDefault(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if v.ScaleIO != nil {
		setDefault(&v.ScaleIO.StorageMode, "ThinProvisioned")
		setDefault(&v.ScaleIO.FSType, "xfs")
	}
}

func setDefault[T comparable](value *T, to T) {
	var zero T
	if *value == zero {
		*value = to
	}
}
