package shareable

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestUnknownNameIsSaidOnce: what a program sees that asks for a name which no object has.
func TestUnknownNameIsSaidOnce(t *testing.T) {
	t.Parallel()
	s, _, _ := stage(t, Options{}, PublishOptions{})
	_, err := Attach(t.Context(), s.Path(), "y", vmmtest.Device(t), AttachOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	require.Equal(t, 1, strings.Count(err.Error(), "no object"), err)
}

// TestOwnersWords: an error that the other side has sent says what kind it is once, and whose words
// they are where that is not plain.
func TestOwnersWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code uint32
		text string
		is   error
		want string
	}{
		{wire.CodeNotFound, "no object of this name", ErrNotFound, "no object of this name"},
		{wire.CodeNotFound, "", ErrNotFound, "no object of this name"},
		{wire.CodeNotFound, "no object of this name: it was deleted", ErrNotFound, `no object of this name: the server says "it was deleted"`},
		{wire.CodeNotFound, "not attached", ErrNotFound, `no object of this name: the server says "not attached"`},
		{wire.CodeSealed, ErrSealed.Error(), ErrSealed, ErrSealed.Error()},
		{wire.CodeNotSealed, "", ErrNotSealed, "not sealed"},
		{wire.CodeAborted, ErrAborted.Error(), ErrAborted, ErrAborted.Error()},
		{wire.CodeClosed, "", ErrOwnerGone, "the owner is gone"},
		{wire.CodeLimit, vmm.ErrLimit.Error(), vmm.ErrLimit, vmm.ErrLimit.Error() + ": the server says so"},
		{wire.CodeBusy, "in use: the name is taken", vmm.ErrBusy, `in use: the server says "the name is taken"`},
		{wire.CodeBusy, `create "x": in use: the name is taken`, vmm.ErrBusy, `the server says "create \"x\": in use: the name is taken"`},
		{wire.CodeInternal, "no\x1bluck", errRefused, `refused: the server says "no\x1bluck"`},
	} {
		err := peerError(wire.Error{Code: c.code, Text: c.text})
		require.ErrorIs(t, err, c.is)
		require.Equal(t, c.want, err.Error())
	}
}

// TestPublishedBytesAreNamed: what a range or a reservation refuses because bytes are published
// says under which name.
func TestPublishedBytesAreNamed(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	busy := func(err error, says string) {
		t.Helper()
		require.ErrorIs(t, err, vmm.ErrBusy)
		require.ErrorContains(t, err, "held: "+says)
	}
	busy(g.Close(), `published as "x"`)
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	busy(g.SetLen(99), `published as "x" [0x0, 0x64)`)
	require.NoError(t, p.Retire(t.Context(), 50))
	busy(g.SetLen(49), `published as "x" [0x0, 0x32)`)
	require.NoError(t, g.Grow(100))

	stream, open := gate(t, g.Device())
	event, err := stream.Record()
	require.NoError(t, err)
	require.NoError(t, p.PublishAfter(90, event))
	busy(g.SetLen(49), `published as "x" [0x0, 0x32); about to be published as "x" [0x0, 0x5a)`)
	open()
	require.NoError(t, stream.Close())
	require.NoError(t, p.Close())
	require.NoError(t, g.SetLen(0), "nothing is held any more")
	require.NoError(t, s.Close())

	w := newSpans(t, Options{})
	w.publish(PublishOptions{})
	busy(w.res.UnmapNow(spanPage, 2*spanPage), fmt.Sprintf(`published as "x" [%#x, %#x)`, spanOff, spanOff+spanLen))
}
