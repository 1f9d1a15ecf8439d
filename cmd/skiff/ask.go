package main

import (
	"context"
	"errors"
	"flag"
	"os"

	"skiff/internal/config"
	"skiff/internal/system"
)

func why(ctx context.Context, args []string) error {
	c := config.DefaultWhy()
	targets, err := readArguments("why pod/NAME", &c, args)
	if err != nil {
		return err
	}
	if len(targets) != 1 {
		return errors.New("why needs one pod: skiff why pod/NAME")
	}
	return system.Why(ctx, c, targets[0], os.Stdout)
}

func whatIf(ctx context.Context, args []string) error {
	c := config.DefaultWhatIf()
	return runPart("what-if", &c, args, func() error { return system.WhatIf(ctx, c, os.Stdin, os.Stdout) })
}

// readArguments reads flags and what stands among them, in any order.
func readArguments(name string, c settings, args []string) (others []string, err error) {
	flags := flag.NewFlagSet("skiff "+name, flag.ContinueOnError)
	c.Flags(flags)
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return others, c.Validate()
		}
		others, args = append(others, flags.Arg(0)), flags.Args()[1:]
	}
}
