package volume

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	// attachmentsOnNode and attachmentsOfVolume are indexes of VolumeAttachments.
	attachmentsOnNode, attachmentsOfVolume = "node", "volume"
	// managedAttachAnnotation is set by kubelets whose volumes are attached by this controller.
	managedAttachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	// DefaultMaxUnmountWait is the time an unreachable node may keep a volume attached that no pod on it uses.
	DefaultMaxUnmountWait = 6 * time.Minute
)

// AttachDetach creates VolumeAttachments for the CSI volumes used by pods on a node, and deletes unused ones. The external
// attacher of the CSI driver does the attaching. maxUnmountWait applies to unreachable nodes; for reachable ones it waits until
// the volume is unmounted.
func AttachDetach(maxUnmountWait time.Duration) controller.Definition {
	return controller.Definition{
		Name: "persistentvolume-attach-detach-controller", Aliases: []string{"attachdetach"}, Component: "attachdetach-controller", Queue: "attachdetach", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &attachDetach{
				maxUnmountWait: maxUnmountWait, unneededSince: map[string]time.Time{},
				nodes:       client.InformerFor[*corev1.Node](s.Informers),
				pods:        client.InformerFor[*corev1.Pod](s.Informers),
				claims:      client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers),
				volumes:     client.InformerFor[*corev1.PersistentVolume](s.Informers),
				attachments: client.InformerFor[*storagev1.VolumeAttachment](s.Informers),
				drivers:     client.InformerFor[*storagev1.CSIDriver](s.Informers),
				operations:  newOperationDuration(),
			}
			if err := s.Register(c.operations); err != nil {
				return nil, err
			}
			return controller.NewSyncer(s, c), c.watch(s)
		},
	}
}

type attachDetach struct {
	maxUnmountWait time.Duration
	nodes          client.Informer[*corev1.Node]
	pods           client.Informer[*corev1.Pod]
	claims         client.Informer[*corev1.PersistentVolumeClaim]
	volumes        client.Informer[*corev1.PersistentVolume]
	attachments    client.Informer[*storagev1.VolumeAttachment]
	drivers        client.Informer[*storagev1.CSIDriver]
	operations     *prometheus.HistogramVec

	mu            sync.Mutex
	unneededSince map[string]time.Time // since when attachments are unused, by name
}

func nodeKey(name string) []controller.Key {
	if name == "" {
		return nil
	}
	return []controller.Key{{Name: name}}
}

func (c *attachDetach) watch(s *controller.Setup) error {
	if err := controller.IndexPodsByNode(c.pods); err != nil {
		return err
	}
	if err := indexPods(c.pods); err != nil {
		return err
	}
	if err := c.indexAttachments(); err != nil {
		return err
	}
	if err := controller.WatchPrimary[*corev1.Node](s); err != nil {
		return err
	}
	if err := controller.Watch(s, func(pod *corev1.Pod) []controller.Key {
		if len(claimKeys(pod)) == 0 {
			return nil
		}
		return nodeKey(pod.Spec.NodeName)
	}); err != nil {
		return err
	}
	if err := controller.Watch(s, func(claim *corev1.PersistentVolumeClaim) []controller.Key {
		return c.nodesOf(claim.Namespace, claim.Name)
	}); err != nil {
		return err
	}
	if err := controller.Watch(s, c.nodesOfVolume); err != nil {
		return err
	}
	if err := controller.Watch(s, func(*storagev1.CSIDriver) (keys []controller.Key) {
		for _, node := range c.nodes.List("", nil) {
			keys = append(keys, controller.KeyOf(node))
		}
		return keys
	}); err != nil {
		return err
	}
	if err := c.attachments.AddEventHandler(nil, c.onAttachmentUpdate, c.onAttachmentDelete); err != nil {
		return fmt.Errorf("watch attachments: %w", err)
	}
	// Another node may be waiting for the detach.
	return controller.Watch(s, func(a *storagev1.VolumeAttachment) []controller.Key {
		keys := nodeKey(a.Spec.NodeName)
		if volume, ok := c.volumes.Get("", deref(a.Spec.Source.PersistentVolumeName)); ok {
			keys = append(keys, c.nodesOfVolume(volume)...)
		}
		return keys
	})
}

