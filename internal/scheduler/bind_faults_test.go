package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// faultyServer is an API server with a volume controller and a device driver behind it, all of which fail now and then. It keeps
// versions as a server does: who writes an object must know it as it is. What it tells is in order, and late.
type faultyServer struct {
	*fakeServer
	random *rand.Rand
	// trouble is how many of a hundred writes fail without a reason.
	trouble int

	store   sync.Mutex // guards what follows
	version int
	volumes map[string]*corev1.PersistentVolume
	claims  map[string]*corev1.PersistentVolumeClaim
	devices map[string]*resourcev1.ResourceClaim
	feed    chan func()
}

// withFaultyServer runs a test on a faulty server and then waits, without faults, until nothing changes any more.
func withFaultyServer(t *testing.T, seed uint64, trouble int, known schedulertest.Objects, nodes []*corev1.Node, run func(*faultyServer)) {
	t.Helper()
	withFakeServer(t, nil, func(f *fakeServer) {
		r := &faultyServer{
			fakeServer: f, random: rand.New(rand.NewPCG(seed, 8)), trouble: trouble, version: 100, feed: make(chan func(), 10000),
			volumes: map[string]*corev1.PersistentVolume{}, claims: map[string]*corev1.PersistentVolumeClaim{}, devices: map[string]*resourcev1.ResourceClaim{},
		}
		var feeding sync.WaitGroup
		feeding.Go(func() {
			for change := range r.feed {
				time.Sleep(3 * time.Millisecond)
				r.notify(change)
			}
		})
		f.notify(func() {
			f.scheduler.binder.Writer = r
			for _, o := range known {
				f.scheduler.snapshot.SetObject(o)
				switch o := o.(type) {
				case *corev1.PersistentVolume:
					r.volumes[o.Name] = o
				case *corev1.PersistentVolumeClaim:
					r.claims[o.Name] = o
				case *resourcev1.ResourceClaim:
					r.devices[o.Name] = o
				}
			}
		})
		f.mu.Lock()
		f.refuse = func(*corev1.Pod, string) error { return r.fails("bind") }
		f.mu.Unlock()
		for _, n := range nodes {
			f.addNode(n)
		}
		run(r)
		r.store.Lock()
		r.trouble = 0
		r.store.Unlock()
		r.pass(20 * time.Minute)
		close(r.feed)
		feeding.Wait()
	})
}

// fails is an error in so many cases of a hundred.
func (r *faultyServer) fails(what string) error {
	r.store.Lock()
	defer r.store.Unlock()
	if r.random.IntN(100) < r.trouble {
		return errors.New(what + " does not work today")
	}
	return nil
}

// next stamps an object as it is stored; the caller holds store.
func (r *faultyServer) next(o metav1.Object) {
	r.version++
	o.SetResourceVersion(strconv.Itoa(r.version))
}

func stale(o metav1.Object) error {
	return apierrors.NewConflict(corev1.Resource("objects"), o.GetName(), errors.New("the object has been modified"))
}

// soon does something a while later.
func (r *faultyServer) soon(do func()) {
	r.store.Lock()
	wait := time.Duration(1+r.random.IntN(800)) * time.Millisecond
	r.store.Unlock()
	go func() {
		time.Sleep(wait)
		do()
	}()
}

// setVolume and its likes store an object and tell of it; the caller holds store.
func (r *faultyServer) setVolume(pv *corev1.PersistentVolume) {
	old := r.volumes[pv.Name]
	r.next(pv)
	r.volumes[pv.Name] = pv
	r.feed <- func() {
		r.scheduler.snapshot.SetObject(pv)
		r.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.PersistentVolumeResource, Action: addOrUpdate(old != nil), Old: old, New: pv})
	}
}

func (r *faultyServer) setClaim(claim *corev1.PersistentVolumeClaim) {
	old := r.claims[claim.Name]
	r.next(claim)
	r.claims[claim.Name] = claim
	r.feed <- func() {
		r.scheduler.snapshot.SetObject(claim)
		r.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.PersistentVolumeClaim, Action: addOrUpdate(old != nil), Old: old, New: claim})
	}
}

