package etcd

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger forwards etcd's log from level warning up to skiff's. Lower levels are of interest only to etcd's developers.
func newLogger(log *slog.Logger, options ...zap.Option) *zap.Logger {
	return zap.New(&core{handler: log.Handler(), repeated: &repetitions{last: map[string]time.Time{}}}, options...)
}

// fatal ends the process after an error that etcd cannot handle, such as a failed write to its disk. Where etcd would panic, the stack says nothing more. What was acknowledged is on the disk, so
// the next start continues from there.
type fatal struct {
	log  *slog.Logger
	dir  string
	exit func(code int)
}

// OnWrite implements zapcore.CheckWriteHook.
func (f fatal) OnWrite(entry *zapcore.CheckedEntry, _ []zapcore.Field) {
	args := []any{"cause", entry.Message, "directory", f.dir}
	if free, err := freeBytes(f.dir); err == nil {
		args = append(args, "free", free)
	}
	f.log.Error("etcd failed, the process ends and must be restarted", args...)
	f.exit(1)
}

// core is a zapcore.Core on a slog.Handler.
type core struct {
	handler  slog.Handler
	repeated *repetitions
}

func (c *core) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel && c.handler.Enabled(context.Background(), slogLevel(level))
}

func slogLevel(level zapcore.Level) slog.Level {
	if level >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelWarn
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{handler: c.handler.WithAttrs(attributes(fields)), repeated: c.repeated}
}

func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// harmlessMessages are warnings and errors that etcd logs when a healthy member starts, with a part of their error: skiff does not use etcd's users, and a store
// that has no term yet gets its storage version with its first write.
var harmlessMessages = map[string]string{
	"simple token is not cryptographically signed": "",
	"Failed to detect schema version":              "missing term information",
	"failed to update storage version":             "missing term information",
}

// isHarmless reports whether an entry is one of harmlessMessages.
func isHarmless(entry zapcore.Entry, attrs []slog.Attr) bool {
	part, ok := harmlessMessages[entry.Message]
	return ok && (part == "" || slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == "error" && strings.Contains(a.Value.String(), part) }))
}

// repeatedMessages are what etcd logs about another member every few seconds while it lasts. They are logged once in repetitionInterval.
var repeatedMessages = []string{"prober found high clock drift", "prober detected unhealthy status"}

const (
	repetitionInterval = time.Hour
	// peerKey is the attribute that names the member.
	peerKey = "remote-peer-id"
)

// repetitions remembers when repeatedMessages were logged.
type repetitions struct {
	mu   sync.Mutex
	last map[string]time.Time // by message and member
}

// contains reports whether an entry repeats one that was logged.
func (r *repetitions) contains(entry zapcore.Entry, attrs []slog.Attr) bool {
	if !slices.Contains(repeatedMessages, entry.Message) {
		return false
	}
	key := entry.Message
	for _, a := range attrs {
		if a.Key == peerKey {
			key += " " + a.Value.String()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[key]; ok && entry.Time.Sub(last) < repetitionInterval {
		return true
	}
	r.last[key] = entry.Time
	return false
}

func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	attrs := attributes(fields)
	if isHarmless(entry, attrs) || c.repeated.contains(entry, attrs) {
		return nil
	}
	record := slog.NewRecord(entry.Time, slogLevel(entry.Level), entry.Message, 0)
	record.AddAttrs(attrs...)
	return c.handler.Handle(context.Background(), record)
}

func (c *core) Sync() error { return nil }

func attributes(fields []zapcore.Field) []slog.Attr {
	encoder := zapcore.NewMapObjectEncoder()
	var attrs []slog.Attr
	for _, field := range fields {
		clear(encoder.Fields)
		field.AddTo(encoder)
		for key, value := range encoder.Fields {
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	return attrs
}
