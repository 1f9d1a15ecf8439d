package kubelet

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
)

const (
	// housekeepPeriod is the period of removing orphaned pods and dead containers.
	housekeepPeriod = time.Minute
	// logPeriod is the period of log rotation.
	logPeriod = 10 * time.Second
	// orphanGrace is the grace period in seconds of orphaned containers.
	orphanGrace = int64(1)
)

// uidOf is the pod's UID in the labels of a sandbox or container.
func uidOf(labels map[string]string) types.UID { return types.UID(labels[cri.LabelPodUID]) }

// housekeep removes orphaned pods and dead containers: first when all sources have been listed, and then periodically.
func (k *Kubelet) housekeep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if !k.allSourcesListed() {
			timer.Reset(50 * time.Millisecond)
			continue
		}
		k.removeOrphans(ctx)
		k.removeDead(ctx)
		timer.Reset(housekeepPeriod)
	}
}

// allSourcesListed reports whether all sources have listed their pods.
func (k *Kubelet) allSourcesListed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apiListed && k.staticListed
}

// has reports whether a pod is one of this node.
func (k *Kubelet) has(uid types.UID) bool {
	if _, ok := k.sandboxCheck.podWithUID(uid); ok {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers[uid] != nil
}

// removeOrphans terminates and removes pods that have containers, volumes, cgroups, logs or a mirror pod but no worker. Before all sources
// have been listed nothing is known to be orphaned.
func (k *Kubelet) removeOrphans(ctx context.Context) {
	if !k.allSourcesListed() {
		return
	}
	orphans := map[types.UID]bool{}
	add := func(uid types.UID) {
		if uid != "" && !k.has(uid) {
			orphans[uid] = true
		}
	}
	sandboxes, err := k.Runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return // the runtime is unavailable; retried after housekeepPeriod
	}
	containers, err := k.Runtime.ListContainers(ctx, "")
	if err != nil {
		return
	}
	for _, s := range sandboxes {
		add(uidOf(s.Labels))
	}
	for _, c := range containers {
		add(uidOf(c.Labels))
	}
	for _, list := range []func() ([]types.UID, error){k.Volumes.Pods, k.Cgroups.Pods} {
		uids, err := list()
		if err != nil {
			k.Log.Warn("failed to list orphaned pods", "error", err)
		}
		for _, uid := range uids {
			add(uid)
		}
	}
	var removing sync.WaitGroup
	for uid := range orphans {
		removing.Go(func() {
			if err := k.removeOrphan(ctx, uid); err != nil && ctx.Err() == nil {
				k.Log.Warn("failed to remove orphaned pod", "uid", uid, "error", err)
			}
		})
	}
	removing.Wait()
	k.removeOrphanLogs()
	k.removeDeadLogLinks(ctx)
	k.deleteOrphanedMirrors(ctx)
}

func (k *Kubelet) removeOrphan(ctx context.Context, uid types.UID) error {
	runtime, err := k.Runtime.ReadPod(ctx, uid)
	if err != nil {
		return err
	}
	grace := orphanGrace
	if err := k.killPod(ctx, nil, runtime, &grace); err != nil {
		return err
	}
	if err := k.removeContainers(ctx, uid); err != nil {
		return err
	}
	if err := k.Volumes.Unmount(ctx, uid); err != nil {
		return wrapped("unmount volumes", err)
	}
	if err := k.Cgroups.Remove(uid); err != nil {
		return wrapped("remove cgroup", err)
	}
	return wrapped("remove directory", k.Volumes.RemoveDir(ctx, uid))
}

// removeOrphanLogs removes the logs of pods without a worker.
func (k *Kubelet) removeOrphanLogs() {
	dirs, err := os.ReadDir(k.LogsDir())
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if i := strings.LastIndexByte(dir.Name(), '_'); i >= 0 && !k.has(types.UID(dir.Name()[i+1:])) {
			_ = os.RemoveAll(filepath.Join(k.LogsDir(), dir.Name())) // retried by the next housekeeping
		}
	}
}

