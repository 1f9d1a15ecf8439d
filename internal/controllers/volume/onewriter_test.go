package volume

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

// simulatedNode mounts the disk as the kubelet does (internal/kubelet/volume/inuse.go): it reports the disk in use, then reads that it is attached, then
// mounts it, in steps that may be far apart.
type simulatedNode struct {
	name string
	// lost is set while the node has no connection to the API server.
	lost bool
	// unneededSince is when the last pod on the node that uses the disk was deleted.
	unneededSince time.Time
	// reported is set while the stored status has the disk in use, checked when it was attached after that, mounted while it is mounted.
	reported, checked, mounted bool
	// wanted is what the node knows: that a pod on it uses the disk.
	wanted bool
}

// storage is the disk, and the attacher of its driver.
type storage struct {
	*world.World
	disk     *corev1.PersistentVolume
	nodes    map[string]*simulatedNode
	attached string // to which node
}

const attacherFinalizer = "example.com/attacher"

// sync attaches and detaches the disk as the VolumeAttachments say.
func (s *storage) sync() {
	for _, a := range world.List[*storagev1.VolumeAttachment](s.World) {
		switch {
		case a.DeletionTimestamp == nil && !slices.Contains(a.Finalizers, attacherFinalizer):
			world.Edit(s.World, "", a.Name, func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, attacherFinalizer) })
		case a.DeletionTimestamp == nil && !a.Status.Attached:
			if s.attached != "" && s.attached != a.Spec.NodeName {
				s.T.Fatalf("the disk is attached to %s and %s", s.attached, a.Spec.NodeName)
			}
			s.attached = a.Spec.NodeName
			world.EditStatus(s.World, "", a.Name, func(a *storagev1.VolumeAttachment) { a.Status.Attached = true })
		case a.DeletionTimestamp != nil:
			n := s.nodes[a.Spec.NodeName]
			if inUse := n.checked || n.mounted; inUse && (!n.lost || time.Since(n.unneededSince) < DefaultMaxUnmountWait) {
				s.T.Fatalf("the disk is detached from %s, which uses it: %+v", n.name, n)
			}
			s.attached = ""
			world.Edit(s.World, "", a.Name, func(a *storagev1.VolumeAttachment) { a.Finalizers = nil })
		}
	}
}

// setInUse stores what the node reports.
func (s *storage) setInUse(n *simulatedNode, inUse bool) {
	world.EditStatus(s.World, "", n.name, func(node *corev1.Node) {
		node.Status.VolumesInUse = nil
		if inUse {
			node.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(s.disk)}
		}
	})
	n.reported = inUse
}

// isAttached is what the kubelet checks: the node's status has the disk attached, and the attachment is not being deleted.
func (s *storage) isAttached(n *simulatedNode) bool {
	node := world.Get[*corev1.Node](s.World, "", n.name)
	if !slices.ContainsFunc(node.Status.VolumesAttached, func(a corev1.AttachedVolume) bool { return a.Name == uniqueName(s.disk) }) {
		return false
	}
	name := attachmentName(s.disk, n.name)
	if world.Gone[*storagev1.VolumeAttachment](s.World, "", name) {
		return false
	}
	a := world.Get[*storagev1.VolumeAttachment](s.World, "", name)
	return a.DeletionTimestamp == nil && a.Status.Attached && slices.Contains(node.Status.VolumesInUse, uniqueName(s.disk))
}

// step lets a node take its next step. A node that has lost its connection can only mount what it has checked before.
func (s *storage) step(n *simulatedNode, pod *corev1.Pod) {
	if !n.lost {
		n.wanted = pod != nil && pod.Spec.NodeName == n.name
	}
	switch {
	case n.mounted && !n.wanted:
		n.mounted, n.checked = false, false
	case n.checked && !n.mounted && n.wanted:
		if s.attached != n.name && !n.lost {
			s.T.Fatalf("%s mounts the disk, which is attached to %q", n.name, s.attached)
		}
		n.mounted = true
	case n.checked && !n.wanted:
		n.checked = false
	case n.lost:
	case n.wanted && !n.reported:
		s.setInUse(n, true)
	case n.wanted && s.isAttached(n):
		n.checked = true
	case !n.wanted && n.reported:
		s.setInUse(n, false)
	}
}

// setLost cuts a node off, or connects it again; the node lifecycle controller notices. What it has of a disk that was detached meanwhile is of no use.
func (s *storage) setLost(n *simulatedNode, lost bool) {
	if n.lost = lost; !lost && s.attached != n.name {
		n.checked, n.mounted = false, false
	}
	status := corev1.ConditionTrue
	if lost {
		status = corev1.ConditionUnknown
	}
	world.EditStatus(s.World, "", n.name, func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	})
}

// TestOneWriter: while a pod with a ReadWriteOnce volume moves between nodes that are slow and lose their connection, the volume is never attached to
// two nodes, and never detached from one that uses it, unless that cannot be reached for six minutes. The controller sees everything late.
func TestOneWriter(t *testing.T) {
	world.Seeds(t, 12, func(w *world.World) {
		w.Manage(&world.Faults{Lag: 7 * time.Second}, AttachDetach(DefaultMaxUnmountWait))
		claim := aClaim(names("disk"))
		claim.UID = ""
		made := world.Create(w, claim)
		world.EditStatus(w, "default", "data", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
		disk := aVolume("disk", csi, claimedBy("data", string(made.UID)))
		disk.UID = ""
		s := &storage{World: w, disk: world.Create(w, disk), nodes: map[string]*simulatedNode{}}
		for _, name := range []string{"n1", "n2", "n3"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{managedAttachAnnotation: "true"}}})
			s.nodes[name] = &simulatedNode{name: name}
			s.setLost(s.nodes[name], false)
		}
		var pod *corev1.Pod
		moves, mounts := 0, 0
		for range 400 {
			if pod == nil && w.Chance(0.5) {
				pod = world.Create(w, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
					Spec: corev1.PodSpec{
						NodeName: world.Pick(w, "n1", "n2", "n3"), TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "i"}},
						Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
					},
				})
				moves++
			} else if pod != nil && w.Chance(0.05) {
				w.Remove(pod)
				s.nodes[pod.Spec.NodeName].unneededSince = time.Now()
				pod = nil
			}
			n := s.nodes[world.Pick(w, "n1", "n2", "n3")]
			if !n.lost && w.Chance(0.03) || n.lost && w.Chance(0.1) {
				s.setLost(n, !n.lost)
			}
			if w.Chance(0.7) { // else it is slow
				mounted := n.mounted
				if s.step(n, pod); n.mounted && !mounted {
					mounts++
				}
			}
			if w.Chance(0.7) {
				s.sync()
			}
			w.Pass(time.Duration(1+w.Random.IntN(15)) * time.Second)
		}
		t := w.T
		if moves < 5 || mounts < 3 {
			t.Errorf("%d moves, %d mounts: nothing was tested", moves, mounts)
		}
	})
}
