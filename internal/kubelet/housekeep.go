package kubelet

import (
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
	// housekeepPeriod is how often what was left behind is looked for.
	housekeepPeriod = time.Minute
	// logPeriod is how often the sizes of logs are looked at.
	logPeriod = 10 * time.Second
	// orphanGrace is what containers get whose pod nobody knows.
	orphanGrace = int64(1)
)

// uidOf is whose a sandbox or container is.
func uidOf(labels map[string]string) types.UID { return types.UID(labels[cri.LabelPodUID]) }

// housekeep removes what nobody needs any more: at the start, as soon as all sources have told their pods, and then from time to time.
func (k *Kubelet) housekeep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if !k.complete() {
			timer.Reset(50 * time.Millisecond)
			continue
		}
		k.removeOrphans(ctx)
		k.removeDead(ctx)
		timer.Reset(housekeepPeriod)
	}
}

// complete reports whether all sources have told their pods.
func (k *Kubelet) complete() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apiListed && k.staticListed
}

func (k *Kubelet) has(uid types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.workers[uid] != nil
}

// removeOrphans ends and removes the pods that the runtime, the volumes, the cgroups or the logs know, and nobody else.
func (k *Kubelet) removeOrphans(ctx context.Context) {
	orphans := map[types.UID]bool{}
	add := func(uid types.UID) {
		if uid != "" && !k.has(uid) {
			orphans[uid] = true
		}
	}
	sandboxes, err := k.Runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return // the runtime is away; the next time will do
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
			k.Log.Warn("leftovers of pods could not be listed", "error", err)
		}
		for _, uid := range uids {
			add(uid)
		}
	}
	var removing sync.WaitGroup
	for uid := range orphans {
		removing.Go(func() {
			if err := k.removeOrphan(ctx, uid); err != nil && ctx.Err() == nil {
				k.Log.Warn("the leftovers of a pod could not be removed", "uid", uid, "error", err)
			}
		})
	}
	removing.Wait()
	k.removeOrphanLogs()
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
	return os.RemoveAll(k.podDir(uid))
}

// removeOrphanLogs removes the logs of pods that are gone.
func (k *Kubelet) removeOrphanLogs() {
	dirs, err := os.ReadDir(k.LogsDir())
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if i := strings.LastIndexByte(dir.Name(), '_'); i >= 0 && !k.has(types.UID(dir.Name()[i+1:])) {
			_ = os.RemoveAll(filepath.Join(k.LogsDir(), dir.Name())) // what stays is tried again
		}
	}
}

// removeContainers removes all containers and sandboxes of a pod, which have ended.
func (k *Kubelet) removeContainers(ctx context.Context, uid types.UID) error {
	containers, err := k.Runtime.ListContainers(ctx, uid)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if err := k.Runtime.RemoveContainer(ctx, c.ID); err != nil && !cri.NotFound(err) {
			return wrapped("remove container", err)
		}
		k.killed.Delete(c.ID)
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

// removeDead keeps, of the containers of pods that live, those that run and the last dead one of each name, and of their sandboxes
// the newest and those that still have containers.
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
		if c.State == cri.Exited && (newest[id] == nil || c.CreatedAt.After(newest[id].CreatedAt)) {
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
	latest := map[types.UID]time.Time{}
	for _, s := range sandboxes {
		if uid := uidOf(s.Labels); s.CreatedAt.After(latest[uid]) {
			latest[uid] = s.CreatedAt
		}
	}
	for _, s := range sandboxes {
		uid := uidOf(s.Labels)
		if uid != "" && !s.Ready && !inUse[s.ID] && s.CreatedAt.Before(latest[uid]) {
			_ = k.Runtime.RemovePodSandbox(ctx, s.ID) // what stays is tried again
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
	_ = k.Runtime.RemoveContainer(ctx, id) // what stays is tried again
	k.killed.Delete(id)
}

// rotateLogs keeps logs short until ctx ends.
func (k *Kubelet) rotateLogs(ctx context.Context) error {
	if k.LogMaxSize <= 0 {
		return nil
	}
	logs := &cri.Logs{Runtime: k.Runtime, MaxSize: k.LogMaxSize, MaxFiles: k.LogMaxFiles}
	ticker := time.NewTicker(logPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := logs.Rotate(ctx); err != nil && ctx.Err() == nil {
				k.Log.Warn("logs could not be rotated", "error", err)
			}
		}
	}
}
