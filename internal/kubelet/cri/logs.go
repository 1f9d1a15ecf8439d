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
	unfinished       = ".tmp"
	rotatedTimestamp = "20060102-150405"
)

// Logs keeps the logs of running containers from growing without end.
type Logs struct {
	Runtime Runtime
	// MaxSize is how large a log may be before it is moved away, MaxFiles how many files of one container are kept.
	MaxSize  int64
	MaxFiles int
}

// Rotate looks at the logs of all running containers once.
func (l *Logs) Rotate(ctx context.Context) error {
	containers, err := l.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		return fmt.Errorf("list running containers: %w", err)
	}
	var errs []error
	for _, c := range containers {
		response, err := l.Runtime.ContainerStatus(ctx, c.Id, false)
		if err != nil {
			continue // it has ended meanwhile
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
		// A rotation was cut short after the move.
		return l.Runtime.ReopenContainerLog(ctx, id)
	}
	if err != nil || info.Size() < l.MaxSize {
		return err
	}
	old, err := filepath.Glob(path + ".*")
	if err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(file string) bool {
		// Half a compression, and what has been compressed already, are leftovers of a rotation cut short.
		leftover := strings.HasSuffix(file, unfinished) || slices.Contains(old, file+compressed)
		return leftover && os.Remove(file) == nil
	})
	slices.Sort(old)
	// The file in use and the one about to be moved count too.
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
	if err := l.Runtime.ReopenContainerLog(ctx, id); err != nil {
		return errors.Join(err, os.Rename(moved, path))
	}
	return nil
}

// compress replaces a file by its compressed form.
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
	to, err := os.OpenFile(path+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode())
	if err != nil {
		return err
	}
	w := gzip.NewWriter(to)
	_, err = io.Copy(w, from)
	if err = errors.Join(err, w.Close(), to.Close()); err == nil {
		err = os.Rename(path+unfinished, path+compressed)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("compress %s: %w", path, err), os.Remove(path+unfinished))
	}
	return os.Remove(path)
}
