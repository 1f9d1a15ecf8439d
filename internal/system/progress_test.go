package system

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedBuffer is a terminal that a test can read.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// screen is what a terminal shows after the output: an erased line has nothing of what was written to it before.
func (b *lockedBuffer) screen() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var shown []string
	for line := range strings.SplitSeq(b.text.String(), "\n") {
		if i := strings.LastIndex(line, eraseLine); i >= 0 {
			line = line[i+len(eraseLine):]
		}
		shown = append(shown, line)
	}
	return strings.Join(shown, "\n")
}

// terminalProgress is a progress on a terminal of 60 columns.
func terminalProgress(out io.Writer) *progress {
	p := &progress{level: &slog.LevelVar{}, began: time.Now(), out: out, columns: 60}
	p.log = newLoggerTo(p, p)
	return p
}

func TestProgressOnTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &lockedBuffer{}
		p := terminalProgress(out)
		stop := p.run("Starting skiff")
		etcd := p.begin("etcd")
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if got, want := out.screen(), "Starting skiff\n  etcd ... 0.2s"; got != want {
			t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
		}
		p.log.Info("an ordinary message")
		p.log.Warn("a warning")
		if got := out.screen(); strings.Contains(got, "ordinary") || !strings.Contains(got, "msg=\"a warning\"\n  etcd ... 0.2s") {
			t.Errorf("the screen shows\n%s\nwant a warning above the running step, and no other message", got)
		}
		node := p.begin("node " + strings.Repeat("n", 100))
		if got := out.screen(); len(got[strings.LastIndex(got, "\n")+1:]) >= 60 {
			t.Errorf("the last line would be wrapped:\n%s", got)
		}
		p.finish(func(total time.Duration, pending []string) { p.show(total, pending, "kubectl get nodes") })
		etcd()
		etcd() // changes nothing
		time.Sleep(time.Second)
		node()
		p.log.Info("serving")
		stop()
		got := out.screen()
		for _, want := range []string{"\n  etcd                     250ms\n", " 1s\nReady after 1.3s. Next:\n  kubectl get nodes\n", "msg=serving\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("the screen shows\n%s\nwant %q", got, want)
			}
		}
		if !strings.HasSuffix(got, "\n") || strings.Contains(got, " ... ") {
			t.Errorf("the screen shows a running step after the end:\n%s", got)
		}
	})
}

// A step that takes long does not keep the next commands from being shown.
func TestProgressTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &lockedBuffer{}
		p := terminalProgress(out)
		defer p.run("Starting skiff")()
		p.begin("node")
		p.finish(func(total time.Duration, pending []string) { p.show(total, pending, "kubectl get nodes") })
		time.Sleep(finishTimeout + time.Second)
		if got, want := out.screen(), "Starting skiff\nStill starting after 1m0s: node. Meanwhile:\n  kubectl get nodes\n"; got != want {
			t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
		}
	})
}

// A start that fails leaves no line about running steps.
func TestProgressOfFailedStart(t *testing.T) {
	out := &lockedBuffer{}
	p := terminalProgress(out)
	stop := p.run("Starting skiff")
	end := p.begin("etcd")
	stop()
	end()
	p.finish(func(time.Duration, []string) { t.Error("the start is reported as finished") })
	if got := out.screen(); got != "Starting skiff\n" {
		t.Errorf("the screen shows %q", got)
	}
}

// Without a terminal each step is a log line.
func TestProgressInLog(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := newProgress(&slog.LevelVar{}, file)
	stop := p.run("Starting skiff")
	defer stop()
	end := p.begin("etcd")
	finished := false
	p.finish(func(time.Duration, []string) { finished = true })
	if finished {
		t.Error("finished while a step runs")
	}
	p.log.Info("an ordinary message")
	end()
	data, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if !finished || strings.Count(text, "\n") != 2 || !strings.Contains(text, "an ordinary message") || !strings.Contains(text, "msg=started step=etcd duration=") || strings.Contains(text, "\x1b") {
		t.Errorf("finished %v, log:\n%s", finished, text)
	}
}

// Components that run alone show no progress.
func TestNoProgress(t *testing.T) {
	var p *progress
	p.begin("etcd")()
	p.finish(func(time.Duration, []string) { t.Error("called") })
}
