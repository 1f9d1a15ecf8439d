package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		pod := testPod("p", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "has", VolumeSource: test.has}} })
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
		if got := alternativeScore(claim, allocation); got != test.want {
			t.Errorf("given %q: %d, want %d", test.given, got, test.want)
		}
	}
}

// An assumption holds from the decision until the API server has told of what was written, and no event in between ends it.
func TestAssumedClaims(t *testing.T) {
	version := func(claim *resourcev1.ResourceClaim, version string) *resourcev1.ResourceClaim {
		claim.ResourceVersion = version
		return claim
	}
	held := func(v string) *resourcev1.ResourceClaim { return version(claimHolding("c", "a", "device-0"), v) }
	for _, test := range []struct {
		what    string
		events  func(d *deviceObjects, g *claimGrant)
		assumed bool
		taken   int
	}{
		{"decided", func(*deviceObjects, *claimGrant) {}, true, 1},
		{"taken back", func(d *deviceObjects, g *claimGrant) { d.revert([]claimGrant{*g}) }, false, 0},
		{"its finalizer is told of", func(d *deviceObjects, g *claimGrant) { d.set(version(deviceClaim("c", 1), "2")) }, true, 1},
		{"written", func(d *deviceObjects, g *claimGrant) { d.write(g, held("3")) }, true, 1},
		{"written, and what was before is told of", func(d *deviceObjects, g *claimGrant) {
			d.write(g, held("3"))
			d.set(version(deviceClaim("c", 1), "2"))
		}, true, 1},
		{"written, and told of", func(d *deviceObjects, g *claimGrant) { d.write(g, held("3")); d.set(held("3")) }, false, 1},
		{"told of before the answer", func(d *deviceObjects, g *claimGrant) { d.set(held("3")); d.write(g, held("3")) }, false, 1},
		{"written, and freed since", func(d *deviceObjects, g *claimGrant) {
			d.write(g, held("3"))
			d.set(version(deviceClaim("c", 1), "4"))
		}, false, 0},
		{"written, and taken back too late", func(d *deviceObjects, g *claimGrant) { d.write(g, held("3")); d.revert([]claimGrant{*g}) }, true, 1},
		{"deleted", func(d *deviceObjects, g *claimGrant) { d.delete(deviceClaim("c", 1)) }, false, 0},
		{"another claim of the name", func(d *deviceObjects, g *claimGrant) {
			d.set(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "new"}})
		}, false, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := newDeviceObjects()
			claim := version(deviceClaim("c", 1), "1")
			d.set(claim)
			grants := []claimGrant{{claim: claim, allocation: held("").Status.Allocation}}
			d.assume(grants)
			test.events(&d, &grants[0])
			if assumed := d.assumed["default/c"] != nil; assumed != test.assumed {
				t.Errorf("assumed is %t", assumed)
			}
			if taken := d.allocated().AllocatedDevices.Len(); taken != test.taken {
				t.Errorf("%d devices are taken, want %d", taken, test.taken)
			}
		})
	}
}
