package volume

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/metrics"
)

// Attaching and detaching are measured when the external attacher reports the result.
func TestAttachMetrics(t *testing.T) {
	c := &attachDetach{operations: newOperationDuration(), unneededSince: map[string]time.Time{"a": time.Now()}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.operations)
	attachment := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.Now()}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "disk.example"}}
		if change != nil {
			change(a)
		}
		return a
	}
	waiting := attachment(nil)
	failed := attachment(func(a *storagev1.VolumeAttachment) { a.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now()} })
	attached := attachment(func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
	c.onAttachmentUpdate(waiting, failed)
	c.onAttachmentUpdate(failed, failed) // another change
	c.onAttachmentUpdate(failed, attached)
	c.onAttachmentUpdate(attached, attached)
	c.onAttachmentDelete(attachment(func(a *storagev1.VolumeAttachment) { a.DeletionTimestamp = new(metav1.Now()) }))
	metrics.Check(t, registry, map[string]float64{
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_attach,status=success,volume_plugin=kubernetes.io/csi:disk.example}":      1,
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_attach,status=fail-unknown,volume_plugin=kubernetes.io/csi:disk.example}": 1,
		"storage_operation_duration_seconds{migrated=false,operation_name=volume_detach,status=success,volume_plugin=kubernetes.io/csi:disk.example}":      1,
	})
	if len(c.unneededSince) > 0 {
		t.Error("the attachment is not forgotten")
	}
}
