package volume

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"golang.org/x/sys/unix"

	"skiff/internal/container"
)

const emptyDirPlugin = "kubernetes.io/empty-dir"

// setUpEmptyDir creates a directory for the pod: on disk, in tmpfs or in hugetlbfs.
func (v *Volumes) setUpEmptyDir(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (*mounted, error) {
	source := volume.EmptyDir
	m := &mounted{plugin: emptyDirPlugin, path: v.dir(pod.UID, emptyDirPlugin, volume.Name), managed: true}
	ready := v.readyFile(pod.UID, volume.Name)
	if v.emptyDirReady(m.path, ready, source.Medium) {
		return m, nil
	}
	mode := os.FileMode(0o777)
	if source.Mode != nil {
		mode = os.FileMode(*source.Mode) & os.ModePerm
		if *source.Mode&unix.S_ISVTX != 0 {
			mode |= os.ModeSticky
		}
	}
	err := v.makeDir(m.path, mode)
	switch {
	case err != nil:
		return nil, err
	case source.Medium == corev1.StorageMediumDefault:
	case source.Medium == corev1.StorageMediumMemory:
		err = v.makeTmpfs(m.path, v.tmpfsSize(pod, source.SizeLimit))
		if err == nil && source.Mode != nil {
			err = os.Chmod(m.path, mode)
		}
	case strings.HasPrefix(string(source.Medium), string(corev1.StorageMediumHugePages)):
		err = mountHugePages(m.path, pod, source.Medium)
	default:
		err = fmt.Errorf("unknown storage medium %q", source.Medium)
	}
	if err != nil {
		return nil, err
	}
	if group := fsGroup(pod); group != nil {
		if err := setGroup(ctx, m.path, *group, false, nil); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(ready), 0o750); err != nil {
		return nil, err
	}
	return m, os.WriteFile(ready, nil, 0o640)
}

func (v *Volumes) readyFile(uid types.UID, volume string) string {
	return filepath.Join(v.podDir(uid), "plugins", strings.ReplaceAll(emptyDirPlugin, "/", "~"), volume, "ready")
}

// emptyDirReady reports whether a volume is complete. A volume in memory does not survive a reboot, although its ready
// file does.
func (v *Volumes) emptyDirReady(dir, ready string, medium corev1.StorageMedium) bool {
	if _, err := os.Lstat(ready); err != nil {
		return false
	}
	if medium == corev1.StorageMediumDefault {
		_, err := os.Lstat(dir)
		return err == nil
	}
	mounted, err := isMounted(dir)
	return err == nil && mounted
}

// makeTmpfs creates a directory and mounts a tmpfs on it.
func (v *Volumes) makeTmpfs(dir string, size int64) error {
	if err := v.makeDir(dir, 0o777); err != nil {
		return err
	}
	if mounted, err := isMounted(dir); err != nil || mounted {
		return err
	}
	return mountTmpfs(dir, size)
}

// tmpfsSize returns the size of a tmpfs: the minimum of its sizeLimit, the pod's memory limit and the node's allocatable
// memory.
func (v *Volumes) tmpfsSize(pod *corev1.Pod, sizeLimit *resource.Quantity) int64 {
	size := int64(0)
	atMost := func(limit int64) {
		if limit > 0 && (size == 0 || limit <= size) {
			size = limit
		}
	}
	if node := v.Node(); node != nil {
		atMost(node.Status.Allocatable.Memory().Value())
	}
	if hasMemoryLimit(pod) {
		limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
		atMost(limits.Memory().Value())
	}
	if sizeLimit != nil {
		atMost(sizeLimit.Value())
	}
	return size
}

// hasMemoryLimit reports whether the pod has a memory limit, of its own or because all its containers have one.
func hasMemoryLimit(pod *corev1.Pod) bool {
	if resourcehelper.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero() {
		return true
	}
	for kind, c := range container.All(&pod.Spec) {
		if kind != container.Ephemeral && c.Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

func mountHugePages(dir string, pod *corev1.Pod, medium corev1.StorageMedium) error {
	if mounted, err := isMounted(dir); err != nil || mounted {
		return err
	}
	size, err := hugePageSize(pod, medium)
	if err != nil {
		return err
	}
	if err := unix.Mount("nodev", dir, "hugetlbfs", 0, "pagesize="+size); err != nil {
		return fmt.Errorf("mount hugetlbfs on %s: %w", dir, err)
	}
	return nil
}

// hugePageSize returns the page size a medium names, or else the only one the pod requests.
func hugePageSize(pod *corev1.Pod, medium corev1.StorageMedium) (string, error) {
	wanted, named := strings.CutPrefix(string(medium), string(corev1.StorageMediumHugePagesPrefix))
	lists := []corev1.ResourceList{}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		lists = append(lists, pod.Spec.Resources.Requests)
	}
	for _, c := range container.All(&pod.Spec) {
		lists = append(lists, c.Resources.Requests)
	}
	found := ""
	for _, list := range lists {
		for name := range list {
			size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			switch {
			case !ok, named && size != wanted:
			case found != "" && found != size:
				return "", fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes", medium)
			default:
				found = size
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages", medium)
	}
	if _, err := resource.ParseQuantity(found); err != nil {
		return "", err
	}
	return found, nil
}
