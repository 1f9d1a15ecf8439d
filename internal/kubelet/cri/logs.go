package cri

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	compressed       = ".gz"
	temporary        = ".tmp"
	rotatedTimestamp = "20060102-150405"
)

// Logs rotates the logs of running containers.
type Logs struct {
	Runtime *Runtime
	// MaxSize is the size in bytes at which a log is rotated, MaxFiles how many files of one container are kept.
	MaxSize  int64
	MaxFiles int
}

// Rotate rotates the logs of all running containers that are too large.
func (l *Logs) Rotate(ctx context.Context) error {
	containers, err := l.Runtime.api.ListContainers(ctx, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return fmt.Errorf("list running containers: %w", err)
	}
	var errs []error
	for _, c := range containers {
		response, err := l.Runtime.api.ContainerStatus(ctx, c.Id, false)
		if err != nil {
			continue // it was removed since it was listed
		}
		if err := l.rotate(ctx, c.Id, response.Status.LogPath); err != nil {
			errs = append(errs, fmt.Errorf("rotate log of container %s: %w", c.Id, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Logs) rotate(ctx context.Context, id, path string) error {
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		// An earlier rotation was interrupted after the rename.
		return l.Runtime.api.ReopenContainerLog(ctx, id)
	}
	if err != nil || info.Size() < l.MaxSize {
		return err
	}
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(file string) bool {
		// Files of an interrupted rotation: half-compressed, or compressed but not yet removed.
		stale := strings.HasSuffix(file, temporary) || slices.Contains(old, file+compressed)
		return stale && os.Remove(file) == nil
	})
	slices.Sort(old)
	// The current file and the one about to be renamed count too.
	for len(old) > max(l.MaxFiles-2, 0) {
		if err := os.Remove(old[0]); err != nil {
			return err
		}
		old = old[1:]
	}
	for _, file := range old {
		if !strings.HasSuffix(file, compressed) {
			if err := compress(file); err != nil {
				return err
			}
		}
	}
	moved := path + "." + time.Now().Format(rotatedTimestamp)
	if err := os.Rename(path, moved); err != nil {
		return err
	}
	if err := l.Runtime.api.ReopenContainerLog(ctx, id); err != nil {
		return errors.Join(err, os.Rename(moved, path))
	}
	return nil
}

// compress replaces a file by a gzip-compressed one.
func compress(path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path+temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode())
	if err != nil {
		return err
	}
	w := gzip.NewWriter(to)
	_, err = io.Copy(w, from)
	if err = errors.Join(err, w.Close(), to.Close()); err == nil {
		err = os.Rename(path+temporary, path+compressed)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", path, err), os.Remove(path+temporary))
	}
	return os.Remove(path)
}
