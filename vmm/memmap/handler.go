package memmap

import (
	_ "embed" // the schema
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/internal/webdebug"
)

//go:embed schema.json
var schemaText []byte

// ServeHTTP serves the map under any path that ends in a slash:
//
//	…/             the page
//	…/data.json    a Snapshot
//	…/events       Server-Sent Events: "snapshot", a Snapshot; then "change", each a Change
//	…/schema.json  the JSON Schema of both, and of vmm.Report
//
// Whoever may read it sees addresses, sizes and names of source files, so serve it where
// net/http/pprof may be served. A page that is open gets at most one event each Options.Interval,
// and all pages get the same: a snapshot is taken once. At most 64 pages watch at once; further
// ones get 503.
func (m *Map) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	webdebug.Handler(m.serve).ServeHTTP(w, r)
}

func (m *Map) serve(w http.ResponseWriter, r *http.Request, _ url.Values) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
	case "":
		if folder, ok := withoutSlash(r.RequestURI); ok {
			h.Set("Location", folder)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("X-Frame-Options", "DENY")
		if r.Method == http.MethodGet {
			_ = m.writePage(w, nil) // the client has gone
		}
	case "data.json":
		h.Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = w.Write(m.current())
		}
	case "schema.json":
		h.Set("Content-Type", "application/schema+json")
		_, _ = w.Write(schemaText)
	case "events":
		m.serveEvents(w, r)
	default:
		http.NotFound(w, r)
	}
}

// withoutSlash is where the page is for a client that has asked without the slash at the end, as with
// http.StripPrefix of the whole path. It is a relative URL: what lies before this server may differ.
func withoutSlash(asked string) (folder string, ok bool) {
	u, err := url.ParseRequestURI(asked)
	if err != nil || u.Path == "" || strings.HasSuffix(u.Path, "/") {
		return "", false
	}
	path := u.EscapedPath()
	folder = "./" + path[strings.LastIndexByte(path, '/')+1:] + "/"
	if u.RawQuery != "" {
		folder += "?" + u.RawQuery
	}
	return folder, true
}

// serveEvents sends events until the client goes, the server cannot write, or the map is closed.
func (m *Map) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case <-m.closed:
		http.Error(w, "closed", http.StatusServiceUnavailable)
		return
	default:
	}
	if !m.watch() {
		http.Error(w, "too many pages watch", http.StatusServiceUnavailable)
		return
	}
	defer m.unwatch()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx
	if r.Method == http.MethodHead {
		return
	}
	to := http.NewResponseController(w)
	var seq uint64
	var wrote time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-m.closed:
			return
		case <-timer.C:
		}
		kind, data, now, due := m.next(seq)
		seq = now
		if kind != "" || time.Since(wrote) >= heartbeat {
			wrote = time.Now()
			text := ":\n\n"
			if kind != "" {
				text = "event: " + kind + "\ndata: "
			}
			if _, err := fmt.Fprint(w, text); err != nil {
				return
			}
			if kind != "" {
				if _, err := w.Write(data); err != nil {
					return
				}
				if _, err := fmt.Fprint(w, "\n\n"); err != nil {
					return
				}
			}
			if err := to.Flush(); err != nil {
				return
			}
		}
		timer.Reset(time.Until(due))
	}
}
