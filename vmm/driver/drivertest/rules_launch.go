package drivertest

import (
	"encoding/binary"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func launchRules() []Rule {
	kernels := []driver.Feature{driver.FeatureKernels}
	gated := []driver.Feature{driver.FeatureKernels, driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "module-unload", Says: "a module that was unloaded is unknown, and so are its functions: ErrInvalid", Source: seam, needs: kernels, run: onInterface(moduleUnload)},
		{Name: "module-bad-image", Says: "code that cannot be parsed is ErrInvalid, or ErrNotSupported on a device that takes no such code", Source: seam, needs: kernels, run: moduleBadImage},
		{Name: "launch-missing", Says: "a name that no kernel of the code has is ErrInvalid", Source: manual, needs: kernels, run: onDevice(launchMissing)},
		{Name: "launch-args", Says: "Params lists where each parameter lies, and how large it is", Source: manual, needs: kernels, run: onInterface(launchArgs)},
		{Name: "launch-limits", Says: "a grid, block or shared memory beyond the limits is ErrInvalid, and nothing runs", Source: manual, needs: kernels, run: onStream(1, launchLimits)},
		{Name: "launch-clusters", Says: "clusters that do not divide the grid, or are of more blocks than any device has, are ErrInvalid, or ErrNotSupported on a device without clusters", Source: manual, needs: gated, run: onStream(1, launchClusters)},
		{Name: "launch-occupancy", Says: "some blocks of a legal size run at once, and a block that is suggested is legal", Source: manual, needs: kernels, run: onInterface(launchOccupancy)},
		{Name: "launch-runs", Says: "a kernel runs later, once for each thread, with the arguments and the memory that it got", Source: guide, needs: gated, run: onStream(1, launchRuns)},
		{Name: "launch-order", Says: "a kernel runs after the earlier work of its stream and before the later", Source: guide, needs: gated, run: onStream(3, launchOrder)},
		{Name: "launch-copies", Says: "Launch keeps nothing that it was passed", Source: seam, needs: gated, run: onStream(1, launchCopies)},
		{Name: "launch-memory", Says: "memory that a launch uses may go when the launch has run, also if it is of the whole mapping", Source: contract(4), needs: gated, run: onStream(4, launchMemory)},
		{Name: "priorities", Says: "a stream can have any priority: one beyond the range is taken for the nearest in it", Source: manual, run: onInterface(priorities)},
	}
}

func moduleUnload(c *check, d driver.Device, i driver.Launcher) {
	m, _, err := i.LoadModule(kernels())
	c.must(err, "load a module")
	f := valueOf(i.Function(m, addWords)).must(c, "find a kernel")
	p, _ := c.chunks(1)
	s := c.stream(d)
	c.must(i.UnloadModule(m), "unload")
	c.want(i.UnloadModule(m), "unload again", driver.ErrInvalid)
	c.want(errOf(i.Function(m, addWords)), "find a kernel of an unloaded module", driver.ErrInvalid)
	c.want(i.Launch(f, addLaunch(p, 1, 1), s), "launch a kernel of an unloaded module", driver.ErrInvalid)
	c.want(errOf(i.FunctionInfo(f)), "ask for a kernel of an unloaded module", driver.ErrInvalid)
	c.sync(d, s)
}

func moduleBadImage(c *check) {
	i := as[driver.Launcher](c, c.dev(0))
	for _, image := range [][]byte{nil, {}, []byte("no code"), []byte(badPTX)} {
		m, _, err := i.LoadModule(driver.Code{Image: image})
		if err == nil {
			c.must(i.UnloadModule(m), "unload")
		}
		c.want(err, "load what is no code", driver.ErrInvalid, driver.ErrNotSupported)
	}
}

func launchMissing(c *check, d driver.Device) {
	c.kernel(d, addWords)
	i := as[driver.Launcher](c, d)
	m := c.held.modules[0].it
	for _, name := range []string{"", "add_u3", "add_u322", "ADD_U32", "add_u32_n"} {
		c.want(errOf(i.Function(m, name)), "find "+name, driver.ErrInvalid)
	}
}

func launchArgs(c *check, d driver.Device, i driver.Launcher) {
	for name, want := range map[string][]driver.Param{addWords: addParams(), storeOne: storeParams()} {
		f := c.kernel(d, name)
		got := valueOf(i.Params(f)).optional(c, "Params")
		if !slices.Equal(got, want) {
			c.Errorf("the parameters of %s are %v, want %v", name, got, want)
		}
	}
}

