package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/retry"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// What the garbage collector is requested about an object. A key has one of these as its namespace and a UID as its name.
const (
	deleteKey = "delete" // delete it if its owners are gone; if it waits for its dependents, see whether they are
	orphanKey = "orphan" // release its dependents
)

// unknownKindDelay is how long an object waits whose owner has a kind that the server does not know.
const unknownKindDelay = 10 * time.Second

// maxConcurrentReleases bounds the dependents of one owner that are being released.
const maxConcurrentReleases = 20

// GarbageCollector deletes objects whose owners are gone, deletes dependents before an owner that waits for them, and releases
// dependents of an owner that is to leave them behind. It knows all objects by their metadata (monitors.go) and who belongs to
// whom (graph.go); before it acts it asks the server itself.
var GarbageCollector = controller.Definition{
	Name: "garbage-collector-controller", Aliases: []string{"garbagecollector"}, Queue: "garbage_collector_attempt_to_delete", Workers: 20,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		api, err := newServer(s.Client.Config)
		if err != nil {
			return nil, err
		}
		g := &garbageCollector{
			server: api, graph: newGraph(), setup: s, synced: make(chan struct{}), rediscover: make(chan struct{}, 1),
			mapper:   restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(api.discovery)),
			monitors: map[schema.GroupVersionResource]*monitor{},
		}
		return g, nil
	},
}

type garbageCollector struct {
	*server
	*graph
	setup  *controller.Setup
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// synced is closed when all objects have been seen once. Before that, dependents may be missing in the graph, and an owner
	// that waits for them would be let go too early.
	synced chan struct{}
	// rediscover enqueues discovery, ahead of time.
	rediscover chan struct{}
	monitors   map[schema.GroupVersionResource]*monitor
}

// errUnknownKind: the server has no such kind. A custom resource may still bring it, so the object is looked at again later.
var errUnknownKind = errors.New("unable to get REST mapping")

// errNoNamespace: an object without a namespace names an owner that needs one. Such an owner cannot be found.
var errNoNamespace = errors.New("cluster-scoped objects cannot refer to namespaced owners")

// Sync does what a key asks for.
func (g *garbageCollector) Sync(ctx context.Context, key controller.Key) error {
	select {
	case <-g.synced:
	case <-ctx.Done():
		return ctx.Err()
	}
	node, ok := g.snapshot(types.UID(key.Name))
	if !ok {
		return nil
	}
	var err error
	if key.Namespace == orphanKey {
		err = g.releaseDependents(ctx, node)
	} else {
		err = g.attemptToDelete(ctx, node)
	}
	switch {
	case errors.Is(err, errNoNamespace):
		return nil
	case errors.Is(err, errUnknownKind):
		g.setup.EnqueueAfter(key, unknownKindDelay)
		return nil
	case err != nil:
		return fmt.Errorf("%s %v: %w", key.Namespace, node.identity, err)
	}
	if delay, ok := g.virtualRetryDelay(node.uid); ok {
		g.setup.EnqueueAfter(key, delay)
	}
	return nil
}

// enqueueWork passes on the work that a change in the graph has made.
func (g *garbageCollector) enqueueWork(w graphWork) {
	for _, uid := range w.attemptDelete {
		g.setup.Enqueue(controller.Key{Namespace: deleteKey, Name: string(uid)})
	}
	for _, uid := range w.attemptDeleteLater {
		g.setup.EnqueueAfter(controller.Key{Namespace: deleteKey, Name: string(uid)}, time.Second)
	}
	for _, uid := range w.orphanDependents {
		g.setup.Enqueue(controller.Key{Namespace: orphanKey, Name: string(uid)})
	}
	for _, invalid := range w.invalid {
		id := invalid.dependent
		object := &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: id.apiVersion, Kind: id.kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: id.namespace, Name: id.name, UID: id.uid},
		}
		g.setup.Events.Eventf(object, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef %s does not exist in namespace %q", invalid.owner, id.namespace)
	}
}

