package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
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
	claim := v.scheduler.snapshot.volumes.claims[pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name].DeepCopy()
	v.hear(pv)
	v.finish(func() { v.bindClaim(claim, pv.Name) })
	return pv, nil
}

func (v *volumeServer) updateClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	claim = claim.DeepCopy()
	claim.ResourceVersion = v.next()
	v.hear(claim.DeepCopy())
	v.finish(func() {
		if failing, _ := v.now(); failing {
			delete(claim.Annotations, volume.AnnSelectedNode)
			claim.ResourceVersion = v.next()
			v.scheduler.snapshot.SetObject(claim)
			return
		}
		v.scheduler.snapshot.SetObject(volumeFor("made", claim.Namespace, claim.Name))
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

// hear lets the scheduler know of a write, a moment after its answer.
func (v *volumeServer) hear(written metav1.Object) {
	go func() {
		time.Sleep(v.delay)
		v.tell(func() { v.scheduler.snapshot.SetObject(written) })
	}()
}

// finish does the controller's work a while later.
func (v *volumeServer) finish(work func()) {
	if v.lazy {
		return
	}
	go func() {
		time.Sleep(2 * time.Second)
		v.tell(work)
	}()
}

func volumeFor(name, namespace, claim string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "late", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim, UID: types.UID(claim)}
	}
	return pv
}

// volumeStory is a story with a class that waits for its first consumer and a claim of it.
func volumeStory(t *testing.T, server volumeServer, provisioner string, tell func(v *volumeServer)) {
	t.Helper()
	story(t, nil, func(f *fakeServer) {
		v := &server
		v.fakeServer, v.version = f, &atomic.Int64{}
		f.tell(func() {
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
		f.addNode(testNode("a"))
		f.addNode(testNode("b"))
		tell(v)
	})
}

func usingClaim(name string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

// A claim that waits for its first consumer gets a volume the pod's node reaches, before the pod is bound.
func TestVolumeIsBoundBeforeThePod(t *testing.T) {
	volumeStory(t, volumeServer{}, volume.NotSupportedProvisioner, func(v *volumeServer) {
		pv := volumeFor("disk", "", "")
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(corev1.LabelHostname, corev1.NodeSelectorOpIn, "b")}}}
		v.tell(func() { v.scheduler.snapshot.SetObject(pv) })
		v.addPod(testPod("p", usingClaim("claim")))
		v.pass(time.Second)
		if v.nodeOf("p") != "" {
			t.Error("the pod was bound before its volume")
		}
		// Who else wants the disk finds it taken.
		v.tell(func() {
			if got := refusalsOf(t, v.scheduler.snapshot, testPod("q", usingClaim("claim")), DefaultProfile()); len(got) != 1 || got["a"] == "" {
				t.Errorf("refused: %v", got)
			}
		})
		v.pass(10 * time.Second)
		if v.nodeOf("p") != "b" {
			t.Errorf("the pod is on %q, want b", v.nodeOf("p"))
		}
	})
}

// A volume that is still to be made is asked for on the pod's node, and waited for.
func TestVolumeIsMade(t *testing.T) {
	volumeStory(t, volumeServer{}, "csi.example.com", func(v *volumeServer) {
		v.addPod(testPod("p", usingClaim("claim")))
		v.pass(20 * time.Second)
		if v.nodeOf("p") == "" || v.boundTimes("p") != 1 {
			t.Errorf("the pod is on %q", v.nodeOf("p"))
		}
	})
}

// A controller that cannot make the volume takes the node back: the pod is tried again, not left.
func TestVolumeIsNotMade(t *testing.T) {
	volumeStory(t, volumeServer{failing: true}, "csi.example.com", func(v *volumeServer) {
		v.addPod(testPod("p", usingClaim("claim")))
		v.pass(5 * time.Second)
		if v.nodeOf("p") != "" {
			t.Fatal("a pod without its volume was bound")
		}
		v.recover()
		v.pass(time.Minute)
		if v.nodeOf("p") == "" {
			t.Errorf("the pod was forgotten: %v", v.told("p"))
		}
	})
}

