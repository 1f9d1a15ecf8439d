package volume

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/localpath"
)

// LocalPathCleaner has nodes remove the directories of deleted volumes. Its keys are nodes: it writes the names of the directories into an
// annotation of the Node and removes the finalizer of a volume when the kubelet has removed its directory.
var LocalPathCleaner = controller.Definition{
	Name: "local-path-cleaner", Component: localpath.Provisioner, Queue: "local_path_cleaner", Workers: 2,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		volumes := client.InformerFor[*corev1.PersistentVolume](s.Informers)
		nodes := client.InformerFor[*corev1.Node](s.Informers)
		if err := volumes.EnsureIndex(localPathNode, nodeOfLocalPath); err != nil {
			return nil, fmt.Errorf("index volumes by node: %w", err)
		}
		if err := controller.WatchPrimary[*corev1.Node](s); err != nil {
			return nil, err
		}
		if err := controller.Watch(s, func(volume *corev1.PersistentVolume) (keys []controller.Key) {
			for _, name := range nodeOfLocalPath(volume) {
				keys = append(keys, controller.Key{Name: name})
			}
			return keys
		}); err != nil {
			return nil, err
		}
		return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
			node, _ := nodes.Get("", key.Name)
			found, err := volumes.ByIndex(localPathNode, key.Name)
			if err != nil {
				return fmt.Errorf("find volumes by node: %w", err)
			}
			return s.Apply(ctx, key, reconcileRemovals(node, found))
		}), nil
	},
}

// nodeOfLocalPath is the node of a volume that LocalPath has provisioned.
func nodeOfLocalPath(volume *corev1.PersistentVolume) []string {
	if node := volume.Annotations[localPathNode]; node != "" && volume.Annotations[provisionedBy] == localpath.Provisioner {
		return []string{node}
	}
	return nil
}

// reconcileRemovals compares the deleted volumes of a node, which is nil if it is deleted too, with its annotations. Finalizers are removed
// first: the kubelet forgets that a directory is removed when its name is no longer in the annotation.
func reconcileRemovals(node *corev1.Node, volumes []*corev1.PersistentVolume) (plan controller.Plan) {
	removed := sets.Set[string]{}
	if node != nil {
		removed.Insert(localpath.ParseNames(node.Annotations[localpath.RemovedAnnotation])...)
	}
	var names []string
	var writes []controller.Write
	volumes = slices.SortedFunc(slices.Values(volumes), func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	for _, volume := range volumes {
		if volume.DeletionTimestamp == nil || !slices.Equal(volume.Finalizers, []string{localpath.Finalizer}) {
			continue // not deleted, or still in use
		}
		// A volume whose reclaim policy was changed keeps its data. Nobody can remove the directories of a deleted node.
		if !isCleanable(volume, node) || removed.Has(path.Base(volume.Spec.HostPath.Path)) {
			writes = append(writes, removeFinalizer(volume, localpath.Finalizer))
			continue
		}
		names = append(names, path.Base(volume.Spec.HostPath.Path))
	}
	plan.AddStep(writes...)
	if node == nil {
		return plan
	}
	// Names stay where they are until their directories are removed, so that a node with many of them is not written for each.
	if requested := localpath.FormatNames(names); requested != node.Annotations[localpath.RemovalsAnnotation] {
		var value any = requested
		if requested == "" {
			value = nil
		}
		plan.AddStep(controller.NewPatch(node, client.MergePatch, encode(map[string]any{"metadata": map[string]any{
			"uid": node.UID, "annotations": map[string]any{localpath.RemovalsAnnotation: value},
		}})))
	}
	return plan
}
