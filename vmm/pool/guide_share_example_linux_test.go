package pool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const (
	importerEnv = "POOL_TEST_IMPORTER" // makes a process the other one of ExampleNewDriver_twoProcesses
	sharedFD    = 3                    // the first descriptor that exec.Cmd passes on
)

// offer is what the process that exports tells the other one, beside the pool's descriptor.
type offer struct {
	Block    ipc.Token
	Ready    ipc.Handle // of an event that is recorded once the block is written
	Finished ipc.Handle // of one that the other process records once it has freed the block
}

// result is what the other process tells once it has recorded the event.
type result struct{ Sum uint64 }

// Have another process read a block of a pool of the driver's, in the order of the guide: each
// process waits in a stream for the other one's event. What they tell each other says that the
// event has been recorded, and not that it has been reached. The other process is importBlock.
func ExampleNewDriver_twoProcesses() {
	g := openGuide(pool.Options{})
	defer g.close()
	for _, f := range []vmm.Feature{vmm.FeaturePoolShareFD, vmm.FeatureLegacyIPC} {
		if err := g.dev.Supports(f); err != nil {
			fmt.Println(err)
			return
		}
	}
	p := the(pool.NewDriver(g.dev, pool.Options{Share: vmm.ShareFD}))
	ready, finished := the(g.dev.NewEvent(vmm.EventInterprocess)), the(g.dev.NewEvent(vmm.EventInterprocess))

	// The other process, which gets the pool as its first descriptor.
	f := os.NewFile(uintptr(the(ipc.ExportPool(p))), "pool")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, the(os.Executable()), "-test.run=^TestImporter$")
	cmd.Env = append(os.Environ(), importerEnv+"="+g.dev.Info().Open)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{f}, os.Stderr
	in, out := the(cmd.StdinPipe()), the(cmd.StdoutPipe())
	ok(errors.Join(cmd.Start(), f.Close()))

	b := the(p.Alloc(g.stream, guideSize))
	g.work(g.stream, b, 0)
	ok(ready.Record(g.stream))
	ok(json.NewEncoder(in).Encode(offer{
		Block:    the(ipc.ExportPointer(p, b)),
		Ready:    the(ipc.EventHandle(ready)),
		Finished: the(ipc.EventHandle(finished)),
	}))
	var r result
	ok(json.NewDecoder(out).Decode(&r))
	fmt.Println("the other process reads a sum of", r.Sum)
	ok(g.stream.Wait(finished))
	ok(p.Free(g.stream, b))

	_, _ = io.Copy(io.Discard, out)
	ok(cmd.Wait())
	ok(errors.Join(finished.Close(), ready.Close(), p.Close()))
	// Output:
	// the other process reads a sum of 523776
}

// importBlock is what the other process does: it gets an offer from r and reads the block.
func importBlock(device string, f *os.File, r io.Reader, w io.Writer) error {
	var o offer
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return err
	}
	dev := the(vmm.Open(device))
	defer dev.Close()
	in, err := ipc.ImportPool(dev, int(f.Fd()))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	defer in.Close()
	ready, finished := the(ipc.OpenEvent(dev, o.Ready)), the(ipc.OpenEvent(dev, o.Finished))
	kernels := the(kernel.LoadBuiltins(dev))
	s := the(dev.NewStream())

	ok(s.Wait(ready))
	b := the(in.Import(o.Block))
	sum := the(kernel.SumUint[uint32](kernels, s, b))
	ok(b.Free(s))
	ok(finished.Record(s))
	ok(json.NewEncoder(w).Encode(result{sum}))
	// The stream's Close waits, so this process ends after its work.
	return errors.Join(s.Close(), kernels.Close(), finished.Close(), ready.Close())
}

// TestImporter is the other process of ExampleNewDriver_twoProcesses, and nothing in any other.
func TestImporter(t *testing.T) {
	device := os.Getenv(importerEnv)
	if device == "" {
		t.Skip("is run by an example")
	}
	require.NoError(t, importBlock(device, os.NewFile(sharedFD, "pool"), os.Stdin, os.Stdout))
}

// The importer says why it cannot use what it gets.
func TestImportOfSomethingElse(t *testing.T) {
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	require.ErrorIs(t, importBlock("host", f, strings.NewReader("{}"), io.Discard), vmm.ErrInvalid)
}
