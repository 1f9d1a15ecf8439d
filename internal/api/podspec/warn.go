package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// warner collects warnings about a specification that is valid but most likely a mistake.
type warner struct {
	texts []string
	spec  *corev1.PodSpec
	meta  *metav1.ObjectMeta
	path  *field.Path // of the pod or template; nil for a pod
}

func (w *warner) add(path *field.Path, format string, args ...any) {
	w.texts = append(w.texts, fmt.Sprintf("%s: ", path)+fmt.Sprintf(format, args...))
}

// WarnPod returns the warnings for a new pod.
func WarnPod(pod *corev1.Pod) []string {
	w := &warner{spec: &pod.Spec, meta: &pod.ObjectMeta}
	w.all()
	return w.texts
}

// WarnTemplate returns the warnings for a template with the given path. They do not depend on old, the previous template.
func WarnTemplate(path *field.Path, t, old *corev1.PodTemplateSpec) []string {
	if t == nil {
		return nil
	}
	w := &warner{spec: &t.Spec, meta: &t.ObjectMeta, path: path}
	w.all()
	return w.texts
}

func (w *warner) all() {
	w.nodeLabels()
	w.annotations()
	w.volumes()
	for _, v := range w.spec.Volumes {
		w.overlappingFiles(&v)
	}
	w.duplicateEntries()
	w.fractionalBytes(w.spec.Overhead, w.path.Child("spec", "overhead"))
	VisitContainers(w.spec, w.path.Child("spec"), func(c *corev1.Container, _ ContainerKind, path *field.Path) { w.container(c, path) })
	w.ports()
	if seconds := w.spec.TerminationGracePeriodSeconds; seconds != nil && *seconds < 0 {
		w.add(w.path.Child("spec", "terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.nullSelectors()
	if w.spec.DNSConfig != nil {
		for i, server := range w.spec.DNSConfig.Nameservers {
			w.texts = append(w.texts, utilvalidation.GetWarningsForIP(w.path.Child("spec", "dnsConfig", "nameservers").Index(i), server)...)
		}
	}
	for i, alias := range w.spec.HostAliases {
		w.texts = append(w.texts, utilvalidation.GetWarningsForIP(w.path.Child("spec", "hostAliases").Index(i).Child("ip"), alias.IP)...)
	}
}

// DeprecatedNodeLabels are deprecated node labels and their replacement, if there is one.
var DeprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
	"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

func (w *warner) nodeLabels() {
	for _, key := range sortedKeys(w.spec.NodeSelector) {
		if text, ok := DeprecatedNodeLabels[key]; ok {
			w.add(w.path.Child("spec", "nodeSelector").Key(key), "%s", text)
		}
	}
	if a := w.spec.Affinity; a != nil && a.NodeAffinity != nil {
		path := w.path.Child("spec", "affinity", "nodeAffinity")
		if must := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; must != nil {
			for i, term := range must.NodeSelectorTerms {
				w.nodeSelectorTerm(term, false, path.Child(required, "nodeSelectorTerms").Index(i))
			}
		}
		for i, term := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			w.nodeSelectorTerm(term.Preference, true, path.Child(preferred).Index(i).Child("preference"))
		}
	}
	for i, c := range w.spec.TopologySpreadConstraints {
		path := w.path.Child("spec", "topologySpreadConstraints").Index(i)
		if text, ok := DeprecatedNodeLabels[c.TopologyKey]; ok {
			w.add(path.Child("topologyKey"), "%s is %s", c.TopologyKey, text)
		}
		if c.LabelSelector == nil {
			w.nullSelector(path)
		}
	}
}

func (w *warner) nodeSelectorTerm(term corev1.NodeSelectorTerm, checkValues bool, path *field.Path) {
	for i, expression := range term.MatchExpressions {
		path := path.Child("matchExpressions").Index(i)
		if text, ok := DeprecatedNodeLabels[expression.Key]; ok {
			w.add(path.Child("key"), "%s is %s", expression.Key, text)
		}
		if checkValues {
			for k, value := range expression.Values {
				for _, msg := range utilvalidation.IsValidLabelValue(value) {
					w.add(path.Child("values").Index(k), "%s is invalid, %s", value, msg)
				}
			}
		}
	}
}

func (w *warner) nullSelector(path *field.Path) {
	w.add(path.Child("labelSelector"), "a null labelSelector results in matching no pod")
}

func (w *warner) nullSelectors() {
	if w.spec.Affinity == nil {
		return
	}
	terms := func(must []corev1.PodAffinityTerm, should []corev1.WeightedPodAffinityTerm, path *field.Path) {
		for i := range must {
			if must[i].LabelSelector == nil {
				w.nullSelector(path.Child(required).Index(i))
			}
		}
		for i := range should {
			if should[i].PodAffinityTerm.LabelSelector == nil {
				w.nullSelector(path.Child(preferred).Index(i).Child("podAffinityTerm"))
			}
		}
	}
	path := w.path.Child("spec", "affinity")
	if a := w.spec.Affinity.PodAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))
	}
	if a := w.spec.Affinity.PodAntiAffinity; a != nil {
		terms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))
	}
}

