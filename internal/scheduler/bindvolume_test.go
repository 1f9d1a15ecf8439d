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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/decision"
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

func (v *volumeServer) updateVolume(_ context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
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

func (v *volumeServer) updateClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
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
			f.scheduler.writer = v
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

// Pods that belong together are spread by default; what they belong to comes and goes.
func TestOwners(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "own"}
	owned := func(apiVersion, kind string) *corev1.Pod {
		return schedulertest.TestPod("p", schedulertest.Labelled("app", "x"), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "own", Controller: ptr.To(true)}}
		})
	}
	for _, test := range []struct {
		what        string
		set, delete func(s *snapshot.Snapshot)
		pod         *corev1.Pod
	}{
		{"service", func(s *snapshot.Snapshot) {
			s.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: selector.MatchLabels}})
		},
			func(s *snapshot.Snapshot) { s.DeleteService("default", "own") }, schedulertest.TestPod("p", schedulertest.Labelled("app", "x"))},
		{"replication controller", func(s *snapshot.Snapshot) {
			s.SetReplicationController(&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("v1", "ReplicationController", "default", "own") }, owned("v1", "ReplicationController")},
		{"replica set", func(s *snapshot.Snapshot) {
			s.SetReplicaSet(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("apps/v1", "ReplicaSet", "default", "own") }, owned("apps/v1", "ReplicaSet")},
		{"stateful set", func(s *snapshot.Snapshot) {
			s.SetStatefulSet(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector}})
		},
			func(s *snapshot.Snapshot) { s.DeleteController("apps/v1", "StatefulSet", "default", "own") }, owned("apps/v1", "StatefulSet")},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "64")), schedulertest.TestNode("b")}, schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("app", "x")), schedulertest.TestPod("y", schedulertest.OnNode("b"), schedulertest.Labelled("app", "z"), schedulertest.RequestingCPU("1")))
			goes := func() string {
				d, err := decision.Schedule(s, infoOf(t, test.pod.DeepCopy()), plugins.DefaultProfile())
				if err != nil {
					t.Fatal(err)
				}
				return d.Node
			}
			if goes() != "a" {
				t.Error("a pod without constraints is not scheduled to the node with the most free resources")
			}
			test.set(s)
			if goes() != "b" {
				t.Error("a pod goes where its like is already")
			}
			test.delete(s)
			if goes() != "a" {
				t.Error("what the pod belonged to is gone, but still counts")
			}
		})
	}
}

