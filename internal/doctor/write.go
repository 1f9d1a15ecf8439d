package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes a report for programs.
func (r *Report) WriteJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes a report for people: a row for each finding, below its problem what breaks, when, and what to do.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if len(r.Findings) > 0 {
		fmt.Fprintln(w, "SEVERITY\tCHECK\tFINDING")
	}
	wrong := map[string]bool{}
	for _, f := range r.Findings {
		wrong[f.Check] = true
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Severity, f.Check, oneLine(f.Problem))
		fmt.Fprintf(w, "\t\t  breaks: %s\n\t\t  when:   %s\n\t\t  do:     %s\n", oneLine(f.Breaks), oneLine(f.When), oneLine(f.Fix))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var fine []string
	for _, name := range r.Checks {
		if !wrong[name] {
			fine = append(fine, name)
		}
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(out)
	}
	if len(fine) > 0 {
		fmt.Fprintf(out, "Nothing found: %s\n", strings.Join(fine, ", "))
	}
	_, err := fmt.Fprintf(out, "%s: %s, %s\n", plural(len(r.Checks), "check"), plural(r.Count(Error), "error"), plural(r.Count(Warning), "warning"))
	return err
}

// oneLine is a text without characters that would break the table or control a terminal: messages of objects are written by others.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
}
