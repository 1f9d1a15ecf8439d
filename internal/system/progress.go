package system

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// redrawInterval is the time between two updates of the line about running steps.
	redrawInterval = 200 * time.Millisecond
	// finishTimeout is how long the end of a start waits for the last steps.
	finishTimeout = time.Minute
	// eraseLine moves the cursor to the beginning of the line and erases it.
	eraseLine = "\r\x1b[K"
	// defaultColumns is the width of a terminal that does not tell its own.
	defaultColumns = 80
)

// progress shows what a start does: each step with the time it took, and in the end what to do next. On a terminal there is a line about the steps
// that run; until the end, only warnings and errors are logged then. Otherwise a log line is written for each step. A nil progress shows nothing.
type progress struct {
	log    *slog.Logger
	output *logOutput
	level  *slog.LevelVar
	began  time.Time
	// out is the terminal; nil: steps are logged.
	out io.Writer
	// columns is the width of the terminal.
	columns int

	mu    sync.Mutex
	steps []*step // those that run, in the order of their begin
	last  func(total time.Duration, pending []string)
	ended bool
	drawn bool // the last line of the terminal is about the running steps
}

// step is a part of a start.
type step struct {
	name  string
	began time.Time
}

// newProgress makes the progress of a start, with its logger. With level debug the log has all messages from the start, because who chooses it wants to
// see them.
func newProgress(level *slog.LevelVar, file *os.File) *progress {
	p := &progress{level: level, began: time.Now()}
	if level.Level() >= slog.LevelInfo && isTerminal(file) {
		p.out, p.columns = file, columnsOf(file)
	}
	p.output = &logOutput{Writer: p.writer(file)}
	p.log = newLoggerTo(p.output, p)
	return p
}

// isTerminal reports whether lines of a file can be erased.
func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb"
}

func columnsOf(file *os.File) int {
	if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		return int(size.Col)
	}
	return defaultColumns
}

// writer is where the log is written.
func (p *progress) writer(file io.Writer) io.Writer {
	if p.out == nil {
		return file
	}
	return p
}

// Write implements io.Writer for the log: the line about the running steps stays the last.
func (p *progress) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	n, err := p.out.Write(line)
	p.draw()
	return n, err
}

// Level implements slog.Leveler.
func (p *progress) Level() slog.Level {
	level := p.level.Level()
	if p.out == nil || level < slog.LevelInfo {
		return level
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return level
	}
	return max(level, slog.LevelWarn)
}

// run keeps the line about the running steps up to date until stop is called. stop erases it.
func (p *progress) run(what string) (stop func()) {
	if p.out == nil {
		return func() {}
	}
	p.print(what)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(redrawInterval)
		defer ticker.Stop()
		for p.redraw() {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
		p.mu.Lock()
		defer p.mu.Unlock()
		p.erase()
		p.ended = true
	}
}

// begin begins a step. end, which may be called more than once, ends it.
func (p *progress) begin(name string) (end func()) {
	if p == nil {
		return func() {}
	}
	s := &step{name, time.Now()}
	p.mu.Lock()
	p.steps = append(p.steps, s)
	p.mu.Unlock()
	p.redraw()
	return sync.OnceFunc(func() { p.end(s) })
}

func (p *progress) end(s *step) {
	took := rounded(time.Since(s.began))
	if p.out == nil {
		p.log.Info("started", "step", s.name, "duration", took.String())
	}
	p.mu.Lock()
	p.steps = slices.DeleteFunc(p.steps, func(other *step) bool { return other == s })
	if p.out != nil && !p.ended {
		p.erase()
		fmt.Fprintf(p.out, "  %-24s %s\n", s.name, took)
		p.draw()
	}
	p.mu.Unlock()
	p.finishIf(func() bool { return len(p.steps) == 0 })
}

// finish has last called with the duration of the start when no step runs any more. Those that are pending after finishTimeout are not waited for: a
// node may need a network plugin that is yet to be installed.
func (p *progress) finish(last func(total time.Duration, pending []string)) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.last = last
	p.mu.Unlock()
	p.finishIf(func() bool { return len(p.steps) == 0 })
	time.AfterFunc(finishTimeout, func() { p.finishIf(func() bool { return true }) })
}

// finishIf ends the start if a condition, which is evaluated while mu is held, is true and nothing else will begin.
func (p *progress) finishIf(isDone func() bool) {
	p.mu.Lock()
	if p.last == nil || p.ended || !isDone() {
		p.mu.Unlock()
		return
	}
	p.erase()
	p.ended = true
	last, pending := p.last, p.names()
	p.mu.Unlock()
	last(rounded(time.Since(p.began)), pending)
}

// show shows that the start is over, and the commands that are next.
func (p *progress) show(total time.Duration, pending []string, next ...string) {
	if p.out == nil {
		p.log.Info("ready", "duration", total.String(), "pending", pending, "next", strings.Join(next, "; "))
		return
	}
	lines := []string{fmt.Sprintf("Ready after %s. Next:", total)}
	if len(pending) > 0 {
		lines = []string{fmt.Sprintf("Still starting after %s: %s. Meanwhile:", total, strings.Join(pending, ", "))}
	}
	for _, command := range next {
		lines = append(lines, "  "+command)
	}
	p.print(lines...)
}

// names are those of the running steps. mu must be held.
func (p *progress) names() []string {
	var names []string
	for _, s := range p.steps {
		names = append(names, s.name)
	}
	return names
}

// print writes lines to the terminal.
func (p *progress) print(lines ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprintln(p.out, strings.Join(lines, "\n"))
	p.draw()
}

// redraw shows the running steps. It reports whether the start goes on.
func (p *progress) redraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw()
	return !p.ended
}

// draw writes the line about the running steps. mu must be held.
func (p *progress) draw() {
	if p.out == nil || p.ended || len(p.steps) == 0 {
		return
	}
	line := fmt.Sprintf("  %s ... %.1fs", strings.Join(p.names(), ", "), time.Since(p.steps[0].began).Seconds())
	if len(line) >= p.columns {
		line = line[:max(p.columns-1, 0)] // a line that is wrapped could not be erased
	}
	fmt.Fprint(p.out, eraseLine+line)
	p.drawn = true
}

// erase removes the line about the running steps. mu must be held.
func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.out, eraseLine)
		p.drawn = false
	}
}

// rounded is a duration as a person reads it.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
