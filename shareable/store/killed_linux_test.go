package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// roleVar is the socket of a process that this binary plays for TestKilledWriters.
const roleVar = "STORE_TEST_SOCKET"

// waveAt is what stands at each offset of the object.
func waveAt(off uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		at := off + uint64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16*7)
	}
	return b
}

// checkWave reads the first n bytes of r and looks at each.
func checkWave(r io.ReaderAt, n uint64) error {
	b := make([]byte, n)
	if n > 0 {
		if _, err := r.ReadAt(b, 0); err != nil {
			return err
		}
	}
	if want := waveAt(0, int(n)); !bytes.Equal(b, want) {
		return fmt.Errorf("%d bytes are not what was written", n)
	}
	return nil
}

// appendForEver is a process that takes the object over, looks at every byte, and appends
// until it is killed. It says the length that it found, and each that it has published.
func appendForEver(path string) error {
	dev, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := Connect(ctx, path, dev, ClientOptions{})
	if err != nil {
		return err
	}
	w, err := c.Append(ctx, "k", AppendOptions{Wait: true})
	if err != nil {
		return err
	}
	if err := checkWave(w.Range(), w.Len()); err != nil {
		return err
	}
	fmt.Println("found", w.Len())
	for {
		if w.Len() < 100<<20 { // else the object is large enough
			if err := w.Append(waveAt(w.Len(), 1+rand.IntN(20_000))); err != nil {
				return err
			}
		}
		n := w.Len()
		if err := w.Flush(ctx); err != nil {
			return err
		}
		fmt.Println("has", n)
	}
}

// said is the next number after a word in what a process says.
func said(t *testing.T, lines *bufio.Scanner, word string) uint64 {
	t.Helper()
	require.True(t, lines.Scan(), "the process has ended: %v", lines.Err())
	rest, ok := strings.CutPrefix(lines.Text(), word+" ")
	require.True(t, ok, lines.Text())
	n, err := strconv.ParseUint(rest, 10, 64)
	require.NoError(t, err)
	return n
}

// TestKilledWriters: a process that appends is killed, and the next one finds every byte that
// it has published and appends on. A reader follows all of them.
func TestKilledWriters(t *testing.T) {
	s := listening(t, Options{})
	c := clientOf(t, s)
	self, err := os.Executable()
	require.NoError(t, err)
	w := writer(t, c, "k", CreateOptions{Size: 128 << 20, Growable: true, Durable: true})
	require.NoError(t, w.Close())
	b := got(t, c, "k", GetOptions{Unsafe: true})
	times := 20
	var kept uint64 // what was published for certain when a process was killed
	for i := range times {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), roleVar+"="+s.Path())
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		found := said(t, lines, "found")
		require.GreaterOrEqual(t, found, kept, "process %d", i)
		if b.Len() != found { // nothing was published since, or before
			require.NoError(t, b.Wait(within(t), found))
		}
		for range 1 + rand.IntN(20) {
			kept = said(t, lines, "has")
		}
		timer := time.AfterFunc(time.Duration(rand.IntN(int(2*time.Millisecond))), func() { _ = cmd.Process.Kill() })
		for lines.Scan() { // until it is dead
		}
		timer.Stop()
		require.Error(t, cmd.Wait())
		require.NoError(t, b.Wait(within(t), kept))
	}
	last, err := c.Append(t.Context(), "k", AppendOptions{Wait: true})
	require.NoError(t, err)
	require.GreaterOrEqual(t, last.Len(), kept)
	require.NoError(t, checkWave(last.Range(), last.Len()))
	require.NoError(t, last.Append(waveAt(last.Len(), 12345)))
	require.NoError(t, last.Seal(t.Context(), shareable.SealOptions{}))
	n := last.Len()
	require.NoError(t, last.Close())
	require.NoError(t, b.View().WaitSealed(within(t)))
	require.Equal(t, n, b.Len())
	require.NoError(t, checkWave(b, n))
	require.Equal(t, 0, s.Stats().Leases)
}
