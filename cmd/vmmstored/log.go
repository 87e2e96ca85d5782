package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// logQueue is a log whose writers wait for no one: lines for which there is no room are dropped,
// and counted in the log.
type logQueue struct {
	to      io.Writer
	lines   chan []byte
	dropped atomic.Int64
	ended   chan struct{}
}

const (
	logLines = 1024        // that are kept for a reader that is slow
	logFlush = time.Second // for what is left at the end
)

func newLogQueue(to io.Writer) *logQueue {
	q := &logQueue{to: to, lines: make(chan []byte, logLines), ended: make(chan struct{})}
	go q.run()
	return q
}

// Write takes one line.
func (q *logQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- append([]byte(nil), line...):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

func (q *logQueue) run() {
	defer close(q.ended)
	for line := range q.lines {
		_, _ = q.to.Write(line) // a reader that is gone is no reason to end
		if n := q.dropped.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(q.to, "vmmstored: %d lines of the log were dropped, since it was not read\n", n)
		}
	}
}

// close writes what is left, as long as that is read. No one writes any more.
func (q *logQueue) close() {
	close(q.lines)
	t := time.NewTimer(logFlush)
	defer t.Stop()
	select {
	case <-q.ended:
	case <-t.C:
	}
}
