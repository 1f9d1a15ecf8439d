package binding

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

func planned(plan *snapshot.PodVolumes) string {
	var words []string
	for _, b := range plan.StaticBindings {
		words = append(words, b.Claim.Name+"="+b.Volume.Name)
	}
	for _, p := range plan.DynamicProvisions {
		word := p.Claim.Name + "+"
		if p.Capacity != nil {
			word += p.Capacity.Name
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func planFor(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, node string) (snapshot.PodVolumes, []string) {
	t.Helper()
	claims, err := s.Volumes.PodVolumeClaims(pod)
	if err != nil {
		t.Fatal(err)
	}
	n := s.NodeNumbers[node]
	plan, reasons, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[n].Node, s.NodeInfos[n].CSINode)
	if err != nil {
		t.Fatal(err)
	}
	return plan, reasons
}

// newTestBinder is a Binder without a scheduling loop: writes in the background are done at once.
func newTestBinder(cluster *snapshot.Snapshot, writer Writer) *Binder {
	var mu sync.Mutex
	return New(Config{
		Writer: writer, Log: slog.New(slog.DiscardHandler),
		WithSnapshot: func(do func(*snapshot.Snapshot)) {
			mu.Lock()
			defer mu.Unlock()
			do(cluster)
		},
		Background:       func(write func()) { write() },
		BindWithExtender: func(context.Context, *corev1.Pod, string) (bool, error) { return false, nil },
		Timed:            func(string, *plugins.Profile) func(error) { return func(error) {} },
		ClaimCreated:     func(*resourcev1.ResourceClaim, error) {},
		RecordEvent:      func(*plugins.Profile, *corev1.Pod, string, string, string) {},
	})
}
