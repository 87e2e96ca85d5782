package host_test

import (
	"fmt"
	"runtime"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func Example() {
	if runtime.GOOS != "linux" {
		fmt.Println("hello")
		return
	}
	d := host.New(host.Config{Memory: 64 << 20})
	dev, err := d.Open(0)
	check(err)
	defer dev.Close()

	const size = 2 << 20
	p, err := d.Reserve(16*size, 0)
	check(err)
	home := driver.Location{Kind: driver.LocationDevice, ID: 0}
	h, err := d.Create(size, driver.Prop{Location: home})
	check(err)
	check(d.Map(p, size, h))
	check(d.SetAccess(p, size, []driver.Grant{{To: home, Access: driver.AccessReadWrite}}))

	check(dev.CopyIn(p, []byte("hello")))
	out := make([]byte, 5)
	check(dev.CopyOut(out, p))
	fmt.Println(string(out))

	check(dev.Sync()) // the fence: nothing may use the memory any more
	check(d.Unmap(p, size))
	check(d.Release(h))
	check(d.Free(p, 16*size))
	// Output: hello
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
