//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.Grapher = (*device)(nil)

// Capturing reports whether a stream is being captured.
func (v *device) Capturing(s driver.Stream) (bool, error) {
	var c C.cuvmm_value
	err := v.onStream("cuStreamIsCapturing", s, func() C.CUresult {
		c = C.cuvmm_stream_capturing(v.d.api, v.ctx, stream(s))
		return c.r
	})
	return c.v != 0, err
}

// CaptureID is the number of a stream's capture.
func (v *device) CaptureID(s driver.Stream) (uint64, error) {
	var c C.cuvmm_value
	err := v.onStream("cuStreamGetCaptureInfo", s, func() C.CUresult {
		c = C.cuvmm_capture_id(v.d.api, v.ctx, stream(s))
		return c.r
	})
	return uint64(c.v), err
}

// BeginCapture begins to capture a stream into a graph.
func (v *device) BeginCapture(s driver.Stream, m driver.CaptureMode) error {
	return v.onStream("cuStreamBeginCapture", s, func() C.CUresult {
		return C.cuvmm_begin_capture(v.d.api, v.ctx, stream(s), C.int(m))
	})
}

// EndCapture ends a capture.
func (v *device) EndCapture(s driver.Stream) (driver.Graph, error) {
	const call = "cuStreamEndCapture"
	var c C.cuvmm_value
	err := v.onStream(call, s, func() C.CUresult {
		c = C.cuvmm_end_capture(v.d.api, v.ctx, stream(s))
		if c.r == 0 {
			v.d.graphs.add(&tableEntry{handle: uint64(c.v), maker: v})
		}
		return c.r
	})
	switch r := Result(c.r); r {
	case captureInvalidated, captureUnmatched, captureUnjoined:
		return 0, refuse(call, driver.ErrInvalid, "the capture was destroyed: %w", v.d.text(r))
	case captureWrongThread:
		return 0, refuse(call, driver.ErrInvalid, "the capture goes on: %w", v.d.text(r))
	}
	return driver.Graph(c.v), err
}

// FreeGraph frees a graph.
func (v *device) FreeGraph(g driver.Graph) error {
	return v.freeHandle("cuGraphDestroy", &v.d.graphs, uint64(g), func(maker *device) C.CUresult {
		return C.cuvmm_graph_destroy(maker.d.api, maker.ctx, graph(g))
	})
}

// Instantiate makes a graph executable.
func (v *device) Instantiate(g driver.Graph) (driver.GraphExec, error) {
	const call = "cuGraphInstantiate"
	var c C.cuvmm_value
	err := v.onHandle(call, &v.d.graphs, uint64(g), func() C.CUresult {
		c = C.cuvmm_graph_instantiate(v.d.api, v.ctx, graph(g))
		if c.r == 0 {
			v.d.execs.add(&tableEntry{handle: uint64(c.v), maker: v})
		}
		return c.r
	})
	return driver.GraphExec(c.v), err
}

// FreeGraphExec frees an executable graph.
func (v *device) FreeGraphExec(x driver.GraphExec) error {
	return v.freeHandle("cuGraphExecDestroy", &v.d.execs, uint64(x), func(maker *device) C.CUresult {
		return C.cuvmm_graph_exec_destroy(maker.d.api, maker.ctx, exec(x))
	})
}

// UpdateGraphExec gives an executable graph what another graph has. The graph's lock
// is inside the other's, here and nowhere else.
func (v *device) UpdateGraphExec(x driver.GraphExec, g driver.Graph) error {
	return v.onBoth("cuGraphExecUpdate", use{&v.d.execs, uint64(x)}, use{&v.d.graphs, uint64(g)}, func() C.CUresult {
		return C.cuvmm_graph_update(v.d.api, v.ctx, exec(x), graph(g))
	})
}

// LaunchGraph queues an executable graph.
func (v *device) LaunchGraph(x driver.GraphExec, s driver.Stream) error {
	return v.onBoth("cuGraphLaunch", use{&v.d.execs, uint64(x)}, use{&v.d.streams, uint64(s)}, func() C.CUresult {
		return C.cuvmm_graph_launch(v.d.api, v.ctx, exec(x), stream(s))
	})
}

// graph and exec are handles as C wants them. They point into the driver's memory,
// never into Go's.
func graph(g driver.Graph) C.CUgraph        { return C.CUgraph(pointer(uint64(g))) }
func exec(x driver.GraphExec) C.CUgraphExec { return C.CUgraphExec(pointer(uint64(x))) }
