package volume

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/localpath"
)

const (
	// LocalPathClass is the storage class that Run creates.
	LocalPathClass = "local-path"
	// localPathNode is the annotation with the name of the volume's node.
	localPathNode = "skiff.io/local-path-node"
)

// LocalPathSettings configure the provisioner.
type LocalPathSettings struct {
	// Dir is the parent of the volumes' directories on nodes that announce none (package localpath). Those directories are never removed.
	Dir string
	// NoClass disables the creation of the storage class.
	NoClass bool
}

// DefaultLocalPathDir is the default of LocalPathSettings.Dir.
const DefaultLocalPathDir = "/var/lib/skiff/volumes"

// LocalPath provisions directories on nodes: when the pod of a claim is scheduled, a volume on that node. The kubelet creates the
// directory when the pod starts. All pods that use the claim are bound to that node. LocalPathCleaner has the directories removed.
func LocalPath(settings LocalPathSettings) controller.Definition {
	return controller.Definition{
		Name: "local-path-provisioner", Component: localpath.Provisioner, Queue: "local_path", Workers: 2,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &localPath{
				setup: s, settings: settings,
				claims:  client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers),
				volumes: client.InformerFor[*corev1.PersistentVolume](s.Informers),
				classes: client.InformerFor[*storagev1.StorageClass](s.Informers),
				nodes:   client.InformerFor[*corev1.Node](s.Informers),
			}
			if err := controller.WatchPrimary[*corev1.PersistentVolumeClaim](s); err != nil {
				return nil, err
			}
			if err := controller.WatchPrimary[*corev1.PersistentVolume](s); err != nil {
				return nil, err
			}
			return c, nil
		},
	}
}

type localPath struct {
	setup    *controller.Setup
	settings LocalPathSettings
	claims   client.Informer[*corev1.PersistentVolumeClaim]
	volumes  client.Informer[*corev1.PersistentVolume]
	classes  client.Informer[*storagev1.StorageClass]
	nodes    client.Informer[*corev1.Node]
}

// The delay until the creation of the storage class is tried again. It doubles with each failure.
const (
	minClassRetry = time.Second
	maxClassRetry = 1000 * time.Second
)

// Run creates the storage class if it does not exist. It is the default class unless there is one already.
func (c *localPath) Run(ctx context.Context) error {
	for delay := minClassRetry; !c.settings.NoClass; delay = min(2*delay, maxClassRetry) {
		if _, there := c.classes.Get("", LocalPathClass); there {
			break
		}
		_, err := client.For[*storagev1.StorageClass](c.setup.Client).Create(ctx, newLocalPathClass(c.classes.List("", nil)), client.WriteOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) || ctx.Err() != nil {
			break
		}
		c.setup.Log.Warn("failed to create storage class", "class", LocalPathClass, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	<-ctx.Done()
	return nil
}

func newLocalPathClass(others []*storagev1.StorageClass) *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: LocalPathClass},
		Provisioner:       localpath.Provisioner,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if !slices.ContainsFunc(others, isDefault) {
		class.Annotations = map[string]string{defaultClass: "true"}
	}
	return class
}

// Sync reconciles a claim, which has a namespace, or a volume.
func (c *localPath) Sync(ctx context.Context, key controller.Key) error {
	if key.Namespace == "" {
		volume, ok := c.volumes.Get("", key.Name)
		if !ok || volume.Annotations[provisionedBy] != localpath.Provisioner {
			return nil
		}
		node, _ := c.nodes.Get("", volume.Annotations[localPathNode])
		return c.setup.Apply(ctx, key, reclaimLocalPath(volume, node))
	}
	claim, ok := c.claims.Get(key.Namespace, key.Name)
	if !ok || claim.Annotations[storageProvisioner] != localpath.Provisioner || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return nil
	}
	v := localPathView{claim: claim, settings: c.settings}
	if v.class, ok = c.classes.Get("", classOfClaim(claim)); !ok {
		return nil
	}
	if _, ok := c.volumes.Get("", "pvc-"+string(claim.UID)); ok {
		return nil // provisioned already
	}
	v.nodeName = claim.Annotations[selectedNode]
	v.node, _ = c.nodes.Get("", v.nodeName)
	return c.setup.Apply(ctx, key, v.reconcile())
}

// localPathView is the observed state of one claim.
type localPathView struct {
	claim    *corev1.PersistentVolumeClaim
	class    *storagev1.StorageClass
	nodeName string
	node     *corev1.Node
	settings LocalPathSettings
}

