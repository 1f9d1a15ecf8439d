package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// volumeServer is a fakeServer with a volume controller behind it.
type volumeServer struct {
	*fakeServer
	version *atomic.Int64
	// lazy controllers never finish; failing ones take the node back.
	lazy, failing bool
	refused       error
}

func (v *volumeServer) next() string { return strconv.FormatInt(1000+v.version.Add(1), 10) }

// now reads what the test may change meanwhile.
func (v *volumeServer) now() (failing bool, refused error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failing, v.refused
}

// recover makes everything work again.
func (v *volumeServer) recover() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failing, v.refused = false, nil
}

func (v *volumeServer) UpdatePersistentVolume(_ context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if _, refused := v.now(); refused != nil {
		return nil, refused
	}
	pv = pv.DeepCopy()
	pv.ResourceVersion = v.next()
	v.scheduler.mu.Lock()
	defer v.scheduler.mu.Unlock()
	claim := v.scheduler.snapshot.Volumes.Claims[pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name].DeepCopy()
	v.observe(pv)
	v.finish(func() { v.bindClaim(claim, pv.Name) })
	return pv, nil
}

func (v *volumeServer) UpdatePersistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.ResourceVersion = v.next()
	v.observe(claim.DeepCopy())
	v.finish(func() {
		if failing, _ := v.now(); failing {
			delete(claim.Annotations, volume.AnnSelectedNode)
			claim.ResourceVersion = v.next()
			v.scheduler.snapshot.SetObject(claim)
			return
		}
		v.scheduler.snapshot.SetObject(schedulertest.VolumeFor("made", claim.Namespace, claim.Name))
		v.bindClaim(claim.DeepCopy(), "made")
	})
	return claim, nil
}

func (v *volumeServer) bindClaim(claim *corev1.PersistentVolumeClaim, name string) {
	claim.Spec.VolumeName = name
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	claim.ResourceVersion = v.next()
	v.scheduler.snapshot.SetObject(claim)
}

// observe updates the snapshot with a write, a moment after its response.
func (v *volumeServer) observe(written metav1.Object) {
	go func() {
		time.Sleep(v.delay)
		v.notify(func() { v.scheduler.snapshot.SetObject(written) })
	}()
}

// finish does the controller's work a while later.
func (v *volumeServer) finish(work func()) {
	if v.lazy {
		return
	}
	go func() {
		time.Sleep(2 * time.Second)
		v.notify(work)
	}()
}

// withVolumeServer is a test with a class that waits for its first consumer and a claim of it.
func withVolumeServer(t *testing.T, server volumeServer, provisioner string, run func(v *volumeServer)) {
	t.Helper()
	withFakeServer(t, nil, func(f *fakeServer) {
		v := &server
		v.fakeServer, v.version = f, &atomic.Int64{}
		f.notify(func() {
			f.scheduler.binder.Writer = v
			wait := storagev1.VolumeBindingWaitForFirstConsumer
			f.scheduler.snapshot.SetObject(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: provisioner, VolumeBindingMode: &wait})
			f.scheduler.snapshot.SetObject(&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim", ResourceVersion: "2"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: ptr.To("late"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			})
		})
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b"))
		run(v)
	})
}

// A claim that waits for its first consumer gets a volume the pod's node reaches, before the pod is bound.
func TestVolumeIsBoundBeforeThePod(t *testing.T) {
	withVolumeServer(t, volumeServer{}, volume.NotSupportedProvisioner, func(v *volumeServer) {
		pv := schedulertest.VolumeFor("disk", "", "")
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression(corev1.LabelHostname, corev1.NodeSelectorOpIn, "b")}}}
		v.notify(func() { v.scheduler.snapshot.SetObject(pv) })
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(time.Second)
		if v.nodeOf("p") != "" {
			t.Error("the pod was bound before its volume")
		}
		// Who else wants the disk finds it taken.
		v.notify(func() {
			if got := refusalsOf(t, v.scheduler.snapshot, schedulertest.TestPod("q", schedulertest.UsingClaim("claim")), plugins.DefaultProfile()); len(got) != 1 || got["a"] == "" {
				t.Errorf("refused: %v", got)
			}
		})
		v.pass(10 * time.Second)
		if v.nodeOf("p") != "b" {
			t.Errorf("the pod is on %q, want b", v.nodeOf("p"))
		}
	})
}

// A volume that is still to be made is requested on the pod's node, and waited for.
func TestVolumeIsMade(t *testing.T) {
	withVolumeServer(t, volumeServer{}, "csi.example.com", func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(20 * time.Second)
		if v.nodeOf("p") == "" || v.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q", v.nodeOf("p"))
		}
	})
}

// A controller that cannot make the volume takes the node back: the pod is tried again, not left.
func TestVolumeIsNotMade(t *testing.T) {
	withVolumeServer(t, volumeServer{failing: true}, "csi.example.com", func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(5 * time.Second)
		if v.nodeOf("p") != "" {
			t.Fatal("a pod without its volume was bound")
		}
		v.recover()
		v.pass(time.Minute)
		if v.nodeOf("p") == "" {
			t.Errorf("the pod was forgotten: %v", v.patchesOf("p"))
		}
	})
}