func (c *attachDetach) indexAttachments() error {
	err := c.attachments.EnsureIndex(attachmentsOnNode, func(a *storagev1.VolumeAttachment) []string { return []string{a.Spec.NodeName} })
	if err != nil {
		return fmt.Errorf("index attachments by node: %w", err)
	}
	err = c.attachments.EnsureIndex(attachmentsOfVolume, func(a *storagev1.VolumeAttachment) []string {
		return []string{deref(a.Spec.Source.PersistentVolumeName)}
	})
	if err != nil {
		return fmt.Errorf("index attachments by volume: %w", err)
	}
	return nil
}

// nodesOf returns the nodes with pods that use a claim, nodesOfVolume those with pods that use a volume.
func (c *attachDetach) nodesOf(namespace, claim string) (keys []controller.Key) {
	for _, pod := range podsUsing(c.pods, namespace, claim) {
		keys = append(keys, nodeKey(pod.Spec.NodeName)...)
	}
	return keys
}

func (c *attachDetach) nodesOfVolume(volume *corev1.PersistentVolume) []controller.Key {
	if ref := volume.Spec.ClaimRef; ref != nil && volume.Spec.CSI != nil {
		return c.nodesOf(ref.Namespace, ref.Name)
	}
	return nil
}

// attachView is the observed state for the volumes of one node.
type attachView struct {
	name string
	node *corev1.Node // nil if deleted
	// needed are the volumes used by pods on the node, by name.
	needed map[string]neededVolume
	// attachedHere are the attachments on the node, attachedElsewhere those of needed volumes on other nodes.
	attachedHere, attachedElsewhere []*storagev1.VolumeAttachment
	volumes                         map[string]*corev1.PersistentVolume // of the attachments, by name
	users                           map[string][]string                 // pods that use needed volumes on other nodes, by volume
	unneededSince                   map[string]time.Time
	maxUnmountWait                  time.Duration
	now                             time.Time
}

type neededVolume struct {
	volume *corev1.PersistentVolume
	pods   []*corev1.Pod
}

// Observe gathers a node, the volumes its pods use, and its attachments.
func (c *attachDetach) Observe(key controller.Key) (attachView, bool) {
	v := attachView{name: key.Name, needed: map[string]neededVolume{}, volumes: map[string]*corev1.PersistentVolume{}, users: map[string][]string{}, maxUnmountWait: c.maxUnmountWait, now: time.Now()}
	v.node, _ = c.nodes.Get("", key.Name)
	for _, pod := range controller.PodsOnNode(c.pods, key.Name) {
		if isPodTerminated(pod) {
			continue
		}
		for _, volume := range c.volumesOf(pod) {
			n := v.needed[volume.Name]
			n.volume, n.pods = volume, append(n.pods, pod)
			v.needed[volume.Name] = n
		}
	}
	c.observeAttachments(&v)
	return v, v.node != nil || len(v.attachedHere) > 0
}

// observeAttachments gathers the attachments on the node, and those of needed volumes on other nodes.
func (c *attachDetach) observeAttachments(v *attachView) {
	// The indexes exist: watch added them.
	v.attachedHere, _ = c.attachments.ByIndex(attachmentsOnNode, v.name)
	for name, needed := range v.needed {
		all, _ := c.attachments.ByIndex(attachmentsOfVolume, name)
		for _, a := range all {
			if a.Spec.NodeName != v.name {
				v.attachedElsewhere = append(v.attachedElsewhere, a)
				v.users[name] = append(v.users[name], c.usersOn(a.Spec.NodeName, needed.volume)...)
				v.volumes[name] = needed.volume
			}
		}
	}
	v.unneededSince = map[string]time.Time{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range v.attachedHere {
		name := deref(a.Spec.Source.PersistentVolumeName)
		if volume, ok := c.volumes.Get("", name); ok {
			v.volumes[name] = volume
		}
		if since, ok := c.unneededSince[a.Name]; ok {
			v.unneededSince[a.Name] = since
		}
	}
}

// usersOn returns the pods on a node that use a volume.
func (c *attachDetach) usersOn(node string, volume *corev1.PersistentVolume) (names []string) {
	for _, pod := range podsUsing(c.pods, volume.Spec.ClaimRef.Namespace, volume.Spec.ClaimRef.Name) {
		if pod.Spec.NodeName == node && !isPodTerminated(pod) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// volumesOf returns the volumes of a pod that must be attached.
func (c *attachDetach) volumesOf(pod *corev1.Pod) (volumes []*corev1.PersistentVolume) {
	for i := range pod.Spec.Volumes {
		source := &pod.Spec.Volumes[i]
		claim, ok := c.claims.Get(pod.Namespace, claimName(pod, source))
		if !ok || claim.Status.Phase != corev1.ClaimBound || source.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
			continue
		}
		volume, ok := c.volumes.Get("", claim.Spec.VolumeName)
		if !ok || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID || volume.Spec.CSI == nil {
			continue
		}
		if driver, ok := c.drivers.Get("", volume.Spec.CSI.Driver); ok && driver.Spec.AttachRequired != nil && !*driver.Spec.AttachRequired {
			continue
		}
		volumes = append(volumes, volume)
	}
	return volumes
}

// Reconcile reconciles and updates since when attachments are unused.
func (c *attachDetach) Reconcile(v attachView) controller.Plan {
	plan, unneeded := v.reconcile()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range v.attachedHere {
		if since, ok := unneeded[a.Name]; ok {
			c.unneededSince[a.Name] = since
		} else {
			delete(c.unneededSince, a.Name)
		}
	}
	return plan
}

// attachmentName is upstream's, so that both implementations and external attachers agree.
func attachmentName(volume *corev1.PersistentVolume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume.Spec.CSI.VolumeHandle+volume.Spec.CSI.Driver+node)))
}

