package shareable

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// The reader in Python follows an object of a store from one writer to the next, and to its
// end by force.
func TestPythonFollowsAStore(t *testing.T) {
	t.Parallel()
	python(t, "import mmap")
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(2)
	first := x.lease()
	first.Publish(100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const script = `
import sys
sys.path.insert(0, "../examples/python")
from cuvmm_reader import Reader, Refused
try:
    Reader(sys.argv[1], "x")
except Refused as e:
    print("refused", e.code, flush=True)
with Reader(sys.argv[1], "x", unsealed=True) as r:
    for n in 100, 200, 300:
        assert r.wait(n, 60)
        print(r.length(), sum(r.bytes()), flush=True)
    while r.sealed is None:
        r.step(60)
    print("sealed", r.length(), flush=True)
    while not r.deleted:
        r.step(60)
    print("deleted", r.length(), r.end, flush=True)
`
	cmd := exec.CommandContext(ctx, "python3", "-BS", "-c", script, s.srv.Path())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	says := func(line string) {
		t.Helper()
		require.True(t, lines.Scan(), "the end instead of %q", line)
		require.Equal(t, line, lines.Text())
	}
	sum := func(n int) (sum int) {
		for _, b := range x.mem[:n] {
			sum += int(b)
		}
		return sum
	}
	says(fmt.Sprint("refused ", wire.CodeNotSealed))
	says(fmt.Sprint(100, sum(100)))
	x.EndLease()
	second := x.lease()
	second.Publish(200)
	x.Wrote()
	says(fmt.Sprint(200, sum(200)))
	second.Publish(300)
	x.Wrote()
	says(fmt.Sprint(300, sum(300)))
	require.NoError(t, x.Seal(serve.Seal{Length: 400}))
	says("sealed 400")
	x.Retire(ctx)
	require.NoError(t, x.Close())
	says("deleted 0 0")
	require.NoError(t, cmd.Wait())
}

// The reader in Python that has seen what a writer without a lease has stored says so.
func TestPythonSeesTooMuch(t *testing.T) {
	t.Parallel()
	python(t, "import mmap")
	s := newSmallStore(t, Options{})
	x := s.object(4)
	x.grow(2)
	w := x.lease()
	w.Publish(100)
	const script = `
import sys
sys.path.insert(0, "../examples/python")
from cuvmm_reader import Reader, TakenBack
with Reader(sys.argv[1], "x", unsealed=True) as r:
    for n in 100, 300:
        assert r.wait(n, 60)
        print(r.length(), flush=True)
    try:
        r.wait(1000, 60)
    except TakenBack as e:
        print(r.length(), e, flush=True)
`
	ctx, cancel := contextIn(t, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-BS", "-c", script, s.srv.Path())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	says := func(line string) {
		t.Helper()
		require.True(t, lines.Scan(), "the end instead of %q", line)
		require.Equal(t, line, lines.Text())
	}
	says("100")
	late := beyondItsLease(t, x, w)
	says("300")
	late()
	says("100 the writer has lost its lease: 100 of the 300 bytes that it showed count")
	require.NoError(t, cmd.Wait())
}
