package schedulertest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
)

// RandomObjects makes nodes and pods of many kinds.
type RandomObjects struct {
	Random *rand.Rand
	made   int
}

func NewRandomObjects(seed uint64) *RandomObjects {
	return &RandomObjects{Random: rand.New(rand.NewPCG(seed, 1))}
}

func (w *RandomObjects) OneIn(n int) bool { return w.Random.IntN(n) == 0 }

func Pick[T any](w *RandomObjects, all ...T) T { return all[w.Random.IntN(len(all))] }

func (w *RandomObjects) RandomNode(name string) *corev1.Node {
	n := TestNode(name, NodeHas(corev1.ResourceCPU, Pick(w, "1", "2", "4")), NodeHas(corev1.ResourcePods, Pick(w, "3", "10")))
	if !w.OneIn(5) {
		n.Labels[corev1.LabelTopologyZone] = Pick(w, "z1", "z2", "z3")
	}
	if w.OneIn(3) {
		n.Labels["disk"] = Pick(w, "ssd", "hdd")
	}
	if w.OneIn(6) {
		Taint("dedicated", Pick(w, "x", "y"), Pick(w, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule))(n)
	}
	if w.OneIn(10) {
		Cordoned(n)
	}
	if w.OneIn(4) {
		NodeImage("pause:latest", 900<<20)(n)
	}
	if w.OneIn(5) {
		NodeHas("example.com/gpu", "2")(n)
	}
	return n
}

func (w *RandomObjects) RandomPod() *corev1.Pod {
	w.made++
	color := Pick(w, "green", "blue", "red")
	options := []PodOption{Labelled("color", color), Namespace(Pick(w, "default", "other")), Priority(int32(w.Random.IntN(3)))}
	maybe := func(n int, o PodOption) {
		if w.OneIn(n) {
			options = append(options, o)
		}
	}
	maybe(2, RequestingCPU(Pick(w, "100m", "500m", "1")))
	maybe(3, RequestingMemory(Pick(w, "1Gi", "8Gi")))
	maybe(8, Requesting("example.com/gpu", "1"))
	maybe(8, Selecting("disk", "ssd"))
	maybe(8, Tolerating(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists}))
	maybe(10, Port(int32(80+w.Random.IntN(2)), "", "TCP"))
	maybe(6, WithAntiAffinity(Pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), "color", Pick(w, "green", "blue")))
	maybe(8, WithAffinity(Pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), "color", color))
	maybe(8, WithPreferredAffinity(int32(1+w.Random.IntN(9)), corev1.LabelTopologyZone, "color", "red"))
	maybe(6, Spread(Pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), int32(1+w.Random.IntN(2)), corev1.DoNotSchedule, "color="+color))
	maybe(6, Spread(Pick(w, corev1.LabelHostname, corev1.LabelTopologyZone), 1, corev1.ScheduleAnyway, "color="+color))
	maybe(12, RequiresNodes(Named("n1"), Named("n2")))
	return TestPod(fmt.Sprint("pod-", w.made), options...)
}