// uniqueName is the name of a volume in a node's status.
func uniqueName(volume *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + volume.Spec.CSI.Driver + "^" + volume.Spec.CSI.VolumeHandle)
}

// reconcile returns the plan, and since when attachments are unused.
//
// The node's status is updated before anything is detached: kubelets only mount volumes listed there.
func (v attachView) reconcile() (plan controller.Plan, unneeded map[string]time.Time) {
	unneeded = map[string]time.Time{}
	var attach, detach []controller.Write
	detaching := map[string]bool{}
	for _, a := range v.attachedHere {
		if v.isNeeded(a) {
			continue
		}
		since, known := v.unneededSince[a.Name]
		if !known {
			since = v.now
		}
		unneeded[a.Name] = since
		if ok, delay := v.canDetach(a, since); ok {
			detaching[a.Name] = true
			if a.DeletionTimestamp == nil {
				detach = append(detach, controller.NewDelete(a))
			}
		} else {
			plan.Requeue(delay)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.needed)) {
		if w, ok := v.attach(v.needed[name], &plan); ok {
			attach = append(attach, w)
		}
	}
	if status := v.attachedStatus(detaching, &plan); status != nil {
		plan.AddStep(controller.NewUpdateStatus(status))
	}
	plan.AddStep(attach...)
	plan.AddStep(detach...)
	return plan, unneeded
}

// isNeeded reports whether an attachment is kept: a pod uses the volume, or the attachment was created by others.
func (v attachView) isNeeded(a *storagev1.VolumeAttachment) bool {
	_, needed := v.neededVolume(a)
	return needed || !v.isManagedAttachment(a)
}

// neededVolume returns the needed volume of an attachment. It may be another persistent volume than the attachment's: all with the same driver and
// handle share one attachment on a node.
func (v attachView) neededVolume(a *storagev1.VolumeAttachment) (neededVolume, bool) {
	if n, ok := v.needed[deref(a.Spec.Source.PersistentVolumeName)]; ok {
		return n, true
	}
	for _, n := range v.needed {
		if attachmentName(n.volume, v.name) == a.Name {
			return n, true
		}
	}
	return neededVolume{}, false
}

// attachmentNamePattern matches the names of attachments created by this controller or upstream's.
var attachmentNamePattern = regexp.MustCompile("^csi-[0-9a-f]{64}$")

// isManagedAttachment reports whether this controller created the attachment, by its name.
func (v attachView) isManagedAttachment(a *storagev1.VolumeAttachment) bool {
	if volume := v.volumes[deref(a.Spec.Source.PersistentVolumeName)]; volume != nil && volume.Spec.CSI != nil {
		return a.Name == attachmentName(volume, v.name)
	}
	return deref(a.Spec.Source.PersistentVolumeName) != "" && attachmentNamePattern.MatchString(a.Name) // the volume no longer exists
}

