package volume

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
)

const csiPlugin = "kubernetes.io/csi"

// volumeData is stored next to a CSI volume, so that it can be unmounted when the API objects are gone. The JSON keys are
// upstream's.
type volumeData struct {
	Driver     string `json:"driverName"`
	Handle     string `json:"volumeHandle"`
	Name       string `json:"specVolID"`
	NodeName   string `json:"nodeName"`
	Lifecycle  string `json:"volumeLifecycleMode"`
	Attachment string `json:"attachmentID"`
	// NotAttached is set if the volume does not have to be attached. It is not set in data of earlier versions.
	NotAttached bool `json:"notAttached,omitempty"`
	// Staged is the staging directory, empty if the driver does not stage.
	Staged string `json:"deviceMountPath,omitempty"`
	// FSGroupApplied is set once the volume's files belong to the pod's fsGroup.
	FSGroupApplied bool `json:"fsGroupApplied,omitempty"`
}

// csiVolume is a CSI volume to set up, inline or persistent.
type csiVolume struct {
	volumeData
	pod            *corev1.Pod
	spec           storagev1.CSIDriverSpec // the driver's spec, or upstream's defaults
	attributes     map[string]string
	publishSecret  *corev1.SecretReference
	stageSecret    *corev1.SecretReference
	publishContext map[string]string
	readOnly       bool
	block          bool
	fsType         string
	mountOptions   []string
	accessModes    []corev1.PersistentVolumeAccessMode
	dir            string // the volume's directory in the pod's directory
	target         string // the target path of NodePublishVolume
}

