package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// fakeCache is a fake informer cache of pods.
type fakeCache struct {
	revision string
	pods     map[string]*corev1.Pod
	live     func() (kind.Object, error)
	reads    int
}

func (c *fakeCache) Cached(obj kind.Object) (client.Cached, bool) {
	if _, ok := obj.(*corev1.Pod); !ok {
		return client.Cached{}, false
	}
	seen := client.Cached{ResourceVersion: c.revision}
	if p := c.pods[obj.GetName()]; p != nil {
		seen.Object = p
	}
	return seen, true
}

func (c *fakeCache) GetLive(context.Context, kind.Object) (kind.Object, error) {
	c.reads++
	return c.live()
}

func at(revision, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid, ResourceVersion: revision}}
}

func TestPendingWrites(t *testing.T) {
	now := metav1.Now()
	leaving := at("7", "a", "1")
	leaving.DeletionTimestamp = &now
	for _, test := range []struct {
		what  string
		note  func(l *pendingWrites, key Key)
		glass fakeCache
		ready bool
	}{
		{"nothing written", func(*pendingWrites, Key) {}, fakeCache{}, true},
		{"written, informer empty", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, fakeCache{}, false},
		{"written, informer behind", func(l *pendingWrites, k Key) { l.recordWrite(k, at("10", "a", "1")) }, fakeCache{revision: "9"}, false},
		{"written, informer there", func(l *pendingWrites, k Key) { l.recordWrite(k, at("10", "a", "1")) }, fakeCache{revision: "10"}, true},
		{"created and already deleted again", func(l *pendingWrites, k Key) { l.recordWrite(k, at("10", "a", "1")) }, fakeCache{revision: "12"}, true},
		{"the object is newer than the informer says", func(l *pendingWrites, k Key) { l.recordWrite(k, at("10", "a", "1")) },
			fakeCache{revision: "9", pods: map[string]*corev1.Pod{"a": at("11", "a", "1")}}, true},
		{"the newest write counts", func(l *pendingWrites, k Key) {
			l.recordWrite(k, at("12", "a", "1"))
			l.recordWrite(k, at("10", "b", "1"))
		}, fakeCache{revision: "11"}, false},
		{"a type nobody watches", func(l *pendingWrites, k Key) {
			l.recordWrite(k, &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99"}})
			l.recordDelete(k, &corev1.Node{})
		}, fakeCache{}, true},
		{"deleted, still shown", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, fakeCache{revision: "9", pods: map[string]*corev1.Pod{"a": at("5", "a", "1")}}, false},
		{"deleted and gone", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, fakeCache{revision: "9"}, true},
		{"deleted and replaced", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, fakeCache{pods: map[string]*corev1.Pod{"a": at("5", "a", "2")}}, true},
		{"deleted and leaving", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, fakeCache{pods: map[string]*corev1.Pod{"a": leaving}}, true},
		{"another key's write", func(l *pendingWrites, k Key) { l.recordWrite(Key{Name: "other"}, at("5", "a", "1")) }, fakeCache{}, true},
	} {
		// Record first, then let the cache catch up.
		dark := &fakeCache{pods: map[string]*corev1.Pod{"a": at("1", "a", "1")}}
		l := newPendingWrites(dark, dark)
		key := Key{Namespace: "default", Name: "web"}
		test.note(l, key)
		*dark = test.glass
		if ready, _ := l.observed(t.Context(), key); ready != test.ready {
			t.Errorf("%s: ready %v, want %v", test.what, ready, test.ready)
		}
		if ready, _ := l.observed(t.Context(), Key{Name: "third"}); !ready {
			t.Errorf("%s: a key of which nothing was written is not ready", test.what)
		}
	}
}

// TestPendingWritesNeverHang stops the informer. A key waits as long as the server still has the object, and no longer.
func TestPendingWritesNeverHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var live kind.Object = at("5", "a", "1")
		var failure error
		g := &fakeCache{live: func() (kind.Object, error) { return live, failure }}
		l := newPendingWrites(g, g)
		key := Key{Name: "web"}
		l.recordWrite(key, at("5", "a", "1"))
		wait := func(d time.Duration) (ready bool) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				ok, pause := l.observed(t.Context(), key)
				if ok {
					return true
				}
				if pause < minWait || pause > maxWait {
					t.Fatalf("a pause of %v", pause)
				}
				time.Sleep(pause)
			}
			return false
		}
		if wait(time.Minute) {
			t.Error("ready, while the server still has what the informer lacks")
		}
		if g.reads < 4 || g.reads > 7 {
			t.Errorf("asked the server %d times in a minute", g.reads)
		}
		failure = errors.New("unreachable")
		if wait(time.Minute) {
			t.Error("ready, though the server could not be asked")
		}
		live, failure = nil, apierrors.NewNotFound(schema.GroupResource{}, "a")
		if !wait(time.Minute) {
			t.Error("still waiting for an object that is gone")
		}
	})
}
