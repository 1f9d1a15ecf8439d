package cri

import (
	"bytes"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Bounds of the termination message, in bytes and lines.
const (
	maxTerminationMessage = 4 << 10
	maxTerminationLog     = 2 << 10
	maxTerminationLines   = 80
)

// terminationMessage reads the termination message of an exited container: from its termination message file or, if it failed and its
// policy is FallbackToLogsOnError, from the end of its log.
func terminationMessage(s *runtimeapi.ContainerStatus) string {
	fallBack := s.Annotations[AnnotationTerminationMessagePolicy] == string(corev1.TerminationMessageFallbackToLogsOnError) &&
		s.ExitCode != 0 && s.Reason != "ContainerCannotRun"
	if path := s.Annotations[AnnotationTerminationMessagePath]; path != "" {
		for _, mount := range s.Mounts {
			if mount.ContainerPath != path && mount.ContainerPath != "/"+path {
				continue
			}
			data, err := tail(mount.HostPath, maxTerminationMessage)
			if err != nil && !os.IsNotExist(err) {
				return fmt.Sprintf("Error on reading termination log %s: %v", mount.HostPath, err)
			}
			if len(data) > 0 {
				return string(data)
			}
			break
		}
	}
	if !fallBack {
		return ""
	}
	text, err := endOfLog(s.LogPath)
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return string(text)
}

// tail reads the last bytes of a file, which must be a regular one: the container could have replaced it by a device or a pipe.
func tail(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info.Size() > limit {
		if _, err := file.Seek(-limit, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(file, limit))
}

// endOfLog reads the end of a container's output from its log in the CRI format: time, stream, a tag F or P for full or partial lines,
// and the text.
func endOfLog(path string) ([]byte, error) {
	// Each line has about 40 bytes before its text.
	data, err := tail(path, 4*maxTerminationLog+maxTerminationLines*64)
	if err != nil {
		return nil, err
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	if n := len(lines); n > 0 && len(lines[n-1]) == 0 {
		lines = lines[:n-1]
	}
	if len(lines) > maxTerminationLines {
		lines = lines[len(lines)-maxTerminationLines:]
	}
	var text []byte
	for _, line := range lines {
		fields := bytes.SplitN(line, []byte(" "), 4)
		if len(fields) < 4 {
			continue // truncated at its beginning
		}
		if bytes.HasPrefix(fields[2], []byte("P")) {
			fields[3] = bytes.TrimSuffix(fields[3], []byte("\n"))
		}
		text = append(text, fields[3]...)
	}
	if len(text) > maxTerminationLog {
		text = text[len(text)-maxTerminationLog:]
	}
	return text, nil
}
