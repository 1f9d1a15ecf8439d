package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// newLogger returns the logger to standard error, which libraries use too.
func newLogger(level string) (*slog.Logger, error) {
	l := &slog.LevelVar{}
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	return newLoggerAt(l), nil
}

// newLoggerAt is newLogger with a level that can be changed.
func newLoggerAt(level *slog.LevelVar) *slog.Logger { return newLoggerTo(os.Stderr, level) }

// newLoggerTo is newLoggerAt that writes elsewhere.
func newLoggerTo(out io.Writer, level slog.Leveler) *slog.Logger {
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	klog.SetSlogLogger(slog.New(libraryHandler{log.Handler()}).With("component", "library"))
	return log
}

// maxLogStall is how long the log may wait for whoever reads it before the check of the log fails, as upstream's.
const maxLogStall = 2 * time.Minute

// logOutput is where a log is written, one record at a time. Who reads a pipe may stop doing so; then every component that logs waits.
type logOutput struct {
	io.Writer
	began atomic.Pointer[time.Time] // when the current write began; nil: there is none
}

// Write implements io.Writer.
func (o *logOutput) Write(record []byte) (int, error) {
	now := time.Now()
	o.began.Store(&now)
	defer o.began.Store(nil)
	return o.Writer.Write(record)
}

// check fails while the log is blocked.
func (o *logOutput) check(context.Context) error {
	if began := o.began.Load(); began != nil && time.Since(*began) > maxLogStall {
		return errors.New("logging blocked")
	}
	return nil
}

// libraryHandler handles the log messages of libraries: their info messages become debug messages.
type libraryHandler struct{ slog.Handler }

func lowered(l slog.Level) slog.Level {
	if l <= slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// Enabled implements slog.Handler.
func (h libraryHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, lowered(l))
}

// Handle implements slog.Handler.
func (h libraryHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h libraryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h libraryHandler) WithGroup(name string) slog.Handler {
	return libraryHandler{h.Handler.WithGroup(name)}
}
