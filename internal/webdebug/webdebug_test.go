package webdebug_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/webdebug"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/memprof"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// handlers are those that stand beside net/http/pprof, of a device whose replies are long.
func handlers(t *testing.T) map[string]http.Handler {
	t.Helper()
	d := vmmtest.Device(t)
	d.SetHistory(vmm.HistoryOptions{Events: 4096})
	before := memprof.SetRate(1)
	t.Cleanup(func() { memprof.SetRate(before) })
	for i := range 300 {
		g, err := d.NewRange(vmm.RangeOptions{Max: 4 << 20, Name: fmt.Sprintf("a name that takes some room %d", i)})
		require.NoError(t, err)
		require.NoError(t, g.Append([]byte{1}))
		t.Cleanup(func() { require.NoError(t, g.Close()) })
	}
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return map[string]http.Handler{
		"/?debug=1": memprof.Handler(), "/?format=lines": memtrace.Handler(d), "/?format=trace": memtrace.Handler(d), "/": m, "/data.json": m, "/schema.json": m, "/events": m,
	}
}

// TestAskedByTheURLAlone: a body is refused unread, nothing of it becomes a file, and no other method
// replies. Not parallel: it sets TMPDIR.
func TestAskedByTheURLAlone(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("a", "b")
	require.NoError(t, err)
	_, err = file.Write(make([]byte, 40<<20)) // over what ParseMultipartForm keeps in memory
	require.NoError(t, err)
	require.NoError(t, w.WriteField("seconds", "x"))
	require.NoError(t, w.Close())
	for path, h := range handlers(t) {
		for method, want := range map[string]int{
			http.MethodGet: http.StatusBadRequest, http.MethodPost: http.StatusMethodNotAllowed, http.MethodPut: http.StatusMethodNotAllowed,
		} {
			body := bytes.NewReader(form.Bytes())
			r := httptest.NewRequest(method, path, body)
			r.Header.Set("Content-Type", w.FormDataContentType())
			to := httptest.NewRecorder()
			h.ServeHTTP(to, r)
			require.Equal(t, want, to.Code, "%s %s", method, path)
			require.Equal(t, form.Len(), body.Len(), "it was read")
		}
		to := httptest.NewRecorder()
		h.ServeHTTP(to, httptest.NewRequest(http.MethodGet, "/?%zz", nil))
		require.Equal(t, http.StatusBadRequest, to.Code)
	}
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// countingWriter counts writes, at each of which it calls wrote.
type countingWriter struct {
	header http.Header
	writes int
	wrote  func()
}

func (w *countingWriter) Header() http.Header { return w.header }
func (w *countingWriter) WriteHeader(int)     {}

func (w *countingWriter) Write(b []byte) (int, error) {
	w.writes++
	w.wrote()
	return len(b), nil
}

// Flush is for events.
func (w *countingWriter) Flush() {}

// TestHeadHasHeadersAlone: HEAD makes no body and waits for nothing, and has the headers of GET.
func TestHeadHasHeadersAlone(t *testing.T) {
	all := handlers(t)
	all["/?seconds=9"] = memprof.Handler()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for path, h := range all {
		if path == "/schema.json" { // it is there already, and its length is told
			continue
		}
		head := &countingWriter{header: http.Header{}, wrote: func() {}}
		h.ServeHTTP(head, httptest.NewRequestWithContext(ended, http.MethodHead, path, nil))
		require.Zero(t, head.writes, path)
		require.NotEmpty(t, head.header.Get("Content-Type"), path)
		if path == "/?seconds=9" {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		get := &countingWriter{header: http.Header{}, wrote: cancel}
		h.ServeHTTP(get, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		require.Equal(t, get.header, head.header, path)
	}
}

// TestRepliesEndWithTheirClient: nothing more is rendered once the context of the request has ended, although
// each write would succeed.
func TestRepliesEndWithTheirClient(t *testing.T) {
	for path, h := range handlers(t) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &countingWriter{header: http.Header{}, wrote: cancel}
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		require.Equal(t, 1, w.writes, path)
	}
}

// TestSlowClients: clients that do not read what they asked for, or announce a body and do not send it,
// go: how long they may take is what is tested.
func TestSlowClients(t *testing.T) {
	timeout := testgate.Effort(250*time.Millisecond, time.Second, time.Second)
	webdebug.SetTimeout(t, timeout)
	// As a negative control a handler of another kind writes without a deadline.
	over := make(chan struct{}, 50)
	control, _ := serving(t, timeout, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		over <- struct{}{}
	}))
	asked(t, control, "/", 1)
	most := testgate.Effort(50, 2000, 2000)
	for path, h := range handlers(t) {
		t.Run(path, func(t *testing.T) { storm(t, h, path, most, timeout) })
	}
	select {
	case <-over:
		t.Fatal("no client held it up")
	default:
	}
}

// TestOverHTTP2: where each request is a stream, replies come and events go on, however long nothing happens.
func TestOverHTTP2(t *testing.T) {
	const timeout = 100 * time.Millisecond
	webdebug.SetTimeout(t, timeout)
	d := vmmtest.Device(t)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	s := httptest.NewUnstartedServer(m)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	get := func(method, path string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		require.NoError(t, err)
		reply, err := s.Client().Do(r)
		require.NoError(t, err)
		require.Equal(t, 2, reply.ProtoMajor)
		require.Equal(t, http.StatusOK, reply.StatusCode)
		t.Cleanup(func() { _ = reply.Body.Close() })
		return reply
	}
	get(http.MethodHead, "/")
	_, err := io.Copy(io.Discard, get(http.MethodGet, "/data.json").Body)
	require.NoError(t, err)
	lines := bufio.NewScanner(get(http.MethodGet, "/events").Body)
	lines.Buffer(nil, 1<<20)
	until := func(event string) {
		for lines.Scan() {
			if lines.Text() == "event: "+event {
				return
			}
		}
		t.Fatalf("no %s: %v", event, lines.Err())
	}
	until("snapshot")
	for range 2 { // a change is shown half a second later at the soonest
		c, err := d.Create(2<<20, vmm.Prop{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		until("change")
	}
}

// serving is a server with small buffers, that ends clients that do not ask.
func serving(t *testing.T, timeout time.Duration, h http.Handler) (s *httptest.Server, gone *atomic.Int64) {
	t.Helper()
	gone = &atomic.Int64{} // connections
	s = httptest.NewUnstartedServer(h)
	s.Config.IdleTimeout, s.Config.ReadHeaderTimeout = timeout, timeout
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetWriteBuffer(4096)
			}
		case http.StateClosed:
			gone.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return s, gone
}

// asked are clients that have asked and do not read.
func asked(t *testing.T, s *httptest.Server, path string, n int) (conns []net.Conn) {
	t.Helper()
	at, err := url.Parse(s.URL)
	require.NoError(t, err)
	for i := range n {
		c, err := net.Dial("tcp", at.Host)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.(*net.TCPConn).SetReadBuffer(4096))
		length := ""
		if i%4 == 3 {
			length = "Content-Length: 100\r\n"
		}
		_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, length)
		require.NoError(t, err)
		conns = append(conns, c)
	}
	return conns
}

func storm(t *testing.T, h http.Handler, path string, n int, timeout time.Duration) {
	s, gone := serving(t, timeout, h)
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	conns := asked(t, s, path, n)
	require.Eventually(t, func() bool {
		return gone.Load() == int64(n) && runtime.NumGoroutine() <= goroutines+8 && descriptors(t) <= files+n+8
	}, time.Minute, 10*time.Millisecond, "%d clients of %d are gone", gone, n)
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}
