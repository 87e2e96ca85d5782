package drivertest

import "github.com/cuvmm/cuvmm/vmm/driver"

func graphRules() []Rule {
	gated := []driver.Feature{driver.FeatureStreamMemOps}
	kernels := []driver.Feature{driver.FeatureKernels, driver.FeatureStreamMemOps}
	// A driver whose work is always done when the call returns may have neither forks
	// nor graphs of copies. So what needs those needs streams that can be held.
	return []Rule{
		{Name: "capture-id", Says: "each capture has a number that no other capture has; outside captures it is 0", Source: manual, run: onDevice(captureID)},
		{Name: "graph-copies", Says: "captured fills and copies run in their order at each launch, after the earlier work of the stream and before the later", Source: guide, needs: gated, run: onChunks(4, graphCopies)},
		{Name: "graph-fork", Says: "a stream that waits for an event of a capture becomes part of it and has its number, until the first stream ends the capture", Source: guide, needs: gated, run: onChunks(4, graphFork)},
		{Name: "graph-unjoined", Says: "if another stream has captured work that the first does not wait for, EndCapture is ErrInvalid and ends the capture", Source: guide, needs: gated, run: onChunks(1, graphUnjoined)},
		{Name: "graph-origin", Says: "a capture ends on the stream that it began on; on another of its streams EndCapture is ErrInvalid", Source: manual, needs: gated, run: onInterface(graphOrigin)},
		{Name: "graph-update", Says: "an executable graph takes new values for the same work in the same order; for other work UpdateGraphExec is ErrInvalid and changes nothing", Source: manual, needs: gated, run: onChunks(2, graphUpdate)},
		{Name: "graph-free", Says: "an executable graph outlives its graph, and queued launches outlive both", Source: manual, needs: gated, run: onChunks(1, graphFree)},
		{Name: "graph-serial", Says: "two launches of one executable graph run one after the other, also on two streams", Source: manual, needs: gated, run: onChunks(1, graphSerial)},
		{Name: "capture-launch", Says: "a captured kernel runs only when the graph is launched, each time, with the arguments that it has then", Source: guide, needs: kernels, run: onChunks(1, captureLaunch)},
	}
}

// follow makes a stream wait for what another one has now.
func (c *check) follow(d driver.Device, s, after driver.Stream) {
	c.Helper()
	e := c.event(d, 0)
	c.record(d, e, after)
	c.waitFor(d, s, e)
}

// graph ends a capture and returns its graph.
func (c *check) graph(d driver.Device, s driver.Stream) driver.Graph {
	c.Helper()
	g := valueOf(as[driver.Grapher](c, d).EndCapture(s)).must(c, "end the capture")
	c.held.graphs = append(c.held.graphs, owned[driver.Graph]{d, g})
	return g
}

// exec ends a capture and makes its graph executable.
func (c *check) exec(d driver.Device, s driver.Stream) driver.GraphExec {
	c.Helper()
	x := valueOf(as[driver.Grapher](c, d).Instantiate(c.graph(d, s))).optional(c, "graphs")
	c.held.execs = append(c.held.execs, owned[driver.GraphExec]{d, x})
	return x
}

func (c *check) launchGraph(d driver.Device, x driver.GraphExec, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("launch a graph", func() error { return as[driver.Grapher](c, d).LaunchGraph(x, s) }), "launch a graph")
}

// id is the number of a stream's capture.
func (c *check) id(d driver.Device, s driver.Stream) uint64 {
	c.Helper()
	return valueOf(as[driver.Grapher](c, d).CaptureID(s)).optional(c, "CaptureID")
}

func captureID(c *check, d driver.Device) {
	plain := c.stream(d)
	seen := map[uint64]bool{}
	for _, m := range modes() {
		s, other := c.capture(d, m), c.capture(d, m)
		id, beside := c.id(d, s), c.id(d, other)
		if id == 0 || beside == 0 || id == beside || seen[id] || seen[beside] {
			c.Errorf("two captures are %d and %d, and before them were %v", id, beside, seen)
		}
		equal(c, c.id(d, s), id, "the number of a capture, again")
		equal(c, c.id(d, plain), 0, "the number of a stream that is not captured")
		seen[id], seen[beside] = true, true
		c.survives(d, other)
		c.survives(d, s)
		for _, x := range []driver.Stream{s, other} {
			equal(c, c.id(d, x), 0, "the number of a stream after its capture")
		}
	}
}

func graphCopies(c *check, d driver.Device, p driver.Ptr) {
	run := c.stream(d)
	for i, m := range modes() {
		s := c.capture(d, m)
		b := byte(10*i + 1)
		c.fillAll(d, p, b, s)
		c.copyAll(d, c.chunk(p, 1), p, s)
		c.fillAll(d, p, b+1, s)
		x := c.exec(d, s)
		for _, before := range []byte{b + 2, b + 3} {
			g := c.hold(d, run)
			c.fillAll(d, c.chunk(p, 1), before, run)
			c.copyAll(d, c.chunk(p, 3), c.chunk(p, 1), run)
			c.launchGraph(d, x, run)
			c.copyAll(d, c.chunk(p, 2), c.chunk(p, 1), run)
			c.openAndSync(g, d, run)
			c.reads(d, c.chunk(p, 3), c.gran, before)
			c.reads(d, c.chunk(p, 2), c.gran, b)
			c.reads(d, p, c.gran, b+1)
		}
	}
}