// attemptToDelete decides about one object.
func (g *garbageCollector) attemptToDelete(ctx context.Context, it nodeSnapshot) error {
	if it.deleting && !it.foreground {
		return nil
	}
	latest, err := g.get(ctx, it.identity)
	if apierrors.IsNotFound(err) || err == nil && latest.UID != it.uid {
		g.enqueueWork(g.objectNotFound(it.identity))
		return nil
	}
	if err != nil {
		return err
	}
	if it.foreground {
		if len(it.blockers) == 0 {
			return g.removeFinalizer(ctx, it.identity, metav1.FinalizerDeleteDependents)
		}
		g.enqueueWork(graphWork{attemptDelete: it.blockersToDelete})
		return nil
	}
	if len(latest.OwnerReferences) == 0 {
		return nil
	}
	owners, err := g.classify(ctx, it.identity, latest.OwnerReferences)
	if err != nil {
		return err
	}
	switch decide(owners, it, latest) {
	case keep:
		return nil
	case release:
		return g.release(ctx, it.identity, append(owners.absent, owners.waiting...))
	case unblockAndDelete:
		if latest, err = g.unblock(ctx, it.identity, latest); err != nil {
			return ignoreNotFound(err)
		}
		return g.delete(ctx, it.identity, latest, metav1.DeletePropagationForeground)
	case deleteForeground:
		return g.delete(ctx, it.identity, latest, metav1.DeletePropagationForeground)
	case deleteOrphan:
		return g.delete(ctx, it.identity, latest, metav1.DeletePropagationOrphan)
	default:
		return g.delete(ctx, it.identity, latest, metav1.DeletePropagationBackground)
	}
}

// decision is what is to become of an object.
type decision int

const (
	keep             decision = iota // it has an owner, and no others
	release                          // it has an owner, and references to others that are to go
	unblockAndDelete                 // its owner waits for it, and its dependents may wait for that owner
	deleteForeground
	deleteOrphan
	deleteBackground
)

// decide says what is to become of an object with owner references.
func decide(owners ownerStates, it nodeSnapshot, latest metav1.Object) decision {
	switch {
	case owners.solid && len(owners.absent)+len(owners.waiting) == 0:
		return keep
	case owners.solid:
		return release
	case len(owners.waiting) > 0 && it.mayBeCircular:
		return unblockAndDelete
	case len(owners.waiting) > 0 && len(it.dependents) > 0:
		return deleteForeground
	case slices.Contains(latest.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return deleteOrphan
	case slices.Contains(latest.GetFinalizers(), metav1.FinalizerDeleteDependents):
		return deleteForeground
	}
	return deleteBackground
}

// ownerStates is how an object's owners are.
type ownerStates struct {
	solid           bool        // one of them exists and stays
	absent, waiting []types.UID // those that do not exist, and those that wait until their dependents are gone
}

func (g *garbageCollector) classify(ctx context.Context, of identity, refs []metav1.OwnerReference) (ownerStates, error) {
	var owners ownerStates
	for _, ref := range refs {
		owner, err := g.owner(ctx, of, ref)
		switch {
		case err != nil:
			return ownerStates{}, err
		case owner == nil:
			owners.absent = append(owners.absent, ref.UID)
		case owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents):
			owners.waiting = append(owners.waiting, ref.UID)
		default:
			owners.solid = true
		}
	}
	return owners, nil
}

// owner asks the server for the owner that a reference names, nil when there is none.
func (g *garbageCollector) owner(ctx context.Context, of identity, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	id := identityOf(ref, of.namespace)
	anywhere := id
	anywhere.namespace = ""
	if g.isAbsent(anywhere) || g.isAbsent(id) {
		return nil, nil
	}
	mapping, err := g.mapping(id)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		id = anywhere
	}
	owner, err := g.get(ctx, id)
	if apierrors.IsNotFound(err) || err == nil && owner.UID != ref.UID {
		g.markAbsent(id)
		return nil, nil
	}
	return owner, err
}

func (g *garbageCollector) mapping(id identity) (*meta.RESTMapping, error) {
	gvk := schema.FromAPIVersionAndKind(id.apiVersion, id.kind)
	mapping, err := g.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("%w for %s/%s", errUnknownKind, id.apiVersion, id.kind)
	}
	return mapping, nil
}

// at returns where an object lives.
func (g *garbageCollector) at(id identity) (metadata.ResourceInterface, error) {
	mapping, err := g.mapping(id)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return g.in(mapping.Resource, ""), nil
	}
	if id.namespace == "" {
		return nil, errNoNamespace
	}
	return g.in(mapping.Resource, id.namespace), nil
}

func (g *garbageCollector) get(ctx context.Context, id identity) (*metav1.PartialObjectMetadata, error) {
	objects, err := g.at(id)
	if err != nil {
		return nil, err
	}
	return objects.Get(ctx, id.name, metav1.GetOptions{})
}

