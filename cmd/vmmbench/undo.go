package main

import (
	"errors"
	"slices"
)

// undo has functions that give back what was taken, in the order in which it was taken.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// close calls all functions, the last one first, and once only.
func (u *undo) close() error {
	var err error
	for _, f := range slices.Backward(*u) {
		err = errors.Join(err, f())
	}
	*u = nil
	return err
}

// onError is for defer: after an error it calls giveBack, and joins its error to the first.
func onError(err *error, giveBack func() error) {
	if *err != nil {
		*err = errors.Join(*err, giveBack())
	}
}

// noUndo is for what has nothing to undo.
func noUndo() error { return nil }
