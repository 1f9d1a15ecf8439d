package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"skiff/internal/scheduler/schedulertest"
)

func TestDiskConflict(t *testing.T) {
	ebs := func(id string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id, ReadOnly: readOnly}}
	}
	gce := func(name string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: readOnly}}
	}
	iscsi := func(name string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: name, ReadOnly: readOnly}}
	}
	rbd := func(image string, readOnly bool, monitors ...string) corev1.VolumeSource {
		return corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: monitors, RBDPool: "pool", RBDImage: image, ReadOnly: readOnly}}
	}
	for _, test := range []struct {
		what        string
		wanted, has corev1.VolumeSource
		conflict    bool
	}{
		{"the same GCE disk", gce("x", false), gce("x", false), true},
		{"written by one of two", gce("x", true), gce("x", false), true},
		{"read by both", gce("x", true), gce("x", true), false},
		{"another GCE disk", gce("x", false), gce("y", false), false},
		{"the same EBS disk", ebs("x", false), ebs("x", false), true},
		{"which nobody shares, not even to read", ebs("x", true), ebs("x", true), true},
		{"another EBS disk", ebs("x", false), ebs("y", false), false},
		{"the same target", iscsi("x", false), iscsi("x", true), true},
		{"a target read by both", iscsi("x", true), iscsi("x", true), false},
		{"another target", iscsi("x", false), iscsi("y", false), false},
		{"the same image", rbd("x", false, "1", "2"), rbd("x", false, "2", "3"), true},
		{"an image read by both", rbd("x", true, "1"), rbd("x", true, "1"), false},
		{"an image of another cluster", rbd("x", false, "1"), rbd("x", false, "2"), false},
		{"another image", rbd("x", false, "1"), rbd("y", false, "1"), false},
		{"different kinds", gce("x", false), ebs("x", false), false},
	} {
		pod := schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "has", VolumeSource: test.has}} })
		if got := diskConflict(&corev1.Volume{Name: "wanted", VolumeSource: test.wanted}, pod); got != test.conflict {
			t.Errorf("%s: conflict is %t", test.what, got)
		}
	}
}

func TestAlternativeScore(t *testing.T) {
	claim := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		{Name: "fixed", Exactly: &resourcev1.ExactDeviceRequest{}},
		{Name: "one", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "big"}, {Name: "small"}}},
		{Name: "two", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "fast"}, {Name: "slow"}, {Name: "old"}}},
	}}}}
	for _, test := range []struct {
		given string
		want  int64
	}{
		{"", 0}, {"fixed", 0}, {"one/big", 8}, {"one/small", 7}, {"two/old", 6},
		{"one/big two/fast", 16}, {"one/small two/slow fixed", 14}, {"one/big one/big", 8}, {"one/unknown", 0},
	} {
		allocation := &resourcev1.AllocationResult{}
		for _, name := range strings.Fields(test.given) {
			allocation.Devices.Results = append(allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: name})
		}
		if got := subrequestScore(claim, allocation); got != test.want {
			t.Errorf("given %q: %d, want %d", test.given, got, test.want)
		}
	}
}