func launchLimits(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	const kib = 1 << 10
	i := as[driver.Launcher](c, d)
	f := c.kernel(d, addWords)
	info := valueOf(i.FunctionInfo(f)).must(c, "ask for the kernel")
	if info.MaxThreads < 1 || info.MaxThreads > 1024 {
		c.Errorf("a block has up to %d threads", info.MaxThreads)
	}
	for _, bad := range []struct {
		what   string
		change func(*driver.Launch)
	}{
		{"a block of 1025 threads", func(l *driver.Launch) { l.Block = driver.Dim{X: 1025} }},
		{"a block of 33 times 32 threads", func(l *driver.Launch) { l.Block = driver.Dim{X: 33, Y: 32} }},
		{"a block of 65 threads in z", func(l *driver.Launch) { l.Block = driver.Dim{X: 1, Y: 1, Z: 65} }},
		{"a grid of 2^31 blocks in x", func(l *driver.Launch) { l.Grid = driver.Dim{X: 1 << 31} }},
		{"a grid of 65536 blocks in y", func(l *driver.Launch) { l.Grid = driver.Dim{X: 1, Y: 1 << 16} }},
		{"a grid of 65536 blocks in z", func(l *driver.Launch) { l.Grid = driver.Dim{X: 1, Y: 1, Z: 1 << 16} }},
		{"more shared memory than was allowed", func(l *driver.Launch) { l.Shared = 48*kib + 1 }},
		{"more shared memory than there is", func(l *driver.Launch) { l.Shared = 1 << 30 }},
	} {
		l := addLaunch(p, 1, 1)
		bad.change(l)
		c.want(i.Launch(f, l, s), "launch "+bad.what, driver.ErrInvalid)
	}
	c.want(i.SetMaxDynamicShared(f, 1<<30), "allow 1 GiB of shared memory", driver.ErrInvalid)
	c.sync(d, s)
	c.words(d, p, 1, 0)
	// At the limits it runs, or would on a larger GPU.
	allowed := uint32(48 * kib)
	if err := i.SetMaxDynamicShared(f, 64*kib); err == nil {
		allowed = 64 * kib
	} else {
		c.want(err, "allow 64 KiB of shared memory", driver.ErrInvalid)
	}
	l := addLaunch(p, 1, 1)
	l.Shared = allowed
	c.must(i.Launch(f, l, s), "launch with %d bytes of shared memory", allowed)
	l = addLaunch(p, 1, 1)
	l.Block = driver.Dim{X: info.MaxThreads}
	c.must(i.Launch(f, l, s), "launch a block of %d threads", info.MaxThreads)
	c.must(i.Launch(f, &driver.Launch{Args: l.Args, Memory: l.Memory}, s), "launch one thread")
	c.sync(d, s)
}

func launchClusters(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	i := as[driver.Launcher](c, d)
	f := c.kernel(d, addWords)
	for _, bad := range []struct{ grid, cluster uint32 }{{3, 2}, {64, 64}} {
		l := addLaunch(p, 1, 1)
		l.Grid, l.Cluster = driver.Dim{X: bad.grid}, driver.Dim{X: bad.cluster}
		c.want(i.Launch(f, l, s), "launch clusters", driver.ErrInvalid, driver.ErrNotSupported)
	}
	c.sync(d, s)
	c.words(d, p, 1, 0)
}

func launchOccupancy(c *check, d driver.Device, i driver.Launcher) {
	f := c.kernel(d, addWords)
	info := valueOf(i.FunctionInfo(f)).must(c, "ask for the kernel")
	for _, n := range []uint32{1, 32, 256, info.MaxThreads} {
		blocks := valueOf(i.Occupancy(f, n, 0)).must(c, "ask for the occupancy of %d threads", n)
		if blocks < 1 {
			c.Errorf("%d blocks of %d threads run at once", blocks, n)
		}
	}
	c.want(errOf(i.Occupancy(f, 0, 0)), "ask for the occupancy of no threads", driver.ErrInvalid)
	n, blocks, err := i.SuggestBlock(f, 1<<10)
	c.must(err, "ask for a block")
	if n < 1 || n > info.MaxThreads || blocks < 1 {
		c.Errorf("%d blocks of %d threads are suggested, and a block has up to %d", blocks, n, info.MaxThreads)
	}
}