func (w *warner) annotations() {
	path := w.path.Child("metadata", "annotations")
	for _, deprecated := range []struct{ key, text string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, set := w.meta.Annotations[deprecated.key]; set {
			w.add(path.Key(deprecated.key), "%s", deprecated.text)
		}
	}
	if sc := w.spec.SecurityContext; sc == nil || sc.SeccompProfile == nil {
		w.seccompAnnotation(corev1.SeccompPodAnnotationKey)
	}
}

func (w *warner) seccompAnnotation(key string) {
	if _, set := w.meta.Annotations[key]; set {
		w.add(w.path.Child("metadata", "annotations").Key(key), `non-functional in v1.27+; use the "seccompProfile" field instead`)
	}
}

func (w *warner) volumes() {
	for i, v := range w.spec.Volumes {
		path := w.path.Child("spec", "volumes").Index(i)
		for _, old := range []struct {
			set        bool
			name, text string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if old.set {
				w.add(path.Child(old.name), "%s", old.text)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			resources, path := v.Ephemeral.VolumeClaimTemplate.Spec.Resources, path.Child("ephemeral", "volumeClaimTemplate", "spec", "resources")
			w.fraction(resources.Requests, corev1.ResourceStorage, path.Child("requests"))
			w.fraction(resources.Limits, corev1.ResourceStorage, path.Child("limits"))
		}
	}
}

// duplicateEntries warns of list entries that override one another.
func (w *warner) duplicateEntries() {
	seen := sets.New[string]()
	for i, alias := range w.spec.HostAliases {
		if seen.Has(alias.IP) {
			w.add(w.path.Child("spec", "hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
		seen.Insert(alias.IP)
	}
	seen = sets.New[string]()
	for i, secret := range w.spec.ImagePullSecrets {
		path := w.path.Child("spec", "imagePullSecrets").Index(i).Child("name")
		if seen.Has(secret.Name) {
			w.add(path, "duplicate name %q", secret.Name)
		}
		seen.Insert(secret.Name)
		if secret.Name == "" {
			w.add(path, "invalid empty name %q", secret.Name)
		}
	}
}

// fractionalBytes warns of fractions of bytes.
func (w *warner) fractionalBytes(list corev1.ResourceList, path *field.Path) {
	w.fraction(list, corev1.ResourceMemory, path)
	w.fraction(list, corev1.ResourceEphemeralStorage, path)
}

func (w *warner) fraction(list corev1.ResourceList, name corev1.ResourceName, path *field.Path) {
	if value, set := list[name]; set && value.MilliValue()%1000 != 0 {
		w.add(path.Key(string(name)), "fractional byte value %q is invalid, must be an integer", value.String())
	}
}

func (w *warner) container(c *corev1.Container, path *field.Path) {
	if sc := c.SecurityContext; sc == nil || sc.SeccompProfile == nil {
		w.seccompAnnotation(corev1.SeccompContainerAnnotationKeyPrefix + c.Name)
	}
	w.appArmorAnnotation(c)
	w.fractionalBytes(c.Resources.Limits, path.Child("resources", "limits"))
	w.fractionalBytes(c.Resources.Requests, path.Child("resources", "requests"))
	names := sets.New[string]()
	for i, v := range c.Env {
		reference := "$(" + v.Name + ")"
		// A variable that extends its earlier value is intended.
		extends := v.ValueFrom == nil && v.Value != reference && strings.Contains(v.Value, reference)
		if names.Has(v.Name) && !extends {
			w.add(path.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", v.Name)
		}
		names.Insert(v.Name)
	}
}

// appArmorAnnotation warns of the annotation that a field has replaced, unless the pod's own profile is the same. A pod's
// field is set from the annotation before warnings are made, so equality means nothing there.
func (w *warner) appArmorAnnotation(c *corev1.Container) {
	key := appArmorPrefix + c.Name
	value, set := w.meta.Annotations[key]
	if !set {
		return
	}
	profile := AppArmorFromAnnotation(value)
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		isPod := w.path == nil
		if !isPod || !equality.Semantic.DeepEqual(c.SecurityContext.AppArmorProfile, profile) {
			return
		}
	}
	if sc := w.spec.SecurityContext; sc != nil && sc.AppArmorProfile != nil && equality.Semantic.DeepEqual(sc.AppArmorProfile, profile) {
		return
	}
	w.add(w.path.Child("metadata", "annotations").Key(key), `deprecated since v1.30; use the "appArmorProfile" field instead`)
}

// ports warns of ports that are defined twice or that are ambiguous.
func (w *warner) ports() {
	type definition struct {
		path *field.Path
		port corev1.ContainerPort
	}
	numbers, names := map[string][]definition{}, map[string]*field.Path{}
	VisitContainers(w.spec, w.path.Child("spec"), func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		for i, port := range c.Ports {
			path := path.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.add(path, "hostIP set without hostPort: %+v", port)
			}
			key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
			for _, other := range numbers[key] {
				switch {
				case port.HostIP == other.port.HostIP && port.HostPort == other.port.HostPort:
					w.add(path, "duplicate port definition with %s", other.path)
				case port.HostPort == 0 || other.port.HostPort == 0:
					w.add(path, "overlapping port definition with %s", other.path)
				case port.HostPort == other.port.HostPort && (port.HostIP == "") != (other.port.HostIP == ""):
					w.add(path, "dangerously ambiguous port definition with %s", other.path)
				}
			}
			numbers[key] = append(numbers[key], definition{path, port})
		}
	})
	VisitContainers(w.spec, w.path.Child("spec"), func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		for i, port := range c.Ports {
			path := path.Child("ports").Index(i)
			if first, taken := names[port.Name]; port.Name != "" && taken {
				w.add(path, "duplicate port name %q with %s, services and probes that select ports by name will use %s", port.Name, first, first)
			} else {
				names[port.Name] = path
			}
		}
	})
}

// volumeFile is a file that a volume writes, and its source if there are several.
type volumeFile struct{ path, source string }

func (f volumeFile) String() string {
	if f.source == "" {
		return fmt.Sprintf("%q", f.path)
	}
	return fmt.Sprintf("%q (%s)", f.path, f.source)
}

// overlappingFiles warns of files of one volume that have the same path, or one of which is inside the other.
func (w *warner) overlappingFiles(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		w.overlaps(v.Name, fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), keyFiles(v.ConfigMap.Items, ""))
	case v.Secret != nil:
		w.overlaps(v.Name, fmt.Sprintf("Secret %q", v.Secret.SecretName), keyFiles(v.Secret.Items, ""))
	case v.DownwardAPI != nil:
		w.overlaps(v.Name, "DownwardAPI", downwardFiles(v.DownwardAPI.Items, ""))
	case v.Projected != nil:
		var files []volumeFile
		for _, source := range v.Projected.Sources {
			if source == (corev1.VolumeProjection{}) {
				w.texts = append(w.texts, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			}
			files = append(files, projectionFiles(&source)...)
		}
		w.overlaps(v.Name, "Projected", files)
	}
}

