package memmap_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func TestPaths(t *testing.T) {
	m := memmap.New(memmap.Options{Title: "t", Devices: []*vmm.Device{device(t)}})
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/debug/map/": "text/html; charset=utf-8", "/x/data.json": "application/json", "/schema.json": "application/schema+json",
	} {
		w := get(t, m, path)
		require.Equal(t, []any{http.StatusOK, kind}, []any{w.Code, w.Header().Get("Content-Type")}, path)
		require.NotEmpty(t, w.Body.String(), path)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
	require.Equal(t, http.StatusNotFound, get(t, m, "/data.xml").Code)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	w = httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/events", nil))
	require.Equal(t, []any{http.StatusOK, "text/event-stream"}, []any{w.Code, w.Header().Get("Content-Type")})
}

// TestEvents: first a snapshot, then what has changed. The stream ends with the client.
func TestEvents(t *testing.T) {
	d := device(t)
	g := rangeOf(t, d, 2*mib, 0)
	srv := httptest.NewServer(memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Pools: pools(map[string]*pool.Pool{"p": poolOf(t, d)})}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/events", nil)
	require.NoError(t, err)
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	in := scanner(t, resp)

	first, ok := next(in)
	require.True(t, ok)
	require.Equal(t, "snapshot", first.kind)
	require.NoError(t, conforms(t, schema(t, ""), []byte(first.data)))

	begin := time.Now()
	require.NoError(t, g.SetLen(mib))
	h, err := d.NewRange(vmm.RangeOptions{Max: 64 * mib})
	require.NoError(t, err)
	var changes []memmapChange // those of ranges
	before := uint64(1)
	for len(changes) < 2 {
		x, ok := next(in)
		require.True(t, ok)
		require.Equal(t, "change", x.kind)
		require.NoError(t, conforms(t, schema(t, "#/$defs/change"), []byte(x.data)), x.data)
		var c memmapChange
		require.NoError(t, json.Unmarshal([]byte(x.data), &c))
		require.Equal(t, before, c.Before)
		before = c.Seq
		if c.Devices[0].Ranges == nil && c.Devices[0].Gone == nil { // statistics alone
			continue
		}
		changes = append(changes, c)
		if len(changes) == 1 {
			require.Len(t, c.Devices[0].Ranges, 2, "the one that grew and the new one")
			require.Empty(t, c.Devices[0].Pools, "it is as it was")
			require.NoError(t, h.Close())
		}
	}
	require.Len(t, changes[1].Devices[0].Gone, 1)
	require.GreaterOrEqual(t, time.Since(begin), 500*time.Millisecond, "at most twice a second")
	cancel()
	_, ok = next(in)
	require.False(t, ok)
}

// memmapChange is a Change as another program reads it.
type memmapChange struct {
	Seq, Before uint64
	Devices     []struct {
		Ranges, Pools []json.RawMessage
		Gone          []string
	}
}

// TestSnapshotForAll: however many pages watch, a snapshot is taken once; if none does, none is.
func TestSnapshotForAll(t *testing.T) {
	var taken atomic.Int64
	d := device(t)
	g := rangeOf(t, d, 2*mib, 0)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Sharers: func() []memmap.Sharer {
		taken.Add(1)
		return nil
	}})
	srv := httptest.NewServer(m)
	defer srv.Close()
	require.Zero(t, taken.Load())
	var ready, all sync.WaitGroup
	for range 8 {
		ready.Add(1)
		all.Go(func() {
			resp, err := srv.Client().Get(srv.URL + "/events")
			if err != nil {
				ready.Done()
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			in := scanner(t, resp)
			first, _ := next(in)
			ready.Done()
			second, _ := next(in)
			if first.kind != "snapshot" || second.kind != "change" {
				t.Errorf("%q, then %q", first.kind, second.kind)
			}
		})
	}
	ready.Wait()
	require.NoError(t, g.SetLen(1))
	all.Wait()
	require.LessOrEqual(t, taken.Load(), int64(4))
}

// TestCloseEndsEvents: Close ends what pages read, and new ones are refused.
func TestCloseEndsEvents(t *testing.T) {
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{device(t)}})
	srv := httptest.NewServer(m)
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL + "/events")
	require.NoError(t, err)
	defer resp.Body.Close()
	in := scanner(t, resp)
	_, ok := next(in)
	require.True(t, ok)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	_, ok = next(in)
	require.False(t, ok)
	require.Equal(t, http.StatusServiceUnavailable, get(t, m, "/events").Code)
	require.Equal(t, http.StatusOK, get(t, m, "/").Code)
	require.NoError(t, (*memmap.Map)(nil).Close())
	require.NoError(t, new(memmap.Map).Close())
}

