package shareable

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCloseDuringAReconnect: the goroutine that connects again waits for the work on the connection that it has made,
// once the View closes. So Close waits for that goroutine before it keeps other work from the connection.
func TestCloseDuringAReconnect(t *testing.T) {
	t.Parallel()
	s, _, _ := stage(t, Options{}, PublishOptions{})
	v := attached(t, s, AttachOptions{})
	v.again.Go(func() {
		<-v.ctx.Done()
		for range 10_000 {
			v.conn.waitWork()
			runtime.Gosched()
		}
	})
	require.NoError(t, v.Close())
}
