package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"skiff/internal/config"
)

func hasAdvanced(groups []config.FlagGroup) bool {
	for _, group := range groups {
		if group.Advanced.HasFlags() {
			return true
		}
	}
	return false
}

// printHelp is the help of every command. groups are its flags, or nil when they have no groups. Advanced flags are left out unless
// --help-all is given.
func printHelp(cmd *cobra.Command, groups []config.FlagGroup) {
	out := cmd.OutOrStdout()
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	fmt.Fprintf(out, "%s\n\nUsage:\n", long)
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		fmt.Fprintln(out, "  "+cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "  %s COMMAND [flags]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
	printCommands(out, cmd)
	printFlags(out, cmd, groups)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "\nUse \"%s COMMAND --help\" for more about a command.\n", cmd.CommandPath())
	}
}

// printCommands lists the subcommands by group.
func printCommands(out io.Writer, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	groups := cmd.Groups()
	if len(groups) == 0 {
		groups = []*cobra.Group{{Title: "Commands"}}
	}
	for _, group := range groups {
		fmt.Fprintf(out, "\n%s:\n", group.Title)
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(out, "  %-20s %s\n", c.Name(), c.Short)
			}
		}
	}
}

// printFlags lists the flags by group.
func printFlags(out io.Writer, cmd *cobra.Command, groups []config.FlagGroup) {
	width := terminalWidth(out)
	print := func(heading string, sets ...*pflag.FlagSet) {
		all := pflag.NewFlagSet(heading, pflag.ContinueOnError)
		all.SortFlags = false
		for _, fs := range sets {
			all.AddFlagSet(fs)
		}
		if all.HasAvailableFlags() {
			fmt.Fprintf(out, "\n%s:\n%s", heading, all.FlagUsagesWrapped(width))
		}
	}
	if groups == nil {
		print("Flags", cmd.LocalFlags(), cmd.InheritedFlags())
		return
	}
	if len(groups) == 1 && !hasAdvanced(groups) {
		print("Flags", groups[0].Common)
		return
	}
	showAll, _ := cmd.Flags().GetBool("help-all")
	for _, group := range groups {
		if showAll {
			print(group.Name+" flags", group.Common, group.Advanced)
		} else {
			print(group.Name+" flags", group.Common)
		}
	}
	if !showAll && hasAdvanced(groups) {
		fmt.Fprintf(out, "\nUse \"%s --help-all\" to show all flags.\n", cmd.CommandPath())
	}
}

// terminalWidth is the number of columns of the terminal that out is, or 0 when it is none: lines are not wrapped then.
func terminalWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// lines joins the lines of an example.
func lines(text ...string) string { return "  " + strings.Join(text, "\n  ") }
