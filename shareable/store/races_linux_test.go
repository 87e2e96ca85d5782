package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
)

// TestWaitsUnderEveryName: an object that goes ends the waits under all its names.
func TestWaitsUnderEveryName(t *testing.T) {
	ends := map[string]func(*Client, *Writer) error{
		"abort":  func(_ *Client, w *Writer) error { return w.Abort(t.Context()) },
		"close":  func(_ *Client, w *Writer) error { return w.Close() },
		"delete": func(c *Client, _ *Writer) error { return c.Delete(t.Context(), "first", DeleteOptions{}) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := listening(t, Options{})
			c := clientOf(t, s)
			w := writer(t, c, "first", CreateOptions{Size: 1000})
			require.NoError(t, c.Link(t.Context(), "first", "second"))
			waited := make(chan error, 1)
			go func() { _, err := c.Get(within(t), "second", GetOptions{Wait: true}); waited <- err }()
			require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
			require.NoError(t, end(c, w))
			require.ErrorIs(t, <-waited, shareable.ErrAborted)
		})
	}
}