// maxOverlaps is how many overlapping paths of a volume are reported. The headers of a response have no space for more.
const maxOverlaps = 100

// maxPathBytes is Linux's limit for a path. A longer one cannot be created, and overlaps with nothing.
const maxPathBytes = 4096

// overlaps warns of files whose path is that of another file, or of a directory above it.
func (w *warner) overlaps(volume, kind string, files []volumeFile) {
	root := &pathNode{}
	reported := 0
	for i := range files {
		file := &files[i]
		file.path = strings.TrimRight(file.path, "/")
		if file.path == "" || len(file.path) > maxPathBytes {
			continue
		}
		for _, k := range root.insert(file.path, i, maxOverlaps-reported) {
			w.texts = append(w.texts, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", volume, kind, file, files[k]))
			reported++
		}
		if reported >= maxOverlaps {
			return
		}
	}
}

// pathNode is a directory or a file in the tree of a volume's paths.
type pathNode struct {
	children map[string]*pathNode
	// files are the indices of the files with this path, and below those of the files in the tree under it, both in order.
	files, below []int
}

// insert adds a file and returns the files before it that overlap with it, at most limit.
func (n *pathNode) insert(path string, file, limit int) (overlapping []int) {
	add := func(files []int) { overlapping = append(overlapping, files[:min(len(files), limit)]...) }
	for rest, more := path, true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		child := n.children[segment]
		if child == nil {
			child = &pathNode{}
			if n.children == nil {
				n.children = map[string]*pathNode{}
			}
			n.children[segment] = child
		}
		n = child
		add(n.files)
		if more {
			n.below = append(n.below, file)
		}
	}
	add(n.below)
	n.files = append(n.files, file)
	slices.Sort(overlapping)
	return overlapping[:min(len(overlapping), limit)]
}

func keyFiles(items []corev1.KeyToPath, source string) (files []volumeFile) {
	for _, item := range items {
		files = append(files, volumeFile{item.Path, source})
	}
	return files
}

func downwardFiles(items []corev1.DownwardAPIVolumeFile, source string) (files []volumeFile) {
	for _, item := range items {
		files = append(files, volumeFile{item.Path, source})
	}
	return files
}

func projectionFiles(p *corev1.VolumeProjection) (files []volumeFile) {
	switch {
	case p.ConfigMap != nil && p.ConfigMap.Items != nil:
		return keyFiles(p.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", p.ConfigMap.Name))
	case p.Secret != nil && p.Secret.Items != nil:
		return keyFiles(p.Secret.Items, fmt.Sprintf("Secret %q", p.Secret.Name))
	case p.DownwardAPI != nil && p.DownwardAPI.Items != nil:
		return downwardFiles(p.DownwardAPI.Items, "DownwardAPI")
	case p.ServiceAccountToken != nil:
		return []volumeFile{{p.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case p.ClusterTrustBundle != nil:
		name := p.ClusterTrustBundle.Name
		if name == nil {
			name = p.ClusterTrustBundle.SignerName
		}
		if name != nil {
			files = append(files, volumeFile{p.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)})
		}
	case p.PodCertificate != nil:
		files = []volumeFile{
			{p.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{p.PodCertificate.KeyPath, "PodCertificate key"},
			{p.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return files
}
