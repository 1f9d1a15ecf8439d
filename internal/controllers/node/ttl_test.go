package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

// TestTTLSteps: the steps overlap, so what counts is where the size came from.
func TestTTLSteps(t *testing.T) {
	for _, sizes := range [][]struct{ size, want int }{
		{{0, 0}, {1, 0}, {90, 0}, {99, 0}, {100, 0}, {101, 15}, {100, 15}, {91, 15}, {90, 15}, {89, 0}, {100, 0}},
		{{101, 15}, {450, 15}, {500, 15}, {501, 30}, {500, 30}, {450, 30}, {449, 15}, {500, 15}},
		{{501, 30}, {1000, 30}, {1001, 60}, {900, 60}, {899, 30}, {1000, 30}},
		{{1001, 60}, {2000, 60}, {2001, 300}, {1800, 300}, {1799, 60}},
		{{2001, 300}, {100000, 300}, {10, 0}},
		{{600, 30}, {3000, 300}, {95, 15}, {50, 0}, {0, 0}},
	} {
		c := &ttl{}
		for i, s := range sizes {
			before := c.step
			if moved := c.resize(s.size - c.size); moved != (c.step != before) {
				t.Errorf("%v: to %d it moved %v", sizes, i, moved)
			}
			if got := ttlSteps[c.step].seconds; got != s.want {
				t.Errorf("%v: with %d nodes %d seconds, want %d", sizes, s.size, got, s.want)
			}
		}
	}
}

func TestTTLAnnotation(t *testing.T) {
	annotated := func(value string) *corev1.Node {
		return aNode("n", func(n *corev1.Node) {
			n.Annotations = map[string]string{corev1.ObjectTTLAnnotationKey: value, "other": "x"}
		})
	}
	for _, test := range []struct {
		what    string
		node    *corev1.Node
		seconds int
		want    string
	}{
		{"none", aNode("n"), 0, `patch Node n {"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}`},
		{"right", annotated("15"), 15, ""},
		{"zero is right", annotated("0"), 0, ""},
		{"another", annotated("0"), 15, `patch Node n {"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"15"}}}`},
		{"not a number", annotated("soon"), 300, `patch Node n {"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"300"}}}`},
		{"empty", annotated(""), 0, `patch Node n {"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}`},
	} {
		if got := words((&ttl{}).Reconcile(ttlView{node: test.node, seconds: test.seconds})); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, got, test.want)
		}
	}
}

// TestTTLInAWorld: when the cluster grows past a step, every node is reported, and when it shrinks, too.
func TestTTLInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(TTL)()
		told := func() map[string]int {
			w.Pass(time.Second)
			all := map[string]int{}
			for _, n := range world.List[*corev1.Node](w) {
				all[n.Annotations[corev1.ObjectTTLAnnotationKey]]++
			}
			return all
		}
		nodes := make([]*corev1.Node, 101)
		for i := range nodes {
			nodes[i] = world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
			if i == 99 {
				if got := told(); got["0"] != 100 {
					t.Errorf("of 100 nodes: %v", got)
				}
			}
		}
		if got := told(); got["15"] != 101 {
			t.Errorf("of 101 nodes: %v", got)
		}
		for _, n := range nodes[:12] {
			w.Remove(n)
		}
		if got := told(); got["0"] != 89 {
			t.Errorf("of 89 nodes: %v", got)
		}
		world.Edit(w, "", "n50", func(n *corev1.Node) { delete(n.Annotations, corev1.ObjectTTLAnnotationKey) })
		if got := told(); got["0"] != 89 {
			t.Errorf("somebody took it away: %v", got)
		}
	})
}
