package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/localpath"
)

// provisionedByAnnotation of a persistent volume is the name of its provisioner.
const provisionedByAnnotation = "pv.kubernetes.io/provisioned-by"

// The bounds of the delay until directories that could not be removed are tried again.
const minRemovalRetry, maxRemovalRetry = time.Second, time.Minute

// makeLocalPath creates the directory of a volume that skiff has provisioned. It belongs to pods of any user; other users of the host cannot
// reach it, because its parent is root's. The directory appears with its mode, so that an interrupted attempt is not taken for a volume.
func makeLocalPath(pv *corev1.PersistentVolume) error {
	path := pv.Spec.HostPath.Path
	if err := rejectParentReferences(path); err != nil {
		return fmt.Errorf("invalid path %s: %w", path, err)
	}
	if exists(path) {
		return nil
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(parent, "."+pv.Name+".new")
	if err := os.Mkdir(temporary, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Chmod(temporary, 0o777); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// removeLocalPaths removes the directories that the annotations of the Node object name, until ctx is done.
func (v *Volumes) removeLocalPaths(ctx context.Context) error {
	if v.LocalPathDir == "" {
		return nil
	}
	retry := time.Duration(0)
	for {
		var due <-chan time.Time
		changed := v.nextNode()
		if err := v.syncLocalPaths(ctx); err == nil {
			retry = 0
		} else if ctx.Err() == nil {
			v.Log.Warn("failed to remove directories of deleted volumes", "error", err)
			retry = min(max(2*retry, minRemovalRetry), maxRemovalRetry)
			due = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-due:
		}
	}
}

// syncLocalPaths removes the directories that are to be removed and reports those that are.
func (v *Volumes) syncLocalPaths(ctx context.Context) error {
	node := v.Node()
	if node == nil || node.UID == "" {
		return nil
	}
	reported := node.Annotations[localpath.RemovedAnnotation]
	done := localpath.ParseNames(reported)
	var removed []string
	var errs []error
	for _, name := range localpath.ParseNames(node.Annotations[localpath.RemovalsAnnotation]) {
		if !slices.Contains(done, name) {
			if err := v.removeLocalPath(ctx, name); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed = append(removed, name)
	}
	if report := localpath.FormatNames(removed); report != reported {
		errs = append(errs, v.reportRemoved(ctx, node, report))
	}
	return errors.Join(errs...)
}

// removeLocalPath removes the directory of one volume.
func (v *Volumes) removeLocalPath(ctx context.Context, name string) error {
	path := filepath.Join(v.LocalPathDir, name)
	switch {
	case !localpath.IsVolumeDir(name):
		return fmt.Errorf("%q is not the name of a volume's directory", name)
	case v.isUsed(path):
		return fmt.Errorf("directory %s is still used by a pod", path)
	}
	return removeTree(ctx, v.LocalPathDir, name)
}

// isUsed reports whether a pod on this node has a volume at the path.
func (v *Volumes) isUsed(path string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range v.pods {
		for _, m := range pod.byName {
			if m.path == path {
				return true
			}
		}
	}
	return false
}

// reportRemoved writes the names of the removed directories into the Node object.
func (v *Volumes) reportRemoved(ctx context.Context, node *corev1.Node, report string) error {
	var value any = report
	if report == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "annotations": map[string]any{localpath.RemovedAnnotation: value},
	}})
	if err != nil {
		return err
	}
	_, err = client.For[*corev1.Node](v.Client).Patch(ctx, "", node.Name, client.RawPatch(client.MergePatch, patch), client.WriteOptions{})
	return err
}
