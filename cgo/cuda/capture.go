//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.Grapher = (*Device)(nil)

// Capturing says whether a stream is being captured.
func (v *Device) Capturing(s driver.Stream) (bool, error) {
	var c C.cuvmm_value
	err := v.onStream("cuStreamIsCapturing", s, func() C.CUresult {
		c = C.cuvmm_stream_capturing(v.d.api, v.ctx, stream(s))
		return c.r
	})
	return c.v != 0, err
}

// BeginCapture begins to capture a stream into a graph.
func (v *Device) BeginCapture(s driver.Stream, m driver.CaptureMode) error {
	return v.onStream("cuStreamBeginCapture", s, func() C.CUresult {
		return C.cuvmm_begin_capture(v.d.api, v.ctx, stream(s), C.int(m))
	})
}

// EndCapture ends a capture and destroys the graph.
func (v *Device) EndCapture(s driver.Stream) (driver.Graph, error) {
	const call = "cuStreamEndCapture"
	var r Result
	err := v.onStream(call, s, func() C.CUresult {
		c := C.cuvmm_end_capture(v.d.api, v.ctx, stream(s))
		r = Result(c)
		return c
	})
	switch r {
	case captureInvalidated, captureUnmatched, captureUnjoined:
		return 0, refuse(call, driver.ErrInvalid, "the capture was destroyed: %w", v.d.text(r))
	case captureWrongThread:
		return 0, refuse(call, driver.ErrInvalid, "the capture goes on: %w", v.d.text(r))
	}
	return 0, err
}

func (v *Device) CaptureID(driver.Stream) (uint64, error)              { panic("TODO") }
func (v *Device) FreeGraph(driver.Graph) error                         { return nil }
func (v *Device) Instantiate(driver.Graph) (driver.GraphExec, error)   { panic("TODO") }
func (v *Device) FreeGraphExec(driver.GraphExec) error                 { panic("TODO") }
func (v *Device) UpdateGraphExec(driver.GraphExec, driver.Graph) error { panic("TODO") }
func (v *Device) LaunchGraph(driver.GraphExec, driver.Stream) error    { panic("TODO") }
