package scheduler

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

type deviceObjects struct{}

func newDeviceObjects() deviceObjects { return deviceObjects{} }

func (d *deviceObjects) delegated(s *Snapshot, node int32, w *want) bool { return false }
func (d *deviceObjects) set(object metav1.Object)                        {}
func (d *deviceObjects) delete(object metav1.Object)                     {}
