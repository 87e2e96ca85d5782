package ipc_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// inheritedFD is the first of a child's files.
const inheritedFD = 3

// pool makes a pool with a block, sends its descriptor, says the token, and does as told.
func (p *part) pool() {
	own, err := pool.NewDriver(p.dev, pool.Options{Share: vmm.ShareFD})
	must(err)
	s, err := p.dev.NewStream()
	must(err)
	b, err := own.Alloc(s, mib)
	must(err)
	must(s.Fill(b.Ptr(), 5, 1, mib))
	must(s.Sync())
	fd, err := ipc.ExportPool(own)
	must(err)
	must(unix.Sendmsg(inheritedFD, []byte{1}, unix.UnixRights(fd), nil, 0))
	must(unix.Close(fd))
	token, err := ipc.ExportPointer(own, b)
	must(err)
	fmt.Println(quoted(token))
	for {
		words, ok := p.next()
		if !ok {
			break
		}
		switch words[0] {
		case "read":
			got := make([]byte, 1)
			must(p.dev.CopyOut(got, b.Ptr()))
			fmt.Println(got[0])
		case "free":
			must(own.FreeNow(b))
			fmt.Println("freed")
		}
	}
	must(s.Close())
	must(own.Close())
}

// importer imports the pool that it inherits, says what access its device has and grants it what
// is missing. It imports the block that it is told, and writes.
func (p *part) importer() {
	in, err := ipc.ImportPool(p.dev, inheritedFD)
	must(err)
	a, err := in.Access(p.dev)
	must(err)
	fmt.Println(a)
	if a == vmm.AccessNone {
		must(in.Grant(vmm.AccessReadWrite, p.dev))
	}
	for p.in.Scan() {
		number, text, _ := strings.Cut(p.in.Text(), " ")
		v, err := strconv.Atoi(number)
		must(err)
		var token ipc.Token
		unquoted(text, &token)
		b, err := in.Import(token)
		must(err)
		got := make([]byte, 1)
		must(p.dev.CopyOut(got, b.Ptr()))
		must(p.dev.CopyIn(b.Ptr(), []byte{byte(v)}))
		must(b.FreeNow())
		fmt.Println(got[0])
	}
	must(in.Close())
}

// receivePool starts a process that sends a pool by a socket, and imports that.
func receivePool(t *testing.T, dev *vmm.Device, start func(there *os.File) *child) (*child, *ipc.Pool) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	there := os.NewFile(uintptr(ends[1]), "there")
	c := start(there)
	require.NoError(t, there.Close())
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ends[0], data, control, unix.MSG_CMSG_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Close(ends[0]))
	messages, err := unix.ParseSocketControlMessage(control[:n])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	in, err := ipc.ImportPool(dev, fds[0])
	require.NoError(t, err)
	require.NoError(t, unix.Close(fds[0]))
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	return c, in
}

// remotePool is a pool of another process, imported here, and the token of its block.
func remotePool(t *testing.T, dev *vmm.Device, driver string) (*child, *ipc.Pool, ipc.Token) {
	t.Helper()
	c, in := receivePool(t, dev, func(there *os.File) *child { return spawn(t, "pool", driver, there) })
	var token ipc.Token
	unquoted(c.says(), &token)
	return c, in, token
}

func TestPoolOfAnotherProcess(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		c, in, token := remotePool(t, dev, d.Name)
		b, err := in.Import(token)
		require.NoError(t, err)
		again, err := in.Import(token)
		require.NoError(t, err)
		require.Equal(t, b.Ptr(), again.Ptr())
		require.Equal(t, byte(5), first(t, dev, b.Ptr()))
		require.NoError(t, dev.CopyIn(b.Ptr(), []byte{6}))
		require.Equal(t, "6", c.does("read"))
		require.NoError(t, b.FreeNow())
		require.Equal(t, byte(6), first(t, dev, again.Ptr()))
		s, err := dev.NewStream()
		require.NoError(t, err)
		require.NoError(t, again.Free(s))
		require.NoError(t, s.Sync())

		// The token may come as the 64 bytes alone.
		b, err = in.Import(ipc.Token{Raw: token.Raw, Size: mib})
		require.NoError(t, err)
		require.NoError(t, b.FreeNow())
		require.Equal(t, "freed", c.does("free"))
		require.NoError(t, s.Close())
	})
}

func TestPoolExporterIsKilled(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		c, in, token := remotePool(t, dev, d.Name)
		b, err := in.Import(token)
		require.NoError(t, err)
		c.kill()
		typed(t, dev.CopyOut(make([]byte, 1), b.Ptr()))
		again, err := in.Import(token)
		require.NoError(t, err, "it is imported")
		_, err = in.Stats()
		typed(t, err)
		_, err = in.TrimTo(0)
		typed(t, err)
		require.NoError(t, again.FreeNow())
		require.NoError(t, b.FreeNow())
		b, err = in.Import(token) // the descriptor keeps the memory, or the driver says it is gone
		if err == nil {
			err = b.FreeNow()
		}
		typed(t, err)
	})
}

// exported makes a pool and a descriptor of it.
func exported(t *testing.T, dev *vmm.Device) (*pool.DriverPool, *os.File) {
	t.Helper()
	own, err := pool.NewDriver(dev, pool.Options{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := ipc.ExportPool(own)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "pool")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return own, f
}

func TestWeExportPool(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) { weExportPool(t, d.Device(t), d.Name, vmm.AccessReadWrite) })
}

// TestImporterDoesNotSeeTheDevice whose memory the pool has: it imports by the one that it
// sees, which has no access before it is granted. Processes of the host driver see both.
func TestImporterDoesNotSeeTheDevice(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Devices(t, 2)[0]
		there := "host:1"
		if d.Name == "cuda" {
			t.Setenv("CUDA_VISIBLE_DEVICES", "1")
			there = "cuda:0"
		}
		weExportPool(t, dev, there, vmm.AccessNone)
	})
}

// weExportPool has processes import a pool of dev on a device there, which has that access at
// first.
func weExportPool(t *testing.T, dev *vmm.Device, there string, has vmm.Access) {
	t.Helper()
	own, f := exported(t, dev)
	s, err := dev.NewStream()
	require.NoError(t, err)
	b, err := own.Alloc(s, mib)
	require.NoError(t, err)
	require.NoError(t, s.Fill(b.Ptr(), 1, 1, mib))
	require.NoError(t, s.Sync())
	token, err := ipc.ExportPointer(own, b)
	require.NoError(t, err)
	for v := 1; v < 4; v++ {
		c := spawn(t, "importer", there, f)
		require.Equal(t, has.String(), c.says())
		require.Equal(t, fmt.Sprint(v), c.does(v+1, quoted(token)))
		if v == 2 { // killed while it has the pool
			c.kill()
			continue
		}
		require.NoError(t, c.in.Close())
		c.ends()
	}
	require.Equal(t, byte(4), first(t, dev, b.Ptr()))
	require.NoError(t, own.Free(s, b))
	require.NoError(t, s.Close())
	require.NoError(t, own.Close())
}