// Nobody waits for ever, and what was assumed meanwhile is given back.
func TestVolumeNeverComes(t *testing.T) {
	withVolumeServer(t, volumeServer{lazy: true}, "csi.example.com", func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim"), schedulertest.RequestingCPU("3")))
		v.pass(11 * time.Minute)
		if v.nodeOf("p") != "" {
			t.Error("a pod without its volume was bound")
		}
		v.removePod("p")
		v.pass(time.Minute)
		v.scheduler.mu.Lock()
		defer v.scheduler.mu.Unlock()
		if n := len(v.scheduler.snapshot.Volumes.AssumedClaims) + v.scheduler.snapshot.NumPods(); n != 0 {
			t.Errorf("%d things are still assumed", n)
		}
	})
}

func TestVolumeWriteFails(t *testing.T) {
	withVolumeServer(t, volumeServer{refused: errors.New("no")}, volume.NotSupportedProvisioner, func(v *volumeServer) {
		v.notify(func() { v.scheduler.snapshot.SetObject(schedulertest.VolumeFor("disk", "", "")) })
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(10 * time.Second)
		if v.nodeOf("p") != "" {
			t.Error("bound without a volume")
		}
		v.recover()
		v.pass(time.Minute)
		if v.nodeOf("p") == "" {
			t.Errorf("not tried again: %v", v.patchesOf("p"))
		}
	})
}

// A pod that shares a claim with one that is being bound goes where that one goes.
func TestSharedClaimKeepsPodsTogether(t *testing.T) {
	withVolumeServer(t, volumeServer{}, schedulertest.CsiName, func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.addPod(schedulertest.TestPod("q", schedulertest.UsingClaim("claim")))
		v.pass(time.Minute)
		if v.nodeOf("p") == "" || v.nodeOf("p") != v.nodeOf("q") {
			t.Errorf("p is on %q, q on %q: %v", v.nodeOf("p"), v.nodeOf("q"), v.patchesOf("q"))
		}
	})
}

// Two pods that want the only volume there is: one gets it, and the other waits for a second.
func TestOneVolumeForTwoPods(t *testing.T) {
	withVolumeServer(t, volumeServer{}, volume.NotSupportedProvisioner, func(v *volumeServer) {
		v.notify(func() {
			other := schedulertest.StorageClaim("other", schedulertest.ClaimVersion("3"))
			v.scheduler.snapshot.SetObject(other)
			v.scheduler.snapshot.SetObject(schedulertest.VolumeFor("disk", "", ""))
		})
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.addPod(schedulertest.TestPod("q", schedulertest.UsingClaim("other")))
		v.pass(10 * time.Second)
		if (v.nodeOf("p") == "") == (v.nodeOf("q") == "") {
			t.Fatalf("p is on %q, q on %q", v.nodeOf("p"), v.nodeOf("q"))
		}
		second := schedulertest.VolumeFor("second", "", "")
		v.notify(func() {
			v.scheduler.snapshot.SetObject(second)
			v.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.PersistentVolumeResource, Action: plugins.Add, New: second})
		})
		v.pass(30 * time.Second)
		if v.nodeOf("p") == "" || v.nodeOf("q") == "" {
			t.Errorf("p is on %q, q on %q: %v %v", v.nodeOf("p"), v.nodeOf("q"), v.patchesOf("p"), v.patchesOf("q"))
		}
	})
}

