package csidriver

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sidecarPeriod is the period of the loop that does the work of the sidecars.
const sidecarPeriod = 50 * time.Millisecond

// runSidecars provisions, attaches, resizes and deletes volumes until ctx is done. Conflicts are retried.
func (d *Driver) runSidecars(ctx context.Context) {
	ticker := time.NewTicker(sidecarPeriod)
	defer ticker.Stop()
	for {
		for _, work := range []func(context.Context) error{d.provision, d.attach, d.resize, d.reclaim} {
			err := work(ctx)
			if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
				d.fail(err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// fail records the first error, which Stop returns.
func (d *Driver) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

// provision creates volumes for claims, as the external provisioner does.
func (d *Driver) provision(ctx context.Context) error {
	claims, err := d.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Annotations["volume.kubernetes.io/storage-provisioner"] != d.Name || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
			continue
		}
		size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		name := "pvc-" + string(claim.UID)
		if err := d.createVolume(name, size.Value()); err != nil {
			return err
		}
		_, err := d.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": d.Name}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: size}, AccessModes: claim.Spec.AccessModes, StorageClassName: *claim.Spec.StorageClassName,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
				PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.Name, VolumeHandle: name}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// attach attaches and detaches volumes, as the external attacher does.
func (d *Driver) attach(ctx context.Context) error {
	attachments, err := d.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	finalizer := "external-attacher/" + d.Name
	for i := range attachments.Items {
		a := &attachments.Items[i]
		switch {
		case a.Spec.Attacher != d.Name:
		case a.DeletionTimestamp != nil && slices.Contains(a.Finalizers, finalizer):
			d.called("detach")
			a.Finalizers = slices.DeleteFunc(a.Finalizers, func(f string) bool { return f == finalizer })
			_, err = d.client.StorageV1().VolumeAttachments().Update(ctx, a, metav1.UpdateOptions{})
		case a.DeletionTimestamp == nil && !slices.Contains(a.Finalizers, finalizer):
			a.Finalizers = append(a.Finalizers, finalizer)
			_, err = d.client.StorageV1().VolumeAttachments().Update(ctx, a, metav1.UpdateOptions{})
		case a.DeletionTimestamp == nil && !a.Status.Attached:
			d.called("attach")
			a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"attached": "here"}}
			_, err = d.client.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resize begins the expansion of claims that request more than they have, as the external resizer does. The kubelet completes it.
func (d *Driver) resize(ctx context.Context) error {
	claims, err := d.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	const storage = corev1.ResourceStorage
	for i := range claims.Items {
		claim := &claims.Items[i]
		size, has := claim.Spec.Resources.Requests[storage], claim.Status.Capacity[storage]
		if claim.Status.Phase != corev1.ClaimBound || size.Cmp(has) <= 0 || claim.Status.AllocatedResourceStatuses[storage] != "" {
			continue
		}
		pv, err := d.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != d.Name {
			continue
		}
		pv.Spec.Capacity[storage] = size
		if _, err := d.client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
			return err
		}
		claim.Status.AllocatedResources = corev1.ResourceList{storage: size}
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{storage: corev1.PersistentVolumeClaimNodeResizePending}
		claim.Status.Conditions = append(claim.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
		if _, err := d.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// reclaim deletes released volumes with their data, as the external provisioner does.
func (d *Driver) reclaim(ctx context.Context) error {
	volumes, err := d.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range volumes.Items {
		pv := &volumes.Items[i]
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != d.Name || pv.Status.Phase != corev1.VolumeReleased || pv.DeletionTimestamp != nil {
			continue
		}
		if err := d.deleteVolume(pv.Spec.CSI.VolumeHandle); err != nil {
			return err
		}
		if err := d.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}