// Whether a plan has been carried out, by what has been observed from the API server.
func TestVolumesBound(t *testing.T) {
	const wait, done = "wait", "done"
	claimed := func(options ...schedulertest.VolumeOption) *corev1.PersistentVolume {
		return schedulertest.StorageVolume("v", append([]schedulertest.VolumeOption{schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeVersion("11")}, options...)...)
	}
	bound := schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))
	sent := func(options ...schedulertest.ClaimOption) *corev1.PersistentVolumeClaim {
		return schedulertest.StorageClaim("m", append([]schedulertest.ClaimOption{schedulertest.ClaimSelectedNode("a"), schedulertest.ClaimVersion("11")}, options...)...)
	}
	moved := func(zone string) schedulertest.Objects {
		return schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("11"), schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeSource(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}), schedulertest.VolumeNodeAffinity(corev1.LabelTopologyZone, zone)),
			bound, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")}
	}
	unreadable := schedulertest.StorageVolume("v", schedulertest.VolumeVersion("11"), schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeSource(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws:///x/"}}))
	for _, test := range []struct {
		what  string
		bind  bool // the plan binds c to v
		make  bool // the plan has a volume made for m
		known schedulertest.Objects
		node  string // a, unless something else is said
		gone  bool   // the pod is
		want  string
	}{
		{"nothing was planned", false, false, nil, "", false, done},
		{"the node is gone", true, false, schedulertest.Objects{claimed(), bound}, "z", false, `failed to get node "z": node "z" not found`},
		{"the node is only spoken of", true, false, schedulertest.Objects{claimed(), bound, schedulertest.CSINodeWithDrivers("z", nil)}, "z", false, `failed to get node "z": node "z" not found`},
		{"the pod is gone", true, false, schedulertest.Objects{claimed(), bound}, "", true, `pod does not exist any more: pod "p" not found`},
		{"a missing node is reported before a missing pod", true, false, nil, "z", true, `failed to get node "z": node "z" not found`},
		{"the volume is gone", true, false, schedulertest.Objects{bound}, "", false, `failed to check binding: persistentvolumes "v" not found`},
		{"the claim is gone", true, false, schedulertest.Objects{claimed()}, "", false, `failed to check binding: persistentvolumeclaims "default/c" not found`},
		{"both are gone", true, false, nil, "", false, `failed to check binding: persistentvolumes "v" not found`},
		{"our write has not been observed", true, false, schedulertest.Objects{schedulertest.StorageVolume("v"), bound}, "", false, wait},
		{"our write has been observed", true, false, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c")}, "", false, wait},
		{"the claim names the volume, and is not complete", true, false, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v"))}, "", false, wait},
		{"bound", true, false, schedulertest.Objects{claimed(), bound}, "", false, done},
		{"bound, and changed since", true, false, schedulertest.Objects{claimed(schedulertest.VolumeVersion("99")), bound}, "", false, done},
		{"the volume was taken back", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("12")), bound}, "", false, `ClaimRef got reset for pv "v"`},
		{"the volume is only kept for the claim", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", ""), schedulertest.VolumeVersion("12")), bound}, "", false, `ClaimRef got reset for pv "v"`},
		{"the volume cannot be reached any more", true, false, schedulertest.Objects{claimed(schedulertest.VolumeOnNode("b")), bound}, "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"which is reported before the reset", true, false, schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeVersion("12"), schedulertest.VolumeOnNode("b")), bound}, "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"a moved volume, in a zone of the driver's", true, false, moved("driver-zone"), "", false, done},
		{"a moved volume, in a zone the driver does not know", true, false, moved("za"), "", false, `pv "v" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"a moved volume that cannot be read", true, false, schedulertest.Objects{unreadable, bound, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")}, "", false, `failed to translate pv to csi: could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x/)`},
		{"which does not matter where it has not moved", true, false, schedulertest.Objects{unreadable, bound}, "", false, done},

		{"the claim to be served is gone", false, true, nil, "", false, `failed to check provisioning pvc: persistentvolumeclaims "default/m" not found`},
		{"our order has not been observed", false, true, schedulertest.Objects{schedulertest.StorageClaim("m")}, "", false, wait},
		{"our order has been observed", false, true, schedulertest.Objects{sent()}, "", false, wait},
		{"the order was refused", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimAnnotation("other", "x"))}, "", false, `provisioning failed for PVC "m"`},
		{"the order was wiped out", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"))}, "", false, `selectedNode annotation reset for PVC "m"`},
		{"the order is for another node now", false, true, schedulertest.Objects{schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimSelectedNode("b"))}, "", false, `provisioning failed for PVC "m"`},
		{"it has a volume we do not know yet", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w"))}, "", false, wait},
		{"it has a volume, and is not complete", false, true, schedulertest.Objects{sent(schedulertest.ClaimVolumeName("w")), schedulertest.StorageVolume("w")}, "", false, wait},
		{"it has a volume", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w")}, "", false, done},
		{"it has a volume of this node", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, "", false, done},
		{"it has a volume of another node", false, true, schedulertest.Objects{sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"))}, "", false, `pv "w" node affinity doesn't match node "a": no matching NodeSelectorTerms`},
		{"it is to have a volume of another node", false, true, schedulertest.Objects{sent(schedulertest.ClaimVolumeName("w")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"))}, "", false, `pv "w" node affinity doesn't match node "a": no matching NodeSelectorTerms`},

		{"one is bound and one is not made", true, true, schedulertest.Objects{claimed(), bound, sent()}, "", false, wait},
		{"one is not bound and one is refused", true, true, schedulertest.Objects{claimed(), schedulertest.StorageClaim("c"), schedulertest.StorageClaim("m", schedulertest.ClaimVersion("12"), schedulertest.ClaimAnnotation("other", "x"))}, "", false, wait},
		{"both are there", true, true, schedulertest.Objects{claimed(), bound, sent(schedulertest.ClaimBoundTo("w")), schedulertest.StorageVolume("w")}, "", false, done},
	} {
		t.Run(test.what, func(t *testing.T) {
			f := newFakeServer(t, nil)
			s := f.scheduler.snapshot
			for _, n := range []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za"), schedulertest.NodeLabel("topology.ebs.csi.aws.com/zone", "driver-zone")), schedulertest.TestNode("b")} {
				s.SetNode(n)
			}
			for _, o := range test.known {
				s.SetObject(o)
			}
			info := infoOf(t, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("m")))
			if !test.gone {
				s.Assume(info, "a")
			}
			d := &decision.Decision{Pod: info, Node: "a", Snapshot: s}
			if test.node != "" {
				d.Node = test.node
			}
			plan := &snapshot.PodVolumes{}
			if test.bind {
				plan.StaticBindings = []snapshot.StaticBinding{{Volume: claimed(), Claim: schedulertest.StorageClaim("c")}}
			}
			if test.make {
				plan.DynamicProvisions = []snapshot.DynamicProvision{{Claim: sent()}}
			}
			bound, err := f.scheduler.volumesBound(d, plan)
			got := wait
			if err != nil {
				got = err.Error()
			} else if bound {
				got = done
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
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
		{"the volume is not made", volumeServer{failing: true}, schedulertest.CsiName, nil, 3 * time.Second, `running PreBind plugin \"VolumeBinding\": binding volumes: provisioning failed for PVC \"claim\"`},
		{"nobody makes it", volumeServer{lazy: true}, schedulertest.CsiName, nil, 601 * time.Second, `running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded`},
		{"the volume goes", volumeServer{lazy: true}, volume.NotSupportedProvisioner, func(v *volumeServer) {
			v.scheduler.snapshot.DeleteObject(schedulertest.VolumeFor("disk", "", ""))
		}, 2 * time.Second, `binding volumes: failed to check binding: persistentvolumes \"disk\" not found`},
		{"the claim goes", volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
			v.scheduler.snapshot.DeleteObject(schedulertest.StorageClaim("claim"))
		}, 2 * time.Second, `binding volumes: failed to check provisioning pvc: persistentvolumeclaims \"default/claim\" not found`},
		{"the node goes", volumeServer{lazy: true}, schedulertest.CsiName, func(v *volumeServer) {
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

// What cannot be reserved is reported as upstream's Reserve does, and leaves nothing assumed.
func TestReserveFails(t *testing.T) {
	static := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner)
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		fail  string
	}{
		{"nothing to reserve", nil, schedulertest.TestPod("p"), ""},
		{"a bound volume", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), ""},
		{"a volume to bind", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), ""},
		{"a claim that is gone", nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": error getting PVC "default/c": persistentvolumeclaim "c" not found`},
		{"a volume that is gone", schedulertest.Objects{static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": volumes on node a: [node(s) didn't find available persistent volumes to bind]`},
		{"a class that lost its mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": VolumeBindingMode not set for StorageClass "late"`},
		{"a resource claim that is gone", nil, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": devices on node a: [could not find ResourceClaim "default/x"]`},
		{"devices that are gone", schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": devices on node a: [cannot allocate all claims]`},
		{"devices that cannot be read", schedulertest.Objects{schedulertest.DeviceSlice("a", 1), schedulertest.DeviceClass("class", "device."), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), `running Reserve plugin "DynamicResources": `},
		{"devices, but no volume", schedulertest.Objects{schedulertest.DeviceSlice("a", 1), schedulertest.DeviceClass("class"), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")), static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.UsingClaim("c")), `running Reserve plugin "VolumeBinding": volumes on node a: [node(s) didn't find available persistent volumes to bind]`},
	} {
		t.Run(test.what, func(t *testing.T) {
			f := newFakeServer(t, nil)
			s := f.scheduler.snapshot
			s.SetNode(schedulertest.TestNode("a"))
			for _, o := range test.known {
				s.SetObject(o)
			}
			r, err := reserve(f.scheduler.snapshot, &decision.Decision{Pod: infoOf(t, test.pod), Node: "a", NodeNumber: s.NodeNumbers["a"], Snapshot: s, Profile: f.scheduler.profiles[corev1.DefaultSchedulerName]})
			if (err != nil) != (test.fail != "") || err != nil && !strings.HasPrefix(err.Error(), test.fail) {
				t.Fatalf("%v, want %q", err, test.fail)
			}
			if err == nil {
				release(f.scheduler.snapshot, r)
			}
			if n := len(s.Volumes.AssumedVolumes) + len(s.Volumes.AssumedClaims) + len(s.Devices.Assumed); n != 0 {
				t.Errorf("%d things are still assumed", n)
			}
		})
	}
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
	t.Run("both come", func(t *testing.T) {
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
