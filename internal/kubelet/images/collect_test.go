package images

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
)

// store has images of one unit each, and containers that use some.
type store struct {
	images     []*cri.Image
	containers []*cri.Container
	mounts     map[string][]string
	vanished   string // a container that is removed between the list and its status
	stuck      string // an image that cannot be removed
	removed    []string
}

const unit = 1 << 20

func images(ids ...string) []*cri.Image {
	var all []*cri.Image
	for _, id := range ids {
		all = append(all, &cri.Image{ID: id, Size: unit, Pinned: strings.HasPrefix(id, "pinned")})
	}
	return all
}

func (s *store) ListImages(context.Context) ([]*cri.Image, error) {
	return s.images, nil
}

func (s *store) RemoveImage(_ context.Context, id string) error {
	if id == s.stuck {
		return errors.New("stuck")
	}
	s.removed = append(s.removed, id)
	s.images = slices.DeleteFunc(s.images, func(i *cri.Image) bool { return i.ID == id })
	return nil
}

func (s *store) ImageFilesystem(context.Context) (string, error) {
	return "/images", nil
}

func (s *store) ListContainers(context.Context, types.UID) ([]*cri.Container, error) {
	return s.containers, nil
}

func (s *store) ContainerStatus(_ context.Context, id string) (*cri.Container, error) {
	if id == s.vanished {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &cri.Container{ID: id, MountedImages: s.mounts[id]}, nil
}

func TestCollect(t *testing.T) {
	container := func(image string) *cri.Container {
		return &cri.Container{ID: "c-" + image, ImageID: image}
	}
	for _, row := range []struct {
		name    string
		store   store
		free    int64 // percent of 100 units
		age     time.Duration
		policy  Policy
		removed []string
		err     string
	}{
		{name: "room enough", store: store{images: images("a", "b")}, free: 16, age: time.Hour},
		{name: "at the threshold: one in five goes until 20 % are free", store: store{images: images("a", "b", "c", "d", "e", "f")}, free: 15, age: time.Hour,
			removed: []string{"a", "b", "c", "d", "e"}},
		{name: "never one in use", store: store{images: images("a", "b"), containers: []*cri.Container{container("a")}}, free: 15, age: time.Hour,
			removed: []string{"b"}, err: "Insufficient free disk space on the node's image filesystem (85% of 100.0 MiB used). Failed to free sufficient space by deleting unused images (freed 1048576 bytes). " +
				"Investigate disk usage, as it could be used by active images, logs, volumes, or other data."},
		{name: "never one that is mounted", store: store{images: images("a", "b"), containers: []*cri.Container{container("x")},
			mounts: map[string][]string{"c-x": {"b"}}}, free: 15, age: time.Hour, removed: []string{"a"}, err: "Insufficient"},
		{name: "a container that vanishes does not keep the others' images", store: store{images: images("a", "b"), containers: []*cri.Container{container("x"), container("b")},
			vanished: "c-x"}, free: 15, age: time.Hour, removed: []string{"a"}, err: "Insufficient"},
		{name: "never one that is pinned", store: store{images: images("a", "pinned")}, free: 0, age: time.Hour, removed: []string{"a"}, err: "Insufficient"},
		{name: "never one that is new", store: store{images: images("a", "b")}, free: 15, age: time.Minute, err: "Insufficient"},
		{name: "one that cannot be removed does not keep the others", store: store{images: images("a", "b"), stuck: "a"}, free: 15, age: time.Hour, removed: []string{"b"},
			err: "wanted to free 5242880 bytes, but freed 1048576 bytes space with errors in image deletion: stuck"},
		{name: "too old, whatever the disk", store: store{images: images("a", "b"), containers: []*cri.Container{container("b")}}, free: 90, age: 2 * time.Hour,
			policy: Policy{HighPercent: 85, LowPercent: 80, MaxAge: time.Hour}, removed: []string{"a"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if row.policy == (Policy{}) {
					row.policy = DefaultPolicy()
				}
				told := &events{}
				free := int64(90)
				c := &Collector{
					Store: &row.store, Policy: row.policy, Log: discardLog, Events: told, Node: func() kind.Object { return &corev1.Node{} },
					Disk: func(path string) (int64, int64, error) {
						if path != "/images" {
							t.Errorf("looked at %s", path)
						}
						return 100 * unit, free * unit, nil
					},
				}
				// The first look sees the images; the second comes after some time.
				if err := c.Collect(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(row.age)
				free = row.free
				err := c.Collect(t.Context())
				if (err == nil) != (row.err == "") || err != nil && !strings.HasPrefix(err.Error(), row.err) {
					t.Errorf("error %v, want %q", err, row.err)
				}
				if !reflect.DeepEqual(row.store.removed, row.removed) {
					t.Errorf("removed %v, want %v", row.store.removed, row.removed)
				}
				lines := told.take()
				if failed := strings.HasPrefix(row.err, "Insufficient"); failed != (len(lines) == 1) || failed && !strings.HasPrefix(lines[0], "Warning FreeDiskSpaceFailed Insufficient") {
					t.Errorf("told %v", lines)
				}
			})
		})
	}
}

func TestLongestUnusedGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{images: images("a", "b", "c")}
		free := int64(90)
		c := &Collector{Store: s, Policy: DefaultPolicy(), Log: discardLog, Disk: func(string) (int64, int64, error) { return 100 * unit, free * unit, nil }}
		for _, user := range []string{"c", "a", "b"} { // the order in which they are used
			s.containers = []*cri.Container{{ID: "x", ImageID: user}}
			if err := c.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		s.containers = nil
		if err := c.DeleteUnused(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.removed); got != "[c a b]" {
			t.Errorf("removed in the order %s", got)
		}
	})
}

func TestPolicyIsChecked(t *testing.T) {
	for _, row := range []struct {
		policy Policy
		ok     bool
	}{
		{DefaultPolicy(), true}, {Policy{HighPercent: 100, LowPercent: 100}, true}, {Policy{HighPercent: 101}, false},
		{Policy{HighPercent: 50, LowPercent: -1}, false}, {Policy{HighPercent: 50, LowPercent: 60}, false},
	} {
		if err := row.policy.Validate(); (err == nil) != row.ok {
			t.Errorf("%+v: %v", row.policy, err)
		}
	}
}
