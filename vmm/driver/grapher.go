package driver

// CaptureMode says which other calls are forbidden during a capture.
type CaptureMode uint8

// Capture modes, as CUDA's.
const (
	CaptureGlobal CaptureMode = iota
	CaptureThreadLocal
	CaptureRelaxed
)

// Grapher is a Device whose streams can be captured into graphs: work that is queued
// on a captured stream does not run but becomes part of the graph, which can then be
// launched again and again. A stream that waits for an event of the capture becomes
// part of the capture too, and must be waited for by the first stream before the end.
type Grapher interface {
	// BeginCapture begins a capture of the stream.
	BeginCapture(Stream, CaptureMode) error
	// EndCapture ends the capture on the stream that it began on. The caller must
	// FreeGraph the graph. If a wait has destroyed the capture, EndCapture returns
	// ErrInvalid, and the capture has ended. If another thread began it, and not in
	// CaptureRelaxed, EndCapture returns ErrInvalid too, and the capture goes on.
	EndCapture(Stream) (Graph, error)
	// CaptureID is a number that all streams of one capture share, and no other capture
	// of the process has; 0 if the stream is not being captured. While a destroyed
	// capture has not been ended it returns ErrCapturing.
	CaptureID(Stream) (uint64, error)

	// FreeGraph frees a graph. What was instantiated from it stays.
	FreeGraph(Graph) error
	// Instantiate makes a graph executable. The caller must FreeGraphExec it.
	Instantiate(Graph) (GraphExec, error)
	// FreeGraphExec frees an executable graph. Launches that are queued still run.
	FreeGraphExec(GraphExec) error
	// UpdateGraphExec gives an executable graph the arguments and addresses of another
	// graph, which must have the same work in the same order, else ErrInvalid: then it
	// stays as it was.
	UpdateGraphExec(GraphExec, Graph) error
	// LaunchGraph queues all work of the graph on the stream. Launches of one GraphExec
	// run one after the other.
	LaunchGraph(GraphExec, Stream) error
}

// Graph is captured work.
type Graph uint64

// GraphExec is a Graph that can be launched.
type GraphExec uint64
