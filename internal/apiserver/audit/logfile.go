package audit

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// logBatchWait is how long an event waits for others, so that a busy server writes many at once.
const logBatchWait = 2 * time.Millisecond

// logQueueEvents is the maximum number of queued events. Requests wait when it is reached.
const logQueueEvents = 10000

// logFile writes events as lines.
type logFile struct {
	auditor *Auditor
	strict  bool
	queue   *queue
	mu      sync.Mutex // held while writing
	out     io.Writer
	file    *rotatingFile // nil for standard output
}

func newLogFile(c Log, a *Auditor) (*logFile, error) {
	l := &logFile{auditor: a, strict: c.BackendOptions.Mode == ModeBlockingStrict, out: os.Stdout}
	if c.Path != "-" {
		file, err := openRotating(c, a.log)
		if err != nil {
			return nil, fmt.Errorf("open audit log: %w", err)
		}
		l.file, l.out = file, file
	}
	d := c.BackendOptions
	if d.Mode != ModeBatch {
		d = BackendOptions{BufferSize: logQueueEvents}
	}
	l.queue = newQueue(&d, logBatchWait, '\n')
	l.queue.blocking = c.BackendOptions.Mode == ModeBlocking
	l.queue.deliver = func(events []byte, count int) { l.write(events, count) }
	l.queue.lost = func(events int, err error) { a.lost("buffered", events, err) }
	return l, nil
}

func (l *logFile) send(line []byte) bool {
	if !l.strict {
		l.queue.put(line)
		return true
	}
	return l.write(append(line, '\n'), 1)
}

func (l *logFile) write(lines []byte, events int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.out.Write(lines); err != nil {
		l.auditor.lost("log", events, err)
		return false
	}
	return true
}

func (l *logFile) run(ctx context.Context) error {
	var cleanup sync.WaitGroup
	if l.file != nil {
		cleanup.Go(func() { l.file.runCleanup(ctx) })
	}
	l.queue.run(ctx)
	cleanup.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		return l.file.Close()
	}
	return nil
}