// TestTooManyPages: beyond 64 a page is refused, and then there is room again.
func TestTooManyPages(t *testing.T) {
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{device(t)}})
	var all []func()
	for range 64 {
		all = append(all, m.WatchForTest())
	}
	require.Equal(t, http.StatusServiceUnavailable, get(t, m, "/events").Code)
	all[0]()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/events", nil))
	require.Equal(t, http.StatusOK, w.Code)
}

// TestPace: a snapshot that costs much is taken less often; one that was slow once is not.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wait time.Duration
		m := memmap.New(memmap.Options{Devices: []*vmm.Device{device(t)}, Sharers: func() []memmap.Sharer {
			<-time.After(wait)
			return nil
		}})
		pause := func(cost time.Duration) time.Duration {
			wait = cost
			m.Snapshot()
			return time.Until(m.Due())
		}
		require.LessOrEqual(t, pause(50*time.Millisecond), time.Second, "once")
		require.Greater(t, pause(50*time.Millisecond), 5*time.Second, "each time")
		require.Less(t, pause(0), time.Second)
	})
}

const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(1)>`

// TestHostileNames: what comes from the program is text, in the page and in the file.
func TestHostileNames(t *testing.T) {
	d := device(t)
	m := memmap.New(memmap.Options{
		Title: hostile, Devices: []*vmm.Device{d}, Pools: pools(map[string]*pool.Pool{hostile: poolOf(t, d)}),
		Sharers:   func() []memmap.Sharer { return []memmap.Sharer{{Object: hostile, Instance: hostile}} },
		Processes: func(*vmm.Device) []memmap.Process { return []memmap.Process{{Name: hostile}} },
	})
	var file strings.Builder
	require.NoError(t, m.WriteHTML(&file))
	for _, page := range []string{file.String(), get(t, m, "/").Body.String()} {
		require.Equal(t, 2, strings.Count(page, "<script"), "the data and the program")
		require.Equal(t, 2, strings.Count(page, "</script"))
		require.NotContains(t, page, "<img")
	}
	require.NotContains(t, get(t, m, "/data.json").Body.String(), "<")
}

// TestFile: the page for a file has the data, and refers to nothing else.
func TestFile(t *testing.T) {
	m, _, _, _ := everything(t)
	var file strings.Builder
	require.NoError(t, m.WriteHTML(&file))
	page := file.String()
	require.Less(t, len(page), 200_000)
	data := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	require.NotNil(t, data)
	require.NoError(t, conforms(t, schema(t, ""), []byte(data[1])))
	require.Contains(t, page, "Permission is hereby granted", "uPlot's license")

	// Addresses stand only in comments; the policy forbids any request.
	require.Regexp(t, `connect-src &#39;none&#39;`, page)
	bare := regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(page, "")
	require.NotRegexp(t, `https?://`, bare)
	require.NotRegexp(t, `\b(src|srcset|action)=|@import|url\(`, regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(bare, ""))
}

// TestWithoutTheSlash: a client that asks without it is sent to where the page's events are.
func TestWithoutTheSlash(t *testing.T) {
	t.Parallel()
	m := memmap.New(memmap.Options{})
	defer func() { require.NoError(t, m.Close()) }()
	h := http.StripPrefix("/debug/memmap", m)
	for asked, want := range map[string]string{
		"/debug/memmap": "./memmap/", "/debug/memmap?a=b": "./memmap/?a=b",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, asked, nil))
		require.Equal(t, http.StatusTemporaryRedirect, w.Code)
		require.Equal(t, want, w.Header().Get("Location"))
	}
	for _, path := range []string{"/debug/memmap/", "/debug/memmap/?a=b"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, w.Code)
	}
	w := httptest.NewRecorder()
	http.StripPrefix("/javascript:x", m).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/javascript:x", nil))
	require.Equal(t, "./javascript:x/", w.Header().Get("Location"), "a path, and no scheme")
	w = httptest.NewRecorder()
	http.StripPrefix("/", m).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, w.Code)
}
