//go:build linux

package ipc_test

import (
	"fmt"
	"log"
	"syscall"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// A pool of the driver's that is imported. Another process gets the descriptor over a socket, and
// the token in any way.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dev, err := vmm.Open("host")
	check(err)
	s, err := dev.NewStream()
	check(err)
	own, err := pool.NewDriver(dev, pool.Options{Share: vmm.ShareFD})
	check(err)
	b, err := own.Alloc(s, 1<<20)
	check(err)
	check(s.Fill(b.Ptr(), 7, 1, b.Size()))
	check(s.Sync())
	fd, err := ipc.ExportPool(own)
	check(err)
	token, err := ipc.ExportPointer(own, b)
	check(err)

	in, err := ipc.ImportPool(dev, fd)
	check(err)
	check(syscall.Close(fd))
	same, err := in.Import(token)
	check(err)
	got := make([]byte, 3)
	check(dev.CopyOut(got, same.Ptr()))
	fmt.Println(got, same.Size())

	check(same.FreeNow()) // who imports frees first
	check(in.Close())
	check(own.FreeNow(b))
	check(own.Close())
	check(s.Close())
	check(dev.Close())
	// Output: [7 7 7] 1048576
}
