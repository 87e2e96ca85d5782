package shareable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// The pauses between two tries of an Attach that waits, where no event says when the next one
// helps: no socket is there yet, or the server is no store.
const (
	minAttachPause = time.Millisecond
	maxAttachPause = 100 * time.Millisecond
)

// attachWait is an Attach that waits. The options are resolved.
type attachWait struct {
	path, name string
	dev        *vmm.Device
	opts       AttachOptions

	noEvents bool // the server is no store
}

// run tries until it has a View or an error that no wait helps against. An error of the context
// comes with that of the last try.
func (w *attachWait) run(ctx context.Context) (*View, error) {
	told := false       // the last try began because the store has said that the object is there
	var waitedFor error // of the last try that has failed with something to wait for
	for pause := minAttachPause; ; {
		v, err := attachOnce(ctx, w.path, w.name, w.dev, w.opts)
		switch {
		case w.mayCome(err):
			waitedFor = err
		case err != nil && ctx.Err() != nil && waitedFor != nil: // the context has ended in the try
			return nil, fmt.Errorf("%w: %w", ctx.Err(), waitedFor)
		default:
			return v, err
		}
		if told {
			told = false // else a store that is wrong would keep this loop running
		} else {
			told, err = w.waitTold(ctx, err)
		}
		switch {
		case told:
			continue
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case !w.mayCome(err):
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		pause = min(2*pause, maxAttachPause)
	}
}

// mayCome reports whether an error passes once an owner listens or publishes the object, or its
// writer seals it. No object gets an ID that none has.
func (w *attachWait) mayCome(err error) bool {
	if _, isID := wire.ParseIDName(w.name); isID && errors.Is(err, ErrNotFound) {
		return false
	}
	return errors.Is(err, ErrOwnerGone) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotSealed)
}

// waitTold waits until a store says that the object can be had. Its error is why it did not; it is
// that of the try, err, if nothing can say it.
func (w *attachWait) waitTold(ctx context.Context, err error) (bool, error) {
	if errors.Is(err, ErrOwnerGone) {
		w.noEvents = false // the next server may be a store
		return false, err
	}
	if w.noEvents {
		return false, err
	}
	waitErr := w.askStore(ctx)
	switch {
	case waitErr == nil:
		return true, nil
	case errors.Is(waitErr, vmm.ErrNotSupported):
		w.noEvents = true
		return false, err
	case ctx.Err() != nil:
		return false, err
	}
	return false, waitErr
}

// askStore waits for the reply to WAIT, on a connection of its own.
func (w *attachWait) askStore(ctx context.Context) error {
	c, err := forStore{}.Dial(ctx, w.path, w.dev, w.opts, serve.Notified{Event: func(f wire.Frame) error {
		return fmt.Errorf("%w: %v", ErrProtocol, f.Type)
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	q := wire.Wait{Unsealed: w.opts.Unsealed, Name: w.name}
	return c.Call(ctx, wire.TypeWait, q.Append(nil), wire.TypeObject, func(f wire.Frame) error {
		_, err := wire.DecodeObject(f.Payload)
		return wireError(err)
	})
}