// setUpInlineCSI sets up a CSI ephemeral volume, which is part of the pod's spec.
func (v *Volumes) setUpInlineCSI(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (*mounted, error) {
	source := volume.CSI
	vol := &csiVolume{
		pod: pod, attributes: source.VolumeAttributes, readOnly: ptr.Deref(source.ReadOnly, false), dir: v.dir(pod.UID, csiPlugin, volume.Name),
		volumeData: volumeData{Driver: source.Driver, Name: volume.Name, Handle: "csi-" + hexSum(string(pod.UID)+volume.Name), Lifecycle: string(storagev1.VolumeLifecycleEphemeral)},
	}
	if source.FSType != nil {
		vol.fsType = *source.FSType
	}
	if source.NodePublishSecretRef != nil {
		vol.publishSecret = &corev1.SecretReference{Namespace: pod.Namespace, Name: source.NodePublishSecretRef.Name}
	}
	vol.accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return v.publish(ctx, vol)
}

// persistentCSI is the CSI volume of a persistent volume.
func (v *Volumes) persistentCSI(pod *corev1.Pod, pv *corev1.PersistentVolume, readOnly, block bool) *csiVolume {
	source := pv.Spec.CSI
	dir := v.dir(pod.UID, csiPlugin, pv.Name)
	return &csiVolume{
		pod: pod, attributes: source.VolumeAttributes, readOnly: readOnly || source.ReadOnly, block: block, fsType: source.FSType, mountOptions: pv.Spec.MountOptions,
		accessModes: pv.Spec.AccessModes, publishSecret: source.NodePublishSecretRef, stageSecret: source.NodeStageSecretRef, dir: dir,
		volumeData: volumeData{Driver: source.Driver, Name: pv.Name, Handle: source.VolumeHandle, Lifecycle: string(storagev1.VolumeLifecyclePersistent)},
	}
}

// publish sets up a volume: it waits until it is attached, then stages and publishes it.
func (v *Volumes) publish(ctx context.Context, vol *csiVolume) (*mounted, error) {
	vol.NodeName, vol.Attachment = v.NodeName, "csi-"+hexSum(vol.Handle+vol.Driver+v.NodeName)
	vol.target = vol.publishPath()
	m := &mounted{plugin: csiPlugin, path: vol.target, readOnly: vol.readOnly, managed: !vol.readOnly, block: vol.block}
	driver, err := v.csi.registered(vol.Driver)
	if err != nil {
		return nil, err
	}
	if err := v.readDriver(ctx, vol); err != nil {
		return nil, err
	}
	if vol.isAttachable() {
		if err := v.waitReportedInUse(ctx, vol); err != nil {
			return nil, err
		}
	}
	unlock, err := v.csi.lock(ctx, vol.volumeData)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := v.checkSingleWriter(vol); err != nil {
		return nil, err
	}
	if vol.isAttachable() {
		if err := v.checkAttached(ctx, vol); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(vol.dir, 0o750); err != nil {
		return nil, err
	}
	vol.Staged, vol.NotAttached = v.stagingPath(driver, vol), !vol.isAttachable()
	if before, err := load(vol.dir); err == nil {
		vol.FSGroupApplied = before.FSGroupApplied
	}
	// Written before the driver is called, so that a kubelet that restarts meanwhile can unmount the volume.
	if err := v.csi.index.save(vol.dir, vol.volumeData); err != nil {
		return nil, err
	}
	if vol.Staged != "" {
		if err := v.nodeStage(ctx, driver, vol); err != nil {
			return nil, err
		}
	}
	if err := v.nodePublish(ctx, driver, vol); err != nil {
		return nil, mountError(vol.Name, stepOf(vol.block, stepMapPublish, stepSetUp), err)
	}
	m.republish, m.csi = ptr.Deref(vol.spec.RequiresRepublish, false), vol.volumeData
	group := fsGroup(vol.pod)
	if group == nil || vol.block || driver.appliesFSGroup || !vol.needsFSGroup() || vol.FSGroupApplied {
		return m, nil
	}
	if err := setGroup(ctx, vol.target, *group, false, vol.pod.Spec.SecurityContext.FSGroupChangePolicy); err != nil {
		return nil, fmt.Errorf("applyFSGroup failed for vol %s: %w", vol.Handle, err)
	}
	vol.FSGroupApplied = true
	return m, v.csi.index.save(vol.dir, vol.volumeData)
}

// checkSingleWriter refuses a volume with the access mode ReadWriteOncePod that another pod uses. The scheduler does as well, but not every pod
// is bound by it.
func (v *Volumes) checkSingleWriter(vol *csiVolume) error {
	if !slices.Equal(vol.accessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}) {
		return nil
	}
	dirs, err := v.csi.index.dirsOf(vol.volumeData)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if !strings.HasPrefix(dir, v.podDir(vol.pod.UID)+"/") {
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	return nil
}

// publishPath is the target path of NodePublishVolume.
func (vol *csiVolume) publishPath() string { return filepath.Join(vol.dir, "mount") }

// stagingPath is the staging directory of a volume, empty if it is not staged.
func (v *Volumes) stagingPath(driver *driver, vol *csiVolume) string {
	if !driver.supportsStaging || vol.Lifecycle != string(storagev1.VolumeLifecyclePersistent) {
		return ""
	}
	return filepath.Join(v.Root, "plugins", csiPlugin, vol.Driver, hexSum(vol.Handle), "globalmount")
}

// readDriver reads the driver's CSIDriver object. Without one the defaults apply.
func (v *Volumes) readDriver(ctx context.Context, vol *csiVolume) error {
	object, err := client.For[*storagev1.CSIDriver](v.Client).Get(ctx, "", vol.Driver)
	switch {
	case apierrors.IsNotFound(err) && vol.Lifecycle == string(storagev1.VolumeLifecycleEphemeral):
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", vol.Lifecycle, vol.Driver)
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read CSIDriver %s: %w", vol.Driver, err)
	}
	vol.spec = object.Spec
	modes := object.Spec.VolumeLifecycleModes
	if len(modes) > 0 && !slices.Contains(modes, storagev1.VolumeLifecycleMode(vol.Lifecycle)) {
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", vol.Lifecycle, vol.Driver, modes)
	}
	return nil
}

func (v *Volumes) nodeStage(ctx context.Context, driver *driver, vol *csiVolume) error {
	secrets, err := v.csiSecrets(ctx, vol.stageSecret)
	if err != nil {
		return fmt.Errorf("fetching NodeStageSecretRef failed: %w", err)
	}
	if err := os.MkdirAll(vol.Staged, 0o750); err != nil {
		return err
	}
	_, err = driver.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: vol.Handle, PublishContext: vol.publishContext, StagingTargetPath: vol.Staged,
		VolumeCapability: vol.capability(driver), Secrets: secrets, VolumeContext: vol.attributes,
	})
	if err != nil {
		return &MountError{Volume: vol.Name, Step: stepOf(vol.block, stepMapStage, stepStage), Err: err}
	}
	return nil
}

func (v *Volumes) nodePublish(ctx context.Context, driver *driver, vol *csiVolume) error {
	secrets, err := v.csiSecrets(ctx, vol.publishSecret)
	if err != nil {
		return fmt.Errorf("fetching NodePublishSecretRef failed: %w", err)
	}
	attributes := map[string]string{}
	maps.Copy(attributes, vol.attributes)
	if ptr.Deref(vol.spec.PodInfoOnMount, false) {
		maps.Copy(attributes, map[string]string{
			"csi.storage.k8s.io/pod.name":            vol.pod.Name,
			"csi.storage.k8s.io/pod.namespace":       vol.pod.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(vol.pod.UID),
			"csi.storage.k8s.io/serviceAccount.name": vol.pod.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(vol.Lifecycle == string(storagev1.VolumeLifecycleEphemeral)),
		})
	}
	if len(vol.spec.TokenRequests) > 0 {
		tokens, err := v.csiTokens(ctx, vol)
		if err != nil {
			return err
		}
		into := attributes
		if ptr.Deref(vol.spec.ServiceAccountTokenInSecrets, false) {
			into = secrets
		}
		into["csi.storage.k8s.io/serviceAccount.tokens"] = tokens
	}
	_, err = driver.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: vol.Handle, PublishContext: vol.publishContext, StagingTargetPath: vol.Staged, TargetPath: vol.target,
		VolumeCapability: vol.capability(driver), Readonly: vol.readOnly, Secrets: secrets, VolumeContext: attributes,
	})
	return err
}