func graphFork(c *check, d driver.Device, p driver.Ptr) {
	for i, m := range modes() {
		b := byte(i + 1)
		s, side := c.capture(d, m), c.stream(d)
		c.capturing(d, side, false)
		c.fillAll(d, p, b, s)
		c.follow(d, side, s)
		c.capturing(d, side, true)
		if id, beside := c.id(d, s), c.id(d, side); id == 0 || id != beside {
			c.Errorf("two streams of one capture say %d and %d", id, beside)
		}
		c.copyAll(d, c.chunk(p, 1), p, side)
		c.copyAll(d, c.chunk(p, 2), p, s)
		c.follow(d, s, side)
		c.copyAll(d, c.chunk(p, 3), c.chunk(p, 1), s)
		x := c.exec(d, s)
		c.capturing(d, s, false)
		c.capturing(d, side, false)
		c.sync(d, side)
		c.launchGraph(d, x, side)
		c.sync(d, side)
		for k := range 4 {
			c.reads(d, c.chunk(p, k), c.gran, b)
		}
	}
}

func graphUnjoined(c *check, d driver.Device, p driver.Ptr) {
	i := as[driver.Grapher](c, d)
	for _, m := range modes() {
		s, side := c.capture(d, m), c.stream(d)
		c.follow(d, side, s)
		c.fillAll(d, p, 1, side)
		c.follow(d, s, side)
		c.fillAll(d, p, 2, side)
		c.want(endCapture(i, s), "end a capture with work that nothing waits for", driver.ErrInvalid)
		for _, x := range []driver.Stream{s, side} {
			c.capturing(d, x, false)
			c.sync(d, x)
		}
		c.reads(d, p, c.gran, 0)
	}
	s := c.stream(d)
	c.fillAll(d, p, 3, s)
	c.sync(d, s)
	c.reads(d, p, c.gran, 3)
}

func graphOrigin(c *check, d driver.Device, i driver.Grapher) {
	for _, m := range modes() {
		s, side := c.capture(d, m), c.stream(d)
		c.follow(d, side, s)
		c.want(endCapture(i, side), "end a capture on a stream that joined it", driver.ErrInvalid)
		_ = endCapture(i, s) // which may find it destroyed
		for _, x := range []driver.Stream{s, side} {
			c.capturing(d, x, false)
			c.sync(d, x)
		}
	}
}

func graphUpdate(c *check, d driver.Device, p driver.Ptr) {
	i := as[driver.Grapher](c, d)
	captured := func(work func(driver.Stream)) driver.Stream {
		s := c.capture(d, driver.CaptureRelaxed)
		work(s)
		return s
	}
	of := func(b byte) func(driver.Stream) {
		return func(s driver.Stream) {
			c.fillAll(d, p, b, s)
			c.copyAll(d, c.chunk(p, 1), p, s)
		}
	}
	x := c.exec(d, captured(of(1)))
	c.must(i.UpdateGraphExec(x, c.graph(d, captured(of(2)))), "update")
	for what, work := range map[string]func(driver.Stream){
		"more work":           func(s driver.Stream) { of(3)(s); c.fillAll(d, p, 4, s) },
		"less work":           func(s driver.Stream) { c.fillAll(d, p, 4, s) },
		"work of other kinds": func(s driver.Stream) { c.fillAll(d, p, 4, s); c.fillAll(d, c.chunk(p, 1), 4, s) },
		"work in another order": func(s driver.Stream) {
			c.copyAll(d, c.chunk(p, 1), p, s)
			c.fillAll(d, p, 4, s)
		},
	} {
		c.want(i.UpdateGraphExec(x, c.graph(d, captured(work))), "update to "+what, driver.ErrInvalid)
	}
	s := c.stream(d)
	c.launchGraph(d, x, s)
	c.sync(d, s)
	c.reads(d, c.chunk(p, 1), c.gran, 2)
	c.reads(d, p, c.gran, 2)
}

func graphFree(c *check, d driver.Device, p driver.Ptr) {
	i := as[driver.Grapher](c, d)
	s := c.capture(d, driver.CaptureRelaxed)
	c.fillAll(d, p, 1, s)
	x := c.exec(d, s)
	gr := c.held.graphs[0].it
	c.held.graphs, c.held.execs = nil, nil
	c.must(i.FreeGraph(gr), "free the graph")
	g := c.hold(d, s)
	c.launchGraph(d, x, s)
	c.must(c.prompt("free the executable graph", func() error { return i.FreeGraphExec(x) }), "free the executable graph")
	c.reads(d, p, c.gran, 0)
	c.openAndSync(g, d, s)
	c.reads(d, p, c.gran, 1)
}

func graphSerial(c *check, d driver.Device, p driver.Ptr) {
	s := c.capture(d, driver.CaptureRelaxed)
	c.fillAll(d, p, 1, s)
	x := c.exec(d, s)
	other := c.stream(d)
	e := c.event(d, 0)
	g := c.hold(d, s)
	c.launchGraph(d, x, s)
	c.launchGraph(d, x, other)
	c.record(d, e, other)
	c.staysBehind(g, "sync the second launch", func() error { return d.SyncEvent(e) })
	c.reads(d, p, c.gran, 1)
}

func captureLaunch(c *check, d driver.Device, p driver.Ptr) {
	const n = 100
	f := c.kernel(d, addWords)
	s := c.capture(d, driver.CaptureRelaxed)
	l := addLaunch(p, n, 1)
	c.launch(d, f, l, s)
	clear(l.Args) // a graph has its own
	x := c.exec(d, s)
	c.sync(d, s)
	c.words(d, p, n, 0)
	for range 2 {
		c.launchGraph(d, x, s)
	}
	c.sync(d, s)
	c.words(d, p, n, 2)
	again := c.capture(d, driver.CaptureRelaxed)
	c.launch(d, f, addLaunch(p, n, 100), again)
	c.must(as[driver.Grapher](c, d).UpdateGraphExec(x, c.graph(d, again)), "update")
	c.launchGraph(d, x, s)
	c.sync(d, s)
	c.words(d, p, n, 102)
}