// What goes wrong while volumes are bound is reported in upstream's words.
func TestVolumeFailuresAreReported(t *testing.T) {
	for _, test := range []struct {
		what        string
		server      volumeServer
		provisioner string
		meanwhile   func(v *volumeServer)
		after       time.Duration
		patches     string
	}{
		{"the volume is not written", volumeServer{refused: errors.New("no")}, volume.NotSupportedProvisioner, nil, time.Second, `running PreBind plugin \"VolumeBinding\": no`},
		{"provisioning fails", volumeServer{failing: true}, schedulertest.CsiName, nil, 3 * time.Second, `running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"claim\"`},
		{"the volume is never provisioned", volumeServer{lazy: true}, schedulertest.CsiName, nil, 601 * time.Second, `running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded`},
		{"the volume is deleted", volumeServer{lazy: true}, volume.NotSupportedProvisioner, func(v *volumeServer) {
			v.scheduler.snapshot.DeleteObject(schedulertest.VolumeFor("disk", "", ""))
		}, 2 * time.Second, `binding volumes: failed to check binding: persistentvolumes \"disk\" not found`},
		{"the claim is deleted", volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
			v.scheduler.snapshot.DeleteObject(schedulertest.StorageClaim("claim"))
		}, 2 * time.Second, `binding volumes: failed to check provisioning pvc: persistentvolumeclaims \"default/claim\" not found`},
		{"the node is deleted", volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
			v.scheduler.nodeDeleted(schedulertest.TestNode("a"))
			v.scheduler.nodeDeleted(schedulertest.TestNode("b"))
		}, 2 * time.Second, `binding volumes: failed to get node \"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			withVolumeServer(t, test.server, test.provisioner, func(v *volumeServer) {
				if test.provisioner == volume.NotSupportedProvisioner {
					v.notify(func() { v.scheduler.snapshot.SetObject(schedulertest.VolumeFor("disk", "", "")) })
				}
				v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
				v.pass(100 * time.Millisecond)
				if test.meanwhile != nil {
					v.notify(func() { test.meanwhile(v) })
				}
				v.pass(test.after)
				if patches := fmt.Sprint(v.patchesOf("p")); !strings.Contains(patches, test.patches) || !strings.Contains(patches, `"reason":"SchedulerError"`) || v.nodeOf("p") != "" {
					t.Errorf("the pod is on %q and its status is %s", v.nodeOf("p"), patches)
				}
			})
		})
	}
}

// A pod that goes while its volume is made lets go of what was decided for it.
func TestPodDeletedWhileVolumeIsProvisioned(t *testing.T) {
	withVolumeServer(t, volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(time.Second)
		v.notify(func() {
			if v.scheduler.snapshot.NumPods() != 1 {
				t.Error("the pod is not assumed while its volume is made")
			}
		})
		v.removePod("p")
		v.pass(time.Second)
		v.notify(func() {
			if n := v.scheduler.snapshot.NumPods() + len(v.scheduler.snapshot.Volumes.AssumedClaims); n != 0 {
				t.Errorf("%d things are still assumed", n)
			}
		})
		if v.boundTimes("p") != 0 {
			t.Error("a pod that is gone was bound")
		}
	})
}

// While its volume is made, others can see where the pod goes.
func TestPodIsNominatedWhileItsVolumeIsMade(t *testing.T) {
	withVolumeServer(t, volumeServer{}, schedulertest.CsiName, func(v *volumeServer) {
		v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim")))
		v.pass(time.Second)
		v.mu.Lock()
		nominated := v.pods["p"].Status.NominatedNodeName
		v.mu.Unlock()
		v.pass(10 * time.Second)
		if nominated == "" || nominated != v.nodeOf("p") {
			t.Errorf("nominated to %q, on %q", nominated, v.nodeOf("p"))
		}
	})
}

// Volumes and devices are prepared at once; what fails first ends the wait for the other.
func TestVolumesAndDevicesAtOnce(t *testing.T) {
	waiting := schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a"), schedulertest.BindingCondition(0))
	known := schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.DeviceSlice("a", 1), waiting}
	ready := func(v *volumeServer, condition string) {
		c := v.onlyClaim()
		c.Status.Devices[0].Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Why"}}
		v.storeClaim(c)
		v.pass(time.Second)
	}
	t.Run("both become ready", func(t *testing.T) {
		withVolumeServer(t, volumeServer{}, schedulertest.CsiName, func(v *volumeServer) {
			v.addObjects(known...)
			v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim"), schedulertest.Claiming("x")))
			v.pass(5 * time.Second)
			v.notify(func() {
				if !snapshot.FullyBound(v.scheduler.snapshot.Volumes.Claims["default/claim"]) {
					t.Error("the volume waits for the device")
				}
			})
			if v.nodeOf("p") != "" {
				t.Error("the pod was bound before its device was there")
			}
			ready(v, "Attached")
			if v.nodeOf("p") != "a" || v.boundTimes("p") != 1 {
				t.Errorf("the pod is on %q: %v", v.nodeOf("p"), v.patchesOf("p"))
			}
		})
	})
	t.Run("the volume fails", func(t *testing.T) {
		withVolumeServer(t, volumeServer{failing: true}, schedulertest.CsiName, func(v *volumeServer) {
			v.addObjects(known...)
			v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim"), schedulertest.Claiming("x")))
			v.pass(3 * time.Second)
			if patches := fmt.Sprint(v.patchesOf("p")); !strings.Contains(patches, `running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"claim\"`) || strings.Contains(patches, "DynamicResources") {
				t.Errorf("the status of the pod is %s", patches)
			}
		})
	})
	t.Run("the device fails", func(t *testing.T) {
		withVolumeServer(t, volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
			v.addObjects(known...)
			v.addPod(schedulertest.TestPod("p", schedulertest.UsingClaim("claim"), schedulertest.Claiming("x")))
			v.pass(time.Second)
			ready(v, "Broken")
			if patches := fmt.Sprint(v.patchesOf("p")); !strings.Contains(patches, `running PreBind plugin \"DynamicResources\": device binding failed: claim=x, reason=Why`) || strings.Contains(patches, "VolumeBinding") {
				t.Errorf("the status of the pod is %s", patches)
			}
		})
	})
}
