// Package webdebug is what the handlers that stand beside net/http/pprof share: they are asked by a URL
// alone, and no client can hold them up.
package webdebug

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// timeout limits each write to a client, and the wait for a body that it announced. A whole reply may take
// longer.
var timeout = 10 * time.Second

// Handler calls serve for GET and HEAD requests that have no body, and refuses others. query is that of the
// URL alone. Each write to the client may take ten seconds, if the ResponseWriter supports deadlines, and is
// refused once the request's context has ended. For HEAD, serve sets headers and writes nothing that is long.
func Handler(serve func(w http.ResponseWriter, r *http.Request, query url.Values)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &writer{w, r.Context(), http.NewResponseController(w)}
		query, err := url.ParseQuery(r.URL.RawQuery)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		body := r.ContentLength != 0 // -1: it does not say how long
		if body {                    // the server reads it after the reply, and closes the connection
			h.Set("Connection", "close")
			_ = to.control.SetReadDeadline(time.Now().Add(timeout))
		}
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(to, "only GET and HEAD", http.StatusMethodNotAllowed)
		case body:
			http.Error(to, "the request has a body", http.StatusBadRequest)
		case err != nil:
			http.Error(to, "the query cannot be read", http.StatusBadRequest)
		default:
			serve(to, r, query)
		}
		to.limit() // the server writes the rest after this
	})
}

// writer sets a deadline for each write, of which there are none once ctx has ended.
type writer struct {
	http.ResponseWriter
	ctx     context.Context
	control *http.ResponseController
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) limit() {
	_ = w.control.SetWriteDeadline(time.Now().Add(timeout)) // not every ResponseWriter has one
}

func (w *writer) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	w.limit()
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController. Nothing is left to write then: HTTP/2 ends a stream at its
// deadline even so.
func (w *writer) FlushError() error {
	w.limit()
	defer w.control.SetWriteDeadline(time.Time{}) //nolint:errcheck // as in limit
	return w.control.Flush()
}
