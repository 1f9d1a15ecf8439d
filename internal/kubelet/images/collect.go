package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
)

// Store is the part of the runtime that the collector uses.
type Store interface {
	ListImages(ctx context.Context) ([]*cri.Image, error)
	RemoveImage(ctx context.Context, id string) error
	ImageFilesystem(ctx context.Context) (mountpoint string, err error)
	ListContainers(ctx context.Context, uid types.UID) ([]*cri.Container, error)
	ContainerStatus(ctx context.Context, id string) (*cri.Container, error)
}

// Policy is when images are removed.
type Policy struct {
	// Images are removed when disk usage exceeds HighPercent, until it is below LowPercent.
	HighPercent, LowPercent int
	// MinAge is the minimum age of images to remove; MaxAge, if not 0, how long an image may be unused before it is removed.
	MinAge, MaxAge time.Duration
}

// DefaultPolicy is upstream's default.
func DefaultPolicy() Policy { return Policy{HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute} }

// Validate returns an error if the policy is invalid.
func (p Policy) Validate() error {
	switch {
	case p.HighPercent < 0 || p.HighPercent > 100:
		return fmt.Errorf("invalid HighThresholdPercent %d, must be in range [0-100]", p.HighPercent)
	case p.LowPercent < 0 || p.LowPercent > 100:
		return fmt.Errorf("invalid LowThresholdPercent %d, must be in range [0-100]", p.LowPercent)
	case p.LowPercent > p.HighPercent:
		return fmt.Errorf("LowThresholdPercent %d can not be higher than HighThresholdPercent %d", p.LowPercent, p.HighPercent)
	}
	return nil
}

// collectPeriod is the period of garbage collection.
const collectPeriod = 5 * time.Minute

// Collector removes unused images when their disk fills up. It never removes an image of a container, running or not, an image that a pod
// mounts, or a pinned image.
type Collector struct {
	Store  Store
	Policy Policy
	// Images, if set, drops its records of removed images.
	Images *Images
	// Events and Node, if set, are used to record that not enough space could be freed.
	Events Recorder
	Node   func() kind.Object
	// Disk returns the capacity and available bytes of the filesystem at a path; nil means statfs.
	Disk func(path string) (capacity, available int64, err error)
	Log  *slog.Logger

	mu    sync.Mutex
	began time.Time
	usage map[string]*usageRecord
}

// usageRecord is when an image was first detected and last used.
type usageRecord struct {
	firstDetected, lastUsed time.Time
}

// candidate is an image that could be removed.
type candidate struct {
	id   string
	size int64
	usageRecord
}

// Run collects garbage periodically until ctx is done, starting when the runtime responds.
func (c *Collector) Run(ctx context.Context) error {
	for _, err := c.Store.ListImages(ctx); err != nil; _, err = c.Store.ListImages(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	ticker := time.NewTicker(collectPeriod)
	defer ticker.Stop()
	for {
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error("image garbage collection failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Collect removes images according to the policy once.
func (c *Collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.began.IsZero() {
		c.began = now
	}
	unused, err := c.unused(ctx, now)
	if err != nil {
		return err
	}
	// Usage is only known since this process started.
	if c.Policy.MaxAge > 0 && now.Sub(c.began) > c.Policy.MaxAge {
		if unused, err = c.removeOld(ctx, unused, now); err != nil {
			return err
		}
	}
	capacity, available, err := c.disk(ctx)
	if err != nil {
		return err
	}
	used := 100 - int(available*100/capacity)
	if used < c.Policy.HighPercent {
		return nil
	}
	need := capacity*int64(100-c.Policy.LowPercent)/100 - available
	c.Log.Info("disk usage on image filesystem is over the high threshold, removing unused images", "usagePercent", used, "highThresholdPercent", c.Policy.HighPercent, "bytes", need)
	freed, err := c.freeSpace(ctx, unused, need, now)
	if err != nil {
		return fmt.Errorf("wanted to free %d bytes, but freed %d bytes space with errors in image deletion: %w", need, freed, err)
	}
	if freed < need {
		message := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", used, formatBytes(capacity), freed)
		c.event("FreeDiskSpaceFailed", message)
		return errors.New(message)
	}
	return nil
}

// DeleteUnused removes all unused images. Eviction calls it before it evicts pods.
func (c *Collector) DeleteUnused(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	unused, err := c.unused(ctx, now)
	if err != nil {
		return err
	}
	_, err = c.freeSpace(ctx, unused, math.MaxInt64, now)
	return err
}

// unused returns the unused images, least recently used first. The caller holds mu.
func (c *Collector) unused(ctx context.Context, now time.Time) ([]candidate, error) {
	list, err := c.Store.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	inUse, err := c.inUse(ctx)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]*usageRecord, len(list))
	var unused []candidate
	for _, image := range list {
		s := c.usage[image.ID]
		if s == nil {
			s = &usageRecord{firstDetected: now}
		}
		seen[image.ID] = s
		if inUse[image.ID] {
			s.lastUsed = now
		} else if !image.Pinned {
			unused = append(unused, candidate{image.ID, int64(image.Size), *s})
		}
	}
	c.usage = seen
	if c.Images != nil {
		if err := c.Images.records.forget(func(ref string) bool { return seen[ref] != nil }); err != nil {
			c.Log.Error("failed to drop records of removed images", "error", err)
		}
	}
	slices.SortFunc(unused, func(a, b candidate) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), a.firstDetected.Compare(b.firstDetected), cmp.Compare(a.id, b.id))
	})
	return unused, nil
}