func (r *faultyServer) setDevices(claim *resourcev1.ResourceClaim) {
	old := r.devices[claim.Name]
	r.next(claim)
	r.devices[claim.Name] = claim
	r.feed <- func() {
		event := plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Add, New: claim}
		if old != nil {
			event.Action, event.Old = plugins.UpdateOther, old
		}
		r.scheduler.snapshot.SetObject(claim)
		r.scheduler.moveQueuedPods(event)
	}
}

func addOrUpdate(known bool) plugins.Action {
	if known {
		return plugins.UpdateOther
	}
	return plugins.Add
}

func (r *faultyServer) UpdatePersistentVolume(_ context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if err := r.fails("volume"); err != nil {
		return nil, err
	}
	r.store.Lock()
	defer r.store.Unlock()
	if now := r.volumes[pv.Name]; now == nil || now.ResourceVersion != pv.ResourceVersion {
		return nil, stale(pv)
	}
	pv = pv.DeepCopy()
	r.setVolume(pv)
	go r.soon(func() { r.bindClaimTo(pv.Spec.ClaimRef.Name, pv.Name) })
	return pv, nil
}

// bindClaimTo is the volume controller's work.
func (r *faultyServer) bindClaimTo(name, pv string) {
	r.store.Lock()
	defer r.store.Unlock()
	claim := r.claims[name].DeepCopy()
	if claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pv {
		return
	}
	schedulertest.ClaimBoundTo(pv)(claim)
	r.setClaim(claim)
}

func (r *faultyServer) UpdatePersistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	if err := r.fails("claim"); err != nil {
		return nil, err
	}
	r.store.Lock()
	defer r.store.Unlock()
	if now := r.claims[claim.Name]; now == nil || now.ResourceVersion != claim.ResourceVersion {
		return nil, stale(claim)
	}
	claim = claim.DeepCopy()
	r.setClaim(claim)
	go r.soon(func() { r.provide(claim.Name) })
	return claim, nil
}

// provide makes a volume for a claim on the node it was sent to, or gives up and sends it back.
func (r *faultyServer) provide(name string) {
	refused := r.fails("provisioner") != nil
	r.store.Lock()
	defer r.store.Unlock()
	claim := r.claims[name].DeepCopy()
	node := claim.Annotations[volume.AnnSelectedNode]
	if claim.Spec.VolumeName != "" || node == "" {
		return
	}
	if refused {
		delete(claim.Annotations, volume.AnnSelectedNode)
		r.setClaim(claim)
		return
	}
	r.setVolume(schedulertest.StorageVolume("made-"+name, schedulertest.VolumeOnNode(node), schedulertest.VolumeClaimRef("default", name, claim.UID), schedulertest.VolumePhase(corev1.VolumeBound)))
	schedulertest.ClaimBoundTo("made-" + name)(claim)
	r.setClaim(claim)
}

func (r *faultyServer) GetResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	r.store.Lock()
	defer r.store.Unlock()
	if now := r.devices[claim.Name]; now != nil {
		return now, nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), claim.Name)
}

func (r *faultyServer) CreateResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := r.fails("create"); err != nil {
		return nil, err
	}
	r.store.Lock()
	defer r.store.Unlock()
	claim = claim.DeepCopy()
	claim.Name = fmt.Sprint(claim.GenerateName, r.version)
	claim.UID = "uid-" + claim.OwnerReferences[0].UID
	r.setDevices(claim)
	return claim, nil
}

func (r *faultyServer) UpdateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return r.UpdateResourceClaimStatus(ctx, claim)
}

func (r *faultyServer) UpdateResourceClaimStatus(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if err := r.fails("status"); err != nil {
		return nil, err
	}
	r.store.Lock()
	defer r.store.Unlock()
	if now := r.devices[claim.Name]; now == nil || now.ResourceVersion != claim.ResourceVersion {
		return nil, stale(claim)
	}
	claim = claim.DeepCopy()
	r.setDevices(claim)
	return claim, nil
}

