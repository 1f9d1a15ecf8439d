package workload

import (
	"testing"

	"skiff/test/world"
)

// inWorld runs a test in a world with some nodes that play pods.
func inWorld(t *testing.T, nodes int, test func(w *world.World)) {
	t.Helper()
	world.In(t, func(w *world.World) {
		w.Play(nodes)
		test(w)
	})
}

// seeds runs a test in several such worlds.
func seeds(t *testing.T, n, nodes int, test func(w *world.World)) {
	t.Helper()
	world.Seeds(t, n, func(w *world.World) {
		w.Play(nodes)
		test(w)
	})
}
