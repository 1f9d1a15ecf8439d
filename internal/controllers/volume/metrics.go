package volume

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"
)

// newOperationDuration is upstream's metric of the operations on volumes. The controller attaches CSI volumes only: none is migrated.
func newOperationDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "storage_operation_duration_seconds", Help: "Storage operation duration",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})
}

func (c *attachDetach) observeOperation(a *storagev1.VolumeAttachment, operation, status string, took time.Duration) {
	c.operations.WithLabelValues("kubernetes.io/csi:"+a.Spec.Attacher, operation, status, "false").Observe(took.Seconds())
}

// onAttachmentUpdate measures attaching: from the creation of the attachment until the external attacher reports the result.
func (c *attachDetach) onAttachmentUpdate(old, a *storagev1.VolumeAttachment) {
	failure := a.Status.AttachError
	switch {
	case !old.Status.Attached && a.Status.Attached:
		c.observeOperation(a, "volume_attach", "success", time.Since(a.CreationTimestamp.Time))
	case failure != nil && (old.Status.AttachError == nil || !old.Status.AttachError.Time.Equal(&failure.Time)):
		c.observeOperation(a, "volume_attach", "fail-unknown", time.Since(a.CreationTimestamp.Time))
	}
}

// onAttachmentDelete measures detaching: from the deletion of the attachment until the external attacher has released it.
func (c *attachDetach) onAttachmentDelete(a *storagev1.VolumeAttachment) {
	if a.DeletionTimestamp != nil {
		c.observeOperation(a, "volume_detach", "success", time.Since(a.DeletionTimestamp.Time))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unneededSince, a.Name)
}