func (r *faultyServer) DeleteResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) error {
	r.store.Lock()
	defer r.store.Unlock()
	old := r.devices[claim.Name]
	delete(r.devices, claim.Name)
	r.feed <- func() {
		r.scheduler.snapshot.DeleteObject(old)
		r.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Delete, Old: old})
	}
	return nil
}

// leave takes a pod away, as its end would: claims of its own go, and it uses no others.
func (r *faultyServer) leave(name string) {
	r.mu.Lock()
	there := r.pods[name] != nil
	r.mu.Unlock()
	if !there {
		return
	}
	r.removePod(name)
	r.store.Lock()
	defer r.store.Unlock()
	for _, key := range slices.Sorted(maps.Keys(r.devices)) {
		claim := r.devices[key].DeepCopy()
		before := len(claim.Status.ReservedFor)
		claim.Status.ReservedFor = slices.DeleteFunc(claim.Status.ReservedFor, func(u resourcev1.ResourceClaimConsumerReference) bool { return u.Name == name })
		if len(claim.Status.ReservedFor) == before {
			continue
		}
		if len(claim.Status.ReservedFor) == 0 {
			claim.Status.Allocation = nil
		}
		r.setDevices(claim)
	}
}

// expectNothingAssumed checks that nothing is assumed when no write is in flight.
func (r *faultyServer) expectNothingAssumed(round int) {
	r.t.Helper()
	r.notify(func() {
		s := r.scheduler.snapshot
		if n := len(s.Volumes.AssumedVolumes) + len(s.Volumes.AssumedClaims) + len(s.Devices.Assumed); n != 0 {
			r.t.Errorf("round %d: %d objects are still assumed", round, n)
		}
		for uid := range s.PodEntries {
			if _, assumed := s.Assumed(uid); assumed {
				r.t.Errorf("round %d: pod %s is still assumed", round, uid)
			}
		}
	})
}

