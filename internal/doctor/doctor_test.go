package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// expect compares findings with what is wanted of them: the severity, and parts of the problem, separated by |. Every finding must say what breaks, when, and what to do.
func expect(t *testing.T, findings []Finding, want ...string) {
	t.Helper()
	var got []string
	for _, f := range findings {
		got = append(got, string(f.Severity)+": "+f.Problem)
		if f.Problem == "" || f.Breaks == "" || f.When == "" || f.Fix == "" {
			t.Errorf("a field is empty: %+v", f)
		}
	}
	matches := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		severity, parts, _ := strings.Cut(want[i], ": ")
		matches = matches && strings.HasPrefix(got[i], severity+": ")
		for part := range strings.SplitSeq(parts, "|") {
			matches = matches && strings.Contains(got[i], part)
		}
	}
	if !matches {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func found(findings ...Finding) Check {
	return Check{Name: "found", Run: func(context.Context) ([]Finding, error) { return findings, nil }}
}

func failing(err error) Check {
	return Check{Name: "failing", Run: func(context.Context) ([]Finding, error) { return nil, err }}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unblock := make(chan struct{})
		defer close(unblock)
		stuck := Check{Name: "stuck", Run: func(context.Context) ([]Finding, error) {
			<-unblock // like a system call
			return nil, nil
		}}
		warning, severe := Finding{Severity: Warning, Problem: "w", Breaks: "b", When: "n", Fix: "f"}, Finding{Severity: Error, Problem: "e", Breaks: "b", When: "n", Fix: "f"}
		begin := time.Now()
		report := Run(t.Context(), []Check{found(warning), stuck, found(severe), found(), failing(errors.New("cause"))}, time.Second)
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
		expect(t, report.Findings, "error: e", "warning: w", "warning: not examined: it takes longer than 1s", "warning: not examined: cause")
		if want := []string{"found", "stuck", "found", "found", "failing"}; !slices.Equal(report.Checks, want) {
			t.Errorf("checks %q", report.Checks)
		}
		if report.Count(Error) != 1 || report.Count(Warning) != 3 {
			t.Errorf("%d errors and %d warnings", report.Count(Error), report.Count(Warning))
		}
		if report.Findings[2].Check != "stuck" {
			t.Errorf("the finding of a check has the name %q", report.Findings[2].Check)
		}
	})
}

func TestNotExamined(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{unix.EPERM, "as root"},
		{apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil), "administrator's kubeconfig"},
		{apierrors.NewUnauthorized("no"), "administrator's kubeconfig"},
		{context.DeadlineExceeded, "--timeout"},
		{errors.New("other"), "examine again"},
	} {
		if f := notExamined(test.err, time.Second); !strings.Contains(f.Fix, test.want) || f.Severity != Warning {
			t.Errorf("%v: %+v", test.err, f)
		}
	}
}

func TestWriteTable(t *testing.T) {
	report := Run(t.Context(), []Check{
		found(Finding{Severity: Warning, Problem: "a\x1b[31m red\n one", Breaks: "nothing", When: "never", Fix: "nothing"}),
		{Name: "fine", Run: func(context.Context) ([]Finding, error) { return nil, nil }},
	}, time.Minute)
	var out bytes.Buffer
	if err := report.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	want := `SEVERITY   CHECK   FINDING
warning    found   a [31m red  one
                     breaks: nothing
                     when:   never
                     do:     nothing

Nothing found: fine
2 checks: 0 errors, 1 warning
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	for _, report := range []Report{
		Run(t.Context(), []Check{found()}, time.Minute),
		Run(t.Context(), []Check{found(Finding{Severity: Error, Problem: "p", Breaks: "b", When: "w", Fix: "f"})}, time.Minute),
	} {
		var out bytes.Buffer
		if err := report.WriteJSON(&out); err != nil {
			t.Fatal(err)
		}
		var read map[string][]any
		if err := json.Unmarshal(out.Bytes(), &read); err != nil {
			t.Fatal(err)
		}
		if read["findings"] == nil || len(read["findings"]) != len(report.Findings) || len(read["checks"]) != 1 {
			t.Errorf("got %s", out.String())
		}
	}
}

func TestTexts(t *testing.T) {
	now := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct{ got, want string }{
		{on(now.Add(10*24*time.Hour), now), "2026-05-11 12:00 UTC, in 10 days"},
		{on(now.Add(90*time.Minute), now), "2026-05-01 13:30 UTC, in 90 minutes"},
		{on(now.Add(30*time.Hour), now), "2026-05-02 18:00 UTC, in 30 hours"},
		{on(now.Add(-time.Hour), now), "since 2026-05-01 11:00 UTC"},
		{some([]string{"a", "b"}), "a, b"},
		{some([]string{"a", "b", "c", "d", "e", "f", "g"}), "a, b, c, d, e and 2 more"},
		{bytesText(512), "512 B"},
		{bytesText(1536), "1.5 KiB"},
		{bytesText(300 << 20), "300 MiB"},
		{bytesText(8 << 40), "8.0 TiB"},
		{plural(1, "node"), "1 node"},
		{plural(0, "node"), "0 nodes"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
