package users

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestCopies: Wait waits for copies that began before it, and for no other.
func TestCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Copies
		c.Wait()
		require.False(t, c.UnderWay())
		first, second := c.Begin(), c.Begin()
		require.True(t, c.UnderWay())
		ended := make(chan struct{})
		go func() {
			c.Wait()
			close(ended)
		}()
		synctest.Wait()
		later := c.Begin()
		c.End(first)
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it has not waited for the second copy")
		default:
		}
		c.End(second)
		<-ended
		require.True(t, c.UnderWay(), "the later one")
		c.End(later)
		require.False(t, c.UnderWay())
	})
}
