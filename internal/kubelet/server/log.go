package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

// logOptions select a part of a log.
type logOptions struct {
	since      time.Time // zero means everything
	tail       int64     // lines; -1 means all
	limit      int64     // bytes; -1 means all
	follow     bool
	timestamps bool
	previous   bool
	stdout     bool
	stderr     bool
}

func parseLogOptions(r *http.Request, now time.Time) (logOptions, error) {
	query := r.URL.Query()
	o := logOptions{tail: -1, limit: -1, stdout: true, stderr: true}
	for name, to := range map[string]*bool{"follow": &o.follow, "timestamps": &o.timestamps, "previous": &o.previous} {
		text := query.Get(name)
		*to = text != "" && text != "0" && !strings.EqualFold(text, "false")
	}
	since := int64(-1)
	for name, to := range map[string]*int64{"tailLines": &o.tail, "limitBytes": &o.limit, "sinceSeconds": &since} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return o, fmt.Errorf("%s: %q is not a number of %s", name, text, name)
		}
		*to = n
	}
	if since >= 0 {
		o.since = now.Add(-time.Duration(since) * time.Second)
	}
	if text := query.Get("sinceTime"); text != "" {
		var err error
		if o.since, err = time.Parse(time.RFC3339, text); err != nil {
			return o, fmt.Errorf("sinceTime: %w", err)
		}
	}
	switch stream := query.Get("stream"); stream {
	case "", corev1.LogStreamAll:
	case corev1.LogStreamStdout:
		o.stderr = false
	case corev1.LogStreamStderr:
		o.stdout = false
	default:
		return o, fmt.Errorf("invalid stream type %q", stream)
	}
	return o, nil
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	options, err := parseLogOptions(r, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	namespace, podName, name := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	pod, ok := s.Pods.Pod(namespace, podName)
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist", podName), http.StatusNotFound)
		return
	}
	if _, ok := s.findPod(w, r); !ok {
		return
	}
	id, err := logContainerID(pod, name, options.previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	container, err := s.Runtime.ContainerStatus(r.Context(), id)
	if err != nil {
		http.Error(w, fmt.Sprintf("unable to retrieve container logs for %s: %v", id, err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	to := &flushWriter{w: w}
	to.flush()
	running := func() bool {
		container, err := s.Runtime.ContainerStatus(r.Context(), id)
		return err == nil && container.State == cri.Running
	}
	if err := readLog(r.Context(), container.LogPath, options, running, to); err != nil && r.Context().Err() == nil {
		fmt.Fprintf(to, "%v\n", err)
	}
}

// logContainerID returns the runtime's ID of the container whose log is requested.
func logContainerID(pod *corev1.Pod, name string, previous bool) (string, error) {
	var status *corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name && status == nil {
				status = &list[i]
			}
		}
	}
	if status == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	last := ""
	if t := status.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	state, id := status.State, ""
	switch {
	case previous && last == "":
		return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		id = last
	case state.Running != nil:
		id = status.ContainerID
	case state.Terminated != nil && state.Terminated.ContainerID != "":
		id = state.Terminated.ContainerID
	case last != "":
		id = last // the next one did not start
	case state.Terminated != nil || status.LastTerminationState.Terminated != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", name, pod.Name)
	case state.Waiting == nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	case state.Waiting.Reason == "ErrImagePull":
		return "", fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name, pod.Name)
	case state.Waiting.Reason == "ImagePullBackOff":
		return "", fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", name, pod.Name)
	default:
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %v", name, pod.Name, state.Waiting.Reason)
	}
	_, id, _ = strings.Cut(id, "://")
	return id, nil
}

// flushWriter flushes after every write.
type flushWriter struct{ w http.ResponseWriter }

func (f *flushWriter) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	f.flush()
	return n, err
}

func (f *flushWriter) flush() {
	if flusher, ok := f.w.(http.Flusher); ok {
		flusher.Flush()
	}
}

