package query

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"skiff/internal/scheduler/decision"
)

// PrintWhy writes an explanation as text: the outcome, a table of all nodes, and suggestions.
func PrintWhy(w io.Writer, e *decision.Explanation) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Pod %s/%s %s\n", e.Namespace, e.Name, outcome(e))
	if e.Decided != nil {
		fmt.Fprintf(&text, "Decided %s; of %d nodes %d could take it.\n", e.Decided.Format(time.RFC3339), e.Nodes, e.Feasible)
	} else if len(e.Verdicts) > 0 {
		fmt.Fprintf(&text, "The decision's record is gone; this is how it would be decided now: of %d nodes %d could take it.\n", e.Nodes, e.Feasible)
	}
	printVerdicts(&text, e)
	printHelp(&text, e)
	_, err := io.WriteString(w, text.String())
	return err
}

// PrintWhatIf writes a table of where each pod would be placed.
func PrintWhatIf(w io.Writer, all []decision.Explanation) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tNODE\tCOULD TAKE IT")
	placed := 0
	for i := range all {
		e := &all[i]
		node := e.Node
		if node == "" {
			node = "<none>"
		} else {
			placed++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d of %d\n", e.Namespace, e.Name, node, e.Feasible, e.Nodes)
	}
	table.Flush()
	fmt.Fprintf(&text, "\n%d of %d pods would have a node.\n", placed, len(all))
	for i := range all {
		e := &all[i]
		if e.Node == "" || len(e.Verdicts) > 0 {
			fmt.Fprintf(&text, "\nPod %s/%s %s\n", e.Namespace, e.Name, outcome(e))
			printVerdicts(&text, e)
			printHelp(&text, e)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func outcome(e *decision.Explanation) string {
	if e.Node != "" {
		return "goes to node " + e.Node
	}
	return "has no node: " + e.Message
}

// printVerdicts writes the table of nodes: a column for each plugin that scored, and the reasons of nodes that were rejected.
func printVerdicts(w io.Writer, e *decision.Explanation) {
	if len(e.Verdicts) == 0 {
		return
	}
	scored := map[string]bool{}
	for _, v := range e.Verdicts {
		for plugin := range v.Scores {
			scored[plugin] = true
		}
	}
	plugins := slices.Sorted(maps.Keys(scored))
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(append([]string{"NODE", "VERDICT", "TOTAL"}, plugins...), "\t"))
	for _, v := range e.Verdicts {
		if v.Refusal != nil {
			fmt.Fprintf(table, "%s\trefused by %s: %s\n", v.Node, v.Refusal.Plugin, strings.Join(v.Refusal.Reasons, ", "))
			continue
		}
		verdict := "fits"
		if v.Node == e.Node {
			verdict = "chosen"
		}
		fmt.Fprintf(table, "%s\t%s\t%d", v.Node, verdict, v.Total)
		for _, plugin := range plugins {
			fmt.Fprintf(table, "\t%d", v.Scores[plugin])
		}
		fmt.Fprintln(table)
	}
	table.Flush()
}

func printHelp(w io.Writer, e *decision.Explanation) {
	if e.Preemption != nil {
		fmt.Fprintf(w, "\nIt would fit on node %s if %s lower priority were preempted.\n", e.Preemption.Node, counted(e.Preemption.Victims, "pod of", "pods of"))
	}
	if len(e.Changes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nThe smallest changes that would let it run:")
	for _, c := range e.Changes {
		where := ""
		if c.Node != "" {
			where = "on node " + c.Node
			if c.Others > 0 {
				where += fmt.Sprintf(" (likewise on %s)", counted(c.Others, "other node", "other nodes"))
			}
			where += ": "
		}
		fmt.Fprintf(w, "  %s%s\n", where, strings.Join(c.Steps, "; and "))
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
