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

// The operations of the garbage collector. A key has the operation as its namespace and the UID of an object as its name.
const (
	deleteKey = "delete" // delete the object if its owners are gone, or finish its foreground deletion
	orphanKey = "orphan" // orphan its dependents
)

// The delay until an object whose owner has an unknown kind is tried again. It doubles with each attempt; when discovery finds new
// kinds, all of them are tried at once.
const (
	minUnknownKindDelay = 10 * time.Second
	maxUnknownKindDelay = 1000 * time.Second
)

// maxConcurrentReleases is the maximum number of dependents of one owner that are orphaned concurrently.
const maxConcurrentReleases = 20

// GarbageCollector deletes objects whose owners are gone, deletes dependents before an owner in foreground deletion, and orphans
// the dependents of owners that require it. It watches the metadata of all objects (monitors.go) and tracks ownership (graph.go);
// before it writes, it reads the live objects.
var GarbageCollector = controller.Definition{
	Name: "garbage-collector-controller", Aliases: []string{"garbagecollector"}, Queue: "garbage_collector_attempt_to_delete", Workers: 20,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		metadataClient, err := newMetadataClient(s.Client.Config)
		if err != nil {
			return nil, err
		}
		g := &garbageCollector{
			metadataClient: metadataClient, graph: newGraph(), setup: s, synced: make(chan struct{}), rediscover: make(chan struct{}, 1),
			mapper:   restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery)),
			monitors: map[schema.GroupVersionResource]*monitor{}, unknownKinds: map[controller.Key]time.Duration{},
		}
		return g, nil
	},
}

type garbageCollector struct {
	*metadataClient
	*graph
	setup  *controller.Setup
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// synced is closed when all resources have been listed once. Before that, dependents may be missing in the graph, and the
	// foreground deletion of an owner would finish too early.
	synced chan struct{}
	// rediscover triggers discovery before the period is over.
	rediscover chan struct{}
	monitors   map[schema.GroupVersionResource]*monitor

	unknownMu sync.Mutex
	// unknownKinds are the keys that refer to unknown kinds, with the last delay until they were tried again.
	unknownKinds map[controller.Key]time.Duration
}

// errNoMatch: the RESTMapper has no mapping, because the server does not serve the kind. A CRD may add it later, so the object is retried.
var errNoMatch = errors.New("unable to get REST mapping")

// errNoNamespace: a cluster-scoped object refers to a namespaced owner, which is invalid.
var errNoNamespace = errors.New("cluster-scoped objects cannot refer to namespaced owners")

// Sync performs the operation of a key.
func (g *garbageCollector) Sync(ctx context.Context, key controller.Key) error {
	select {
	case <-g.synced:
	case <-ctx.Done():
		return ctx.Err()
	}
	node, ok := g.snapshot(types.UID(key.Name))
	if !ok {
		g.forgetUnknownKind(key)
		g.setup.SpaceSyncs(key, 0)
		return nil
	}
	// An owner in foreground deletion is enqueued by each of its dependents.
	g.setup.SpaceSyncs(key, len(node.dependents))
	var err error
	if key.Namespace == orphanKey {
		err = g.releaseDependents(ctx, node)
	} else {
		err = g.attemptToDelete(ctx, node)
	}
	switch {
	case errors.Is(err, errNoNamespace):
		return nil
	case errors.Is(err, errNoMatch):
		g.setup.EnqueueAfter(key, g.unknownKindDelay(key))
		return nil
	case err != nil:
		return fmt.Errorf("%s %v: %w", key.Namespace, node.identity, err)
	}
	g.forgetUnknownKind(key)
	if delay, ok := g.virtualRetryDelay(node.uid); ok {
		g.setup.EnqueueAfter(key, delay)
	}
	return nil
}

// unknownKindDelay notes that a key refers to an unknown kind, and returns the delay until it is tried again.
func (g *garbageCollector) unknownKindDelay(key controller.Key) time.Duration {
	g.unknownMu.Lock()
	defer g.unknownMu.Unlock()
	delay := max(minUnknownKindDelay, min(2*g.unknownKinds[key], maxUnknownKindDelay))
	g.unknownKinds[key] = delay
	return delay
}

// forgetUnknownKind notes that a key is gone or refers to no unknown kind.
func (g *garbageCollector) forgetUnknownKind(key controller.Key) {
	g.unknownMu.Lock()
	defer g.unknownMu.Unlock()
	delete(g.unknownKinds, key)
}

// enqueueUnknownKinds enqueues all keys that refer to unknown kinds.
func (g *garbageCollector) enqueueUnknownKinds() {
	g.unknownMu.Lock()
	defer g.unknownMu.Unlock()
	for key := range g.unknownKinds {
		g.unknownKinds[key] = 0
		g.setup.Enqueue(key)
	}
}

// enqueueWork enqueues the work that results from a change of the graph.
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

// attemptToDelete deletes an object if it has no owner left.
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

// decision is what to do with an object that has owner references.
type decision int

const (
	keep             decision = iota // it has a live owner and no dangling references
	release                          // it has a live owner and dangling references
	unblockAndDelete                 // its owner waits for it, and there may be a cycle
	deleteForeground
	deleteOrphan
	deleteBackground
)

// decide returns what to do with an object.
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

// ownerStates are the states of an object's owners.
type ownerStates struct {
	solid           bool        // one of them exists and is not waiting for its dependents
	absent, waiting []types.UID // owners that do not exist, and owners in foreground deletion
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

// owner reads the live owner of a reference, nil if it does not exist.
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
		return nil, fmt.Errorf("%w for %s/%s", errNoMatch, id.apiVersion, id.kind)
	}
	return mapping, nil
}

// at returns the client for an object's resource and namespace.
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

// delete deletes the object with its UID as a precondition. If seen is set, its owner references must not have changed since;
// other changes do not matter.
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

// releaseDependents orphans all dependents of an owner and then removes its finalizer.
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

// release removes owner references from an object, if it still exists.
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

// unblock sets blockOwnerDeletion to false in the object's owner references. It returns the updated object.
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

// changeReferences changes the owner references of an object with a strategic merge patch, which cannot conflict. Custom resources
// do not support it: their list is replaced by a merge patch with the resource version.
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

// removeFinalizer removes a finalizer of the garbage collector.
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

// metadataPatch encodes a patch of metadata. Marshalling strings, lists and maps cannot fail.
func metadataPatch(metadata map[string]any) []byte {
	data, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		panic(err)
	}
	return data
}
