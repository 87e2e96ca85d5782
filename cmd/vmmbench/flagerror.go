package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagError is the usageError for an error of pflag, without words of Go's packages.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var number *strconv.NumError
	switch {
	case errors.As(err, &unknown):
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" {
			err = fmt.Errorf("%w; did you mean --%s?", err, strings.ReplaceAll(near, ", ", ", --"))
		}
	case !errors.As(err, &invalid):
	case errors.As(err, &number):
		want := "a number"
		if f := invalid.GetFlag(); strings.Contains(f.Value.Type(), "int") {
			want = "a whole number"
			if strings.HasPrefix(f.Value.Type(), "uint") {
				want += ", 0 or more"
			}
			if strings.HasSuffix(f.Value.Type(), "Slice") {
				want = "whole numbers, with commas between"
			}
		}
		if errors.Is(number, strconv.ErrRange) {
			want += " of 64 bits at most"
		}
		err = fmt.Errorf("--%s %q: want %s", invalid.GetFlag().Name, invalid.GetValue(), want)
	case invalid.GetFlag().Value.Type() == "duration":
		err = fmt.Errorf("--%s %q: want a time such as 500ms, 10s or 2m", invalid.GetFlag().Name, invalid.GetValue())
	}
	return usageError{err}
}

// unknownCommand is the usageError for a word that is no command.
func unknownCommand(c *cobra.Command, word string) error {
	var names []string
	for _, sub := range c.Root().Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	err := fmt.Errorf("unknown command or argument %q", word)
	if near := nearest(word, names); near != "" {
		err = fmt.Errorf("%w; did you mean %s?", err, near)
	}
	return usageError{err}
}
