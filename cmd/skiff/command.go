package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skiff/internal/config"
)

// configuration is that of any command: flags to bind and a check of the result.
type configuration interface {
	Flags(*config.FlagGroups)
	Validate() error
}

// bind gives a command the flags of its configuration and runs it once they are valid. Further flags may be added to the command.
func bind(cmd *cobra.Command, c configuration, run func(ctx context.Context, args []string) error) *cobra.Command {
	var groups config.FlagGroups
	c.Flags(&groups)
	groups.AddTo(cmd.Flags())
	cmd.Flags().SortFlags = false
	helpAll := false
	if hasAdvanced(groups.All()) {
		cmd.Flags().BoolVar(&helpAll, "help-all", false, "Show all flags.")
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, groups.All()) })
	if cmd.Args == nil {
		cmd.Args = noArguments
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if helpAll {
			return cmd.Help()
		}
		settings, err := groups.ReadSettings(cmd.Flags(), os.Environ())
		if err != nil {
			return err
		}
		for _, warning := range settings.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "skiff: warning:", warning)
		}
		if err := c.Validate(); err != nil {
			return settings.Explain(err)
		}
		return run(cmd.Context(), args)
	}
	return cmd
}

// bindAll is bind for a command with verbs: its flags are those of every verb, before and after it.
func bindAll(parent *cobra.Command, c configuration, verbs ...*cobra.Command) *cobra.Command {
	var groups config.FlagGroups
	c.Flags(&groups)
	groups.AddTo(parent.PersistentFlags())
	parent.PersistentFlags().SortFlags = false
	for _, verb := range verbs {
		run := verb.RunE
		verb.RunE = func(cmd *cobra.Command, args []string) error {
			if err := c.Validate(); err != nil {
				return err
			}
			return run(cmd, args)
		}
		parent.AddCommand(verb)
	}
	parent.Args = unknownCommand
	return parent
}

// noArguments is the cobra.PositionalArgs of a command without arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(cmd, fmt.Sprintf("unexpected argument %q", args[0]))
	}
	return nil
}

// arguments is the cobra.PositionalArgs of a command that needs from minimum to maximum arguments. what says what they are.
func arguments(what string, minimum, maximum int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < minimum || len(args) > maximum {
			return usageError(cmd, "expected "+what)
		}
		return nil
	}
}

// unknownCommand is the cobra.PositionalArgs of a command with subcommands, whose arguments are mistyped ones.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if suggestions := cmd.SuggestionsFor(args[0]); len(suggestions) > 0 {
		message += "; did you mean " + strings.Join(suggestions, " or ") + "?"
	}
	return usageError(cmd, message)
}

// flagError explains a flag that could not be parsed, with the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	message := err.Error()
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := unknown.GetSpecifiedName()
		// A long flag with a single dash is parsed as shorthand flags.
		if shorthands := unknown.GetSpecifiedShortnames(); shorthands != "" {
			name, _, _ = strings.Cut(shorthands, "=")
		}
		if flag := config.ClosestFlag(cmd.Flags(), name); flag != "" {
			message += "; did you mean --" + flag + "?"
		}
	}
	return usageError(cmd, message)
}

func usageError(cmd *cobra.Command, message string) error {
	return fmt.Errorf("%s\nSee '%s --help' for usage.", message, cmd.CommandPath()) //nolint:staticcheck // Shown to a person at the end.
}