// csiTokens returns the service account tokens a driver requests, by audience.
func (v *Volumes) csiTokens(ctx context.Context, vol *csiVolume) (string, error) {
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, request := range vol.spec.TokenRequests {
		source := &corev1.ServiceAccountTokenProjection{Audience: request.Audience, ExpirationSeconds: request.ExpirationSeconds}
		token, err := v.tokens.get(ctx, vol.pod, source, ptr.Deref(vol.spec.RequiresRepublish, false))
		if err != nil {
			return "", err
		}
		tokens[request.Audience] = authenticationv1.TokenRequestStatus{Token: token.text, ExpirationTimestamp: metav1.NewTime(token.expires)}
	}
	text, err := json.Marshal(tokens)
	return string(text), err
}

func (v *Volumes) csiSecrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	secrets := map[string]string{}
	if ref == nil {
		return secrets, nil
	}
	secret, err := client.For[*corev1.Secret](v.Client).Get(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	for key, value := range secret.Data {
		secrets[key] = string(value)
	}
	return secrets, nil
}

// needsFSGroup reports whether the kubelet applies the fsGroup: according to the driver's fsGroupPolicy, by default for
// volumes with a file system type that only this node writes.
func (vol *csiVolume) needsFSGroup() bool {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if vol.spec.FSGroupPolicy != nil {
		policy = *vol.spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	once := slices.Contains(vol.accessModes, corev1.ReadWriteOnce) || slices.Contains(vol.accessModes, corev1.ReadWriteOncePod)
	return vol.fsType != "" && once && !vol.readOnly
}

// capability describes how the volume is used: as a device, or as a file system with the pod's fsGroup for drivers that apply it themselves.
func (vol *csiVolume) capability(driver *driver) *csi.VolumeCapability {
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(vol.accessModes, driver)}}
	if vol.block {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return capability
	}
	mount := &csi.VolumeCapability_MountVolume{FsType: vol.fsType, MountFlags: vol.mountOptions}
	if group := fsGroup(vol.pod); group != nil && driver.appliesFSGroup {
		mount.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	capability.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	return capability
}

// accessMode is CSI's name of a volume's first access mode. Drivers without the capability SINGLE_NODE_MULTI_WRITER have one mode for ReadWriteOnce
// and ReadWriteOncePod.
func accessMode(modes []corev1.PersistentVolumeAccessMode, driver *driver) csi.VolumeCapability_AccessMode_Mode {
	mode := corev1.ReadWriteOnce
	if len(modes) > 0 {
		mode = modes[0]
	}
	switch {
	case mode == corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case !driver.distinguishesWriters:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case mode == corev1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	}
	return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
}

func hexSum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// tearDown unpublishes the CSI volumes of a pod at the same time, and unstages those that no other pod uses. One whose driver fails or does not respond does
// not keep others from being detached and used elsewhere.
func (d *drivers) tearDown(ctx context.Context, uid types.UID, podDir string) error {
	published, err := publishedFor(podDir)
	if err != nil {
		return err
	}
	dirs := slices.Sorted(maps.Keys(published))
	failures := make([]error, len(dirs))
	var group errgroup.Group
	group.SetLimit(maxMounting)
	for i, dir := range dirs {
		group.Go(func() error {
			if err := d.unpublish(ctx, dir, published[dir]); err != nil {
				failures[i] = fmt.Errorf("unpublish volume %q of pod %s: %w", published[dir].Name, uid, err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(failures...)
}

// unpublish unpublishes a volume, and unstages it if no other pod uses it.
func (d *drivers) unpublish(ctx context.Context, dir string, data volumeData) error {
	unlock, err := d.lock(ctx, data)
	if err != nil {
		return err
	}
	defer unlock()
	driver, err := d.registered(data.Driver)
	if err != nil {
		return err
	}
	target := filepath.Join(dir, "mount")
	if _, err := driver.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: data.Handle, TargetPath: target}); err != nil {
		return err
	}
	if err := unmountBelow(target); err != nil {
		return err
	}
	shared := false
	if data.Staged != "" {
		if shared, err = d.index.isShared(dir, data); err != nil {
			return err
		}
	}
	if data.Staged != "" && !shared {
		if _, err := driver.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: data.Handle, StagingTargetPath: data.Staged}); err != nil {
			return err
		}
		staging := filepath.Dir(data.Staged)
		if err := unmountBelow(staging); err != nil {
			return err
		}
		if err := removeTree(ctx, filepath.Dir(staging), filepath.Base(staging)); err != nil {
			return err
		}
	}
	return d.index.remove(dir)
}