// delete deletes this very object. If seen is given, it must still have the owners it had: somebody may have given it a new
// one. Other changes do not matter.
func (g *garbageCollector) delete(ctx context.Context, id identity, seen *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	objects, err := g.at(id)
	if err != nil {
		return err
	}
	options := metav1.DeleteOptions{PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &id.uid}}
	if seen != nil {
		options.Preconditions.ResourceVersion = &seen.ResourceVersion
	}
	err = objects.Delete(ctx, id.name, options)
	if apierrors.IsConflict(err) && seen != nil {
		live, liveErr := objects.Get(ctx, id.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(liveErr):
			err = liveErr
		case liveErr == nil && live.UID == id.uid && reflect.DeepEqual(live.OwnerReferences, seen.OwnerReferences):
			return g.delete(ctx, id, nil, policy)
		}
	}
	if apierrors.IsNotFound(err) {
		g.enqueueWork(g.objectNotFound(id))
		return nil
	}
	return err
}

// releaseDependents lets all dependents of an owner go, and then the owner.
func (g *garbageCollector) releaseDependents(ctx context.Context, it nodeSnapshot) error {
	failures := make([]error, len(it.dependents))
	slots := make(chan struct{}, maxConcurrentReleases)
	var running sync.WaitGroup
	for i, dependent := range it.dependents {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := g.release(ctx, dependent, []types.UID{it.uid}); err != nil {
				failures[i] = fmt.Errorf("orphaning %s failed, %w", dependent, err)
			}
		})
	}
	running.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return g.removeFinalizer(ctx, it.identity, metav1.FinalizerOrphanDependents)
}

// release takes references to owners out of an object. One that is gone needs none.
func (g *garbageCollector) release(ctx context.Context, id identity, owners []types.UID) error {
	var removals []map[string]any
	for _, uid := range owners {
		removals = append(removals, map[string]any{"$patch": "delete", "uid": uid})
	}
	_, err := g.changeReferences(ctx, id, removals, func(refs []metav1.OwnerReference) []metav1.OwnerReference {
		return slices.DeleteFunc(refs, func(ref metav1.OwnerReference) bool { return slices.Contains(owners, ref.UID) })
	})
	return ignoreNotFound(err)
}

// unblock lets the owners of an object go before it. It returns the object as it is then.
func (g *garbageCollector) unblock(ctx context.Context, id identity, latest *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	var changes []map[string]any
	for _, ref := range latest.OwnerReferences {
		if blocksOwnerDeletion(ref) {
			changes = append(changes, map[string]any{"uid": ref.UID, "blockOwnerDeletion": false})
		}
	}
	if len(changes) == 0 {
		return latest, nil
	}
	no := false
	return g.changeReferences(ctx, id, changes, func(refs []metav1.OwnerReference) []metav1.OwnerReference {
		for i := range refs {
			if blocksOwnerDeletion(refs[i]) {
				refs[i].BlockOwnerDeletion = &no
			}
		}
		return refs
	})
}

// changeReferences changes the owner references of an object: by a strategic patch, which meets no conflict, and for custom
// resources, which know none, by one that replaces the whole list as it was read.
func (g *garbageCollector) changeReferences(ctx context.Context, id identity, strategic any, change func([]metav1.OwnerReference) []metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	objects, err := g.at(id)
	if err != nil {
		return nil, err
	}
	patch := metadataPatch(map[string]any{"uid": id.uid, "ownerReferences": strategic})
	changed, err := objects.Patch(ctx, id.name, client.StrategicPatch, patch, metav1.PatchOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		return changed, err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := objects.Get(ctx, id.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		patch := metadataPatch(map[string]any{"uid": id.uid, "resourceVersion": live.ResourceVersion, "ownerReferences": change(slices.Clone(live.OwnerReferences))})
		changed, err = objects.Patch(ctx, id.name, client.MergePatch, patch, metav1.PatchOptions{})
		return err
	})
	return changed, err
}

// removeFinalizer lets an object go that was held for us.
func (g *garbageCollector) removeFinalizer(ctx context.Context, id identity, finalizer string) error {
	objects, err := g.at(id)
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := objects.Get(ctx, id.name, metav1.GetOptions{})
		if err != nil || live.UID != id.uid || !slices.Contains(live.Finalizers, finalizer) {
			return ignoreNotFound(err)
		}
		rest := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
		patch := metadataPatch(map[string]any{"resourceVersion": live.ResourceVersion, "finalizers": rest})
		_, err = objects.Patch(ctx, id.name, client.MergePatch, patch, metav1.PatchOptions{})
		return ignoreNotFound(err)
	})
}

// metadataPatch encodes a patch of metadata, which is made of strings, lists and maps and cannot fail.
func metadataPatch(metadata map[string]any) []byte {
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		panic(err)
	}
	return data
}