// canDetach reports whether a volume can be detached, or when to check again. A ready node must have unmounted it first; a deleted
// node may still be running, so maxUnmountWait applies.
func (v attachView) canDetach(a *storagev1.VolumeAttachment, since time.Time) (bool, time.Duration) {
	if v.node != nil {
		volume := v.volumes[deref(a.Spec.Source.PersistentVolumeName)]
		if volume == nil || volume.Spec.CSI == nil || !slices.Contains(v.node.Status.VolumesInUse, uniqueName(volume)) {
			return true, 0
		}
		if slices.ContainsFunc(v.node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
			return true, 0 // an administrator declared the node shut down
		}
	}
	ready := v.node != nil && slices.ContainsFunc(v.node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if ready || v.maxUnmountWait <= 0 {
		return false, 0 // a change of its status enqueues the node
	}
	delay := since.Add(v.maxUnmountWait).Sub(v.now)
	return delay <= 0, max(delay, 0)
}

// attach plans the attachment of a volume, if it is missing and allowed.
func (v attachView) attach(n neededVolume, plan *controller.Plan) (controller.Write, bool) {
	if !v.isManaged() {
		return controller.Write{}, false
	}
	name := attachmentName(n.volume, v.name)
	if slices.ContainsFunc(v.attachedHere, func(a *storagev1.VolumeAttachment) bool { return a.Name == name }) {
		return controller.Write{}, false
	}
	if v.isExclusivelyAttachedElsewhere(n.volume) {
		why := "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
		if users := slices.Sorted(slices.Values(v.users[n.volume.Name])); len(users) > 0 {
			why = "Volume is already used by pod(s) " + strings.Join(users, ", ")
		}
		for _, pod := range n.pods {
			plan.Events = append(plan.Events, warning(pod, "FailedAttachVolume", fmt.Sprintf("Waiting for detach for volume %q %s", n.volume.Name, why)))
		}
		return controller.Write{}, false
	}
	w := controller.NewCreate(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: n.volume.Spec.CSI.Driver, NodeName: v.name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &n.volume.Name}},
	}).Ignoring(metav1.StatusReasonAlreadyExists)
	return w.OnFailure(warning(n.pods[0], "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %%s", n.volume.Name))), true
}

// isManaged reports whether this controller attaches the volumes of the node: its kubelet has set the annotation, with any value.
func (v attachView) isManaged() bool {
	return v.node != nil && metav1.HasAnnotation(v.node.ObjectMeta, managedAttachAnnotation)
}

// isExclusivelyAttachedElsewhere reports whether another node has a volume that only one node may use.
func (v attachView) isExclusivelyAttachedElsewhere(volume *corev1.PersistentVolume) bool {
	if len(volume.Spec.AccessModes) == 0 || slices.ContainsFunc(volume.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	}) {
		return false
	}
	return slices.ContainsFunc(v.attachedElsewhere, func(a *storagev1.VolumeAttachment) bool {
		return deref(a.Spec.Source.PersistentVolumeName) == volume.Name
	})
}

// attachedStatus returns the node with its attached volumes, or nil if they are up to date. It also adds events about successful
// and failed attachments.
func (v attachView) attachedStatus(detaching map[string]bool, plan *controller.Plan) kind.Object {
	if !v.isManaged() {
		return nil
	}
	var list []corev1.AttachedVolume
	// Keep volumes that are not managed by this controller.
	for _, a := range v.node.Status.VolumesAttached {
		if !strings.HasPrefix(string(a.Name), "kubernetes.io/csi/") {
			list = append(list, a)
		}
	}
	attachments := slices.Clone(v.attachedHere)
	slices.SortFunc(attachments, func(a, b *storagev1.VolumeAttachment) int { return strings.Compare(a.Name, b.Name) })
	for _, a := range attachments {
		name := deref(a.Spec.Source.PersistentVolumeName)
		needed, ok := v.neededVolume(a)
		volume := v.volumes[name]
		if volume == nil && ok {
			volume = needed.volume // the attachment's was deleted
		}
		if volume == nil || volume.Spec.CSI == nil || !v.isManagedAttachment(a) {
			continue
		}
		if !a.Status.Attached || detaching[a.Name] {
			if a.Status.AttachError != nil {
				for _, pod := range needed.pods {
					plan.Events = append(plan.Events, warning(pod, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", name, a.Status.AttachError.Message)))
				}
			}
			continue
		}
		entry := corev1.AttachedVolume{Name: uniqueName(volume)}
		list = append(list, entry)
		if !slices.Contains(v.node.Status.VolumesAttached, entry) {
			for _, pod := range needed.pods {
				plan.Events = append(plan.Events, normal(pod, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name)))
			}
		}
	}
	byName := func(a, b corev1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) }
	current := slices.SortedFunc(slices.Values(v.node.Status.VolumesAttached), byName)
	slices.SortFunc(list, byName)
	if apiequality.Semantic.DeepEqual(current, list) {
		return nil
	}
	changed := v.node.DeepCopy()
	changed.Status.VolumesAttached = list
	return changed
}