func (v localPathView) reconcile() (plan controller.Plan) {
	if err := v.refuse(); err != "" {
		plan.Events = append(plan.Events, warning(v.claim, "ProvisioningFailed", fmt.Sprintf("failed to provision volume with StorageClass %q: %s", v.class.Name, err)))
		return plan
	}
	if v.nodeName == "" {
		return plan // no pod uses it yet
	}
	volume := v.volume()
	plan.AddStep(controller.NewCreate(volume).Ignoring(metav1.StatusReasonAlreadyExists).
		OnSuccess(normal(v.claim, "ProvisioningSucceeded", "Successfully provisioned volume %s")).
		OnFailure(warning(v.claim, "ProvisioningFailed", "failed to provision volume with StorageClass \""+v.class.Name+"\": %s")))
	return plan
}

// refuse returns why a claim cannot be provisioned, "" if it can.
func (v localPathView) refuse() string {
	switch {
	case !waitsForFirstConsumer(v.class):
		return "the storage class must have volumeBindingMode WaitForFirstConsumer"
	case modeOf(v.claim.Spec.VolumeMode) != corev1.PersistentVolumeFilesystem:
		return "volumeMode Block is not supported"
	case slices.ContainsFunc(v.claim.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod
	}):
		return "only access modes ReadWriteOnce and ReadWriteOncePod are supported"
	case v.claim.Spec.Selector != nil:
		return "claim Selector is not supported"
	case v.claim.Spec.DataSource != nil || v.claim.Spec.DataSourceRef != nil:
		return "data sources are not supported"
	case v.nodeName != "" && v.node == nil:
		return fmt.Sprintf("node %q not found", v.nodeName)
	case v.nodeName != "" && !isCleanAbsolute(v.dir()):
		return fmt.Sprintf("annotation %s of node %q is not a normalized absolute path", localpath.DirAnnotation, v.nodeName)
	}
	return ""
}

// dir is the parent of the volumes' directories on the node.
func (v localPathView) dir() string {
	return cmp.Or(v.node.Annotations[localpath.DirAnnotation], path.Clean(v.settings.Dir))
}

func isCleanAbsolute(dir string) bool { return path.IsAbs(dir) && path.Clean(dir) == dir }

func (v localPathView) volume() *corev1.PersistentVolume {
	name := "pvc-" + string(v.claim.UID)
	host := v.node.Labels[corev1.LabelHostname]
	if host == "" {
		host = v.node.Name
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: localpath.Provisioner, localPathNode: v.node.Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: v.claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: v.claim.Spec.AccessModes, StorageClassName: v.class.Name, VolumeMode: new(corev1.PersistentVolumeFilesystem),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, MountOptions: v.class.MountOptions,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: v.claim.Namespace, Name: v.claim.Name, UID: v.claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: path.Join(v.dir(), dirName(name, v.claim)), Type: new(corev1.HostPathDirectoryOrCreate)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}}}}}},
		},
	}
	if v.class.ReclaimPolicy != nil {
		volume.Spec.PersistentVolumeReclaimPolicy = *v.class.ReclaimPolicy
	}
	if isCleanable(volume, v.node) {
		volume.Finalizers = []string{localpath.Finalizer}
	}
	return volume
}

// dirName is a readable directory name. It is a single path element: object names have no slash.
func dirName(volume string, claim *corev1.PersistentVolumeClaim) string {
	name := volume + "_" + claim.Namespace + "_" + claim.Name
	return name[:min(len(name), 255)]
}

// isCleanable reports whether the directory of a volume is to be removed with it, and its node can do that.
func isCleanable(volume *corev1.PersistentVolume, node *corev1.Node) bool {
	return node != nil && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && volume.Spec.HostPath != nil &&
		path.Dir(volume.Spec.HostPath.Path) == node.Annotations[localpath.DirAnnotation] && localpath.IsVolumeDir(path.Base(volume.Spec.HostPath.Path))
}

// reclaimLocalPath deletes a released volume. A volume that was provisioned before its node could remove directories gets the finalizer first.
func reclaimLocalPath(volume *corev1.PersistentVolume, node *corev1.Node) (plan controller.Plan) {
	released := volume.Status.Phase == corev1.VolumeReleased && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	if volume.DeletionTimestamp != nil || !released {
		return plan
	}
	if isCleanable(volume, node) && !slices.Contains(volume.Finalizers, localpath.Finalizer) {
		plan.AddStep(addFinalizer(volume, localpath.Finalizer))
	}
	plan.AddStep(controller.NewDelete(volume))
	return plan
}
