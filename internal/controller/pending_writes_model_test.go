package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

func TestNewer(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"1", "", true}, {"", "", false}, {"", "1", false}, {"2", "1", true}, {"1", "2", false}, {"1", "1", false}, {"10", "9", true}, {"9", "10", false},
		{"18446744073709551616", "18446744073709551615", true}, {"x", "1", false}, {"1", "x", false},
	} {
		if got := newer(test.a, test.b); got != test.want {
			t.Errorf("%q is newer than %q: %v", test.a, test.b, got)
		}
	}
}

// TestPendingWritesDelay: the delay of a waiting key doubles, and is reset once its writes are observed.
func TestPendingWritesDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &fakeCache{revision: "1", live: func() (kind.Object, error) { return at("5", "a", "1"), nil }}
		l := newPendingWrites(g, g)
		key := Key{Name: "web"}
		l.recordWrite(key, at("5", "a", "1"))
		want := []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 500, 500, 500}
		for i, ms := range want {
			if ready, wait := l.observed(t.Context(), key); ready || wait != ms*time.Millisecond {
				t.Errorf("look %d: ready %v, again after %v, want %vms", i, ready, wait, int(ms))
			}
		}
		g.revision = "5"
		if ready, wait := l.observed(t.Context(), key); !ready || wait != 0 {
			t.Errorf("ready %v, after %v", ready, wait)
		}
		if len(l.byKey) != 0 {
			t.Errorf("%d keys are remembered for nothing", len(l.byKey))
		}
		l.recordWrite(key, at("9", "a", "1"))
		if _, wait := l.observed(t.Context(), key); wait != minWait {
			t.Errorf("the next wait begins with %v", wait)
		}
	})
}

// TestPendingWritesRecheck: after a while the server is asked once for each pending object, and only those that are gone are
// dropped.
func TestPendingWritesRecheck(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{}, "a")
	for _, test := range []struct {
		what  string
		note  func(*pendingWrites, Key)
		live  kind.Object
		err   error
		ready bool
	}{
		{"a write, the object is there", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, at("5", "a", "1"), nil, false},
		{"a write, the object is there and newer", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, at("9", "a", "1"), nil, false},
		{"a write, the object is gone", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, nil, gone, true},
		{"a write, the object is another", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, at("9", "a", "2"), nil, true},
		{"a write, nobody answers", func(l *pendingWrites, k Key) { l.recordWrite(k, at("5", "a", "1")) }, nil, apierrors.NewServiceUnavailable("busy"), false},
		{"a deletion, the object is there", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, at("5", "a", "1"), nil, false},
		{"a deletion, the object is gone", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, nil, gone, true},
		{"a deletion, the object is another", func(l *pendingWrites, k Key) { l.recordDelete(k, at("5", "a", "1")) }, at("9", "a", "2"), nil, true},
		{"both, the object is gone", func(l *pendingWrites, k Key) {
			l.recordWrite(k, at("5", "a", "1"))
			l.recordDelete(k, at("5", "a", "1"))
		}, nil, gone, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := &fakeCache{revision: "1", pods: map[string]*corev1.Pod{"a": at("1", "a", "1")}, live: func() (kind.Object, error) { return test.live, test.err }}
			l := newPendingWrites(g, g)
			key := Key{Name: "web"}
			test.note(l, key)
			time.Sleep(recheckAfter - 1)
			if ready, _ := l.observed(t.Context(), key); ready || g.reads != 0 {
				t.Errorf("%s: ready %v after %d questions, before any doubt", test.what, ready, g.reads)
			}
			time.Sleep(time.Nanosecond)
			if ready, _ := l.observed(t.Context(), key); ready != test.ready || g.reads == 0 {
				t.Errorf("%s: ready %v after %d questions", test.what, ready, g.reads)
			}
			asked := g.reads
			l.observed(t.Context(), key)
			if g.reads != asked {
				t.Errorf("%s: the server is asked again at once", test.what)
			}
		})
	}
}

// TestPendingWritesModel writes and deletes at random while an informer lags at random. A key is ready exactly when all its writes
// have been observed.
func TestPendingWritesModel(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		revision := 10
		g := &fakeCache{revision: "10", pods: map[string]*corev1.Pod{}, live: func() (kind.Object, error) { return nil, apierrors.NewServiceUnavailable("") }}
		l := newPendingWrites(g, g)
		type deed struct {
			revision int
			object   *corev1.Pod
			deleted  bool
		}
		server := map[string]*corev1.Pod{} // the state of the server
		var history []deed                 // pending watch events, in order
		waiting := map[Key][]deed{}
		seen := 10
		for range 60 {
			key := Key{Name: fmt.Sprint("k", random.IntN(3))}
			name := fmt.Sprint("p", random.IntN(4))
			switch random.IntN(4) {
			case 0: // the informer receives an event
				if i := slices.IndexFunc(history, func(d deed) bool { return d.revision > seen }); i >= 0 {
					d := history[i]
					seen, g.revision = d.revision, fmt.Sprint(d.revision)
					if g.pods[d.object.Name] = d.object; d.deleted {
						delete(g.pods, d.object.Name)
					}
				}
			case 1, 2: // a write
				revision++
				uid := types.UID(fmt.Sprint("uid-", revision))
				if was := server[name]; was != nil {
					uid = was.UID
				}
				obj := at(fmt.Sprint(revision), name, uid)
				server[name] = obj
				d := deed{revision: revision, object: obj}
				history, waiting[key] = append(history, d), append(waiting[key], d)
				l.recordWrite(key, obj)
			case 3: // a deletion
				was := server[name]
				if was == nil {
					continue
				}
				revision++
				delete(server, name)
				d := deed{revision: revision, object: was, deleted: true}
				history, waiting[key] = append(history, d), append(waiting[key], d)
				l.recordDelete(key, was)
			}
			for k := range waiting {
				open := slices.ContainsFunc(waiting[k], func(d deed) bool {
					if !d.deleted {
						return d.revision > seen
					}
					shown := g.pods[d.object.Name]
					return shown != nil && shown.UID == d.object.UID
				})
				ready, _ := l.observed(t.Context(), k)
				// A deletion of an object that is not in the cache yet is not waited for; its creation is.
				if ready && open && slices.ContainsFunc(waiting[k], func(d deed) bool { return !d.deleted && d.revision > seen }) || !ready && !open {
					t.Fatalf("seed %d: key %s is ready: %v, at revision %d of %d", seed, k.Name, ready, seen, revision)
				}
				if ready {
					delete(waiting, k)
				}
			}
		}
	}
}

// TestPendingWritesIgnoreTypesWithoutInformer: objects of a type without an informer are never waited for.
func TestPendingWritesIgnoreTypesWithoutInformer(t *testing.T) {
	g := &fakeCache{}
	l := newPendingWrites(g, g)
	key := Key{Name: "web"}
	l.recordWrite(key, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "99"}})
	l.recordDelete(key, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	if ready, _ := l.observed(t.Context(), key); !ready || len(l.byKey) != 0 {
		t.Errorf("ready %v, %d keys", ready, len(l.byKey))
	}
	// A write that is observed already is not recorded.
	g.revision, g.pods = "7", map[string]*corev1.Pod{}
	l.recordWrite(key, at("7", "a", "1"))
	l.recordDelete(key, at("7", "b", "1"))
	if len(l.byKey) != 0 {
		t.Errorf("%d keys", len(l.byKey))
	}
}
