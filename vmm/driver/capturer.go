package driver

// CaptureMode says what other calls may not be made during a capture.
type CaptureMode uint8

// Capture modes, as CUDA's.
const (
	CaptureGlobal CaptureMode = iota
	CaptureThreadLocal
	CaptureRelaxed
)

// Capturer is a Device whose streams can be captured into a graph. It exists
// for tests: the graph is thrown away.
type Capturer interface {
	BeginCapture(Stream, CaptureMode) error
	// EndCapture ends it. A capture that a wait destroyed is ErrInvalid, and has
	// ended. So is one that another thread began, which goes on.
	EndCapture(Stream) error
}
