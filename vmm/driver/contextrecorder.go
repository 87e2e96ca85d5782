package driver

// ContextRecorder is a Device that records an event for its whole context.
type ContextRecorder interface {
	// RecordContext records an event after all work that the context's streams have now, of
	// whichever library. While one of them is being captured it returns ErrCapturing, and the
	// capture is destroyed.
	RecordContext(Event) error
}