// Nobody waits for ever, and what was assumed meanwhile is given back.
func TestVolumeNeverComes(t *testing.T) {
	volumeStory(t, volumeServer{lazy: true}, "csi.example.com", func(v *volumeServer) {
		v.addPod(testPod("p", usingClaim("claim"), asksCPU("3")))
		v.pass(11 * time.Minute)
		if v.nodeOf("p") != "" {
			t.Error("a pod without its volume was bound")
		}
		v.removePod("p")
		v.pass(time.Minute)
		v.scheduler.mu.Lock()
		defer v.scheduler.mu.Unlock()
		if n := len(v.scheduler.snapshot.volumes.assumedClaim) + v.scheduler.snapshot.Pods(); n != 0 {
			t.Errorf("%d things are still assumed", n)
		}
	})
}

func TestVolumeWriteFails(t *testing.T) {
	volumeStory(t, volumeServer{refused: errors.New("no")}, volume.NotSupportedProvisioner, func(v *volumeServer) {
		v.tell(func() { v.scheduler.snapshot.SetObject(volumeFor("disk", "", "")) })
		v.addPod(testPod("p", usingClaim("claim")))
		v.pass(10 * time.Second)
		if v.nodeOf("p") != "" {
			t.Error("bound without a volume")
		}
		v.recover()
		v.pass(time.Minute)
		if v.nodeOf("p") == "" {
			t.Errorf("not tried again: %v", v.told("p"))
		}
	})
}

// Pods that belong together are spread by default; what they belong to comes and goes.
func TestOwners(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "own"}
	owned := func(apiVersion, kind string) *corev1.Pod {
		return testPod("p", labelled("app", "x"), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "own", Controller: ptr.To(true)}}
		})
	}
	for _, test := range []struct {
		what        string
		set, delete func(s *Snapshot)
		pod         *corev1.Pod
	}{
		{"service", func(s *Snapshot) {
			s.SetService(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: selector.MatchLabels}})
		},
			func(s *Snapshot) { s.DeleteService("default", "own") }, testPod("p", labelled("app", "x"))},
		{"replication controller", func(s *Snapshot) {
			s.SetReplicationController(&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: selector.MatchLabels}})
		},
			func(s *Snapshot) { s.DeleteController("v1", "ReplicationController", "default", "own") }, owned("v1", "ReplicationController")},
		{"replica set", func(s *Snapshot) {
			s.SetReplicaSet(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector}})
		},
			func(s *Snapshot) { s.DeleteController("apps/v1", "ReplicaSet", "default", "own") }, owned("apps/v1", "ReplicaSet")},
		{"stateful set", func(s *Snapshot) {
			s.SetStatefulSet(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector}})
		},
			func(s *Snapshot) { s.DeleteController("apps/v1", "StatefulSet", "default", "own") }, owned("apps/v1", "StatefulSet")},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a", nodeHas(corev1.ResourceCPU, "64")), testNode("b")}, testPod("x", on("a"), labelled("app", "x")), testPod("y", on("b"), labelled("app", "z"), asksCPU("1")))
			goes := func() string {
				d, err := Schedule(s, infoOf(t, test.pod.DeepCopy()), DefaultProfile())
				if err != nil {
					t.Fatal(err)
				}
				return d.Node
			}
			if goes() != "a" {
				t.Error("a pod that stands alone does not go where most room is")
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

// Counts nobody asks for any more are forgotten, and made again when somebody does.
func TestManyCounters(t *testing.T) {
	s := cluster(t, nodesNamed(4, func(i int) nodeOption { return zone(fmt.Sprint(i % 2)) }))
	for i := range maxCounters + 100 {
		pod := testPod(fmt.Sprint("p", i), labelled("app", fmt.Sprint(i)), spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app", fmt.Sprint(i)))
		info := infoOf(t, pod)
		d, err := Schedule(s, info, DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			s.Assume(info, d.Node)
		}
	}
	if len(s.counters) > maxCounters {
		t.Errorf("there are %d counters", len(s.counters))
	}
	// The first pod's kind was forgotten; its count is right all the same.
	first := s.pods["p0"]
	got := refusalsOf(t, s, testPod("again", labelled("app", "0"), spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app", "0")), DefaultProfile())
	for i := range s.nodes {
		same := s.nodes[i].object.Labels[corev1.LabelTopologyZone] == s.nodes[first.node].object.Labels[corev1.LabelTopologyZone]
		if (got[s.nodes[i].name] != "") != same {
			t.Errorf("node %s: %q", s.nodes[i].name, got[s.nodes[i].name])
		}
	}
}
