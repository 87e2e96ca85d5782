package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// saysHello is a connection of which only the HELLO counts.
type saysHello struct{ serve.Client }

func (saysHello) Hello() wire.Hello { return wire.Hello{} }

// TestDeletedBeforeItsWriterKnows: an object has its name before its writer gets the reply,
// so another client can delete it by then.
func TestDeletedBeforeItsWriterKnows(t *testing.T) {
	w := &Writer{c: &Client{}, conn: saysHello{}}
	err := w.takeObject(wire.Frame{Payload: wire.Object{ID: 1, Max: 4096, State: wire.StateClosed, Access: wire.AccessReadWrite, Name: "x"}.Append(nil)})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.NotErrorIs(t, err, shareable.ErrProtocol)
}
