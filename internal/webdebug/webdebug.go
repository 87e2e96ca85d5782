// Package webdebug is what the handlers that stand beside net/http/pprof share: they are asked by a URL
// alone, and no client can hold them up.
package webdebug

import (
	"net/http"
	"net/url"
	"time"
)

// timeout is how long one write to a client may take, and what it sends unasked. A whole reply may
// take longer.
var timeout = 10 * time.Second

// Handler replies to GET and HEAD without a body by serve, whose query is that of the URL. Each write
// has ten seconds, where the server of w can end one.
func Handler(serve func(w http.ResponseWriter, r *http.Request, query url.Values)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := &writer{w, http.NewResponseController(w)}
		query, err := url.ParseQuery(r.URL.RawQuery)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		body := r.Body != nil && r.Body != http.NoBody
		if body { // the server reads it after the reply, and closes the connection
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
	})
}

// writer sets a deadline for each write.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(timeout)) // not every ResponseWriter has one
	return w.ResponseWriter.Write(b)
}
