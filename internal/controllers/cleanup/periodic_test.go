package cleanup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/test/world"
)

// TestPeriodicWork begins at once, comes again when the period is over, and sooner when it failed.
func TestPeriodicWork(t *testing.T) {
	for _, test := range []struct {
		what  string
		fails int // so many times
		pass  time.Duration
		want  int
	}{
		{"at once", 0, time.Second, 1},
		{"not before the period is over", 0, 59 * time.Second, 1},
		{"when it is over", 0, time.Minute + time.Second, 2},
		{"again and again", 0, 5*time.Minute + time.Second, 6},
		{"sooner when it fails", 3, time.Second, 4},
		{"a period after it succeeded", 3, time.Minute + 2*time.Second, 5},
	} {
		world.In(t, func(w *world.World) {
			times := 0
			defer w.Run(controller.Definition{Name: "periodic", New: func(s *controller.Setup) (controller.Syncer, error) {
				return periodically(s, time.Minute, func(context.Context, controller.Key) error {
					if times++; times <= test.fails {
						return errors.New("not yet")
					}
					return nil
				}), nil
			}})()
			w.Pass(test.pass)
			if times != test.want {
				t.Errorf("%s: %d times, want %d", test.what, times, test.want)
			}
		})
	}
}

// TestWhatIsOverIsDeleted, the very object that was seen, and all of them although one cannot be.
func TestWhatIsOverIsDeleted(t *testing.T) {
	world.In(t, func(w *world.World) {
		for _, name := range []string{"old-1", "old-2", "old-held", "new"} {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if name == "old-held" {
				m.Finalizers = []string{"example.com/hold"}
			}
			world.Create(w, m)
		}
		var plan controller.Plan
		defer w.Run(controller.Definition{Name: "deleting", New: func(s *controller.Setup) (controller.Syncer, error) {
			objects := client.InformerFor[*corev1.ConfigMap](s.Informers)
			return periodically(s, time.Hour, func(ctx context.Context, key controller.Key) error {
				plan = deletingAll(objects, func(m *corev1.ConfigMap) bool { return strings.HasPrefix(m.Name, "old") })
				return s.Apply(ctx, key, plan)
			}), nil
		}})()
		w.Pass(time.Second)
		var left []string
		for _, m := range world.List[*corev1.ConfigMap](w) {
			left = append(left, m.Name)
		}
		if slices.Sort(left); !slices.Equal(left, []string{"new", "old-held"}) {
			t.Errorf("%v are left", left)
		}
		for _, write := range plan.Steps[0].Writes {
			if write.Verb != controller.Delete || *write.DeleteOptions.Preconditions.UID != write.Object.GetUID() || write.Object.GetUID() == "" {
				t.Errorf("%+v", write)
			}
		}
	})
}