// removeDeadLogLinks removes the links to logs of containers that do not exist any more.
func (k *Kubelet) removeDeadLogLinks(ctx context.Context) {
	containers, err := k.Runtime.ListContainers(ctx, "")
	if err != nil {
		return // retried by the next housekeeping
	}
	exists := make(map[string]bool, len(containers))
	for _, c := range containers {
		exists[c.ID] = true
	}
	if err := RemoveDeadLogLinks(k.LogsDir(), func(id string) bool { return exists[id] }); err != nil {
		k.Log.Warn("failed to remove links to logs", "error", err)
	}
}

// removeContainers removes all containers and sandboxes of a terminated pod.
func (k *Kubelet) removeContainers(ctx context.Context, uid types.UID) error {
	containers, err := k.Runtime.ListContainers(ctx, uid)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if err := k.removeContainer(ctx, c.ID); err != nil {
			return wrapped("remove container", err)
		}
	}
	sandboxes, err := k.Runtime.ListPodSandboxes(ctx, uid)
	if err != nil {
		return err
	}
	for _, s := range sandboxes {
		if err := k.Runtime.RemovePodSandbox(ctx, s.ID); err != nil && !cri.NotFound(err) {
			return wrapped("remove sandbox", err)
		}
	}
	return nil
}

// removeDead removes dead containers and sandboxes of pods that have a worker. It keeps the newest dead container of each name, the newest
// sandbox, and sandboxes that have containers.
func (k *Kubelet) removeDead(ctx context.Context) {
	containers, err := k.Runtime.ListContainers(ctx, "")
	if err != nil {
		return
	}
	type key struct {
		uid  types.UID
		name string
	}
	newest := map[key]*cri.Container{}
	for _, c := range containers {
		id := key{uidOf(c.Labels), c.Labels[cri.LabelContainerName]}
		if c.State == cri.Exited && (newest[id] == nil || c.CompareAge(newest[id]) > 0) {
			newest[id] = c
		}
	}
	inUse := map[string]bool{}
	for _, c := range containers {
		id := key{uidOf(c.Labels), c.Labels[cri.LabelContainerName]}
		if c.State == cri.Exited && newest[id] != c && k.has(id.uid) && id.uid != "" {
			k.removeWithLog(ctx, c.ID)
			continue
		}
		inUse[c.SandboxID] = true
	}
	sandboxes, err := k.Runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return
	}
	latest := map[types.UID]*cri.Sandbox{}
	for _, s := range sandboxes {
		if uid := uidOf(s.Labels); latest[uid] == nil || s.CompareAge(latest[uid]) > 0 {
			latest[uid] = s
		}
	}
	for _, s := range sandboxes {
		uid := uidOf(s.Labels)
		if uid != "" && !s.Ready && !inUse[s.ID] && s.CompareAge(latest[uid]) < 0 {
			_ = k.Runtime.RemovePodSandbox(ctx, s.ID) // retried by the next housekeeping
		}
	}
}

// removeWithLog removes a dead container and its logs, rotated ones included.
func (k *Kubelet) removeWithLog(ctx context.Context, id string) {
	if c, err := k.Runtime.ContainerStatus(ctx, id); err == nil && c.LogPath != "" {
		logs, _ := filepath.Glob(c.LogPath + "*")
		for _, log := range logs {
			_ = os.Remove(log)
		}
	}
	_ = k.removeContainer(ctx, id) // retried by the next housekeeping
}

// removeContainer removes a container, and what is known about its end.
func (k *Kubelet) removeContainer(ctx context.Context, id string) error {
	if err := k.Runtime.RemoveContainer(ctx, id); err != nil && !cri.NotFound(err) {
		return err
	}
	k.killing.Delete(id)
	return nil
}

// rotateLogs rotates container logs until ctx is done.
func (k *Kubelet) rotateLogs(ctx context.Context) error {
	if k.LogMaxSize <= 0 {
		return nil
	}
	logs := &cri.Logs{Runtime: k.Runtime, MaxSize: k.LogMaxSize, MaxFiles: k.LogMaxFiles}
	ticker := time.NewTicker(cmp.Or(k.LogMonitorInterval, logPeriod))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := logs.Rotate(ctx); err != nil && ctx.Err() == nil {
				k.Log.Warn("failed to rotate container logs", "error", err)
			}
		}
	}
}

// FreeContainers removes dead containers and orphaned pods.
func (k *Kubelet) FreeContainers(ctx context.Context) {
	k.removeOrphans(ctx)
	k.removeDead(ctx)
}
