package driver

// CaptureMode says which other calls are forbidden during a capture.
type CaptureMode uint8

// Capture modes, as CUDA's.
const (
	CaptureGlobal CaptureMode = iota
	CaptureThreadLocal
	CaptureRelaxed
)

// Capturer is a Device whose streams can be captured into a graph. It exists
// for tests, and no graph is kept.
type Capturer interface {
	// BeginCapture begins a capture of the stream.
	BeginCapture(Stream, CaptureMode) error
	// EndCapture ends the capture. If a wait has destroyed it, EndCapture returns
	// ErrInvalid, and the capture has ended. If another thread began it, EndCapture
	// returns ErrInvalid too, and the capture goes on.
	EndCapture(Stream) error
}