func launchRuns(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	const n, v = 1000, 7
	f := c.kernel(d, addWords)
	e := c.event(d, 0)
	g := c.hold(d, s)
	c.launch(d, f, addLaunch(p+4, n, v), s)
	c.record(d, e, s)
	c.words(d, p, n+2, 0)
	c.done(d, e, false)
	c.openAndSync(g, d, s)
	c.words(d, p, 1, 0)
	c.words(d, p+4, n, v)
	c.words(d, p+4+4*n, 1, 0)
}

func launchOrder(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	f := c.kernel(d, addWords)
	n := uint32(c.gran / 4)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.launch(d, f, addLaunch(p, n, 1), s)
	c.copyAll(d, c.chunk(p, 1), p, s)
	c.launch(d, f, addLaunch(c.chunk(p, 1), n, 1), s)
	c.launch(d, f, addLaunch(c.chunk(p, 1), n, 1), s)
	c.copyAll(d, c.chunk(p, 2), c.chunk(p, 1), s)
	c.fillAll(d, p, 9, s)
	c.openAndSync(g, d, s)
	c.words(d, c.chunk(p, 2), n, 0x01010104)
	c.words(d, p, n, 0x09090909)
}

func launchCopies(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	f := c.kernel(d, addWords)
	g := c.hold(d, s)
	l := addLaunch(p, 10, 1)
	c.launch(d, f, l, s)
	binary.LittleEndian.PutUint32(l.Args[12:], 1000)
	l.Memory[0] = driver.Span{}
	l.Grid.X = 0
	c.openAndSync(g, d, s)
	c.words(d, p, 10, 1)
}

func launchMemory(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	f := c.kernel(d, addWords)
	c.unmap(c.chunk(p, 2), c.gran)
	g := c.hold(d, s)
	// The memory goes on up to the hole.
	l := addLaunch(p+4, uint32(2*c.gran/4-1), 1)
	l.Memory[0].Size = 0
	c.launch(d, f, l, s)
	c.unmap(c.chunk(p, 3), c.gran)
	c.openAndSync(g, d, s)
	c.words(d, p+4, uint32(2*c.gran/4-1), 1)
	c.unmap(p, 2*c.gran)
	c.must(c.returns("sync", d.Sync), "sync afterwards")
}

func priorities(c *check, d driver.Device, i driver.StreamPriorities) {
	least, greatest, err := i.Priorities()
	c.optional(err, "StreamPriorities")
	if greatest > least {
		c.Errorf("the priorities go from %d down to %d", least, greatest)
	}
	p, _ := c.chunks(1)
	for k, priority := range []int{least, greatest, least + 1, greatest - 1, 1 << 20, -1 << 20} {
		s := valueOf(i.NewStreamPriority(priority)).must(c, "make a stream of priority %d", priority)
		c.held.streams = append(c.held.streams, owned[driver.Stream]{d, s})
		c.fillAll(d, p, byte(k+1), s)
		c.sync(d, s)
		c.reads(d, p, c.gran, byte(k+1))
	}
}

// launchCalls is every call of Launcher, Grapher and StreamPriorities that a lost device
// refuses on entry. All that they name is of that device.
func launchCalls(c *check, d driver.Device, f driver.Function, p driver.Ptr, s driver.Stream) map[string]func() error {
	c.Helper()
	l, g, i := as[driver.Launcher](c, d), as[driver.Grapher](c, d), as[driver.StreamPriorities](c, d)
	return map[string]func() error{
		"LoadModule":        func() error { _, _, err := l.LoadModule(kernels()); return err },
		"Launch":            func() error { return l.Launch(f, addLaunch(p, 1, 1), s) },
		"FunctionInfo":      func() error { return errOf(l.FunctionInfo(f)) },
		"Occupancy":         func() error { return errOf(l.Occupancy(f, 32, 0)) },
		"BeginCapture":      func() error { return g.BeginCapture(s, driver.CaptureRelaxed) },
		"EndCapture":        func() error { return errOf(g.EndCapture(s)) },
		"CaptureID":         func() error { return errOf(g.CaptureID(s)) },
		"Priorities":        func() error { _, _, err := i.Priorities(); return err },
		"NewStreamPriority": func() error { return errOf(i.NewStreamPriority(0)) },
	}
}
