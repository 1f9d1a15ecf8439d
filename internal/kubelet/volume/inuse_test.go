package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
)

// TestReportedInUse: a report that was made before a pod wanted its volume does not let the pod mount it, because the next may be without it.
func TestReportedInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := testVolumes(t.TempDir(), nil)
		vol := &csiVolume{pod: testPod(), volumeData: volumeData{Driver: "disk.example.com", Handle: "h"}}
		names := []corev1.UniqueVolumeName{vol.uniqueName()}
		v.Node = func() *corev1.Node { return &corev1.Node{Status: corev1.NodeStatus{VolumesInUse: names}} }
		v.ReportedInUse(names) // for a pod that has used it before
		requests := 0
		v.InUseChanged = func() { requests++ }
		var stage *MountError
		if err := v.waitReportedInUse(t.Context(), vol); !errors.As(err, &stage) || !errors.Is(stage.Err, errNotInUse) {
			t.Fatalf("a volume of an earlier report: %v", err)
		}
		if requests != 1 {
			t.Errorf("%d reports were requested", requests)
		}

		done := make(chan error, 1)
		go func() { done <- v.waitReportedInUse(t.Context(), vol) }()
		synctest.Wait()
		v.ReportedInUse(nil) // made before setWanted, stored after it
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("the volume was not reported: %v", err)
		default:
		}
		v.ReportedInUse(names)
		if err := <-done; err != nil {
			t.Error(err)
		}
		// A retry of the same pod needs no other report.
		if err := v.waitReportedInUse(t.Context(), vol); err != nil {
			t.Error(err)
		}
		// After its unmount it does.
		if err := v.Unmount(t.Context(), vol.pod.UID); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := v.waitReportedInUse(ctx, vol); !errors.Is(err, context.Canceled) {
			t.Errorf("after the unmount: %v", err)
		}
	})
}