// inUse returns the IDs of the images of all containers, and of the images they mount.
func (c *Collector) inUse(ctx context.Context) (map[string]bool, error) {
	containers, err := c.Store.ListContainers(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	ids := map[string]bool{}
	for _, container := range containers {
		ids[container.ImageID] = true
		ids[container.ImageRef] = true
		ids[container.Image] = true
		status, err := c.Store.ContainerStatus(ctx, container.ID)
		if cri.NotFound(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("get container status: %w", err)
		}
		for _, image := range status.MountedImages {
			ids[image] = true
		}
	}
	return ids, nil
}

// removeOld removes images that were unused for longer than MaxAge and returns the others.
func (c *Collector) removeOld(ctx context.Context, unused []candidate, now time.Time) ([]candidate, error) {
	var left []candidate
	var failures []error
	for _, image := range unused {
		if now.Sub(image.lastUsed) <= c.Policy.MaxAge {
			left = append(left, image)
		} else if err := c.remove(ctx, image); err != nil {
			failures = append(failures, err)
			left = append(left, image)
		}
	}
	if err := errors.Join(failures...); err != nil {
		return left, fmt.Errorf("wanted to free images older than %v, encountered errors in image deletion: %w", c.Policy.MaxAge, err)
	}
	return left, nil
}

// freeSpace removes images until the needed bytes are freed. Images younger than MinAge are kept, because they may be about to be used.
func (c *Collector) freeSpace(ctx context.Context, unused []candidate, need int64, now time.Time) (freed int64, err error) {
	var failures []error
	for _, image := range unused {
		if freed >= need {
			break
		}
		if now.Sub(image.firstDetected) < c.Policy.MinAge {
			continue
		}
		if err := c.remove(ctx, image); err != nil {
			failures = append(failures, err)
			continue
		}
		freed += image.size
	}
	return freed, errors.Join(failures...)
}

func (c *Collector) remove(ctx context.Context, image candidate) error {
	c.Log.Info("removing unused image", "id", image.id, "bytes", image.size)
	if err := c.Store.RemoveImage(ctx, image.id); err != nil {
		return err
	}
	delete(c.usage, image.id)
	return nil
}

// disk returns the capacity and available bytes of the image filesystem.
func (c *Collector) disk(ctx context.Context) (capacity, available int64, err error) {
	mountpoint, err := c.Store.ImageFilesystem(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("get image filesystem: %w", err)
	}
	if mountpoint == "" {
		return 0, 0, errors.New("container runtime does not report its image filesystem")
	}
	stat := c.Disk
	if stat == nil {
		stat = statfs
	}
	capacity, available, err = stat(mountpoint)
	if err != nil {
		return 0, 0, err
	}
	if capacity == 0 {
		err := errors.New("invalid capacity 0 on image filesystem")
		c.event("InvalidDiskCapacity", err.Error())
		return 0, 0, err
	}
	return capacity, min(available, capacity), nil
}

func statfs(path string) (capacity, available int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize, nil
}

func (c *Collector) event(reason, message string) {
	if c.Events != nil && c.Node != nil {
		c.Events.EventWithFieldPath(c.Node(), "", corev1.EventTypeWarning, reason, message)
	}
}

// formatBytes formats a size with a binary unit.
func formatBytes(bytes int64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	size, unit := float64(bytes)/1024, 0
	for size >= 1024 && unit < 3 {
		size, unit = size/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", size, [...]string{"KiB", "MiB", "GiB", "TiB"}[unit])
}
