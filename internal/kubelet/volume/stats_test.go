package volume

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// addMounted adds a pod with one volume that is mounted.
func addMounted(v *Volumes, uid types.UID, m *mounted) *corev1.Pod {
	pod := testPod(corev1.Volume{Name: "v"})
	pod.UID = uid
	v.setMounted(v.state(uid), "v", m)
	return pod
}

// TestStatsOfHungVolumes: volumes whose servers do not respond keep a bounded number of goroutines, and neither those that respond nor requests waiting.
func TestStatsOfHungVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := testVolumes(t.TempDir(), nil)
		v.StatsPeriod = time.Second
		hung := make(chan struct{})
		inProgress, most := 0, 0
		v.usageOf = func(_ context.Context, m *mounted) (Usage, error) {
			if m.path != "hung" {
				return Usage{Used: 1}, nil
			}
			v.mu.Lock()
			inProgress++
			most = max(most, inProgress)
			v.mu.Unlock()
			<-hung
			v.mu.Lock()
			inProgress--
			v.mu.Unlock()
			return Usage{Used: 2}, nil
		}
		counts := func() (now, atMost int) {
			v.mu.Lock()
			defer v.mu.Unlock()
			return inProgress, most
		}
		var pods []*corev1.Pod
		for i := range maxSlow {
			pods = append(pods, addMounted(v, types.UID(fmt.Sprint("hung-", i)), &mounted{plugin: nfsPlugin, path: "hung"}))
		}
		pods = append(pods, addMounted(v, "share", &mounted{plugin: nfsPlugin, path: "share"}), addMounted(v, "scratch", &mounted{plugin: emptyDirPlugin, path: "scratch"}))
		first := v.Stats(t.Context(), pods)
		if len(first) != 1 || len(first["scratch"]) != 1 {
			t.Errorf("measured %v, want the volume on the node's disk", first)
		}
		if _, most := counts(); most != maxMeasured {
			t.Errorf("%d volumes are measured at the same time, want %d", most, maxMeasured)
		}
		time.Sleep(maxSlow / maxMeasured * slowAfter)
		before := time.Now()
		if all := v.Stats(t.Context(), pods); len(all["share"]) != 1 {
			t.Errorf("measured %v, want the share whose server responds", all)
		}
		if took := time.Since(before); took > 0 {
			t.Errorf("a request has waited %s for servers that did not respond before", took)
		}
		for i := range 10 * maxSlow {
			pods = append(pods, addMounted(v, types.UID(fmt.Sprint("more-", i)), &mounted{plugin: nfsPlugin, path: "hung"}))
		}
		for range 100 {
			v.Stats(t.Context(), pods)
			time.Sleep(slowAfter)
		}
		if _, most := counts(); most != maxSlow+maxMeasured {
			t.Errorf("%d volumes are measured at the same time, want %d", most, maxSlow+maxMeasured)
		}
		if all := v.Stats(t.Context(), pods); len(all) != 2 {
			t.Errorf("measured %d volumes, want 2", len(all))
		}
		close(hung)
		synctest.Wait()
		all := v.Stats(t.Context(), pods)
		if now, _ := counts(); len(all) != len(pods) || now != 0 {
			t.Errorf("measured %d volumes of %d after the servers responded, %d in progress", len(all), len(pods), now)
		}
	})
}