// followInterval is how often a followed log is polled.
const followInterval = 100 * time.Millisecond

// readLog copies the selected part of a log in CRI format. With follow it continues while the container is running,
// across log rotation.
func readLog(ctx context.Context, path string, o logOptions, running func() bool, w io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { file.Close() }()
	if o.tail >= 0 {
		if err := seekTail(file, o.tail); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(w, 32<<10)
	to := &logWriter{options: o, w: out, remaining: o.limit}
	lines := &lineReader{r: bufio.NewReaderSize(file, 32<<10)}
	for last := false; ; {
		if err := lines.copyTo(to); err != nil {
			return ignoreLimit(errors.Join(err, out.Flush()))
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if !o.follow || last {
			return nil
		}
		if next, err := reopenIfRotated(file, path); err != nil {
			return err
		} else if next != nil {
			// Read what was written to the old file since the last read.
			if err := lines.copyTo(to); err != nil {
				return ignoreLimit(errors.Join(err, out.Flush()))
			}
			file.Close()
			file = next
			lines.r.Reset(file)
			continue
		}
		// The container may have written more between the last read and its exit.
		last = !running()
		if last {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(followInterval):
		}
	}
}

var errLimit = errors.New("log limit reached")

func ignoreLimit(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// reopenIfRotated opens the file at path if it is not the open one.
func reopenIfRotated(file *os.File, path string) (*os.File, error) {
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // during rotation, or the container was removed
	}
	if err != nil {
		return nil, err
	}
	open, err := file.Stat()
	if err != nil || os.SameFile(now, open) {
		return nil, err
	}
	return os.Open(path)
}

// lineReader buffers a line whose end was not written yet.
type lineReader struct {
	r       *bufio.Reader
	partial []byte
}

func (l *lineReader) copyTo(w *logWriter) error {
	for {
		line, err := l.r.ReadSlice('\n')
		l.partial = append(l.partial, line...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read log: %w", err)
		}
		err = w.write(l.partial)
		l.partial = l.partial[:0]
		if err != nil {
			return err
		}
	}
}

// logWriter writes the selected lines.
type logWriter struct {
	options   logOptions
	w         *bufio.Writer
	remaining int64 // bytes; negative means unlimited
}

// timestampFormat has all nine digits, so that lines are aligned.
const timestampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// write processes a line in CRI format: time, stream, tags, text.
func (l *logWriter) write(line []byte) error {
	timestamp, rest, ok1 := bytes.Cut(line, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tags, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || !ok3 {
		return nil // not in CRI format
	}
	at, err := time.Parse(time.RFC3339Nano, string(timestamp))
	if err != nil {
		return nil
	}
	if at.Before(l.options.since) || string(stream) == "stdout" && !l.options.stdout || string(stream) == "stderr" && !l.options.stderr {
		return nil
	}
	if first, _, _ := bytes.Cut(tags, []byte(":")); string(first) == "P" {
		text = bytes.TrimSuffix(text, []byte("\n")) // a partial line; the rest follows
	}
	if l.options.timestamps {
		text = append([]byte(at.Format(timestampFormat)+" "), text...)
	}
	if l.remaining >= 0 && int64(len(text)) > l.remaining {
		text = text[:l.remaining]
	}
	if _, err := l.w.Write(text); err != nil {
		return err
	}
	if l.remaining >= 0 {
		if l.remaining -= int64(len(text)); l.remaining == 0 {
			return errLimit
		}
	}
	return nil
}

// seekTail seeks to the beginning of the last lines of a file.
func seekTail(file *os.File, lines int64) error {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if lines == 0 {
		return nil
	}
	block := make([]byte, 8<<10)
	observed := int64(0)
	for at := end; at > 0; {
		size := min(int64(len(block)), at)
		at -= size
		if _, err := file.ReadAt(block[:size], at); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			if block[i] != '\n' || at+i == end-1 {
				continue
			}
			if observed++; observed == lines {
				_, err := file.Seek(at+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}