// Whatever fails meanwhile: no volume goes to two claims, every pod on a node has its volumes there, and all who can be served are.
func TestVolumesWithRandomFailures(t *testing.T) {
	for round := range 12 {
		random := rand.New(rand.NewPCG(61, uint64(round)))
		nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}
		known := schedulertest.Objects{schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.WaitForConsumerClass("made", schedulertest.CsiName)}
		const claims = 10
		for i := range claims {
			name := fmt.Sprint("c", i)
			if i%2 == 0 {
				known = append(known, schedulertest.StorageClaim(name), schedulertest.StorageVolume("v"+name, schedulertest.VolumeNodeAffinity(corev1.LabelHostname, []string{"a", "b", "c"}[random.IntN(3)], "a")))
			} else {
				known = append(known, schedulertest.StorageClaim(name, schedulertest.ClaimClass("made")))
			}
		}
		withFaultyServer(t, uint64(round), []int{0, 10, 30}[round%3], known, nodes, func(r *faultyServer) {
			for i := range claims {
				options := []schedulertest.PodOption{schedulertest.UsingClaim(fmt.Sprint("c", i))}
				if random.IntN(3) == 0 {
					options = append(options, schedulertest.UsingClaim(fmt.Sprint("c", (i+1)%claims)))
				}
				r.addPod(schedulertest.TestPod(fmt.Sprint("p", i), options...))
				r.pass(time.Duration(random.IntN(400)) * time.Millisecond)
				if random.IntN(6) == 0 {
					r.removePod(fmt.Sprint("p", i))
				}
			}
			r.pass(time.Minute)
			r.store.Lock()
			r.trouble = 0
			r.store.Unlock()
			r.pass(20 * time.Minute)
			r.expectNothingAssumed(round)
			r.store.Lock()
			defer r.store.Unlock()
			owner := map[string]string{}
			for name, claim := range r.claims {
				if pv := claim.Spec.VolumeName; pv != "" {
					if owner[pv] != "" || r.volumes[pv].Spec.ClaimRef.Name != name {
						t.Errorf("round %d: volume %s is of %s and %s", round, pv, owner[pv], name)
					}
					owner[pv] = name
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for name, p := range r.pods {
				if r.bound[name] > 1 {
					t.Errorf("round %d: %s was bound %d times", round, name, r.bound[name])
				}
				if p.Spec.NodeName == "" {
					// Two claims of one pod may have got volumes of different nodes by other pods; nothing else keeps a pod waiting.
					if len(p.Spec.Volumes) == 1 {
						t.Errorf("round %d: %s has no node: %v", round, name, r.patches[name])
					}
					continue
				}
				for _, claim := range snapshot.ClaimNames(p) {
					pv := r.volumes[r.claims[claim].Spec.VolumeName]
					if pv == nil || volume.CheckNodeAffinity(pv, map[string]string{corev1.LabelHostname: p.Spec.NodeName}) != nil {
						t.Errorf("round %d: %s is on %s, and %s has %v", round, name, p.Spec.NodeName, claim, pv)
					}
				}
			}
		})
	}
}

// Whatever fails meanwhile: no device goes to two claims, every pod on a node is a user of claims that have devices there, and
// nobody waits while there are devices.
func TestDevicesWithRandomFailures(t *testing.T) {
	for round := range 12 {
		random := rand.New(rand.NewPCG(62, uint64(round)))
		nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
		known := schedulertest.Objects{schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0), schedulertest.DeviceSlice("a", 3), schedulertest.DeviceSlice("b", 3)}
		for i := range 4 {
			known = append(known, schedulertest.DevicesClaim(fmt.Sprint("c", i), schedulertest.Exactly("r", "class", int64(1+i%2), "")))
		}
		withFaultyServer(t, uint64(round), []int{0, 10, 30}[round%3], known, nodes, func(r *faultyServer) {
			for i := range 12 {
				name := fmt.Sprint("p", i)
				pod := schedulertest.TestPod(name, schedulertest.Claiming(fmt.Sprint("c", random.IntN(4))))
				if random.IntN(3) == 0 {
					pod = schedulertest.TestPod(name, schedulertest.Requesting(schedulertest.Gpu, "1"))
				}
				r.addPod(pod)
				r.pass(time.Duration(random.IntN(300)) * time.Millisecond)
				if random.IntN(4) == 0 {
					r.leave(fmt.Sprint("p", random.IntN(i+1)))
				}
			}
			r.pass(time.Minute)
			r.store.Lock()
			r.trouble = 0
			r.store.Unlock()
			r.pass(20 * time.Minute)
			r.expectNothingAssumed(round)
			r.store.Lock()
			defer r.store.Unlock()
			holder, free := map[string]string{}, map[string]int{"a": 3, "b": 3}
			for name, claim := range r.devices {
				if claim.Status.Allocation == nil {
					continue
				}
				for _, d := range claim.Status.Allocation.Devices.Results {
					key := d.Pool + "/" + d.Device
					if holder[key] != "" {
						t.Errorf("round %d: %s is of %s and %s", round, key, holder[key], name)
					}
					holder[key] = name
					free[d.Pool]--
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for name, p := range r.pods {
				if r.bound[name] > 1 {
					t.Errorf("round %d: %s was bound %d times", round, name, r.bound[name])
				}
				if p.Spec.NodeName == "" {
					needs := 1
					if len(p.Spec.ResourceClaims) > 0 {
						claim := r.devices[*p.Spec.ResourceClaims[0].ResourceClaimName]
						if needs = int(claim.Spec.Devices.Requests[0].Exactly.Count); claim.Status.Allocation != nil {
							needs = 0
						}
					}
					if free["a"] >= needs || free["b"] >= needs {
						t.Errorf("round %d: %s waits for %d devices, while %v are free: %v", round, name, needs, free, r.patches[name])
					}
					continue
				}
				served := false
				for _, claim := range r.devices {
					uses := slices.ContainsFunc(claim.Status.ReservedFor, func(u resourcev1.ResourceClaimConsumerReference) bool { return u.UID == p.UID })
					served = served || uses && claim.Status.Allocation != nil && claim.Status.Allocation.Devices.Results[0].Pool == p.Spec.NodeName
				}
				if !served {
					t.Errorf("round %d: %s is on %s without devices", round, name, p.Spec.NodeName)
				}
			}
		})
	}
}
